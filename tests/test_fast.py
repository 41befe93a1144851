"""The compiled engine and the reference engine give one answer, tick by tick and field by field."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import Asked, any_rules, workloads
from vllm_recordings import FOLDER, load, rules_of

from tokenyard import fast
from tokenyard.core import Rules, Scheduler
from tokenyard.engine.loop import SimulatedExecutor, run
from tokenyard.engine.step_time import StepTime
from tokenyard.engine.ticks import TICKS_PER_SECOND
from tokenyard.fast import arrays, kernel
from tokenyard.metrics import Collector, Reason, RequestTable, RunSums
from tokenyard.workload import Workload, read_workload

COLUMNS = (
    "arrival",
    "admitted",
    "first_token",
    "finished",
    "prompt_tokens",
    "output_tokens",
    "reason",
    "preemptions",
    "recomputed_tokens",
    "cached_tokens",
    "largest_itl",
    "priority",
)


def workload_of(asked: list[Asked]) -> Workload:
    def column(values: list[int]) -> Any:
        return np.array(values, dtype=np.int64)

    return Workload(
        arrival=column([one.arrival for one in asked]),
        prompt_tokens=column([one.prompt_tokens for one in asked]),
        output_tokens=column([one.output_tokens for one in asked]),
        max_tokens=column([one.max_tokens for one in asked]),
        priority=column([one.priority for one in asked]),
        predicted_tokens=column([one.predicted_tokens for one in asked]),
        deadline=column([-1 if one.deadline is None else one.deadline for one in asked]),
    )


def reference(
    workload: Workload, rules: Rules, step_time: StepTime
) -> tuple[RequestTable, RunSums]:
    collector = Collector(rules)
    requests = workload.requests(predict=rules.policy == "sjf-oracle")
    executor = SimulatedExecutor(step_time, _short(workload))
    for step in run(Scheduler(rules), requests, executor):
        collector.feed(step)
    return collector.table(), collector.sums


def _short(workload: Workload) -> dict[str, int]:
    """The true length of those that end before max_tokens, by id."""
    if workload.max_tokens is None:
        return {}
    ends = zip(workload.output_tokens.tolist(), workload.max_tokens.tolist(), strict=True)
    return {workload.id(i): n for i, (n, most) in enumerate(ends) if n < most}


def hold_equal(workload: Workload, rules: Rules, step_time: StepTime) -> RequestTable:
    assert fast.unsupported(rules, workload) is None
    expected, sums = reference(workload, rules, step_time)
    table, fast_sums = fast.replay(workload, rules, step_time)
    for name in COLUMNS:
        ours, theirs = getattr(table, name), getattr(expected, name)
        different = np.nonzero(ours != theirs)[0]
        assert not len(different), (
            f"{name} of request {different[0]}: {ours[different[0]]}, reference "
            f"{theirs[different[0]]}"
        )
    assert fast_sums == sums
    return table


TIMES = st.builds(
    StepTime,
    fixed=st.integers(0, 5),
    per_prefill_token=st.integers(0, 2),
    per_attention_pair=st.integers(0, 2),
    per_decode=st.integers(0, 2),
    per_kv_token=st.integers(0, 1),
)


@given(any_rules(head_of_line="block", enable_prefix_caching=False), workloads(most=14), TIMES)
def test_both_engines_give_one_answer(
    rules: Rules, asked: list[Asked], step_time: StepTime
) -> None:
    hold_equal(workload_of(asked), rules, step_time)


# ------------------------------------------------------------------------------ larger workloads


def made(requests: int, *, seed: int, rate: float, deadlines: bool = False) -> Workload:
    """Requests like those of real logs: bursts, long prompts, some that stop early."""
    random = np.random.default_rng(seed)
    gaps = random.gamma(0.5, 2 / rate, requests)
    output = np.clip(random.lognormal(4.5, 1.0, requests), 1, 900).astype(np.int64)
    return Workload(
        arrival=np.cumsum(gaps * TICKS_PER_SECOND).astype(np.int64),
        prompt_tokens=np.clip(random.lognormal(6, 1.2, requests), 1, 6000).astype(np.int64),
        output_tokens=output,
        max_tokens=output + random.integers(0, 2, requests) * 50,
        priority=random.integers(0, 3, requests),
        predicted_tokens=output // 2,
        deadline=random.integers(0, 200, requests) * TICKS_PER_SECOND if deadlines else None,
    )


H100_LIKE = StepTime(
    fixed=700_000_000,
    per_prefill_token=3_300_000,
    per_attention_pair=110,
    per_decode=3_300_000,
    per_kv_token=4_900,
)
RULES = {
    "plain": Rules.vllm(),
    "scarce": Rules.vllm(num_blocks=1200),
    "priority, scarce": Rules.vllm(num_blocks=1200, policy="priority"),
    "sjf-oracle": Rules.vllm(policy="sjf-oracle", max_num_seqs=32),
    "reserved": Rules.vllm(num_blocks=1500, preemption="none"),
    "threshold": Rules.vllm(num_blocks=1500, long_prefill_token_threshold=256),
    "first chunk only": Rules.vllm(num_blocks=1200, scheduler_reserve_full_isl=False),
    "no chunking": Rules.vllm(max_num_batched_tokens=8192, enable_chunked_prefill=False),
    "textbook": Rules.textbook(6000),
    "own budgets": Rules.textbook(20, prefill_token_budget=6000),
    "no bound": Rules.vllm(max_num_batched_tokens=None, max_num_seqs=None),
}


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_a_large_workload(rules: Rules) -> None:
    table = hold_equal(made(600, seed=1, rate=6), rules, H100_LIKE)
    scarce = rules.num_blocks is not None and rules.preemption == "recompute"
    assert scarce == bool(table.preemptions.any())


def test_a_large_workload_whose_clients_give_up() -> None:
    workload = made(600, seed=2, rate=20, deadlines=True)
    table = hold_equal(workload, RULES["scarce"], H100_LIKE)
    assert (table.reason == Reason.ABORTED).any()
    assert (table.reason == Reason.STOP).any()
    assert (table.reason == Reason.LENGTH).any()


@pytest.mark.parametrize("name", ["azure_conv.csv", "azure_code.csv"])
@pytest.mark.parametrize("rules", [RULES["plain"], RULES["scarce"]], ids=["plain", "scarce"])
def test_real_traces(shared_data: Path, name: str, rules: Rules) -> None:
    if not (shared_data / name).exists():
        pytest.skip(f"no {name} there")
    hold_equal(read_workload(shared_data / name), rules, H100_LIKE)


def test_the_mooncake_trace_without_its_prefixes(shared_data: Path) -> None:
    path = shared_data / "mooncake_conversation.jsonl"
    if not path.exists():
        pytest.skip(f"no {path.name} there")
    workload = read_workload(path, limit=800)
    hold_equal(workload, Rules.vllm(num_blocks=8000, max_num_batched_tokens=8192), H100_LIKE)


RECORDINGS = [path for path in sorted(FOLDER.glob("*.zst")) if "prefix" not in path.name]


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.split(".")[0])
def test_the_kinds_that_were_recorded_from_vllm(path: Path) -> None:
    recording = load(path)
    if recording["config"].get("enable_prefix_caching"):
        pytest.skip("prefix caching is the reference engine's")
    asked = [
        Asked(
            one["id"],
            one["prompt_tokens"],
            one["max_tokens"],
            one["arrival_step"],
            one["max_tokens"],
            one.get("priority", 0),
        )
        for one in recording["requests"]
    ]
    hold_equal(workload_of(asked), rules_of(recording), StepTime(fixed=1))


# ------------------------------------------------------------------------------ what steps did


@given(any_rules(head_of_line="block", enable_prefix_caching=False), workloads(), TIMES)
def test_the_steps_are_those_of_the_reference(
    rules: Rules, asked: list[Asked], step_time: StepTime
) -> None:
    workload = workload_of(asked)
    scheduler = Scheduler(rules)
    executor = SimulatedExecutor(step_time, _short(workload))
    requests = workload.requests(predict=rules.policy == "sjf-oracle")
    expected = [
        (
            step.start,
            step.duration,
            sum(tokens for _, tokens in step.prefill),
            (len(step.waiting or ()), len(step.running or ()), step.free_blocks or 0),
        )
        for step in run(scheduler, requests, executor, snapshots=True)
        if step.duration
    ]
    told = fast.StepColumns()
    fast.replay(workload, rules, step_time, steps=told)
    columns = told.columns()
    place = 0
    for line in zip(*(columns[name].tolist() for name in told.FIELDS), strict=True):
        _, start, repeat, duration, growth, prefill, _, *after = line
        for i in range(repeat):
            if duration == 0:  # a step of no time is told by one engine as it pleases
                duration += growth
                continue
            assert expected[place][:3] == (start, duration, prefill)
            if i == repeat - 1:  # the queues are those after the line's last step
                assert expected[place][3] == tuple(after)
            start += duration
            duration += growth
            place += 1
    assert place == len(expected)


def test_steps_are_numbered_on_over_pauses() -> None:
    # Each request is gone long before the next one comes.
    told = fast.StepColumns()
    asked = [Asked(f"r{i}", 5, 4, 1000 * i, 4) for i in range(3)]
    _, sums = fast.replay(workload_of(asked), Rules.vllm(), StepTime(fixed=1), steps=told)
    columns = told.columns()
    assert columns["step"].tolist() == [0, *np.cumsum(columns["repeat"])[:-1]]
    assert sums.steps == columns["repeat"].sum() == 3 * 4


def test_steps_can_be_sampled() -> None:
    workload, rules = made(300, seed=5, rate=6), RULES["scarce"]
    every, some = fast.StepColumns(), fast.StepColumns(every=7)
    fast.replay(workload, rules, H100_LIKE, steps=every)
    fast.replay(workload, rules, H100_LIKE, steps=some)
    for name in every.FIELDS:
        assert (every.columns()[name][6::7] == some.columns()[name]).all()


def test_many_steps_are_told_in_pieces() -> None:
    workload, rules = made(300, seed=5, rate=6), RULES["scarce"]
    whole, pieces = fast.StepColumns(), fast.StepColumns()
    fast.replay(workload, rules, H100_LIKE, steps=whole)
    lines, arrays.LINES = arrays.LINES, 10
    try:
        fast.replay(workload, rules, H100_LIKE, steps=pieces)
    finally:
        arrays.LINES = lines
    for name in whole.FIELDS:
        assert (whole.columns()[name] == pieces.columns()[name]).all()


# ------------------------------------------------------------------------------ the edges


def test_a_run_that_is_cut_short_knows_what_it_did() -> None:
    # `go_on` is asked after so many events; the reference is stopped at the same moment.
    workload, rules = made(400, seed=3, rate=6), RULES["scarce"]
    events, arrays.EVENTS = arrays.EVENTS, 700
    try:
        table, sums = fast.replay(workload, rules, H100_LIKE, go_on=lambda left: left < 100)
    finally:
        arrays.EVENTS = events
    collector = Collector(rules)
    executor = SimulatedExecutor(H100_LIKE, _short(workload))
    for step in run(Scheduler(rules), workload.requests(), executor):
        collector.feed(step)
        if collector.sums.steps == sums.steps:
            break
    assert collector.sums == sums
    expected = collector.table()
    for name in COLUMNS:
        assert (getattr(table, name) == getattr(expected, name)).all(), name
    assert (table.reason == Reason.UNFINISHED).any()


def test_a_run_beyond_the_end_of_time_is_a_clear_error() -> None:
    # 10^9 output tokens at 10^10 ticks each are 10^19 ticks: more than int64 holds.
    workload = workload_of([Asked("r0", 1, 10**9, 0, 10**9)])
    with pytest.raises(fast.ReplayError, match="2\\^62 ticks"):
        fast.replay(workload, Rules.vllm(), StepTime(fixed=10**10))


def test_a_prefill_beyond_the_end_of_time_is_a_clear_error() -> None:
    # 10^9 prompt tokens in one step are 5 * 10^17 pairs, at 100 ticks each.
    workload = workload_of([Asked("r0", 10**9, 1, 0, 1)])
    rules = Rules.vllm(max_num_batched_tokens=None)
    with pytest.raises(fast.ReplayError, match="2\\^62 ticks"):
        fast.replay(workload, rules, StepTime(fixed=1, per_attention_pair=100))


def test_only_steps_without_a_pause_are_bounded() -> None:
    # Three times 4 * 10^8 steps are more than 2^30. Each request is alone, its first token comes
    # with its one step of prefill, and a step takes one tick: it ends 4 * 10^8 ticks after arrival.
    length, every = 4 * 10**8, 5 * 10**8
    workload = workload_of([Asked(f"r{i}", 1, length, i * every, length) for i in range(3)])
    table, sums = fast.replay(workload, Rules.vllm(), StepTime(fixed=1))
    assert table.finished.tolist() == [i * every + length for i in range(3)]
    assert sums.steps == 3 * length > 2**30


def test_steps_without_a_pause_are_bounded() -> None:
    # Such requests, four of them, each of which arrives while the one before it is still there.
    length = 4 * 10**8
    workload = workload_of([Asked(f"r{i}", 1, length, i * (length - 9), length) for i in range(4)])
    with pytest.raises(fast.ReplayError, match="without a pause"):
        fast.replay(workload, Rules.vllm(), StepTime(fixed=1))


def test_falling_gaps_do_not_outgrow_their_stack() -> None:
    # One request ends in each step from step 100 on, and every one that is gone makes the next step
    # shorter: so no gap is reached by a later one, and all of them are kept.
    count = 300
    asked = [Asked(f"r{i}", 1, 100 + i, 0, 100 + i) for i in range(count)]
    arrays_gaps = arrays.GAPS
    arrays.GAPS = 4
    try:
        hold_equal(
            workload_of(asked),
            Rules.vllm(max_num_seqs=None),
            StepTime(fixed=10, per_decode=1000),
        )
    finally:
        arrays.GAPS = arrays_gaps


def test_the_first_run_is_announced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = (
        "from tokenyard import fast; from test_fast import H100_LIKE, made; "
        "from tokenyard.core import Rules; print(fast.needs_compiling()); "
        "fast.replay(made(5, seed=1, rate=1), Rules.vllm(), H100_LIKE); "
        "print(fast.needs_compiling())"
    )
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    told = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.split() == ["True", "False"]


def test_without_a_place_to_keep_it_the_engine_still_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **options: Any) -> Any:
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: function

    monkeypatch.setattr(kernel, "njit", refuse)
    assert kernel.compiled(inline=False)(len) is len


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        (Rules(enable_prefix_caching=True), "enable_prefix_caching"),
        (Rules(head_of_line="skip"), "head_of_line"),
        (Rules(policy="module:Class"), "module:Class"),
        (Rules(block_size=2**21), "block_size"),
        (Rules(policy="sjf"), "predicted_tokens"),
    ],
)
def test_what_it_leaves_to_the_reference_is_said(rules: Rules, says: str) -> None:
    workload = made(3, seed=1, rate=1)
    workload.predicted_tokens = None
    assert says in (fast.unsupported(rules, workload) or "")
