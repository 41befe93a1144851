"""The invariants: every schedule of ours and of vLLM passes, and each breach is found and named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import vllm_recordings
from hypothesis import given, note, settings
from hypothesis import strategies as st
from strategies import Asked, any_rules, workloads

from tokenyard.check import INVARIANTS, Checker, Violation, check_steps
from tokenyard.check.replay import UNBOUNDED, Replay, common_tokens
from tokenyard.core import Batch, Request, Rules, Scheduler
from tokenyard.engine.log import Arrival, LogWriter, Step, end_of, expand, header_of, read_log
from tokenyard.engine.loop import Executed, arrival, run

DOCS = Path(__file__).parent.parent / "docs" / "invariants.md"


@dataclass
class OneTick:
    """Runs every step in one tick; requests stop where they are told to."""

    rules: Rules
    lengths: dict[str, int]
    output_token: int | None = None

    def execute(self, batch: Batch) -> Executed:
        sampled = list(batch.decode)
        if self.rules.first_token == "prefill":
            sampled += [r for r, tokens in batch.prefill if tokens == r.pending_tokens]
        stopped = [r.id for r in sampled if self.lengths.get(r.id) == r.output_tokens + 1]
        if self.output_token is None:
            return Executed(1, stopped)
        return Executed(1, stopped, dict.fromkeys((r.id for r in sampled), self.output_token))


def log_of(
    rules: Rules,
    asked: list[Asked],
    *,
    snapshots: bool = False,
    output_token: int | None = None,
    share: str = "token_ids",
) -> list[Step]:
    """The log of our scheduler. `share`: how the requests tell what their prompts say."""
    executor = OneTick(rules, {each.id: each.output_tokens for each in asked}, output_token)
    requests = [_retold(each, share) for each in asked]
    return list(run(Scheduler(rules), requests, executor, snapshots=snapshots))


def _retold(asked: Asked, share: str) -> Request:
    request = asked.request()
    ids = asked.token_ids or ()
    request.token_ids = request.token_ids if share == "token_ids" else None
    if share == "prefix_group" and ids and ids[0] < 1000:
        request.prefix_group = str(ids[0])
        request.prefix_tokens = sum(1 for token in ids if token < 1000)
    elif share == "hash_ids":
        request.hash_block_size = 3
        request.hash_ids = [hash(ids[: place + 3]) for place in range(0, len(ids), 3)]
    return request


def chat_of(rules: Rules, asked: list[Asked], size: int, **options: Any) -> list[Step]:
    """A log in which every output token is 0, as are the beginnings of all prompts, so that output
    is found again; as a recorder tells it: an id for each part of `size` tokens that is whole."""
    zeros = [
        replace(each, token_ids=tuple(id if id >= 1000 else 0 for id in each.token_ids or ()))
        for each in asked
    ]
    steps = log_of(rules, zeros, output_token=0, **options)
    for number, told in enumerate(told for step in steps for told in step.arrived):
        ids, told.token_ids = told.token_ids or (), None
        whole = range(size, len(ids) + 1, size)
        told.hash_ids = tuple(hash(ids[:end]) for end in whole)
        if len(ids) % size:
            told.hash_ids += (-1000 - number,)
        told.hash_block_size = size
    return steps


def copy_of(step: Step) -> Step:
    return msgspec.json.decode(msgspec.json.encode(step), type=Step)


def names(violations: list[Violation]) -> set[str]:
    return {violation.invariant for violation in violations}


# ---------------------------------------------------------------------- what must pass


@given(
    any_rules(),
    workloads(),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, 0, 1]),
    st.sampled_from(["token_ids", "prefix_group", "hash_ids"]),
)
def test_every_schedule_of_ours_keeps_every_invariant(
    rules: Rules,
    asked: list[Asked],
    snapshots: bool,
    free_blocks: bool,
    output_token: int | None,
    share: str,
) -> None:
    steps = log_of(rules, asked, snapshots=snapshots, output_token=output_token, share=share)
    for step in steps:
        if not free_blocks:
            step.free_blocks = None
        note(str(step))
    assert list(check_steps(rules, steps)) == []


@given(any_rules(enable_prefix_caching=True), workloads(), st.booleans())
def test_a_chat_whose_output_is_not_told_keeps_every_invariant(
    rules: Rules, asked: list[Asked], by_block: bool
) -> None:
    steps = chat_of(rules, asked, rules.block_size if by_block else 1)
    for step in steps:
        note(str(step))
    assert list(check_steps(rules, steps)) == []


@given(any_rules(), workloads())
def test_a_merged_log_is_judged_as_the_steps_it_stands_for(
    tmp_path_factory: pytest.TempPathFactory, rules: Rules, asked: list[Asked]
) -> None:
    path = tmp_path_factory.getbasetemp() / "merged.jsonl"
    with LogWriter(path) as writer:
        writer.write(header_of(rules))
        for step in log_of(rules, asked):
            writer.write(step)
    one, other = Checker(rules), Checker(rules)
    for line in read_log(path)[1]:
        assert one.feed(line) == []
        for step in expand(line):
            assert other.feed(step) == []
        derived = [
            (
                replay.decodes,
                replay.held_blocks,
                [(live.id, replay.output(live)) for live in replay.running.values()],
            )
            for replay in (one.replay, other.replay)
        ]
        assert derived[0] == derived[1]
    assert one.end() == other.end() == []


@given(any_rules(enable_prefix_caching=False), workloads())
def test_what_is_derived_equals_the_scheduler_after_every_step(
    rules: Rules, asked: list[Asked]
) -> None:
    scheduler, replay = Scheduler(rules), Replay(rules)
    executor = OneTick(rules, {each.id: each.output_tokens for each in asked})
    for step in run(scheduler, [each.request() for each in asked], executor):
        replay.advance(step)
        assert [live.id for live in replay.waiting] == [r.id for r in scheduler.waiting]
        for live, request in zip(replay.running.values(), scheduler.running, strict=True):
            assert live.id == request.id
            assert live.state is request.state
            assert replay.output(live) == request.output_tokens
            if rules.num_blocks is not None:
                assert replay.held(live) == request.held
        if rules.num_blocks is not None:
            assert replay.free_least == replay.free_most == scheduler.blocks.free


def steps_of(recording: vllm_recordings.Recording) -> Iterator[Step]:
    """A recording of vLLM as lines of the log."""
    requests = vllm_recordings.requests_of(recording)
    upcoming = sorted(requests, key=lambda request: request.arrival)
    decoding: set[str] = set()
    for recorded in recording["steps"]:
        number = recorded["step"]
        step = Step(number, number, 1)
        while upcoming and upcoming[0].arrival <= number:
            step.arrived.append(arrival(upcoming.pop(0)))
        step.preempted = recorded["preempted"]
        decoding -= set(step.preempted)
        step.prefill = [(id, n) for id, n in recorded["scheduled"] if id not in decoding]
        step.cached = [(id, n) for id, n in recorded["cached"]]
        decode = [id for id, _ in recorded["scheduled"] if id in decoding]
        step.decode = decode if len(decode) < len(decoding) else None
        step.finished = [(id, "length") for id in recorded["finished"]]
        decoding = (decoding | set(recorded["sampled"])) - set(recorded["finished"])
        step.free_blocks = recorded["free_blocks"]
        step.waiting, step.running = recorded["waiting"], recorded["running"]
        yield step


RECORDINGS = sorted(vllm_recordings.FOLDER.glob("*.json.zst"))


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.split(".")[0])
def test_schedules_of_vllm_keep_every_invariant(path: Path) -> None:
    recording = vllm_recordings.load(path)
    rules = vllm_recordings.rules_of(recording)
    assert list(check_steps(rules, steps_of(recording))) == []


def test_recordings_beside_the_checkout_keep_them_too(shared_data: Path) -> None:
    recordings = sorted((shared_data / "vllm").glob("*.json"))
    if not recordings:
        pytest.skip("no recordings there")
    for path in recordings:
        recording = vllm_recordings.load(path)
        rules = vllm_recordings.rules_of(recording)
        assert list(check_steps(rules, steps_of(recording))) == [], path.name


def test_a_policy_of_somebodys_own_is_not_held_to_an_order() -> None:
    rules = Rules(policy="somewhere:LastComeFirst", max_num_batched_tokens=4, max_num_seqs=1)
    arrived = [Arrival("a", 0, 4, 1), Arrival("b", 0, 4, 1)]
    steps = [
        Step(0, 0, 1, arrived, prefill=[("b", 4)], finished=[("b", "length")]),
        Step(1, 1, 1, prefill=[("a", 4)], finished=[("a", "length")]),
    ]
    assert list(check_steps(rules, steps)) == []


def test_a_deferred_log_may_leave_gaps_and_skip_numbers() -> None:
    steps = [
        Step(3, 5, 1, [Arrival("a", 0, 4, 2)], prefill=[("a", 4)]),
        Step(9, 50, 1, finished=[("a", "length")]),
    ]
    assert list(check_steps(Rules(), steps)) == []


@pytest.mark.parametrize(
    ("one", "other", "tokens"),
    [
        ({"prefix_group": "g", "prefix_tokens": 4}, {"prefix_group": "g", "prefix_tokens": 6}, 4),
        ({"prefix_group": "g", "prefix_tokens": 4}, {"prefix_group": "h", "prefix_tokens": 6}, 0),
        ({"token_ids": (1, 2, 3)}, {"token_ids": (1, 2, 4)}, 2),
        # Prompts of 9 tokens in parts of 4: two whole ones, and one token of a third.
        ({"hash_ids": (7, 8, 1)}, {"hash_ids": (7, 9, 1)}, 4),
        ({"hash_ids": (7, 8, 1)}, {"hash_ids": (7, 8, 2)}, None),
        # Where all of one prompt is equal, its output may be too; and what is not told may be.
        (
            {"prefix_group": "g", "prefix_tokens": 9},
            {"prefix_group": "g", "prefix_tokens": 9},
            None,
        ),
        ({"token_ids": (1, 2, 3)}, {"token_ids": (1, 2)}, None),
        ({"token_ids": (1, 2, 3)}, {"hash_ids": (7,)}, None),
        ({"hash_ids": (7,)}, {"hash_ids": (8,), "hash_block_size": 16}, None),
        ({}, {"prefix_group": "g", "prefix_tokens": 4}, None),
    ],
)
def test_what_two_prompts_may_share(
    one: dict[str, Any], other: dict[str, Any], tokens: int | None
) -> None:
    parts = {"hash_block_size": 4}
    a, b = Arrival("a", 0, 9, 1, **(parts | one)), Arrival("b", 0, 9, 1, **(parts | other))
    assert common_tokens(a, b) == common_tokens(b, a) == (UNBOUNDED if tokens is None else tokens)


# ---------------------------------------------------------------------- each breach by name


@dataclass(frozen=True)
class Breach:
    """A correct log, and what to change in one of its steps to break one invariant alone."""

    invariant: str
    rules: Rules
    asked: list[Asked]
    at: int
    change: Callable[[Step], Any]
    promise: str = ""
    share: str = "token_ids"


def ask(id: str, prompt: int, output: int, arrival: int = 0, **more: Any) -> Asked:
    return Asked(id, prompt, output, arrival, output, **more)


def put(**fields: Any) -> Callable[[Step], None]:
    def change(step: Step) -> None:
        for name, value in fields.items():
            setattr(step, name, value)

    return change


PLAIN = Rules(max_num_batched_tokens=8, max_num_seqs=2, num_blocks=20, block_size=4)
# Step 0: a and b prefill (3 + 5 = 8 tokens, the budget), c waits (max_num_seqs 2).
# a has its 4 tokens after step 3, b its 5 after step 4; c is prefilled in step 4.
TRIO = [ask("a", 3, 4), ask("b", 5, 5), ask("c", 6, 2)]
# Step 0: a takes 8 of its 20 tokens, step 1 8 more, step 2 the last 4 and 4 of b.
LONG = [ask("a", 20, 2), ask("b", 6, 2)]
ONE_EACH = Rules(max_num_batched_tokens=1, prefill_token_budget=8)
NO_CHUNKS = Rules(max_num_batched_tokens=8, enable_chunked_prefill=False)
CHUNKS_OF_4 = Rules(
    max_num_batched_tokens=16, long_prefill_token_threshold=4, num_blocks=5, block_size=4
)
# 5 blocks of 2: a and b (4 + 4 tokens, 4 blocks) each need another block for their first decode.
# a gets it in step 1, b is preempted.
SCARCE = Rules(max_num_batched_tokens=16, num_blocks=5, block_size=2)
CACHING = Rules(max_num_batched_tokens=16, num_blocks=20, block_size=4, enable_prefix_caching=True)
FAMILY = [
    ask("a", 9, 4, token_ids=(0,) * 8 + (1000,)),
    ask("b", 9, 4, 1, token_ids=(1,) * 8 + (2000,)),
]

BREACHES = [
    Breach(
        "clock-never-goes-back", PLAIN, TRIO, 2, put(start=1), "it starts at 1; step 1 ends at 2"
    ),
    Breach("clock-never-goes-back", PLAIN, TRIO, 2, put(step=1), "it follows step 1"),
    Breach("clock-never-goes-back", PLAIN, TRIO, 2, put(duration=-1), "it takes -1 ticks"),
    Breach(
        "arrival-before-service",
        PLAIN,
        TRIO,
        0,
        lambda step: setattr(step.arrived[2], "arrival", 7),
        "arrives at 7; the step starts at 0",
    ),
    Breach("arrives-once", PLAIN, TRIO, 1, put(arrived=[Arrival("a", 0, 3, 4)]), "already"),
    Breach(
        "arrives-once",
        PLAIN,
        TRIO,
        1,
        put(arrived=[Arrival("d", 0, 3, 0)]),
        "prompt_tokens 3 and max_tokens 0",
    ),
    Breach(
        "arrives-once",
        Rules(policy="sjf", max_num_seqs=2),
        TRIO,
        1,
        put(arrived=[Arrival("d", 0, 3, 1)]),
        "without predicted_tokens",
    ),
    Breach(
        "gone-is-gone",
        PLAIN,
        TRIO,
        4,
        lambda step: step.prefill.append(("a", 1)),
        "is in 'prefill', but it finished (stop) in step 3",
    ),
    Breach("gone-is-gone", PLAIN, TRIO, 1, put(aborted=["x"]), "but is not in the system"),
    Breach("conservation", PLAIN, TRIO, 1, put(running=["a"]), "1 are missing ('b')"),
    Breach("conservation", PLAIN, TRIO, 1, put(running=["b", "a"]), "place 0; expected 'a'"),
    Breach("conservation", PLAIN, TRIO, 1, put(waiting=["c", "z"]), "1 do not belong there ('z')"),
    Breach(
        "rejected-for-a-reason",
        PLAIN,
        TRIO,
        0,
        put(rejected=[("c", "too long")]),
        "is rejected (too long), but the rules can serve its prompt of 6 and max_tokens 2",
    ),
    Breach("rejected-for-a-reason", PLAIN, TRIO, 1, put(rejected=[("c", "late")]), "did not arr"),
    Breach(
        "unservable-is-rejected",
        PLAIN,
        TRIO,
        1,
        put(arrived=[Arrival("d", 0, 81, 1)]),
        "waits, but prompt 81 and output 1 take 21 of 20 blocks",
    ),
    Breach(
        "unservable-is-rejected",
        NO_CHUNKS,
        [ask("a", 3, 6), ask("b", 8, 1)],
        1,
        put(arrived=[Arrival("d", 0, 9, 1)]),
        "its prompt of 9 is more than a step's 8 tokens",
    ),
    Breach("legal-transitions", PLAIN, TRIO, 1, put(prefill=[("a", 1)]), "prefilled in state DEC"),
    Breach("legal-transitions", PLAIN, TRIO, 1, put(preempted=["c"]), "preempted in state WAITING"),
    Breach("legal-transitions", PLAIN, TRIO, 1, put(cached=[("a", 4)]), "found in the prefix cach"),
    Breach(
        "prefill-before-decode",
        PLAIN,
        TRIO,
        1,
        put(decode=["a", "b", "c"]),
        "decodes in WAITING, 0 of 6 computed",
    ),
    Breach("one-turn-a-step", PLAIN, TRIO, 1, put(decode=["a", "b", "a"]), "decoded twice"),
    Breach(
        "one-turn-a-step",
        PLAIN,
        LONG,
        1,
        lambda step: step.prefill.append(("a", 1)),
        "prefilled and prefilled",
    ),
    Breach(
        "one-turn-a-step",
        PLAIN,
        TRIO,
        1,
        put(decode=["a", "b"], prefill=[("a", 1)]),
        "decoded and prefilled",
    ),
    Breach(
        "prefill-exact", PLAIN, TRIO, 4, put(prefill=[("c", 7)]), "prefills 7 after 0; it has 6"
    ),
    Breach(
        "first-token-after-prefill",
        Rules(first_token="next_step"),
        TRIO,
        0,
        put(finished=[("a", "stop")]),
        "finishes (stop) before its first token",
    ),
    Breach("finish-reason", PLAIN, TRIO, 3, put(finished=[], free_blocks=None), "is not finished"),
    Breach(
        "finish-reason",
        PLAIN,
        TRIO,
        1,
        put(finished=[("a", "length")], free_blocks=None),
        "for length with 2 of 4 tokens",
    ),
    Breach("finish-reason", PLAIN, TRIO, 3, put(finished=[("a", "done")]), "finishes for 'done'"),
    Breach(
        "finish-reason",
        ONE_EACH,
        [ask("a", 3, 4), ask("b", 3, 4)],
        1,
        put(finished=[("b", "stop")]),
        "in a step that gave it no token",
    ),
    Breach(
        "token-budget", PLAIN, LONG, 0, put(prefill=[("a", 9)], free_blocks=17), "9 prefill tok"
    ),
    Breach(
        "token-budget",
        ONE_EACH,
        [ask("a", 3, 4), ask("b", 3, 4)],
        1,
        put(decode=None),
        "2 decodes; max_num_batched_tokens is 1",
    ),
    Breach("token-budget", ONE_EACH, LONG, 0, put(prefill=[("a", 9)]), "prefill_token_budget is 8"),
    Breach(
        "max-num-seqs",
        PLAIN,
        TRIO,
        1,
        put(prefill=[("c", 6)], free_blocks=15),
        "3 requests run; max_num_seqs is 2",
    ),
    Breach(
        "whole-prompts",
        NO_CHUNKS,
        [ask("a", 3, 4), ask("b", 5, 4)],
        0,
        put(prefill=[("a", 3), ("b", 4)]),
        "prefills 4 after 0 of its 5 tokens",
    ),
    Breach(
        "long-prefill-threshold",
        CHUNKS_OF_4,
        [ask("a", 9, 2), ask("b", 3, 2)],
        0,
        put(prefill=[("a", 5), ("b", 3)], free_blocks=2),
        "prefills 5 tokens; long_prefill_token_threshold is 4",
    ),
    Breach(
        "blocks-conserved",
        PLAIN,
        TRIO,
        2,
        lambda step: setattr(step, "free_blocks", step.free_blocks + 1),
        "free_blocks is 17; expected 16, as 2 running requests hold 4 of 20",
    ),
    Breach(
        "prefix-hits",
        CACHING,
        FAMILY,
        1,
        put(prefill=[("b", 5)], cached=[("b", 4)]),
        "hits 4 tokens; only 0 of them were ever computed",
        "prefix_group",
    ),
    Breach(
        "prefix-hits",
        CACHING,
        FAMILY,
        1,
        put(prefill=[("b", 6)], cached=[("b", 3)]),
        "hits 3 tokens; blocks are of 4",
    ),
    Breach(
        "prefix-hits",
        PLAIN,
        TRIO,
        4,
        put(prefill=[("c", 2)], cached=[("c", 4)]),
        "enable_prefix_caching is false",
    ),
    Breach(
        "room-before-admission",
        CHUNKS_OF_4,
        [ask("a", 12, 5), ask("b", 20, 1)],
        1,
        put(prefill=[("a", 4), ("b", 4)], free_blocks=2),
        "is admitted; it needs 5 blocks, and 3 are free",
    ),
    Breach(
        "preempted-only-when-full",
        PLAIN,
        TRIO,
        1,
        put(preempted=["b"], free_blocks=19),
        "the step needs 0 blocks at most, and 17 are free",
    ),
    Breach(
        "preempted-only-when-full",
        Rules(num_blocks=6, block_size=2),  # both hold 2 blocks, and take one each in step 1
        [ask("a", 4, 3), ask("b", 4, 3)],
        1,
        put(preempted=["b"], free_blocks=3),
        "the step needs 2 blocks at most, and 2 are free",
    ),
    Breach(
        "last-in-line-is-preempted",
        SCARCE,
        [ask("a", 4, 3), ask("b", 4, 3)],
        1,
        put(preempted=["a"]),
        "'b', which is behind it in line, runs on",
    ),
    Breach(
        "admission-order",
        PLAIN,
        TRIO,
        0,
        put(prefill=[("b", 5), ("a", 3)]),
        "is admitted before 'a', which is ahead",
    ),
    Breach(
        "running-order",
        ONE_EACH,
        [ask("a", 3, 4), ask("b", 3, 4)],
        1,
        put(decode=["b"]),
        "is left out of the decodes, before one that was admitted later",
    ),
    Breach("running-order", PLAIN, TRIO, 1, put(decode=["b", "a"]), "after one that was admitted"),
    Breach(
        "running-order",
        PLAIN,
        LONG,
        1,
        put(prefill=[("a", 4), ("b", 4)], free_blocks=16),
        "could take more prefill tokens, and 'b' got some",
    ),
    Breach(
        "running-order",
        Rules.textbook(8, enable_chunked_prefill=True),
        [ask("a", 3, 4), ask("b", 20, 4)],
        1,
        put(decode=[], prefill=[("b", 8)]),
        "is left out of the decodes, and 'b' prefilled",
    ),
    Breach("work-conserving", PLAIN, TRIO, 4, put(prefill=[], free_blocks=20), "waits with 6 tok"),
    Breach("work-conserving", PLAIN, TRIO, 1, put(decode=["a"], free_blocks=17), "7 of the budget"),
    Breach("work-conserving", PLAIN, LONG, 0, put(prefill=[("a", 7)]), "has 13 tokens to prefill"),
    Breach("progress", PLAIN, TRIO, 1, put(decode=[], free_blocks=17), "nobody runs, of 3"),
]


@pytest.mark.parametrize("breach", BREACHES, ids=lambda breach: f"{breach.invariant}-{breach.at}")
def test_a_breach_is_found_in_its_step_and_named(breach: Breach) -> None:
    steps = log_of(breach.rules, breach.asked, share=breach.share)
    assert list(check_steps(breach.rules, steps)) == []
    checker = Checker(breach.rules)
    for step in steps[: breach.at]:
        checker.feed(step)
    altered = copy_of(steps[breach.at])
    breach.change(altered)
    found = checker.feed(altered)
    assert names(found) == {breach.invariant}, "\n".join(map(str, found))
    assert {violation.step for violation in found} == {altered.step}
    assert any(breach.promise in violation.message for violation in found), found


def test_every_invariant_has_a_breach() -> None:
    assert {breach.invariant for breach in BREACHES} == set(INVARIANTS)


def test_a_log_that_ends_too_early_says_who_never_finished() -> None:
    checker = Checker(PLAIN)
    for step in log_of(PLAIN, TRIO)[:3]:
        assert checker.feed(step) == []
    assert [str(violation) for violation in checker.end()] == [
        "step 2, request 'a': conservation: the log ends, and it is in DECODE with 3 of 4 tokens",
        "step 2, request 'b': conservation: the log ends, and it is in DECODE with 3 of 5 tokens",
        "step 2, request 'c': conservation: the log ends, and it is in WAITING with 0 of 2 tokens",
    ]
    assert list(check_steps(PLAIN, log_of(PLAIN, TRIO)[:3], complete=False)) == []


def test_a_block_that_stays_lost_is_one_finding() -> None:
    steps = log_of(PLAIN, TRIO)
    for step in steps[2:]:
        assert step.free_blocks is not None
        step.free_blocks -= 1
    found = list(check_steps(PLAIN, steps))
    assert [(violation.invariant, violation.step) for violation in found] == [
        ("blocks-conserved", 2)
    ]


def test_a_request_passed_max_skips_times_is_passed_no_more() -> None:
    # Budget 4, whole prompts. "big" (4 tokens) does not fit beside a decode; each step one small
    # one passes it: in steps 1 and 2. In step 3 max_skips 2 is used up, and "d" must wait.
    rules = Rules.textbook(4, head_of_line="skip", max_skips=2)
    small = [ask(id, 1, 1, at) for id, at in (("b", 1), ("c", 2), ("d", 3))]
    steps = log_of(rules, [ask("a", 1, 9), ask("big", 4, 1), *small])
    assert [step.prefill for step in steps[:4]] == [[("a", 1)], [("b", 1)], [("c", 1)], []]
    checker = Checker(rules)
    for step in steps[:3]:
        assert checker.feed(step) == []
    altered = copy_of(steps[3])
    altered.prefill = [("d", 1)]
    assert [str(violation) for violation in checker.feed(altered)] == [
        "step 3, request 'd': admission-order: is admitted before 'big', which is ahead and now "
        "passed in 3 steps"
    ]


def test_a_preempted_request_that_recomputes_only_its_prompt_is_found() -> None:
    # b has its prompt of 4 and one output token when it is preempted: 5 tokens to compute again.
    steps = log_of(SCARCE, [ask("a", 4, 3), ask("b", 4, 3)])
    again = next(step for step in steps[2:] if step.prefill)
    assert again.prefill == [("b", 5)]
    again.prefill, again.free_blocks = [("b", 4)], None
    found = [violation for violation in check_steps(SCARCE, steps) if violation.step == again.step]
    assert names(found) == {"work-conserving"}
    assert "has 1 tokens to prefill" in found[0].message


# ---------------------------------------------------------------------- alterations at random


def alterations(replay: Replay, before: Step | None, step: Step) -> Iterator[tuple[str, Step]]:
    """Every change of one thing in a correct step that no rule allows. `replay`: the state before,
    `step`: as our scheduler made it."""
    rules = replay.rules
    calm = not step.preempted  # whoever came to its turn after the last block was gone had none
    for place, (id, tokens) in enumerate(step.prefill):
        more, less, twice, none = (copy_of(step) for _ in range(4))
        more.prefill[place] = (id, tokens + 1)
        yield f"{id} prefills one token more", more
        twice.prefill.append((id, tokens))
        yield f"{id} prefills twice", twice
        none.prefill[place] = (id, 0)
        yield f"{id} prefills nothing", none
        if calm or not rules.enable_chunked_prefill:
            less.prefill[place] = (id, tokens - 1)
            yield f"{id} prefills one token less", less
        if id in replay.prefilling and calm:
            dropped = copy_of(step)
            del dropped.prefill[place]
            yield f"{id}, in prefill, is passed over", dropped
    if rules.head_of_line == "block":
        for place in range(len(step.prefill) - 1):
            swapped = copy_of(step)
            two = swapped.prefill[place : place + 2]
            swapped.prefill[place : place + 2] = two[::-1]
            yield f"{two} swap their places", swapped
    for place, (id, reason) in enumerate(step.finished):
        renamed, kept = copy_of(step), copy_of(step)
        renamed.finished[place] = (id, "bored")
        yield f"{id} finishes for no known reason", renamed
        del kept.finished[place]
        if reason == "length":
            yield f"{id} is not finished", kept
    for id in replay.requests:
        early = copy_of(step)
        if replay.requests[id].state.value != "decode":
            early.decode = [*(step.decode or _decoding(replay, step)), id]
            yield f"{id} decodes before its prefill is done", early
        if id not in step.aborted:
            again = copy_of(step)
            again.arrived.append(replay.requests[id].asked)
            yield f"{id} arrives again", again
    if step.decode is None and calm and (decoding := _decoding(replay, step)):
        lazy = copy_of(step)
        lazy.decode = decoding[:-1]
        yield f"{decoding[-1]} gets no token", lazy
    if rules.num_blocks is not None and not rules.enable_prefix_caching and step.free_blocks:
        for change in (-1, +1):
            miscounted = copy_of(step)
            miscounted.free_blocks = step.free_blocks + change
            yield f"{change:+} free block", miscounted
    for name, value in (("start", step.start - 1), ("duration", -1)):
        back = copy_of(step)
        setattr(back, name, value)
        if name == "duration" or (before and end_of(before) == step.start):
            yield f"the clock goes back ({name})", back


def alterations_with_snapshots(step: Step) -> Iterator[tuple[str, Step]]:
    """Changes that only the snapshots of a step tell."""
    for name in ("waiting", "running"):
        shown = getattr(step, name)
        for place in range(len(shown)):
            short = copy_of(step)
            del getattr(short, name)[place]
            yield f"{shown[place]} is missing in {name}", short
        if len(shown) > 1:
            turned = copy_of(step)
            getattr(turned, name).reverse()
            yield f"{name} is reversed", turned
    for place, (id, _) in enumerate(step.finished):
        kept = copy_of(step)
        del kept.finished[place]
        yield f"{id} is not finished", kept


def _decoding(replay: Replay, step: Step) -> list[str]:
    """Who decodes in a step whose `decode` is None."""
    return [
        id
        for id, live in replay.running.items()
        if live.state.value == "decode" and id not in (*step.preempted, *step.aborted)
    ]


@settings(max_examples=300)
@given(any_rules(), workloads(), st.data())
def test_an_alteration_is_found_in_its_step(
    rules: Rules, asked: list[Asked], data: st.DataObject
) -> None:
    snapshots = data.draw(st.booleans())
    steps = log_of(rules, asked, snapshots=snapshots)
    if not steps:
        return
    at = data.draw(st.integers(0, len(steps) - 1))
    checker = Checker(rules)
    for step in steps[:at]:
        assert checker.feed(step) == []
    if snapshots:
        choices = list(alterations_with_snapshots(steps[at]))
    else:
        choices = list(alterations(checker.replay, steps[at - 1] if at else None, steps[at]))
    if not choices:
        return
    what, altered = data.draw(st.sampled_from(choices))
    note(f"{steps[at]}\n{what}\n{altered}")
    assert checker.feed(altered), what


# ---------------------------------------------------------------------- the page


def test_the_page_tells_every_invariant_by_its_sentence() -> None:
    page = DOCS.read_text(encoding="utf-8")
    sections = [section.split("\n", 1) for section in page.split("\n### ")[1:]]
    assert [name.strip("` ") for name, _ in sections] == list(INVARIANTS)
    for name, body in sections:
        sentence = " ".join(body.strip().split("\n\n")[0].split())
        assert sentence == INVARIANTS[name.strip("` ")].sentence


def test_a_prompt_that_goes_on_from_somebodys_output_may_be_found() -> None:
    # Blocks of 4. a: 6 prompt tokens (ids 11 and, of the part block, 1), 3 output tokens: 8 of its
    # 9 are cached, two full blocks. b's prompt is the conversation so far: its second block, id 12,
    # is a's last two prompt tokens and first two output tokens, which the log does not tell.
    steps = [
        Step(
            0,
            0,
            1,
            arrived=[Arrival("a", 0, 6, 3, hash_ids=(11, 1), hash_block_size=4)],
            prefill=[("a", 6)],
            free_blocks=18,
        ),
        Step(1, 1, 1, free_blocks=18),
        Step(2, 2, 1, finished=[("a", "length")], free_blocks=20),
        Step(
            3,
            3,
            1,
            arrived=[Arrival("b", 3, 10, 1, hash_ids=(11, 12, 2), hash_block_size=4)],
            prefill=[("b", 2)],
            cached=[("b", 8)],
            finished=[("b", "length")],
            free_blocks=20,
        ),
    ]
    rules = Rules.vllm(block_size=4, num_blocks=20, enable_prefix_caching=True)
    assert not list(check_steps(rules, steps))
    # But not from the output of somebody whose prompt began differently.
    steps[0].arrived[0].hash_ids = (13, 1)
    assert {violation.invariant for violation in check_steps(rules, steps)} == {"prefix-hits"}


def test_two_prompts_may_go_on_from_one_output_and_part_where_it_goes_on() -> None:
    # Blocks of 4. a: one prompt block, id 1, and 9 output tokens: 12 of its 13 are cached, of which
    # blocks two and three are output. b goes on after the second (id 2), with one of its own (3);
    # c after the third (id 4): b's prompt has told what the second holds, and nobody the third.
    def chat(id: str, at: int, ids: tuple[int, ...], hits: int) -> Step:
        asked = Arrival(id, at, 4 * len(ids), 1, hash_ids=ids, hash_block_size=4)
        prefill = [(id, 4 * len(ids) - hits)]
        finished = [(id, "length")]
        return Step(at, at, 1, [asked], [], prefill, [(id, hits)], finished=finished)

    first = chat("a", 0, (1,), 0)
    first.arrived[0].max_tokens, first.cached, first.finished = 9, [], []
    decodes = [Step(at, at, 1) for at in range(1, 8)]
    last = Step(8, 8, 1, finished=[("a", "length")])
    rules = Rules.vllm(block_size=4, enable_prefix_caching=True)
    steps = [first, *decodes, last, chat("b", 9, (1, 2, 3), 8), chat("c", 10, (1, 2, 4, 5), 12)]
    assert not list(check_steps(rules, steps))
    # a's output is over after its 13 tokens, whatever it was asked for at most.
    first.arrived[0].max_tokens, last.finished = 90, [("a", "stop")]
    assert not list(check_steps(rules, steps))
    steps[-1] = chat("c", 10, (1, 2, 4, 5, 6), 16)
    assert names(list(check_steps(rules, steps))) == {"prefix-hits"}
