"""The state machine by hand: small runs, each with the arithmetic that says what must happen."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pytest
from conftest import ROOT

from tokenyard.core import (
    LEGAL_TRANSITIONS,
    Batch,
    FinishReason,
    IllegalTransitionError,
    Request,
    RequestError,
    Rules,
    RulesError,
    Scheduler,
    SchedulerError,
    State,
)
from tokenyard.engine.loop import SimulatedExecutor, run
from tokenyard.engine.step_time import UNIT
from tokenyard.engine.ticks import TICKS_PER_SECOND
from tokenyard.report.steps import StepTable


def requests(*shapes: tuple[int, int], **changes: Any) -> list[Request]:
    """Requests r0, r1 … with (prompt tokens, output tokens)."""
    return [Request(f"r{i}", *shape, **changes) for i, shape in enumerate(shapes)]


def submitted(rules: Rules, asked: Iterable[Request]) -> Scheduler:
    scheduler = Scheduler(rules)
    for request in asked:
        assert scheduler.submit(request) is None
    return scheduler


def plan(batch: Batch) -> tuple[list[str], list[tuple[str, int]]]:
    return [r.id for r in batch.decode], [(r.id, tokens) for r, tokens in batch.prefill]


def plans(scheduler: Scheduler, steps: int) -> list[tuple[list[str], list[tuple[str, int]]]]:
    """What the next steps run."""
    made = []
    for _ in range(steps):
        batch = scheduler.schedule()
        made.append(plan(batch))
        if batch:
            scheduler.commit(batch)
    return made


class TestTheWorkedExample:
    """docs/state-machine.md, as it stands there."""

    page = (ROOT / "docs" / "state-machine.md").read_text()

    def tables(self) -> list[list[list[str]]]:
        blocks = re.findall(r"(?:^\|.*\n)+", self.page, flags=re.MULTILINE)
        return [
            [[cell.strip() for cell in row.strip("|\n").split("|")] for row in block.splitlines()]
            for block in blocks
        ]

    def test_each_step_is_as_worked_by_hand(self) -> None:
        _, asked, steps = self.tables()
        arrivals = [
            Request(id, int(prompt), int(output), arrival=int(at) * TICKS_PER_SECOND)
            for id, at, prompt, output in asked[2:]
        ]
        rules = Rules.textbook(8)
        table = StepTable(rules)
        for step in run(Scheduler(rules), arrivals, SimulatedExecutor(UNIT), snapshots=True):
            table.feed(step)
        names, expected = steps[0], steps[2:]
        got = [[", ".join(row[name]) for name in names] for row in table.rows]
        assert got == expected
        assert len(got) == 7

    def test_the_file_holds_the_same_requests(self) -> None:
        _, asked, _ = self.tables()
        lines = (ROOT / "examples" / "textbook.csv").read_text().splitlines()[1:]
        assert [line.split(",") for line in lines] == asked[2:]

    def test_the_table_of_transitions_is_the_one_in_the_code(self) -> None:
        # The page's four rows, by hand: W>P; P>D; P>W, D>W; W>F, P>F, D>F.
        waiting, prefill, decode, finished = State
        assert {
            waiting: {prefill, finished},
            prefill: {decode, waiting, finished},
            decode: {waiting, finished},
            finished: set(),
        } == LEGAL_TRANSITIONS


class TestTheFourQuestions:
    """The page's claims of what a rule does to its example."""

    def example(self, **changes: Any) -> dict[int, tuple[list[str], list[tuple[str, int]]]]:
        rules = Rules.textbook(**({"capacity": 8} | changes))
        shapes = {"A": (3, 3), "B": (4, 2), "C": (7, 1), "D": (2, 2), "E": (9, 1), "F": (5, 1)}
        at = {"A": 0, "B": 0, "C": 1, "D": 1, "E": 2, "F": 4}
        arrivals = [
            Request(id, *shape, arrival=at[id] * TICKS_PER_SECOND) for id, shape in shapes.items()
        ]
        self.rejected: list[str] = []
        made = {}
        for step in run(Scheduler(rules), arrivals, SimulatedExecutor(UNIT)):
            made[step.step] = (step.decode or [], step.prefill)
            self.rejected += [id for id, _ in step.rejected]
        return made

    def test_capacity_in_requests(self) -> None:
        # Two may run. A and B from step 0; B is gone after step 2, so C joins in step 3.
        steps = self.example(capacity=None, max_num_seqs=2)
        assert not self.rejected
        assert [id for id, _ in steps[0][1]] == ["A", "B"]
        assert steps[1][1] == steps[2][1] == []
        assert steps[3][1] == [("C", 7)]

    def test_a_budget_of_its_own_for_prefill(self) -> None:
        # 8 prefill tokens beside the decodes of step 1: C takes 7, one is left, D needs 2.
        assert self.example(prefill_token_budget=8)[1][1] == [("C", 7)]

    def test_a_smaller_request_may_pass(self) -> None:
        # Step 1: 6 are left after two decodes. C needs 7; D needs 2 and passes.
        assert self.example(head_of_line="skip")[1][1] == [("D", 2)]

    def test_a_prompt_may_be_split(self) -> None:
        # Step 1: 6 are left after two decodes, C begins with 6 of its 7.
        assert self.example(enable_chunked_prefill=True)[1][1] == [("C", 6)]
        assert not self.rejected

    def test_the_first_token_with_the_prefill(self) -> None:
        # A has its tokens after steps 0, 1, 2, so it is not in step 3.
        steps = self.example(first_token="prefill")
        assert steps[3] == ([], [("D", 2)])


class TestOneStep:
    def test_decodes_come_first_and_prefill_gets_what_is_left(self) -> None:
        # Capacity 5: r0 prefills 3, r1 needs 4 > 2. Then r0 decodes (1), r1 fits into 4.
        scheduler = submitted(Rules.textbook(5), requests((3, 2), (4, 1)))
        assert plans(scheduler, 2) == [([], [("r0", 3)]), (["r0"], [("r1", 4)])]

    def test_a_prompt_that_fits_exactly_joins(self) -> None:
        scheduler = submitted(Rules.textbook(7), requests((3, 1), (4, 1)))
        assert plans(scheduler, 1) == [([], [("r0", 3), ("r1", 4)])]

    def test_one_token_too_many_does_not_join(self) -> None:
        scheduler = submitted(Rules.textbook(6), requests((3, 1), (4, 1)))
        assert plans(scheduler, 1) == [([], [("r0", 3)])]

    def test_a_request_decodes_from_the_step_after_its_prefill(self) -> None:
        scheduler = submitted(Rules.textbook(8), requests((3, 1)))
        assert plans(scheduler, 3) == [([], [("r0", 3)]), (["r0"], []), ([], [])]

    def test_who_is_done_is_gone_before_the_next_step(self) -> None:
        scheduler = submitted(Rules.textbook(8), requests((3, 1)))
        scheduler.commit(scheduler.schedule())
        done = scheduler.commit(scheduler.schedule())
        assert [r.id for r in done] == ["r0"]
        assert (done[0].state, done[0].finish_reason) == (State.FINISHED, FinishReason.LENGTH)
        assert not scheduler.running
        assert not scheduler.requests
        assert not len(scheduler.waiting)

    def test_more_decodes_than_the_budget_keep_their_place(self) -> None:
        # Prefill has its own budget of 12, so all four decode at once; decodes have 3. The oldest
        # three get their two tokens in steps 1 and 2, r3 gets its two in steps 3 and 4.
        rules = Rules.textbook(3, prefill_token_budget=12)
        scheduler = submitted(rules, requests((3, 2), (3, 2), (3, 2), (3, 2)))
        decodes = [decode for decode, _ in plans(scheduler, 6)]
        assert decodes == [[], ["r0", "r1", "r2"], ["r0", "r1", "r2"], ["r3"], ["r3"], []]

    def test_budget_one_runs_everybody_in_turn(self) -> None:
        # Chunked: r0 prefills 2 steps, decodes 1; then r1 (prompt 1) prefills and decodes.
        rules = Rules.textbook(1, enable_chunked_prefill=True)
        scheduler = submitted(rules, requests((2, 1), (1, 1)))
        assert plans(scheduler, 6) == [
            ([], [("r0", 1)]),
            ([], [("r0", 1)]),
            (["r0"], []),
            ([], [("r1", 1)]),
            (["r1"], []),
            ([], []),
        ]

    def test_begun_prefills_come_before_new_ones(self) -> None:
        rules = Rules.textbook(4, enable_chunked_prefill=True)
        scheduler = submitted(rules, requests((6, 1), (3, 1)))
        assert plans(scheduler, 2) == [([], [("r0", 4)]), ([], [("r0", 2), ("r1", 2)])]

    @pytest.mark.parametrize(("order", "decoded"), [("decode_first", ["r1"]), ("admission", [])])
    def test_the_running_order_says_who_comes_first(self, order: str, decoded: list[str]) -> None:
        # 3 blocks of 4 tokens; a long prompt takes 2 tokens a step unless it is alone. Step 0: r0
        # is alone and takes 4 (1 block). Step 1: r0 2 (2 blocks), r1 1 (1 block): none is free.
        # Step 2: r0 2 (8 tokens, still 2 blocks), r1 decodes. Step 3: r0's ninth token needs a
        # third block, and r0 is last in the policy's order: it gives up its own blocks, and vLLM's
        # walk over the running ends there. With decode_first r1 has had its token by then.
        rules = Rules(
            max_num_batched_tokens=4,
            long_prefill_token_threshold=2,
            policy="priority",
            running_order=order,  # type: ignore[arg-type]
            num_blocks=3,
            block_size=4,
            scheduler_reserve_full_isl=False,
        )
        scheduler = submitted(rules, [Request("r0", 9, 1, priority=1)])
        assert plans(scheduler, 1) == [([], [("r0", 4)])]
        scheduler.submit(Request("r1", 1, 9))
        assert plans(scheduler, 2) == [([], [("r0", 2), ("r1", 1)]), (["r1"], [("r0", 2)])]
        batch = scheduler.schedule()
        assert [r.id for r in batch.preempted] == ["r0"]
        assert plan(batch) == (decoded, [])

    def test_the_age_bound_stops_the_passing(self) -> None:
        # Capacity 4, one decode of r0 each step: 3 left. r1 needs 4 and is passed in steps 1 and 2,
        # then nobody passes any more: it is the next to run, though r5 would fit before.
        rules = Rules.textbook(4, head_of_line="skip", max_skips=2)
        shapes = [(1, 4), (4, 1), (2, 9), (1, 9), (1, 9)]
        scheduler = submitted(rules, requests(*shapes[:2]))
        assert plans(scheduler, 1) == [([], [("r0", 1)])]
        for number, shape in enumerate(shapes[2:], start=2):
            scheduler.submit(Request(f"r{number}", *shape))
        first, second, third = plans(scheduler, 3)
        assert first == (["r0"], [("r2", 2), ("r3", 1)])
        assert second == (["r0", "r2", "r3"], [("r4", 1)])
        assert third == (["r0", "r2", "r3", "r4"], [])
        scheduler.submit(Request("r5", 1, 1))
        ended = plans(scheduler, 12)
        prefills = [prefill for _, prefill in ended if prefill]
        assert prefills[0] == [("r1", 4)], "r5 came later and may not pass any more"


class TestPolicies:
    def order(self, policy: str, *asked: Request) -> list[str]:
        scheduler = submitted(Rules.textbook(1, policy=policy), asked)
        made = plans(scheduler, 2 * len(asked))
        return [id for _, prefill in made for id, _ in prefill]

    def test_fcfs_is_the_order_of_submission(self) -> None:
        asked = [Request("a", 1, 1, arrival=9), Request("b", 1, 1, arrival=0)]
        assert self.order("fcfs", *asked) == ["a", "b"]

    def test_priority_takes_the_lowest_first_and_ties_by_arrival(self) -> None:
        asked = [
            Request("a", 1, 1, priority=1),
            Request("b", 1, 1, priority=0, arrival=2),
            Request("c", 1, 1, priority=0, arrival=1),
        ]
        assert self.order("priority", *asked) == ["c", "b", "a"]

    def test_sjf_takes_the_shortest_prediction_first(self) -> None:
        asked = [Request("a", 1, 1, predicted_tokens=7), Request("b", 1, 1, predicted_tokens=3)]
        assert self.order("sjf", *asked) == ["b", "a"]

    def test_sjf_asks_for_a_prediction(self) -> None:
        with pytest.raises(RequestError, match=r"r0.*predicted_tokens"):
            submitted(Rules(policy="sjf"), requests((1, 1)))

    def test_a_policy_of_yours(self) -> None:
        asked = [Request("a", 2, 1), Request("b", 1, 1)]
        rules = Rules.textbook(2, policy="test_scheduler:ShortPromptFirst", max_num_seqs=1)
        scheduler = submitted(rules, asked)
        assert plans(scheduler, 1) == [([], [("b", 1)])]

    @pytest.mark.parametrize(
        ("name", "says"),
        [
            ("fifo", "fcfs, priority, sjf"),
            ("nowhere:Class", "nowhere"),
            ("test_scheduler:Nothing", "Nothing"),
            ("test_scheduler:NotAPolicy", "key"),
        ],
    )
    def test_an_unknown_policy_is_a_clear_error(self, name: str, says: str) -> None:
        with pytest.raises(RulesError, match=says):
            Scheduler(Rules(policy=name))


class ShortPromptFirst:
    def key(self, request: Request) -> int:
        return request.prompt_tokens


class NotAPolicy:
    pass


class TestTheDoor:
    @pytest.mark.parametrize(
        ("rules", "shape", "says"),
        [
            (Rules.textbook(8), (9, 1), r"9 .*max_num_batched_tokens 8.*enable_chunked_prefill"),
            (Rules.textbook(8, prefill_token_budget=4), (5, 1), "5 .*prefill_token_budget 4"),
            # 33 + 16 tokens, the last of which is never cached: 48 = 3 blocks of 16.
            (Rules(num_blocks=2), (33, 16), "33 .*16 need 3 blocks of 16.*num_blocks is 2"),
            (
                Rules(max_num_batched_tokens=10, enable_chunked_prefill=False, num_blocks=9),
                (8, 4),  # preempted at the last token it would prefill 8 + 3 = 11 > 10
                "11 tokens at once.*8.*4.*max_num_batched_tokens 10",
            ),
        ],
    )
    def test_what_can_never_run_is_rejected_with_number_and_rule(
        self, rules: Rules, shape: tuple[int, int], says: str
    ) -> None:
        request = Request("r", *shape)
        reason = Scheduler(rules).submit(request)
        assert reason is not None
        assert re.search(says, reason)
        assert request.finish_reason is FinishReason.REJECTED

    @pytest.mark.parametrize(
        ("fields", "says"),
        [
            ({"prompt_tokens": 0}, "'r'.*prompt_tokens.*got 0"),
            ({"max_tokens": 0}, "'r'.*max_tokens.*got 0"),
            ({"prompt_tokens": -3}, "prompt_tokens.*got -3"),
            ({"prompt_tokens": 10**12}, "prompt_tokens.*got 1000000000000"),
            ({"prompt_tokens": 2.5}, "prompt_tokens.*got 2.5"),
            ({"prompt_tokens": True}, "prompt_tokens.*got True"),
            ({"arrival": -1}, "arrival.*got -1"),
            ({"id": ""}, "id"),
            ({"token_ids": [1, 2]}, "2 token_ids for 4"),
            ({"hash_ids": [1, 2]}, "2 hash_ids for 4"),
            ({"prefix_tokens": 5}, "prefix_tokens.*got 5"),
            ({"deadline": -1}, "deadline.*got -1"),
            ({"predicted_tokens": -1}, "predicted_tokens.*got -1"),
        ],
    )
    def test_an_impossible_request_is_a_clear_error(
        self, fields: dict[str, Any], says: str
    ) -> None:
        with pytest.raises(RequestError, match=says):
            Request(**({"id": "r", "prompt_tokens": 4, "max_tokens": 1} | fields))

    def test_a_repeated_id_is_a_clear_error(self) -> None:
        scheduler = submitted(Rules(), requests((1, 1)))
        with pytest.raises(RequestError, match="'r0' is already in the system"):
            scheduler.submit(Request("r0", 1, 1))

    def test_a_request_is_submitted_once(self) -> None:
        request = Request("r", 1, 1)
        scheduler = submitted(Rules(), [request])
        scheduler.abort("r")
        with pytest.raises(RequestError, match="submitted before"):
            scheduler.submit(request)

    def test_aborting_nobody_is_a_clear_error(self) -> None:
        with pytest.raises(RequestError, match="'ghost' is not in the system"):
            Scheduler(Rules()).abort("ghost")


class TestTheContract:
    def test_a_batch_is_committed_before_the_next_is_planned(self) -> None:
        scheduler = submitted(Rules(), requests((1, 2)))
        scheduler.schedule()
        with pytest.raises(SchedulerError, match="not been committed"):
            scheduler.schedule()

    def test_only_the_last_batch_can_be_committed(self) -> None:
        scheduler = submitted(Rules(), requests((1, 3)))
        old = scheduler.schedule()
        scheduler.commit(old)
        scheduler.schedule()
        with pytest.raises(SchedulerError, match="last schedule"):
            scheduler.commit(old)

    def test_who_got_no_token_cannot_stop(self) -> None:
        scheduler = submitted(Rules(max_num_batched_tokens=2), requests((3, 3)))
        with pytest.raises(SchedulerError, match="'r0' stopped"):
            scheduler.commit(scheduler.schedule(), stopped=["r0"])

    def test_who_stops_is_finished_as_stop(self) -> None:
        scheduler = submitted(Rules(), requests((3, 9)))
        (done,) = scheduler.commit(scheduler.schedule(), stopped=["r0"])
        assert (done.finish_reason, done.output_tokens) == (FinishReason.STOP, 1)

    @pytest.mark.parametrize("before", list(State))
    @pytest.mark.parametrize("after", list(State))
    def test_only_the_table_is_legal(self, before: State, after: State) -> None:
        request = Request("r", 1, 1)
        request.state = before
        if after in LEGAL_TRANSITIONS[before]:
            request.move(after)
            assert request.state is after
        else:
            with pytest.raises(IllegalTransitionError, match=f"{before.name} to {after.name}"):
                request.move(after)

    def test_an_abort_between_plan_and_commit_takes_the_request_out_of_both(self) -> None:
        scheduler = submitted(Rules(num_blocks=9), requests((3, 3), (4, 3)))
        batch = scheduler.schedule()
        scheduler.abort("r0")
        assert plan(batch) == ([], [("r1", 4)])
        scheduler.commit(batch)
        assert [r.id for r in scheduler.running] == ["r1"]
        assert scheduler.blocks.free == 8


class TestRules:
    @pytest.mark.parametrize(
        ("fields", "says"),
        [
            ({"max_num_batched_tokens": 0}, "max_num_batched_tokens.*got 0"),
            ({"max_num_seqs": -1}, "max_num_seqs.*got -1"),
            ({"num_blocks": 10**12}, "num_blocks.*got 1000000000000"),
            ({"block_size": 1.5}, "block_size.*got 1.5"),
            ({"policy": ""}, "policy"),
            ({"running_order": "random"}, "running_order.*decode_first, admission.*'random'"),
            ({"enable_chunked_prefill": "yes"}, "enable_chunked_prefill.*'yes'"),
            (
                {"enable_chunked_prefill": False, "long_prefill_token_threshold": 4},
                "long_prefill_token_threshold 4",
            ),
        ],
    )
    def test_an_impossible_rule_is_a_clear_error(self, fields: dict[str, Any], says: str) -> None:
        with pytest.raises(RulesError, match=says):
            Rules(**fields)

    def test_the_textbook_is_the_exercise(self) -> None:
        assert Rules.textbook(8) == Rules(
            max_num_batched_tokens=8,
            max_num_seqs=None,
            enable_chunked_prefill=False,
            running_order="decode_first",
            preemption="none",
            first_token="next_step",
        )
