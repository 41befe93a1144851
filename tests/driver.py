"""Drives a scheduler call by call and holds it against what the rules promise."""

from __future__ import annotations

from collections import Counter

from strategies import Asked

from tokenyard.check import Checker
from tokenyard.core import Batch, FinishReason, Request, Rules, Scheduler, State
from tokenyard.engine.log import Step
from tokenyard.engine.loop import arrival


class Driver:
    """Drives a scheduler and holds its public state against a model that knows only the rules, and
    the log of its steps against every invariant."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.scheduler = Scheduler(rules)
        self.submitted: list[Request] = []
        self.output: Counter[str] = Counter()  # tokens that each request was given
        self.length: dict[str, int] = {}
        self.checker: Checker | None = Checker(rules)
        self.in_flight = False
        self.log = Step(0, 10**9, 1)  # the step that is being told

    def submit(self, asked: Asked) -> None:
        request = asked.request()
        self.length[request.id] = asked.output_tokens
        self.submitted.append(request)
        reason = self.scheduler.submit(request)
        if self.in_flight:
            self.checker = None  # a log tells of it with the next step: not worth the words here
        self.log.arrived.append(arrival(request))
        if reason:
            self.log.rejected.append((request.id, reason))
        assert (reason is None) == (request.state is State.WAITING)
        self.check()

    def abort(self, id: str) -> None:
        request = self.scheduler.abort(id)
        if self.in_flight:
            self.checker = None  # a log has no word for it: who is in a step stays in it
        self.log.aborted.append(id)
        assert request.finish_reason is FinishReason.ABORTED
        self.check()

    def schedule(self) -> Batch:
        scheduler, rules = self.scheduler, self.rules
        decoding = [r for r in scheduler.running if r.state is State.DECODE]
        room = len(scheduler.running)
        batch = scheduler.schedule()
        self.in_flight = bool(batch)
        self.log.prefill = [(r.id, tokens) for r, tokens in batch.prefill]
        self.log.cached = [(r.id, tokens) for r, tokens in batch.cached]
        self.log.preempted = [r.id for r in batch.preempted]
        if len(batch.decode) < scheduler.decoding:
            self.log.decode = [r.id for r in batch.decode]
        decodes, prefills = len(batch.decode), batch.prefill_tokens

        if rules.prefill_token_budget is None:
            assert decodes + prefills <= (rules.max_num_batched_tokens or 10**9)
        else:
            assert decodes <= (rules.max_num_batched_tokens or 10**9)
            assert prefills <= rules.prefill_token_budget
        assert all(tokens > 0 for _, tokens in batch.prefill)
        assert all(request in decoding for request in batch.decode), "decode before prefill is done"
        assert all(request.state is State.PREFILL for request, _ in batch.prefill)
        planned = Counter(r.id for r in batch.decode) + Counter(r.id for r, _ in batch.prefill)
        assert not planned or max(planned.values()) == 1, "one request twice in a step"
        assert not {r.id for r in batch.preempted} & set(planned)
        if batch.preempted:
            assert len(scheduler.running) == room - len(batch.preempted), (
                "admitted after preempting"
            )
        # The excess of decodes keeps its place: those who run are the oldest.
        still = [r for r in decoding if r.state is State.DECODE]
        if not batch.preempted:
            assert batch.decode == still[: len(batch.decode)]
            if rules.running_order == "decode_first" and len(batch.decode) < len(still):
                assert len(batch.decode) == rules.max_num_batched_tokens
        if not rules.enable_chunked_prefill:
            assert all(tokens == request.pending_tokens for request, tokens in batch.prefill)
        self.check()
        if not batch:
            self.tell([])
        return batch

    def commit(self, batch: Batch) -> None:
        prefilled = [r.id for r, tokens in batch.prefill if tokens == r.pending_tokens]
        given = [r.id for r in batch.decode]
        if self.rules.first_token == "prefill":
            given += prefilled
        assert [r.id for r in batch.sampled()] == given
        self.output.update(given)
        done = [id for id in given if self.output[id] == self.length[id]]
        most = self.scheduler.requests
        stopped = [id for id in done if self.output[id] < most[id].max_tokens]
        tokens = {id: self.output[id] % 2 for id in given}
        finished = self.scheduler.commit(batch, stopped, tokens)
        assert {r.id for r in finished} == set(done), "who is done is gone"
        self.check()
        self.tell(finished)

    def tell(self, finished: list[Request]) -> None:
        """End the step in the log, and hold it against the invariants."""
        scheduler, log = self.scheduler, self.log
        self.in_flight = False
        log.finished = [(r.id, r.finish_reason.value) for r in finished if r.finish_reason]
        log.free_blocks = scheduler.blocks.free if self.rules.num_blocks else None
        log.waiting = [r.id for r in scheduler.waiting]
        log.running = [r.id for r in scheduler.running]
        violations = self.checker.feed(log) if self.checker else []
        assert not violations, "\n".join(map(str, violations))
        self.log = Step(log.step + 1, log.start + 1, 1)

    def step(self) -> Batch:
        if batch := self.schedule():
            self.commit(batch)
        return batch

    def check(self) -> None:
        scheduler, rules = self.scheduler, self.rules
        waiting, running = list(scheduler.waiting), scheduler.running
        by_state = Counter(request.state for request in self.submitted)
        assert len(waiting) == by_state[State.WAITING]
        assert len(running) == by_state[State.PREFILL] + by_state[State.DECODE]
        assert len({r.id for r in (*waiting, *running)}) == len(waiting) + len(running)
        assert {r.id for r in (*waiting, *running)} == set(scheduler.requests)
        assert all(request.state is State.WAITING for request in waiting)
        assert waiting == sorted(waiting, key=lambda request: request.rank)
        assert rules.max_num_seqs is None or len(running) <= rules.max_num_seqs
        for request in self.submitted:
            assert request.output_tokens == self.output[request.id], "an output token was lost"
            assert 0 <= request.computed_tokens <= request.known_tokens
            if request.state in (State.WAITING, State.FINISHED):
                assert request.held == 0
                assert not request.blocks
        self.check_blocks(waiting, running)

    def check_blocks(self, waiting: list[Request], running: list[Request]) -> None:
        pool, rules = self.scheduler.blocks, self.rules
        if rules.num_blocks is None:
            return
        assert 0 <= pool.free <= rules.num_blocks
        if not rules.enable_prefix_caching:
            assert pool.free == rules.num_blocks - sum(r.held for r in running)
        else:
            holders = Counter(block for request in running for block in request.blocks)
            assert pool.free == rules.num_blocks - len(holders)
            assert all(block.refs == count for block, count in holders.items())
            assert all(len(request.blocks) == request.held for request in running)
            for block, count in holders.items():
                assert count == 1 or block.key is not None, "shared without equal content"
        for request in running:
            assert request.held * rules.block_size >= request.computed_tokens
            if rules.preemption == "none":
                most = request.prompt_tokens + request.max_tokens - rules.unsampled
                assert request.held == -(-most // rules.block_size)

    def finish(self) -> int:
        """Nothing waits for ever: every accepted request ends, with exactly its tokens. Returns the
        number of steps that it took."""
        steps = 0
        bound = 50 + 40 * sum(r.prompt_tokens + self.length[r.id] for r in self.submitted)
        for _ in range(bound):
            if not self.scheduler.requests:
                break
            self.step()
            steps += 1
        assert not self.scheduler.requests, "somebody waits for ever"
        for request in self.submitted:
            assert request.state is State.FINISHED
            if request.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
                assert request.output_tokens == self.length[request.id]
        pool = self.scheduler.blocks
        assert pool.free == pool.num_blocks
        return steps
