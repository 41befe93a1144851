"""The file with one row a request."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tokenyard.cli.exit_codes import UsageError
from tokenyard.cli.output_files import replacing

if TYPE_CHECKING:
    from tokenyard.metrics import RequestTable

SINKS = {".parquet": "sink_parquet", ".csv": "sink_csv", ".jsonl": "sink_ndjson"}


@contextmanager
def writing_requests(path: Path | None) -> Iterator[Callable[[RequestTable], None]]:
    """Open the file before a run, so that a run is not in vain; write it, whole, after it.

    Raises `UsageError` for a name that tells no format, `OSError` where it cannot be written.
    """
    if path is None:
        yield lambda _: None
        return
    if path.suffix not in SINKS:
        raise UsageError(f"--requests {path}: expected a name that ends in {', '.join(SINKS)}")
    with replacing(path) as part:
        yield lambda table: _write(table, path.suffix, part)


def _write(table: RequestTable, suffix: str, path: Path) -> None:
    """Polars tells of some errors of the system in a text of its own: make them `OSError` again."""
    import polars as pl

    try:
        getattr(table.to_polars(), SINKS[suffix])(path)
    except pl.exceptions.PolarsError as error:
        number = re.search(r"os error (\d+)", str(error))
        if not number:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
