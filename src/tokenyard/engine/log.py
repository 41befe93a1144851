"""The schedule log: JSON Lines that say, step by step, what changed. docs/schedule-log.md is its page."""

from __future__ import annotations

import msgspec

from tokenyard.engine.ticks import TICK_S

FORMAT = "tokenyard.schedule/1"


class Arrival(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A request as it is first seen by the planning of a step."""

    id: str
    arrival: int
    prompt_tokens: int
    max_tokens: int
    priority: int = 0
    deadline: int | None = None
    predicted_tokens: int | None = None
    token_ids: tuple[int, ...] | None = None
    hash_ids: tuple[int, ...] | None = None
    hash_block_size: int = 512
    prefix_group: str | None = None
    prefix_tokens: int = 0


class Header(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """The first line. `rules` holds fields of Rules by name; absent ones have their defaults.

    `output_token`: the id of every output token, where the engine produced one and the same (a
    simulated runner); absent: what output says is not known.
    """

    format: str
    rules: dict[str, object] = {}
    tick_s: float = TICK_S
    source: str = ""
    output_token: int | None = None


class Step(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """One step: what changed. Times in ticks; an absent list is empty.

    `decode` None: every request that was in DECODE when the step was planned, and was not
    preempted in it, got its token.
    With `repeat` > 1 the line stands for so many steps of nothing but decodes, each
    `duration_growth` ticks longer than the one before; `free_blocks` is that after the last.
    """

    step: int
    start: int
    duration: int
    arrived: list[Arrival] = []
    rejected: list[tuple[str, str]] = []
    prefill: list[tuple[str, int]] = []
    cached: list[tuple[str, int]] = []
    decode: list[str] | None = None
    preempted: list[str] = []
    aborted: list[str] = []
    finished: list[tuple[str, str]] = []
    free_blocks: int | None = None
    repeat: int = 1
    duration_growth: int = 0
    waiting: list[str] | None = None
    running: list[str] | None = None
