"""Step-time models and KV memory of named models on named GPUs, from public figures by one formula.

`docs/step-time.md` derives the formula, gives the source of each figure and says where it errs.
All arithmetic is in whole numbers and fractions, so a coefficient is the same on every platform.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

from tokenyard.engine.step_time import StepTime
from tokenyard.engine.ticks import TICKS_PER_SECOND

GIB = 2**30

# The five assumptions, beside the public figures. docs/step-time.md compares them to measurements.

COMPUTE_EFFICIENCY = Fraction(1, 2)
"""Share of the peak FLOP/s that a step reaches: large matrix products reach more, what lies between
them (norms, activations, launches) and attention reach less."""

BANDWIDTH_EFFICIENCY = Fraction(4, 5)
"""Share of the peak bandwidth, of memory and of links, that a step reaches."""

STEP_OVERHEAD = TICKS_PER_SECOND // 1_000
"""Ticks that a step takes beside its arithmetic and its reads: 1 ms of scheduling, launches and
sampling."""

ALL_REDUCE_LATENCY = TICKS_PER_SECOND // 100_000
"""Ticks that one all-reduce takes however small it is: 10 µs."""

ACTIVATION_RESERVE = 5 * GIB // 2
"""Bytes of a GPU kept from the KV cache: activations of the largest step, logits, CUDA context."""

COMMUNICATION_RESERVE = 2 * GIB
"""Further bytes of a GPU kept from the KV cache with tensor parallelism: all-reduce buffers."""

MAX_TENSOR_PARALLEL_SIZE = 8
"""GPUs of one node: beyond it the figures of the links do not hold."""


class PresetError(ValueError):
    """A model or a GPU has no such preset, or the model cannot run on the GPUs as asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder-only transformer, by the figures of its config.json.

    Attention with grouped KV heads, a gated MLP of three matrices (or `experts` of them, of which
    each token takes `active_experts`), an embedding table and an output matrix of its own.
    """

    name: str
    layers: int
    hidden_size: int
    attention_heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    """Width of the MLP; of one expert in a mixture of experts."""
    vocab_size: int
    experts: int = 1
    active_experts: int = 1
    qk_norm: bool = False
    """Whether queries and keys are normalised, which takes 2 × head_dim weights a layer."""
    dtype_bytes: int = 2
    """Bytes of a weight, an activation and an element of the KV cache (2: BF16)."""
    source: str

    @property
    def parameters(self) -> int:
        """All weights."""
        return self._layer_weights(1, self.experts) + 2 * self.embedding + self.hidden_size

    @property
    def active_parameters(self) -> int:
        """The weights that one token uses: all but the experts that it does not take."""
        return self._layer_weights(1, self.active_experts) + 2 * self.embedding + self.hidden_size

    @property
    def embedding(self) -> int:
        """Weights of the embedding table, and as many of the output matrix."""
        return self.vocab_size * self.hidden_size

    def gpu_weight_bytes(self, tensor_parallel_size: int = 1) -> int:
        """Bytes of weights that each GPU holds."""
        tp = tensor_parallel_size
        held = self._layer_weights(tp, self.experts) + 2 * self.embedding // tp + self.hidden_size
        return held * self.dtype_bytes

    def gpu_read_bytes(self, tensor_parallel_size: int = 1) -> int:
        """Bytes of weights that each GPU reads in a step: all that it holds but the embedding
        table, of which a step looks up a few rows. Of a mixture of experts, every expert."""
        table = self.embedding // tensor_parallel_size
        return self.gpu_weight_bytes(tensor_parallel_size) - table * self.dtype_bytes

    def gpu_token_flops(self, tensor_parallel_size: int = 1) -> int:
        """Operations of each GPU for a token, without attention and output matrix: two for each
        weight that multiplies it."""
        return 2 * self._layer_matrices(tensor_parallel_size, self.active_experts)

    def gpu_logits_flops(self, tensor_parallel_size: int = 1) -> int:
        """Operations of each GPU for the logits of a token."""
        return 2 * self.embedding // tensor_parallel_size

    def gpu_pair_flops(self, tensor_parallel_size: int = 1) -> int:
        """Operations of each GPU for a token that attends to another: a product of head_dim for the
        score and one for the value, in each head and layer."""
        return 4 * self.layers * self.attention_heads * self.head_dim // tensor_parallel_size

    def gpu_kv_bytes(self, tensor_parallel_size: int = 1) -> int:
        """Bytes of KV cache that each GPU holds for a token: a key and a value in each layer."""
        heads = self.gpu_kv_heads(tensor_parallel_size)
        return 2 * self.layers * heads * self.head_dim * self.dtype_bytes

    def gpu_kv_heads(self, tensor_parallel_size: int = 1) -> int:
        """KV heads that each GPU holds; with fewer heads than GPUs, several hold the same one."""
        return max(1, self.kv_heads // tensor_parallel_size)

    def _layer_matrices(self, tp: int, experts: int) -> int:
        """Weights in the matrices of all layers on each GPU; the router is on every one."""
        heads = 2 * self.attention_heads // tp + 2 * self.gpu_kv_heads(tp)
        attention = self.hidden_size * self.head_dim * heads
        mlp = experts * 3 * self.hidden_size * self.intermediate_size // tp
        router = self.hidden_size * self.experts if self.experts > 1 else 0
        return self.layers * (attention + mlp + router)

    def _layer_weights(self, tp: int, experts: int) -> int:
        norms = 2 * self.hidden_size + (2 * self.head_dim if self.qk_norm else 0)
        return self._layer_matrices(tp, experts) + self.layers * norms


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU, by the figures of its data sheet."""

    name: str
    flops: int
    """Dense BF16 operations a second, peak (no sparsity)."""
    memory_bandwidth: int
    """Bytes a second, peak."""
    memory_bytes: int
    """What the driver offers to programs: a little less than the data sheet's memory."""
    link_bandwidth: int
    """Bytes a second to the other GPUs of the node together, in one direction, peak."""
    mesh_peers: int = 0
    """Where each pair of GPUs has a link of its own, the GPUs that one is linked to: with fewer
    GPUs in use, fewer links carry. 0: a switch, which gives the whole bandwidth to any pair."""
    source: str
    memory_source: str

    def bandwidth_among(self, tensor_parallel_size: int) -> Fraction:
        """Bytes a second, in one direction, that the links carry among so many GPUs."""
        if not self.mesh_peers:
            return Fraction(self.link_bandwidth)
        return Fraction(self.link_bandwidth * (tensor_parallel_size - 1), self.mesh_peers)


MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        Model(
            name="llama-3.1-8b",
            layers=32,
            hidden_size=4096,
            attention_heads=32,
            kv_heads=8,
            head_dim=128,
            intermediate_size=14336,
            vocab_size=128256,
            source="config.json of meta-llama/Llama-3.1-8B, Hugging Face",
        ),
        Model(
            name="llama-3.1-70b",
            layers=80,
            hidden_size=8192,
            attention_heads=64,
            kv_heads=8,
            head_dim=128,
            intermediate_size=28672,
            vocab_size=128256,
            source="config.json of meta-llama/Llama-3.1-70B, Hugging Face",
        ),
        Model(
            name="qwen3-8b",
            layers=36,
            hidden_size=4096,
            attention_heads=32,
            kv_heads=8,
            head_dim=128,
            intermediate_size=12288,
            vocab_size=151936,
            qk_norm=True,
            source="config.json of Qwen/Qwen3-8B, Hugging Face",
        ),
        Model(
            name="qwen3-30b-a3b",
            layers=48,
            hidden_size=2048,
            attention_heads=32,
            kv_heads=4,
            head_dim=128,
            intermediate_size=768,
            vocab_size=151936,
            experts=128,
            active_experts=8,
            qk_norm=True,
            source="config.json of Qwen/Qwen3-30B-A3B, Hugging Face",
        ),
        Model(
            name="mistral-7b",
            layers=32,
            hidden_size=4096,
            attention_heads=32,
            kv_heads=8,
            head_dim=128,
            intermediate_size=14336,
            vocab_size=32768,
            source="config.json of mistralai/Mistral-7B-v0.3, Hugging Face (full attention; "
            "v0.1 had a sliding window)",
        ),
    )
}
"""Models by the names that a user types."""

GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        Gpu(
            name="a100-80g",
            flops=312 * 10**12,
            memory_bandwidth=2_039 * 10**9,
            memory_bytes=7_925 * GIB // 100,
            link_bandwidth=300 * 10**9,
            source="NVIDIA A100 Tensor Core GPU data sheet, 80 GB SXM: BF16 312 TFLOP/s, "
            "2,039 GB/s, NVLink 600 GB/s both ways",
            memory_source="PyTorch out-of-memory messages: 79.25 GiB",
        ),
        Gpu(
            name="h100",
            flops=9_895 * 10**11,
            memory_bandwidth=3_350 * 10**9,
            memory_bytes=7_919 * GIB // 100,
            link_bandwidth=450 * 10**9,
            source="NVIDIA H100 Tensor Core GPU data sheet, 80 GB SXM: BF16 1,979 TFLOP/s with "
            "sparsity, half of it dense, 3.35 TB/s, NVLink 900 GB/s both ways",
            memory_source="accuracy report of llm-d-incubation/llm-d-planner: 79.19 GiB",
        ),
        Gpu(
            name="h200",
            flops=9_895 * 10**11,
            memory_bandwidth=4_800 * 10**9,
            memory_bytes=13_981 * GIB // 100,
            link_bandwidth=450 * 10**9,
            source="NVIDIA H200 Tensor Core GPU data sheet, 141 GB SXM: BF16 1,979 TFLOP/s with "
            "sparsity, half of it dense, 4.8 TB/s, NVLink 900 GB/s both ways",
            memory_source="vLLM start-up logs: total_gpu_memory 139.81 GiB",
        ),
        Gpu(
            name="l40s",
            flops=36_205 * 10**10,
            memory_bandwidth=864 * 10**9,
            memory_bytes=4_439 * GIB // 100,
            link_bandwidth=32 * 10**9,
            source="NVIDIA L40S data sheet, 48 GB: BF16 362.05 TFLOP/s dense, 864 GB/s, "
            "PCIe Gen4 x16 64 GB/s both ways, no NVLink",
            memory_source="vLLM start-up logs: total_gpu_memory 44.39 GiB",
        ),
        Gpu(
            name="mi300x",
            flops=13_074 * 10**11,
            memory_bandwidth=5_300 * 10**9,
            memory_bytes=19_145 * GIB // 100,
            link_bandwidth=448 * 10**9,
            mesh_peers=7,
            source="AMD Instinct MI300X accelerator data sheet, 192 GB: BF16 1,307.4 TFLOP/s "
            "dense, 5.3 TB/s, 7 Infinity Fabric links of 128 GB/s both ways",
            memory_source="vLLM start-up logs: total_gpu_memory 191.45 GiB",
        ),
        Gpu(
            name="b200",
            flops=2_250 * 10**12,
            memory_bandwidth=8_000 * 10**9,
            memory_bytes=17_836 * GIB // 100,
            link_bandwidth=900 * 10**9,
            source="NVIDIA Blackwell Architecture Technical Brief, HGX B200: BF16 4.5 PFLOP/s with "
            "sparsity, half of it dense; NVIDIA DGX B200 data sheet, an eighth of 8 GPUs: 180 GB, "
            "8 TB/s, NVLink 1.8 TB/s both ways",
            memory_source="PyTorch out-of-memory messages: 178.36 GiB",
        ),
    )
}
"""GPUs by the names that a user types."""


def step_time(model: str | Model, gpu: str | Gpu, *, tensor_parallel_size: int = 1) -> StepTime:
    """The step-time model of `model` on `tensor_parallel_size` GPUs, in whole ticks.

    The parts of a step are added, each at its own peak × its efficiency: weights read once, the
    arithmetic of each token and of each attention pair, KV bytes read by decodes, all-reduces.
    Raises `PresetError` for a name that is not known and for weights that do not fit.
    """
    model, gpu, tp = _checked(model, gpu, tensor_parallel_size)
    reserve = _reserve(tp)
    if model.gpu_weight_bytes(tp) + reserve > gpu.memory_bytes:
        raise PresetError(
            f"{model.name} does not fit on {_count(gpu, tp)}: weights "
            f"{_gib(model.gpu_weight_bytes(tp))} + reserve {_gib(reserve)} of the "
            f"{_gib(gpu.memory_bytes)} on each GPU; {_advice(model, gpu, tp, Fraction(1), 0)}"
        )
    compute = gpu.flops * COMPUTE_EFFICIENCY
    memory = gpu.memory_bandwidth * BANDWIDTH_EFFICIENCY
    weights = _ticks(model.gpu_read_bytes(tp), memory)
    latency, communication = _all_reduce(model, gpu, tp)
    token_flops = model.gpu_token_flops(tp)
    return StepTime(
        fixed=STEP_OVERHEAD + round(weights) + latency,
        per_prefill_token=round(_ticks(token_flops, compute) + communication),
        per_attention_pair=round(_ticks(model.gpu_pair_flops(tp), compute)),
        per_decode=round(_ticks(token_flops + model.gpu_logits_flops(tp), compute) + communication),
        per_kv_token=round(_ticks(model.gpu_kv_bytes(tp), memory)),
    )


def _all_reduce(model: Model, gpu: Gpu, tp: int) -> tuple[int, Fraction]:
    """Ticks of all-reduces in a step, and for each token in it. Each layer has two, of one hidden
    state a token; a ring moves 2 (tp - 1) / tp of its bytes over each GPU's links."""
    if tp == 1:
        return 0, Fraction(0)
    count = 2 * model.layers
    moved = Fraction(count * model.hidden_size * model.dtype_bytes * 2 * (tp - 1), tp)
    return count * ALL_REDUCE_LATENCY, _ticks(moved, gpu.bandwidth_among(tp) * BANDWIDTH_EFFICIENCY)


@dataclass(frozen=True, slots=True, kw_only=True)
class KvBlocks:
    """The KV cache blocks that fit beside the weights, with the figures that led there. Bytes are
    those of each GPU."""

    model: Model
    gpu: Gpu
    tensor_parallel_size: int
    block_size: int
    gpu_memory_utilization: Fraction
    usable_bytes: int
    weight_bytes: int
    reserve_bytes: int
    block_bytes: int

    @property
    def kv_bytes(self) -> int:
        """Bytes left for the KV cache."""
        return self.usable_bytes - self.weight_bytes - self.reserve_bytes

    @property
    def num_blocks(self) -> int:
        """Blocks that requests can hold: as vLLM, one block is kept for the engine itself."""
        return self.kv_bytes // self.block_bytes - 1

    @property
    def tokens(self) -> int:
        """Tokens that the blocks hold."""
        return self.num_blocks * self.block_size

    def explain(self) -> list[str]:
        """The arithmetic, a line for each step of it."""
        each = " on each GPU" if self.tensor_parallel_size > 1 else ""
        model, token = self.model, self.block_bytes // self.block_size
        heads = model.gpu_kv_heads(self.tensor_parallel_size)
        return [
            f"{self.model.name} on {_count(self.gpu, self.tensor_parallel_size)}{each}:",
            f"{_gib(self.gpu.memory_bytes)} × {float(self.gpu_memory_utilization):g} "
            f"= {_gib(self.usable_bytes)} usable",
            f"- {_gib(self.weight_bytes)} weights - {_gib(self.reserve_bytes)} reserve "
            f"= {_gib(self.kv_bytes)} for the KV cache",
            f"a token: 2 × {model.layers} layers × {heads} KV heads × {model.head_dim} × "
            f"{model.dtype_bytes} bytes = {token:,} bytes",
            f"a block: {self.block_size} tokens × {token:,} bytes = {self.block_bytes:,} bytes",
            f"{self.kv_bytes // self.block_bytes:,} blocks - 1 that the engine keeps "
            f"= {self.num_blocks:,} blocks, {self.tokens:,} tokens",
        ]


def kv_blocks(
    model: str | Model,
    gpu: str | Gpu,
    *,
    tensor_parallel_size: int = 1,
    block_size: int = 16,
    gpu_memory_utilization: float = 0.9,
) -> KvBlocks:
    """The KV cache blocks of `block_size` tokens that fit: memory × utilization - weights -
    reserve, divided by the bytes of a block. Raises `PresetError` if there is no room for one."""
    model, gpu, tp = _checked(model, gpu, tensor_parallel_size)
    if isinstance(block_size, bool) or not isinstance(block_size, int) or block_size < 1:
        raise PresetError(f"block_size must be a whole number of at least 1 (got {block_size!r})")
    if not 0 < gpu_memory_utilization <= 1:
        raise PresetError(
            f"gpu_memory_utilization must be above 0 and at most 1 (got {gpu_memory_utilization!r})"
        )
    # As the decimal that was written: 0.9 is 9/10, not the nearest binary number.
    share = Fraction(str(gpu_memory_utilization))
    blocks = KvBlocks(
        model=model,
        gpu=gpu,
        tensor_parallel_size=tp,
        block_size=block_size,
        gpu_memory_utilization=share,
        usable_bytes=int(gpu.memory_bytes * share),
        weight_bytes=model.gpu_weight_bytes(tp),
        reserve_bytes=_reserve(tp),
        block_bytes=block_size * model.gpu_kv_bytes(tp),
    )
    if blocks.num_blocks < 1:
        raise PresetError(
            f"{model.name} leaves no room for a KV cache on {_count(gpu, tp)}: "
            f"{_gib(gpu.memory_bytes)} × {gpu_memory_utilization:g} = "
            f"{_gib(blocks.usable_bytes)} usable - weights {_gib(blocks.weight_bytes)} - reserve "
            f"{_gib(blocks.reserve_bytes)} = {_gib(blocks.kv_bytes)} on each GPU; "
            f"{_advice(model, gpu, tp, share, block_size)}"
        )
    return blocks


def _checked(model: str | Model, gpu: str | Gpu, tp: int) -> tuple[Model, Gpu, int]:
    """The figures of names, and a tensor parallel size that divides the model."""
    if isinstance(model, str):
        model = _named("model", MODELS, model)
    if isinstance(gpu, str):
        gpu = _named("GPU", GPUS, gpu)
    if reason := _indivisible(model, tp):
        raise PresetError(f"tensor_parallel_size {tp!r}: {reason}")
    return model, gpu, tp


def _indivisible(model: Model, tp: int) -> str | None:
    """Why the model cannot be split over so many GPUs, or None."""
    if isinstance(tp, bool) or not isinstance(tp, int) or not 1 <= tp <= MAX_TENSOR_PARALLEL_SIZE:
        return f"must be a whole number from 1 to {MAX_TENSOR_PARALLEL_SIZE}, the GPUs of one node"
    for what, number in (
        ("attention heads", model.attention_heads),
        ("columns of the MLP", model.intermediate_size),
        ("tokens of the vocabulary", model.vocab_size),
    ):
        if number % tp:
            return f"does not divide the {number:,} {what} of {model.name}"
    if model.kv_heads % tp and tp % model.kv_heads:
        return (
            f"{model.name} has {model.kv_heads} KV heads, which can be split over a divisor of it "
            "or copied to a multiple of it"
        )
    return None


def _advice(model: Model, gpu: Gpu, tp: int, share: Fraction, block_size: int) -> str:
    """The next tensor parallel size that leaves room for a block, and for the engine's own."""
    for size in range(tp + 1, MAX_TENSOR_PARALLEL_SIZE + 1):
        held = model.gpu_weight_bytes(size) + _reserve(size)
        blocks = 2 * block_size * model.gpu_kv_bytes(size)
        if not _indivisible(model, size) and held + blocks <= int(gpu.memory_bytes * share):
            return f"tensor_parallel_size {size} fits"
    return f"no tensor_parallel_size up to {MAX_TENSOR_PARALLEL_SIZE} fits"


def _reserve(tp: int) -> int:
    return ACTIVATION_RESERVE + (COMMUNICATION_RESERVE if tp > 1 else 0)


_Preset = TypeVar("_Preset", Model, Gpu)


def _named(kind: str, known: Mapping[str, _Preset], name: str) -> _Preset:
    try:
        return known[name.lower()]
    except KeyError:
        close = [other for other in known if other.startswith(name.lower())] if name else []
        close = close or difflib.get_close_matches(name.lower(), known, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise PresetError(f"no {kind} preset {name!r}{hint} (known: {', '.join(known)})") from None


def _ticks(amount: int | Fraction, per_second: Fraction) -> Fraction:
    """Ticks that `amount` operations or bytes take, not yet rounded."""
    return amount * TICKS_PER_SECOND / per_second


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"


def _count(gpu: Gpu, tp: int) -> str:
    return f"{tp} × {gpu.name}"
