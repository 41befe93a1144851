"""A request, its four states, and the one table of legal transitions between them."""

from __future__ import annotations

import enum
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from tokenyard.core.rules import MAX_COUNT

if TYPE_CHECKING:
    from tokenyard.core.blocks import Block


class State(enum.Enum):
    """Where a request stands. Nothing else is a state."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


class FinishReason(enum.Enum):
    """Why a request left."""

    STOP = "stop"
    """The executor said that its output ended."""
    LENGTH = "length"
    """It has generated max_tokens."""
    ABORTED = "aborted"
    """Somebody called it off."""
    REJECTED = "rejected"
    """It could never run under the rules, and was told so when it was submitted."""


LEGAL_TRANSITIONS: dict[State, frozenset[State]] = {
    State.WAITING: frozenset({State.PREFILL, State.FINISHED}),
    State.PREFILL: frozenset({State.DECODE, State.WAITING, State.FINISHED}),
    State.DECODE: frozenset({State.WAITING, State.FINISHED}),
    State.FINISHED: frozenset(),
}


class SchedulerError(RuntimeError):
    """The scheduler was used in a way that its contract forbids, or broke a rule of its own."""


class IllegalTransitionError(SchedulerError):
    """A request was about to make a change of state that the table does not hold."""


class RequestError(ValueError):
    """A request has a value that no request can have; the message names id, field and value."""


class Request:
    """One request: what was asked, and how far it has come.

    `prompt_tokens` and `max_tokens` are counts; `arrival` is in ticks. `priority` is lower first.
    `deadline`: ticks after arrival at which the client gives up (the loop aborts it; the scheduler
    does not look at it).
    `predicted_tokens` is a guess at the output length, for the sjf policies. At most one of these
    tells what the prompt says, for prefix caching: `token_ids` (one for each prompt token);
    `hash_ids` (one for each `hash_block_size` tokens, equal ids meaning equal prompts up to there);
    or `prefix_group` with `prefix_tokens` (requests of one group share their first prefix_tokens
    tokens, as far as both have them).

    Raises `RequestError` when a value is out of range.
    """

    __slots__ = (
        "arrival",
        "block_keys",
        "blocks",
        "checkpoint",
        "deadline",
        "finish_reason",
        "hash_block_size",
        "hash_ids",
        "held",
        "id",
        "max_tokens",
        "output_tokens",
        "pending_tokens",
        "predicted_tokens",
        "preemptions",
        "prefix_group",
        "prefix_tokens",
        "priority",
        "prompt_tokens",
        "rank",
        "skips",
        "state",
        "token_ids",
    )

    def __init__(
        self,
        id: str,
        prompt_tokens: int,
        max_tokens: int,
        *,
        arrival: int = 0,
        priority: int = 0,
        deadline: int | None = None,
        predicted_tokens: int | None = None,
        token_ids: Sequence[int] | None = None,
        hash_ids: Sequence[int] | None = None,
        hash_block_size: int = 512,
        prefix_group: str | None = None,
        prefix_tokens: int = 0,
    ) -> None:
        if not isinstance(id, str) or not id:
            raise RequestError(f"request id must be a non-empty text (got {id!r})")
        _check(id, "prompt_tokens", prompt_tokens, 1)
        _check(id, "max_tokens", max_tokens, 1)
        _check(id, "arrival", arrival, 0, 2**63 - 1)
        _check(id, "priority", priority, -MAX_COUNT)
        if deadline is not None:
            _check(id, "deadline", deadline, 0, 2**63 - 1)
        if predicted_tokens is not None:
            _check(id, "predicted_tokens", predicted_tokens, 0)
        _check(id, "prefix_tokens", prefix_tokens, 0, prompt_tokens)
        if token_ids is not None and len(token_ids) != prompt_tokens:
            raise RequestError(
                f"request {id!r}: {len(token_ids)} token_ids for {prompt_tokens} prompt_tokens"
            )
        if hash_ids is not None:
            _check(id, "hash_block_size", hash_block_size, 1)
            if len(hash_ids) != (expected := -(-prompt_tokens // hash_block_size)):
                raise RequestError(
                    f"request {id!r}: {len(hash_ids)} hash_ids for {prompt_tokens} prompt_tokens "
                    f"(one for each {hash_block_size} tokens would be {expected})"
                )
        self.id = id
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.arrival = arrival
        self.priority = priority
        self.deadline = deadline
        self.predicted_tokens = predicted_tokens
        self.token_ids: list[int] | None = None if token_ids is None else list(token_ids)
        self.hash_ids = hash_ids
        self.hash_block_size = hash_block_size
        self.prefix_group = prefix_group
        self.prefix_tokens = prefix_tokens

        self.state = State.WAITING
        self.finish_reason: FinishReason | None = None
        self.output_tokens = 0
        #: Known tokens (prompt and output) that are not in the KV cache.
        self.pending_tokens = prompt_tokens
        self.preemptions = 0
        #: Steps in which a later request passed this one since it began to wait.
        self.skips = 0
        #: Its place in the waiting line, from the policy: lower is served first.
        self.rank: Any = None
        #: The output_tokens at which a decode needs a second look: it ends, or its blocks change.
        self.checkpoint = max_tokens
        #: KV blocks that it holds.
        self.held = 0
        #: With prefix caching, those blocks in order, and the keys of its full ones.
        self.blocks: list[Block] = []
        self.block_keys: list[Hashable] = []

    @property
    def known_tokens(self) -> int:
        """Prompt tokens and output tokens so far."""
        return self.prompt_tokens + self.output_tokens

    @property
    def computed_tokens(self) -> int:
        """Tokens in the KV cache."""
        return self.prompt_tokens + self.output_tokens - self.pending_tokens

    def move(self, to: State) -> None:
        """Change state. Raises `IllegalTransitionError` for a change that is not in the table."""
        if to not in LEGAL_TRANSITIONS[self.state]:
            raise IllegalTransitionError(
                f"request {self.id!r} cannot go from {self.state.name} to {to.name}"
            )
        self.state = to

    def __repr__(self) -> str:
        return (
            f"Request({self.id!r}, {self.state.name}, "
            f"{self.computed_tokens} of {self.known_tokens} tokens computed, "
            f"{self.output_tokens} of {self.max_tokens} generated)"
        )


def _check(id: str, name: str, value: object, least: int, most: int = MAX_COUNT) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise RequestError(
            f"request {id!r}: {name} must be a whole number from {least:,} to {most:,} "
            f"(got {value!r})"
        )
