"""What a format of request logs calls its columns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: Ticks in one of each unit in which times come.
UNITS: dict[str, int] = {
    "s": 100_000_000_000,
    "ms": 100_000_000,
    "us": 100_000,
    "ns": 100,
    "ticks": 1,
}

#: Fields without which a row is no request.
REQUIRED = ("arrival", "prompt_tokens", "output_tokens")

TIMES = ("arrival", "deadline")
COUNTS = ("prompt_tokens", "output_tokens", "max_tokens", "predicted_tokens", "prefix_tokens")
NUMBERS = (*COUNTS, "priority")
TEXTS = ("id", "prefix_group")


@dataclass(frozen=True)
class Format:
    """A format: its name, and for each field of a request the columns that may hold it.

    Column names are compared without case, spaces and punctuation; of several that match, the
    first in the list is taken. A column of times may say its unit as ("name", "ms"): this holds
    where the values are numbers (seconds if nothing is said).
    """

    name: str
    columns: Mapping[str, Sequence[str | tuple[str, str]]]
    failed: str | None = None
    """In formats where an output of 0 tokens marks a request that failed: how to call that."""

    def find(self, names: Sequence[str]) -> dict[str, Found] | None:
        """Which column holds which field; None if a required field has none."""
        by_plain: dict[str, str] = {}
        for name in names:
            by_plain.setdefault(plain(name), name)
        found = {}
        for field, candidates in self.columns.items():
            for candidate in candidates:
                wanted, unit = candidate if isinstance(candidate, tuple) else (candidate, "s")
                if (column := by_plain.get(plain(wanted))) is not None:
                    found[field] = Found(column, unit)
                    break
        return found if all(field in found for field in REQUIRED) else None


@dataclass(frozen=True)
class Found:
    """The column that holds a field, and the unit of its numbers if it is one of times."""

    column: str
    unit: str


def plain(name: str) -> str:
    """A column's name without case, spaces and punctuation."""
    return re.sub(r"[\W_]+", "", name.lower())
