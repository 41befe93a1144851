"""From the raw columns of a file to requests: what can be used, and why the rest cannot.

A quick look reads every row with Polars expressions. A second look takes the few rows in which it
left a gap, as texts, and says for each value what it is or why it is nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tokenyard.core.rules import MAX_COUNT
from tokenyard.workload.format import NUMBERS, REQUIRED, TEXTS, TIMES, UNITS, Format, Found
from tokenyard.workload.table import Table
from tokenyard.workload.times import ABSOLUTE, MixedZonesError, TimeColumn
from tokenyard.workload.workload import Column, Workload, WorkloadError

MAX_TICKS = 2**63 - 1
TOO_LONG = "the log spans more than the 2.9 years that ticks of 10 ps can count"

_LEAST = {"prompt_tokens": 1, "output_tokens": 1, "max_tokens": 1, "priority": -MAX_COUNT}
_PER_SECOND = UNITS["s"]
_SAMPLES = 100
_ROW = "\0row"


def usable(table: Table, format: Format, found: dict[str, Found]) -> Workload:
    """The requests that the table holds, in order of arrival, and the rows that are none counted by
    reason. Raises `WorkloadError` if there is no request at all; PolarsError if the file is broken.
    """
    columns = {field: where.column for field, where in found.items()}
    if "prefix_group" in found and "prefix_tokens" not in found:
        raise WorkloadError(
            f"{table.name}: column {columns['prefix_group']!r} needs a column prefix_tokens beside "
            "it: how many tokens the requests of a group share"
        )
    times = {
        field: TimeColumn(
            where.column, where.unit, _samples(table, where.column), only_numbers=field != "arrival"
        )
        for field, where in found.items()
        if field in TIMES
    }
    frame = _quick_look(table, columns, times)
    sieve = _Sieve(table, len(frame))
    frame = _second_look(table, columns, times, frame, sieve)
    for field in NUMBERS:
        if field in found:
            _check_range(frame[field], field, columns[field], format, sieve)
    _check_others(frame, columns, sieve)
    if not sieve.left:
        raise WorkloadError(f"{table.name} ({format.name}): {sieve.nothing()}")
    numbered = times["arrival"].unit if times["arrival"].zoned is None else None
    return _workload(table, frame, sieve, numbered)


class _Sieve:
    """Which rows are out; each counts once, by the first reason that is given."""

    def __init__(self, table: Table, rows: int) -> None:
        self.table = table
        self.out: NDArray[np.bool_] = np.zeros(rows, dtype=bool)
        self.left = rows
        self.skipped: dict[str, int] = {}
        self.examples: dict[str, str] = {}
        for line, text in table.broken:
            self._count("not a JSON object", 1, f"line {line:,}: {text!r}")

    def strike(self, rows: NDArray[Any], reason: str, value: Callable[[int], object]) -> None:
        """Takes out those of `rows` (in order) that are not out yet. `value` of a row is what
        stood there."""
        fresh = rows[~self.out[rows]]
        if len(fresh):
            self.out[fresh] = True
            self.left -= len(fresh)
            first = int(fresh[0])
            place, said = self.table.place(first), value(first)
            if isinstance(said, pl.Series):
                said = said.to_list()
            self._count(reason, len(fresh), place if said in (None, "") else f"{place}: {said!r}")

    def _count(self, reason: str, rows: int, example: str) -> None:
        self.skipped[reason] = self.skipped.get(reason, 0) + rows
        self.examples.setdefault(reason, example)

    def nothing(self) -> str:
        """Why there is no request at all."""
        total = sum(self.skipped.values())
        if not total:
            return "there is a header but no row"
        reasons = "; ".join(
            f"{count:,} × {reason} ({self.examples[reason]})"
            for reason, count in self.skipped.items()
        )
        return f"none of its {total:,} rows can be used: {reasons}"


# --- the quick look ---


def _samples(table: Table, column: str) -> list[str]:
    """The first values of a column, as texts."""
    first = table.scan_texts([column]).head(_SAMPLES).collect()
    return [text for text in first.to_series().to_list() if text and text.strip()]


def _quick_look(
    table: Table, columns: dict[str, str], times: dict[str, TimeColumn]
) -> pl.DataFrame:
    """One column a field: times as ticks (Int128), numbers as Int64, both null where the quick look
    cannot read them."""
    names = list(dict.fromkeys(columns.values()))
    whole = [columns[field] for field in NUMBERS if field in columns]
    try:
        return _collect(table.scan(names, whole), columns, times)
    except pl.exceptions.PolarsError:  # some value is not a number, or not in UTF-8
        return _collect(table.scan(names, []), columns, times)


def _collect(
    raw: pl.LazyFrame, columns: dict[str, str], times: dict[str, TimeColumn]
) -> pl.DataFrame:
    schema = raw.collect_schema()
    chosen = []
    for field, column in columns.items():
        if field in TIMES:
            parts, expression = times[field].quick(schema[column])
            raw = raw.with_columns(parts)
        elif field in NUMBERS:
            expression = _whole(pl.col(column), schema[column])
        elif field in TEXTS:
            expression = pl.col(column).cast(pl.String)
        else:
            expression = pl.col(column)
        chosen.append(expression.alias(field))
    return raw.select(chosen).collect(engine="streaming")


def _whole(raw: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """Whole numbers as Int64, null for what is none."""
    if dtype.is_integer() or dtype == pl.String:
        return raw.cast(pl.Int64, strict=False)
    if dtype.is_numeric():
        value = raw.cast(pl.Float64, strict=False)
        return pl.when(value == value.floor()).then(value.cast(pl.Int64, strict=False))
    return pl.lit(None, pl.Int64)


# --- the second look ---


def _second_look(
    table: Table,
    columns: dict[str, str],
    times: dict[str, TimeColumn],
    frame: pl.DataFrame,
    sieve: _Sieve,
) -> pl.DataFrame:
    """Fills the gaps of the quick look where the text can be read after all; strikes rows that lack
    a required field or whose text is wrong."""
    gaps = [f for f in columns if f in (*TIMES, *NUMBERS) and frame[f].null_count()]
    if not gaps:
        return frame
    rows = frame.select(pl.any_horizontal(pl.col(gaps).is_null()).arg_true()).to_series()
    texts = (
        table.scan_texts(list(dict.fromkeys(columns[field] for field in gaps)))
        .with_row_index(_ROW)
        .join(pl.LazyFrame({_ROW: rows}), on=_ROW, how="semi")
        .sort(_ROW)
        .collect()
    )
    for field in gaps:
        column = columns[field]
        empty = frame[field].gather(rows).is_null()
        at, said = rows.filter(empty), texts[column].filter(empty).str.strip_chars()
        if field in times:
            values, wrong = _second_times(table, column, times[field], at, said)
        else:
            values, wrong = _second_numbers(said)
        read = values.is_not_null()
        frame = frame.with_columns(
            frame[field].scatter(at.filter(read), values.filter(read).cast(frame.schema[field]))
        )
        missing = said.is_null() | (said == "")
        if field in REQUIRED:
            sieve.strike(at.filter(missing).to_numpy(), f"{column} missing", lambda _: "")
        for reason, mask in wrong.items():
            mask = (mask & ~read & ~missing).fill_null(False)
            sieve.strike(
                at.filter(mask).to_numpy(),
                f"{column} {reason}",
                partial(_at, at, said),
            )
    return frame


def _at(rows: pl.Series, texts: pl.Series, row: int) -> object:
    return texts.filter(rows == row)[0]


def _second_times(
    table: Table, column: str, time: TimeColumn, at: pl.Series, said: pl.Series
) -> tuple[pl.Series, dict[str, pl.Series]]:
    ticks = []
    for row, text in zip(at, said, strict=True):
        try:
            ticks.append(time.read(text) if text else None)
        except MixedZonesError:
            raise WorkloadError(
                f"{table.name}: {table.place(row)}: {column} {text!r} has "
                f"{'no' if time.zoned else 'a'} time zone, while that of the first rows has "
                f"{'one' if time.zoned else 'none'}: give every timestamp a zone, or none"
            ) from None
    values = pl.Series(ticks, dtype=ABSOLUTE)
    kind = "a number" if time.zoned is None else "a timestamp"
    return values, {f"is not {kind}": values.is_null()}


def _second_numbers(said: pl.Series) -> tuple[pl.Series, dict[str, pl.Series]]:
    number = said.cast(pl.Float64, strict=False)
    sane = number.abs() < 2.0**53
    whole = sane & (number == number.floor())
    values = pl.select(pl.when(whole).then(number)).to_series().cast(pl.Int64, strict=False)
    return values, {
        "is not a number": number.is_null() | number.is_nan(),
        f"above {MAX_COUNT:,}": ~sane & (number > 0),
        f"below -{MAX_COUNT:,}": ~sane & (number < 0),
        "is not a whole number": ~whole,
    }


# --- what a value may be ---


def _check_range(values: pl.Series, field: str, column: str, format: Format, sieve: _Sieve) -> None:
    least = _LEAST.get(field, 0)
    low, high = values.min(), values.max()
    if low is None or (low >= least and high <= MAX_COUNT):  # type: ignore[operator]
        return
    zero = format.failed if field == "output_tokens" and format.failed else f"{column} is 0"
    for reason, mask in (
        (zero, (values == 0) & (least > 0)),
        (f"{column} is negative", (values < 0) & (least >= 0)),
        (f"{column} below {least:,}", values < least),
        (f"{column} above {MAX_COUNT:,}", values > MAX_COUNT),
    ):
        sieve.strike(mask.fill_null(False).arg_true().to_numpy(), reason, values.__getitem__)


def _check_others(frame: pl.DataFrame, columns: dict[str, str], sieve: _Sieve) -> None:
    """What is wrong between the fields of a row, and between rows."""

    def strike(reason: str, mask: pl.Expr, show: str) -> None:
        rows = frame.select(mask.fill_null(False).arg_true()).to_series().to_numpy()
        sieve.strike(rows, reason, frame[show].__getitem__)

    if "max_tokens" in frame.columns:
        strike(
            f"{columns['max_tokens']} below {columns['output_tokens']}",
            pl.col("max_tokens") < pl.col("output_tokens"),
            "max_tokens",
        )
    if "predicted_tokens" in frame.columns:
        column = columns["predicted_tokens"]
        strike(f"{column} missing", pl.col("predicted_tokens").is_null(), "predicted_tokens")
    if "deadline" in frame.columns:
        column = columns["deadline"]
        strike(f"{column} is negative", pl.col("deadline") < 0, "deadline")
        strike(f"{column} is beyond 2.9 years", pl.col("deadline") > MAX_TICKS, "deadline")
    if "hash_ids" in frame.columns:
        column, size = columns["hash_ids"], _hash_block_size(frame)
        if not isinstance(frame.schema["hash_ids"], pl.List):
            raise WorkloadError(
                f"{sieve.table.name}: column {column!r} must hold lists of whole numbers"
            )
        strike(
            f"{column} missing, or not a list of whole numbers",
            pl.col("hash_ids").is_null()
            | pl.col("hash_ids").list.eval(pl.element().is_null()).list.any(),
            "hash_ids",
        )
        strike(
            f"{column} not one for each {size} prompt tokens",
            pl.col("hash_ids").list.len() != (pl.col("prompt_tokens") + size - 1) // size,
            "hash_ids",
        )
    if "id" in frame.columns:
        column = columns["id"]
        strike(f"{column} missing", pl.col("id").is_null() | (pl.col("id") == ""), "id")
        left = frame["id"].filter(pl.Series(~sieve.out))
        again = np.flatnonzero(~sieve.out)[(~left.is_first_distinct()).to_numpy()]
        sieve.strike(again, f"{column} repeated", frame["id"].__getitem__)


def _hash_block_size(frame: pl.DataFrame) -> int:
    if "hash_block_size" not in frame.columns:
        return 512
    sizes = frame["hash_block_size"].cast(pl.Int64, strict=False).unique()
    if len(sizes) != 1 or sizes[0] is None or not 1 <= sizes[0] <= MAX_COUNT:
        raise WorkloadError(
            f"hash_block_size must be one whole number from 1, the same in every row "
            f"(got {sizes.sort().to_list()[:5]})"
        )
    return int(sizes[0])


# --- the workload ---


def _workload(table: Table, frame: pl.DataFrame, sieve: _Sieve, numbered: str | None) -> Workload:
    """The rows that are left, sorted by arrival. `numbered`: the unit of arrivals, where these are
    numbers."""
    rows: Column | None = None
    if sieve.left < len(frame):
        keep = ~sieve.out
        frame = frame.filter(pl.Series(keep))
        rows = np.flatnonzero(keep)
    if numbered == "s" and frame["arrival"].min() > 10**11 * _PER_SECOND:  # type: ignore[operator]
        raise WorkloadError(
            f"{table.name}: arrivals such as {frame['arrival'][0] // _PER_SECOND} are no seconds, "
            "not even since 1970: if they are milliseconds, name the column timestamp_ms"
        )
    arrival = _from_first(table, frame["arrival"])
    if (arrival[1:] < arrival[:-1]).any():
        order = np.argsort(arrival, kind="stable")
        arrival = arrival[order]
        frame = frame[order]
        rows = order if rows is None else rows[order]
    if table.rows is not None:
        rows = table.rows if rows is None else table.rows[rows]
    elif rows is not None:
        rows = rows + 1

    def numbers(field: str, default: int = 0) -> Column | None:
        if field not in frame.columns:
            return None
        column = frame[field]
        if column.null_count():
            column = column.fill_null(default)
        return column.cast(pl.Int64).to_numpy(writable=True)

    prompt_tokens, output_tokens = numbers("prompt_tokens"), numbers("output_tokens")
    assert prompt_tokens is not None and output_tokens is not None
    max_tokens = numbers("max_tokens", -1)
    if max_tokens is not None:
        max_tokens = np.where(max_tokens < 0, output_tokens, max_tokens)
    prefix_tokens = numbers("prefix_tokens")
    if prefix_tokens is not None:
        prefix_tokens = np.minimum(prefix_tokens, prompt_tokens)
    texts = {field: frame[field].to_list() for field in TEXTS if field in frame.columns}
    hashed = "hash_ids" in frame.columns
    return Workload(
        arrival=arrival,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        ids=texts.get("id"),
        rows=rows,
        max_tokens=max_tokens,
        priority=numbers("priority"),
        predicted_tokens=numbers("predicted_tokens"),
        deadline=numbers("deadline", -1),
        hash_ids=[tuple(ids) for ids in frame["hash_ids"].to_list()] if hashed else None,
        hash_block_size=_hash_block_size(frame) if hashed else 512,
        prefix_group=texts.get("prefix_group"),
        prefix_tokens=prefix_tokens,
        skipped=sieve.skipped,
        skipped_examples=sieve.examples,
    )


def _from_first(table: Table, absolute: pl.Series) -> Column:
    """Ticks since 1970 (or any other origin) as ticks from the first arrival."""
    first, last = absolute.min(), absolute.max()
    if last - first > MAX_TICKS:  # type: ignore[operator]
        years = (last - first) / (365.25 * 86_400 * 10**11)  # type: ignore[operator]
        raise WorkloadError(
            f"{table.name}: {TOO_LONG} (first to last arrival: {years:,.1f} years). If "
            "arrivals are numbers of milliseconds, name the column timestamp_ms"
        )
    relative = (absolute - pl.lit(first, absolute.dtype)).cast(pl.Int64)
    return pl.select(relative).to_series().to_numpy(writable=True)
