"""How long a step takes: a linear model in whole ticks (`docs/step-time.md`)."""

from __future__ import annotations

from dataclasses import dataclass

from tokenyard.core import Batch, Request
from tokenyard.engine.ticks import TICKS_PER_SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """The duration of a step: a fixed part, and a part for each thing that it does. Whole ticks, so
    that sums over many steps are exact."""

    fixed: int
    """Ticks of every step, whatever it does."""
    per_prefill_token: int = 0
    """Ticks for each token that is prefilled."""
    per_attention_pair: int = 0
    """Ticks for each pair of tokens that attend to each other in prefills."""
    per_decode: int = 0
    """Ticks for each request that decodes."""
    per_kv_token: int = 0
    """Ticks for each token in the KV cache that decodes read."""

    def duration(
        self, prefill_tokens: int, attention_pairs: int, decodes: int, kv_tokens: int
    ) -> int:
        """Ticks of a step. `attention_pairs`: see `attention_pairs()`, summed over the prefills;
        `kv_tokens`: tokens in the KV cache before the step, summed over the decodes."""
        return (
            self.fixed
            + self.per_prefill_token * prefill_tokens
            + self.per_attention_pair * attention_pairs
            + self.per_decode * decodes
            + self.per_kv_token * kv_tokens
        )


UNIT = StepTime(fixed=TICKS_PER_SECOND)
"""One second a step, so that times read as step counts."""


def attention_pairs(computed: int, tokens: int) -> int:
    """Pairs of tokens that attend to each other when `tokens` are prefilled after `computed`: each
    new token with every one before it and with itself."""
    return tokens * computed + tokens * (tokens + 1) // 2


def batch_duration(step_time: StepTime, batch: Batch) -> int:
    """Ticks that a batch takes, before it is committed."""
    return step_time.duration(
        batch.prefill_tokens,
        sum(attention_pairs(request.computed_tokens, tokens) for request, tokens in batch.prefill),
        len(batch.decode),
        sum(map(_computed, batch.decode)) if step_time.per_kv_token else 0,
    )


def _computed(request: Request) -> int:
    return request.computed_tokens
