"""Schedules recorded from the real vLLM V1 scheduler, and our scheduler driven over the same input.

The format is told in tests/data/vllm/README.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zstandard

from tokenyard.core import Request, Rules, Scheduler

FOLDER = Path(__file__).parent / "data" / "vllm"
OUTPUT_TOKEN = 7  # the recordings' runner gives every request this same token, whatever its number

Recording = dict[str, Any]


def load(path: Path) -> Recording:
    data = path.read_bytes()
    if path.suffix == ".zst":
        data = zstandard.ZstdDecompressor().decompress(data)
    recording: Recording = json.loads(data)
    return recording


def rules_of(recording: Recording) -> Rules:
    """The rules that the recording was made under. vLLM keeps one block for itself."""
    config = dict(recording["config"])
    config.pop("max_model_len")
    return Rules.vllm(**(config | {"num_blocks": config["num_blocks"] - 1}))


def requests_of(recording: Recording) -> list[Request]:
    """Its requests, with the arrival in steps."""
    return [
        Request(
            asked["id"],
            asked["prompt_tokens"],
            asked["max_tokens"],
            arrival=asked["arrival_step"],
            priority=asked.get("priority", 0),
            token_ids=_token_ids(asked, number),
        )
        for number, asked in enumerate(recording["requests"])
    ]


def _token_ids(asked: dict[str, Any], number: int) -> list[int]:
    """Equal where two requests of a group share their beginning, different everywhere else."""
    group, shared = asked.get("prefix_group"), asked.get("prefix_tokens", 0)
    return [
        10**9 * (group + 1) + place if place < shared else 10**12 * (number + 1) + place
        for place in range(asked["prompt_tokens"])
    ]


def replay(recording: Recording) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Our scheduler over the recording's requests: each recorded step beside ours, in its words."""
    scheduler = Scheduler(rules_of(recording))
    upcoming = sorted(requests_of(recording), key=lambda request: request.arrival)
    for recorded in recording["steps"]:
        while upcoming and upcoming[0].arrival <= recorded["step"]:
            reason = scheduler.submit(upcoming.pop(0))
            assert reason is None, reason
        waiting = set(scheduler.waiting)
        batch = scheduler.schedule()
        tokens = {request.id: count for request, count in batch.prefill}
        tokens |= dict.fromkeys((request.id for request in batch.decode), 1)
        scheduled = [request for request in scheduler.running if request.id in tokens]
        decoding = set(batch.decode)
        admitted = [request for request in scheduled if request in waiting]
        cached = {request.id: count for request, count in batch.cached}
        new = [request.id for request in admitted if not request.preemptions]
        resumed = [request.id for request in admitted if request.preemptions]
        ours: dict[str, Any] = {
            "step": recorded["step"],
            "scheduled": [[request.id, tokens[request.id]] for request in scheduled],
            "new": new,
            "resumed": resumed,
            "cached": [[id, cached[id]] for id in (*new, *resumed) if id in cached],
            "preempted": sorted(request.id for request in batch.preempted),
            "free_blocks_after_schedule": scheduler.blocks.free,
        }
        sampled = [
            request.id
            for request in scheduled
            if request in decoding or tokens[request.id] == request.pending_tokens
        ]
        sampled_tokens = dict.fromkeys(sampled, OUTPUT_TOKEN)
        finished = scheduler.commit(batch, tokens=sampled_tokens) if batch else []
        ours |= {
            "sampled": sampled,
            "finished": [request.id for request in finished],
            "free_blocks": scheduler.blocks.free,
            "waiting": [request.id for request in scheduler.waiting],
            "running": [request.id for request in scheduler.running],
        }
        yield recorded, ours
