"""A run in a few figures. Every definition is on docs/metrics.md."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tokenyard.engine.ticks import TICKS_PER_SECOND, seconds
from tokenyard.metrics.requests import Reason, RequestTable, Ticks
from tokenyard.metrics.slo import ROWS_AT_ONCE, Slo
from tokenyard.metrics.sums import Rejected, RunSums


@dataclass(frozen=True, slots=True)
class Stats:
    """A time, over the requests that have it, in seconds; None where no request has it.

    A percentile is the smallest time that at least so many percent of the requests do not exceed
    (nearest rank): always the time of some request.
    """

    count: int
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None

    @classmethod
    def of(cls, ticks: Ticks) -> Stats:
        """The figures of times in ticks (int64), whose order is lost."""
        count = len(ticks)
        if not count:
            return cls(0)
        places = [-(-count * percent // 100) - 1 for percent in (50, 90, 99)]
        ticks.partition(places)
        mean = _exact_sum(ticks) / (count * TICKS_PER_SECOND)
        p50, p90, p99 = (seconds(int(ticks[place])) for place in places)
        return cls(count, mean, p50, p90, p99, seconds(int(ticks[places[-1] :].max())))


@dataclass(frozen=True, slots=True)
class Goodput:
    """How many requests meet an SLO."""

    slo: dict[str, float]
    """Its limits in seconds."""
    met: int
    share: float | None
    """Of all requests that arrived."""
    requests_per_second: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A run in a few figures: times in seconds, rates a second over the makespan; None where there
    is nothing to divide by, or no bound."""

    arrived: int
    finished: int
    """Those that ended by stop or length."""
    aborted: int
    rejected: int
    unfinished: int
    rejected_by_reason: list[Rejected]
    """The most frequent kind first."""

    makespan: float
    requests_per_second: float | None
    """Finished requests."""
    output_tokens_per_second: float | None
    prompt_tokens: int
    """Of the finished requests."""
    output_tokens: int
    """All that were generated."""

    ttft: Stats
    tpot: Stats
    itl: Stats
    """The largest of each request."""
    e2e: Stats
    queueing: Stats
    goodput: Goodput | None

    steps: int
    busy: float
    idle: float
    prefill_tokens: int
    decode_tokens: int
    budget_used: float | None
    """Tokens scheduled, as a share of what the steps could have held."""
    mean_batch: float | None
    """Requests a step."""
    largest_batch: int
    preemptions: int
    recomputed_tokens: int
    cached_tokens: int
    peak_blocks: int | None
    num_blocks: int | None

    def to_dict(self) -> dict[str, Any]:
        """The same, as JSON has it."""
        return asdict(self)


def summarize(table: RequestTable, sums: RunSums, slo: Slo | None = None) -> Summary:
    """The figures of a run, or of what is known of one that was interrupted."""
    counts = np.bincount(table.reason, minlength=len(Reason)).tolist()
    done = counts[Reason.STOP] + counts[Reason.LENGTH]
    output_tokens = _sum(table.output_tokens)
    makespan = 0
    if len(table):
        makespan = max(0, sums.end, int(table.finished.max())) - int(table.arrival.min())
        makespan = max(0, makespan)
    scheduled = sums.prefill_tokens + sums.decode_tokens
    return Summary(
        arrived=len(table),
        finished=done,
        aborted=counts[Reason.ABORTED],
        rejected=counts[Reason.REJECTED],
        unfinished=counts[Reason.UNFINISHED],
        rejected_by_reason=sorted(sums.rejected.values(), key=lambda kind: -kind.count),
        makespan=seconds(makespan),
        requests_per_second=_rate(done, makespan),
        output_tokens_per_second=_rate(output_tokens, makespan),
        prompt_tokens=_sum(table.prompt_tokens[table.done()]),
        output_tokens=output_tokens,
        ttft=Stats.of(table.ttft()),
        tpot=Stats.of(table.tpot()),
        itl=Stats.of(table.itl()),
        e2e=Stats.of(table.e2e()),
        queueing=Stats.of(table.queueing()),
        goodput=_goodput(table, slo, makespan) if slo else None,
        steps=sums.steps,
        busy=seconds(sums.busy),
        idle=seconds(sums.idle),
        prefill_tokens=sums.prefill_tokens,
        decode_tokens=sums.decode_tokens,
        budget_used=_share(scheduled, sums.steps * (sums.step_budget or 0)),
        mean_batch=_share(sums.scheduled_requests, sums.steps),
        largest_batch=sums.largest_batch,
        preemptions=_sum(table.preemptions),
        recomputed_tokens=_sum(table.recomputed_tokens),
        cached_tokens=_sum(table.cached_tokens),
        peak_blocks=sums.peak_blocks,
        num_blocks=sums.num_blocks,
    )


def _goodput(table: RequestTable, slo: Slo, makespan: int) -> Goodput:
    met = int(np.count_nonzero(slo.met(table)))
    return Goodput(slo.limits(), met, _share(met, len(table)), _rate(met, makespan))


def _rate(count: int, ticks: int) -> float | None:
    return _share(count * TICKS_PER_SECOND, ticks)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _sum(counts: np.ndarray[Any, Any]) -> int:
    return int(counts.sum(dtype=np.int64))


def _exact_sum(ticks: Ticks) -> int:
    """The sum of times, which may be beyond int64: 44 million requests of 100 s are."""
    total = 0
    for begin in range(0, len(ticks), ROWS_AT_ONCE):
        part = ticks[begin : begin + ROWS_AT_ONCE]
        total += (int((part >> 32).sum()) << 32) + int((part & 0xFFFFFFFF).sum())
    return total
