"""Ctrl-C: the first ends the work in good order, the second ends the process."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any


class FirstInterrupt:
    """While it is open, the first Ctrl-C only sets `noted`; after it, the next one kills."""

    noted = False
    _before: Any = None

    def __enter__(self) -> FirstInterrupt:
        self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _note(self, _signal: int, _frame: FrameType | None) -> None:
        self.noted = True
        signal.signal(signal.SIGINT, signal.SIG_DFL)
