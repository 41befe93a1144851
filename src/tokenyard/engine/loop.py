"""The loop: arrivals, schedule, execute, commit. Each step comes out as a line of the log."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from tokenyard.core import Batch, Request, Scheduler, SchedulerError
from tokenyard.engine.log import Arrival, Step
from tokenyard.engine.step_time import StepTime, batch_duration


@dataclass(slots=True)
class Executed:
    """What the execution of a batch brought."""

    duration: int
    """Ticks."""
    stopped: Collection[str] = ()
    """Ids of requests whose output ended with the token of this step (not by max_tokens)."""
    tokens: Mapping[str, int] | None = None
    """The token of each request that got one, where its content matters."""


class Executor(Protocol):
    """Runs batches: a simulated one asks a step-time model, a real one a language model."""

    def execute(self, batch: Batch) -> Executed: ...


class SimulatedExecutor:
    """Takes durations from a step-time model, and output lengths from the trace."""

    def __init__(self, step_time: StepTime, output_tokens: Mapping[str, int] | None = None) -> None:
        """`output_tokens`: the true length of those that end before max_tokens."""
        self._step_time = step_time
        self._output_tokens = output_tokens or {}

    def execute(self, batch: Batch) -> Executed:
        duration = batch_duration(self._step_time, batch)
        return Executed(duration, self._stopped(batch) if self._output_tokens else ())

    def _stopped(self, batch: Batch) -> list[str]:
        lengths = self._output_tokens
        return [
            request.id
            for request in batch.sampled()
            if lengths.get(request.id) == request.output_tokens + 1
        ]


def run(
    scheduler: Scheduler,
    arrivals: Iterable[Request],
    executor: Executor,
    *,
    start: int = 0,
    snapshots: bool = False,
) -> Iterator[Step]:
    """Drive the scheduler until every request has finished; yields each step when it is done.

    `arrivals` in order of arrival, each made for this run. A step is planned as soon as the one
    before it is over; when nobody is there, time jumps to the next arrival. Whoever has arrived by
    then is submitted, whoever is past its deadline is aborted, then the step is planned.
    `snapshots`: put the queues into each step.
    """
    upcoming = iter(arrivals)
    following = next(upcoming, None)
    deadlines: list[tuple[int, str, Request]] = []
    now, number = start, 0
    while following is not None or scheduler.requests:
        if not scheduler.requests and following is not None:
            now = max(now, following.arrival)
        step = Step(number, now, 0)
        while following is not None and following.arrival <= now:
            step.arrived.append(arrival(following))
            if reason := scheduler.submit(following):
                step.rejected.append((following.id, reason))
            elif following.deadline is not None:
                heapq.heappush(
                    deadlines, (following.arrival + following.deadline, following.id, following)
                )
            following = next(upcoming, None)
        while deadlines and deadlines[0][0] <= now:
            late = heapq.heappop(deadlines)[2]
            if late.finish_reason is None:
                step.aborted.append(scheduler.abort(late.id).id)
        batch = scheduler.schedule()
        step.prefill = [(request.id, tokens) for request, tokens in batch.prefill]
        step.cached = [(request.id, tokens) for request, tokens in batch.cached]
        step.preempted = [request.id for request in batch.preempted]
        if len(batch.decode) < scheduler.decoding:
            step.decode = [request.id for request in batch.decode]
        if batch:
            executed = executor.execute(batch)
            step.duration = executed.duration
            done = scheduler.commit(batch, executed.stopped, executed.tokens)
            step.finished = [(request.id, _why(request)) for request in done]
        if scheduler.rules.num_blocks is not None:
            step.free_blocks = scheduler.blocks.free
        if snapshots:
            step.waiting = [request.id for request in scheduler.waiting]
            step.running = [request.id for request in scheduler.running]
        yield step
        now += step.duration
        number += 1


def arrival(request: Request) -> Arrival:
    """The request as the log tells of it."""
    told = Arrival(
        request.id,
        request.arrival,
        request.prompt_tokens,
        request.max_tokens,
        request.priority,
        request.deadline,
        request.predicted_tokens,
        None if request.token_ids is None else tuple(request.token_ids),
        prefix_group=request.prefix_group,
        prefix_tokens=request.prefix_tokens,
    )
    if request.hash_ids is not None:
        told.hash_ids, told.hash_block_size = tuple(request.hash_ids), request.hash_block_size
    return told


def _why(request: Request) -> str:
    """The log's word for why a request finished. Raises `SchedulerError` if it has not."""
    if request.finish_reason is None:
        raise SchedulerError(f"request {request.id!r} has not finished")
    return request.finish_reason.value
