"""Decision by decision: somebody's schedule beside the one that tokenyard's scheduler makes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tokenyard.core import Request, RequestError, Rules, Scheduler, SchedulerError
from tokenyard.engine.log import Arrival, Step

FIELDS = (
    "rejected",
    "preempted",
    "cached",
    "prefill",
    "decode",
    "finished",
    "free_blocks",
    "waiting",
    "running",
)


class Shadow:
    """Our scheduler, driven by what a log tells that it did not decide: who arrived, who was
    aborted, and whose output ended by itself."""

    def __init__(self, rules: Rules, output_token: int | None = None) -> None:
        """`output_token`: the id of every output token, where the log says so."""
        self.scheduler = Scheduler(rules)
        self._output_token = output_token
        self.planned_free_blocks = 0
        """Blocks that were free once the last step was planned, before anybody finished."""

    def follow(self, step: Step) -> Step:
        """Our step, given the arrivals, aborts and stops of theirs. `decode` None: everybody in
        DECODE. Raises `RequestError` or `SchedulerError` where it cannot follow."""
        scheduler = self.scheduler
        ours = Step(step.step, step.start, step.duration, arrived=step.arrived)
        for asked in step.arrived:
            if reason := scheduler.submit(request_of(asked)):
                ours.rejected.append((asked.id, reason))
        ours.aborted = [scheduler.abort(id).id for id in step.aborted]
        batch = scheduler.schedule()
        self.planned_free_blocks = scheduler.blocks.free
        ours.prefill = [(request.id, tokens) for request, tokens in batch.prefill]
        ours.cached = [(request.id, tokens) for request, tokens in batch.cached]
        ours.preempted = [request.id for request in batch.preempted]
        if len(batch.decode) < scheduler.decoding or step.decode is not None:
            ours.decode = [request.id for request in batch.decode]
        if batch:
            sampled = {request.id for request in batch.decode}
            if scheduler.rules.first_token == "prefill":
                sampled.update(r.id for r, tokens in batch.prefill if tokens == r.pending_tokens)
            stopped = [id for id, reason in step.finished if reason == "stop" and id in sampled]
            tokens = None
            if self._output_token is not None:
                tokens = dict.fromkeys(sorted(sampled), self._output_token)
            done = scheduler.commit(batch, stopped, tokens)
            ours.finished = [
                (request.id, request.finish_reason.value)
                for request in done
                if request.finish_reason is not None
            ]
        if scheduler.rules.num_blocks is not None:
            ours.free_blocks = scheduler.blocks.free
        ours.waiting = [request.id for request in scheduler.waiting]
        ours.running = [request.id for request in scheduler.running]
        return ours


def request_of(asked: Arrival) -> Request:
    """A request as the log tells of it. Raises `RequestError`."""
    return Request(
        asked.id,
        asked.prompt_tokens,
        asked.max_tokens,
        arrival=asked.arrival,
        priority=asked.priority,
        deadline=asked.deadline,
        predicted_tokens=asked.predicted_tokens,
        token_ids=asked.token_ids,
        hash_ids=asked.hash_ids,
        hash_block_size=asked.hash_block_size,
        prefix_group=asked.prefix_group,
        prefix_tokens=asked.prefix_tokens,
    )


class Comparison:
    """Compares a schedule with ours, step by step, up to the first that differs."""

    def __init__(
        self,
        rules: Rules,
        output_token: int | None = None,
        *,
        ordered: Iterable[str] = FIELDS,
    ) -> None:
        """`ordered`: the fields whose order counts; of the others only what they hold."""
        self.shadow = Shadow(rules, output_token)
        self._ordered = frozenset(ordered)

    def feed(self, step: Step) -> tuple[str, Step | None] | None:
        """What differs, in words, and our step (None: we cannot follow)."""
        try:
            ours = self.shadow.follow(step)
        except (RequestError, SchedulerError) as error:
            return f"tokenyard cannot follow: {error}", None
        for field in FIELDS:
            theirs_is, ours_is = getattr(step, field), getattr(ours, field)
            if theirs_is is None and field != "decode":
                continue  # the log does not say
            if field == "rejected":
                theirs_is, ours_is = _ids(theirs_is), _ids(ours_is)
            one, other = theirs_is, ours_is
            if field not in self._ordered and isinstance(one, list) and isinstance(other, list):
                one, other = sorted(one), sorted(other)
            if one != other:
                return f"{field} is {shown(theirs_is)}; tokenyard: {shown(ours_is)}", ours
        return None


def _ids(pairs: Iterable[tuple[str, Any]]) -> list[str]:
    return [id for id, _ in pairs]


def shown(value: Any) -> str:
    """A field of a step for people."""
    if value is None:
        return "everybody in DECODE"
    if not isinstance(value, list):
        return str(value)
    entries = [one if isinstance(one, str) else " ".join(map(str, one)) for one in value]
    return ", ".join(entries[:12]) + (" …" if len(entries) > 12 else "") if entries else "nobody"
