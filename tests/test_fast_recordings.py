"""The compiled engine gives the times that vLLM's own scheduler was recorded with, no other engine
being asked."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vllm_recordings import FOLDER, load, rules_of

from tokenyard import fast
from tokenyard.engine.step_time import UNIT
from tokenyard.engine.ticks import TICKS_PER_SECOND
from tokenyard.metrics import RequestTable
from tokenyard.workload import Workload

RECORDINGS = [
    path
    for path in sorted(FOLDER.glob("*.json.zst"))
    if not load(path)["config"].get("enable_prefix_caching")
]


def workload_of(recording: dict[str, Any]) -> Workload:
    """The requests of a recording, one of its steps being a second."""
    asked = sorted(recording["requests"], key=lambda request: request["arrival_step"])

    def column(name: str) -> Any:
        return np.array([request.get(name, 0) for request in asked], np.int64)

    return Workload(
        arrival=column("arrival_step") * TICKS_PER_SECOND,
        prompt_tokens=column("prompt_tokens"),
        output_tokens=column("max_tokens"),
        priority=column("priority"),
        ids=[request["id"] for request in asked],
    )


def by_id(table: RequestTable, column: str) -> dict[str, int]:
    values = getattr(table, column).tolist()
    return {table.id(place): value for place, value in enumerate(values)}


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.split(".")[0])
def test_every_time_is_the_recorded_one(path: Path) -> None:
    recording = load(path)
    admitted: dict[str, int] = {}
    first_token: dict[str, int] = {}
    finished: dict[str, int] = {}
    output_tokens: Counter[str] = Counter()
    preemptions: Counter[str] = Counter()
    tokens = 0
    for step in recording["steps"]:
        start = step["step"] * TICKS_PER_SECOND
        end = start + TICKS_PER_SECOND
        admitted |= dict.fromkeys(step["new"], start)
        first_token |= {id: end for id in step["sampled"] if id not in first_token}
        finished |= dict.fromkeys(step["finished"], end)
        preemptions.update(step["preempted"])
        tokens += sum(count for _, count in step["scheduled"])
        output_tokens.update(step["sampled"])

    table, sums = fast.replay(workload_of(recording), rules_of(recording), UNIT)

    assert by_id(table, "admitted") == admitted
    assert by_id(table, "first_token") == first_token
    assert by_id(table, "finished") == finished
    assert by_id(table, "output_tokens") == dict(output_tokens)
    assert by_id(table, "preemptions") == {id: preemptions[id] for id in finished}
    assert sums.steps == len(recording["steps"])
    assert sums.prefill_tokens + sums.decode_tokens == tokens
    assert sums.scheduled_requests == sum(len(step["scheduled"]) for step in recording["steps"])
    assert sums.largest_batch == max(len(step["scheduled"]) for step in recording["steps"])


def test_nearly_all_kinds_are_taken() -> None:
    assert len(RECORDINGS) >= 30
