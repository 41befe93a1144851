"""The loop: time, arrivals, deadlines and executors; and every run of it holds every invariant."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import Asked, any_rules, workloads

from tokenyard.check import check_steps
from tokenyard.core import FinishReason, Request, Rules, Scheduler
from tokenyard.engine.log import Step
from tokenyard.engine.loop import Executed, SimulatedExecutor, run
from tokenyard.engine.step_time import UNIT, StepTime
from tokenyard.engine.ticks import TICKS_PER_SECOND as SECOND


def steps_of(rules: Rules, requests: Iterable[Request], **more: Any) -> list[Step]:
    return list(run(Scheduler(rules), requests, SimulatedExecutor(UNIT, **more)))


def test_time_jumps_over_idle_gaps() -> None:
    # r0 takes steps 0 and 1 (prefill, decode); r1 comes at 10.5 s, and its step starts then.
    half = SECOND // 2
    requests = [Request("r0", 1, 1), Request("r1", 1, 1, arrival=21 * half)]
    steps = steps_of(Rules.textbook(4), requests)
    assert [step.start for step in steps] == [0, 2 * half, 21 * half, 23 * half]
    assert [step.step for step in steps] == [0, 1, 2, 3]


def test_who_arrives_during_a_step_is_in_the_next() -> None:
    requests = [Request("r0", 1, 2), Request("r1", 1, 1, arrival=1)]
    arrived = [[a.id for a in step.arrived] for step in steps_of(Rules.textbook(4), requests)]
    assert arrived[:2] == [["r0"], ["r1"]]


def test_who_arrives_as_a_step_is_planned_is_in_it() -> None:
    requests = [Request("r0", 1, 2), Request("r1", 1, 1, arrival=SECOND)]
    assert steps_of(Rules.textbook(4), requests)[1].prefill == [("r1", 1)]


def test_a_deadline_aborts_at_the_first_planning_at_or_after_it() -> None:
    # r0 decodes from step 1 on; 2.5 s after its arrival it is called off: step 3 begins at 3 s.
    requests = [Request("r0", 1, 9, deadline=SECOND * 5 // 2)]
    steps = steps_of(Rules.textbook(4), requests)
    assert [step.aborted for step in steps] == [[], [], [], ["r0"]]
    assert requests[0].output_tokens == 2
    assert steps[3].duration == 0, "nobody is left to run"


def test_a_deadline_of_zero_never_runs() -> None:
    (step,) = steps_of(Rules.textbook(4), [Request("r0", 1, 9, deadline=0)])
    assert (step.aborted, step.prefill) == (["r0"], [])


def test_a_request_done_in_time_is_not_aborted() -> None:
    request = Request("r0", 1, 1, deadline=SECOND * 2)
    steps_of(Rules.textbook(4), [request, Request("r1", 1, 5)])
    assert request.finish_reason is FinishReason.LENGTH


def test_a_rejection_alone_is_a_step_of_no_time() -> None:
    (step,) = steps_of(Rules.textbook(4), [Request("r0", 5, 1, arrival=7)])
    assert (step.start, step.duration, [id for id, _ in step.rejected]) == (7, 0, ["r0"])


def test_the_true_length_ends_a_request_by_stop() -> None:
    request = Request("r0", 1, 9)
    steps = steps_of(Rules(), [request], output_tokens={"r0": 3})
    assert steps[-1].finished == [("r0", "stop")]
    assert request.output_tokens == 3


def test_an_executor_of_yours_says_how_long_and_who_stops() -> None:
    class Executor:
        def execute(self, batch: Any) -> Executed:
            return Executed(5, stopped=[r.id for r in batch.decode])

    steps = list(run(Scheduler(Rules.textbook(4)), [Request("r0", 1, 9)], Executor()))
    assert [(step.duration, step.finished) for step in steps] == [(5, []), (5, [("r0", "stop")])]


TIMES = st.builds(
    StepTime,
    fixed=st.integers(0, 3),
    per_prefill_token=st.integers(0, 2),
    per_attention_pair=st.integers(0, 2),
    per_decode=st.integers(0, 2),
    per_kv_token=st.integers(0, 1),
)


@given(any_rules(), workloads(), TIMES)
def test_every_run_holds_every_invariant(
    rules: Rules, asked: list[Asked], step_time: StepTime
) -> None:
    requests = [one.request() for one in asked]
    executor = SimulatedExecutor(step_time, {one.id: one.output_tokens for one in asked})
    steps = run(Scheduler(rules), requests, executor, snapshots=True)
    assert not [str(violation) for violation in check_steps(rules, steps)]
    for request, one in zip(requests, asked, strict=True):
        if request.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
            assert request.output_tokens == one.output_tokens


class TestRealTraces:
    """Whole traces, memory plenty and scarce, with the invariants on."""

    H100_LIKE = StepTime(
        fixed=700_000_000, per_prefill_token=4_000_000, per_decode=4_000_000, per_kv_token=6_000
    )

    @pytest.mark.parametrize(
        ("name", "blocks"),
        [("azure_conv.csv", None), ("azure_conv.csv", 900), ("azure_code.csv", 900)],
    )
    def test_azure(self, shared_data: Path, name: str, blocks: int | None) -> None:
        requests = azure_requests(shared_data / name)
        self.hold(requests, Rules.vllm(num_blocks=blocks), scarce=blocks is not None)

    def test_a_twin_of_our_own(self) -> None:
        # 300 requests of 20 to 4,000 tokens, four a second.
        requests = [
            Request(
                str(i),
                20 + i * i * 7919 % 3981,
                1 + i * 613 % 400,
                arrival=i * SECOND // 4,
            )
            for i in range(300)
        ]
        self.hold(requests, Rules.vllm(num_blocks=400), scarce=True)

    def hold(self, requests: list[Request], rules: Rules, *, scarce: bool) -> None:
        steps = run(Scheduler(rules), requests, SimulatedExecutor(self.H100_LIKE))
        assert not [str(violation) for violation in check_steps(rules, steps)]
        assert all(request.finish_reason is FinishReason.LENGTH for request in requests)
        assert scarce == any(request.preemptions for request in requests)


def azure_requests(path: Path) -> list[Request]:
    """Read without our readers: the day's seconds and a fraction of seven digits."""
    if not path.exists():
        pytest.skip(f"no {path.name} there")
    requests: list[Request] = []
    first = None
    for line in path.read_text().splitlines()[1:]:
        stamp, prompt, output = line.split(",")
        hours, minutes, rest = stamp.split(" ")[1].split(":")
        seconds, fraction = rest.split(".")
        at = (int(hours) * 3600 + int(minutes) * 60 + int(seconds)) * 10**7 + int(fraction)
        first = at if first is None else first
        arrival = (at - first) * (SECOND // 10**7)
        requests.append(Request(str(len(requests)), int(prompt), int(output), arrival=arrival))
    return requests
