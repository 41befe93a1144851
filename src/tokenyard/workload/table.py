"""A file as a table of raw columns. Compression and kind are told by content, not by name."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from tokenyard.workload import json_lines
from tokenyard.workload.vllm_bench import is_result, result_columns
from tokenyard.workload.workload import Column, WorkloadError

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_PARQUET = b"PAR1"
_HEAD = 1 << 16


@dataclass(frozen=True)
class Table:
    """The columns of a file as they stand there.

    `scan(names, whole)` gives these columns lazily and in their own types (columns of CSV as texts,
    but those in `whole` as Int64: collecting then raises PolarsError when a value is not one, or
    is not UTF-8).
    `scan_texts(names)` gives them as texts, whatever is in them.
    """

    name: str
    kind: str
    columns: list[str]
    scan: Callable[[list[str], list[str]], pl.LazyFrame]
    scan_texts: Callable[[list[str]], pl.LazyFrame]
    place: Callable[[int], str]
    """Where row number i (from 0) stands in the file, for messages: "line 2"."""
    rows: Column | None = None
    """Number in the file (from 1) of each row; None: 1, 2, 3 …"""
    fault: Callable[[], str | None] = lambda: None
    """If Polars cannot read the file: what is wrong and in which line, if that can be told."""
    broken: tuple[tuple[int, str], ...] = ()
    """Lines that are no rows at all: number and how they begin."""


def open_table(path: Path, wanted: Callable[[str], bool]) -> Table:
    """Opens a file of requests; `wanted` tells by their names columns that could be of use.

    Raises `WorkloadError` when it cannot be read or is of no known kind.
    """
    head = _head(path)
    content: Path | bytes = path
    if head.startswith((_GZIP, _ZSTD)):
        content = _decompress(path)
        head = content[:_HEAD]
    if not head.strip():
        raise WorkloadError(f"{path}: the file is empty")
    if head.startswith(_PARQUET):
        return _parquet(str(path), content)
    if b"\0" in head or not _is_utf8(head.lstrip().split(b"\n", 1)[0]):
        raise WorkloadError(
            f"{path}: neither text (in UTF-8) nor Parquet, gzip or zstd: not a request log"
        )
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if start == b"{":
        text = content if isinstance(content, bytes) else path.read_bytes()
        return _json(str(path), text, wanted)
    if start == b"[":
        raise WorkloadError(
            f"{path}: one JSON array; requests are read as JSON Lines, one object a line"
        )
    return _csv(str(path), content, head)


def _head(path: Path) -> bytes:
    if path.is_dir():
        raise WorkloadError(f"{path}: a directory, not a request log")
    try:
        with path.open("rb") as file:
            return file.read(_HEAD)
    except OSError as error:
        raise WorkloadError(f"{path}: cannot be read: {error.strerror or error}") from error


def _decompress(path: Path) -> bytes:
    """The whole content of a file of gzip or zstd. Raises `WorkloadError` if it is cut off."""
    packed = path.read_bytes()
    kind = "gzip" if packed.startswith(_GZIP) else "zstd"
    try:
        return gzip.decompress(packed) if kind == "gzip" else _unzstd(packed)
    except EOFError as error:
        raise WorkloadError(
            f"{path}: the {kind} data is cut off before its end: fetch or write the file again"
        ) from error
    except (OSError, zlib.error, ValueError) as error:
        raise WorkloadError(f"{path}: the {kind} data is damaged: {error}") from error


def _unzstd(packed: bytes) -> bytes:
    """All frames of zstd data. Raises EOFError if the last is cut off."""
    import zstandard

    parts = []
    while packed:
        frame = zstandard.ZstdDecompressor().decompressobj()
        try:
            parts.append(frame.decompress(packed))
        except zstandard.ZstdError as error:
            raise ValueError(str(error)) from error
        if not frame.eof:
            raise EOFError
        packed = frame.unused_data
    return b"".join(parts)


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError as error:
        return error.start > _HEAD - 4  # a character cut in two by reading no further
    return True


# --- Parquet ---


def _parquet(name: str, content: Path | bytes) -> Table:
    def lazy() -> pl.LazyFrame:
        source = io.BytesIO(content) if isinstance(content, bytes) else content
        return pl.scan_parquet(source, glob=False)

    try:
        schema = lazy().collect_schema()
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise WorkloadError(
            f"{name}: begins like Parquet but cannot be read as such: {reason}"
        ) from error
    return Table(
        name,
        "Parquet",
        list(schema),
        lambda names, _: lazy().select(names),
        lambda names: _texts(lazy(), schema, names),
        lambda row: f"row {row + 1:,}",
    )


# --- CSV ---


def _csv(name: str, content: Path | bytes, head: bytes) -> Table:
    header = head.removeprefix(b"\xef\xbb\xbf").lstrip().split(b"\n", 1)[0].decode(errors="replace")
    separator = max(",;\t", key=header.count)
    columns = next(csv.reader([header.strip("\r")], delimiter=separator))
    blank = len(head) - len(head.lstrip(b"\r\n"))
    above = head[:blank].count(b"\n")

    def scan(names: list[str], whole: list[str]) -> pl.LazyFrame:
        return pl.scan_csv(
            io.BytesIO(content) if isinstance(content, bytes) else content,
            glob=False,
            separator=separator,
            infer_schema=False,
            schema_overrides=dict.fromkeys(whole, pl.Int64),
            encoding="utf8" if whole else "utf8-lossy",
        ).select(names)

    def fault() -> str | None:
        raw = io.BytesIO(content) if isinstance(content, bytes) else content.open("rb")
        with io.TextIOWrapper(raw, errors="replace", newline="") as text:
            return _csv_fault(text, separator)

    def place(row: int) -> str:
        return f"line {row + 2 + above:,}"

    return Table(name, "CSV", columns, scan, lambda names: scan(names, []), place, fault=fault)


def _csv_fault(text: Iterable[str], separator: str) -> str | None:
    """The first row with more fields than the header, or whose quote is never closed."""
    rows = csv.reader(text, delimiter=separator, strict=True)
    fields, before = 0, 0
    try:
        for row in rows:
            if fields and len(row) > fields:
                return f"line {before + 1:,} has {len(row)} fields, the header has {fields}"
            fields, before = fields or len(row), rows.line_num
    except csv.Error as error:
        return f"line {before + 1:,}: {error} (is a quote not closed?)"
    return None


# --- JSON ---


def _json(name: str, content: bytes, wanted: Callable[[str], bool]) -> Table:
    content = content.removeprefix(b"\xef\xbb\xbf")
    first, _, rest = content.lstrip().partition(b"\n")
    document = json_lines.decode(first)
    if document is None:
        document = json_lines.decode(content)
        rest = b""
    if document is not None and is_result(document):
        if rest.strip():
            raise WorkloadError(
                f"{name}: several results of vllm bench serve in one file (--append-result): "
                "put the line of the one that you mean in a file of its own"
            )
        columns = result_columns(name, document)
        return _frame_table(name, "JSON", list(columns), columns)
    if document is None:
        raise WorkloadError(
            f"{name}: begins like JSON, but its first line is not a JSON object "
            f"(got {first[:60].decode(errors='replace')!r})"
        )
    names, columns, places, broken = json_lines.read(content, wanted)
    return _frame_table(name, "JSON Lines", names, columns, places, tuple(broken))


def _frame_table(
    name: str,
    kind: str,
    names: list[str],
    columns: dict[str, pl.Series],
    places: list[int] | None = None,
    broken: tuple[tuple[int, str], ...] = (),
) -> Table:
    frame = pl.DataFrame(columns)
    return Table(
        name,
        kind,
        names,
        lambda names, _: frame.lazy().select(names),
        lambda names: _texts(frame.lazy(), frame.schema, names),
        (lambda row: f"line {places[row]:,}") if places else (lambda row: f"request {row + 1:,}"),
        np.array(places) if places and places[-1] != len(places) else None,
        broken=broken,
    )


def _texts(lazy: pl.LazyFrame, schema: pl.Schema, names: list[str]) -> pl.LazyFrame:
    """These columns as texts; one that cannot be (lists, durations, bytes …) as gaps."""
    plain = [
        name
        for name in names
        if schema[name].is_numeric()
        or isinstance(schema[name], pl.String | pl.Boolean | pl.Date | pl.Datetime)
    ]
    return lazy.select(
        pl.col(name).cast(pl.String) if name in plain else pl.lit(None, pl.String).alias(name)
        for name in names
    )
