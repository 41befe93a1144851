"""Request logs in: any known format, told by content, as a `Workload`."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import polars as pl

from tokenyard.workload.detect import detect, is_known
from tokenyard.workload.rows import MAX_TICKS, TOO_LONG, usable
from tokenyard.workload.table import open_table
from tokenyard.workload.workload import Column, Workload, WorkloadError


def read_workload(
    path: str | Path,
    *,
    skip: int = 0,
    limit: int | None = None,
    sample: float | None = None,
    seed: int = 0,
    rate_scale: float = 1.0,
) -> Workload:
    """Reads the request log in the file `path`; its format is told by its content.

    Requests are sorted by arrival (those that arrive together keep the order of the file). Then:
    with `sample` each is kept with that probability (drawn from `seed`); the first `skip` of those
    are passed over; at most `limit` are taken; and arrivals, counted from the first request taken,
    are divided by `rate_scale` (2: twice as many requests a second; deadlines stay). Rows that
    cannot be used are counted in `Workload.skipped`.

    Raises `WorkloadError` when the file cannot be read, is of no known format, holds no usable
    request, or spans more time than ticks can count.
    """
    _check(skip, limit, sample, rate_scale)
    table = open_table(Path(path), is_known)
    format, found = detect(table.name, table.kind, table.columns)
    try:
        workload = usable(table, format, found)
    except pl.exceptions.PolarsError as error:
        fault = table.fault() or str(error).splitlines()[0]
        raise WorkloadError(f"{table.name}: cannot be read as {table.kind}: {fault}") from error
    workload.source = f"{Path(path).name} ({format.name}, {table.kind})"
    places = _choose(len(workload), skip, limit, sample, seed)
    if places is not None:
        if not len(places):
            raise WorkloadError(
                f"{table.name}: none of its {len(workload):,} usable requests is left after "
                f"sample {sample} and skip {skip:,}"
            )
        workload = workload.take(places)
        workload.arrival = workload.arrival - workload.arrival[0]
    if rate_scale != 1:
        workload.arrival = _scaled(workload.arrival, rate_scale, table.name)
    return workload


def _check(skip: int, limit: int | None, sample: float | None, rate_scale: float) -> None:
    if skip < 0:
        raise WorkloadError(f"skip must be 0 or more (got {skip})")
    if limit is not None and limit < 1:
        raise WorkloadError(f"limit must be 1 or more (got {limit})")
    if sample is not None and not 0 < sample <= 1:
        raise WorkloadError(f"sample must be above 0 and at most 1 (got {sample})")
    if not 1e-6 <= rate_scale <= 1e6:
        raise WorkloadError(f"rate_scale must be from 0.000001 to 1,000,000 (got {rate_scale})")


def _choose(
    count: int, skip: int, limit: int | None, sample: float | None, seed: int
) -> Column | None:
    """Places of the requests to take; None: all of them."""
    if not skip and sample is None and (limit is None or limit >= count):
        return None
    end = count if limit is None else skip + limit
    if sample is None:
        return np.arange(skip, min(end, count))
    return np.flatnonzero(np.random.default_rng(seed).random(count) < sample)[skip:end]


def _scaled(arrival: Column, rate_scale: float, name: str) -> Column:
    """Arrivals divided by rate_scale, to the nearest tick, in whole numbers throughout."""
    ratio = Fraction(str(rate_scale)).limit_denominator(10**6)
    over, under = ratio.denominator, ratio.numerator
    if int(arrival[-1]) * over // under >= MAX_TICKS:
        raise WorkloadError(f"{name}: with rate_scale {rate_scale} {TOO_LONG}")
    whole, rest = np.divmod(arrival, under)
    scaled: Column = whole * over + (rest * over + under // 2) // under
    return scaled
