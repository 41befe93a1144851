"""Measures a run from its schedule log, in constant time for a step in which nothing changes.

In such a step every decoding request gets a token. Instead of touching each of them, one shared
counter goes up, and a request's tokens are the counter's rise since it was last looked at. The gaps
between these steps are kept as suffix maxima, so that the largest since then is one binary search.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right

import numpy as np

from tokenyard.core import Rules
from tokenyard.engine.log import Arrival, Step
from tokenyard.metrics.requests import Reason, RequestTable
from tokenyard.metrics.sums import RunSums

NEVER = -1
REASONS = {reason.name.lower(): reason for reason in (Reason.STOP, Reason.LENGTH, Reason.ABORTED)}

# The fields of a row.
COLUMNS = (
    "arrival",
    "admitted",
    "first_token",
    "finished",
    "largest_itl",
    "prompt_tokens",
    "output_tokens",
    "reason",
    "preemptions",
    "recomputed_tokens",
    "cached_tokens",
    "priority",
)
WIDTH = len(COLUMNS)
(
    ARRIVAL,
    ADMITTED,
    FIRST_TOKEN,
    FINISHED,
    LARGEST_ITL,
    PROMPT_TOKENS,
    OUTPUT_TOKENS,
    REASON,
    PREEMPTIONS,
    RECOMPUTED_TOKENS,
    CACHED_TOKENS,
    PRIORITY,
) = range(WIDTH)
DTYPES = {
    PROMPT_TOKENS: np.int32,
    OUTPUT_TOKENS: np.int32,
    REASON: np.int8,
    PREEMPTIONS: np.int32,
    PRIORITY: np.int32,
}


class CollectorError(ValueError):
    """A log contradicts itself, so that it cannot be measured; the message names the step."""


class Collector:
    """Feed it the steps of a schedule log, in order; ask for `table()` and `sums` at any time.

    `rules`: those of the log's header.
    """

    def __init__(self, rules: Rules) -> None:
        self.sums = RunSums.of(rules)
        self._unsampled = rules.unsampled
        self._ids: list[str] = []
        self._cells = array("q")  # the rows of the table, one after the other
        self._live: dict[str, _Live] = {}
        self._step = 0  # for messages
        self._decoding = 0  # how many requests are in DECODE
        self._decodes = 0  # steps so far in which every one of them got a token
        self._decoded_at = 0  # when the last of those ended
        self._gaps = _SuffixMaxima()
        self._fresh: dict[_Live, None] = {}  # in DECODE, and not yet in one of those steps

    def feed(self, step: Step) -> None:
        """Take in a line of the log. Raises `CollectorError` for one that contradicts earlier ones:
        a request that nobody announced, or that decodes before its prefill is complete."""
        sums, start, repeat = self.sums, step.start, step.repeat
        self._step = step.step
        for arrived in step.arrived:
            self._arrive(arrived)
        for id, why in step.rejected:
            self._leave(id, Reason.REJECTED, NEVER)
            sums.reject(why)
        for id in step.aborted:
            self._leave(id, Reason.ABORTED, start)
        for id in step.preempted:
            self._preempt(id)

        first_end = end = start + step.duration
        busy, later_gap = step.duration, NEVER
        if repeat > 1:
            if step.prefill:
                raise CollectorError(f"step {step.step}: a line with repeat {repeat} has a prefill")
            growth = step.duration_growth
            busy = repeat * step.duration + growth * (repeat * (repeat - 1) // 2)
            end = start + busy
            later_gap = step.duration + max(growth, growth * (repeat - 1))
        if step.decode is None:
            decodes = self._decoding
            if decodes:
                self._decode_all(first_end, end, repeat, later_gap)
        else:
            decodes = len(step.decode)
            for id in step.decode:
                self._decode(id, first_end, end, repeat, later_gap)
        for id, tokens in step.cached:
            request = self._find(id)
            request.computed = tokens
            self._cells[request.row + CACHED_TOKENS] += tokens
        for id, tokens in step.prefill:
            self._prefill(id, tokens, start, end)
            sums.prefill_tokens += tokens
        for id, why in step.finished:
            if why not in REASONS:
                raise CollectorError(
                    f"step {step.step}: request {id!r} finished with the reason {why!r}, which is "
                    f"none of {', '.join(REASONS)}"
                )
            self._leave(id, REASONS[why], end)

        size = decodes + len(step.prefill)
        if size or busy:
            if not sums.steps:
                sums.start = start
            sums.end = end
            sums.steps += repeat
            sums.busy += busy
            sums.decode_tokens += decodes * repeat
            sums.scheduled_requests += size * repeat
            sums.largest_batch = max(sums.largest_batch, size)
        if step.free_blocks is not None and sums.num_blocks is not None:
            sums.peak_blocks = max(sums.peak_blocks or 0, sums.num_blocks - step.free_blocks)

    def table(self) -> RequestTable:
        """The requests that have arrived so far, and what is known of them."""
        for request in self._live.values():
            self._note(request)
        cells = np.array(self._cells, dtype=np.int64).reshape(-1, WIDTH)
        columns = {
            name: cells[:, place].astype(DTYPES.get(place, np.int64))
            for place, name in enumerate(COLUMNS)
        }
        return RequestTable(ids=self._ids[: len(cells)], **columns)

    # ------------------------------------------------------------------ what happens to a request

    def _arrive(self, arrived: Arrival) -> None:
        if arrived.id in self._live:
            raise CollectorError(
                f"step {self._step}: request {arrived.id!r} arrives and is in the system already"
            )
        self._live[arrived.id] = _Live(len(self._cells), arrived.prompt_tokens)
        self._ids.append(arrived.id)
        row = [NEVER] * WIDTH
        row[ARRIVAL] = arrived.arrival
        row[PROMPT_TOKENS] = arrived.prompt_tokens
        row[OUTPUT_TOKENS] = row[PREEMPTIONS] = row[RECOMPUTED_TOKENS] = row[CACHED_TOKENS] = 0
        row[REASON] = Reason.UNFINISHED
        row[PRIORITY] = arrived.priority
        self._cells.extend(row)  # at once, so that the table is whole even if somebody interrupts

    def _prefill(self, id: str, tokens: int, start: int, end: int) -> None:
        request, cells = self._find(id), self._cells
        if cells[request.row + ADMITTED] == NEVER:
            cells[request.row + ADMITTED] = start
        before = request.computed
        request.computed += tokens
        if (again := min(request.computed, request.lost) - before) > 0:
            cells[request.row + RECOMPUTED_TOKENS] += again
        known = request.prompt_tokens + request.output_tokens
        if request.decoding or request.computed > known:
            raise CollectorError(
                f"step {self._step}: request {id!r} prefills {tokens} tokens, and "
                f"{0 if request.decoding else known - before} are left to prefill"
            )
        if request.computed == known:
            request.decoding = True
            self._decoding += 1
            self._fresh[request] = None
            if self._unsampled:
                self._token(request, end)

    def _decode_all(self, first_end: int, end: int, repeat: int, later_gap: int) -> None:
        """A token to every request in DECODE, in each of `repeat` steps."""
        self._gaps.push(self._decodes + 1, first_end - self._decoded_at)
        if self._fresh:  # the gap before this token is their own
            for request in self._fresh:
                self._token(request, first_end)
                request.counted = self._decodes + 1
            self._fresh.clear()
        self._decodes += repeat
        self._decoded_at = end
        if repeat > 1:  # nobody is looked at in between, so that the largest will do
            self._gaps.push(self._decodes, later_gap)

    def _decode(self, id: str, first_end: int, end: int, repeat: int, later_gap: int) -> None:
        """A token to one request, in each of `repeat` steps; others may not have got one."""
        request = self._find(id)
        if not request.decoding:
            raise CollectorError(
                f"step {self._step}: request {id!r} decodes before its prefill is complete"
            )
        self._settle(request)
        request.counted = NEVER
        self._fresh[request] = None
        self._token(request, first_end)
        if repeat > 1:
            request.output_tokens += repeat - 1
            request.largest_itl = max(request.largest_itl, later_gap)
            request.last_token = end

    def _token(self, request: _Live, time: int) -> None:
        if request.last_token == NEVER:
            self._cells[request.row + FIRST_TOKEN] = time
        else:
            request.largest_itl = max(request.largest_itl, time - request.last_token)
        request.output_tokens += 1
        request.last_token = time

    def _preempt(self, id: str) -> None:
        request = self._find(id)
        if request.decoding:
            self._stop_decoding(request)
            request.computed = request.prompt_tokens + request.output_tokens - self._unsampled
        request.lost = max(request.lost, request.computed)
        request.computed = 0
        self._cells[request.row + PREEMPTIONS] += 1

    def _leave(self, id: str, reason: Reason, time: int) -> None:
        request = self._find(id)
        if request.decoding:
            self._stop_decoding(request)
        self._note(request)
        self._cells[request.row + FINISHED] = time
        self._cells[request.row + REASON] = reason
        del self._live[id]

    # ------------------------------------------------------------------ keeping count

    def _find(self, id: str) -> _Live:
        try:
            return self._live[id]
        except KeyError:
            raise CollectorError(
                f"step {self._step}: request {id!r} is not in the system: it never arrived, or it "
                "left before"
            ) from None

    def _stop_decoding(self, request: _Live) -> None:
        self._settle(request)
        self._fresh.pop(request, None)
        request.decoding = False
        request.counted = NEVER
        self._decoding -= 1
        if not self._decoding:
            self._gaps.clear()

    def _settle(self, request: _Live) -> None:
        """Give a request the tokens that the shared counter holds for it."""
        counted = request.counted
        if counted == NEVER or counted == self._decodes:
            return
        request.output_tokens += self._decodes - counted
        request.largest_itl = max(request.largest_itl, self._gaps.largest_after(counted))
        request.last_token = self._decoded_at
        request.counted = self._decodes

    def _note(self, request: _Live) -> None:
        self._settle(request)
        self._cells[request.row + OUTPUT_TOKENS] = request.output_tokens
        self._cells[request.row + LARGEST_ITL] = request.largest_itl


class _Live:
    """A request in the system."""

    __slots__ = (
        "computed",
        "counted",
        "decoding",
        "largest_itl",
        "last_token",
        "lost",
        "output_tokens",
        "prompt_tokens",
        "row",
    )

    def __init__(self, row: int, prompt_tokens: int) -> None:
        self.row = row
        """Where its row begins in the cells."""
        self.prompt_tokens = prompt_tokens
        self.output_tokens = 0
        self.computed = 0
        """Until it decodes: its tokens in the KV cache."""
        self.lost = 0
        """The most tokens that it had there when it was preempted."""
        self.decoding = False
        self.counted = NEVER
        """The shared counter up to which its tokens are in output_tokens; NEVER: it is not counted
        by it."""
        self.last_token = NEVER
        """When it got the last token of output_tokens."""
        self.largest_itl = NEVER


class _SuffixMaxima:
    """Values at rising places, of which only those are kept that no later one reaches."""

    def __init__(self) -> None:
        self._places: list[int] = []
        self._values: list[int] = []  # falling

    def push(self, place: int, value: int) -> None:
        while self._values and self._values[-1] <= value:
            self._values.pop()
            self._places.pop()
        self._places.append(place)
        self._values.append(value)

    def largest_after(self, place: int) -> int:
        """The largest value at a place after `place`, where there is one."""
        return self._values[bisect_right(self._places, place)]

    def clear(self) -> None:
        self._places.clear()
        self._values.clear()
