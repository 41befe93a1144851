"""The scheduler: decode, prefill, run. Who is in the next step, and what becomes of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from operator import attrgetter

from tokenyard.core.batch import Batch
from tokenyard.core.blocks import UNBOUNDED, block_pool
from tokenyard.core.policy import Policy, WaitingQueue, load_policy
from tokenyard.core.request import FinishReason, Request, RequestError, SchedulerError, State
from tokenyard.core.rules import Rules

RANK = attrgetter("rank")


class Budget:
    """Tokens that a step can still take."""

    __slots__ = ("left",)

    def __init__(self, tokens: int | None) -> None:
        self.left = UNBOUNDED if tokens is None else tokens


class Scheduler:
    """A state machine over requests: `submit` them, then `schedule` and `commit` step by step.

    It never sees how long an output will be: whoever executes the batch says who stopped. A request
    that has generated max_tokens is finished without being told.
    """

    def __init__(self, rules: Rules, policy: Policy | None = None) -> None:
        """`policy` overrules the one that the rules name, which raises `RulesError` if unknown."""
        self.rules = rules
        self.policy = policy or load_policy(rules.policy)
        self.blocks = block_pool(rules)
        self.requests: dict[str, Request] = {}  # everybody in the system
        self.waiting = WaitingQueue()
        self.running: list[Request] = []  # in order of admission
        self._prefilling = 0  # how many of the running are in PREFILL
        self._changing: dict[Request, None] = {}  # whose blocks change with their next decode
        self._batch: Batch | None = None  # planned and not yet committed
        self._submitted = 0

    @property
    def decoding(self) -> int:
        """How many requests are in DECODE."""
        return len(self.running) - self._prefilling

    # ------------------------------------------------------------------ in and out

    def submit(self, request: Request) -> str | None:
        """Queue a request. If it could never run under the rules it is finished as REJECTED, and
        the reason, which names the number and the rule, is returned; else None.

        Raises `RequestError` for an id that is in the system, or what the policy cannot order.
        """
        if request.id in self.requests:
            raise RequestError(f"request id {request.id!r} is already in the system")
        if request.state is not State.WAITING or request.rank is not None:
            raise RequestError(f"request {request.id!r} was submitted before")
        request.rank = (self.policy.key(request), self._submitted)
        self._submitted += 1
        reason = self.why_never(request)
        if reason:
            request.move(State.FINISHED)
            request.finish_reason = FinishReason.REJECTED
            return reason
        self.requests[request.id] = request
        self.waiting.add(request)
        return None

    def abort(self, id: str) -> Request:
        """Finish a request at once, whatever its state, also between `schedule` and `commit`.
        Raises `RequestError` if no such request is in the system."""
        request = self._known(id)
        if request.state is State.WAITING:
            self.waiting.remove(request)
        else:
            self.running.remove(request)
            if self._batch:
                self._batch.remove(request)
        self._finish(request, FinishReason.ABORTED)
        return request

    def _known(self, id: str) -> Request:
        if id not in self.requests:
            raise RequestError(f"request id {id!r} is not in the system")
        return self.requests[id]

    def why_never(self, request: Request) -> str | None:
        """Why the request could never be served under the rules, or None."""
        rules, prompt, most = self.rules, request.prompt_tokens, request.max_tokens
        budget = rules.prompt_budget
        which = "prefill_token_budget" if rules.prefill_token_budget else "max_num_batched_tokens"
        if rules.enable_chunked_prefill:
            budget = None  # no prompt is too long for it
        if budget is not None and prompt > budget:
            return (
                f"its prompt of {prompt} tokens is more than {which} {budget}, and "
                "enable_chunked_prefill is false"
            )
        if rules.num_blocks is None:
            return None
        cached = self._most_cached(request)
        needed = self.blocks.blocks_for(cached)
        if needed > rules.num_blocks:
            return (
                f"its prompt of {prompt} and max_tokens {most} need {needed} blocks of "
                f"{rules.block_size} tokens, and num_blocks is {rules.num_blocks}"
            )
        again = prompt + most - 1  # what it would prefill if it were preempted at its last token
        if budget is not None and rules.preemption == "recompute" and again > budget:
            return (
                f"if it were preempted it might have to prefill {again} tokens at once (its prompt "
                f"of {prompt} and max_tokens {most}, less one), more than {which} {budget}, and "
                "enable_chunked_prefill is false"
            )
        return None

    # ------------------------------------------------------------------ one step

    def schedule(self) -> Batch:
        """Plan a step: decodes and begun prefills first, then who waits, each capacity check before
        the request joins. Execute the batch, then give it to `commit`. An empty one (nobody
        is here) has nothing to execute or commit."""
        if self._batch is not None:
            raise SchedulerError("the batch of the last schedule() has not been committed")
        rules, batch = self.rules, Batch(first_token_with_prefill=bool(self.rules.unsampled))
        decode_budget = prefill_budget = Budget(rules.max_num_batched_tokens)
        if rules.prefill_token_budget is not None:
            prefill_budget = Budget(rules.prefill_token_budget)
        alone = len(self.requests) == 1
        chunk = UNBOUNDED if alone else rules.long_prefill_token_threshold or UNBOUNDED

        if self._all_decode_and_fit(decode_budget):
            batch.decode = self.running.copy()
            decode_budget.left -= len(batch.decode)
            self._grow()
        else:
            for request in self._in_running_order():
                decoding = request.state is State.DECODE
                budget = decode_budget if decoding else prefill_budget
                tokens = 1 if decoding else min(request.pending_tokens, chunk, budget.left)
                if request.state is State.WAITING or not 0 < tokens <= budget.left:
                    continue  # preempted a moment ago, or it keeps its place for the next step
                if not self._make_room(request, tokens, batch, decode_budget, prefill_budget):
                    break
                budget.left -= tokens
                if decoding:
                    batch.decode.append(request)
                else:
                    batch.prefill.append((request, tokens))

        if not batch.preempted:
            self._admit(batch, prefill_budget, chunk)
        if self.requests and not batch:
            raise SchedulerError(f"none of {len(self.requests)} requests can run")
        self._batch = batch or None
        return batch

    def _admit(self, batch: Batch, budget: Budget, chunk: int) -> None:
        """Let waiting requests join, in the policy's order, while they fit."""
        rules, place, passed = self.rules, 0, 0
        most = UNBOUNDED if rules.max_num_seqs is None else rules.max_num_seqs
        while place < len(self.waiting) and budget.left > 0 and len(self.running) < most:
            request = self.waiting[place]
            hits = self.blocks.lookup(request)
            cached = len(hits) * rules.block_size
            tokens = min(request.known_tokens - cached, chunk)
            if rules.enable_chunked_prefill:
                tokens = min(tokens, budget.left)
            if tokens > budget.left or not self.blocks.allocate(
                request,
                cached + tokens,
                hits,
                hold=self._most_cached(request) if rules.preemption == "none" else 0,
                must_fit=request.known_tokens if rules.scheduler_reserve_full_isl else 0,
            ):
                if rules.head_of_line == "block" or request.skips >= rules.max_skips:
                    break
                place += 1
                continue
            passed = place
            self.waiting.pop(place)
            request.move(State.PREFILL)
            request.pending_tokens = request.known_tokens - cached
            request.skips = 0
            self.running.append(request)
            self._prefilling += 1
            budget.left -= tokens
            batch.prefill.append((request, tokens))
            if cached:
                batch.cached.append((request, cached))
        for place in range(passed):
            self.waiting[place].skips += 1

    def commit(
        self, batch: Batch, stopped: Collection[str] = (), tokens: Mapping[str, int] | None = None
    ) -> list[Request]:
        """Take in what the execution of a batch brought. Returns who finished, in order of
        admission, already gone from every queue and with their blocks free.

        `stopped`: ids whose output ended with the token of this step. `tokens`: the token of each
        id, needed only where prefix caching is to find output again. Raises `SchedulerError` if the
        batch is not the one last scheduled, or somebody stopped who got no token in it, and
        `RequestError` for the token of somebody who is not in the system.
        """
        if self._batch is None or batch is not self._batch:
            raise SchedulerError("only the batch of the last schedule() can be committed")
        self._batch = None
        done: dict[Request, FinishReason] = {}
        first = [
            request for request, computed in batch.prefill if self._prefilled(request, computed)
        ]
        for requests in (batch.decode, first):
            for request in requests:
                request.output_tokens += 1
                if request.output_tokens >= request.checkpoint:
                    if request.output_tokens >= request.max_tokens:
                        done[request] = FinishReason.LENGTH
                    else:
                        self._changing[request] = None
                        request.checkpoint = request.max_tokens
        for id, token in tokens.items() if tokens else ():
            request = self._known(id)
            # After a token that nobody told, what comes later says nothing of the content.
            if request.token_ids is not None and len(request.token_ids) == request.known_tokens - 1:
                request.token_ids.append(token)
        if stopped:
            sampled = {request.id: request for request in (*batch.decode, *first)}
            for id in stopped:
                if id not in sampled:
                    raise SchedulerError(f"request {id!r} stopped in a step that gave it no token")
                done[sampled[id]] = FinishReason.STOP
        if not done:
            return []
        leaving = [request for request in self.running if request in done]
        self.running = [request for request in self.running if request not in done]
        for request in leaving:
            self._finish(request, done[request])
        return leaving

    # ------------------------------------------------------------------ parts of a step

    def _all_decode_and_fit(self, budget: Budget) -> bool:
        """Whether every running request is in DECODE and all of them get their token."""
        return (
            not self._prefilling
            and len(self.running) <= budget.left
            and len(self._changing) <= self.blocks.free
        )

    def _grow(self) -> None:
        """Give every decoding request whose blocks change the blocks for its next token."""
        changing: Iterable[Request] = self._changing
        if self.rules.enable_prefix_caching:  # of equal blocks the first one filled is found first
            changing = filter(self._changing.__contains__, self.running)
        for request in changing:
            computed = request.computed_tokens + 1
            self.blocks.extend(request, computed)
            self._look_ahead(request, request.output_tokens + 1, computed)
        self._changing.clear()

    def _in_running_order(self) -> Iterable[Request]:
        """The running requests in the order in which they are served (a copy)."""
        if self.rules.running_order == "admission":
            return self.running.copy()
        return sorted(self.running, key=lambda request: request.state is not State.DECODE)

    def _make_room(
        self,
        request: Request,
        tokens: int,
        batch: Batch,
        decode_budget: Budget,
        prefill_budget: Budget,
    ) -> bool:
        """Give a running request the blocks for its next tokens, preempting others, the last in the
        policy's order first, as long as it takes. False if it had to give up itself."""
        if request.state is State.DECODE and request not in self._changing:
            return True
        while not self.blocks.allocate(request, request.computed_tokens + tokens):
            victim = max(self.running, key=RANK)
            budget = decode_budget if victim.state is State.DECODE else prefill_budget
            budget.left += batch.remove(victim)
            self.running.remove(victim)
            self._leave(victim, State.WAITING)
            victim.pending_tokens = victim.known_tokens
            victim.preemptions += 1
            self.waiting.add(victim)
            batch.preempted.append(victim)
            if victim is request:
                return False
        if request.state is State.DECODE:
            del self._changing[request]
            self._look_ahead(request, request.output_tokens + 1, request.computed_tokens + 1)
        return True

    def _prefilled(self, request: Request, computed: int) -> bool:
        """Note computed prefill tokens; True if they were the last, and brought an output token."""
        request.pending_tokens -= computed
        if request.pending_tokens:
            return False
        request.move(State.DECODE)
        self._prefilling -= 1
        sampled = self.rules.unsampled
        self._look_ahead(request, request.output_tokens + sampled, request.known_tokens)
        request.pending_tokens = sampled
        if not sampled and request.checkpoint == request.output_tokens:
            self._changing[request] = None
        return bool(sampled)

    def _look_ahead(self, request: Request, output: int, computed: int) -> None:
        """Note at which of its output tokens a decoding request needs a second look, because it
        ends or its blocks change after it. It will have `output`, `computed` in the KV cache."""
        last, change = request.max_tokens, output + self.blocks.unchanged_decodes(request, computed)
        request.checkpoint = change if change < last else last

    def _finish(self, request: Request, reason: FinishReason) -> None:
        self._leave(request, State.FINISHED)
        request.finish_reason = reason
        del self.requests[request.id]

    def _leave(self, request: Request, to: State) -> None:
        """Give up every block, and whatever belongs to the state that the request leaves."""
        if request.state is State.PREFILL:
            self._prefilling -= 1
        self._changing.pop(request, None)
        self.blocks.release(request)
        request.move(to)

    def _most_cached(self, request: Request) -> int:
        """The tokens that the request has in the KV cache at most: all but the last of its output,
        which nobody computes where the first token comes with the prefill."""
        return request.prompt_tokens + request.max_tokens - self.rules.unsampled
