"""The questions that a scheduler leaves open, and the answers that one run gives them.

Fields carry vLLM's names where vLLM has the field. Two presets: `Rules.textbook(capacity)` is the
four-state exercise as it is asked; `Rules.vllm()` decides as vLLM's V1 scheduler does.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

RunningOrder = Literal["decode_first", "admission"]
HeadOfLine = Literal["block", "skip"]
Preemption = Literal["recompute", "none"]
FirstToken = Literal["prefill", "next_step"]

#: No count in a rule or a request may exceed this: far above any real one, far below an overflow.
MAX_COUNT = 1_000_000_000


class RulesError(ValueError):
    """A rule has a value that it cannot have, or two rules contradict each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a step may hold, who goes first, and what happens when memory runs out.

    Raises `RulesError`, which names the field and the value, when a value is out of range.
    """

    max_num_batched_tokens: int | None = 2048
    """Tokens that one step may hold, decode and prefill together (None: no bound)."""

    max_num_seqs: int | None = 128
    """Requests that may run (prefill or decode) at once (None: no bound). With
    max_num_batched_tokens None this is a capacity counted in requests instead of tokens."""

    prefill_token_budget: int | None = None
    """None: prefill shares max_num_batched_tokens with decode. A number: prefill has this budget of
    its own, and max_num_batched_tokens bounds the decodes alone (there can then be more decoding
    requests than it holds: the excess keeps its place for the next step)."""

    enable_chunked_prefill: bool = True
    """Whether a prompt may be split over steps. If not, a prompt waits until it fits whole."""

    long_prefill_token_threshold: int = 0
    """With chunked prefill: most prompt tokens of one request in one step (0: no such bound). As in
    vLLM it has no effect in a step that begins with a single request in the system."""

    policy: str = "fcfs"
    """Order of the waiting requests: fcfs, priority (lower first), sjf (shortest predicted_tokens
    first), sjf-oracle (the same with the true length), or a class of yours as module:Class."""

    running_order: RunningOrder = "admission"
    """Who among the running is served first: decode_first (prefills already begun come after every
    decode), or admission (vLLM: one list in order of admission, whatever each is doing)."""

    head_of_line: HeadOfLine = "block"
    """When the first in line does not fit: block (nobody passes it), or skip (a later one that fits
    may pass, at most in max_skips steps)."""

    max_skips: int = 16
    """With head_of_line skip: the age bound. A request that was passed in this many steps is passed
    no more, so nobody starves."""

    preemption: Preemption = "recompute"
    """When KV blocks run out: recompute (the request that the policy would serve last gives up its
    blocks and waits; its tokens are computed again), or none (admission reserves the blocks of the
    prompt and max_tokens, so they never run out)."""

    first_token: FirstToken = "prefill"
    """When the first output token is there: prefill (with the step that ends the prefill, as in
    real engines), or next_step (one step later, as in the textbook)."""

    num_blocks: int | None = None
    """KV cache blocks that requests can hold (None: memory is not modelled). vLLM keeps one block
    for itself: its num_gpu_blocks is this number plus one."""

    block_size: int = 16
    """Tokens in a KV cache block."""

    enable_prefix_caching: bool = False
    """Whether full blocks with equal content, and equal content before them, are shared."""

    scheduler_reserve_full_isl: bool = True
    """Whether the blocks of the whole prompt must be free at admission, though only those of its
    first chunk are taken (False: only those of the first chunk must be free)."""

    def __post_init__(self) -> None:
        for name in (
            "max_num_batched_tokens",
            "max_num_seqs",
            "prefill_token_budget",
            "num_blocks",
        ):
            if (value := getattr(self, name)) is not None:
                _check_count(name, value, least=1)
        _check_count("block_size", self.block_size, least=1)
        _check_count("long_prefill_token_threshold", self.long_prefill_token_threshold, least=0)
        _check_count("max_skips", self.max_skips, least=0)
        for name, allowed in _CHOICES.items():
            if (value := getattr(self, name)) not in allowed:
                raise RulesError(f"{name} must be one of {', '.join(allowed)} (got {value!r})")
        for name in (
            "enable_chunked_prefill",
            "enable_prefix_caching",
            "scheduler_reserve_full_isl",
        ):
            if not isinstance(value := getattr(self, name), bool):
                raise RulesError(f"{name} must be true or false (got {value!r})")
        if not isinstance(self.policy, str) or not self.policy:
            raise RulesError(f"policy must be a name or module:Class (got {self.policy!r})")
        if self.long_prefill_token_threshold and not self.enable_chunked_prefill:
            raise RulesError(
                f"long_prefill_token_threshold {self.long_prefill_token_threshold} splits prompts, "
                "which enable_chunked_prefill false forbids: set one of the two"
            )

    @classmethod
    def textbook(cls, capacity: int | None, **changes: Any) -> Rules:
        """The four-state exercise: one token budget of `capacity`, decode first, whole prompts in
        order of arrival, no memory model, the first token one step after prefill."""
        textbook: dict[str, Any] = {
            "max_num_batched_tokens": capacity,
            "max_num_seqs": None,
            "enable_chunked_prefill": False,
            "running_order": "decode_first",
            "preemption": "none",
            "first_token": "next_step",
        }
        return cls(**(textbook | changes))

    @classmethod
    def vllm(cls, **changes: Any) -> Rules:
        """The decisions of vLLM's V1 scheduler; the defaults are those of its SchedulerConfig."""
        return cls(**changes)

    @property
    def prompt_budget(self) -> int | None:
        """The most prompt tokens that one step can hold (None: no bound)."""
        return self.prefill_token_budget or self.max_num_batched_tokens

    @property
    def unsampled(self) -> int:
        """Tokens of a decoding request that are known but not yet in the KV cache: with first_token
        prefill its newest token (1); with next_step none (0)."""
        return 1 if self.first_token == "prefill" else 0


_CHOICES: dict[str, tuple[str, ...]] = {
    "running_order": ("decode_first", "admission"),
    "head_of_line": ("block", "skip"),
    "preemption": ("recompute", "none"),
    "first_token": ("prefill", "next_step"),
}

RULE_NAMES: tuple[str, ...] = tuple(field.name for field in fields(Rules))


def _check_count(name: str, value: object, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_COUNT:
        raise RulesError(
            f"{name} must be a whole number from {least:,} to {MAX_COUNT:,} (got {value!r})"
        )
