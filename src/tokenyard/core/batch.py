"""What one step runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from tokenyard.core.request import Request


@dataclass(slots=True)
class Batch:
    """The plan of one step, from `Scheduler.schedule()`, to be executed and then committed."""

    decode: list[Request] = field(default_factory=list)
    """Requests that get one token each, in order of scheduling."""
    prefill: list[tuple[Request, int]] = field(default_factory=list)
    """Requests and how many of their tokens are put into the KV cache, in order of scheduling."""
    cached: list[tuple[Request, int]] = field(default_factory=list)
    """Admitted requests and how many of their tokens were found in the prefix cache."""
    preempted: list[Request] = field(default_factory=list)
    """Requests that gave up their blocks, in order."""
    first_token_with_prefill: bool = True
    """Whether the end of a prefill brings an output token: the rule first_token."""

    def __bool__(self) -> bool:
        """Whether the step does anything at all."""
        return bool(self.decode or self.prefill or self.preempted)

    @property
    def prefill_tokens(self) -> int:
        """Tokens prefilled in this step."""
        return sum(tokens for _, tokens in self.prefill)

    def sampled(self) -> list[Request]:
        """Who gets an output token from this batch, before it is committed: every decode, and with
        the first token coming with the prefill, whoever completes its prefill."""
        if not self.first_token_with_prefill:
            return self.decode.copy()
        return self.decode + [
            request for request, tokens in self.prefill if tokens == request.pending_tokens
        ]

    def remove(self, request: Request) -> int:
        """Take a request out of the plan; returns how many tokens it had in it."""
        if request in self.decode:
            self.decode.remove(request)
            return 1
        for place, (planned, tokens) in enumerate(self.prefill):
            if planned is request:
                del self.prefill[place]
                self.cached = [entry for entry in self.cached if entry[0] is not request]
                return tokens
        return 0
