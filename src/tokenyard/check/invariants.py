"""The invariants: what is true of every schedule, step by step.

Each has a name, a sentence and a function, in this order. The function is given the state after a
step (`Replay`) and what the step did (`Moment`), and yields a finding for each breach: the id of
the request, if one is to be named, and the figures. docs/invariants.md tells what taught each.

They hold for any engine that works by the same `Rules`, so they ask for nothing that the rules
leave open. Where a log says less (no free_blocks, no snapshots, a policy of somebody's own), less
is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tokenyard.check.replay import UNBOUNDED, Live, Moment, Replay
from tokenyard.core import Rules
from tokenyard.engine.log import Step, end_of

Finding = tuple[str | None, str]
Check = Callable[[Replay, Moment], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Invariant:
    """A name, a sentence, and the function that finds breaches."""

    name: str
    sentence: str
    check: Check
    always: bool
    """Whether a step in which nobody joins, leaves or changes state can break it."""


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that a step broke."""

    invariant: str
    step: int
    request: str | None
    message: str

    def __str__(self) -> str:
        who = "" if self.request is None else f", request {self.request!r}"
        return f"step {self.step}{who}: {self.invariant}: {self.message}"


INVARIANTS: dict[str, Invariant] = {}
"""By name, in the order of this page."""


def invariant(name: str, *, always: bool = False) -> Callable[[Check], Check]:
    """Put a function into the list; its docstring is the sentence."""

    def add(check: Check) -> Check:
        INVARIANTS[name] = Invariant(name, " ".join((check.__doc__ or "").split()), check, always)
        return check

    return add


# ------------------------------------------------------------------------------ time


@invariant("clock-never-goes-back", always=True)
def clock(_: Replay, now: Moment) -> Iterator[Finding]:
    """A step starts when the one before it is over, or later, and has a higher number; no step
    takes less than no time."""
    step, before = now.step, now.previous
    if step.duration < 0 or step.duration + step.duration_growth * (step.repeat - 1) < 0:
        yield None, f"it takes {step.duration} ticks, growing by {step.duration_growth}"
    if before is None:
        return
    if step.start < end_of(before):
        yield None, f"it starts at {step.start}; step {before.step} ends at {end_of(before)}"
    if step.step < before.step + before.repeat:
        yield None, f"it follows step {before.step + before.repeat - 1}"


@invariant("arrival-before-service")
def arrival(_: Replay, now: Moment) -> Iterator[Finding]:
    """Nobody is seen by a step that starts before they arrive."""
    for live in now.arrived:
        if live.asked.arrival > now.step.start:
            yield live.id, f"arrives at {live.asked.arrival}; the step starts at {now.step.start}"


# ------------------------------------------------------------------------------ who is there


@invariant("arrives-once")
def arrives_once(replay: Replay, now: Moment) -> Iterator[Finding]:
    """A request arrives once, with a prompt, with room for output, and with what the policy orders
    it by."""
    for id in now.arrived_again:
        yield id, "arrives, and is in the system already"
    for live in now.arrived:
        asked = live.asked
        if asked.prompt_tokens < 1 or asked.max_tokens < 1:
            yield (
                live.id,
                f"arrives with prompt_tokens {asked.prompt_tokens} and max_tokens "
                f"{asked.max_tokens}; each is at least 1",
            )
        if replay.rules.policy in ("sjf", "sjf-oracle") and asked.predicted_tokens is None:
            yield (
                live.id,
                f"arrives without predicted_tokens, by which {replay.rules.policy} orders",
            )


@invariant("gone-is-gone")
def gone(replay: Replay, now: Moment) -> Iterator[Finding]:
    """Who has finished, was aborted or rejected, or never arrived, is not seen in a step."""
    for id, field in now.strangers:
        yield id, f"is in {field!r}, but {replay.left.get(id, 'is not in the system')}"


@invariant("conservation")
def conservation(replay: Replay, now: Moment) -> Iterator[Finding]:
    """Every request that arrived is waiting, running or gone: the queues that a log shows hold
    exactly those that it tells of, in order."""
    for name, shown, derived, ordered in (
        ("running", now.step.running, replay.running.values(), True),
        ("waiting", now.step.waiting, replay.waiting, replay.ordered),
    ):
        if shown is None:
            continue
        ids = [live.id for live in derived]
        if shown == ids or (not ordered and sorted(shown) == sorted(ids)):
            continue
        missing = sorted(set(ids) - set(shown))
        strange = sorted(set(shown) - set(ids))
        if missing or strange:
            parts = [f"{len(missing)} are missing ({_few(missing)})"] if missing else []
            parts += [f"{len(strange)} do not belong there ({_few(strange)})"] if strange else []
            yield (missing + strange)[0], f"{name} shows {len(shown)}: {', '.join(parts)}"
        else:
            place = next(
                (i for i, (one, other) in enumerate(zip(shown, ids, strict=False)) if one != other),
                len(ids),
            )
            expected = repr(ids[place]) if place < len(ids) else "nobody"
            yield shown[place], f"stands in {name} at place {place}; expected {expected}"


@invariant("rejected-for-a-reason")
def rejected(replay: Replay, now: Moment) -> Iterator[Finding]:
    """Who is rejected is rejected on arrival, with a reason, and could indeed not be served."""
    for live, reason, new in now.rejected:
        if not new:
            yield live.id, "is rejected, and did not arrive in this step"
        elif not reason.strip():
            yield live.id, "is rejected without a reason"
        elif not _too_large(replay, live, live.max_tokens):
            yield (
                live.id,
                f"is rejected ({reason}), but the rules can serve its prompt of "
                f"{live.prompt_tokens} and max_tokens {live.max_tokens}",
            )


@invariant("unservable-is-rejected")
def unservable(replay: Replay, now: Moment) -> Iterator[Finding]:
    """Whose prompt alone is more than a step or the memory can ever hold does not wait for ever: it
    is rejected on arrival."""
    for live in now.arrived:
        if live.id in replay.requests and (why := _too_large(replay, live, 1)):
            yield live.id, f"waits, but {why}"


def _too_large(replay: Replay, live: Live, output: int) -> str:
    """Why a request that yields so many tokens can never be served, or nothing."""
    rules, prompt = replay.rules, live.prompt_tokens
    whole = rules.prompt_budget if not rules.enable_chunked_prefill else None
    if whole is not None and prompt > whole:
        return f"its prompt of {prompt} is more than a step's {whole} tokens, and is not split"
    if rules.num_blocks is None:
        return ""
    blocks = replay.blocks_for(prompt + output - rules.unsampled)
    if blocks > rules.num_blocks:
        return f"prompt {prompt} and output {output} take {blocks} of {rules.num_blocks} blocks"
    if whole is not None and rules.preemption == "recompute" and prompt + output - 1 > whole:
        return f"preempted, it could have to prefill {prompt + output - 1} of {whole} tokens"
    return ""


# ------------------------------------------------------------------------------ the state machine


@invariant("legal-transitions")
def transitions(_: Replay, now: Moment) -> Iterator[Finding]:
    """WAITING goes to PREFILL, PREFILL to DECODE, both of these back to WAITING when preempted,
    and all to FINISHED; nothing else happens to a request."""
    for live, done, state in now.illegal:
        if done != "decoded":
            yield live.id, f"is {done} in state {state.name}"


@invariant("prefill-before-decode")
def prefill_first(_: Replay, now: Moment) -> Iterator[Finding]:
    """Nobody decodes before all its tokens so far, prompt and output, have been prefilled."""
    for live, done, state in now.illegal:
        if done == "decoded":
            yield live.id, f"decodes in {state.name}, {live.computed} of {live.target} computed"


@invariant("one-turn-a-step")
def one_turn(_: Replay, now: Moment) -> Iterator[Finding]:
    """In one step a request decodes one token, or is prefilled, or is preempted, once."""
    for id, what in now.twice:
        yield id, f"is {what} in one step"


@invariant("prefill-exact")
def prefill_exact(_: Replay, now: Moment) -> Iterator[Finding]:
    """A prefill computes each token known so far once: no chunk is empty or goes beyond prompt and
    output. So a preempted request computes again all that it had, and loses no output token."""
    for chunk in now.chunks:
        end = chunk.before + chunk.tokens
        if chunk.tokens < 1:
            yield chunk.live.id, f"prefills {chunk.tokens} tokens"
        elif end > chunk.live.target:
            yield (
                chunk.live.id,
                f"prefills {chunk.tokens} after {chunk.before}; it has {chunk.live.target} tokens",
            )


@invariant("first-token-after-prefill")
def first_token(_: Replay, now: Moment) -> Iterator[Finding]:
    """Nobody ends its output without an output token; the first is there when the prefill is done,
    or one step later, as the rules say."""
    for live, reason, _sampled in now.finished:
        if live.output < 1:
            yield live.id, f"finishes ({reason}) before its first token"


@invariant("finish-reason", always=True)
def finish_reason(_: Replay, now: Moment) -> Iterator[Finding]:
    """Who has generated max_tokens finishes with that token, for length; who finishes before, by
    stop, finishes with a token too."""
    for live in now.overdue:
        yield live.id, f"has all of its {live.max_tokens} tokens, and is not finished"
    for live, reason, sampled in now.finished:
        if reason not in ("stop", "length"):
            yield live.id, f"finishes for {reason!r}; expected 'stop' or 'length'"
        elif live.output < 1:
            continue
        elif not sampled:
            yield live.id, f"finishes ({reason}) in a step that gave it no token"
        elif reason == "length" and live.output != live.max_tokens:
            yield live.id, f"finishes for length with {live.output} of {live.max_tokens} tokens"
        elif live.output > live.max_tokens:
            yield live.id, f"stops with {live.output} of {live.max_tokens} tokens"


# ------------------------------------------------------------------------------ what a step holds


@invariant("token-budget", always=True)
def token_budget(replay: Replay, now: Moment) -> Iterator[Finding]:
    """The tokens of a step are within its budget: decode and prefill together, or each within its
    own."""
    rules = replay.rules
    if replay.decode_budget_left(now) < 0:
        shared = "" if rules.prefill_token_budget else f" and {now.prefilled} prefill tokens"
        yield (
            None,
            f"{now.decoded} decodes{shared}; max_num_batched_tokens is "
            f"{rules.max_num_batched_tokens}",
        )
    if rules.prefill_token_budget is not None and now.prefilled > rules.prefill_token_budget:
        yield (
            None,
            f"{now.prefilled} prefill tokens; prefill_token_budget is {rules.prefill_token_budget}",
        )


@invariant("max-num-seqs")
def max_num_seqs(replay: Replay, now: Moment) -> Iterator[Finding]:
    """No more than max_num_seqs requests run at once."""
    most = replay.rules.max_num_seqs
    if most is not None and now.running > most and any(chunk.admitted for chunk in now.chunks):
        yield None, f"{now.running} requests run; max_num_seqs is {most}"


@invariant("whole-prompts")
def whole_prompts(replay: Replay, now: Moment) -> Iterator[Finding]:
    """Without enable_chunked_prefill a prompt is prefilled in one step."""
    if replay.rules.enable_chunked_prefill:
        return
    for chunk in now.chunks:
        if chunk.tokens > 0 and chunk.before + chunk.tokens < chunk.live.target:
            yield (
                chunk.live.id,
                f"prefills {chunk.tokens} after {chunk.before} of its {chunk.live.target} tokens",
            )


@invariant("long-prefill-threshold")
def long_prefill(replay: Replay, now: Moment) -> Iterator[Finding]:
    """A chunk is within long_prefill_token_threshold, unless the request is alone in the system."""
    limit = replay.chunk_limit(now)
    for chunk in now.chunks:
        if chunk.tokens > limit:
            yield (
                chunk.live.id,
                f"prefills {chunk.tokens} tokens; long_prefill_token_threshold is {limit}",
            )


# ------------------------------------------------------------------------------ memory


@invariant("blocks-conserved", always=True)
def blocks(replay: Replay, now: Moment) -> Iterator[Finding]:
    """Blocks are held by running requests, for their tokens in the cache, or free: never more than
    there are, and free_blocks says how many."""
    if replay.rules.num_blocks is None:
        return
    if now.short:
        yield None, f"{now.short} more blocks are held than num_blocks, {replay.num_blocks}"
    shown = now.step.free_blocks
    if shown is None:
        return
    least, most = replay.free_least, replay.free_most
    if replay.misses(shown):
        expected = str(least) if least == most else f"from {least} to {most}"
        yield (
            None,
            f"free_blocks is {shown}; expected {expected}, as {len(replay.running)} running "
            f"requests hold {replay.held_blocks} of {replay.num_blocks}",
        )


@invariant("prefix-hits")
def prefix_hits(replay: Replay, now: Moment) -> Iterator[Finding]:
    """What is found in the prefix cache is whole blocks, has been there, and leaves at least one
    token to compute."""
    rules = replay.rules
    for chunk in now.chunks:
        hit, known = chunk.cached, chunk.live.target
        if not hit:
            continue
        if not rules.enable_prefix_caching:
            yield chunk.live.id, f"hits {hit} tokens; enable_prefix_caching is false"
        elif hit < 0 or hit % rules.block_size:
            yield chunk.live.id, f"hits {hit} tokens; blocks are of {rules.block_size}"
        elif hit >= known:
            yield chunk.live.id, f"hits {hit} of its {known} tokens; the last is always computed"
        elif hit > chunk.seen:
            yield chunk.live.id, f"hits {hit} tokens; only {chunk.seen} of them were ever computed"


@invariant("room-before-admission")
def room(replay: Replay, now: Moment) -> Iterator[Finding]:
    """Who is admitted finds its blocks free first: those of its first chunk; those of its whole
    prompt with scheduler_reserve_full_isl; with preemption none also those of its output."""
    rules = replay.rules
    if rules.num_blocks is None:
        return
    for chunk in now.chunks:
        if not chunk.admitted:
            continue
        live = chunk.live
        needed = replay.blocks_for(_tokens_to_fit(rules, replay, live, chunk.before + chunk.tokens))
        needed -= chunk.cached // rules.block_size
        if needed > chunk.free:
            yield live.id, f"is admitted; it needs {needed} blocks, and {chunk.free} are free"


def _tokens_to_fit(rules: Rules, replay: Replay, live: Live, first: int) -> int:
    """For how many tokens a request must find blocks when it is admitted with its `first` ones."""
    whole = live.target if rules.scheduler_reserve_full_isl else 0
    reserved = replay.most_cached(live) if rules.preemption == "none" else 0
    return max(first, whole, reserved)


@invariant("preempted-only-when-full")
def preempted_when_full(replay: Replay, now: Moment) -> Iterator[Finding]:
    """Nobody is preempted while the running find the blocks that they need."""
    if not now.preempted:
        return
    if replay.rules.preemption == "none":
        yield now.preempted[0].id, "is preempted; preemption is none"
    elif now.wanted <= now.room:
        yield (
            now.preempted[-1].id,
            f"is preempted; the step needs {now.wanted} blocks at most, and {now.room} are free",
        )


@invariant("last-in-line-is-preempted")
def victims(replay: Replay, now: Moment) -> Iterator[Finding]:
    """Who is preempted is the one of the running that the policy would serve last."""
    if not now.preempted or not replay.ordered:
        return
    admitted = {chunk.live.id for chunk in now.chunks if chunk.admitted}
    first = min(now.preempted, key=lambda live: live.rank)
    for live in (*replay.running.values(), *(live for live, _, _ in now.finished)):
        if live.rank > first.rank and live.id not in admitted and live not in now.preempted:
            yield first.id, f"is preempted; {live.id!r}, which is behind it in line, runs on"
            return


# ------------------------------------------------------------------------------ who goes first


@invariant("admission-order")
def admission_order(_: Replay, now: Moment) -> Iterator[Finding]:
    """Who waits is admitted in the policy's order; with head_of_line skip, nobody is passed in more
    than max_skips steps."""
    for chunk in now.chunks:
        if passed := chunk.passed:
            times = f" and now passed in {passed.skips} steps" if passed.skips else ""
            yield chunk.live.id, f"is admitted before {passed.id!r}, which is ahead{times}"


@invariant("running-order")
def running_order(replay: Replay, now: Moment) -> Iterator[Finding]:
    """The running are served in the order of their admission, or decodes first, as the rules say,
    and before who waits: what the budget does not hold is left of the last."""
    shared = replay.rules.prefill_token_budget is None
    served = 0
    for live in now.decodes or ():
        if live.admitted < served:
            yield live.id, "decodes after one that was admitted later"
            return
        served = live.admitted
    latest = 0
    for chunk in now.chunks:
        if chunk.live.admitted < latest:
            yield chunk.live.id, "is prefilled after one that was admitted later"
            return
        latest = chunk.live.admitted
    if now.preempted:  # who came to its turn after the last blocks were gone had none
        return
    if now.left_out:
        oldest = now.left_out[0]
        if served > oldest.admitted:
            yield oldest.id, "is left out of the decodes, before one that was admitted later"
        elif shared and replay.rules.running_order == "decode_first" and now.chunks:
            yield oldest.id, f"is left out of the decodes, and {now.chunks[0].live.id!r} prefilled"
        elif shared and now.chunks and now.chunks[-1].live.admitted > oldest.admitted:
            last = now.chunks[-1].live.id
            yield oldest.id, f"is left out of the decodes, and {last!r}, admitted later, prefilled"
    if now.chunks and (held_up := _held_up(replay, now)):
        last_live = now.chunks[-1].live
        if last_live.admitted > held_up.admitted:
            yield held_up.id, f"could take more prefill tokens, and {last_live.id!r} got some"


def _held_up(replay: Replay, now: Moment) -> Live | None:
    """The first in PREFILL that could have taken more tokens in the step if the budget had held
    them."""
    if not replay.prefilling or not replay.rules.enable_chunked_prefill:
        return None
    limit = replay.chunk_limit(now)
    got = {chunk.live.id: chunk.tokens for chunk in now.chunks}
    return next((live for live in replay.prefilling.values() if got.get(live.id, 0) < limit), None)


@invariant("work-conserving", always=True)
def work_conserving(replay: Replay, now: Moment) -> Iterator[Finding]:
    """Nobody who could be served is left out: no decode or prefill while there is budget for it,
    and nobody waiting whose turn it is, and whom budget, max_num_seqs and free blocks hold."""
    if now.preempted or _idle(now):  # memory is full; or it is a matter of progress
        return
    if now.left_out and (left := replay.decode_budget_left(now)) > 0:
        yield now.left_out[0].id, f"is left out of the decodes, with {left} of the budget left"
    if now.settled or not (replay.prefilling or replay.waiting):
        return
    left = replay.prefill_budget_left(now)
    if left <= 0:
        return
    if held_up := _held_up(replay, now):
        yield (
            held_up.id,
            f"has {held_up.target - held_up.computed} tokens to prefill, with {left} of the budget "
            "left",
        )
    elif live := _left_waiting(replay, now, left):
        yield (
            live.id,
            f"waits with {live.target} tokens to prefill; {left} of the budget, "
            f"{now.running} running and {_blocks(now.free_planned)} would hold it",
        )


def _left_waiting(replay: Replay, now: Moment, left: int) -> Live | None:
    """Somebody waiting whose turn it was and who fits into what the step left."""
    rules = replay.rules
    if rules.max_num_seqs is not None and now.running >= rules.max_num_seqs:
        return None
    if not replay.ordered and rules.head_of_line == "block" and len(replay.waiting) > 1:
        return None  # it is not known whose turn it was
    limit = replay.chunk_limit(now)
    for live in replay.waiting:
        tokens = min(live.target, limit)
        if rules.enable_chunked_prefill:
            tokens = min(tokens, left)
        # What it would find in the prefix cache is not known: the whole prompt fits in any case.
        first = live.target if rules.enable_prefix_caching else tokens
        blocks = replay.blocks_for(_tokens_to_fit(rules, replay, live, first))
        if tokens <= left and blocks <= now.free_planned:
            return live
        if rules.head_of_line == "block" or (replay.ordered and live.skips >= rules.max_skips):
            return None
    return None


@invariant("progress", always=True)
def progress(_: Replay, now: Moment) -> Iterator[Finding]:
    """While there are requests in the system every step gives a token to somebody, computes tokens
    of somebody's prompt, or preempts somebody."""
    if _idle(now):
        yield None, f"nobody runs, of {now.in_system} in the system"


def _idle(now: Moment) -> bool:
    return bool(now.in_system) and not (now.decoded or now.chunks or now.preempted)


# ------------------------------------------------------------------------------ all of them


class Checker:
    """Holds a schedule against every invariant, a step at a time.

    Memory is in proportion to the requests in the system (with prefix caching also to the distinct
    prefixes that the log names). After a violation it believes the log and goes on.
    """

    def __init__(self, rules: Rules) -> None:
        self.replay = Replay(rules)
        checks = [(each.name, each.check) for each in INVARIANTS.values()]
        always = [each.name for each in INVARIANTS.values() if each.always]
        self._every = checks
        self._steady = [(name, check) for name, check in checks if name in always]
        self.moment: Moment | None = None
        """What the last step did."""

    def feed(self, step: Step) -> list[Violation]:
        """The violations of the next step, in the order of `INVARIANTS`."""
        now = self.moment = self.replay.advance(step)
        checks = self._steady if now.steady else self._every
        found = [
            Violation(name, step.step, id, message)
            for name, check in checks
            for id, message in check(self.replay, now)
        ]
        if step.free_blocks is not None:
            self.replay.observed(step.free_blocks)
        return found

    def end(self) -> list[Violation]:
        """The violations of a log that ends here and was to be complete: whoever has not left."""
        last = self.replay.last_step
        return [
            Violation(
                "conservation",
                last,
                live.id,
                f"the log ends, and it is in {live.state.name} with {self.replay.output(live)} of "
                f"{live.max_tokens} tokens",
            )
            for live in self.replay.requests.values()
        ]


def check_steps(
    rules: Rules, steps: Iterable[Step], *, complete: bool = True
) -> Iterator[Violation]:
    """The violations of a schedule, as it is read. `complete`: whether everybody is to be finished
    at its end."""
    checker = Checker(rules)
    for step in steps:
        yield from checker.feed(step)
    if complete:
        yield from checker.end()


def _few(ids: list[str]) -> str:
    return ", ".join(map(repr, ids[:3])) + (" …" if len(ids) > 3 else "")


def _blocks(free: int) -> str:
    return "memory without bound" if free > UNBOUNDED >> 1 else f"{free} free blocks"
