"""What is measured of a run equals what plain counting, token by token, finds in it."""

from __future__ import annotations

import ast
import json
import operator
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from conftest import ROOT
from hypothesis import event, given
from hypothesis import strategies as st
from strategies import Asked, any_rules, workloads

from tokenyard.core import Batch, Request, Rules, Scheduler
from tokenyard.engine.log import Arrival, Step
from tokenyard.engine.loop import Executed, SimulatedExecutor, run
from tokenyard.engine.step_time import UNIT, StepTime, batch_duration
from tokenyard.engine.ticks import TICKS_PER_SECOND
from tokenyard.metrics import (
    Collector,
    CollectorError,
    Reason,
    RequestTable,
    RunSums,
    Slo,
    SloError,
    Stats,
    parse_slo,
    summarize,
)

# ---------------------------------------------------------------------- plain counting


@dataclass
class Counted:
    """What became of a request, seen by watching the request itself and not the log."""

    request: Request
    admitted: int = -1
    tokens: list[int] = field(default_factory=list)  # the time of each
    left: int = -1
    computed: int = 0  # tokens in the KV cache after the last step
    seen: set[int] = field(default_factory=set)  # positions that have been in the KV cache
    recomputed: int = 0
    cached: int = 0

    @property
    def reason(self) -> str:
        why = self.request.finish_reason
        return why.value if why else "unfinished"

    def gaps(self) -> list[int]:
        return [after - before for before, after in zip(self.tokens, self.tokens[1:], strict=False)]

    def done(self) -> bool:
        return self.reason in ("stop", "length")

    def row(self) -> dict[str, Any]:
        return {
            "id": self.request.id,
            "arrival": self.request.arrival,
            "admitted": self.admitted,
            "first_token": self.tokens[0] if self.tokens else -1,
            "finished": -1 if self.reason == "rejected" else self.left,
            "prompt_tokens": self.request.prompt_tokens,
            "output_tokens": len(self.tokens),
            "reason": self.reason,
            "preemptions": self.request.preemptions,
            "recomputed_tokens": self.recomputed,
            "cached_tokens": self.cached,
            "largest_itl": max(self.gaps(), default=-1),
            "priority": self.request.priority,
        }


@dataclass
class Ran:
    """A step that ran a request or took time."""

    start: int
    end: int
    prefill_tokens: int
    decodes: int
    size: int
    used_blocks: int


@dataclass
class Watched:
    """A run, its log, and what was counted beside it."""

    steps: list[Step]
    requests: list[Counted]  # those that have arrived
    ran: list[Ran]


class TrueLengths:
    """Ends each output at its true length; durations by a model, or as given, round and round."""

    def __init__(self, rules: Rules, times: StepTime | list[int], asked: list[Asked]) -> None:
        self.rules, self.times = rules, times
        self.lengths = {one.id: one.output_tokens for one in asked}
        self.steps = 0

    def execute(self, batch: Batch) -> Executed:
        sampled = list(batch.decode)
        if self.rules.first_token == "prefill":
            sampled += [one for one, tokens in batch.prefill if tokens == one.pending_tokens]
        duration = (
            self.times[self.steps % len(self.times)]
            if isinstance(self.times, list)
            else batch_duration(self.times, batch)
        )
        self.steps += 1
        done = [one.id for one in sampled if one.output_tokens + 1 == self.lengths[one.id]]
        return Executed(duration, done)


def watch(
    rules: Rules, asked: list[Asked], times: StepTime | list[int], most: int | None = None
) -> Watched:
    """Run the real scheduler, at most so many steps, and count beside it."""
    executor = TrueLengths(rules, times, asked)
    counted = {one.id: Counted(one.request()) for one in asked}
    steps: list[Step] = []
    ran: list[Ran] = []
    scheduler = Scheduler(rules)
    for step in run(scheduler, [one.request for one in counted.values()], executor):
        steps.append(step)
        end = step.start + step.duration
        prefilled = dict(step.prefill)
        decodes = 0
        for id, one in counted.items():
            request = one.request
            if id in prefilled:
                if one.admitted < 0:
                    one.admitted = step.start
                chunk = range(request.computed_tokens - prefilled[id], request.computed_tokens)
                one.recomputed += len(one.seen.intersection(chunk))
            one.cached += dict(step.cached).get(id, 0)
            one.seen.update(range(request.computed_tokens))
            new = request.output_tokens - len(one.tokens)
            assert new in (0, 1)
            if new:
                one.tokens.append(end)
                decodes += id not in prefilled
            if request.finish_reason and one.left < 0:
                one.left = step.start if one.reason == "aborted" else end
        if step.prefill or decodes or step.duration:
            used = (rules.num_blocks or 0) - (scheduler.blocks.free if rules.num_blocks else 0)
            size = len(prefilled) + decodes
            ran.append(Ran(step.start, end, sum(prefilled.values()), decodes, size, used))
        if len(steps) == most:
            break
    arrived = {one.id for step in steps for one in step.arrived}
    return Watched(steps, [one for id, one in counted.items() if id in arrived], ran)


def merged(steps: Iterable[Step]) -> Iterator[Step]:
    """The same log with steps of nothing but decodes merged into lines with `repeat`."""
    line: Step | None = None
    for step in steps:
        if line and plain(line) and plain(step) and line.decode == step.decode:
            growth = step.duration - (line.duration + (line.repeat - 1) * line.duration_growth)
            lasted = line.repeat * line.duration
            lasted += line.duration_growth * line.repeat * (line.repeat - 1) // 2
            if step.start == line.start + lasted and growth == (
                line.duration_growth if line.repeat > 1 else growth
            ):
                line.repeat += 1
                line.duration_growth = growth
                line.free_blocks = step.free_blocks
                continue
        if line:
            yield line
        line = Step(**{name: getattr(step, name) for name in step.__struct_fields__})
    if line:
        yield line


def plain(step: Step) -> bool:
    changes = ("arrived", "rejected", "prefill", "cached", "preempted", "aborted", "finished")
    return not any(getattr(step, name) for name in changes)


def collect(rules: Rules, steps: Iterable[Step], *, look: bool = False) -> Collector:
    collector = Collector(rules)
    for step in steps:
        collector.feed(step)
        if look:
            collector.table()
    return collector


def rows(table: RequestTable) -> list[dict[str, Any]]:
    names = [name for name in Counted(Request("x", 1, 1)).row() if name not in ("id", "reason")]
    return [
        {"id": table.id(place), "reason": Reason(table.reason[place]).name.lower()}
        | {name: int(getattr(table, name)[place]) for name in names}
        for place in range(len(table))
    ]


def all_rules() -> st.SearchStrategy[Rules]:
    """Rules of every kind, often with little memory, or with more decodes than a step can hold."""
    scarce = st.integers(4, 14).flatmap(
        lambda blocks: any_rules(num_blocks=blocks, preemption="recompute", max_num_seqs=None)
    )
    excess = st.integers(1, 3).flatmap(
        lambda budget: any_rules(max_num_batched_tokens=budget, prefill_token_budget=12)
    )
    return st.one_of(any_rules(), scarce, excess)


def durations() -> st.SearchStrategy[StepTime | list[int]]:
    few = st.integers(0, 3)
    return st.one_of(
        st.builds(
            StepTime,
            fixed=few,
            per_prefill_token=few,
            per_attention_pair=few,
            per_decode=few,
            per_kv_token=few,
        ),
        st.lists(st.integers(0, 9), min_size=1, max_size=7),
    )


@given(all_rules(), workloads(), durations(), st.one_of(st.none(), st.integers(1, 40)))
def test_every_column_equals_what_counting_token_by_token_finds(
    rules: Rules, asked: list[Asked], times: StepTime | list[int], most: int | None
) -> None:
    watched = watch(rules, asked, times, most)
    expected = [one.row() for one in watched.requests]
    short = list(merged(watched.steps))
    assert sum(step.repeat for step in short) == len(watched.steps)
    event(f"merged: {len(short) < len(watched.steps)}")
    event(f"preempted: {any(step.preempted for step in watched.steps)}")
    event(f"excess decodes: {any(step.decode is not None for step in watched.steps)}")
    event(f"recomputed: {any(one.recomputed for one in watched.requests)}")

    whole = collect(rules, watched.steps)
    assert rows(whole.table()) == expected
    assert rows(collect(rules, watched.steps, look=True).table()) == expected
    repeated = collect(rules, short)
    assert rows(repeated.table()) == expected
    assert repeated.sums == whole.sums


@given(
    all_rules(),
    workloads(),
    durations(),
    st.one_of(st.none(), st.integers(1, 40)),
    st.fixed_dictionaries(
        {name: st.one_of(st.none(), st.integers(0, 40)) for name in ("ttft", "tpot", "itl", "e2e")}
    ),
)
def test_every_figure_of_a_summary_equals_plain_arithmetic(
    rules: Rules,
    asked: list[Asked],
    times: StepTime | list[int],
    most: int | None,
    limits: dict[str, int | None],
) -> None:
    watched = watch(rules, asked, times, most)
    requests = watched.requests
    collector = collect(rules, merged(watched.steps))
    found = summarize(collector.table(), collector.sums, Slo(**limits)).to_dict()

    def of(values: Iterable[int]) -> dict[str, Any]:
        return figures(list(values))

    done = [one for one in requests if one.done()]
    several = [one for one in done if len(one.tokens) > 1]
    tpot = {
        one.request.id: (one.tokens[-1] - one.tokens[0]) // len(one.tokens[1:]) for one in several
    }
    assert found["ttft"] == of(
        one.tokens[0] - one.request.arrival for one in requests if one.tokens
    )
    assert found["tpot"] == of(tpot.values())
    assert found["itl"] == of(max(one.gaps()) for one in requests if one.gaps())
    assert found["e2e"] == of(one.tokens[-1] - one.request.arrival for one in done)
    assert found["queueing"] == of(
        one.admitted - one.request.arrival for one in requests if one.admitted >= 0
    )

    makespan = 0
    if requests:
        left = [one.left for one in requests if one.reason != "rejected"]
        last = max([0, *left, *(step.end for step in watched.ran)])
        makespan = max(0, last - min(one.request.arrival for one in requests))

    def rate(count: int) -> float | None:
        return float(Fraction(count * TICKS_PER_SECOND, makespan)) if makespan else None

    met = 0
    for one in requests:
        times_of = {
            "ttft": one.tokens[0] - one.request.arrival if one.tokens else 0,
            "tpot": tpot.get(one.request.id, 0),
            "itl": max(one.gaps(), default=0),
            "e2e": one.left - one.request.arrival,
        }
        met += one.done() and all(
            limit is None or times_of[name] <= limit for name, limit in limits.items()
        )
    output_tokens = sum(len(one.tokens) for one in requests)
    assert found["goodput"]["met"] == met
    assert found["goodput"]["share"] == (met / len(requests) if requests else None)
    assert found["goodput"]["requests_per_second"] == rate(met)
    assert found["requests_per_second"] == rate(sum(one.done() for one in requests))
    assert found["output_tokens_per_second"] == rate(output_tokens)
    assert found["makespan"] == makespan / TICKS_PER_SECOND
    for name in ("aborted", "rejected", "unfinished"):
        assert found[name] == sum(one.reason == name for one in requests)
    assert found["arrived"] == len(requests)
    assert sum(kind["count"] for kind in found["rejected_by_reason"]) == found["rejected"]

    ran = watched.ran
    busy = sum(step.end - step.start for step in ran)
    idle = ran[-1].end - ran[0].start - busy if ran else 0
    prefill_tokens = sum(step.prefill_tokens for step in ran)
    decodes = sum(step.decodes for step in ran)
    assert found["steps"] == len(ran)
    assert found["busy"] == busy / TICKS_PER_SECOND
    assert found["idle"] == idle / TICKS_PER_SECOND
    assert found["prefill_tokens"] == prefill_tokens
    assert found["decode_tokens"] == decodes
    assert found["largest_batch"] == max((step.size for step in ran), default=0)
    assert found["mean_batch"] == (sum(step.size for step in ran) / len(ran) if ran else None)
    budget = None
    if rules.max_num_batched_tokens is not None and ran:
        budget = len(ran) * (rules.max_num_batched_tokens + (rules.prefill_token_budget or 0))
    assert found["budget_used"] == ((prefill_tokens + decodes) / budget if budget else None)
    if rules.num_blocks is not None and watched.steps:
        assert found["peak_blocks"] == max([0, *(step.used_blocks for step in ran)])
    else:
        assert found["peak_blocks"] is None
    json.dumps(found, allow_nan=False)


def figures(values: list[int]) -> dict[str, Any]:
    """Count, mean, percentiles and largest of times in ticks, as the page defines them."""
    ordered = sorted(values)
    if not ordered:
        return {"count": 0, **dict.fromkeys(("mean", "p50", "p90", "p99", "max"))}

    def percentile(percent: int) -> float:
        """The smallest value that at least so many percent do not exceed."""
        for value in ordered:
            if 100 * sum(other <= value for other in ordered) >= percent * len(ordered):
                return value / TICKS_PER_SECOND
        raise AssertionError

    return {
        "count": len(ordered),
        "mean": float(Fraction(sum(ordered), len(ordered) * TICKS_PER_SECOND)),
        "p50": percentile(50),
        "p90": percentile(90),
        "p99": percentile(99),
        "max": ordered[-1] / TICKS_PER_SECOND,
    }


# ---------------------------------------------------------------------- the page


PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
PAGE_RULES = Rules.vllm(max_num_batched_tokens=8, max_num_seqs=4, num_blocks=5, block_size=4)


def tables() -> list[list[dict[str, str]]]:
    """Every table of the page, as rows by the names in its head."""
    found: list[list[dict[str, str]]] = []
    for block in re.findall(r"(?:^\|.*\n)+", PAGE, flags=re.MULTILINE):
        head, _, *body = (
            [cell.strip() for cell in line.strip().strip("|").split("|")]
            for line in block.splitlines()
        )
        found.append([dict(zip(head, cells, strict=True)) for cells in body])
    return found


ASKED, STEPS, REQUESTS, TIMES, RUN, GOODPUT, NEXT_STEP, CACHED = tables()


def worked(text: str) -> Fraction:
    """What a hand calculation of the page comes to."""
    operators: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.Div: operator.truediv,
    }

    def value(node: ast.expr) -> Fraction:
        if isinstance(node, ast.BinOp):
            return Fraction(operators[type(node.op)](value(node.left), value(node.right)))
        assert isinstance(node, ast.Constant)
        return Fraction(str(node.value))

    return value(ast.parse(text.replace("−", "-").replace("×", "*"), mode="eval").body)


def page_requests() -> list[Request]:
    return [
        Request(
            row["request"],
            int(row["prompt tokens"]),
            int(row["max tokens"]),
            arrival=int(row["arrival (s)"]) * TICKS_PER_SECOND,
            deadline=int(limit) * TICKS_PER_SECOND
            if (limit := row["deadline (s after arrival)"])
            else None,
        )
        for row in ASKED
    ]


def page_run() -> Collector:
    steps = run(Scheduler(PAGE_RULES), page_requests(), SimulatedExecutor(UNIT))
    return collect(PAGE_RULES, steps)


def hold(table: list[dict[str, str]], collector: Collector, slo: Slo | None = None) -> None:
    """Hold a table of figures, its arithmetic and the program to each other."""
    found = summarize(collector.table(), collector.sums, slo).to_dict()
    for row in table:
        figure: Any = found
        for name in row["figure"].strip("`").split("."):
            figure = figure[name]
        assert figure == float(worked(row["worked"])), row
        decimals = len(row["value"].partition(".")[2])
        assert float(row["value"]) == round(figure, decimals), row


def test_the_steps_of_the_page_are_those_of_the_scheduler() -> None:
    requests = page_requests()
    before = dict.fromkeys((request.id for request in requests), 0)
    rows = iter(STEPS)
    for step in run(Scheduler(PAGE_RULES), requests, SimulatedExecutor(UNIT)):
        prefilled = dict(step.prefill)
        outputs = {request.id: request.output_tokens for request in requests}
        grown = [id for id, tokens in outputs.items() if tokens > before[id]]
        before = outputs
        what = [f"{id} rejected" for id, _ in step.rejected]
        what += [f"{id} aborted" for id in step.aborted]
        what += [f"{id} preempted" for id in step.preempted]
        what += [f"{id} finished" for id, _ in step.finished]
        assert next(rows) == {
            "step": str(step.step),
            "starts at (s)": str(step.start // TICKS_PER_SECOND),
            "prefill": ", ".join(f"{id} {tokens}" for id, tokens in step.prefill),
            "decode": ", ".join(id for id in grown if id not in prefilled),
            "what else": ", ".join(what),
            "free blocks after it": str(step.free_blocks),
        }
        assert step.duration == TICKS_PER_SECOND
    assert next(rows, None) is None


def test_the_requests_of_the_page_are_those_of_the_table() -> None:
    frame = page_run().table().to_polars().collect()
    names = {
        "queueing (s)": "queueing_s",
        "TTFT (s)": "ttft_s",
        "TPOT (s)": "tpot_s",
        "largest ITL (s)": "largest_itl_s",
        "E2E (s)": "e2e_s",
        "output tokens": "output_tokens",
        "preemptions": "preemptions",
        "recomputed tokens": "recomputed_tokens",
    }
    for found, row in zip(frame.iter_rows(named=True), REQUESTS, strict=True):
        assert (found["id"], found["reason"]) == (row["request"], row["reason"])
        for title, name in names.items():
            arithmetic, _, value = row[title].rpartition(" = ")
            if value == "—":
                assert found[name] is None, (row, title)
                continue
            assert found[name] == float(value), (row, title)
            assert float(worked(arithmetic or value)) == float(value), (row, title)


def test_the_figures_of_the_page_are_those_of_the_summary() -> None:
    collector = page_run()
    hold(TIMES + RUN, collector)
    assert "`ttft=2s,tpot=1.75s`" in PAGE
    hold(GOODPUT, collector, parse_slo("ttft=2s,tpot=1.75s"))


def test_with_next_step_the_first_token_comes_with_the_first_decode() -> None:
    rules = Rules.textbook(8)
    steps = run(Scheduler(rules), [Request("A", 5, 3)], SimulatedExecutor(UNIT))
    hold(NEXT_STEP, collect(rules, steps))


def test_tokens_found_in_the_prefix_cache_are_counted_and_not_as_prefill() -> None:
    rules = Rules.vllm(block_size=4, num_blocks=10, enable_prefix_caching=True)
    requests = [
        Request(id, 9, 1, arrival=arrival, prefix_group="g", prefix_tokens=8)
        for id, arrival in (("A", 0), ("B", 5 * TICKS_PER_SECOND))
    ]
    hold(CACHED, collect(rules, run(Scheduler(rules), requests, SimulatedExecutor(UNIT))))


# ---------------------------------------------------------------------- logs of any engine


def arrived(*ids: str, prompt: int = 1) -> list[Arrival]:
    return [Arrival(id, 0, prompt, 10**9) for id in ids]


def admitting(*ids: str) -> Step:
    return Step(0, 0, 5, arrived=arrived(*ids), prefill=[(id, 1) for id in ids])


def test_a_line_of_a_billion_steps_is_exact() -> None:
    steps, duration, growth = 10**9, 7, 2
    collector = collect(
        Rules(), [admitting("A"), Step(1, 5, duration, repeat=steps, duration_growth=growth)]
    )
    table = collector.table()
    assert table.output_tokens.tolist() == [1 + steps]
    assert table.largest_itl.tolist() == [duration + growth * (steps - 1)]
    assert collector.sums.end == 5 + steps * duration + growth * steps * (steps - 1) // 2


def test_steps_that_get_shorter_leave_their_first_gap_as_the_largest() -> None:
    lines = [admitting("A"), Step(1, 5, 9, repeat=3, duration_growth=-4), Step(4, 20, 2)]
    assert collect(Rules(), lines).table().largest_itl.tolist() == [9]
    joined_later = Step(1, 5, 9, arrived=arrived("B"), prefill=[("B", 1)])
    lines = [admitting("A"), joined_later, Step(2, 14, 6, repeat=2, duration_growth=-4)]
    assert collect(Rules(), lines).table().largest_itl.tolist() == [9, 6]


def test_a_decode_left_out_of_a_step_lengthens_its_gap_only() -> None:
    lines = [admitting("A", "B"), Step(1, 5, 3), Step(2, 8, 4, decode=["A"]), Step(3, 12, 2)]
    table = collect(Rules(), lines).table()
    assert table.output_tokens.tolist() == [4, 3]
    assert table.largest_itl.tolist() == [4, 6]


def test_a_repeated_line_that_lists_its_decodes_counts_for_these_only() -> None:
    line = Step(1, 5, 3, decode=["A"], repeat=3, duration_growth=2)  # ends at 8, 13 and 20
    table = collect(Rules(), [admitting("A", "B"), line, Step(4, 20, 1)]).table()
    assert table.output_tokens.tolist() == [1 + 3 + 1, 1 + 1]
    assert table.largest_itl.tolist() == [7, 16]


def test_where_the_first_token_comes_in_a_line_that_shrinks_the_second_step_is_the_gap() -> None:
    line = Step(1, 5, 9, repeat=3, duration_growth=-2)  # ends at 14, 21 and 26
    table = collect(Rules(first_token="next_step"), [admitting("A"), line]).table()
    assert table.first_token.tolist() == [14]
    assert table.largest_itl.tolist() == [7]


def test_every_token_that_comes_back_after_a_preemption_is_recomputed_each_time() -> None:
    lines = [
        Step(0, 0, 1, arrived=arrived("A", prompt=9), prefill=[("A", 8)]),
        Step(1, 1, 1, preempted=["A"]),
        Step(2, 2, 1, prefill=[("A", 3)]),
        Step(3, 3, 1, preempted=["A"]),
        Step(4, 4, 1, cached=[("A", 2)], prefill=[("A", 7)]),
    ]
    table = collect(Rules(), lines).table()
    assert table.recomputed_tokens.tolist() == [3 + (8 - 2)]
    assert table.admitted.tolist() == [0]


def test_a_run_lasts_until_the_last_request_has_left() -> None:
    lines = [
        admitting("A"),
        Step(1, 5, 4, finished=[("A", "stop")]),
        Step(2, 50, 0, arrived=[Arrival("B", 50, 1, 1, deadline=0)], aborted=["B"]),
        Step(3, 80, 0, arrived=[Arrival("C", 80, 1, 1)], rejected=[("C", "too long")]),
    ]
    collector = collect(Rules(), lines)
    found = summarize(collector.table(), collector.sums)
    assert found.makespan == 50 / TICKS_PER_SECOND
    assert (found.steps, found.idle) == (2, 0)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (Step(1, 5, 1, decode=["B"]), "request 'B' is not in the system"),
        (Step(1, 5, 1, finished=[("B", "stop")]), "request 'B' is not in the system"),
        (Step(1, 5, 1, arrived=arrived("A")), "request 'A' arrives and is in the system already"),
        (Step(1, 5, 1, prefill=[("A", 1)]), "request 'A' prefills 1 tokens, and 0 are left"),
        (
            Step(1, 5, 1, arrived=arrived("C", prompt=4), prefill=[("C", 5)]),
            "request 'C' prefills 5 tokens, and 4 are left",
        ),
        (
            Step(1, 5, 1, arrived=arrived("C"), decode=["C"]),
            "request 'C' decodes before its prefill is complete",
        ),
        (Step(1, 5, 1, finished=[("A", "tired")]), "'tired', which is none of stop, length"),
        (
            Step(1, 5, 1, arrived=arrived("C"), prefill=[("C", 1)], repeat=2),
            "a line with repeat 2 has a prefill",
        ),
    ],
)
def test_a_log_that_contradicts_itself_is_refused_with_the_step(line: Step, message: str) -> None:
    with pytest.raises(CollectorError, match=f"^step 1: .*{re.escape(message)}"):
        collect(Rules(), [admitting("A"), line])


def test_reasons_that_differ_in_numbers_only_are_one_kind() -> None:
    sums = RunSums.of(Rules())
    for reason in ("its prompt of 9 is more than 8", "its prompt of 10 is more than 8", "no"):
        sums.reject(reason)
    assert [(kind.count, kind.example) for kind in sums.rejected.values()] == [
        (2, "its prompt of 9 is more than 8"),
        (1, "no"),
    ]


def test_a_run_of_nothing_has_figures_too() -> None:
    found = summarize(Collector(Rules()).table(), RunSums.of(Rules()), Slo(ttft=1))
    assert (found.arrived, found.requests_per_second, found.ttft.mean) == (0, None, None)
    assert found.goodput is not None and found.goodput.share is None


# ---------------------------------------------------------------------- percentiles and sums


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=300), st.booleans())
def test_percentiles_are_the_nearest_rank_and_the_mean_is_exact(
    values: list[int], few_different: bool
) -> None:
    if few_different:
        values = [value % 3 for value in values]
    stats = Stats.of(np.array(values, dtype=np.int64))
    assert {name: getattr(stats, name) for name in stats.__slots__} == figures(values)


def test_a_mean_survives_a_sum_beyond_64_bits() -> None:
    ticks = np.full(200_000, 2**62 + 1, dtype=np.int64)
    assert Stats.of(ticks).mean == (2**62 + 1) / TICKS_PER_SECOND


# ---------------------------------------------------------------------- SLOs


def test_every_unit_of_an_slo_is_exact() -> None:
    assert parse_slo(" ttft=1s, tpot=50ms,itl=0.5us,e2e=1.5m") == Slo(
        ttft=10**11, tpot=5 * 10**9, itl=5 * 10**4, e2e=9 * 10**12
    )
    assert parse_slo("ttft=0.1s").ttft == 10**10
    assert parse_slo("itl=0.00009us").itl == 9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected limits like"),
        ("ttft", "expected limits like"),
        ("ttft=1s,", "expected limits like"),
        ("ttfb=1s", "no limit 'ttfb'; there are ttft, tpot, itl, e2e"),
        ("ttft=1s,ttft=2s", "ttft is given twice"),
        ("ttft=1", "unit of us, ms, s, m"),
        ("ttft=1h", "unit of us, ms, s, m"),
        ("ttft=fast", "unit of us, ms, s, m"),
        ("ttft=-1s", "unit of us, ms, s, m"),
        ("ttft=nans", "unit of us, ms, s, m"),
        ("ttft=1e3s", "unit of us, ms, s, m"),
        ("ttft=٣s", "unit of us, ms, s, m"),
        ("ttft=0s", "must be from"),
        ("ttft=0.000001us", "must be from"),
        ("ttft=99999999999s", "must be from"),
    ],
)
def test_a_text_that_is_no_slo_is_refused_with_the_part_that_is_wrong(
    text: str, message: str
) -> None:
    with pytest.raises(SloError, match=re.escape(message)):
        parse_slo(text)


@pytest.mark.parametrize(("name", "time"), [("ttft", 5), ("tpot", 3), ("itl", 4), ("e2e", 12)])
def test_a_time_equal_to_its_limit_meets_it_and_one_above_does_not(name: str, time: int) -> None:
    assert Slo(**{name: time}).met(some_table()).tolist() == [True, False, False]
    assert Slo(**{name: time - 1}).met(some_table()).tolist() == [False, False, False]


def test_an_slo_is_held_against_every_row_of_a_long_table() -> None:
    few, times = some_table(), 50_000
    columns: dict[str, Any] = {
        name: np.tile(cells, times)
        for name, cells in vars(few).items()
        if isinstance(cells, np.ndarray)
    }
    table = RequestTable(**columns)
    assert np.count_nonzero(Slo(ttft=5, tpot=3, itl=4, e2e=12).met(table)) == times
    for name in ("ttft", "tpot", "itl", "e2e"):
        assert not Slo(**{name: 2}).met(table).any()


# ---------------------------------------------------------------------- the table


def some_table(**changes: Any) -> RequestTable:
    """A finished, an aborted and a rejected request."""
    times = {
        "arrival": [0, 1, 2],
        "admitted": [3, 4, -1],
        "first_token": [5, -1, -1],
        "finished": [12, 9, -1],
        "largest_itl": [4, -1, -1],
        "recomputed_tokens": [2, 0, 0],
        "cached_tokens": [16, 0, 0],
    }
    counts = {
        "prompt_tokens": [20, 30, 40],
        "output_tokens": [3, 0, 0],
        "preemptions": [1, 0, 0],
        "priority": [-1, 0, 1],
    }
    columns: dict[str, Any] = {name: np.array(cells, np.int64) for name, cells in times.items()}
    columns |= {name: np.array(cells, np.int32) for name, cells in counts.items()}
    columns["reason"] = np.array([Reason.STOP, Reason.ABORTED, Reason.REJECTED], np.int8)
    return RequestTable(**(columns | changes))


def test_a_row_takes_less_than_a_hundred_bytes() -> None:
    table = collect(Rules(), [admitting("A")]).table()
    cells = [cell for cell in vars(table).values() if isinstance(cell, np.ndarray)]
    assert len(cells) == 12
    assert sum(cell.itemsize for cell in cells) == 73


def test_a_parquet_file_has_seconds_for_people_and_exact_ticks(tmp_path: Path) -> None:
    some_table().write_parquet(tmp_path / "requests.parquet")
    found = pl.read_parquet(tmp_path / "requests.parquet")
    assert found.row(0, named=True) == {
        "id": "1",
        "reason": "stop",
        "prompt_tokens": 20,
        "output_tokens": 3,
        "preemptions": 1,
        "cached_tokens": 16,
        "recomputed_tokens": 2,
        "priority": -1,
        "arrival_s": 0.0,
        "queueing_s": 3 / TICKS_PER_SECOND,
        "ttft_s": 5 / TICKS_PER_SECOND,
        "tpot_s": 3 / TICKS_PER_SECOND,
        "largest_itl_s": 4 / TICKS_PER_SECOND,
        "e2e_s": 12 / TICKS_PER_SECOND,
        "arrival_ticks": 0,
        "admitted_ticks": 3,
        "first_token_ticks": 5,
        "finished_ticks": 12,
        "largest_itl_ticks": 4,
    }
    absent = {name for name, cell in found.row(1, named=True).items() if cell is None}
    assert absent == {
        "ttft_s",
        "tpot_s",
        "largest_itl_s",
        "e2e_s",
        "first_token_ticks",
        "largest_itl_ticks",
    }
    assert found["reason"].to_list() == ["stop", "aborted", "rejected"]
    assert found["id"].to_list() == ["1", "2", "3"]


def test_the_same_table_is_the_same_bytes(tmp_path: Path) -> None:
    random_ = random.Random(7)
    rows = np.array([random_.randrange(10**6) for _ in range(3)], np.int64)
    for name in ("a", "b"):
        some_table(rows=rows).write_parquet(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_file_that_cannot_be_written_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        some_table().write_parquet(tmp_path / "nowhere" / "requests.parquet")


def test_ids_are_those_of_the_log_or_rows_of_the_file() -> None:
    rows = np.array([7, 9, 12], np.int64)
    for changes, ids in (
        ({"ids": ["x", "y", "z"]}, ["x", "y", "z"]),
        ({"rows": rows}, ["7", "9", "12"]),
        ({}, ["1", "2", "3"]),
    ):
        table = some_table(**changes)
        assert [table.id(place) for place in range(len(table))] == ids
        assert table.to_polars().collect()["id"].to_list() == ids


def test_importing_metrics_loads_nothing_heavy() -> None:
    code = (
        "import sys, tokenyard.metrics; "
        "print([name for name in ('polars', 'numba', 'pandas', 'sklearn') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
