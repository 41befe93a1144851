"""A progress bar on stderr, where that is a terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType

EVERY_S = 0.1
"""Seconds between two looks at the bar."""


class Progress:
    """Shows how many of `total` (None: nobody knows) are done; costs a look at the clock each
    time."""

    def __init__(self, what: str, total: int | None) -> None:
        self._what, self._total = what, total
        self._done, self._next_look = 0, 0.0
        self._bar = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )

    def __enter__(self) -> Progress:
        if self._bar:
            self._bar.start()
            self._bar.add_task(self._what, total=self._total)
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _tb: TracebackType | None,
    ) -> None:
        if self._bar:
            self._bar.stop()

    def advance(self, number: int = 1) -> None:
        """So many more are done."""
        self.reach(self._done + number)

    def reach(self, done: int) -> None:
        """So many are done in all."""
        self._done = done
        if self._bar is not None and (now := time.monotonic()) >= self._next_look:
            self._next_look = now + EVERY_S
            self._bar.update(self._bar.task_ids[0], completed=done)
