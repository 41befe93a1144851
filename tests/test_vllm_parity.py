"""The vllm preset decides as vLLM's own scheduler did, step for step, in every recording."""

from __future__ import annotations

from pathlib import Path

import pytest
from vllm_recordings import FOLDER, load, replay

RECORDINGS = sorted(FOLDER.glob("*.json.zst"))


def hold_equal(path: Path) -> int:
    """Replay a recording; the number of steps, each equal in every recorded field."""
    steps = 0
    for recorded, ours in replay(load(path)):
        assert ours == recorded, f"{path.name}, step {recorded['step']}"
        steps += 1
    return steps


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.split(".")[0])
def test_every_decision_equals_the_recorded_one(path: Path) -> None:
    assert hold_equal(path) == len(load(path)["steps"])


def test_the_recordings_are_there() -> None:
    assert len(RECORDINGS) >= 72


def test_recordings_beside_the_checkout_are_equal_too(shared_data: Path) -> None:
    recordings = sorted((shared_data / "vllm").glob("*.json"))
    if not recordings:
        pytest.skip("no recordings there")
    for path in recordings:
        hold_equal(path)


@pytest.mark.parametrize("field", ["scheduled", "free_blocks", "waiting", "preempted"])
def test_an_altered_recording_is_noticed(field: str) -> None:
    recording = load(FOLDER / "prefix-priority-pressure-0.json.zst")
    step = next(step for step in recording["steps"] if step[field])
    step[field] = step[field] + 1 if isinstance(step[field], int) else step[field][1:]
    different = [ours["step"] for recorded, ours in replay(recording) if ours != recorded]
    assert different[0] == step["step"]
