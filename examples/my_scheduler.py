"""A scheduler that `tokenyard check examples/my_scheduler.py` finds nothing wrong with.

Four states: a request waits in `waiting`, is prefilled in one step, decodes in `running`, and is
gone when it has its tokens. Each step decodes first, and lets waiting requests in while their
whole prompt fits into what is left.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass
class Request:
    """A request, and how many output tokens it still has to get."""

    id: str
    prompt_tokens: int
    tokens_left: int


class MyScheduler:
    """`capacity` tokens a step: one for each decode, all of a prompt for a prefill."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def add_request(self, request_id: str, prompt_tokens: int, output_tokens: int) -> None:
        """Queue a request. Raises `ValueError` if it could never run."""
        if prompt_tokens > self.capacity:
            raise ValueError(f"a prompt of {prompt_tokens} never fits into {self.capacity}")
        self.waiting.append(Request(request_id, prompt_tokens, output_tokens))

    def has_work(self) -> bool:
        """Whether a request has not finished."""
        return bool(self.waiting or self.running)

    def step(self) -> dict[str, list[str]]:
        """Run one step, and say who ran in it."""
        decode = list(self.running)
        budget = self.capacity - len(decode)
        prefill = []
        while self.waiting and self.waiting[0].prompt_tokens <= budget:
            request = self.waiting.popleft()
            budget -= request.prompt_tokens
            prefill.append(request)

        for request in decode:
            request.tokens_left -= 1
        finished = [request for request in decode if request.tokens_left == 0]
        self.running = [request for request in decode if request.tokens_left > 0] + prefill
        return {
            "decode": [request.id for request in decode],
            "prefill": [request.id for request in prefill],
            "finished": [request.id for request in finished],
        }
