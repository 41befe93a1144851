"""A step's duration is what counting one by one gives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenyard.core import Batch, Request, Rules, Scheduler
from tokenyard.engine.step_time import UNIT, StepTime, attention_pairs, batch_duration
from tokenyard.engine.ticks import TICKS_PER_SECOND

coefficients = st.builds(
    StepTime,
    fixed=st.integers(0, 10**9),
    per_prefill_token=st.integers(0, 10**7),
    per_attention_pair=st.integers(0, 10**3),
    per_decode=st.integers(0, 10**7),
    per_kv_token=st.integers(0, 10**4),
)


def pairs_one_by_one(computed: int, tokens: int) -> int:
    """Every new token as a query, every token that it may look at as a key: count each pair."""
    return sum(
        1
        for query in range(computed, computed + tokens)
        for key in range(computed + tokens)
        if key <= query
    )


def duration_one_by_one(step_time: StepTime, batch: Batch) -> int:
    """Each part of the step put down on its own."""
    parts = [step_time.fixed]
    for request, tokens in batch.prefill:
        for query in range(request.computed_tokens, request.computed_tokens + tokens):
            parts.append(step_time.per_prefill_token)
            parts.extend(step_time.per_attention_pair for _ in range(query + 1))
    for request in batch.decode:
        parts.append(step_time.per_decode)
        parts.extend(step_time.per_kv_token for _ in range(request.computed_tokens))
    return sum(parts)


@given(st.integers(0, 60), st.integers(0, 60))
def test_attention_pairs_are_counted_as_one_by_one(computed: int, tokens: int) -> None:
    assert attention_pairs(computed, tokens) == pairs_one_by_one(computed, tokens)


@given(st.integers(0, 5000), st.lists(st.integers(1, 5000), max_size=8))
def test_a_prompt_has_the_same_pairs_in_however_many_chunks(start: int, chunks: list[int]) -> None:
    whole = attention_pairs(start, sum(chunks))
    done, total = start, 0
    for chunk in chunks:
        total += attention_pairs(done, chunk)
        done += chunk
    assert total == whole


def test_attention_pairs_by_hand() -> None:
    # 3 new tokens after 5: they look at 6, 7 and 8 tokens.
    assert attention_pairs(5, 3) == 6 + 7 + 8


@given(
    coefficients,
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 6)), min_size=1, max_size=6),
    st.sampled_from([3, 8, 16]),
    st.sampled_from(["prefill", "next_step"]),
)
def test_a_batch_takes_what_its_parts_take_one_by_one(
    step_time: StepTime, requests: list[tuple[int, int]], budget: int, first_token: str
) -> None:
    scheduler = Scheduler(Rules(max_num_batched_tokens=budget, first_token=first_token))  # type: ignore[arg-type]
    for number, (prompt_tokens, max_tokens) in enumerate(requests):
        scheduler.submit(Request(str(number), prompt_tokens, max_tokens))
    kinds = set()
    while scheduler.requests:
        batch = scheduler.schedule()
        kinds |= {"prefill"} if batch.prefill else set()
        kinds |= {"decode"} if batch.decode else set()
        assert batch_duration(step_time, batch) == duration_one_by_one(step_time, batch)
        scheduler.commit(batch)
    assert "prefill" in kinds


def test_a_batch_by_hand() -> None:
    step_time = StepTime(
        fixed=1_000_000,
        per_prefill_token=10_000,
        per_attention_pair=100,
        per_decode=2_000,
        per_kv_token=3,
    )
    scheduler = Scheduler(Rules(max_num_batched_tokens=8))
    scheduler.submit(Request("a", 5, 4))
    first = scheduler.schedule()  # a's 5 tokens; pairs 1 + 2 + 3 + 4 + 5 = 15
    assert batch_duration(step_time, first) == 1_000_000 + 5 * 10_000 + 15 * 100
    scheduler.commit(first)
    scheduler.submit(Request("b", 9, 1))
    second = scheduler.schedule()  # a decodes and reads 5; 7 of b's 9 tokens; pairs 28
    assert batch_duration(step_time, second) == (1_000_000 + 7 * 10_000 + 28 * 100 + 2_000 + 5 * 3)
    scheduler.commit(second)
    third = scheduler.schedule()  # a decodes and reads 6; b's last 2 tokens; pairs 8 + 9
    assert batch_duration(step_time, third) == (1_000_000 + 2 * 10_000 + 17 * 100 + 2_000 + 6 * 3)


def test_the_unit_model_takes_a_second_for_any_step() -> None:
    assert UNIT.duration(0, 0, 0, 0) == TICKS_PER_SECOND
    assert UNIT.duration(4096, 10**9, 256, 10**9) == TICKS_PER_SECOND


def test_a_step_time_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        UNIT.fixed = 1  # type: ignore[misc]
