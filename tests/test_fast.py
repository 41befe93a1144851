"""The compiled engine and the reference engine give one answer, tick by tick and field by field."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from strategies import Asked, any_rules, workloads

from tokenyard import fast
from tokenyard.core import Rules, Scheduler
from tokenyard.engine.loop import SimulatedExecutor, run
from tokenyard.engine.step_time import StepTime
from tokenyard.metrics import Collector, RequestTable, RunSums
from tokenyard.workload import Workload

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
    lengths = {workload.id(i): int(n) for i, n in enumerate(workload.output_tokens)}
    collector = Collector(rules)
    requests = workload.requests(predict=rules.policy == "sjf-oracle")
    executor = SimulatedExecutor(step_time, _short(workload, lengths))
    for step in run(Scheduler(rules), requests, executor):
        collector.feed(step)
    return collector.table(), collector.sums


def _short(workload: Workload, lengths: dict[str, int]) -> dict[str, int]:
    if workload.max_tokens is None:
        return {}
    most = workload.max_tokens.tolist()
    return {id: n for (id, n), m in zip(lengths.items(), most, strict=True) if n < m}


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
