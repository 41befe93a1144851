"""What a run adds up to, step by step."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tokenyard.core import Rules


@dataclass(slots=True)
class Rejected:
    """Requests that were rejected for the same kind of reason."""

    count: int
    example: str
    """The reason given to the first of them, with its numbers."""


@dataclass(slots=True, kw_only=True)
class RunSums:
    """Sums over the steps of a run, so far. A step counts if it ran a request or took time.

    `RunSums.of(rules)` begins one; whoever runs the steps adds to it.
    """

    step_budget: int | None
    """Tokens that one step may hold, decode and prefill together (None: no bound)."""
    num_blocks: int | None
    """KV cache blocks that there are (None: memory is not modelled)."""
    steps: int = 0
    start: int = -1
    """Ticks at which the first step started (-1: none has)."""
    end: int = -1
    """Ticks at which the last step ended (-1: none has)."""
    busy: int = 0
    """Ticks spent in steps."""
    prefill_tokens: int = 0
    decode_tokens: int = 0
    scheduled_requests: int = 0
    """Sum of the batch sizes: requests in a step, in prefill or decode."""
    largest_batch: int = 0
    peak_blocks: int | None = None
    """Most blocks in use after a step (None: nobody told)."""
    rejected: dict[str, Rejected] = field(default_factory=dict)
    """By kind of reason: the reason with each number as N."""

    @classmethod
    def of(cls, rules: Rules) -> RunSums:
        """Nothing yet, under these rules."""
        budget = rules.max_num_batched_tokens
        if budget is not None and rules.prefill_token_budget is not None:
            budget += rules.prefill_token_budget  # the two are separate
        return cls(step_budget=budget, num_blocks=rules.num_blocks)

    @property
    def idle(self) -> int:
        """Ticks between steps."""
        return self.end - self.start - self.busy

    def reject(self, reason: str) -> None:
        """Count a rejected request under its kind of reason."""
        kind = re.sub(r"\d+", "N", reason)
        if kind in self.rejected:
            self.rejected[kind].count += 1
        else:
            self.rejected[kind] = Rejected(1, reason)
