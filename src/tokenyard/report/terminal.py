"""The result of a run as a person reads it in a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from tokenyard.metrics import Stats, Summary
from tokenyard.report.figures import count, duration, percent, significant
from tokenyard.report.result import Result, Setup
from tokenyard.report.steps import StepTable

WIDEST = 110
"""Columns of a line of text: longer ones are hard to read, however wide the terminal is."""


def print_result(result: Result, console: Console) -> None:
    """What was run, what became of the requests, how long they took, and who waited and why."""
    parts: list[RenderableType] = [_facts(_setup(result.setup)), _facts(_requests(result))]
    if result.summary.ttft.count:
        parts += [_times(result.summary)]
    if result.summary.steps:
        parts += [_facts(_system(result.summary))]
    if result.waiting:
        parts.append(Text(" ".join(result.waiting.sentences())))
    if result.interrupted:
        parts.append(Text("Interrupted: these are the figures of what was done.", style="bold"))
    _print(parts, console)


def print_steps(steps: StepTable, console: Console) -> None:
    """The step-by-step table, and what its columns mean."""
    print(*steps.lines(console.width), "", sep="\n", file=console.file)
    _print([Text(note) for note in steps.notes()], console)


def _print(parts: Iterable[RenderableType], console: Console) -> None:
    """Print each part and an empty line, without the blanks that pad a line to its end."""
    for part in parts:
        with console.capture() as printed:
            console.print(part, width=min(console.width, WIDEST), highlight=False)
        lines = [line.rstrip() for line in printed.get().splitlines()]
        print(*lines, "", sep="\n", file=console.file)  # Rich ends the process on a closed pipe


def _facts(facts: dict[str, str]) -> Table:
    """Names on the left, what they are on the right."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True, min_width=10)
    table.add_column()
    for name, fact in facts.items():
        table.add_row(name, Text(fact))
    return table


def _setup(setup: Setup) -> dict[str, str]:
    facts = {"log": f"{setup.source}: {count(setup.requests, 'request')}"}
    if setup.skipped:
        reasons = "; ".join(
            f"{count(rows)} {reason}"
            + (f" ({setup.skipped_examples[reason]})" if reason in setup.skipped_examples else "")
            for reason, rows in setup.skipped.items()
        )
        facts["skipped"] = f"{count(sum(setup.skipped.values()), 'row')}: {reasons}"
    rules = ", ".join(f"{name} {_rule(value)}" for name, value in setup.shown_rules().items())
    facts["rules"] = f"preset {setup.preset}: {rules}"
    facts["step time"] = setup.step_time_name
    facts["engine"] = f"{setup.engine}: {setup.engine_why}"
    if setup.notes:
        facts["note"] = "\n".join(setup.notes)
    return facts


def _rule(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else str(value)


def _requests(result: Result) -> dict[str, str]:
    summary = result.summary
    became = [f"{count(summary.finished)} finished"]
    became += [
        f"{count(number)} {word}"
        for number, word in (
            (summary.rejected, "rejected"),
            (summary.aborted, "aborted"),
            (summary.unfinished, "unfinished"),
        )
        if number
    ]
    if missing := result.setup.requests - summary.arrived:
        became.append(f"{count(missing)} not yet arrived")
    facts = {"requests": ", ".join(became) + f", in {duration(summary.makespan)}"}
    reasons = []
    for kind in summary.rejected_by_reason:
        first = ", the first of them" if kind.count > 1 else ""
        reasons.append(f"{count(kind.count)}{first}: {kind.example}")
    if reasons:
        facts["rejected"] = "\n".join(reasons)
    facts["output"] = (
        f"{significant(summary.requests_per_second)} requests/s, "
        f"{significant(summary.output_tokens_per_second)} output tokens/s"
    )
    if summary.goodput:
        limits = ", ".join(f"{n} {duration(limit)}" for n, limit in summary.goodput.slo.items())
        facts["goodput"] = (
            f"{significant(summary.goodput.requests_per_second)} requests/s meet {limits}: "
            f"{count(summary.goodput.met)} of {count(summary.arrived)} "
            f"({percent(summary.goodput.share)})"
        )
    return facts


def _times(summary: Summary) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    table.add_column("", style="bold", min_width=10, no_wrap=True)
    for heading in ("mean", "p50", "p90", "p99", "max", "requests"):
        table.add_column(heading, justify="right", no_wrap=True)
    rows: dict[str, Stats] = {
        "queueing": summary.queueing,
        "TTFT": summary.ttft,
        "TPOT": summary.tpot,
        "largest ITL": summary.itl,
        "E2E": summary.e2e,
    }
    for name, stats in rows.items():
        figures = (stats.mean, stats.p50, stats.p90, stats.p99, stats.max)
        table.add_row(name, *map(duration, figures), count(stats.count))
    return table


def _system(summary: Summary) -> dict[str, str]:
    busy = summary.busy / (summary.busy + summary.idle) if summary.busy else None
    facts = {
        "steps": f"{count(summary.steps)}, mean {duration(_mean(summary.busy, summary.steps))}; "
        f"busy {percent(busy)} of the time",
        "batch": f"mean {significant(summary.mean_batch)}, "
        f"largest {count(summary.largest_batch, 'request')}",
        "tokens": f"{count(summary.prefill_tokens)} prefill, {count(summary.decode_tokens)} decode"
        + (
            "" if summary.budget_used is None else f"; {percent(summary.budget_used)} of the budget"
        ),
    }
    if summary.cached_tokens:
        facts["tokens"] += f"; {count(summary.cached_tokens)} found in the prefix cache"
    if summary.num_blocks is not None and summary.peak_blocks is not None:
        facts["KV memory"] = (
            f"at most {count(summary.peak_blocks)} of {count(summary.num_blocks)} blocks "
            f"({percent(summary.peak_blocks / summary.num_blocks)}); "
            f"{count(summary.preemptions, 'preemption')}"
        )
    return facts


def _mean(total: float, number: int) -> float | None:
    return total / number if number else None
