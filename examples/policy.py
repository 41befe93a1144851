"""A policy of your own: a class with one method, named on the command line as module:Class.

tokenyard run examples/requests.csv --policy examples.policy:ShortPromptFirst
"""

from __future__ import annotations

from typing import Any

from tokenyard.core import Request


class ShortPromptFirst:
    """The shortest prompt first, but nobody waits for ever: each second of waiting is worth as much
    as a prompt that is 1,000 tokens shorter."""

    TICKS_A_TOKEN = 100_000_000  # a millisecond, in ticks of 10 ps

    def key(self, request: Request) -> Any:
        """The lowest key goes first. All requests wait at the same pace, so a constant key is
        enough: who came earlier is ahead by as much as it has waited longer."""
        return request.arrival + request.prompt_tokens * self.TICKS_A_TOKEN
