"""The compiled engine: a whole workload at once, with the same answer as the loop over `core`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tokenyard.core import Request, Rules, Scheduler
from tokenyard.engine.step_time import StepTime
from tokenyard.fast import ReplayError, StepColumns, kernel
from tokenyard.metrics import Reason, RequestTable, RunSums
from tokenyard.metrics.sums import Rejected
from tokenyard.workload import Workload

EVENTS = 200_000
"""Changes of state between two looks at the outside: some hundredths of a second."""
GAPS = 1 << 14
"""Room for suffix maxima at the beginning; it doubles when it is full."""
LINES = 1 << 16
"""Lines of the steps that are told between two looks at the outside."""


def needs_compiling() -> bool:
    """What `tokenyard.fast.needs_compiling` says."""
    if kernel.advance.signatures:  # type: ignore[attr-defined]
        return False
    kept = Path(kernel.advance.stats.cache_path or "").glob("kernel.advance-*.nbi")  # type: ignore[attr-defined]
    return all(one.stat().st_mtime < Path(kernel.__file__).stat().st_mtime for one in kept)


def replay_arrays(
    workload: Workload,
    rules: Rules,
    step_time: StepTime,
    go_on: Callable[[int], bool] | None,
    steps: StepColumns | None,
) -> tuple[RequestTable, RunSums]:
    """What `tokenyard.fast.replay` says."""
    n = len(workload)
    limits = _limits(rules, step_time, steps.every if steps else 1)
    most = workload.output_tokens if workload.max_tokens is None else workload.max_tokens
    never, why = _rejected(workload, rules, most)
    w = np.full((kernel.WIDE, n), -1, np.int64)
    h = np.zeros((kernel.HALF, n), np.int32)
    w[kernel.RECOMPUTED] = 0
    h[kernel.PROMPT], h[kernel.LENGTH] = workload.prompt_tokens, workload.output_tokens
    h[kernel.MOST], h[kernel.RANK] = most, _ranks(workload, rules)
    late_at, late = _deadlines(workload)
    running = min(limits.seqs, n)  # memory of a list that is never written is never taken
    ends, fresh = np.empty(2 * running + 64, np.int64), np.empty(2 * running + 64, np.int64)
    prefilling, queue = np.empty(running + 1, np.int64), np.empty(n + 64, np.int64)
    order = np.empty(running + 1, np.int64)
    edge, gap = np.zeros(limits.block_size, np.int64), np.empty((2, GAPS), np.int64)
    arrival = np.ascontiguousarray(workload.arrival, np.int64)
    told = np.empty((kernel.LINE_ROWS, LINES if steps else 0), np.int64)

    s = np.zeros(kernel.SCALARS, np.int64)
    s[[kernel.HEAD, kernel.TAIL, kernel.START, kernel.END]] = -1
    s[kernel.FREE] = s[kernel.LEAST_FREE] = rules.num_blocks or 0
    while True:
        status = kernel.advance(
            s, limits, w, h, arrival, never, late_at, late,
            ends, queue, prefilling, fresh, gap, edge, order, told, EVENTS,
        )  # fmt: skip
        if steps:
            steps.add(told[:, : s[kernel.LINES]])
            s[kernel.LINES] = 0
        if status == kernel.DONE or (go_on and not go_on(int(s[kernel.LEFT]))):
            break
        if status == kernel.TOO_LONG:
            raise ReplayError(
                "the run goes beyond 2^62 ticks of 10 ps (1.4 years), or beyond 2^30 steps "
                "without a pause: replay less of the log at once (--skip, --limit)"
            )
        if status == kernel.GAPS_FULL:
            gap = np.concatenate([gap, np.empty_like(gap)], axis=1)
    kernel.settle_all(s, limits, w, h, gap)
    return _table(workload, w, h, int(s[kernel.NEXT])), _sums(s, rules, why)


def _limits(rules: Rules, step_time: StepTime, every: int) -> kernel.Limits:
    def bound(value: int | None) -> int:
        return kernel.ENDLESS if value is None else value

    return kernel.Limits(
        budget=bound(rules.max_num_batched_tokens),
        prefill_budget=bound(rules.prefill_token_budget),
        shared=rules.prefill_token_budget is None,
        seqs=bound(rules.max_num_seqs),
        chunked=rules.enable_chunked_prefill,
        threshold=bound(rules.long_prefill_token_threshold or None),
        fcfs=rules.policy == "fcfs",
        decode_first=rules.running_order == "decode_first",
        memory=rules.num_blocks is not None,
        reserve=rules.preemption == "none",
        grows=rules.num_blocks is not None and rules.preemption == "recompute",
        whole_prompt=rules.scheduler_reserve_full_isl,
        block_size=rules.block_size,
        unsampled=rules.unsampled,
        fixed=step_time.fixed,
        per_prefill_token=step_time.per_prefill_token,
        per_attention_pair=step_time.per_attention_pair,
        per_decode=step_time.per_decode,
        per_kv_token=step_time.per_kv_token,
        every=every,
    )


def _rejected(
    workload: Workload, rules: Rules, most: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], dict[str, Rejected]]:
    """Who could never run, and why by kind: what `Scheduler.why_never` says of each."""
    prompt = workload.prompt_tokens
    never = np.zeros(len(workload), np.bool_)
    kinds: list[NDArray[np.bool_]] = []
    budget = None if rules.enable_chunked_prefill else rules.prompt_budget
    if budget is not None:
        kinds.append(prompt > budget)
    if rules.num_blocks is not None:
        kinds.append(prompt + most - rules.unsampled > rules.num_blocks * rules.block_size)
        if budget is not None and rules.preemption == "recompute":
            kinds.append(prompt + most - 1 > budget)
    scheduler = Scheduler(rules)
    sums = RunSums.of(rules)
    found = []
    for kind in kinds:
        kind &= ~never
        never |= kind
        if kind.any():
            place = int(kind.argmax())
            why = scheduler.why_never(Request("r", int(prompt[place]), int(most[place])))
            found.append((place, why or "", int(np.count_nonzero(kind))))
    for _, why, count in sorted(found):
        sums.reject(why)
        list(sums.rejected.values())[-1].count = count
    return never, sums.rejected


def _ranks(workload: Workload, rules: Rules) -> NDArray[np.int64]:
    """Every request's place in the policy's order."""
    places = np.arange(len(workload))
    if rules.policy == "fcfs":
        return places
    key = {
        "priority": workload.priority,
        "sjf": workload.predicted_tokens,
        "sjf-oracle": workload.output_tokens,
    }[rules.policy]
    if key is None:  # nobody has a priority
        return places
    rank = np.empty_like(places)
    rank[np.argsort(key, kind="stable")] = places  # they are in order of arrival: so are ties
    return rank


def _deadlines(workload: Workload) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """When clients give up, in order, and which request is meant."""
    if workload.deadline is None:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    (who,) = np.nonzero(workload.deadline >= 0)
    # One that lies beyond the end of time is never met.
    room = np.iinfo(np.int64).max - workload.arrival[who]
    at = workload.arrival[who] + np.minimum(workload.deadline[who], room)
    order = np.argsort(at, kind="stable")
    return at[order], who[order]


def _table(
    workload: Workload, w: NDArray[np.int64], h: NDArray[np.int32], arrived: int
) -> RequestTable:
    w, h = w[:, :arrived], h[:, :arrived]
    state = h[kernel.STATE]
    reason = np.full(arrived, Reason.UNFINISHED, np.int8)
    reason[state == kernel.FINISHED] = Reason.STOP
    reason[(state == kernel.FINISHED) & (h[kernel.OUTPUT] == h[kernel.MOST])] = Reason.LENGTH
    reason[state == kernel.ABORTED] = Reason.ABORTED
    reason[state == kernel.REJECTED] = Reason.REJECTED
    priority = workload.priority
    return RequestTable(
        arrival=workload.arrival[:arrived],
        admitted=w[kernel.ADMITTED],
        first_token=w[kernel.FIRST],
        finished=w[kernel.FINISHED_AT],
        prompt_tokens=h[kernel.PROMPT],
        output_tokens=h[kernel.OUTPUT],
        reason=reason,
        preemptions=h[kernel.PREEMPTIONS],
        recomputed_tokens=w[kernel.RECOMPUTED],
        cached_tokens=np.zeros(arrived, np.int64),
        largest_itl=w[kernel.LARGEST_ITL],
        priority=np.zeros(arrived, np.int32) if priority is None else priority[:arrived],
        ids=None if workload.ids is None else workload.ids[:arrived],
        rows=None if workload.rows is None else workload.rows[:arrived],
    )


def _sums(s: NDArray[np.int64], rules: Rules, rejected: dict[str, Rejected]) -> RunSums:
    sums = RunSums.of(rules)
    sums.steps = int(s[kernel.COUNTED])
    sums.start, sums.end, sums.busy = (int(s[i]) for i in (kernel.START, kernel.END, kernel.BUSY))
    sums.prefill_tokens = int(s[kernel.PREFILL_TOKENS])
    sums.decode_tokens = int(s[kernel.DECODE_TOKENS])
    sums.scheduled_requests = int(s[kernel.SCHEDULED])
    sums.largest_batch = int(s[kernel.LARGEST])
    if rules.num_blocks is not None and s[kernel.NEXT]:
        sums.peak_blocks = rules.num_blocks - int(s[kernel.LEAST_FREE])
    sums.rejected = rejected
    return sums
