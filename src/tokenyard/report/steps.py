"""Step by step: who ran, what was left of the budget, and every queue afterwards.

The picture that one draws at a whiteboard, for workloads that fit on one.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from tokenyard.core import Rules
from tokenyard.engine.log import Step
from tokenyard.engine.ticks import seconds

MOST_STEPS = 500
"""Rows of the table: who needs more reads the log."""

COLUMNS = (
    *("step", "start", "arrived", "decode", "prefill", "cached", "preempted", "used", "left"),
    *("free", "out", "WAITING", "PREFILL", "DECODE"),
)
NUMERIC = ("step", "start", "used", "left", "free")
OPTIONAL = {
    "left": "left: tokens of the budget that the step did not use",
    "cached": "cached: id and tokens found in the prefix cache",
    "preempted": "preempted: who gave up its blocks",
    "free": "free: KV blocks after the step",
}
"""Columns that are shown where there is something in them, and what they say."""
LEGEND = (
    "start in seconds; arrived: id prompt+max_tokens; prefill: id and tokens; used: tokens of the "
    "step; WAITING, PREFILL (id computed/all tokens), DECODE (id generated/max_tokens): the "
    "queues after the step"
)


@dataclass(slots=True)
class _Progress:
    """What a request has come to."""

    prompt: int
    most: int
    computed: int = 0
    generated: int = 0
    target: int = 0
    """Tokens that its prefill puts into the KV cache; reached: it decodes."""

    @property
    def decoding(self) -> bool:
        return self.computed >= self.target


class StepTable:
    """Feed it the steps of a run, made with snapshots of the queues; then ask for its `lines()` and
    `notes()`."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.rows: list[dict[str, list[str]]] = []
        self.rejected: list[str] = []
        self.more = 0
        self._requests: dict[str, _Progress] = {}
        self._running: list[str] = []  # after the step before, in order of admission

    def feed(self, step: Step) -> None:
        """Take in one step."""
        if len(self.rows) >= MOST_STEPS:
            self.more += 1
            return
        requests = self._requests
        for new in step.arrived:
            requests[new.id] = _Progress(
                new.prompt_tokens, new.max_tokens, target=new.prompt_tokens
            )
        for id, reason in step.rejected:
            del requests[id]
            self.rejected.append(f"Step {step.step}: {id} is rejected: {reason}.")
        for id in step.aborted:
            del requests[id]
        for id in step.preempted:
            requests[id].computed = 0
            requests[id].target = requests[id].prompt + requests[id].generated
        for id, tokens in step.cached:
            requests[id].computed += tokens
        decoded = step.decode
        if decoded is None:
            decoded = [id for id in self._running if id in requests and requests[id].decoding]
        for id in decoded:
            requests[id].generated += step.repeat
        for id, tokens in step.prefill:
            one = requests[id]
            one.computed += tokens
            if one.decoding and self.rules.first_token == "prefill":
                one.generated += 1
        for id, _ in step.finished:
            del requests[id]
        self._running = step.running or []
        self.rows.append(self._row(step, decoded))

    def _row(self, step: Step, decoded: list[str]) -> dict[str, list[str]]:
        running = [(id, self._requests[id]) for id in step.running or ()]
        arrived = [f"{new.id} {new.prompt_tokens}+{new.max_tokens}" for new in step.arrived]
        out = [f"{id} {why}" for id, why in step.finished]
        out += [f"{id} aborted" for id in step.aborted]
        out += [f"{id} rejected" for id, _ in step.rejected]
        used, left = self._budget(sum(tokens for _, tokens in step.prefill), len(decoded))
        return {
            "step": [str(step.step)],
            "start": [f"{seconds(step.start):g}"],
            "arrived": arrived,
            "decode": decoded,
            "prefill": [f"{id} {tokens}" for id, tokens in step.prefill],
            "cached": [f"{id} {tokens}" for id, tokens in step.cached],
            "preempted": step.preempted,
            "used": [used],
            "left": [left] if left else [],
            "free": [] if step.free_blocks is None else [str(step.free_blocks)],
            "out": out,
            "WAITING": step.waiting or [],
            "PREFILL": [
                f"{id} {one.computed}/{one.target}" for id, one in running if not one.decoding
            ],
            "DECODE": [f"{id} {one.generated}/{one.most}" for id, one in running if one.decoding],
        }

    def _budget(self, prefill: int, decode: int) -> tuple[str, str]:
        """Tokens used and left: one number each, or decode + prefill where these have their own."""
        most, own = self.rules.max_num_batched_tokens, self.rules.prefill_token_budget
        if own is None:
            return str(prefill + decode), "" if most is None else str(most - prefill - decode)
        decode_left = "no bound" if most is None else str(most - decode)
        return f"{decode} + {prefill}", f"{decode_left} + {own - prefill}"

    def lines(self, width: int) -> list[str]:
        """The table, in so many columns of a terminal, or in as few as it takes."""
        names = self._shown()
        widths, gap = _fit(
            {name: [[name], *(row[name] for row in self.rows)] for name in names}, width
        )
        lines = []
        for row in ({name: [name] for name in names}, *self.rows):
            cells = [_packed(row[name], widths[name]) for name in names]
            for parts in itertools.zip_longest(*cells, fillvalue=""):
                placed = zip(names, parts, strict=True)
                lines.append(
                    gap.join(
                        part.rjust(widths[name]) if name in NUMERIC else part.ljust(widths[name])
                        for name, part in placed
                    ).rstrip()
                )
        lines.insert(1, "─" * (sum(widths.values()) + len(gap) * (len(names) - 1)))
        return lines

    def notes(self) -> list[str]:
        """What the columns say, who was rejected and why, and what the table leaves out."""
        legend = "; ".join(
            [LEGEND, *(OPTIONAL[name] for name in self._shown() if name in OPTIONAL)]
        )
        notes = [legend + ".", *self.rejected]
        if self.more:
            notes.append(f"{self.more:,} more steps follow; --log FILE.jsonl writes all of them.")
        return notes

    def _shown(self) -> list[str]:
        return [
            name for name in COLUMNS if name not in OPTIONAL or any(row[name] for row in self.rows)
        ]


def _fit(columns: dict[str, list[list[str]]], width: int) -> tuple[dict[str, int], str]:
    """Widths of columns, and what stands between them: as much as their cells need, or, where that
    is too much, what the longest entry of a cell needs and a fair part of the rest."""
    most = {name: max(len(", ".join(cell)) for cell in cells) for name, cells in columns.items()}
    least = {
        name: max(len(entry) for cell in cells for entry in _with_commas(cell) or [""])
        for name, cells in columns.items()
    }
    if sum(most.values()) + 2 * len(columns) - 2 <= width:
        return most, "  "
    free = max(0, width - sum(least.values()) - len(columns) + 1)
    wanted = sum(most.values()) - sum(least.values())
    share = min(free, wanted)
    return {
        name: least[name] + (most[name] - least[name]) * share // max(wanted, 1) for name in columns
    }, " "


def _packed(entries: list[str], width: int) -> list[str]:
    """The entries of a cell in lines of at most this width; a line ends between entries only."""
    lines: list[str] = []
    for entry in _with_commas(entries):
        if lines and len(lines[-1]) + 1 + len(entry) <= width:
            lines[-1] += f" {entry}"
        else:
            lines.append(entry)
    return lines


def _with_commas(entries: list[str]) -> list[str]:
    return [f"{entry}," for entry in entries[:-1]] + entries[-1:]
