"""Time as a whole number of ticks of 10 ps, so that sums over many steps are exact in int64."""

from __future__ import annotations

TICKS_PER_SECOND = 100_000_000_000
TICK_S = 1e-11


def ticks(seconds: float) -> int:
    """Seconds as ticks, to the nearest."""
    return round(seconds * TICKS_PER_SECOND)


def seconds(ticks: int) -> float:
    """Ticks as seconds."""
    return ticks / TICKS_PER_SECOND
