"""What a scheduler of the exercise promises, whichever way its author answered the open questions.

The invariants of the schedule log hold as they are, but those that ask for more than every honest
reading of the exercise gives: these have their own form here. docs/check.md lists the readings.
`judge` is the one function that the rest of the room calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tokenyard.check.compare import Comparison
from tokenyard.check.drive import Event, ids
from tokenyard.check.invariants import INVARIANTS, Checker, Invariant, Violation
from tokenyard.check.replay import Moment, Replay
from tokenyard.check.workload import Asked, Workload
from tokenyard.core import Rules
from tokenyard.core.rules import MAX_COUNT, FirstToken
from tokenyard.engine.log import Arrival, Step
from tokenyard.engine.ticks import TICKS_PER_SECOND

MOST_SKIPS = 64
"""Steps in which a request may be passed by later ones: beyond this it starves."""

Breach = tuple[str | None, str]

PROMISES: dict[str, Invariant] = {}
"""The invariants in the form in which every honest reading keeps them, by name."""


def promise(name: str) -> Callable[[Callable[[Replay, Moment], Iterable[Breach]]], object]:
    """Put a function into the list; its docstring is the sentence."""

    def add(check: Callable[[Replay, Moment], Iterable[Breach]]) -> object:
        PROMISES[name] = Invariant(name, " ".join((check.__doc__ or "").split()), check, True)
        return check

    return add


for _name in (
    "gone-is-gone",
    "prefill-before-decode",
    "one-turn-a-step",
    "legal-transitions",
    "prefill-exact",
    "first-token-after-prefill",
):
    PROMISES[_name] = INVARIANTS[_name]


@promise("token-budget")
def capacity(replay: Replay, now: Moment) -> Iterator[Breach]:
    """The tokens of a step, one for each decode and all that are prefilled, are within the
    capacity."""
    if replay.decode_budget_left(now) < 0:
        yield (
            None,
            f"{now.decoded} decodes and {now.prefilled} prefill tokens are "
            f"{now.decoded + now.prefilled}; the capacity is {replay.rules.max_num_batched_tokens}",
        )
    elif replay.prefill_budget_left(now) < 0:
        most = replay.rules.prefill_token_budget
        yield None, f"{now.prefilled} prefill tokens; the capacity is {most}"


PROMISES["finish-reason"] = INVARIANTS["finish-reason"]


@promise("rejected-for-a-reason")
def rejected(replay: Replay, now: Moment) -> Iterator[Breach]:
    """Only a request whose prompt is more than the capacity is rejected."""
    capacity = replay.rules.prompt_budget or MAX_COUNT
    for live, reason, _ in now.rejected:
        if live.prompt_tokens <= capacity:
            yield (
                live.id,
                f"is rejected ({reason}), but its prompt of {live.prompt_tokens} fits into a step "
                f"of {capacity}",
            )


@promise("decodes-go-first")
def decodes_first(replay: Replay, now: Moment) -> Iterator[Breach]:
    """Every request in DECODE gets its token in every step: prefill has what they leave."""
    if not now.left_out:
        return
    left = replay.decode_budget_left(now)
    if now.chunks:
        yield now.left_out[0].id, f"gets no token, while {now.chunks[0].live.id!r} is prefilled"
    elif left > 0:
        yield now.left_out[0].id, f"gets no token, with {left} of the capacity left"


@promise("first-come-first-served")
def in_order(replay: Replay, now: Moment) -> Iterator[Breach]:
    """Nobody is admitted before one who came earlier and would have fitted into the step."""
    admitted = sorted((c for c in now.chunks if c.admitted), key=lambda c: c.live.rank)
    if not admitted or not replay.waiting:
        return
    capacity = replay.rules.prompt_budget or MAX_COUNT
    begun = now.decoded + sum(chunk.tokens for chunk in now.chunks if not chunk.admitted)
    for live in replay.waiting:
        later = next((chunk for chunk in admitted if chunk.live.rank > live.rank), None)
        if later is None:
            return
        before = begun + sum(c.tokens for c in admitted if c.live.rank < live.rank)
        if before + live.target <= capacity:
            yield (
                later.live.id,
                f"is admitted before {live.id!r}, which came earlier and would have fitted: "
                f"{before} + {live.target} of {capacity}",
            )
            return


@promise("nobody-starves")
def starves(replay: Replay, _: Moment) -> Iterator[Breach]:
    """Nobody is passed by later requests in more than 64 steps."""
    for live in replay.waiting:
        if live.skips > MOST_SKIPS:
            yield live.id, f"was passed by later requests in {live.skips} steps"
            return


@promise("work-conserving")
def work(replay: Replay, now: Moment) -> Iterator[Breach]:
    """No step leaves room that a prefill already begun, or the first in line with its whole prompt,
    could use."""
    left = replay.decode_budget_left(now)
    if left <= 0:
        return
    got = {chunk.live.id for chunk in now.chunks}
    for id, live in replay.prefilling.items():
        if id not in got:
            rest = live.target - live.computed
            yield (
                id,
                f"has {rest} tokens to prefill and gets none, with {left} of the capacity left",
            )
            return
    if replay.waiting and not replay.prefilling:
        first = replay.waiting.first
        if first.target <= left:
            yield (
                first.id,
                f"is first in line and waits with {first.target} prompt tokens, with {left} of the "
                "capacity left",
            )


@promise("nobody-waits-for-ever")
def for_ever(replay: Replay, now: Moment) -> Iterator[Breach]:
    """While somebody is in the system each step runs somebody; who can never run is told so."""
    if not replay.requests or now.decoded or now.chunks:
        return
    capacity = replay.rules.prompt_budget or MAX_COUNT
    waiting = list(replay.waiting)
    if waiting and (first := waiting[0]).prompt_tokens > capacity:
        yield (
            first.id,
            f"waits for ever: its prompt of {first.prompt_tokens} is more than the capacity "
            f"{capacity}, and it was neither rejected nor split",
        )
    else:
        live = waiting[0] if waiting else next(iter(replay.requests.values()))
        yield live.id, f"nobody runs, of {len(replay.requests)} in the system"


#: What cannot be told from a schedule log, because it is about the code: name to sentence.
OF_THE_CODE = {
    "imports": "The file can be imported, and an instance made of its class.",
    "raises-nothing": "No call raises an error, but add_request a ValueError for what never fits.",
    "answers-in-time": "Every call returns.",
    "within-memory": "The scheduler's process stays within its memory.",
    "process-lives": "No call ends the process.",
    "returns-what-ran": "step() returns what ran: lists of ids, or of (id, tokens), by name.",
    "has-work-is-true": "has_work() is true while a request has not finished, and false after.",
    "every-request-finishes": "Every request that was not rejected runs until it has finished.",
    "finished-leaves-queues": "Who has finished is in no queue one step later.",
    "one-queue-at-a-time": "Nobody is in the waiting queue while it runs.",
    "instances-share-nothing": "What one instance does changes nothing for another.",
    "decides-as-reference": "Each step runs what tokenyard's scheduler runs under the same rules.",
}

KINDS = {
    "exception": "raises-nothing",
    "time": "answers-in-time",
    "memory": "within-memory",
    "exit": "process-lives",
    "result": "returns-what-ran",
    "import": "imports",
}


def sentence(name: str, *, strict: bool = False) -> str:
    """What an invariant says. `strict`: in the form that the schedule log has it."""
    if name in OF_THE_CODE:
        return OF_THE_CODE[name]
    if not strict and name in PROMISES:
        return PROMISES[name].sentence
    return INVARIANTS[name].sentence


@dataclass(frozen=True)
class Reading:
    """How the open questions are read."""

    first_token: FirstToken = "next_step"
    alternating: bool = False
    """As in nano-vllm: a step is either prefill, of the capacity at most, or decode, of everybody;
    and no prompt is submitted that is larger, which its configuration rules out."""
    rules: Callable[[int], Rules] | None = None
    """Rules that somebody pinned, of a capacity: then every invariant holds in full."""
    reference: bool = False
    """Whether each decision is compared with our scheduler's."""

    def rules_of(self, capacity: int) -> Rules:
        """The rules that a step is held against."""
        if self.rules is not None:
            return self.rules(capacity)
        return Rules.textbook(
            None if self.alternating else capacity,
            prefill_token_budget=capacity if self.alternating else None,
            enable_chunked_prefill=True,  # whoever splits may, nobody must
            head_of_line="skip",  # and the same with passing
            max_skips=MAX_COUNT,
            first_token=self.first_token,
        )


@dataclass
class Finding:
    """A broken promise, and all that a person needs to understand it."""

    invariant: str
    sentence: str
    message: str
    workload: Workload
    step: int
    request: str | None = None
    kind: str | None = None
    """The known pattern of fault, if it is one."""
    steps: list[Step] = field(default_factory=list)
    """Up to the breach."""
    also: list[Violation] = field(default_factory=list)
    """Other invariants that the same step breaks."""
    traceback: list[str] = field(default_factory=list)
    expected: Step | None = None
    """What our scheduler does in that step."""
    first_token: FirstToken = "next_step"


class Judge:
    """Holds the steps of one workload against a reading."""

    def __init__(self, reading: Reading, capacity: int) -> None:
        rules = reading.rules_of(capacity)
        self.rules = rules
        self._checker: Checker | None = None
        if reading.rules is not None:
            self._checker = Checker(rules)
            self.replay = self._checker.replay
        else:
            self.replay = Replay(rules)
        self._left_out = (
            {"decodes-go-first", "work-conserving"} if reading.alternating else frozenset()
        )

    def feed(self, step: Step) -> list[Violation]:
        """The violations of a step."""
        if self._checker is not None:
            return self._checker.feed(step)
        now = self.replay.advance(step)
        return [
            Violation(each.name, step.step, id, message)
            for each in PROMISES.values()
            if each.name not in self._left_out
            for id, message in each.check(self.replay, now)
        ]


def judge(trace: Sequence[Event], workload: Workload, reading: Reading) -> Finding | None:
    """The first broken promise in what a scheduler did, or None."""
    judge = Judge(reading, workload.capacity)
    asked = {one.id: one for one in workload.requests}
    steps: list[Step] = []
    live: set[str] = set()
    done_before: set[str] = set()

    def finding(name: str, message: str, id: str | None = None) -> Finding:
        return Finding(
            name,
            sentence(name, strict=reading.rules is not None),
            message,
            workload,
            steps[-1].step if steps else 0,
            id,
            steps=steps,
            first_token=judge.rules.first_token,
        )

    reference = Comparison(judge.rules, ordered=()) if reading.reference else None
    for place, event in enumerate(trace):
        if "error" in event and "decode" not in event:
            t = event.get("t", steps[-1].step + 1 if steps else 0)
            added = [asked[id] for id, _ in event.get("added", ())]
            steps.append(Step(t, t * TICKS_PER_SECOND, TICKS_PER_SECOND, _arrivals(added)))
            return _failed(finding, event)
        step = _step(event, asked, judge.replay)
        steps.append(step)
        live.update(id for id, reason in event["added"] if reason is None)
        violations = judge.feed(step)
        if reference and (found_or_none := reference.feed(step)):
            found = finding("decides-as-reference", found_or_none[0])
            found.expected, found.also = found_or_none[1], violations
            return found
        if violations:
            first = violations[0]
            found = finding(first.invariant, first.message, first.request)
            found.also = [one for one in violations[1:] if one.invariant != first.invariant]
            return _lasting(found, trace[place:], workload, reading)
        live.difference_update(id for id, _ in step.finished)
        live.difference_update(event.get("rejected", ()))
        if "error" in event:
            return _failed(finding, event)
        if lie := _has_work(event, live, steps, trace[place + 1 :]):
            return finding(*lie)
        if queued := _queues(event.get("queues") or {}, judge.replay, done_before):
            return finding(*queued)
        done_before.update(id for id, _ in step.finished)
    if live:
        id = min(live)
        return finding("every-request-finishes", f"{id!r} has not finished", id)
    return None


def _failed(finding: Callable[[str, str], Finding], event: Event) -> Finding:
    """A call that failed."""
    where = f"{event['where']}: " if "where" in event else ""
    found = finding(KINDS[event["error"]], where + event["message"])
    found.traceback = event.get("traceback", [])
    return found


def _has_work(
    event: Event, live: set[str], steps: Sequence[Step], later: Sequence[Event]
) -> tuple[str, str, str | None] | None:
    """What has_work() says wrong: that it lies, or that it is right, and somebody is lost."""
    said = event.get("has_work")
    if said is None or said is bool(live):
        return None
    if not live:
        # It may notice in the next step; what that runs, is judged as any other.
        text = "has_work() is True, and everybody has finished"
        return None if later else ("has-work-is-true", text, None)
    id = min(live)
    text = f"has_work() is False, and {', '.join(sorted(live))} not finished"
    if any(map(_ran, later)):
        return "has-work-is-true", text, id
    begun = any(id == other for step in steps for other, _ in step.prefill)
    never = "is never run again" if begun else "is never run"
    return "every-request-finishes", f"{id!r} {never}; {text}", id


def _arrivals(added: Iterable[Asked]) -> list[Arrival]:
    return [
        Arrival(one.id, one.arrival * TICKS_PER_SECOND, one.prompt_tokens, one.output_tokens)
        for one in added
    ]


def _step(event: Event, asked: Mapping[str, Asked], replay: Replay) -> Step:
    """The event as a line of the log. A list of a step says who ran, not in which order, so each is
    put into the order of admission."""
    t = event["t"]
    order = {id: place for place, id in enumerate(replay.running)}
    arrival = {id: len(order) + place for place, id in enumerate(asked)}

    def place(id: str) -> int:
        return order.get(id, arrival.get(id, MAX_COUNT))

    rejected = [(id, reason) for id, reason in event["added"] if reason is not None]
    rejected += [(id, "in the result of step()") for id in event.get("rejected", ())]
    return Step(
        t,
        t * TICKS_PER_SECOND,
        TICKS_PER_SECOND,
        arrived=_arrivals(asked[id] for id, _ in event["added"]),
        rejected=rejected,
        decode=sorted(event.get("decode", ()), key=place),
        prefill=[
            (id, tokens)
            for id, tokens in sorted(event.get("prefill", ()), key=lambda one: place(one[0]))
        ],
        cached=[(id, tokens) for id, tokens in event.get("cached", ())],
        preempted=event.get("preempted", []),
        finished=[(id, "length") for id in event.get("finished", ())],
    )


def _lasting(
    found: Finding, rest: Sequence[Event], workload: Workload, reading: Reading
) -> Finding:
    """What is seen of the breach in the steps after it may name it better: whoever is left waiting
    and never runs is not left waiting, but lost; and if a later one runs first, order is broken."""
    id = found.request
    if found.invariant == "first-come-first-served":
        id = found.message.split("'")[1]
    elif found.invariant not in ("work-conserving", "nobody-waits-for-ever", "decodes-go-first"):
        return found
    prompt = next((one.prompt_tokens for one in workload.requests if one.id == id), 0)
    if reading.rules is not None or not 0 < prompt <= workload.capacity:
        return found
    begun = {other for step in found.steps for other, _ in step.prefill}
    run_later = [_ran(event) for event in rest]
    name = "every-request-finishes"
    if not any(id in ran for ran in run_later):
        message = f"{id!r} {'is never run again' if id in begun else 'is never run'}"
    elif found.invariant == "work-conserving" and id not in begun:
        came = [one.id for one in workload.requests]
        later = set(came[came.index(str(id)) + 1 :]) - begun
        first = next(ran for ran in run_later if id in ran or later & ran)
        if id in first:
            return found
        name, message = "first-come-first-served", f"{min(later & first)!r} is run before {id!r}"
    else:
        return found
    return replace(
        found,
        invariant=name,
        sentence=sentence(name),
        message=f"{message}; {found.message}",
        request=id,
    )


def _ran(event: Event) -> set[str]:
    return {*event.get("decode", ()), *(id for id, _ in event.get("prefill", ()))}


def _queues(
    queues: dict[str, list[str]], replay: Replay, done_before: set[str]
) -> tuple[str, str, str] | None:
    """What the exposed queues say wrong."""
    for name, entries in queues.items():
        for id in entries:
            if id in done_before and id not in replay.requests:
                return "finished-leaves-queues", f"{id!r} has finished, and is in {name!r}", id
    runs = {id for name in ("running", "decode", "decoding") for id in queues.get(name, ())}
    for name in ("waiting", "pending"):
        for id in queues.get(name, ()):
            if id in runs:
                return "one-queue-at-a-time", f"{id!r} is in {name!r}, and among the running", id
    return None


def judge_in_turn(
    traces: Sequence[Sequence[Event]], workload: Workload, reading: Reading
) -> Finding | None:
    """Whether instances of one scheduler disturb each other: traces alone, alone again, in turn."""
    if len(traces) < 2:
        return None
    said = [ids(trace) for trace in traces]
    titles = (
        "",
        "an instance made after the first one has finished",
        "the first of two instances that run in turn",
        "the second of two instances that run in turn",
    )
    for title, trace, other in zip(titles[1:], traces[1:], said[1:], strict=True):
        if other == said[0]:
            continue
        place = next(
            (i for i, (a, b) in enumerate(zip(said[0], other, strict=False)) if a != b),
            min(len(said[0]), len(other)),
        )
        steps: list[Step] = []
        asked = {one.id: one for one in workload.requests}
        replay = Replay(reading.rules_of(workload.capacity))
        for event in trace[: place + 1]:
            if "added" in event:
                steps.append(_step(event, asked, replay))
                replay.advance(steps[-1])
        alone = _short(traces[0][place]) if place < len(said[0]) else "has ended"
        here = _short(trace[place]) if place < len(other) else "has ended"
        name = "instances-share-nothing"
        return Finding(
            name,
            OF_THE_CODE[name],
            f"the same workload ran differently in {title}: {here}; alone: {alone}",
            replace(workload, instances=2),
            steps[-1].step if steps else 0,
            kind="state is shared between instances: a class attribute, a global, or a mutable "
            "default argument",
            steps=steps,
            first_token=reading.first_token,
        )
    return None


def _short(event: Event) -> str:
    if "error" in event:
        return str(event["message"])
    prefill = ", ".join(f"{id} {tokens}" for id, tokens in event.get("prefill", ()))
    decode = ", ".join(event.get("decode", ()))
    return f"decode {decode or 'nobody'}, prefill {prefill or 'nobody'}"
