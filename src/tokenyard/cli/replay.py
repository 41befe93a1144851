"""Drive a run: an engine in the middle, and around it the log, the bar, and Ctrl-C."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from tokenyard import fast
from tokenyard.cli.exit_codes import UsageError
from tokenyard.cli.interrupt import FirstInterrupt
from tokenyard.cli.progress import Progress
from tokenyard.core import Rules, Scheduler
from tokenyard.engine.log import LogWriter, header_of
from tokenyard.engine.loop import SimulatedExecutor, run
from tokenyard.engine.step_time import StepTime
from tokenyard.metrics import Collector, Reason, RequestTable, RunSums
from tokenyard.report.steps import StepTable
from tokenyard.workload import Workload

Engine = Literal["reference", "fast"]


@dataclass(frozen=True, slots=True)
class Replayed:
    """What an engine brought."""

    table: RequestTable
    sums: RunSums
    interrupted: bool = False


def choose_engine(
    asked: Engine | Literal["auto"], rules: Rules, workload: Workload, *, every_step: bool
) -> tuple[Engine, str]:
    """The engine that runs, and why. `every_step`: somebody wants to see each step.

    Raises `UsageError` if the compiled engine was asked for and cannot do it.
    """
    if asked == "reference":
        return "reference", "step by step, as asked"
    why_not = fast.unsupported(rules, workload)
    if why_not is None and every_step:
        why_not = "--log and --steps want every step"
    if why_not is None:
        return "fast", "compiled; gives the same answer as the reference"
    if asked == "fast":
        raise UsageError(f"--engine fast cannot run this: {why_not}")
    return "reference", f"step by step, since the compiled engine cannot: {why_not}"


def replay(
    engine: Engine,
    workload: Workload,
    rules: Rules,
    step_time: StepTime,
    *,
    log: Path | None = None,
    steps: StepTable | None = None,
) -> Replayed:
    """Run the workload until the end, or until the first Ctrl-C. `log` and `steps` are for the
    reference engine alone."""
    with Progress("requests", len(workload)) as bar, FirstInterrupt() as interrupt:

        def go_on(done: int) -> bool:
            bar.reach(done)
            return not interrupt.noted

        if engine == "fast":
            if fast.needs_compiling():
                print("compiling the engine, once for this machine …", file=sys.stderr, flush=True)
            table, sums = fast.replay(workload, rules, step_time, go_on=go_on)
        else:
            table, sums = _replay_reference(workload, rules, step_time, go_on, log, steps)
    whole = len(table) == len(workload) and not (table.reason == Reason.UNFINISHED).any()
    return Replayed(table, sums, interrupted=interrupt.noted and not whole)


def _replay_reference(
    workload: Workload,
    rules: Rules,
    step_time: StepTime,
    go_on: Callable[[int], bool],
    log: Path | None,
    steps: StepTable | None,
) -> tuple[RequestTable, RunSums]:
    lengths = None
    if workload.max_tokens is not None:
        lengths = {
            workload.id(place): output
            for place, (output, most) in enumerate(
                zip(workload.output_tokens.tolist(), workload.max_tokens.tolist(), strict=True)
            )
            if output < most
        }
    collector = Collector(rules)
    done = 0
    with LogWriter(log) if log else nullcontext() as writer:
        if writer:
            writer.write(header_of(rules, source=workload.source))
        for step in run(
            Scheduler(rules),
            workload.requests(predict=rules.policy == "sjf-oracle"),
            SimulatedExecutor(step_time, lengths),
            snapshots=steps is not None,
        ):
            collector.feed(step)
            if steps:
                steps.feed(step)
                step = msgspec.structs.replace(step, waiting=None, running=None)
            if writer:
                writer.write(step)
            done += len(step.finished) + len(step.rejected) + len(step.aborted)
            if not go_on(done):
                break
    return collector.table(), collector.sums
