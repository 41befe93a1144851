"""Findings for people and for programs."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from tokenyard.check.compare import shown
from tokenyard.check.contract import Finding
from tokenyard.check.replay import Replay
from tokenyard.engine.log import Step

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from tokenyard.check.logs import LogReport
    from tokenyard.check.search import Result
    from tokenyard.core import Rules

MARK = "✗ "
"""Before what is wrong, so that it is seen without colours too."""
MOST_ROWS = 40

_COLUMN = {
    "token-budget": "used",
    "prefill-before-decode": "decode",
    "decodes-go-first": "decode",
    "running-order": "decode",
    "one-turn-a-step": "decode",
    "finish-reason": "finished",
    "first-token-after-prefill": "finished",
    "has-work-is-true": "finished",
    "finished-leaves-queues": "finished",
    "prefill-exact": "prefill",
    "whole-prompts": "prefill",
    "legal-transitions": "prefill",
    "first-come-first-served": "prefill",
    "admission-order": "prefill",
    "rejected-for-a-reason": "arrived",
    "unservable-is-rejected": "arrived",
    "work-conserving": "WAITING",
    "nobody-waits-for-ever": "WAITING",
    "nobody-starves": "WAITING",
    "every-request-finishes": "WAITING",
    "progress": "WAITING",
}
"""In which column an invariant is broken."""


def table_of(
    steps: Iterable[Step], rules: Rules, wrong: int | None, invariant: str, id: str | None
) -> Table:
    """The steps, the cell marked in which `invariant` is broken at step `wrong`."""
    replay, rows = Replay(rules), []
    for step in steps:
        decoding = [live.id for live in replay.running.values() if live.id not in replay.prefilling]
        replay.advance(step)
        decode = step.decode
        if decode is None:
            decode = [one for one in decoding if one not in step.preempted]
        used = len(decode) + sum(tokens for _, tokens in step.prefill)
        budget = rules.max_num_batched_tokens
        rows.append(
            {
                "step": str(step.step),
                "arrived": _cell(
                    f"{new.id} {new.prompt_tokens}+{new.max_tokens}" for new in step.arrived
                ),
                "decode": _cell(decode),
                "prefill": _cell(f"{one} {tokens}" for one, tokens in step.prefill),
                "preempted": _cell(step.preempted),
                "used": f"{used}" if budget is None else f"{used} of {budget}",
                "finished": _cell(_out(step)),
                "WAITING": _cell(live.id for live in replay.waiting),
                "DECODE": _cell(
                    f"{live.id} {replay.output(live)}/{live.max_tokens}"
                    for live in replay.running.values()
                    if live.id not in replay.prefilling
                ),
            }
        )
    marked = _column(invariant, rows[-1], id) if rows and wrong is not None else ""
    return _table(rows, marked, numeric=("step", "used"))


def _table(rows: list[dict[str, str]], marked: str, numeric: Collection[str]) -> Table:
    """Rows, the cell `marked` of the last one marked; columns that may be empty are left out."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    optional = ("preempted", "free")
    columns = [name for name in rows[0] if name not in optional or any(r[name] for r in rows)]
    for name in columns:
        table.add_column(
            name,
            justify="right" if name in numeric else "left",
            no_wrap=name in numeric,
            min_width=len(name),
            overflow="fold",
        )
    if len(rows) > MOST_ROWS:
        table.caption = f"{len(rows) - MOST_ROWS} earlier steps are not shown"
    for row in rows[-MOST_ROWS:]:
        cells = [
            Text(MARK + row[name], style="bold red")
            if row is rows[-1] and name == marked
            else Text(row[name])
            for name in columns
        ]
        table.add_row(*cells)
    return table


def _out(step: Step) -> list[str]:
    return [
        *(id for id, _ in step.finished),
        *(f"{id} rejected" for id, _ in step.rejected),
        *(f"{id} aborted" for id in step.aborted),
    ]


def _column(invariant: str, row: dict[str, str], id: str | None) -> str:
    if invariant in _COLUMN:
        return _COLUMN[invariant]
    for name in ("decode", "prefill", "finished"):
        if id is not None and id in row.get(name, "").replace(",", " ").split():
            return name
    return "step"


def _cell(entries: Iterable[str]) -> str:
    entries = list(entries)
    more = f" … {len(entries)} in all" if len(entries) > 8 else ""
    return ", ".join(entry.replace(" ", "\u00a0") for entry in entries[:8]) + more


# ------------------------------------------------------------------------------ a scheduler


def finding_parts(finding: Finding, rules: Rules, again: str) -> Iterator[RenderableType]:
    """What a person reads about a finding, from top to bottom."""
    from rich.text import Text

    title = Text.assemble((f"{MARK}{finding.invariant}", "bold red"), f": {finding.sentence}")
    yield title
    where = f"step {finding.step}: " if finding.steps else ""
    if finding.request is not None:
        where = f"step {finding.step}, request {finding.request}: "
    yield Text(f"  {where}{finding.message}")
    if finding.kind:
        yield Text.assemble("  likely: ", (finding.kind, "bold"))
    for other in finding.also[:3]:
        yield Text(f"  also {other.invariant}: {other.message}", style="dim")
    for line in finding.traceback:
        yield Text(f"    {line}", style="dim")
    yield Text()
    if finding.workload.requests:
        yield Text.assemble(("workload", "bold"), f": {described(finding)}")
        yield Text()
    if finding.steps:
        yield table_of(finding.steps, rules, finding.step, finding.invariant, finding.request)
        yield Text()
    if finding.expected is not None:
        yield Text("tokenyard in that step: " + _decisions(finding.expected))
        yield Text()
    yield again


def described(finding: Finding) -> str:
    """The workload in words."""
    workload = finding.workload
    requests = "; ".join(
        f"{one.id} arrives at step {one.arrival} with {one.prompt_tokens} prompt and "
        f"{one.output_tokens} output tokens"
        for one in workload.requests[:8]
    )
    more = len(workload.requests) - 8
    requests += f"; and {more} more" if more > 0 else ""
    twice = ", on two instances in turn" if workload.instances == 2 else ""
    return f"capacity {workload.capacity}; {requests}{twice}"


def _decisions(step: Step) -> str:
    return ", ".join(
        f"{name} {shown(value)}"
        for name, value in (
            ("decode", step.decode),
            ("prefill", step.prefill),
            ("finished", [id for id, _ in step.finished]),
            ("rejected", [id for id, _ in step.rejected]),
        )
    )


def finding_text(finding: Finding, rules: Rules, again: str) -> str:
    """The same as plain text."""
    from rich.console import Console

    out = io.StringIO()
    console = Console(file=out, width=100, color_system=None, force_terminal=False)
    for part in finding_parts(finding, rules, again):
        console.print(part, highlight=False, markup=False, soft_wrap=isinstance(part, str))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def read_as(result: Result) -> str:
    """How the open questions were read."""
    if result.reading.rules is not None:
        return "held to the given rules in full"
    first = {
        "next_step": "first token one step after the prefill",
        "prefill": "first token with the prefill",
    }[result.reading.first_token]
    return f"{first}; first come, first served, a bounded number may pass; splitting is allowed"


def print_result(result: Result, name: str, again: str, console: Console) -> None:
    """The result of a search."""
    from rich.text import Text

    if result.finding is None:
        text = f"{name}: no broken promise in {result.examples:,} workloads ({read_as(result)})"
        console.print(Text.assemble(("✓ ", "bold green"), text), highlight=False)
    else:
        rules = result.reading.rules_of(result.finding.workload.capacity)
        for part in finding_parts(result.finding, rules, again):
            console.print(part, highlight=False, markup=False, soft_wrap=isinstance(part, str))
    for note in result.notes:
        console.print(f"note: {note}", highlight=False, markup=False)


def result_dict(result: Result, again: str) -> dict[str, Any]:
    """The same for programs."""
    finding = result.finding
    return {
        "ok": finding is None,
        "examples": result.examples,
        "first_token": result.reading.first_token,
        "notes": result.notes,
        "finding": None
        if finding is None
        else {
            "invariant": finding.invariant,
            "sentence": finding.sentence,
            "message": finding.message,
            "kind": finding.kind,
            "step": finding.step,
            "request": finding.request,
            "workload": finding.workload.to_dict(),
            "steps": [_step_dict(step) for step in finding.steps],
            "expected": None if finding.expected is None else _step_dict(finding.expected),
            "also": [msgspec.to_builtins(one) for one in finding.also],
            "traceback": finding.traceback,
            "replay": again,
        },
    }


def _step_dict(step: Step) -> dict[str, Any]:
    return {
        "step": step.step,
        "arrived": [one.id for one in step.arrived],
        "rejected": [id for id, _ in step.rejected],
        "decode": step.decode,
        "prefill": [list(one) for one in step.prefill],
        "finished": [id for id, _ in step.finished],
    }


# ------------------------------------------------------------------------------ a recorded schedule


def print_log_report(report: LogReport, console: Console) -> None:
    """The result of checking a recorded schedule."""
    from rich.text import Text

    what = f"{report.source}: {report.kind}, {report.steps:,} steps, {report.requests:,} requests"
    equal = ", every decision equal to tokenyard's"
    compared = equal if report.compared and not report.beyond else ""
    if report.ok:
        text = f": no invariant is broken{compared}"
        console.print(Text.assemble(("✓ ", "bold green"), what, text), highlight=False)
    if report.beyond:
        console.print(f"note: {report.beyond}", highlight=False, markup=False)
    if report.ok:
        return
    total = sum(report.counts.values())
    names = ", ".join(f"{name} {count:,}" for name, count in report.counts.most_common())
    console.print(
        Text.assemble((MARK, "bold red"), what, f": {total:,} violations ({names})"),
        highlight=False,
    )
    first = report.violations[0]
    console.print(Text(f"  {sentence_of(first.invariant)}"), highlight=False)
    console.print()
    for violation in report.violations:
        console.print(Text(f"  {violation}"), highlight=False)
    if total > len(report.violations):
        console.print(f"  … and {total - len(report.violations):,} more", highlight=False)
    if report.context:
        console.print()
        console.print(_log_table(report), highlight=False)
    if report.expected is not None:
        console.print()
        console.print(Text("tokenyard in that step: " + _decisions(report.expected)))


def _log_table(report: LogReport) -> Table:
    """The steps up to the first violation; who decodes and waits is a number, as there are many."""
    budget = report.rules.max_num_batched_tokens
    rows = []
    for row in report.context:
        step = row.step
        decoded = row.decoding if step.decode is None else len(step.decode)
        used = decoded + sum(tokens for _, tokens in step.prefill)
        rows.append(
            {
                "step": f"{step.step}" + (f" × {step.repeat}" if step.repeat > 1 else ""),
                "arrived": _cell(f"{one.id} {one.prompt_tokens}" for one in step.arrived),
                "decode": f"all {decoded}" if step.decode is None else _cell(step.decode),
                "prefill": _cell(f"{id} {tokens}" for id, tokens in step.prefill),
                "preempted": _cell(step.preempted),
                "used": f"{used}" if budget is None else f"{used} of {budget}",
                "finished": _cell(_out(step)),
                "free": "" if step.free_blocks is None else str(step.free_blocks),
                "WAITING": str(row.waiting),
                "running": str(row.running),
            }
        )
    first = report.violations[0]
    marked = _column(first.invariant, rows[-1], first.request)
    return _table(rows, marked, numeric=("step", "used", "free", "WAITING", "running"))


def sentence_of(name: str) -> str:
    """What an invariant of a log says."""
    from tokenyard.check.invariants import INVARIANTS
    from tokenyard.check.logs import SENTENCES

    return SENTENCES.get(name) or INVARIANTS[name].sentence


def log_dict(report: LogReport) -> dict[str, Any]:
    """The same for programs."""
    return {
        "ok": report.ok,
        "source": report.source,
        "kind": report.kind,
        "steps": report.steps,
        "requests": report.requests,
        "compared": report.compared,
        "beyond": report.beyond,
        "counts": dict(report.counts),
        "violations": [
            {
                "invariant": one.invariant,
                "sentence": sentence_of(one.invariant),
                "step": one.step,
                "request": one.request,
                "message": one.message,
            }
            for one in report.violations
        ],
        "expected": None if report.expected is None else _step_dict(report.expected),
    }
