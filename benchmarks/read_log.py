"""How long reading a request log takes, against what Polars alone needs to scan the same columns.

    python benchmarks/read_log.py [ROWS] [RUNS]

Writes an Azure 2023, an Azure 2024 and a BurstGPT log of ROWS rows (5,000,000) and a Parquet file
of ours to a temporary folder, then measures both readings of each in turn, RUNS times (5), and
prints the medians of wall and processor time. Polars scans with its streaming engine, which is the
quicker of its two here.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from tokenyard.workload import read_workload, synthesize, write_workload

COLUMNS = {
    "azure-2023": ["TIMESTAMP", "ContextTokens", "GeneratedTokens"],
    "azure-2024": ["TIMESTAMP", "ContextTokens", "GeneratedTokens"],
    "burstgpt": ["Timestamp", "Request tokens", "Response tokens"],
    "parquet": ["arrival_ticks", "prompt_tokens", "output_tokens"],
}


def write_logs(folder: Path, rows: int) -> dict[str, Path]:
    """One log of each format, with the same requests."""
    workload = synthesize(requests=rows, rate=70, arrivals="daily", seed=1)
    paths = {name: folder / name for name in COLUMNS}
    write_workload(workload, folder / "log.parquet")
    paths["parquet"] = folder / "log.parquet"
    moment = np.datetime64("2024-05-10T00:00:00", "ns") + workload.arrival // 100
    times = pl.Series(moment).dt
    azure = {"ContextTokens": workload.prompt_tokens, "GeneratedTokens": workload.output_tokens}
    pl.DataFrame({"TIMESTAMP": times.strftime("%Y-%m-%d %H:%M:%S.%6f") + "0"} | azure).write_csv(
        paths["azure-2023"]
    )
    pl.DataFrame(
        {"TIMESTAMP": times.strftime("%Y-%m-%d %H:%M:%S.%6f") + "+00:00"} | azure
    ).write_csv(paths["azure-2024"])
    random = np.random.default_rng(2)
    answered = workload.output_tokens * (random.random(rows) > 0.02)  # some failed
    pl.DataFrame(
        {
            "Timestamp": workload.arrival // 10**11,
            "Model": random.choice(["ChatGPT", "GPT-4"], rows),
            "Request tokens": workload.prompt_tokens,
            "Response tokens": answered,
            "Total tokens": workload.prompt_tokens + answered,
            "Log Type": random.choice(["Conversation log", "API log"], rows),
        }
    ).write_csv(paths["burstgpt"])
    return paths


def scan(name: str, path: Path) -> pl.DataFrame:
    lazy = pl.scan_parquet(path) if name == "parquet" else pl.scan_csv(path)
    return lazy.select(COLUMNS[name]).collect(engine="streaming")


def timed(work: Callable[[], object]) -> tuple[float, float]:
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - processor


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 5_000_000
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    with tempfile.TemporaryDirectory() as folder:
        paths = write_logs(Path(folder), rows)
        print(
            f"{rows:,} rows, medians of {runs}, Polars {pl.__version__}, "
            f"{pl.thread_pool_size()} threads"
        )
        print(
            f"{'log':12}{'scan s':>9}{'read s':>9}{'ratio':>7}{'scan CPU s':>12}"
            f"{'read CPU s':>12}{'ratio':>7}{'M rows/s':>10}"
        )
        for name, path in paths.items():
            scan(name, path)
            scans, reads = [], []
            for _ in range(runs):
                scans.append(timed(partial(scan, name, path)))
                reads.append(timed(partial(read_workload, path)))
            (scan_wall, scan_cpu), (read_wall, read_cpu) = (
                (statistics.median(column) for column in zip(*pairs, strict=True))
                for pairs in (scans, reads)
            )
            print(
                f"{name:12}{scan_wall:9.3f}{read_wall:9.3f}{read_wall / scan_wall:7.2f}"
                f"{scan_cpu:12.3f}{read_cpu:12.3f}{read_cpu / scan_cpu:7.2f}"
                f"{rows / read_wall / 1e6:10.1f}"
            )


if __name__ == "__main__":
    main()
