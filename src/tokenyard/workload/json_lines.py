"""JSON Lines as columns: each line decoded by itself, so that a bad one is named and skipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import polars as pl

#: Fractions stay texts, so that no digit is lost.
_decoder = msgspec.json.Decoder(dict[str, Any], float_hook=str)


def decode(text: bytes) -> dict[str, Any] | None:
    """The JSON object that `text` is, numbers with a fraction as texts; None if it is not one."""
    try:
        return _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def read(
    text: bytes, wanted: Callable[[str], bool]
) -> tuple[list[str], dict[str, pl.Series], list[int], list[tuple[int, str]]]:
    """The names of all columns; those that are wanted; the line of each row (from 1); and the lines
    that are not JSON objects with their numbers. Blank lines are passed over."""
    names: dict[str, bool] = {}
    columns: dict[str, list[Any]] = {}
    places: list[int] = []
    broken: list[tuple[int, str]] = []
    for number, line in enumerate(text.split(b"\n"), 1):
        if (row := decode(line)) is None:
            if line.strip():
                broken.append((number, line[:60].decode(errors="replace")))
            continue
        if not row.keys() <= names.keys():
            names.update((name, wanted(name)) for name in row)
            for name in filter(names.get, row):
                columns.setdefault(name, [None] * len(places))
        places.append(number)
        for name, values in columns.items():
            values.append(row.get(name))
    found = {name: series(name, values) for name, values in columns.items()}
    return list(names), found, places, broken


def series(name: str, values: list[Any]) -> pl.Series:
    """Values as a column of whole numbers, of lists of whole numbers, or else of texts."""
    kinds = {type(value) for value in values} - {type(None)}
    if list in kinds:
        whole = [value if _is_whole_list(value) else None for value in values]
        return pl.Series(name, whole, dtype=pl.List(pl.Int64))
    if kinds <= {int} and all(value is None or abs(value) < 2**63 for value in values):
        return pl.Series(name, values, dtype=pl.Int64)
    texts = [value if value is None or type(value) is str else str(value) for value in values]
    return pl.Series(name, texts, dtype=pl.String)


def _is_whole_list(value: Any) -> bool:
    return isinstance(value, list) and all(
        type(item) is int and abs(item) < 2**63 for item in value
    )
