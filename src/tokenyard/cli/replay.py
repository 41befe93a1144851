"""Drive a run: an engine in the middle, and around it the log, the bar, and Ctrl-C."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from tokenyard.cli.exit_codes import UsageError
from tokenyard.cli.interrupt import FirstInterrupt
from tokenyard.cli.progress import Progress
from tokenyard.core import Rules, Scheduler
from tokenyard.engine.log import LogWriter, header_of
from tokenyard.engine.loop import SimulatedExecutor, run
from tokenyard.engine.step_time import StepTime
from tokenyard.metrics import Collector, RequestTable, RunSums
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
    why_not = _why_not_fast(rules, workload)
    if why_not is None and every_step:
        why_not = "--log and --steps want every step"
    if why_not is None:
        return "fast", "compiled; gives the same answer as the reference"
    if asked == "fast":
        raise UsageError(f"--engine fast cannot run this: {why_not}")
    return "reference", f"step by step, since the compiled engine cannot: {why_not}"


def _why_not_fast(_rules: Rules, _workload: Workload) -> str | None:
    return "there is none in this version"


def replay(
    engine: Engine,
    workload: Workload,
    rules: Rules,
    step_time: StepTime,
    *,
    log: Path | None = None,
    steps: StepTable | None = None,
) -> Replayed:
    """Run the workload. With the reference engine the first Ctrl-C ends it there; `log` and `steps`
    are its alone."""
    if engine == "fast":
        raise UsageError("there is no compiled engine in this version")
    return _replay_reference(workload, rules, step_time, log, steps)


def _replay_reference(
    workload: Workload,
    rules: Rules,
    step_time: StepTime,
    log: Path | None,
    steps: StepTable | None,
) -> Replayed:
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
    with ExitStack() as stack:
        writer = stack.enter_context(LogWriter(log)) if log else None
        if writer:
            writer.write(header_of(rules, source=workload.source))
        bar = stack.enter_context(Progress("requests", len(workload)))
        interrupt = stack.enter_context(FirstInterrupt())
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
            bar.advance(len(step.finished) + len(step.rejected) + len(step.aborted))
            if interrupt.noted:
                break
    return Replayed(collector.table(), collector.sums, interrupt.noted)
