"""Times of a log as whole ticks: from timestamps of any precision, or from numbers, exactly."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal, InvalidOperation

import polars as pl

from tokenyard.workload.format import UNITS

_PER_SECOND = UNITS["s"]
_DIGITS = 11
_MINUTE, _SECOND, _ZONE = "\0minute", "\0second", "\0zone"
#: Ticks of absolute times (since 1970) need more than 64 bits; differences do not.
ABSOLUTE = pl.Int128

_TIMESTAMP = re.compile(
    r"(\d{4}-\d\d-\d\d)([ T])(\d\d:\d\d:\d\d)(?:\.(\d+))?(\s?(?:Z|UTC|GMT|[+-]\d\d(?::?\d\d)?))?",
    re.ASCII,
)


def read_timestamp(text: str) -> tuple[int, bool] | None:
    """A timestamp such as 2024-05-10 00:00:00.0099300+00:00 as ticks since 1970 (digits beyond the
    11th are rounded), and whether it has a zone; None if the text is not one."""
    if (match := _TIMESTAMP.fullmatch(text.strip())) is None:
        return None
    date, _, clock, fraction, zone = match.groups()
    try:
        moment = datetime.fromisoformat(f"{date}T{clock}").replace(tzinfo=_offset(zone))
    except ValueError:
        return None
    second = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1)
    part = round(Decimal(f"0.{fraction or 0}").scaleb(_DIGITS))
    return second * _PER_SECOND + part, zone is not None


def _offset(zone: str | None) -> timezone:
    if zone is None or (name := zone.strip()) in ("Z", "UTC", "GMT"):
        return UTC
    digits = name[1:].replace(":", "").ljust(4, "0")
    if int(digits[2:]) > 59:
        raise ValueError(name)
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return timezone(offset if name[0] == "+" else -offset)


def read_number(text: str, unit: str) -> int | None:
    """A decimal number of `unit`s as ticks, to the nearest; None if the text is not one."""
    try:
        value = Decimal(text.strip())
        return round(value * UNITS[unit]) if value.is_finite() and value.adjusted() < 30 else None
    except InvalidOperation:
        return None


class TimeColumn:
    """How one column of times is read: as numbers or as timestamps, told by its first values.

    `quick` gives expressions for ticks (Int128 or Int64, null where they cannot tell); `read` is
    the slow but complete reading of one text. Wherever both give a value they agree.
    """

    def __init__(
        self, column: str, unit: str, samples: list[str], *, only_numbers: bool = False
    ) -> None:
        self.column = column
        self.unit = unit
        self.sample: str | None = None
        """The first value that is a timestamp."""
        self.zoned: bool | None = None
        """Whether timestamps carry a zone; None: the column holds numbers."""
        if only_numbers:
            return
        self.zoned = False
        for text in samples:
            if read_number(text, unit) is not None:
                self.zoned = None
                return
            if (stamp := read_timestamp(text)) is not None:
                self.sample, self.zoned = text, stamp[1]
                return

    def quick(self, dtype: pl.DataType) -> tuple[list[pl.Expr], pl.Expr]:
        """Columns to add first (what is used twice would be worked out twice), and the ticks."""
        raw = pl.col(self.column)
        per_unit = UNITS[self.unit]
        if dtype == pl.Int64 and per_unit == 1:
            return [], raw  # our own Parquet: nothing to work out
        if dtype.is_integer():
            return [], raw.cast(ABSOLUTE) * per_unit
        if dtype.is_float():
            whole = raw.floor()
            part = ((raw - whole) * per_unit).round().cast(ABSOLUTE, strict=False)
            return [], whole.cast(ABSOLUTE, strict=False) * per_unit + part
        if isinstance(dtype, pl.Datetime | pl.Duration):
            return [], raw.to_physical().cast(ABSOLUTE) * UNITS[dtype.time_unit]
        if dtype == pl.String and self.sample is not None:
            return _timestamps(raw, self.sample)
        if dtype == pl.String or dtype.is_decimal():
            return [], _decimal(raw, self.unit)
        return [], pl.lit(None, ABSOLUTE)

    def read(self, text: str) -> int | None:
        """One text as ticks; None if it is no time. Raises `MixedZonesError`."""
        if self.zoned is None:
            return read_number(text, self.unit)
        if (stamp := read_timestamp(text)) is None:
            return None
        if stamp[1] != self.zoned:
            raise MixedZonesError
        return stamp[0]


class MixedZonesError(ValueError):
    """Some timestamps of a column have a zone and some have none."""


def _decimal(raw: pl.Expr, unit: str) -> pl.Expr:
    """Decimal texts as ticks: as many digits after the point as a unit has ticks, then no point."""
    digits = len(str(UNITS[unit])) - 1
    return raw.cast(pl.Decimal(38, digits), strict=False).to_physical()


def _timestamps(raw: pl.Expr, sample: str) -> tuple[list[pl.Expr], pl.Expr]:
    """Texts that have the sample's separator and zone. The minute is read as a date, the rest as a
    number: below 60 a double holds 11 digits after the point exactly once they are rounded."""
    match = _TIMESTAMP.fullmatch(sample)
    if match is None:  # blanks around it
        return [], pl.lit(None, ABSOLUTE)
    separator, zone = match[2], match[5]
    minute = raw.str.slice(0, 17).str.to_datetime(
        f"%Y-%m-%d{separator}%H:%M:", time_unit="ms", strict=False
    )
    rest = raw.str.head(-len(zone)) if zone else raw
    parts = [
        minute.to_physical().cast(ABSOLUTE).alias(_MINUTE),
        rest.str.slice(17).cast(pl.Float64, strict=False).alias(_SECOND),
    ]
    second = pl.col(_SECOND)
    legible = (second >= 0) & (second < 60)
    offset = 0
    if zone:
        parts.append(raw.str.ends_with(zone).alias(_ZONE))
        legible &= pl.col(_ZONE)
        offset = _offset(zone).utcoffset(None) // timedelta(milliseconds=1)
    ticks = (pl.col(_MINUTE) - offset) * UNITS["ms"]
    part = (second * _PER_SECOND).round().cast(pl.Int64, strict=False)
    return parts, pl.when(legible).then(ticks + part)
