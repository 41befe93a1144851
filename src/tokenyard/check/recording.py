"""Schedules recorded from vLLM, as a schedule log.

A recording is one JSON object with config, requests and steps; tests/data/vllm/README.md tells
every field. It says some things twice, in its own words (who is new, who was sampled): what does
not agree with the rest is a finding of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from tokenyard.core import Rules, RulesError
from tokenyard.core.rules import RULE_NAMES
from tokenyard.engine.log import ZSTD_MAGIC, Arrival, LogError, Step
from tokenyard.engine.ticks import TICKS_PER_SECOND

OUTPUT_TOKEN = 7
"""Stands for the one token that the recordings' simulated runner gives to everybody."""

ORDERED = ("cached", "prefill", "decode", "finished", "waiting", "running")
"""Fields whose order a recording keeps: it lists the preempted by name."""


class _Request(msgspec.Struct):
    id: str
    prompt_tokens: int
    max_tokens: int
    arrival_step: int
    priority: int = 0
    prefix_group: int | None = None
    prefix_tokens: int = 0


class RecordedStep(msgspec.Struct):
    """A step in vLLM's words."""

    step: int
    scheduled: list[tuple[str, int]]
    new: list[str]
    resumed: list[str]
    cached: list[tuple[str, int]]
    preempted: list[str]
    sampled: list[str]
    finished: list[str]
    free_blocks_after_schedule: int
    free_blocks: int
    waiting: list[str]
    running: list[str]


class Recording(msgspec.Struct):
    """config, requests, steps."""

    config: dict[str, Any]
    requests: list[_Request]
    steps: list[RecordedStep]


def read_recording(path: Path) -> Recording | None:
    """The recording in a file, or None if it holds something else. Raises `OSError`, and `LogError`
    for a recording with a field that cannot be."""
    if str(path) == "-":
        return None
    with path.open("rb") as file:
        if file.read(4) == ZSTD_MAGIC:
            import zstandard

            file.seek(0)
            content = cast("IO[bytes]", zstandard.ZstdDecompressor().stream_reader(file))
        else:
            file.seek(0)
            content = file
        head = _start(content)
        if b'{"config"' not in head:
            return None
        try:
            return msgspec.json.decode(head + content.read(), type=Recording)
        except msgspec.DecodeError as error:
            raise LogError(f"{path}: not a recording of vLLM: {error}") from error


def _start(content: IO[bytes]) -> bytes:
    """The first bytes, or none where they cannot be decompressed: whoever reads logs says so."""
    import zstandard

    try:
        return content.read(64)
    except zstandard.ZstdError:
        return b""


def rules_of(recording: Recording) -> Rules:
    """The rules of its config. vLLM keeps one block for itself. Raises `RulesError`."""
    config = {name: value for name, value in recording.config.items() if name != "max_model_len"}
    unknown = [name for name in config if name not in RULE_NAMES]
    if unknown:
        raise RulesError(f"config holds {', '.join(unknown)}, which tokenyard does not model")
    if isinstance(config.get("num_blocks"), int):
        config["num_blocks"] -= 1
    return Rules.vllm(**config)


@dataclass(slots=True)
class _Known:
    """How far a request has come."""

    prompt: int
    output: int = 0
    computed: int = 0
    decodes: bool = False
    preempted: bool = False


def steps_of(recording: Recording) -> Iterator[tuple[Step, RecordedStep, list[str]]]:
    """Each step as a line of the log, one second long, as recorded, and what it says of itself that
    does not agree."""
    upcoming = sorted(enumerate(recording.requests), key=lambda numbered: numbered[1].arrival_step)
    known: dict[str, _Known] = {}
    running: list[str] = []  # in order of admission
    previous = -1
    for recorded in recording.steps:
        wrong: list[str] = []
        expected = previous + 1
        if not known:
            expected = max(expected, upcoming[0][1].arrival_step if upcoming else expected)
        if recorded.step != expected:
            wrong.append(f"step is {recorded.step}; expected {expected}")
        previous = max(expected, recorded.step)
        step = Step(expected, expected * TICKS_PER_SECOND, TICKS_PER_SECOND, decode=[])
        while upcoming and upcoming[0][1].arrival_step <= expected:
            number, asked = upcoming.pop(0)
            step.arrived.append(_arrival(asked, number))
            known[asked.id] = _Known(asked.prompt_tokens)
        _fill(step, recorded, known, running, wrong)
        yield step, recorded, wrong
        for id in recorded.finished:
            known.pop(id, None)
        running[:] = [id for id in running if id in known]


def _fill(
    step: Step,
    recorded: RecordedStep,
    known: dict[str, _Known],
    running: list[str],
    wrong: list[str],
) -> None:
    """Put what was recorded into the step, and what does not agree into `wrong`."""
    for id in recorded.preempted:
        if id in running:
            running.remove(id)
            known[id].preempted = True
            known[id].computed = 0
    cached = dict(recorded.cached)
    new: list[str] = []
    resumed: list[str] = []
    sampled: list[str] = []
    decode: list[str] = []
    for id, tokens in recorded.scheduled:
        one = known.get(id)
        if one is None:
            step.prefill.append((id, tokens))
            continue
        admitted = id not in running
        if admitted:
            running.append(id)
            one.computed = cached.get(id, 0)
            (resumed if one.preempted else new).append(id)
            one.decodes = False
        decoding = one.decodes
        one.computed += tokens
        if decoding:
            decode.append(id)
            if tokens != 1:
                wrong.append(f"scheduled gives {id!r} {tokens} tokens to decode")
        else:
            step.prefill.append((id, tokens))
        if one.computed >= one.prompt + one.output:
            sampled.append(id)
            one.output += 1
            one.decodes = True
    step.decode = decode
    step.preempted = list(recorded.preempted)
    order = {id: place for place, id in enumerate(running)}
    step.cached = sorted(recorded.cached, key=lambda one: order.get(one[0], len(order)))
    step.finished = [(id, "length") for id in recorded.finished]
    step.free_blocks = recorded.free_blocks
    step.waiting, step.running = list(recorded.waiting), list(recorded.running)
    for name, said, derived in (
        ("new", recorded.new, new),
        ("resumed", recorded.resumed, resumed),
        ("sampled", recorded.sampled, sampled),
    ):
        if said != derived:
            wrong.append(f"{name} is {said}; what was scheduled makes it {derived}")
    names = [id for id, _ in recorded.cached]
    if names != [id for id in (*new, *resumed) if id in cached]:
        wrong.append(f"cached names {names}; expected the admitted alone, the new ones first")
    names = [id for id, _ in recorded.scheduled]
    if names != [id for id in running if id in names]:
        wrong.append(f"scheduled is in the order {names}; expected that of admission")


def _arrival(asked: _Request, number: int) -> Arrival:
    return Arrival(
        asked.id,
        asked.arrival_step * TICKS_PER_SECOND,
        asked.prompt_tokens,
        asked.max_tokens,
        asked.priority,
        token_ids=tuple(_token_ids(asked, number)),
    )


def _token_ids(asked: _Request, number: int) -> list[int]:
    """Equal where two requests of a group share their beginning, different everywhere else."""
    group = 0 if asked.prefix_group is None else asked.prefix_group + 1
    return [
        10**9 * group + place
        if group and place < asked.prefix_tokens
        else 10**12 * (number + 1) + place
        for place in range(asked.prompt_tokens)
    ]
