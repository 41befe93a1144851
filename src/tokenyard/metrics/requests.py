"""One row for each request of a run, as columns: what became of it, and when."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tokenyard.engine.ticks import TICKS_PER_SECOND

if TYPE_CHECKING:
    import polars as pl

Ticks = NDArray[np.int64]
Counts = NDArray[np.integer[Any]]
Mask = NDArray[np.bool_]


class Reason(enum.IntEnum):
    """Why a request left, as a small number. Those up to LENGTH have finished their output."""

    STOP = 0
    LENGTH = 1
    ABORTED = 2
    REJECTED = 3
    UNFINISHED = 4
    """It was still in the system when the run, or what is known of it, ended."""


@dataclass(kw_only=True, eq=False)
class RequestTable:
    """What became of each request that arrived, in order of arrival; one entry a request.

    Times are int64 ticks, -1 where it never came to that; counts are int32, or int64 where they
    are shared with a workload. A row takes 73 bytes beside its id.
    """

    arrival: Ticks
    admitted: Ticks
    """Start of the first step that scheduled the request."""
    first_token: Ticks
    """End of the step that gave its first output token."""
    finished: Ticks
    """End of the step that gave its last output token; for an aborted one, when it was aborted; -1
    for one rejected or unfinished."""
    prompt_tokens: Counts
    output_tokens: Counts
    """Tokens generated, which for an aborted request are fewer than it wanted."""
    reason: NDArray[np.int8]
    """A `Reason`."""
    preemptions: Counts
    recomputed_tokens: Ticks
    """Tokens that a preemption threw out of the KV cache and that were prefilled again (int64)."""
    cached_tokens: Ticks
    """Tokens found in the prefix cache, summed over admissions (int64)."""
    largest_itl: Ticks
    """The longest time between two of its output tokens; -1 with fewer than two."""
    priority: Counts
    ids: Sequence[str] | None = None
    """None: the row of the request in its file, counted from 1, which `rows` holds."""
    rows: NDArray[np.int64] | None = None
    """Row in the file of each request. None: 1, 2, 3 …"""

    def __len__(self) -> int:
        return len(self.arrival)

    def id(self, place: int) -> str:
        """The id of request number `place` (from 0)."""
        if self.ids is not None:
            return self.ids[place]
        return str(place + 1 if self.rows is None else self.rows[place])

    def done(self) -> Mask:
        """Whether each request finished its output (stop or length)."""
        return self.reason <= Reason.LENGTH

    # Each of these is a fresh array of int64 ticks, with an entry for each request that has one.

    def queueing(self) -> Ticks:
        """Arrival to first scheduled."""
        return _difference(self.admitted, self.arrival, self.admitted >= 0)

    def ttft(self) -> Ticks:
        """Arrival to first output token."""
        return _difference(self.first_token, self.arrival, self.first_token >= 0)

    def itl(self) -> Ticks:
        """The largest time between two output tokens, of each request with at least two."""
        return self.largest_itl[self.largest_itl >= 0]

    def tpot(self) -> Ticks:
        """Mean time of the output tokens after the first, rounded down to a tick, of each finished
        request with at least two."""
        several = self.done() & (self.output_tokens > 1)
        tpot = _difference(self.finished, self.first_token, several)
        tpot //= self.output_tokens[several] - 1
        return tpot

    def e2e(self) -> Ticks:
        """Arrival to last output token, of each finished request."""
        return _difference(self.finished, self.arrival, self.done())

    def to_polars(self) -> pl.LazyFrame:
        """The table for people: seconds as floats, then exact ticks; null where there is none."""
        import polars as pl

        moments = {
            "arrival": self.arrival,
            "admitted": self.admitted,
            "first_token": self.first_token,
            "finished": self.finished,
            "largest_itl": self.largest_itl,
        }
        counts = (
            "prompt_tokens",
            "output_tokens",
            "preemptions",
            "cached_tokens",
            "recomputed_tokens",
            "priority",
        )
        columns: dict[str, Any] = {name: getattr(self, name) for name in ("reason", *counts)}
        columns |= {f"{name}_ticks": moment for name, moment in moments.items()}
        if self.ids is not None:
            columns["id"] = self.ids
        elif self.rows is not None:
            columns["id"] = self.rows
        frame = pl.DataFrame(columns).lazy()
        if self.ids is None and self.rows is None:
            frame = frame.with_row_index("id", offset=1)

        def moment(name: str) -> pl.Expr:
            ticks = pl.col(f"{name}_ticks")
            return pl.when(ticks >= 0).then(ticks)

        def in_seconds(ticks: pl.Expr) -> pl.Expr:
            # NumPy divides. Polars multiplies by the reciprocal: 1 s becomes 0.9999999999999999.
            return ticks.map_batches(
                lambda part: pl.Series(part.to_numpy() / TICKS_PER_SECOND, nan_to_null=True),
                return_dtype=pl.Float64,
                is_elementwise=True,
            )

        done = pl.col("reason") <= int(Reason.LENGTH)
        finished = pl.when(done).then(moment("finished"))
        gaps = pl.when(pl.col("output_tokens") > 1).then(pl.col("output_tokens") - 1)
        seconds = {
            "arrival_s": moment("arrival"),
            "queueing_s": moment("admitted") - moment("arrival"),
            "ttft_s": moment("first_token") - moment("arrival"),
            "tpot_s": (finished - moment("first_token")) // gaps,
            "largest_itl_s": moment("largest_itl"),
            "e2e_s": finished - moment("arrival"),
        }
        words = {int(reason): reason.name.lower() for reason in Reason}
        return frame.select(
            pl.col("id").cast(pl.String),
            pl.col("reason").replace_strict(words, return_dtype=pl.String),
            *counts,
            *(in_seconds(ticks).alias(name) for name, ticks in seconds.items()),
            *(moment(name).alias(f"{name}_ticks") for name in moments),
        )

    def write_parquet(self, path: str | Path) -> None:
        """Write `to_polars()` as a Parquet file, in parts, so that it never is in memory as a
        whole. Raises `OSError` where the file cannot be written."""
        self.to_polars().sink_parquet(path)


def _difference(later: Ticks, earlier: Ticks, which: Mask) -> Ticks:
    if which.all():
        return later - earlier
    difference = later[which]
    difference -= earlier[which]
    return difference
