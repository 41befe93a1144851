"""What a step of the live scheduler costs in steady decode, against touching each request once.

    python benchmarks/live_scheduler.py

Prints a Markdown table. One step is `schedule()` and `commit()`; the floor is a bare Python loop
that adds one to a field of each request. All are measured side by side, medians of several runs.
Memory off, on (blocks of 16 tokens, plenty), and on with prefix caching.
"""

from __future__ import annotations

import platform
import statistics
import time

from tokenyard.core import Request, Rules, Scheduler

STEPS = 400
RUNS = 9
SIZES = (32, 128, 512, 1024)
KINDS: dict[str, dict[str, object]] = {
    "no memory": {},
    "memory": {"num_blocks": 1_000_000},
    "memory, prefix caching": {"num_blocks": 1_000_000, "enable_prefix_caching": True},
}


def decoding(size: int, rules: Rules) -> Scheduler:
    """A scheduler with so many requests, all in DECODE, at different places in their blocks."""
    scheduler = Scheduler(rules)
    for number in range(size):
        scheduler.submit(Request(str(number), 100 + number % 16, 10_000_000))
    while len(scheduler.waiting) or scheduler.decoding < size:
        scheduler.commit(scheduler.schedule())
    return scheduler


def floor_s(requests: list[Request]) -> float:
    """Seconds to touch each request once."""
    start = time.perf_counter()
    for _ in range(STEPS):
        for request in requests:
            request.skips += 1
    return (time.perf_counter() - start) / STEPS


def step_s(scheduler: Scheduler) -> float:
    """Seconds of a step."""
    start = time.perf_counter()
    for _ in range(STEPS):
        scheduler.commit(scheduler.schedule())
    return (time.perf_counter() - start) / STEPS


def main() -> None:
    print(f"Python {platform.python_version()}, {platform.machine()}; medians of {RUNS} runs\n")
    print("| requests | memory | a step, µs | touching each once, µs | ratio |")
    print("| ---: | --- | ---: | ---: | ---: |")
    for size in SIZES:
        for kind, fields in KINDS.items():
            rules = Rules.vllm(max_num_batched_tokens=8192, max_num_seqs=2048, **fields)
            scheduler = decoding(size, rules)
            floors, steps = [], []
            for _ in range(RUNS):
                floors.append(floor_s(scheduler.running))
                steps.append(step_s(scheduler))
            floor, step = statistics.median(floors), statistics.median(steps)
            print(
                f"| {size} | {kind} | {step * 1e6:.1f} | {floor * 1e6:.1f} | {step / floor:.2f} |"
            )


if __name__ == "__main__":
    main()
