"""What a command returns to the shell."""

from __future__ import annotations

OK, FINDING, BAD_INPUT = 0, 1, 2
INTERRUPTED = 130
"""As shells have it: 128 and the number of SIGINT. The work was neither done nor wrong."""


class UsageError(ValueError):
    """Flags that cannot be, or do not go together."""
