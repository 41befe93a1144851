"""How fast both engines replay request logs.

    python benchmarks/replay.py AZURE_CONV.csv [--mooncake LOG.jsonl] [--prototype FILE.py]
                                [--plot FILE.svg] [--runs 5]
    python benchmarks/replay.py --week 44000000

The first form prints: what compiling costs; the Azure 2023 conversation log, 50 times over, at
three loads, without a memory model and with few KV blocks; the Mooncake log with prefix caching;
what a step costs by the number of running requests; time by the number of requests and by output
length, drawn to --plot (which needs Matplotlib). --prototype: a script whose function `leap` does
the plain case over the same log and rules, to compare with. Figures are medians of --runs runs in
one process, on one thread.

The second form writes that many requests of a week to a Parquet file, then reads, replays and
measures it in a fresh process, and tells the wall time of each phase and the peak of memory.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import resource
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tokenyard import fast
from tokenyard.core import Rules, Scheduler
from tokenyard.engine.loop import SimulatedExecutor, run
from tokenyard.engine.step_time import StepTime
from tokenyard.metrics import Collector, RequestTable, RunSums, parse_slo, summarize
from tokenyard.workload import Workload, read_workload, synthesize, write_workload

STEP_TIME = StepTime(  # 6 ms; 30 µs a prefill token; 20 µs a decode; 40 ns a KV token
    fixed=600_000_000, per_prefill_token=3_000_000, per_decode=2_000_000, per_kv_token=4_000
)
RULES = Rules.vllm(max_num_batched_tokens=2048, max_num_seqs=256)
SCARCE = Rules.vllm(max_num_batched_tokens=2048, max_num_seqs=256, num_blocks=8_000)
TILES = 50
LOADS = {"idle": 0.1, "near saturation": 2.5, "overloaded": 10.0}
REFERENCE_REQUESTS = 2_000
MOONCAKE_REQUESTS = 1_000


def median(work: Callable[[], object], runs: int) -> float:
    """Seconds that `work` takes."""
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def tiled(workload: Workload, tiles: int, rate_scale: float) -> Workload:
    """The workload again and again, arriving `rate_scale` times as fast."""
    span = int(workload.arrival[-1]) + 10**8
    arrival = np.concatenate([workload.arrival + tile * span for tile in range(tiles)])
    return Workload(
        arrival=(arrival / rate_scale).astype(np.int64),
        prompt_tokens=np.tile(workload.prompt_tokens, tiles),
        output_tokens=np.tile(workload.output_tokens, tiles),
    )


def reference(
    workload: Workload, rules: Rules, step_time: StepTime = STEP_TIME
) -> tuple[RequestTable, RunSums]:
    collector = Collector(rules)
    for step in run(Scheduler(rules), workload.requests(), SimulatedExecutor(step_time)):
        collector.feed(step)
    return collector.table(), collector.sums


def compiling() -> None:
    """The first run of all, and the first of a process."""
    script = (
        "import time, numpy as np; from tokenyard import fast; from tokenyard.core import Rules;"
        "from tokenyard.engine.step_time import UNIT; from tokenyard.workload import Workload;"
        "one = np.ones(1, np.int64); begin = time.perf_counter();"
        "fast.replay(Workload(arrival=one, prompt_tokens=one, output_tokens=one), Rules(), UNIT);"
        "print(time.perf_counter() - begin)"
    )
    with tempfile.TemporaryDirectory() as folder:
        first, second = (
            float(
                subprocess.run(
                    [sys.executable, "-c", script],
                    env=os.environ | {"NUMBA_CACHE_DIR": folder},
                    capture_output=True,
                    check=True,
                    text=True,
                ).stdout
            )
            for _ in range(2)
        )
    print(f"compiling: {first:.1f} s once, {second:.2f} s to load it in every later process\n")


def loads(log: Path, prototype: Path | None, runs: int) -> None:
    base = read_workload(log)
    print(
        f"{base.source} x {TILES}: {len(base) * TILES:,} requests, "
        f"{int(base.output_tokens.sum()) * TILES:,} output tokens"
    )
    print(
        f"{'load':16}{'blocks':>8}{'busy':>6}{'steps':>13}{'preempted':>11}{'s':>8}"
        f"{'M req/s':>9}{'M tok/s':>9}{'reference req/s':>17}{'prototype s':>13}{'ratio':>7}"
    )
    for name, rate in LOADS.items():
        workload = tiled(base, TILES, rate)
        for rules in (RULES, SCARCE):
            table, sums = fast.replay(workload, rules, STEP_TIME)
            wall = median(lambda w=workload, r=rules: fast.replay(w, r, STEP_TIME), runs)  # type: ignore[misc]
            begin = time.perf_counter()
            reference(workload.take(np.arange(REFERENCE_REQUESTS)), rules)
            rate_of_reference = REFERENCE_REQUESTS / (time.perf_counter() - begin)
            floor = ""
            if prototype and rules is RULES:
                seconds = median(floor_of(prototype, log, rate), runs)
                floor = f"{seconds:13.3f}{wall / seconds:7.2f}"
            print(
                f"{name:16}{rules.num_blocks or 'none':>8}"
                f"{sums.busy / (sums.end - sums.start):6.0%}{sums.steps:13,}"
                f"{int(table.preemptions.sum()):11,}{wall:8.3f}{len(table) / wall / 1e6:9.2f}"
                f"{int(table.output_tokens.sum()) / wall / 1e6:9.0f}"
                f"{rate_of_reference:17,.0f}{floor}",
                flush=True,
            )
    print(f"The reference engine ran the first {REFERENCE_REQUESTS:,} requests only.\n")


def floor_of(prototype: Path, log: Path, rate: float) -> Callable[[], object]:
    """The prototype over the same requests, compiled."""
    arguments, sys.argv = sys.argv, [str(prototype), str(log), str(TILES), str(rate)]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            names: dict[str, Any] = runpy.run_path(str(prototype))
    finally:
        sys.argv = arguments
    columns = (names["arr"], names["P"], names["O"])
    budget, seqs = RULES.max_num_batched_tokens, RULES.max_num_seqs
    return lambda: names["leap"](*columns, budget, seqs, *names["c"], True)


def prefix_caching(log: Path, runs: int) -> None:
    """Mooncake, on whichever engine takes it."""
    workload = read_workload(log)
    rules = Rules.vllm(num_blocks=100_000, max_num_batched_tokens=8192, enable_prefix_caching=True)
    why_not = fast.unsupported(rules, workload)
    if why_not is None:
        name, part = "compiled", workload
        engine: Callable[..., tuple[RequestTable, RunSums]] = fast.replay
    else:
        name, engine = f"reference, since {why_not}", reference
        part = workload.take(np.arange(MOONCAKE_REQUESTS))
        runs = 1
    table, _ = engine(part, rules, STEP_TIME)
    wall = median(lambda: engine(part, rules, STEP_TIME), runs)
    hit = int(table.cached_tokens.sum()) / int(table.prompt_tokens.sum())
    print(
        f"{workload.source} with prefix caching: {len(part):,} of {len(workload):,} requests, "
        f"{hit:.0%} of prompt tokens cached; {wall:.2f} s, {len(part) / wall:,.0f} requests/s, "
        f"{int(table.output_tokens.sum()) / wall:,.0f} tokens/s (engine: {name})\n"
    )


def step_costs(runs: int) -> None:
    """Steps that each change something, beside so many requests that decode on."""
    print("ns a step, by running requests")
    kinds = {
        "one chunk of a long prompt a step": long_prompt,
        "the same, memory counted": long_prompt_in_memory,
        "one request joins, one leaves a step": turnover,
    }
    sizes = (32, 256, 1024, 8192)
    print(f"{'':40}" + "".join(f"{size:>8,}" for size in sizes))
    for kind, make in kinds.items():
        cells = []
        for size in sizes:
            workload, rules = make(size)
            _, sums = fast.replay(workload, rules, STEP_TIME)
            wall = median(lambda w=workload, r=rules: fast.replay(w, r, STEP_TIME), runs)  # type: ignore[misc]
            cells.append(f"{wall / sums.steps * 1e9:8.0f}")
        print(f"{kind:40}" + "".join(cells))
    print()


def long_prompt(running: int, **memory: Any) -> tuple[Workload, Rules]:
    """`running` requests decode while 400,000 chunks of a prompt go by, then stop."""
    chunks, chunk = 400_000, 64
    late = [10**9]
    workload = Workload(
        arrival=np.array([0] * running + late, np.int64),
        prompt_tokens=np.array([1] * running + [chunks * chunk], np.int64),
        output_tokens=np.array([chunks + 10] * running + [1], np.int64),
    )
    rules = Rules.vllm(max_num_batched_tokens=running + chunk, max_num_seqs=running + 1, **memory)
    return workload, rules


def long_prompt_in_memory(running: int) -> tuple[Workload, Rules]:
    return long_prompt(running, num_blocks=900_000_000)


def turnover(running: int) -> tuple[Workload, Rules]:
    """About one end and one admission in each step, all places being taken."""
    random = np.random.default_rng(1)
    count = 20 * running + 400_000
    workload = Workload(
        arrival=np.zeros(count, np.int64),
        prompt_tokens=np.full(count, 16, np.int64),
        output_tokens=random.integers(1, 2 * running, count),
    )
    return workload, Rules.vllm(max_num_batched_tokens=None, max_num_seqs=running)


def sizes(plot: Path | None, runs: int) -> None:
    """Time by number of requests, and by output length at the same load."""
    step = StepTime(fixed=600_000_000)  # of 6 ms, whatever is in it: so the load can be set exactly
    running = 32

    def made(requests: int, output: int) -> Workload:
        # By Little's law, `running` requests are there if each stays output × 6 ms.
        rate = running / (output * 0.006)
        return synthesize(
            requests=requests, rate=rate, prompt_mean=128, output_mean=output, output_max=10**6
        )

    def seconds(requests: int, output: int) -> float:
        workload = made(requests, output)
        fast.replay(workload, RULES, step)
        return median(lambda: fast.replay(workload, RULES, step), runs)

    counts = [10**power for power in range(3, 8)]
    by_count = [seconds(count, 200) for count in counts]
    print("requests, 200 output tokens each, about 32 running")
    for count, wall in zip(counts, by_count, strict=True):
        print(f"{count:>12,}{wall:10.4f} s{wall / count * 1e9:8.0f} ns a request")
    lengths = [10, 100, 1_000, 10_000]
    by_length = [seconds(10**6, length) for length in lengths]
    print("output tokens, 1,000,000 requests, about 32 running")
    for length, wall in zip(lengths, by_length, strict=True):
        print(f"{length:>12,}{wall:10.4f} s{wall / length:12.2e} ns a token")
    if plot:
        draw(plot, (counts, by_count), (lengths, by_length))


def draw(plot: Path, count: tuple[list[int], list[float]], length: Any) -> None:
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "tokenyard"  # the same bytes for the same figures
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for axes, (x, y), label in (
        (left, count, "requests (200 output tokens each)"),
        (right, length, "mean output tokens (1,000,000 requests)"),
    ):
        axes.loglog(x, y, marker="o", color="#1f5fa8")
        axes.set(xlabel=label, ylabel="seconds to replay")
        axes.grid(visible=True, which="major", color="#dddddd")
    right.set_ylim(min(length[1]) / 30, max(length[1]) * 30)
    figure.savefig(plot, metadata={"Date": None} if plot.suffix == ".svg" else None)
    print(f"drawn to {plot}")


def week(requests: int) -> None:
    """Write a week of a cloud; have fresh processes read, replay and measure it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "week.parquet"
        begin = time.perf_counter()
        write_workload(
            synthesize(requests=requests, rate=requests / 604_800, arrivals="daily", seed=1), path
        )
        print(
            f"{requests:,} requests of a week, written in {time.perf_counter() - begin:.1f} s, "
            f"{path.stat().st_size / 1e6:,.0f} MB of Parquet",
            flush=True,
        )
        one_thread = {"POLARS_MAX_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        for blocks in ("none", "20000"):
            subprocess.run(
                [sys.executable, __file__, "--phases", str(path), blocks],
                env=os.environ | one_thread,
                check=True,
            )


def phases(path: Path, blocks: int | None) -> None:
    """Read, replay, measure."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rules = Rules.vllm(max_num_batched_tokens=8192, max_num_seqs=256, num_blocks=blocks)
    begin = time.perf_counter()
    workload = read_workload(path)
    read = time.perf_counter()
    table, sums = fast.replay(workload, rules, STEP_TIME)
    replayed = time.perf_counter()
    summary = summarize(table, sums, parse_slo("ttft=1s,tpot=50ms"))
    measured = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )
    print(
        f"num_blocks {blocks}: read {read - begin:.1f} s, replay {replayed - read:.1f} s, "
        f"metrics {measured - replayed:.1f} s, in all {measured - begin:.1f} s on one core; peak "
        f"{peak / 2**30:.1f} GiB ({peak / len(workload):.0f} bytes a request); {summary.steps:,} "
        f"steps, {summary.output_tokens:,} output tokens, {summary.preemptions:,} preemptions",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="How fast both engines replay request logs.")
    parser.add_argument("log", type=Path, nargs="?")
    parser.add_argument("--mooncake", type=Path)
    parser.add_argument("--prototype", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--week", type=int)
    parser.add_argument("--phases", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.phases:
        path, blocks = asked.phases
        phases(Path(path), None if blocks == "none" else int(blocks))
    elif asked.week:
        week(asked.week)
    elif asked.log is None:
        parser.error("a LOG of Azure's format is needed, or --week")
    else:
        compiling()
        loads(asked.log, asked.prototype, asked.runs)
        if asked.mooncake and asked.mooncake.exists():
            prefix_caching(asked.mooncake, asked.runs)
        step_costs(asked.runs)
        sizes(asked.plot, asked.runs)


if __name__ == "__main__":
    main()
