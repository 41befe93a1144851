"""Who waited, how long, and why, from what became of each request.

Who waits lacks a place among the running (max_num_seqs), room in the token budget of a step, or KV
blocks; or it came while a step was under way; or it stands behind one that lacks these. For how
long every place was taken is known exactly. The other causes are named where they are possible.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tokenyard.core import Rules
from tokenyard.engine.step_time import StepTime
from tokenyard.engine.ticks import seconds
from tokenyard.metrics import RequestTable, RunSums
from tokenyard.metrics.requests import Ticks
from tokenyard.report.figures import count, duration, percent


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Waits, from arrival to first scheduled, of the requests that were scheduled; seconds."""

    waited: int
    """Requests that waited at all."""
    p50: float
    p99: float
    longest: float
    longest_id: str
    longest_prompt_tokens: int
    longest_without_place: float
    """For how much of the longest wait every place (max_num_seqs) was taken."""
    longest_other_causes: list[str]
    """What else it can have waited for."""
    without_place: float
    """The same of all waits together, as a share of them."""
    most_running: int
    """Most requests that were running at once; one that is preempted counts as running."""
    max_num_seqs: int | None
    other_causes: list[str]
    """What else the requests can have waited for."""
    preemptions: int
    recomputed_tokens: int

    def to_dict(self) -> dict[str, Any]:
        """The same, as JSON has it."""
        return asdict(self)

    def sentences(self) -> list[str]:
        """The same in plain words."""
        if not self.waited:
            return ["Nobody waited: every request was scheduled when it arrived."]
        said = [
            self._how_long(),
            f"The longest wait, {duration(self.longest)}, was that of request {self.longest_id} "
            f"(prompt of {count(self.longest_prompt_tokens, 'token')}): {self._why_longest()}.",
        ]
        if self.without_place == 1:
            said.append("All of the waiting was for a place (max_num_seqs).")
        elif self.without_place:
            said.append(
                f"Of all the waiting, {percent(self.without_place)} was for a place "
                f"(max_num_seqs), the rest {_listed(self.other_causes)}."
            )
        elif self.max_num_seqs is not None:
            said.append(
                f"Places were never the reason: at most {self.most_running:,} of "
                f"{self.max_num_seqs:,} (max_num_seqs) were taken."
            )
        if self.preemptions:
            said.append(
                f"KV memory ran out: {count(self.preemptions, 'time')} a running request gave up "
                f"its blocks, and {count(self.recomputed_tokens, 'token')} were computed again."
            )
        return said

    def _how_long(self) -> str:
        if not self.p99:
            return "99 requests in 100 were scheduled as they arrived."
        half = f"within {duration(self.p50)} of their arrival" if self.p50 else "as they arrived"
        return f"Half of the requests were scheduled {half}, 99 in 100 within {duration(self.p99)}."

    def _why_longest(self) -> str:
        if not self.longest_without_place:
            return f"it waited {_listed(self.longest_other_causes)}"
        taken = f"all places (max_num_seqs {self.max_num_seqs:,}) were taken"
        if self.longest_without_place >= self.longest:
            return f"{taken} all the while"
        return f"{taken} for {duration(self.longest_without_place)} of it"


def explain(
    table: RequestTable, rules: Rules, sums: RunSums, step_time: StepTime
) -> Waiting | None:
    """Who waited and why; None if no request was ever scheduled."""
    scheduled = np.flatnonzero(table.admitted >= 0)
    if not len(scheduled):
        return None
    arrival, admitted = table.arrival[scheduled], table.admitted[scheduled]
    waits = admitted - arrival
    most_running, taken = _all_places_taken(table, scheduled, rules.max_num_seqs)
    without_place = taken.until(admitted) - taken.until(arrival)
    longest = int(waits.argmax())
    total = float(waits.sum(dtype=np.float64))
    ordered = np.sort(waits)
    lacks = _can_lack(table, rules, sums)
    longer_than_a_step = int(waits[longest]) > _longest_step(table, rules, sums, step_time)
    return Waiting(
        waited=int(np.count_nonzero(waits)),
        p50=seconds(int(ordered[-(-len(waits) * 50 // 100) - 1])),
        p99=seconds(int(ordered[-(-len(waits) * 99 // 100) - 1])),
        longest=seconds(int(waits[longest])),
        longest_id=table.id(int(scheduled[longest])),
        longest_prompt_tokens=int(table.prompt_tokens[scheduled[longest]]),
        longest_without_place=seconds(int(without_place[longest])),
        longest_other_causes=lacks if lacks and longer_than_a_step else [UNDER_WAY, *lacks],
        without_place=float(without_place.sum(dtype=np.float64)) / total if total else 0.0,
        most_running=most_running,
        max_num_seqs=rules.max_num_seqs,
        other_causes=[UNDER_WAY, *lacks],
        preemptions=int(table.preemptions.sum(dtype=np.int64)),
        recomputed_tokens=int(table.recomputed_tokens.sum(dtype=np.int64)),
    )


@dataclass(slots=True)
class _Taken:
    """For how long a condition has held, at any time: it holds or not from each of `times` on."""

    times: Ticks
    holds: np.ndarray[Any, np.dtype[np.bool_]]
    before: Ticks
    """For how long it has held before each of the times."""

    def until(self, moments: Ticks) -> Ticks:
        """Ticks for which it has held before each of the moments."""
        place = np.searchsorted(self.times, moments, side="right") - 1
        since = np.where(self.holds[place], moments - self.times[place], 0)
        held: Ticks = np.where(place >= 0, self.before[place] + since, 0)
        return held


def _all_places_taken(
    table: RequestTable, scheduled: np.ndarray[Any, Any], places: int | None
) -> tuple[int, _Taken]:
    """How many requests were running at most, and when they took all places."""
    finished = table.finished[scheduled]
    finished = finished[finished >= 0]
    moments = np.concatenate([table.admitted[scheduled], finished])
    change = np.ones(len(moments), dtype=np.int64)
    change[len(scheduled) :] = -1
    times, which = np.unique(moments, return_inverse=True)
    running = np.bincount(which, weights=change, minlength=len(times)).cumsum()
    holds = running >= places if places is not None else np.zeros(len(times), dtype=np.bool_)
    before = np.concatenate([[0], np.cumsum(np.diff(times) * holds[:-1])]).astype(np.int64)
    return int(running.max()), _Taken(times, holds, before)


UNDER_WAY = "for the step under way to end"


def _can_lack(table: RequestTable, rules: Rules, sums: RunSums) -> list[str]:
    """What a request can have waited for that the rules bound, beside a place."""
    lacks = []
    if rules.prompt_budget is not None:
        lacks.append("for room in the token budget of a step")
    if rules.num_blocks is not None and not _blocks_always_free(table, rules, sums):
        lacks.append("for KV blocks")
    return lacks


def _longest_step(table: RequestTable, rules: Rules, sums: RunSums, step_time: StepTime) -> int:
    """Ticks that no step of the run exceeded."""
    known = table.prompt_tokens.astype(np.int64) + table.output_tokens
    prefill = int(known.sum()) if rules.prompt_budget is None else rules.prompt_budget
    context, decodes = int(known.max()), sums.largest_batch
    return step_time.duration(prefill, prefill * context, decodes, decodes * context)


def _blocks_always_free(table: RequestTable, rules: Rules, sums: RunSums) -> bool:
    """Whether even at the peak there was room for the longest prompt, however a step was planned:
    within a step each running request may take a block, and each prompt one more than its tokens
    fill. (False where that cannot be told.)"""
    budget, blocks, peak = rules.prompt_budget, rules.num_blocks, sums.peak_blocks
    if budget is None or blocks is None or peak is None or rules.preemption == "none":
        return False
    in_step = 2 * sums.largest_batch + -(-budget // rules.block_size)
    longest = -(-int(table.prompt_tokens.max()) // rules.block_size)
    return peak + in_step + longest <= blocks


def _listed(things: list[str]) -> str:
    """ "a", "a, or b", "a, b, or c"."""
    return ", ".join(things[:-1]) + ", or " + things[-1] if len(things) > 1 else things[0]
