"""What a run came to, whole: what was run, with what, and what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from tokenyard.core import Rules
from tokenyard.engine.step_time import StepTime
from tokenyard.metrics import RequestTable, RunSums, Slo, Summary, summarize
from tokenyard.report.waiting import Waiting, explain

BOUNDS = ("max_num_batched_tokens", "max_num_seqs", "num_blocks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What was run, and with what."""

    source: str
    """What was read: the file's name and its format."""
    requests: int
    skipped: Mapping[str, int]
    """Rows that could not be used, counted by reason."""
    skipped_examples: Mapping[str, str]
    """For each reason: where it first applied, and the value."""
    preset: str
    rules: Rules
    preset_rules: Rules
    """What the preset alone says, to show what was changed."""
    step_time: StepTime
    step_time_name: str
    """Where the step times come from, for people."""
    engine: str
    engine_why: str
    notes: list[str] = field(default_factory=list)
    """What a reader has to know besides."""

    def shown_rules(self) -> dict[str, Any]:
        """The bounds, and the rules that differ from the preset's."""
        rules = {field.name: getattr(self.rules, field.name) for field in fields(Rules)}
        return {
            name: value
            for name, value in rules.items()
            if name in BOUNDS or value != getattr(self.preset_rules, name)
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a run came to."""

    setup: Setup
    summary: Summary
    waiting: Waiting | None
    interrupted: bool = False
    """Whether somebody ended it before it was done; the figures are then of what was done."""

    @classmethod
    def of(
        cls,
        setup: Setup,
        table: RequestTable,
        sums: RunSums,
        slo: Slo | None = None,
        *,
        interrupted: bool = False,
    ) -> Result:
        """Measure a run."""
        return cls(
            setup=setup,
            summary=summarize(table, sums, slo),
            waiting=explain(table, setup.rules, sums, setup.step_time),
            interrupted=interrupted,
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it: times in seconds. The same run gives the same bytes."""
        setup = self.setup
        return {
            "format": "tokenyard.result/1",
            "source": setup.source,
            "requests": setup.requests,
            "skipped": dict(setup.skipped),
            "skipped_examples": dict(setup.skipped_examples),
            "preset": setup.preset,
            "rules": asdict(setup.rules),
            "step_time": {"name": setup.step_time_name, "ticks": asdict(setup.step_time)},
            "engine": {"name": setup.engine, "why": setup.engine_why},
            "notes": list(setup.notes),
            "interrupted": self.interrupted,
            "summary": self.summary.to_dict(),
            "waiting": self.waiting and self.waiting.to_dict(),
        }
