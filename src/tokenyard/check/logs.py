"""Checks a recorded schedule, as it is read."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tokenyard.check.compare import Comparison
from tokenyard.check.invariants import Checker, Violation
from tokenyard.check.recording import (
    ORDERED,
    OUTPUT_TOKEN,
    Recording,
    read_recording,
    rules_of,
    steps_of,
)
from tokenyard.core import Rules
from tokenyard.engine.log import Header, Step, expand, read_log
from tokenyard.engine.log import rules_of as rules_of_header

CONTEXT = 6
"""Steps that are shown, up to the first that is wrong."""
SHOWN = 20
"""Violations that are shown one by one."""

AS_RECORDED = "recording-agrees"
SENTENCES = {
    AS_RECORDED: "What a recording says twice, in its own words, agrees.",
    "decides-as-reference": "Each step decides what tokenyard's scheduler decides.",
}


@dataclass(frozen=True, slots=True)
class Row:
    """A step, and how many requests there were."""

    step: Step
    decoding: int
    """In DECODE when the step was planned."""
    waiting: int
    """After the step."""
    running: int
    """After the step."""


@dataclass
class LogReport:
    """What came of checking a schedule."""

    source: str
    kind: str
    rules: Rules
    compared: bool
    """Whether decisions were compared with our scheduler's."""
    steps: int = 0
    requests: int = 0
    violations: list[Violation] = field(default_factory=list)
    """The first of them."""
    counts: Counter[str] = field(default_factory=Counter)
    """How many there are, by invariant."""
    context: list[Row] = field(default_factory=list)
    """The steps up to the first violation."""
    expected: Step | None = None
    """Our step, where the first difference is."""
    beyond: str | None = None
    """Why decisions were not compared to the end, if the log does not tell enough for it."""

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.counts


def check_path(
    path: Path, *, rules: Rules | None = None, against_reference: bool = False
) -> Iterator[LogReport]:
    """Check a schedule log or a recording of vLLM. Yields the report now and then while it grows,
    and at last when it is complete.

    `rules` overrule those that the file names. Decisions of a recording of vLLM are always
    compared with ours, since its config leaves none open. Raises `OSError`, `LogError`,
    `RulesError`.
    """
    if recording := read_recording(path):
        chosen = rules or rules_of(recording)
        yield from _check_recording(recording, LogReport(path.name, "vLLM recording", chosen, True))
        return
    header, steps = read_log(path)
    chosen = rules or rules_of_header(header)
    report = LogReport(path.name, "schedule log", chosen, against_reference)
    yield from _check_log(header, steps, report)


def _check_log(header: Header, steps: Iterable[Step], report: LogReport) -> Iterator[LogReport]:
    checker = Checker(report.rules)
    comparison = Comparison(report.rules, header.output_token) if report.compared else None
    recent: deque[Row] = deque(maxlen=CONTEXT)
    for number, step in enumerate(steps):
        report.steps += step.repeat
        report.requests += len(step.arrived)
        violations = _feed(checker, step, recent)
        for single in expand(step) if comparison else ():
            assert comparison is not None
            if difference := comparison.feed(single):
                message, ours = difference
                report.beyond = _beyond(header, checker, ours)
                if not report.beyond:
                    violations.append(Violation("decides-as-reference", single.step, None, message))
                    report.expected = ours
                comparison = None  # after this nothing can be compared
                break
        _note(report, violations, recent)
        if number % 4096 == 4095:
            yield report
    _note(report, checker.end(), recent)
    yield report


def _beyond(header: Header, checker: Checker, ours: Step | None) -> str | None:
    """Says so if the first that is decided otherwise in the last step is a hit of the prefix cache
    which our scheduler cannot foresee, as it may be of output, and no log tells what that says."""
    now = checker.moment
    if now is None or ours is None:
        return None
    theirs, found = now.step, dict(ours.cached)
    if (theirs.preempted, theirs.decode) != (ours.preempted, ours.decode):
        return None
    if [id for id, _ in theirs.rejected] != [id for id, _ in ours.rejected]:
        return None
    for place, chunk in enumerate(now.chunks):
        id, hits = chunk.live.id, found.get(chunk.live.id, 0)
        told = header.output_token is not None and chunk.live.asked.token_ids is not None
        if hits < chunk.cached <= min(chunk.output, chunk.seen) and not told:
            return (
                f"decisions were compared up to step {theirs.step}, in which {id!r} finds "
                f"{chunk.cached} tokens in the prefix cache, and tokenyard {hits}: the others may "
                "be somebody's output, and a log does not tell what that says"
            )
        if hits != chunk.cached or ours.prefill[place : place + 1] != [(id, chunk.tokens)]:
            return None
    return None


def _check_recording(recording: Recording, report: LogReport) -> Iterator[LogReport]:
    checker = Checker(report.rules)
    comparison: Comparison | None = Comparison(report.rules, OUTPUT_TOKEN, ordered=ORDERED)
    recent: deque[Row] = deque(maxlen=CONTEXT)
    for step, recorded, wrong in steps_of(recording):
        report.steps += 1
        report.requests += len(step.arrived)
        violations = [Violation(AS_RECORDED, step.step, None, message) for message in wrong]
        violations += _feed(checker, step, recent)
        if comparison:
            difference = comparison.feed(step)
            planned = comparison.shadow.planned_free_blocks
            if not difference and recorded.free_blocks_after_schedule != planned:
                said = recorded.free_blocks_after_schedule
                difference = (
                    f"free_blocks_after_schedule is {said}; tokenyard: {planned}",
                    None,
                )
            if difference:
                violations.append(Violation("decides-as-reference", step.step, None, difference[0]))
                report.expected = difference[1]
                comparison = None
        _note(report, violations, recent)
    _note(report, checker.end(), recent)
    yield report


def _feed(checker: Checker, step: Step, recent: deque[Row]) -> list[Violation]:
    replay = checker.replay
    decoding = replay.decoding
    violations = checker.feed(step)
    recent.append(Row(step, decoding, len(replay.waiting), len(replay.running)))
    return violations


def _note(report: LogReport, violations: list[Violation], recent: Iterable[Row]) -> None:
    if violations and not report.counts:
        report.context = list(recent)
    for violation in violations:
        report.counts[violation.invariant] += 1
        if len(report.violations) < SHOWN:
            report.violations.append(violation)
