"""The state that a schedule log tells of, derived line by line.

`Replay.advance(step)` applies one line and returns the `Moment`: what the step did, and how things
stood when it did it. It believes the log and judges nothing; the invariants do that. What cannot be
applied (an unknown id, a decode of a request whose prefill is not done) is set down in the moment.

A line that says nothing but "everybody decodes" costs the same whatever the number of requests:
the steps in which all decode are counted once for all, a request's output is that counter less its
value at the request's start, and blocks are counted by the counter's value at which they are taken.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from tokenyard.core import POLICIES, Rules, State
from tokenyard.engine.log import Arrival, Step, only_decodes

UNBOUNDED = 1 << 62
_REMEMBERED = 1000


class Live:
    """A request in the system."""

    __slots__ = (
        "admitted",
        "asked",
        "base",
        "computed",
        "decodes_since",
        "held",
        "hits",
        "max_tokens",
        "output",
        "prompt_tokens",
        "rank",
        "skips",
        "state",
        "target",
    )

    def __init__(self, asked: Arrival, rank: tuple[Any, int]) -> None:
        self.asked = asked
        self.prompt_tokens = asked.prompt_tokens
        self.max_tokens = asked.max_tokens
        #: Its place in line; lower is served first.
        self.rank = rank
        self.state = State.WAITING
        #: Output tokens; while it is in DECODE, the replay's `decodes` less `base`.
        self.output = 0
        self.base = 0
        #: Tokens that a prefill has to bring into the KV cache, and has brought.
        self.target = asked.prompt_tokens
        self.computed = 0
        #: Blocks, and how many of them are hits of the prefix cache. In DECODE, with preemption
        #: recompute, `held` is not kept up: see `Replay.held`.
        self.held = 0
        self.hits = 0
        #: Number of its admission: running requests are in this order.
        self.admitted = 0
        #: Number of the line that brought it into DECODE.
        self.decodes_since = 0
        #: Steps in which a later one passed it.
        self.skips = 0

    @property
    def id(self) -> str:
        return self.asked.id


_rank = attrgetter("rank")


class Line:
    """Waiting requests by rank. The head leaves in constant time."""

    def __init__(self) -> None:
        self._line: list[Live] = []
        self._head = 0

    def __len__(self) -> int:
        return len(self._line) - self._head

    def __iter__(self) -> Iterator[Live]:
        for place in range(self._head, len(self._line)):
            yield self._line[place]

    @property
    def first(self) -> Live:
        return self._line[self._head]

    def add(self, live: Live) -> None:
        insort(self._line, live, lo=self._head, key=_rank)

    def remove(self, live: Live) -> None:
        place = bisect_left(self._line, live.rank, lo=self._head, key=_rank)
        if place > self._head:
            del self._line[place]
            return
        self._head += 1
        if self._head * 2 > len(self._line):
            del self._line[: self._head]
            self._head = 0


@dataclass(slots=True)
class Chunk:
    """Prefill tokens of one request in one step, and how things stood as they were scheduled."""

    live: Live
    tokens: int
    before: int
    """Its tokens in the KV cache before, those found in the prefix cache included."""
    cached: int
    admitted: bool
    """Whether it came from the waiting line with this chunk."""
    passed: Live | None
    """At admission: who was ahead of it in line and may not be passed, if anybody."""
    free: int
    """At admission: blocks that were free, at most."""
    seen: int = 0
    """With hits: how many of its first tokens somebody may have had in the cache."""
    output: int = 0
    """With hits: up to which of its tokens they may be somebody's output, which no log tells."""


@dataclass(slots=True)
class Moment:
    """What a line did. An absent list is empty."""

    step: Step
    previous: Step | None
    steady: bool
    """Whether it is nothing but decodes."""
    settled: bool
    """Whether the line before was so too: then who did not fit does not fit now."""
    in_system: int = 0
    """Requests in the system when the step was planned."""
    running: int = 0
    """Requests running when it was planned: in PREFILL or DECODE, those it admitted included."""
    decoded: int = 0
    """Requests that got a token by decoding."""
    decodes: list[Live] | None = None
    """Who they are, as listed; None: all in DECODE."""
    left_out: list[Live] = field(default_factory=list)
    """In DECODE, not preempted, and without a token."""
    chunks: list[Chunk] = field(default_factory=list)
    prefilled: int = 0
    """Their tokens, together."""
    arrived: list[Live] = field(default_factory=list)
    arrived_again: list[str] = field(default_factory=list)
    rejected: list[tuple[Live, str, bool]] = field(default_factory=list)
    """With the reason, and whether it arrived in this step."""
    preempted: list[Live] = field(default_factory=list)
    finished: list[tuple[Live, str, bool]] = field(default_factory=list)
    """With the reason, and whether this step gave it a token."""
    overdue: list[Live] = field(default_factory=list)
    """In the system after the step that brought their last token."""
    wanted: int = 0
    """If somebody was preempted: the blocks that the running would have taken, at most."""
    room: int = 0
    """If somebody was preempted: the blocks free before the last of them was, at least."""
    free_planned: int = UNBOUNDED
    """Blocks free once it was planned, at least."""
    short: int = 0
    """How many more blocks than there are were then held (0: none)."""
    strangers: list[tuple[str, str]] = field(default_factory=list)
    """Ids of nobody in the system, with the field they stood in."""
    illegal: list[tuple[Live, str, State]] = field(default_factory=list)
    """What was to be done to a request that its state does not allow."""
    twice: list[tuple[str, str]] = field(default_factory=list)
    """Ids that had two turns in the step, with what they were."""


class Replay:
    """The state after the lines so far."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        #: Whether the order of the line is known: not for a policy that is somebody's own class.
        self.ordered = rules.policy in POLICIES
        self.number = 0  # of the line
        self.arrivals = self.admissions = 0
        self.requests: dict[str, Live] = {}
        self.waiting = Line()
        self.running: dict[str, Live] = {}  # in order of admission
        self.prefilling: dict[str, Live] = {}
        #: Steps in which every request in DECODE got its token.
        self.decodes = 0
        self._ends: list[tuple[int, int, Live]] = []  # when a request in DECODE has max_tokens
        self._last: Step | None = None
        self._steady = False  # whether the last line was nothing but decodes
        #: The last who left, for people: id to a sentence.
        self.left: dict[str, str] = {}

        self.num_blocks = UNBOUNDED if rules.num_blocks is None else rules.num_blocks
        self._grows = rules.preemption != "none"  # whether decodes take blocks
        #: Requests in DECODE by the remainder of the counter at which they take a block.
        self._phases = [0] * rules.block_size if self._grows else []
        #: Sum of the blocks that running requests hold, and of the hits among them.
        self.held_blocks = self.hit_blocks = 0
        #: How often a block is held beyond once. Bounds: a hit block may be held by another, or may
        #: have been free. Known exactly as soon as the log says free_blocks.
        self._shared_least = self._shared_most = 0
        #: By how much the last free_blocks of the log was out of bounds.
        self._off = 0
        #: Content that was in the cache at some time: prefix group or hash id, to its tokens.
        self._content: dict[object, int] = {}
        #: Where output began that nobody tells: the named part before it, to where it ended.
        self._untold: dict[object, int] = {}

    # ------------------------------------------------------------------ what is known

    @property
    def last_step(self) -> int:
        """Number of the last step (-1: none yet)."""
        return -1 if self._last is None else self._last.step + self._last.repeat - 1

    @property
    def decoding(self) -> int:
        """How many requests are in DECODE."""
        return len(self.running) - len(self.prefilling)

    def output(self, live: Live) -> int:
        """Output tokens of a request so far."""
        return self.decodes - live.base if live.state is State.DECODE else live.output

    def held(self, live: Live) -> int:
        """Blocks that a request holds."""
        if live.state is State.DECODE and self._grows:
            return self.blocks_for(self._in_cache(live))
        return live.held

    @property
    def free_least(self) -> int:
        """Blocks that are free at least."""
        return self.num_blocks - self.held_blocks + self._shared_least

    @property
    def free_most(self) -> int:
        """Blocks that are free at most. Equal to `free_least` where nothing is shared."""
        return self.num_blocks - self.held_blocks + self._shared_most

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-tokens // self.rules.block_size)

    def most_cached(self, live: Live) -> int:
        """Tokens that a request has in the KV cache at most."""
        return live.prompt_tokens + live.max_tokens - self.rules.unsampled

    def chunk_limit(self, now: Moment) -> int:
        """Most prefill tokens of one request in the step. A request alone in the system is not
        held to long_prefill_token_threshold."""
        alone = now.in_system == 1
        return UNBOUNDED if alone else self.rules.long_prefill_token_threshold or UNBOUNDED

    def decode_budget_left(self, now: Moment) -> int:
        """Tokens of the decodes' budget that the step left."""
        if self.rules.max_num_batched_tokens is None:
            return UNBOUNDED
        shared = self.rules.prefill_token_budget is None
        return self.rules.max_num_batched_tokens - now.decoded - (now.prefilled if shared else 0)

    def prefill_budget_left(self, now: Moment) -> int:
        """Tokens of the prefills' budget that the step left."""
        if self.rules.prefill_token_budget is None:
            return self.decode_budget_left(now)
        return self.rules.prefill_token_budget - now.prefilled

    # ------------------------------------------------------------------ one line

    def advance(self, step: Step) -> Moment:
        """Apply a line of the log."""
        self.number += 1
        steady = only_decodes(step)
        now = Moment(step, self._last, steady, steady and self._steady)
        self._steady = steady
        self._last = step
        if steady:
            now.in_system = len(self.requests)
            now.running = len(self.running)
            self._decode_all(now)
            self._planned(now)
        else:
            self._arrivals(now)
            self._aborts(now)
            now.in_system = len(self.requests)
            self._preemptions(now)
            turns = self._decodes(now)
            self._prefills(now, turns)
            now.running = len(self.running)
            self._planned(now)
            self._finishes(now)
        while self._ends and self._ends[0][0] <= self.decodes:
            end, admission, live = heapq.heappop(self._ends)
            if live.state is not State.DECODE or live.admitted != admission:
                continue  # it was over, or preempted, before
            if live.base + live.max_tokens > end:
                heapq.heappush(self._ends, (live.base + live.max_tokens, admission, live))
            else:
                now.overdue.append(live)
        return now

    def misses(self, free_blocks: int) -> bool:
        """Whether a figure of the log is out of bounds, and not by as much as the last was: one
        lost block is one finding, however many steps it stays lost."""
        off = free_blocks - max(self.free_least, min(free_blocks, self.free_most))
        return off not in (0, self._off)

    def observed(self, free_blocks: int) -> None:
        """Take in how many blocks are free, which tells how many are shared."""
        self._off = free_blocks - max(self.free_least, min(free_blocks, self.free_most))
        if self.hit_blocks and not self._off:
            shared = free_blocks - self.num_blocks + self.held_blocks
            self._shared_least = self._shared_most = shared

    def _planned(self, now: Moment) -> None:
        now.free_planned = self.free_least
        now.short = max(0, -self.free_most)

    def _arrivals(self, now: Moment) -> None:
        step = now.step
        for asked in step.arrived:
            if asked.id in self.requests:
                now.arrived_again.append(asked.id)
                continue
            live = Live(asked, (self._key(asked), self.arrivals))
            self.arrivals += 1
            self.requests[live.id] = live
            self.waiting.add(live)
            now.arrived.append(live)
        new = {live.id for live in now.arrived} if step.rejected else ()
        for id, reason in step.rejected:
            if live_or_none := self._known(now, id, "rejected"):
                now.rejected.append((live_or_none, reason, id in new))
                self._leave(live_or_none, "was rejected")

    def _key(self, asked: Arrival) -> object:
        match self.rules.policy:
            case "priority":
                return (asked.priority, asked.arrival)
            case "sjf" | "sjf-oracle":
                return (asked.predicted_tokens or 0, asked.arrival)
        return 0

    def _aborts(self, now: Moment) -> None:
        for id in now.step.aborted:
            if live := self._known(now, id, "aborted"):
                self._leave(live, "was aborted")

    def _preemptions(self, now: Moment) -> None:
        step = now.step
        if not step.preempted:
            return
        now.wanted = self._wanted(now)
        largest = 0
        for id in step.preempted:
            live = self._known(now, id, "preempted")
            if live is None:
                continue
            if live.state is State.WAITING:
                if live in now.preempted:
                    now.twice.append((id, "preempted twice"))
                else:
                    now.illegal.append((live, "preempted", live.state))
                continue
            largest = max(largest, self.held(live))
            self._remember(live, live.prompt_tokens)  # it may have been given blocks a moment ago
            self._stop_running(live)
            live.target = live.prompt_tokens + live.output
            live.computed = live.hits = 0
            live.state = State.WAITING
            self.waiting.add(live)
            now.preempted.append(live)
        now.room = self.free_least - largest

    def _wanted(self, now: Moment) -> int:
        """Blocks that the running would take in the step if all had their turn, at most."""
        if not self._grows:
            return 0
        most = min(self.rules.prompt_budget or UNBOUNDED, self.chunk_limit(now))
        return self._phases[self.decodes % self.rules.block_size] + sum(
            self.blocks_for(live.computed + min(live.target - live.computed, most)) - live.held
            for live in self.prefilling.values()
        )

    def _decode_all(self, now: Moment) -> None:
        """Every request in DECODE gets a token, `repeat` times."""
        times, decoding = now.step.repeat, self.decoding
        now.decoded = decoding
        if self._grows and decoding:
            size, phases = self.rules.block_size, self._phases
            if times == 1:
                self.held_blocks += phases[self.decodes % size]
            else:
                whole, part = divmod(times, size)
                self.held_blocks += whole * decoding + sum(
                    phases[place % size] for place in range(self.decodes, self.decodes + part)
                )
        self.decodes += times

    def _decodes(self, now: Moment) -> dict[str, str]:
        """Returns who had a turn: id to what it was."""
        listed = now.step.decode
        if listed is None:
            self._decode_all(now)
            return {}
        turns: dict[str, str] = {}
        now.decodes = []
        for id in listed:
            live = self._known(now, id, "decode")
            if live is None:
                continue
            if id in turns:
                now.twice.append((id, "decoded twice"))
            elif live in now.preempted:
                now.twice.append((id, "preempted and decoded"))
            elif live.state is not State.DECODE:
                now.illegal.append((live, "decoded", live.state))
            else:
                now.decodes.append(live)
            turns[id] = "decoded"
        now.decoded = len(now.decodes)
        now.left_out = [
            live
            for live in self.running.values()
            if live.state is State.DECODE and live.id not in turns
        ]
        phase = self.decodes % self.rules.block_size
        self._count_phases(now.left_out, -1)
        if self._grows:
            self.held_blocks += self._phases[phase]
        for live in now.left_out:
            live.base += 1
        self._count_phases(now.left_out, +1)
        self.decodes += 1
        return turns

    def _prefills(self, now: Moment, turns: dict[str, str]) -> None:
        cached = dict(now.step.cached)
        admitted: dict[str, None] = {}
        last: Live | None = None
        for id, tokens in now.step.prefill:
            live = self._known(now, id, "prefill")
            if live is None:
                continue
            if id in turns:
                now.twice.append((id, f"{turns[id]} and prefilled"))
                continue
            turns[id] = "prefilled"
            if live.state is State.DECODE:
                now.illegal.append((live, "prefilled", live.state))
                continue
            if live in now.preempted:
                now.twice.append((id, "preempted and prefilled"))
            waiting = live.state is State.WAITING
            chunk = Chunk(live, tokens, live.computed, 0, waiting, None, self.free_most)
            if waiting:
                chunk.cached = chunk.before = cached.get(id, 0)
                chunk.passed = self._passed(live)
                if chunk.cached:
                    chunk.seen, chunk.output = self._seen(live, chunk.cached)
                self._admit(live, chunk.cached)
                admitted[id] = None
                if last is None or live.rank > last.rank:
                    last = live
            now.chunks.append(chunk)
            now.prefilled += tokens
            self._compute(live, max(0, tokens))
        for id in cached:
            if id not in admitted and (live := self._known(now, id, "cached")):
                now.illegal.append((live, "found in the prefix cache", live.state))
        if last and self.rules.head_of_line == "skip" and self.ordered:
            for live in self.waiting:
                if live.rank > last.rank:
                    break
                live.skips += 1

    def _passed(self, live: Live) -> Live | None:
        """Who is ahead in line and may not be passed: under head_of_line block the first, under
        skip whoever was passed max_skips times."""
        rules = self.rules
        if not self.ordered:
            return None
        for other in self.waiting:
            if other.rank >= live.rank:
                break
            if rules.head_of_line == "block" or other.skips >= rules.max_skips:
                return other
        return None

    def _admit(self, live: Live, cached: int) -> None:
        self.waiting.remove(live)
        self.admissions += 1
        live.admitted = self.admissions
        live.state = State.PREFILL
        live.skips = 0
        live.computed = max(0, cached)
        live.hits = live.computed // self.rules.block_size
        if live.hits:
            self.hit_blocks += live.hits
            shared = max((self._common(live, q) for q in self.running.values()), default=0)
            self._shared_most += min(live.hits, shared)
        live.held = live.hits
        self.held_blocks += live.hits
        self.running[live.id] = live
        self.prefilling[live.id] = live

    def _compute(self, live: Live, tokens: int) -> None:
        """Prefill tokens of a running request; it may end its prefill with them."""
        live.computed = min(live.computed + tokens, live.target)
        need = self.blocks_for(live.computed if self._grows else self.most_cached(live))
        self.held_blocks += max(0, need - live.held)
        live.held = max(need, live.held)
        self._remember(live, live.computed)
        if live.computed == live.target:
            del self.prefilling[live.id]
            live.state = State.DECODE
            live.decodes_since = self.number
            live.base = self.decodes - live.output - self.rules.unsampled
            self._count_phases([live], +1)
            heapq.heappush(self._ends, (live.base + live.max_tokens, live.admitted, live))

    def _count_phases(self, decoding: Iterable[Live], by: int) -> None:
        """Count requests among those in DECODE, by when they take a block, or no longer (-1)."""
        if self._grows:
            for live in decoding:
                self._phases[self._phase(live)] += by

    def _phase(self, live: Live) -> int:
        """The remainder of the counter at which its next token needs a new block."""
        return (live.base + self.rules.unsampled - live.prompt_tokens) % self.rules.block_size

    def _in_cache(self, live: Live) -> int:
        return live.prompt_tokens + self.decodes - live.base - self.rules.unsampled

    def _finishes(self, now: Moment) -> None:
        if not now.step.finished:
            return
        left_out = {live.id for live in now.left_out}
        for id, reason in now.step.finished:
            if live := self._known(now, id, "finished"):
                if live.state is not State.DECODE:
                    sampled = False
                elif live.decodes_since == self.number:
                    sampled = self.rules.first_token == "prefill"
                else:
                    sampled = id not in left_out
                live.output = self.output(live)
                now.finished.append((live, reason, sampled))
                self._leave(live, f"finished ({reason})")

    # ------------------------------------------------------------------ parts of a line

    def _known(self, now: Moment, id: str, field: str) -> Live | None:
        live = self.requests.get(id)
        if live is None:
            now.strangers.append((id, field))
        return live

    def _leave(self, live: Live, how: str) -> None:
        if live.state is State.WAITING:
            self.waiting.remove(live)
        else:
            self._stop_running(live)
        live.state = State.FINISHED
        del self.requests[live.id]
        self.left[live.id] = f"it {how} in step {self.last_step}"
        if len(self.left) > _REMEMBERED:
            del self.left[next(iter(self.left))]

    def _stop_running(self, live: Live) -> None:
        """Take a request out of the running, and its blocks back."""
        held = self.held(live)
        live.output = self.output(live)
        self._remember_output(live)
        del self.running[live.id]
        if live.state is State.PREFILL:
            del self.prefilling[live.id]
        else:
            self._count_phases([live], -1)
        self.held_blocks -= held
        if self.hit_blocks:
            self.hit_blocks -= live.hits
            shared = max(
                (
                    min(self._common(live, other), max(live.hits, other.hits))
                    for other in self.running.values()
                ),
                default=0,
            )
            self._shared_least = max(0, self._shared_least - min(shared, held))
            alone = len(self.running) <= 1
            self._shared_most = 0 if alone else min(self._shared_most, self.hit_blocks)
            self._shared_least = min(self._shared_least, self._shared_most)
        live.held = 0

    # ------------------------------------------------------------------ what the cache can hold

    def _common(self, one: Live, other: Live) -> int:
        """Blocks at the beginning of both that may have equal content, at most."""
        return common_tokens(one.asked, other.asked) // self.rules.block_size

    def _remember(self, live: Live, tokens: int) -> None:
        """Set down content that has been in the cache."""
        if not self.rules.enable_prefix_caching:
            return
        for key, end in _content(live.asked, tokens):
            if end > self._content.get(key, 0):
                self._content[key] = end

    def _remember_output(self, live: Live) -> None:
        """Set down how far the content of somebody who stops goes on, beyond what it told."""
        if self.rules.enable_prefix_caching and (key := _before_output(live.asked)) is not None:
            most = live.prompt_tokens + live.output
            self._untold[key] = max(most, self._untold.get(key, 0))

    def _seen(self, live: Live, hits: int) -> tuple[int, int]:
        """How many of a request's first tokens may be in the cache, as far as content is told; and
        up to which of them output may be what its hits found, as nobody tells what output says.
        Who was admitted before can find all its own."""
        if not _told(live.asked):
            return UNBOUNDED, UNBOUNDED
        told = 0
        agreed: set[object] = {_START}  # the named parts after which output, if hit, began
        for key, end in _content(live.asked, live.prompt_tokens):
            had = self._content.get(key, 0)
            told = max(told, min(had, end))
            if live.asked.prefix_group is not None:
                agreed.add(key)
            elif had < end:
                break
            elif end < hits:
                agreed.add(key)
        output = max(self._untold.get(key, 0) for key in agreed)
        for other in self.running.values():
            if _before_output(other.asked) in agreed:
                output = max(output, other.prompt_tokens + self.output(other))
        return UNBOUNDED if live.admitted else max(told, output), output


_START = "start"
"""Stands for the named part before the first."""


def _before_output(asked: Arrival) -> object:
    """The last named part of a prompt, if nothing is told of what comes after it: somebody else's
    may go on with the same. None where there is no such part."""
    if not _told(asked):
        return None
    if asked.hash_ids is not None:  # the id of a part block tells nothing of the whole one
        whole = asked.prompt_tokens // asked.hash_block_size
        return asked.hash_ids[whole - 1] if whole else _START
    return (asked.prefix_group,) if asked.prefix_tokens == asked.prompt_tokens else None


def _told(asked: Arrival) -> bool:
    """Whether content is told in a form whose parts have names. Token ids have none: what somebody
    else's output said, which the log does not tell, may be found again as a prompt."""
    return asked.token_ids is None and (
        asked.hash_ids is not None or asked.prefix_group is not None
    )


def _content(asked: Arrival, tokens: int) -> Iterable[tuple[object, int]]:
    """The named parts of a request's first tokens, each with the token at which it ends."""
    tokens = min(tokens, asked.prompt_tokens)
    if not _told(asked):
        return
    if asked.hash_ids is not None:
        size = asked.hash_block_size
        for place in range(-(-tokens // size)):
            yield asked.hash_ids[place], min((place + 1) * size, tokens)
    else:
        yield (asked.prefix_group,), min(tokens, asked.prefix_tokens)


def common_tokens(one: Arrival, other: Arrival) -> int:
    """Tokens at the beginning of two requests that may be equal, at most. What is not told may be
    equal, output included."""
    if one.token_ids is not None and other.token_ids is not None:
        return _common(one.token_ids, other.token_ids, 1)
    if one.token_ids is not None or other.token_ids is not None:
        return UNBOUNDED
    if one.hash_ids is not None and other.hash_ids is not None:
        if one.hash_block_size != other.hash_block_size:
            return UNBOUNDED
        size = one.hash_block_size
        # The id of a part block says what the prompt has there, not what the output goes on with.
        whole = min(one.prompt_tokens, other.prompt_tokens) // size
        return _common(one.hash_ids[:whole], other.hash_ids[:whole], size)
    if one.hash_ids is not None or other.hash_ids is not None:
        return UNBOUNDED
    if one.prefix_group is None or other.prefix_group is None:
        return UNBOUNDED
    if one.prefix_group != other.prefix_group:
        return 0
    shared = min(one.prefix_tokens, other.prefix_tokens)
    return UNBOUNDED if shared in (one.prompt_tokens, other.prompt_tokens) else shared


def _common(ones: tuple[int, ...], others: tuple[int, ...], size: int) -> int:
    for place, (one, other) in enumerate(zip(ones, others, strict=False)):
        if one != other:
            return place * size
    return UNBOUNDED
