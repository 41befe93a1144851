"""Prefix-cache hits against an independent count: a walk over the trace that knows no blocks in
memory, no time and no scheduler, only which ids have been seen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tokenyard.check import Checker
from tokenyard.core import Request, Rules, Scheduler
from tokenyard.engine.loop import SimulatedExecutor, run
from tokenyard.engine.step_time import StepTime

Row = dict[str, Any]
STEP_TIME = StepTime(fixed=600_000_000, per_prefill_token=3_000_000, per_decode=2_000_000)

# A prompt, one that parts after id 1, the first two ids of that one, the first prompt again, a
# stranger.
SMALL: list[Row] = [
    {"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [1, 2]},
    {"timestamp": 10, "input_length": 1300, "output_length": 5, "hash_ids": [1, 3, 4]},
    {"timestamp": 20, "input_length": 1024, "output_length": 900, "hash_ids": [1, 3]},
    {"timestamp": 20, "input_length": 700, "output_length": 850, "hash_ids": [1, 2]},
    {"timestamp": 9000, "input_length": 600, "output_length": 5, "hash_ids": [8, 9]},
]


def expected_hits(rows: list[Row], block_size: int) -> list[int]:
    """Tokens of each prompt that an endless cache holds when the request comes, in order."""
    seen: set[int] = set()
    hits = []
    for row in rows:
        known = 0
        for id in row["hash_ids"]:
            if id not in seen:
                break
            known += 512
        # Whole blocks only, and the last token is always computed.
        tokens = min(known, row["input_length"] - 1)
        hits.append(tokens // block_size * block_size)
        seen.update(row["hash_ids"])
    return hits


def counted_hits(rows: list[Row], **rules: Any) -> tuple[list[int], int]:
    """Tokens that our scheduler found for each request at its first admission; preemptions."""
    requests = [
        Request(
            str(number),
            row["input_length"],
            row["output_length"],
            arrival=row["timestamp"] * 10**8,  # ms, in ticks of 10 ps
            hash_ids=row["hash_ids"],
        )
        for number, row in enumerate(rows)
    ]
    scheduler = Scheduler(Rules(enable_prefix_caching=True, **rules))
    checker = Checker(scheduler.rules)
    hits: dict[str, int] = {}
    seen: set[str] = set()
    for step in run(scheduler, requests, SimulatedExecutor(STEP_TIME)):
        hits |= {id: tokens for id, tokens in step.cached if id not in seen}
        seen.update(id for id, _ in step.prefill)
        assert not [str(violation) for violation in checker.feed(step)]
    assert all(r.output_tokens == r.max_tokens for r in requests)
    counted = [hits.get(str(number), 0) for number in range(len(rows))]
    return counted, sum(request.preemptions for request in requests)


def test_by_hand() -> None:
    # 700 tokens of [1, 2]: nothing is known. 1300 of [1, 3, 4]: 512 of id 1, 32 blocks of 16.
    # 1024 of [1, 3]: all 1024 are known, 1023 // 16 = 63 blocks = 1008. 700 of [1, 2] again:
    # 699 // 16 = 43 blocks = 688. The stranger: 0.
    assert expected_hits(SMALL, 16) == [0, 512, 1008, 688, 0]


@pytest.mark.parametrize("block_size", [16, 32, 512])
def test_hits_equal_the_count(block_size: int) -> None:
    counted, _ = counted_hits(SMALL, max_num_batched_tokens=None, block_size=block_size)
    assert counted == expected_hits(SMALL, block_size)


def test_scarce_memory_never_finds_more() -> None:
    # 130 blocks of 16 are 2080 tokens. The third request grows to 1923, the fourth beside it to
    # 1549, of which 688 are shared at most: more than 2700 together.
    counted, preemptions = counted_hits(SMALL, num_blocks=130, max_num_batched_tokens=2048)
    assert preemptions > 0
    assert all(got <= most for got, most in zip(counted, expected_hits(SMALL, 16), strict=True))


@pytest.fixture(scope="module")
def rows(shared_data: Path) -> list[Row]:
    path = shared_data / "mooncake_conversation.jsonl"
    if not path.exists():
        pytest.skip(f"no {path.name} there")
    return [json.loads(line) for line in path.read_text().splitlines()]


class TestTheMooncakeTrace:
    def test_hits_equal_the_count(self, rows: list[Row]) -> None:
        rules = {"max_num_batched_tokens": None, "max_num_seqs": None, "block_size": 512}
        counted, _ = counted_hits(rows, **rules)
        assert counted == expected_hits(rows, 512)

    def test_scarce_memory_never_finds_more(self, rows: list[Row]) -> None:
        some = rows[:600]
        counted, preemptions = counted_hits(
            some, num_blocks=600, block_size=512, max_num_batched_tokens=8192
        )
        assert preemptions > 0
        assert all(got <= most for got, most in zip(counted, expected_hits(some, 512), strict=True))
