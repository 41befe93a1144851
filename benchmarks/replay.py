"""How fast both engines replay request logs.

    python benchmarks/replay.py [--trace LOG.csv] [--mooncake LOG.jsonl] [--prototype FILE.py]
    python benchmarks/replay.py --running
    python benchmarks/replay.py --sizes [--plot docs/images/replay_cost.svg]
    python benchmarks/replay.py --week [44000000]

Prints Markdown tables. Alone, it measures what compiling costs; the Azure 2023 conversation log, 50
times over, at three loads, without a memory model and with few KV blocks; and the Mooncake log with
prefix caching. Where a log is not given, one with like figures is drawn at random. --prototype: a
script whose function `leap` does the plain case alone, to compare with.

--running: what a step costs by the number of running requests. --sizes: time by the number of
requests and by output length, drawn to --plot (which needs Matplotlib). --week: so many requests
are written to a Parquet file; a fresh process on one core reads, replays and measures them, and
tells the time of each phase and the peak of memory.

Figures are medians of --runs runs in one process, on one thread. What is compared runs in turns,
and in CPU time, since a machine that is shared shifts the clock on the wall more.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import platform
import resource
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tokenyard import fast
from tokenyard.core import Rules, Scheduler
from tokenyard.engine.loop import SimulatedExecutor, run
from tokenyard.engine.step_time import StepTime
from tokenyard.engine.ticks import TICKS_PER_SECOND
from tokenyard.metrics import Collector, RequestTable, RunSums, parse_slo, summarize
from tokenyard.workload import Workload, read_workload, synthesize, write_workload

STEP_TIME = StepTime(  # 6 ms; 30 µs a prefill token; 20 µs a decode; 40 ns a KV token
    fixed=600_000_000, per_prefill_token=3_000_000, per_decode=2_000_000, per_kv_token=4_000
)
STEADY = StepTime(fixed=600_000_000)  # 6 ms, whatever is in it: so a load can be set exactly
EIGHTH = StepTime(  # of STEP_TIME: no single such machine serves what a cloud does in a week
    fixed=75_000_000, per_prefill_token=375_000, per_decode=250_000, per_kv_token=500
)
TILES = 50
LOADS = {"idle": 0.1, "near saturation": 2.5, "overloaded": 10.0}
SCARCE = 8_000
REFERENCE_REQUESTS = 2_000
MOONCAKE_REQUESTS = 1_000
WEEK_BLOCKS = 6_000
RUNNING = (32, 256, 1024, 8192)


class Taken(NamedTuple):
    """Seconds."""

    cpu: float
    wall: float


def medians(runs: int, *works: Callable[[], object]) -> list[Taken]:
    """What each of `works` takes; they run in turns."""
    times: list[list[Taken]] = [[] for _ in works]
    for _ in range(runs):
        for work, taken in zip(works, times, strict=True):
            cpu, wall = time.process_time(), time.perf_counter()
            work()
            taken.append(Taken(time.process_time() - cpu, time.perf_counter() - wall))
    return [Taken(*map(statistics.median, zip(*taken, strict=True))) for taken in times]


def replaying(
    workload: Workload, rules: Rules, step_time: StepTime = STEP_TIME
) -> Callable[[], tuple[RequestTable, RunSums]]:
    return lambda: fast.replay(workload, rules, step_time)


def head(*names: str) -> None:
    print("| " + " | ".join(names) + " |")
    print("| --- |" + " ---: |" * (len(names) - 1), flush=True)


def row(*cells: object) -> None:
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


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
    print(f"Compiling takes {first:.1f} s once, loading {second:.2f} s in every later process.\n")


def loads(base: Workload, prototype: Path | None, runs: int) -> None:
    print(
        f"{base.source}, {TILES} times over: {len(base) * TILES:,} requests, "
        f"{int(base.output_tokens.sum()) * TILES:,} output tokens\n"
    )
    head(
        *("load", "blocks", "mean batch", "queueing p50, s", "preemptions", "CPU s", "wall s"),
        *("M requests/s", "M output tokens/s", "reference, requests/s", "times as fast"),
        *("prototype, CPU s", "ratio"),
    )
    leap = prototype and prototype_in(prototype)
    for name, rate in LOADS.items():
        workload = tiled(base, TILES, rate)
        part = workload.take(np.arange(REFERENCE_REQUESTS))
        for blocks in (None, SCARCE):
            rules = Rules.vllm(max_num_batched_tokens=2048, max_num_seqs=256, num_blocks=blocks)
            work = replaying(workload, rules)
            table, sums = work()
            if leap and blocks is None:
                if not same(leap, workload, rules):
                    sys.exit(f"{name}: the prototype gives other times")
                floor = over(leap, workload, rules, STEP_TIME)
                ours, its = medians(runs, work, floor)
                beside = f"{its.cpu:.3f}", f"{ours.cpu / its.cpu:.2f}"
            else:
                (ours,) = medians(runs, work)
                beside = "", ""
            (slow,) = medians(runs, lambda p=part, r=rules: reference(p, r))  # type: ignore[misc]
            of_reference = len(part) / slow.cpu
            row(
                *(name, f"{blocks:,}" if blocks else "none"),
                f"{sums.scheduled_requests / sums.steps:.1f}",
                f"{np.median(table.admitted - table.arrival) / TICKS_PER_SECOND:,.3f}",
                f"{int(table.preemptions.sum()):,}",
                *(f"{ours.cpu:.3f}", f"{ours.wall:.3f}", f"{len(table) / ours.cpu / 1e6:.2f}"),
                f"{int(table.output_tokens.sum()) / ours.cpu / 1e6:,.0f}",
                *(f"{of_reference:,.0f}", f"{len(table) / ours.cpu / of_reference:,.0f}"),
                *beside,
            )
    print(f"\nA second is one of CPU time. The reference ran the first {len(part):,} requests.")
    if leap:
        print(
            "With KV tokens read at no cost, the prototype's first-token and finish times are the "
            "same, tick by tick. (It counts the KV tokens of a prompt half prefilled, too.)"
        )
    print()


def prototype_in(path: Path) -> Callable[..., Any]:
    """The function `leap` of a script that replays the CSV it is given."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.csv"
        log.write_text(
            "TIMESTAMP,ContextTokens,GeneratedTokens\n"
            "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
        )
        arguments, sys.argv = sys.argv, [str(path), str(log)]
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                leap: Callable[..., Any] = runpy.run_path(str(path))["leap"]
        finally:
            sys.argv = arguments
    return leap


def over(
    leap: Callable[..., Any], workload: Workload, rules: Rules, c: StepTime
) -> Callable[[], Any]:
    """The prototype over the same numbers; it has no unit of time of its own."""
    columns = workload.arrival, workload.prompt_tokens, workload.output_tokens
    bounds = rules.max_num_batched_tokens, rules.max_num_seqs
    costs = map(np.int64, (c.fixed, c.per_prefill_token, c.per_decode, c.per_kv_token))
    arguments = (*columns, *bounds, *costs, True)
    return lambda: leap(*arguments)


def same(leap: Callable[..., Any], workload: Workload, rules: Rules) -> bool:
    """Whether the prototype gives the same times where it means the same by the step time."""
    step_time = replace(STEP_TIME, per_kv_token=0)
    first, finished, *_ = over(leap, workload, rules, step_time)()
    table, _ = fast.replay(workload, rules, step_time)
    return np.array_equal(first, table.first_token) and np.array_equal(finished, table.finished)


def prefix_caching(workload: Workload, runs: int) -> None:
    """On whichever engine takes it."""
    rules = Rules.vllm(num_blocks=100_000, max_num_batched_tokens=8192, enable_prefix_caching=True)
    why_not = fast.unsupported(rules, workload)
    part = workload if why_not is None else workload.take(np.arange(MOONCAKE_REQUESTS))
    engine = fast.replay if why_not is None else reference
    name = "compiled" if why_not is None else f"reference, since {why_not}"
    table, _ = engine(part, rules, STEP_TIME)
    (taken,) = medians(runs, lambda: engine(part, rules, STEP_TIME))
    hit = int(table.cached_tokens.sum()) / int(table.prompt_tokens.sum())
    print(
        f"{workload.source} with prefix caching: the first {len(part):,} of {len(workload):,} "
        f"requests, {hit:.0%} of prompt tokens cached; {taken.cpu:.2f} s of CPU time, "
        f"{taken.wall:.2f} s of wall time, {len(part) / taken.cpu:,.0f} requests/s, "
        f"{int(table.output_tokens.sum()) / taken.cpu:,.0f} output tokens/s (engine: {name})\n"
    )


def step_costs(runs: int) -> None:
    """What a step costs beside so many requests that decode on."""
    head("CPU time of a step, ns, by running requests", *(f"{size:,}" for size in RUNNING))
    kinds: dict[str, Callable[[int], tuple[Workload, Rules]]] = {
        "pure decode, 20 steps between two that prefill": decode_only,
        "pure decode, memory counted": lambda size: decode_only(size, num_blocks=10**9),
        "one chunk of a long prompt": long_prompt,
        "a chunk, memory counted": lambda size: long_prompt(size, num_blocks=10**9),
        "one request joins and one leaves": turnover,
        "half of the decodes are over the budget": over_budget,
    }
    for kind, make in kinds.items():
        cells = []
        for size in RUNNING:
            workload, rules = make(size)
            work = replaying(workload, rules, STEADY)
            _, sums = work()
            (taken,) = medians(runs, work)
            cells.append(f"{taken.cpu / sums.steps * 1e9:,.0f}")
        row(kind, *cells)
    print()


def decode_only(running: int, **memory: Any) -> tuple[Workload, Rules]:
    """`running` requests decode; now and then one comes that is done in a step."""
    times, between = 20_000, 21
    steps = times * between
    workload = Workload(
        arrival=np.concatenate(
            [np.zeros(running, np.int64), np.arange(1, times + 1) * between * STEADY.fixed]
        ),
        prompt_tokens=np.ones(running + times, np.int64),
        output_tokens=np.array([steps + 1000] * running + [1] * times, np.int64),
    )
    return workload, Rules.vllm(max_num_batched_tokens=None, max_num_seqs=running + 1, **memory)


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


def over_budget(running: int) -> tuple[Workload, Rules]:
    """Prefills have a budget of their own, so more decode than the shared budget would let in."""
    count = np.full(running, 2_000, np.int64)
    workload = Workload(
        arrival=np.zeros(running, np.int64), prompt_tokens=count // 1000, output_tokens=count
    )
    return workload, Rules.vllm(
        max_num_batched_tokens=running // 2, prefill_token_budget=2 * running, max_num_seqs=running
    )


def sizes(plot: Path | None, runs: int) -> None:
    """Time by number of requests, and by output length at the same load."""
    running = 32

    def seconds(requests: int, output: int) -> Taken:
        # By Little's law, `running` requests are there if each stays output × 6 ms.
        rate = running / (output * STEADY.fixed / TICKS_PER_SECOND)
        workload = synthesize(
            requests=requests, rate=rate, prompt_mean=128, output_mean=output, output_max=10**6
        )
        work = replaying(
            workload, Rules.vllm(max_num_batched_tokens=2048, max_num_seqs=256), STEADY
        )
        work()
        return medians(runs, work)[0]

    counts, lengths = [10**power for power in range(3, 8)], [10, 100, 1_000, 10_000]
    print(f"About {running} running; 200 output tokens each\n")
    head("requests", "CPU s", "wall s", "ns of CPU a request")
    by_count = []
    for count in counts:
        taken = seconds(count, 200)
        by_count.append(taken.cpu)
        row(f"{count:,}", f"{taken.cpu:.4f}", f"{taken.wall:.4f}", f"{taken.cpu / count * 1e9:.0f}")
    print(f"\nAbout {running} running; 1,000,000 requests\n")
    head("mean output tokens", "CPU s", "wall s", "ps of CPU a token")
    by_length = []
    for length in lengths:
        taken = seconds(10**6, length)
        by_length.append(taken.cpu)
        row(
            f"{length:,}",
            f"{taken.cpu:.3f}",
            f"{taken.wall:.3f}",
            f"{taken.cpu / length * 1e6:.3g}",
        )
    if plot:
        draw(plot, (counts, by_count), (lengths, by_length))


def draw(
    plot: Path, count: tuple[list[int], list[float]], length: tuple[list[int], list[float]]
) -> None:
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
        axes.set(xlabel=label, ylabel="CPU seconds to replay")
        axes.grid(visible=True, which="major", color="#dddddd")
    right.set_ylim(min(length[1]) / 30, max(length[1]) * 30)
    figure.savefig(plot, metadata={"Date": None} if plot.suffix == ".svg" else None)
    print(f"\nDrawn to {plot}")


def week(requests: int) -> None:
    """Write a week of a cloud; have fresh processes read, replay and measure it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "week.parquet"
        write_workload(
            synthesize(requests=requests, rate=requests / 604_800, arrivals="daily", seed=1), path
        )
        print(f"{requests:,} requests of a week, {path.stat().st_size / 1e6:,.0f} MB of Parquet\n")
        one_thread = {"POLARS_MAX_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        for blocks in (0, WEEK_BLOCKS):
            subprocess.run(
                [sys.executable, __file__, "--phases", str(path), str(blocks)],
                env=os.environ | one_thread,
                check=True,
            )


def phases(path: Path, blocks: int | None) -> None:
    """Read, replay, measure."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rules = Rules.vllm(max_num_batched_tokens=8192, max_num_seqs=256, num_blocks=blocks)
    marks = [(0.0, time.process_time(), time.perf_counter())]

    def mark() -> None:
        marks.append((peak_gib(), time.process_time(), time.perf_counter()))

    workload = read_workload(path)
    mark()
    table, sums = fast.replay(workload, rules, EIGHTH)
    mark()
    summary = summarize(table, sums, parse_slo("ttft=1s,tpot=50ms"))
    mark()

    head(f"num_blocks {blocks}", "CPU s", "wall s", "peak memory so far, GiB")
    for phase, before, after in zip(("read", "replay", "metrics"), marks, marks[1:], strict=False):
        row(phase, f"{after[1] - before[1]:.1f}", f"{after[2] - before[2]:.1f}", f"{after[0]:.1f}")
    total = [marks[-1][i] - marks[0][i] for i in (1, 2)]
    row("in all", *(f"{seconds:.1f}" for seconds in total), f"{marks[-1][0]:.1f}")
    queueing = np.quantile(table.admitted - table.arrival, (0.5, 0.99)) / TICKS_PER_SECOND
    print(
        f"\n{marks[-1][0] * 2**30 / len(workload):.0f} bytes of memory a request; "
        f"{summary.steps:,} steps, {summary.output_tokens:,} output tokens, "
        f"{summary.preemptions:,} preemptions; mean batch "
        f"{sums.scheduled_requests / sums.steps:.1f}, queueing p50 {queueing[0]:.4f} s, "
        f"p99 {queueing[1]:.3f} s\n",
        flush=True,
    )


def peak_gib() -> float:
    """The most memory that this process has held."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


def azure(trace: Path | None) -> Workload:
    """The log, or one of as many requests, as long and as fast, drawn at random."""
    if trace:
        return read_workload(trace)
    return synthesize(requests=19_366, rate=5.5, prompt_mean=1155, output_mean=211, output_max=1000)


def mooncake(trace: Path | None) -> Workload:
    """The log, or one with prompts as long, drawn at random."""
    if trace:
        return read_workload(trace)
    return synthesize(
        requests=12_031, rate=3.4, prompt_mean=8_000, prefix_groups=500, prefix_tokens=4096
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="How fast both engines replay request logs.")
    parser.add_argument("--trace", type=Path, help="Azure's conversation log of 2023")
    parser.add_argument("--mooncake", type=Path, help="Mooncake's conversation log")
    parser.add_argument("--prototype", type=Path, help="a script with a function leap")
    parser.add_argument("--running", action="store_true", help="cost of a step")
    parser.add_argument("--sizes", action="store_true", help="time by requests and by length")
    parser.add_argument("--plot", type=Path, help="with --sizes: draw them here")
    parser.add_argument("--week", type=int, nargs="?", const=44_000_000, help="how many requests")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--phases", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    for path in (asked.trace, asked.mooncake, asked.prototype):
        if path and not path.exists():
            parser.error(f"there is no {path}")
    if asked.phases:
        path, blocks = asked.phases
        phases(Path(path), int(blocks) or None)
        return
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores; medians of {asked.runs}\n")
    if asked.running:
        step_costs(asked.runs)
    if asked.sizes:
        sizes(asked.plot, asked.runs)
    if asked.week:
        week(asked.week)
    if not (asked.running or asked.sizes or asked.week):
        compiling()
        loads(azure(asked.trace), asked.prototype, asked.runs)
        prefix_caching(mooncake(asked.mooncake), asked.runs)


if __name__ == "__main__":
    main()
