"""A service-level objective: the most that a request may take."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from fractions import Fraction

import numpy as np

from tokenyard.engine.ticks import TICKS_PER_SECOND
from tokenyard.metrics.requests import Mask, RequestTable

UNITS = {
    "us": TICKS_PER_SECOND // 1_000_000,
    "ms": TICKS_PER_SECOND // 1_000,
    "s": TICKS_PER_SECOND,
    "m": 60 * TICKS_PER_SECOND,
}
ROWS_AT_ONCE = 1 << 16  # of a table, so that what is computed of them stays in the CPU's cache


class SloError(ValueError):
    """A text is not an SLO; the message names the part that is wrong and what was expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Limits in ticks; None: no such limit. A request meets it if it finished its output (stop or
    length) and none of its times is above its limit. What a request does not have, as TPOT and
    ITL with a single output token, is no breach."""

    ttft: int | None = None
    tpot: int | None = None
    itl: int | None = None
    e2e: int | None = None

    def met(self, table: RequestTable) -> Mask:
        """Whether each request of the table meets it."""
        met = table.done()
        for begin in range(0, len(table), ROWS_AT_ONCE):
            rows = slice(begin, begin + ROWS_AT_ONCE)
            arrival, first, finished = (
                column[rows] for column in (table.arrival, table.first_token, table.finished)
            )
            if self.ttft is not None:
                met[rows] &= first - arrival <= self.ttft
            if self.tpot is not None:
                gaps = np.maximum(table.output_tokens[rows] - 1, 1)
                met[rows] &= (finished - first) // gaps <= self.tpot
            if self.itl is not None:
                met[rows] &= table.largest_itl[rows] <= self.itl
            if self.e2e is not None:
                met[rows] &= finished - arrival <= self.e2e
        return met

    def limits(self) -> dict[str, float]:
        """The limits that it sets, by name, in seconds."""
        limits = {name: getattr(self, name) for name in NAMES}
        return {
            name: limit / TICKS_PER_SECOND for name, limit in limits.items() if limit is not None
        }


NAMES = tuple(field.name for field in fields(Slo))


def parse_slo(text: str) -> Slo:
    """An SLO from limits like `ttft=1s,tpot=50ms`: ttft, tpot, itl, e2e; units us, ms, s, m.
    A part of a tick is dropped. Raises `SloError`."""
    limits: dict[str, int] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise SloError(f"SLO {text!r}: expected limits like ttft=1s,tpot=50ms (got {part!r})")
        if name not in NAMES:
            raise SloError(f"SLO {text!r}: no limit {name!r}; there are {', '.join(NAMES)}")
        if name in limits:
            raise SloError(f"SLO {text!r}: {name} is given twice")
        limits[name] = _parse_ticks(text, name, value)
    return Slo(**limits)


def _parse_ticks(text: str, name: str, value: str) -> int:
    match = re.fullmatch(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([a-z]+)", value)
    if not match or match[2] not in UNITS:
        raise SloError(
            f"SLO {text!r}: {name} must be a number with a unit of {', '.join(UNITS)}, "
            f"like 50ms (got {value!r})"
        )
    ticks = int(Fraction(match[1]) * UNITS[match[2]])
    if not 0 < ticks < 2**63:
        raise SloError(
            f"SLO {text!r}: {name} must be from {1 / TICKS_PER_SECOND:g} s to "
            f"{2**63 // TICKS_PER_SECOND:,} s (got {value!r})"
        )
    return ticks
