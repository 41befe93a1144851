"""What a report says: figures as people read them, and who waited and why."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenyard.cli.output_files import replacing
from tokenyard.core import Request, Rules, Scheduler
from tokenyard.engine.loop import SimulatedExecutor, run
from tokenyard.engine.step_time import UNIT
from tokenyard.engine.ticks import TICKS_PER_SECOND
from tokenyard.metrics import Collector
from tokenyard.report.figures import count, duration, percent, significant
from tokenyard.report.waiting import Waiting, explain

# ---------------------------------------------------------------------- figures


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, "–"),
        (0, "0 s"),
        (1, "1 s"),
        (3.8, "3.80 s"),
        (12.34, "12.3 s"),
        (3503.6, "3,504 s"),
        (0.0123456, "12.3 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1 s"),
        (0.000123, "123 µs"),
        (1e-11, "0.01 ns"),
    ],
)
def test_a_duration_has_three_digits_and_the_unit_that_suits_it(
    seconds: float | None, said: str
) -> None:
    assert duration(seconds) == said


@given(st.floats(1e-9, 1e7))
def test_a_duration_is_within_half_a_percent_of_what_it_stands_for(seconds: float) -> None:
    number, unit = duration(seconds).split()
    scale = {"s": 1, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}[unit]
    assert float(number.replace(",", "")) * scale == pytest.approx(seconds, rel=0.006)


@pytest.mark.parametrize(
    ("share", "said"),
    [(0.5, "50 %"), (0.1234, "12.3 %"), (1, "100 %"), (0.9997, "99.97 %"), (0.999999, "99.99 %")],
)
def test_only_all_is_100_percent(share: float, said: str) -> None:
    assert percent(share) == said


def test_counts_are_singular_plural_and_apart() -> None:
    assert count(1, "row") == "1 row"
    assert count(1234, "row") == "1,234 rows"
    assert significant(1234.5) == "1,234"


# ---------------------------------------------------------------------- who waited and why


def waiting(rules: Rules, *requests: Request) -> Waiting:
    collector = Collector(rules)
    for step in run(Scheduler(rules), requests, SimulatedExecutor(UNIT)):
        collector.feed(step)
    said = explain(collector.table(), rules, collector.sums, UNIT)
    assert said is not None
    return said


def at(second: float, id: str, prompt: int = 1, output: int = 1) -> Request:
    return Request(id, prompt, output, arrival=round(second * TICKS_PER_SECOND))


def test_a_wait_for_a_place_is_told_to_the_tick() -> None:
    # One place. A: prefill and first token in [0, 1), then 3 decodes: runs from 0 to 4. B comes at
    # 0.5 and is scheduled at 4: 3.5 s, all of which the place was taken.
    said = waiting(Rules.vllm(max_num_seqs=1), at(0, "A", output=4), at(0.5, "B"))
    assert (said.longest_id, said.longest, said.longest_without_place) == ("B", 3.5, 3.5)
    assert said.without_place == 1.0
    assert (said.waited, said.most_running) == (1, 1)
    assert "all places (max_num_seqs 1) were taken all the while" in said.sentences()[1]


def test_a_wait_with_free_places_is_not_blamed_on_them() -> None:
    # A step holds 2 tokens: A's prompt of 4 takes [0, 2), so B, which came at 0, starts at 2.
    said = waiting(Rules.vllm(max_num_batched_tokens=2), at(0, "A", prompt=4), at(0, "B"))
    assert (said.longest_id, said.longest, said.longest_without_place) == ("B", 2.0, 0.0)
    text = " ".join(said.sentences())
    # A step takes 1 s at most, so 2 s are more than the end of the step under way.
    assert "it waited for room in the token budget of a step." in text
    assert "Places were never the reason: at most 1 of 128" in text
    assert "KV blocks" not in text


def test_a_wait_within_a_step_may_have_been_for_its_end() -> None:
    said = waiting(Rules.vllm(), at(0, "A", output=3), at(0.5, "B"))
    assert (said.longest_id, said.longest) == ("B", 0.5)
    assert said.longest_other_causes[0] == "for the step under way to end"


def test_part_of_a_wait_can_be_for_a_place() -> None:
    # Two places, 4 tokens a step. A (4 prompt tokens, 1 output) runs [0, 1). B (4, 3) is prefilled
    # in [1, 2), since the budget was spent, and decodes until 4. C (4, 3) has to wait for 4 tokens
    # (chunked: 3 in [2, 3)). So it runs from 2 on, and D, which came at 0, from 4, when B is gone.
    rules = Rules.vllm(max_num_batched_tokens=4, max_num_seqs=2)
    requests = [at(0, "A", 4), at(0, "B", 4, 3), at(0, "C", 4, 3), at(0, "D", 1)]
    said = waiting(rules, *requests)
    # Both places are taken from 2 (B and C) to 4: 2 s of D's wait of 4 s, none of B's 1 and C's 2.
    assert (said.longest_id, said.longest, said.longest_without_place) == ("D", 4.0, 2.0)
    assert said.without_place == 2 / (1 + 2 + 4)
    assert "were taken for 2 s of it" in said.sentences()[1]
    assert "28.6 % was for a place" in said.sentences()[2]


def test_nobody_waited() -> None:
    said = waiting(Rules.vllm(), at(0, "A"), at(1, "B"))
    assert said.sentences() == ["Nobody waited: every request was scheduled when it arrived."]


def test_memory_is_named_where_it_can_be_the_cause_and_only_there() -> None:
    few = Rules.vllm(num_blocks=4, block_size=2)
    said = waiting(few, at(0, "A", 3, 3), at(0, "B", 4, 3), at(0, "C", 4, 3))
    assert "for KV blocks" in said.other_causes
    assert said.preemptions >= 1
    assert "KV memory ran out" in said.sentences()[-1]
    many = Rules.vllm(num_blocks=10_000, block_size=2)
    said = waiting(many, at(0, "A", 3, 3), at(0.5, "B", 4, 3))
    assert "for KV blocks" not in said.other_causes


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 9), st.integers(1, 6)), min_size=1))
def test_time_without_a_place_is_what_a_look_at_every_second_finds(
    drawn: list[tuple[int, int, int]],
) -> None:
    rules = Rules.vllm(max_num_batched_tokens=6, max_num_seqs=2)
    requests = [at(t, f"r{n}", prompt, out) for n, (t, prompt, out) in enumerate(sorted(drawn))]
    collector = Collector(rules)
    full: set[int] = set()  # seconds in which both places were taken
    for step in run(Scheduler(rules), requests, SimulatedExecutor(UNIT)):
        collector.feed(step)
        begun = step.start // TICKS_PER_SECOND
        if step.duration and _running(collector, step.start) == 2:
            full.add(begun)
    table = collector.table()
    said = explain(table, rules, collector.sums, UNIT)
    assert said is not None
    waits = [
        range(a // TICKS_PER_SECOND, s // TICKS_PER_SECOND)
        for a, s in zip(table.arrival.tolist(), table.admitted.tolist(), strict=True)
    ]
    without = [len(full.intersection(wait)) for wait in waits]
    total = sum(map(len, waits))
    assert said.without_place == pytest.approx(sum(without) / total if total else 0)
    longest = max(range(len(waits)), key=lambda n: len(waits[n]))
    assert said.longest == len(waits[longest])
    assert said.longest_without_place == without[longest]


def _running(collector: Collector, start: int) -> int:
    """Requests that were in a step which began at `start`, from what is known after it."""
    table = collector.table()
    begun = (table.admitted >= 0) & (table.admitted <= start)
    gone = (table.finished >= 0) & (table.finished <= start)
    return int((begun & ~gone).sum())


# ---------------------------------------------------------------------- files


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("old")
    with contextlib.suppress(RuntimeError), replacing(path) as part:
        part.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    with replacing(path) as part:
        part.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]
