"""Workloads out, as our own request logs: CSV, JSON Lines or Parquet."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import polars as pl

from tokenyard.workload.workload import Workload, WorkloadError

_KINDS = (".csv", ".jsonl", ".parquet")
_PACKINGS = ("", ".gz", ".zst")


def write_workload(workload: Workload, path: str | Path) -> None:
    """Writes a request log that `read_workload` reads back, tick for tick.

    The name's ending chooses: .csv, .jsonl or .parquet, and after it .gz or .zst to compress. In
    CSV and JSON Lines `arrival` is in seconds, with as many digits as it needs; in Parquet
    `arrival_ticks` is in ticks of 10 ps (likewise `deadline`). Columns that the workload lacks are
    left out. The same workload gives the same bytes. The file appears when it is complete.

    Raises `WorkloadError` for another ending, for hash_ids in CSV (which has no lists), and when
    the file cannot be written.
    """
    path = Path(path)
    kind, packing = _ending(path)
    if workload.hash_ids is not None and kind == ".csv":
        raise WorkloadError(f"{path}: CSV cannot hold hash_ids: write .jsonl or .parquet")
    frame = _frame(workload, in_ticks=kind == ".parquet")
    unfinished = path.with_name(path.name + ".part")
    try:
        with unfinished.open("wb") as raw, _packed(raw, packing) as file:
            if kind == ".csv":
                frame.write_csv(file)
            elif kind == ".jsonl":
                _write_json_lines(frame, file)
            else:
                frame.write_parquet(file, compression="zstd", compression_level=1)
        unfinished.replace(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        unfinished.unlink(missing_ok=True)
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise WorkloadError(f"{path}: cannot be written: {reason}") from error


def _ending(path: Path) -> tuple[str, str]:
    for kind in _KINDS:
        for packing in _PACKINGS:
            if path.name.endswith(kind + packing):
                return kind, packing
    raise WorkloadError(
        f"{path}: the name must end in {', '.join(_KINDS)} (with .gz or .zst after it to compress)"
    )


@contextmanager
def _packed(raw: IO[bytes], packing: str) -> Iterator[Any]:
    if packing == ".gz":
        with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as file:
            yield file
    elif packing == ".zst":
        import zstandard

        with zstandard.ZstdCompressor().stream_writer(raw, closefd=False) as writer:
            yield writer
    else:
        yield raw


def _frame(workload: Workload, *, in_ticks: bool) -> pl.DataFrame:
    """One row a request, times in ticks or as decimal texts of seconds."""
    columns: dict[str, Any] = {}
    if workload.ids is not None or workload.rows is not None:
        columns["id"] = [workload.id(place) for place in range(len(workload))]
    suffix = "_ticks" if in_ticks else ""
    columns["arrival" + suffix] = workload.arrival
    for field in ("prompt_tokens", "output_tokens", "max_tokens", "priority", "predicted_tokens"):
        columns[field] = getattr(workload, field)
    columns["deadline" + suffix] = workload.deadline
    if workload.prefix_group is not None:
        columns["prefix_group"] = pl.Series(workload.prefix_group, dtype=pl.String)
        columns["prefix_tokens"] = workload.prefix_tokens
    if workload.hash_ids is not None:
        columns["hash_ids"] = pl.Series(workload.hash_ids, dtype=pl.List(pl.Int64))
        columns["hash_block_size"] = [workload.hash_block_size] * len(workload)
    frame = pl.DataFrame({name: values for name, values in columns.items() if values is not None})
    if "deadline" + suffix in frame.columns:
        never = pl.col("deadline" + suffix) < 0
        frame = frame.with_columns(
            pl.when(~never).then(pl.col("deadline" + suffix)).alias("deadline" + suffix)
        )
    if not in_ticks:
        times = [name for name in ("arrival", "deadline") if name in frame.columns]
        frame = frame.with_columns(_seconds(pl.col(name)).alias(name) for name in times)
    return frame


def _seconds(ticks: pl.Expr) -> pl.Expr:
    """Ticks as seconds in decimal digits, as many as it takes and no more."""
    whole = (ticks // 10**11).cast(pl.String)
    part = (ticks % 10**11).cast(pl.String).str.zfill(11).str.strip_chars_end("0")
    return whole + pl.when(part == "").then(pl.lit("")).otherwise("." + part)


def _write_json_lines(frame: pl.DataFrame, file: IO[bytes]) -> None:
    """Polars would put the seconds in quotes, and a float would lose their last digits: so each
    field is made a JSON text."""
    fields = [_json_field(name, dtype) for name, dtype in frame.schema.items()]
    for part in frame.iter_slices(1_000_000):
        lines = part.select("{" + pl.concat_str(fields, separator=", ") + "}").to_series()
        file.write(("\n".join(lines.to_list()) + "\n").encode())


def _json_field(name: str, dtype: pl.DataType) -> pl.Expr:
    value = pl.col(name)
    if name in ("id", "prefix_group"):
        import msgspec

        text = value.map_elements(
            lambda said: msgspec.json.encode(said).decode(), return_dtype=pl.String
        )
    elif isinstance(dtype, pl.List):
        text = "[" + value.cast(pl.List(pl.String)).list.join(", ") + "]"
    else:
        text = value.cast(pl.String)
    return pl.lit(f'"{name}": ') + text.fill_null("null")
