"""Presets are what their public figures give by the documented formula, as the page says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import astuple, replace
from fractions import Fraction
from itertools import pairwise

import pytest
from conftest import ROOT
from hypothesis import assume, given
from hypothesis import strategies as st

from tokenyard.engine.presets import (
    ACTIVATION_RESERVE,
    ALL_REDUCE_LATENCY,
    COMMUNICATION_RESERVE,
    GIB,
    GPUS,
    MODELS,
    STEP_OVERHEAD,
    Gpu,
    Model,
    PresetError,
    kv_blocks,
    step_time,
)
from tokenyard.engine.step_time import StepTime, attention_pairs
from tokenyard.engine.ticks import TICKS_PER_SECOND

PAGE = (ROOT / "docs" / "step-time.md").read_text(encoding="utf-8")
SIZES = (1, 2, 4, 8)
models, gpus, sizes = (
    st.sampled_from(list(MODELS)),
    st.sampled_from(list(GPUS)),
    st.sampled_from(SIZES),
)


def milliseconds(ticks: int) -> float:
    return ticks / TICKS_PER_SECOND * 1e3


# ------------------------------------------------------------------- the figures


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("mistral-7b", 7_248_023_552),
    ],
)
def test_the_config_figures_give_the_published_number_of_parameters(
    name: str, parameters: int
) -> None:
    assert MODELS[name].parameters == parameters


def test_a_mixture_of_experts_has_the_published_active_parameters() -> None:
    assert MODELS["qwen3-30b-a3b"].active_parameters == 3_353_032_704  # "3.3B activated"
    assert MODELS["qwen3-8b"].active_parameters == MODELS["qwen3-8b"].parameters


@given(models, sizes)
def test_the_gpus_together_hold_the_model(name: str, tp: int) -> None:
    """All of it; more than once only norms, the router and copied KV heads."""
    model = MODELS[name]
    total = model.gpu_weight_bytes(tp) * tp
    assert model.parameters * 2 <= total <= model.parameters * 2 * Fraction(101, 100)


@pytest.mark.parametrize("preset", [*MODELS.values(), *GPUS.values()], ids=lambda p: p.name)
def test_every_preset_has_a_source(preset: Model | Gpu) -> None:
    assert len(preset.source) > 10
    if isinstance(preset, Gpu):
        assert len(preset.memory_source) > 10


# ------------------------------------------------------------------- worked by hand


def test_llama_8b_on_an_h100_by_hand() -> None:
    # A layer: 4096 × 128 × (32 query + 32 output + 8 key + 8 value heads) = 41,943,040 weights of
    # attention, 3 × 4096 × 14336 = 176,160,768 of the MLP: 218,103,808; 32 layers 6,979,321,856.
    # Output matrix 128,256 × 4096 = 525,336,576; norms (2 × 32 + 1) × 4096 = 266,240.
    matrices, output, norms = 6_979_321_856, 525_336_576, 266_240
    # Peaks × efficiency, each for a tick (100,000,000,000 ticks a second):
    # memory 3,350 GB/s × 4/5 = 26.8 bytes; arithmetic 989.5 TFLOP/s × 1/2 = 4,947.5 FLOP.
    memory, compute = Fraction(268, 10), Fraction(49_475, 10)
    expected = StepTime(
        fixed=100_000_000 + round((matrices + output + norms) * 2 / memory),
        per_prefill_token=round(2 * matrices / compute),
        per_attention_pair=round(4 * 32 * 32 * 128 / compute),
        per_decode=round(2 * (matrices + output) / compute),
        per_kv_token=round(2 * 32 * 8 * 128 * 2 / memory),
    )
    assert expected == StepTime(
        fixed=660_069_005,
        per_prefill_token=2_821_353,
        per_attention_pair=106,
        per_decode=3_033_717,
        per_kv_token=4_891,
    )
    assert step_time("llama-3.1-8b", "h100") == expected


def test_llama_8b_on_two_h100_by_hand() -> None:
    # Half of each matrix, the norms whole; 2 all-reduces in each of 32 layers of 10 µs = 1,000,000
    # ticks each. For a token they move 64 × 4096 × 2 bytes × 2 × (2 - 1) / 2 = 524,288 bytes at
    # 450 GB/s × 4/5 = 3.6 bytes a tick: 145,635.6 ticks.
    matrices, output, norms = 6_979_321_856 // 2, 525_336_576 // 2, 266_240
    memory, compute, link = Fraction(268, 10), Fraction(49_475, 10), Fraction(36, 10)
    expected = StepTime(
        fixed=100_000_000 + round((matrices + output + norms) * 2 / memory) + 64 * 1_000_000,
        per_prefill_token=round(2 * matrices / compute + 524_288 / link),
        per_attention_pair=round(4 * 32 * 16 * 128 / compute),
        per_decode=round(2 * (matrices + output) / compute + 524_288 / link),
        per_kv_token=round(2 * 32 * 4 * 128 * 2 / memory),
    )
    assert step_time("llama-3.1-8b", "h100", tensor_parallel_size=2) == expected


def test_a_mixture_of_experts_on_an_h200_by_hand() -> None:
    # A layer: attention 2048 × 128 × (32 + 32 + 4 + 4) = 18,874,368; an expert 3 × 2048 × 768 =
    # 4,718,592; router 2048 × 128 = 262,144; norms 2 × 2048 + 2 × 128 = 4,352.
    attention, expert, router, norms = 18_874_368, 4_718_592, 262_144, 4_352
    output = 151_936 * 2048
    # A step reads all 128 experts; a token is multiplied with 8 of them.
    read = 48 * (attention + 128 * expert + router + norms) + output + 2048
    active = 48 * (attention + 8 * expert + router)
    memory, compute = Fraction(384, 10), Fraction(49_475, 10)  # 4,800 GB/s × 4/5
    assert step_time("qwen3-30b-a3b", "h200") == StepTime(
        fixed=100_000_000 + round(read * 2 / memory),
        per_prefill_token=round(2 * active / compute),
        per_attention_pair=round(4 * 48 * 32 * 128 / compute),
        per_decode=round(2 * (active + output) / compute),
        per_kv_token=round(2 * 48 * 4 * 128 * 2 / memory),
    )


def test_kv_heads_are_copied_when_there_are_more_gpus_than_heads() -> None:
    # 4 KV heads on 4 GPUs: one each. On 8: still one each, so a token costs each GPU as much.
    model = MODELS["qwen3-30b-a3b"]
    assert [model.gpu_kv_bytes(tp) for tp in SIZES] == [98_304, 49_152, 24_576, 24_576]


def test_a_mesh_gives_few_gpus_few_of_its_links() -> None:
    mi300x = GPUS["mi300x"]
    # 7 links of 64 GB/s in one direction; between two GPUs there is one.
    assert [mi300x.bandwidth_among(tp) for tp in (2, 4, 8)] == [
        64 * 10**9,
        192 * 10**9,
        448 * 10**9,
    ]
    assert GPUS["h100"].bandwidth_among(2) == 450 * 10**9


def test_the_blocks_of_llama_8b_on_an_h100_by_hand() -> None:
    # 79.19 GiB = 85,029,615,042 bytes; × 0.9 = 76,526,653,537 (whole bytes).
    # - weights 8,030,261,248 × 2 = 16,060,522,496 - reserve 2.5 GiB = 2,684,354,560:
    # 57,781,776,481.
    # A block: 16 tokens × 131,072 bytes = 2,097,152. 27,552 whole ones; the engine keeps one.
    blocks = kv_blocks("llama-3.1-8b", "h100")
    assert blocks.usable_bytes == 76_526_653_537
    assert blocks.kv_bytes == 57_781_776_481
    assert blocks.num_blocks == 27_551
    assert blocks.tokens == 440_816
    assert blocks.explain() == [
        "llama-3.1-8b on 1 × h100:",
        "79.19 GiB × 0.9 = 71.27 GiB usable",
        "- 14.96 GiB weights - 2.50 GiB reserve = 53.81 GiB for the KV cache",
        "a token: 2 × 32 layers × 8 KV heads × 128 × 2 bytes = 131,072 bytes",
        "a block: 16 tokens × 131,072 bytes = 2,097,152 bytes",
        "27,552 blocks - 1 that the engine keeps = 27,551 blocks, 440,816 tokens",
    ]


# ------------------------------------------------------------------- properties


@given(models, gpus, sizes)
def test_every_pair_has_coefficients_in_range_or_says_why_not(
    model: str, gpu: str, tp: int
) -> None:
    held = MODELS[model].gpu_weight_bytes(tp)
    if held + ACTIVATION_RESERVE + (tp > 1) * COMMUNICATION_RESERVE > GPUS[gpu].memory_bytes:
        with pytest.raises(PresetError, match=rf"weights {held / GIB:.2f} GiB \+ reserve"):
            step_time(model, gpu, tensor_parallel_size=tp)
        return
    coefficients = step_time(model, gpu, tensor_parallel_size=tp)
    assert all(isinstance(value, int) and value > 0 for value in astuple(coefficients))
    # A million steps of the largest batch, with contexts of 128k tokens, fit into int64.
    step = coefficients.duration(16_384, attention_pairs(131_072, 16_384), 1024, 1024 * 131_072)
    assert step * 10**6 < 2**63


@given(models, gpus, st.sampled_from(SIZES[1:]))
def test_more_gpus_are_not_slower_but_for_what_they_tell_each_other(
    model: str, gpu: str, tp: int
) -> None:
    try:
        fewer = step_time(model, gpu, tensor_parallel_size=tp // 2)
    except PresetError:
        assume(False)
    more = step_time(model, gpu, tensor_parallel_size=tp)
    assert more.fixed < fewer.fixed
    assert more.per_attention_pair < fewer.per_attention_pair
    assert more.per_kv_token <= fewer.per_kv_token
    # Without the all-reduces' bytes the tokens are faster too.
    wire = replace(GPUS[gpu], link_bandwidth=10**30)
    fewer = step_time(model, wire, tensor_parallel_size=tp // 2)
    more = step_time(model, wire, tensor_parallel_size=tp)
    assert more.per_prefill_token < fewer.per_prefill_token
    assert more.per_decode < fewer.per_decode


@given(
    models,
    gpus,
    sizes,
    st.sampled_from(["flops", "memory_bandwidth", "link_bandwidth"]),
    st.integers(2, 10),
)
def test_a_better_gpu_is_not_slower(
    model: str, gpu: str, tp: int, figure: str, factor: int
) -> None:
    better = replace(GPUS[gpu], **{figure: getattr(GPUS[gpu], figure) * factor})
    try:
        before = astuple(step_time(model, gpu, tensor_parallel_size=tp))
    except PresetError:
        assume(False)
    after = astuple(step_time(model, better, tensor_parallel_size=tp))
    assert all(new <= old for new, old in zip(after, before, strict=True))
    if tp > 1 or figure != "link_bandwidth":
        assert after != before


@given(models, gpus, sizes, st.integers(1, 256), st.integers(1, 100))
def test_blocks_fill_the_memory_and_no_more(
    model: str, gpu: str, tp: int, block_size: int, percent: int
) -> None:
    try:
        blocks = kv_blocks(
            model,
            gpu,
            tensor_parallel_size=tp,
            block_size=block_size,
            gpu_memory_utilization=percent / 100,
        )
    except PresetError:
        usable = GPUS[gpu].memory_bytes * percent // 100
        used = MODELS[model].gpu_weight_bytes(tp) + ACTIVATION_RESERVE
        used += (tp > 1) * COMMUNICATION_RESERVE
        assert usable < used + 2 * block_size * MODELS[model].gpu_kv_bytes(tp)
        return
    assert blocks.usable_bytes == GPUS[gpu].memory_bytes * percent // 100
    used = blocks.weight_bytes + blocks.reserve_bytes
    kept = blocks.num_blocks + 1
    assert used + kept * blocks.block_bytes <= blocks.usable_bytes
    assert used + (kept + 1) * blocks.block_bytes > blocks.usable_bytes


@given(models, gpus, sizes)
def test_more_memory_for_the_engine_never_gives_fewer_blocks(model: str, gpu: str, tp: int) -> None:
    found = []
    for share in (0.5, 0.8, 0.9, 0.95, 1.0):
        try:
            found.append(
                kv_blocks(
                    model, gpu, tensor_parallel_size=tp, gpu_memory_utilization=share
                ).num_blocks
            )
        except PresetError:
            found.append(0)
    assert all(less <= more for less, more in pairwise(found))


# ------------------------------------------------------------------- what is said when it cannot be


@pytest.mark.parametrize(
    ("model", "gpu", "says"),
    [
        ("llama-3.1-8", "h100", ["'llama-3.1-8'", "did you mean llama-3.1-8b?", "mistral-7b"]),
        ("qwen3-30b-3ab", "h100", ["did you mean qwen3-30b-a3b?"]),
        ("qwen3-8b", "a100", ["no GPU preset 'a100'", "did you mean a100-80g?", "b200"]),
        ("qwen3-8b", "", ["no GPU preset '' (known"]),
        ("zzz", "h100", ["no model preset 'zzz' (known: llama-3.1-8b, llama-3.1-70b, qwen3-8b"]),
    ],
)
def test_an_unknown_name_is_told_what_is_known(model: str, gpu: str, says: list[str]) -> None:
    with pytest.raises(PresetError) as error:
        step_time(model, gpu)
    assert all(part in str(error.value) for part in says), str(error.value)


def test_names_may_be_written_in_capitals() -> None:
    assert step_time("Llama-3.1-8B", "H100") == step_time("llama-3.1-8b", "h100")


def test_a_model_too_large_shows_the_arithmetic_and_what_fits() -> None:
    with pytest.raises(PresetError) as error:
        step_time("llama-3.1-70b", "h100")
    assert str(error.value) == (
        "llama-3.1-70b does not fit on 1 × h100: weights 131.42 GiB + reserve 2.50 GiB of the "
        "79.19 GiB on each GPU; tensor_parallel_size 2 fits"
    )
    with pytest.raises(PresetError) as error:
        kv_blocks("llama-3.1-70b", "h200")
    assert "139.81 GiB × 0.9 = 125.83 GiB usable - weights 131.42 GiB" in str(error.value)
    assert "tensor_parallel_size 2 fits" in str(error.value)


@given(
    models,
    gpus,
    sizes,
    st.sampled_from([0.05, 0.1, 0.2, 0.3, 0.9]),
    st.sampled_from([16, 20_000, 200_000]),
)
def test_the_size_that_is_said_to_fit_does_fit(
    model: str, gpu: str, tp: int, share: float, block_size: int
) -> None:
    def fits(size: int) -> str:
        """Empty, or what is said."""
        try:
            kv_blocks(
                model,
                gpu,
                tensor_parallel_size=size,
                block_size=block_size,
                gpu_memory_utilization=share,
            )
        except PresetError as error:
            return str(error)
        return ""

    assume(complaint := fits(tp))
    said = re.search(r"; tensor_parallel_size (\d) fits$", complaint)
    enough = next((size for size in SIZES if size > tp and not fits(size)), None)
    assert enough == (int(said[1]) if said else None)


def test_a_memory_share_is_the_decimal_that_was_written() -> None:
    # The binary number nearest to 0.7 is below it, and would lose a byte here.
    round_number = replace(GPUS["h100"], memory_bytes=100_000_000_000)
    blocks = kv_blocks("llama-3.1-8b", round_number, gpu_memory_utilization=0.7)
    assert blocks.usable_bytes == 70_000_000_000


@pytest.mark.parametrize("tp", [0, -1, 9, 16, 1.0, True, "2"])
def test_a_tensor_parallel_size_outside_a_node_is_refused(tp: int) -> None:
    with pytest.raises(PresetError, match="whole number from 1 to 8"):
        step_time("llama-3.1-8b", "h100", tensor_parallel_size=tp)


def test_a_tensor_parallel_size_that_does_not_divide_is_refused() -> None:
    with pytest.raises(
        PresetError, match=r"does not divide the 32 attention heads of llama-3\.1-8b"
    ):
        step_time("llama-3.1-8b", "h100", tensor_parallel_size=3)
    odd = replace(MODELS["llama-3.1-8b"], attention_heads=48, kv_heads=6)
    with pytest.raises(PresetError, match="has 6 KV heads"):
        step_time(odd, "h100", tensor_parallel_size=4)


@pytest.mark.parametrize("share", [0, -0.1, 1.01, float("nan"), float("inf")])
def test_a_memory_share_outside_0_to_1_is_refused(share: float) -> None:
    with pytest.raises(PresetError, match="gpu_memory_utilization must be above 0 and at most 1"):
        kv_blocks("llama-3.1-8b", "h100", gpu_memory_utilization=share)


@pytest.mark.parametrize("block_size", [0, -16, 1.5, True])
def test_a_block_size_that_is_none_is_refused(block_size: int) -> None:
    with pytest.raises(PresetError, match="block_size must be a whole number"):
        kv_blocks("llama-3.1-8b", "h100", block_size=block_size)


def test_a_model_of_ones_own_needs_no_name() -> None:
    small = replace(MODELS["llama-3.1-8b"], name="half", layers=16)
    assert step_time(small, "h100").fixed < step_time("llama-3.1-8b", "h100").fixed


def test_presets_load_no_heavy_library() -> None:
    program = (
        "import json, sys, tokenyard.engine.presets; "
        "print(json.dumps([m for m in ('numpy', 'numba', 'polars') if m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert json.loads(done.stdout) == []


# ------------------------------------------------------------------- the page


def model_table() -> list[str]:
    rows = [
        "| model | layers | hidden | heads / KV heads × dim | MLP | vocabulary | parameters "
        "| active | KV bytes a token | source |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for m in MODELS.values():
        mlp = f"{m.intermediate_size:,}"
        if m.experts > 1:
            mlp = f"{m.active_experts} of {m.experts} × {mlp}"
        rows.append(
            f"| `{m.name}` | {m.layers} | {m.hidden_size:,} | {m.attention_heads} / {m.kv_heads} × "
            f"{m.head_dim} | {mlp} | {m.vocab_size:,} | {m.parameters:,} | {m.active_parameters:,} "
            f"| {m.gpu_kv_bytes():,} | {m.source} |"
        )
    return rows


def gpu_table() -> list[str]:
    rows = [
        "| GPU | dense BF16 TFLOP/s | memory GB/s | memory GiB | links GB/s, one way | source "
        "| source of the memory |",
        "| --- | ---: | ---: | ---: | ---: | --- | --- |",
    ]
    rows.extend(
        f"| `{g.name}` | {g.flops / 1e12:,g} | {g.memory_bandwidth // 10**9:,} "
        f"| {g.memory_bytes / GIB:.2f} | {g.link_bandwidth // 10**9} | {g.source} "
        f"| {g.memory_source} |"
        for g in GPUS.values()
    )
    return rows


def coefficient_table() -> list[str]:
    rows = [
        "| model | GPUs | fixed | prefill token | attention pair | decode | KV token | KV blocks |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for model in MODELS:
        for gpu in GPUS:
            tp, blocks = next(
                (tp, found) for tp in SIZES if (found := _blocks(model, gpu, tp)) is not None
            )
            s = step_time(model, gpu, tensor_parallel_size=tp)
            rows.append(
                f"| `{model}` | {tp} × `{gpu}` | {s.fixed:,} | {s.per_prefill_token:,} "
                f"| {s.per_attention_pair:,} | {s.per_decode:,} | {s.per_kv_token:,} | {blocks:,} |"
            )
    return rows


def _blocks(model: str, gpu: str, tp: int) -> int | None:
    try:
        return kv_blocks(model, gpu, tensor_parallel_size=tp).num_blocks
    except PresetError:
        return None


@pytest.mark.parametrize("table", [model_table, gpu_table, coefficient_table])
def test_the_page_has_the_figures_of_the_code(table: object) -> None:
    rows = table()  # type: ignore[operator]
    assert "\n".join(rows) in PAGE, "the page should have:\n" + "\n".join(rows)


def comparisons() -> list[str]:
    """Steps that others measured, beside what the formula gives for them."""
    h100, h200 = step_time("llama-3.1-8b", "h100"), step_time("llama-3.1-8b", "h200")
    a100_40g = replace(GPUS["a100-80g"], name="a100-40g", memory_bandwidth=1_555 * 10**9)
    a100 = step_time("llama-3.1-8b", a100_40g)
    moe = step_time("qwen3-30b-a3b", "a100-80g")
    large = step_time("llama-3.1-70b", "h200", tensor_parallel_size=4)
    rows = ["| what | measured | formula | error |", "| --- | ---: | ---: | ---: |"]
    for what, measured, ticks in (
        ("Llama-3.1-8B, H100, 1 request: TPOT [1]", 6.48, h100.duration(0, 0, 1, 256)),
        ("Llama-3.1-8B, H100, 4 requests: TPOT [1]", 6.59, h100.duration(0, 0, 4, 4 * 256)),
        ("Llama-3.1-8B, H100, 16 requests: TPOT [1]", 10.94, h100.duration(0, 0, 16, 16 * 256)),
        ("Llama-3.1-8B, A100 40 GB, 1 request: TPOT [2]", 13.3, a100.duration(0, 0, 1, 1088)),
        ("Llama-3.1-8B, H200, 8 × (32 + 128) tokens: the run [3]", 833.4, _run(h200)),
        ("Llama-3-70B, 4 × H200, 8 × (32 + 128) tokens: the run [3]", 2077.5, _run(large)),
        ("Qwen3-30B-A3B, A100, 1 request: TPOT [4]", 9.6, moe.duration(0, 0, 1, 192)),
    ):
        formula = milliseconds(ticks)
        error = f"{(formula / measured - 1) * 100:+.0f} %"
        rows.append(f"| {what} | {measured:,g} ms | {formula:,.1f} ms | {error} |")
    return rows


def _run(step: StepTime) -> int:
    """8 prompts of 32 tokens in one step, then 127 decodes of each."""
    prefill = step.duration(8 * 32, 8 * attention_pairs(0, 32), 0, 0)
    return prefill + sum(step.duration(0, 0, 8, 8 * (32 + n)) for n in range(127))


def memory_comparisons() -> list[str]:
    """GiB for the KV cache at a utilization of 0.95 on H100, as vLLM 0.19.0 found them."""
    rows = ["| what | measured | formula | error |", "| --- | ---: | ---: | ---: |"]
    for what, measured, name, tp in (
        ("Llama-3.1-8B, 1 × H100 [5]", 58.11, "llama-3.1-8b", 1),
        ("Llama-3.1-8B, 2 × H100 [5]", 63.76, "llama-3.1-8b", 2),
        ("Qwen3-30B-A3B, 1 × H100 [5]", 15.4, "qwen3-30b-a3b", 1),
    ):
        blocks = kv_blocks(name, "h100", tensor_parallel_size=tp, gpu_memory_utilization=0.95)
        formula = blocks.kv_bytes / GIB
        error = f"{(formula / measured - 1) * 100:+.1f} %"
        rows.append(f"| {what} | {measured:g} GiB | {formula:.2f} GiB | {error} |")
    return rows


@pytest.mark.parametrize("table", [comparisons, memory_comparisons])
def test_the_page_compares_what_the_code_gives(table: object) -> None:
    rows = table()  # type: ignore[operator]
    assert "\n".join(rows) in PAGE, "the page should have:\n" + "\n".join(rows)


def test_the_page_tells_the_assumptions_of_the_code() -> None:
    assert milliseconds(STEP_OVERHEAD) == 1.0
    assert milliseconds(ALL_REDUCE_LATENCY) == 0.01
    for said in (
        "`COMPUTE_EFFICIENCY` | 1/2",
        "`BANDWIDTH_EFFICIENCY` | 4/5",
        "`STEP_OVERHEAD` | 1 ms",
        "`ALL_REDUCE_LATENCY` | 10 µs",
        "`ACTIVATION_RESERVE` | 2.5 GiB",
        "`COMMUNICATION_RESERVE` | 2 GiB",
    ):
        assert said in PAGE


def test_rounding_to_whole_ticks_errs_as_the_page_says() -> None:
    """By half a tick at most; the smallest coefficient, that of a pair, has the largest share."""
    worst = dict.fromkeys(SIZES, 0.0)
    for model in MODELS:
        for gpu in GPUS:
            for tp in SIZES:
                if _blocks(model, gpu, tp) is None:
                    continue
                operations = MODELS[model].gpu_pair_flops(tp) * TICKS_PER_SECOND
                exact = operations / Fraction(GPUS[gpu].flops, 2)
                got = step_time(model, gpu, tensor_parallel_size=tp).per_attention_pair
                assert abs(got - exact) <= Fraction(1, 2)
                worst[tp] = max(worst[tp], float(abs(got / exact - 1)))
    one, eight = (f"{worst[tp] * 100:.1f} %" for tp in (1, 8))
    assert f"by at most {one} on one GPU and {eight} on eight" in PAGE
