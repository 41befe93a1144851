"""Workloads out: what is written reads back equal, byte for byte the same each time."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenyard.core.rules import MAX_COUNT
from tokenyard.workload import (
    Workload,
    WorkloadError,
    read_workload,
    synthesize,
    write_workload,
)

ENDINGS = [
    kind + packing for kind in (".csv", ".jsonl", ".parquet") for packing in ("", ".gz", ".zst")
]
COLUMNS = (
    "arrival",
    "prompt_tokens",
    "output_tokens",
    "max_tokens",
    "priority",
    "predicted_tokens",
    "deadline",
    "prefix_tokens",
)

counts = st.integers(1, MAX_COUNT)
#: Texts that a CSV field can hold and that are not trimmed: anything but blanks at the ends.
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=9)


@st.composite
def workloads(draw: st.DrawFn, *, hashes: bool) -> Workload:
    size = draw(st.integers(1, 12))

    def column(values: st.SearchStrategy[int]) -> np.ndarray:
        return np.array(draw(st.lists(values, min_size=size, max_size=size)), dtype=np.int64)

    def maybe(values: st.SearchStrategy[int]) -> np.ndarray | None:
        return column(values) if draw(st.booleans()) else None

    arrival = np.sort(column(st.integers(0, 2**62)))
    workload = Workload(
        arrival=arrival - arrival[0],
        prompt_tokens=column(counts if not hashes else st.integers(1, 100)),
        output_tokens=column(st.integers(1, 1000)),
        max_tokens=maybe(st.integers(1000, MAX_COUNT)),
        priority=maybe(st.integers(-MAX_COUNT, MAX_COUNT)),
        predicted_tokens=maybe(st.integers(0, MAX_COUNT)),
        deadline=maybe(st.integers(-1, 2**62)),
    )
    if draw(st.booleans()):
        workload.ids = draw(st.lists(names, min_size=size, max_size=size, unique=True))
    if draw(st.booleans()):
        workload.prefix_group = draw(st.lists(st.none() | names, min_size=size, max_size=size))
        workload.prefix_tokens = np.minimum(column(counts), workload.prompt_tokens)
    if hashes:
        workload.hash_block_size = draw(st.sampled_from([16, 512]))
        workload.hash_ids = [
            tuple(
                draw(st.integers(-(2**62), 2**62))
                for _ in range(-(-tokens // workload.hash_block_size))
            )
            for tokens in workload.prompt_tokens.tolist()
        ]
    return workload


def assert_equal(read: Workload, written: Workload) -> None:
    for name in COLUMNS:
        before, after = getattr(written, name), getattr(read, name)
        assert (before is None) == (after is None), name
        assert before is None or after.tolist() == before.tolist(), name
    assert read.prefix_group == written.prefix_group
    assert read.hash_ids == written.hash_ids
    if written.hash_ids is not None:
        assert read.hash_block_size == written.hash_block_size
    assert [read.id(n) for n in range(len(read))] == [written.id(n) for n in range(len(written))]
    assert read.skipped == {}


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_is_written_reads_back_equal(ending: str) -> None:
    @settings(max_examples=60)
    @given(workloads(hashes=False) if ".csv" in ending else workloads(hashes=True))
    def check(workload: Workload) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / ("log" + ending)
            write_workload(workload, path)
            assert_equal(read_workload(path), workload)

    check()


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_same_workload_gives_the_same_bytes(tmp_path: Path, ending: str) -> None:
    for name in "ab":
        write_workload(
            synthesize(requests=3000, prefix_groups=3, prefix_tokens=64, priorities=2, seed=7),
            tmp_path / (name + ending),
        )
    assert (tmp_path / f"a{ending}").read_bytes() == (tmp_path / f"b{ending}").read_bytes()


def test_requests_chosen_from_a_log_keep_their_ids(tmp_path: Path) -> None:
    write_workload(synthesize(requests=50), tmp_path / "all.csv")
    chosen = read_workload(tmp_path / "all.csv", sample=0.3, skip=2)
    write_workload(chosen, tmp_path / "some.parquet")
    assert_equal(read_workload(tmp_path / "some.parquet"), chosen)
    assert chosen.id(0) != "1"


def test_csv_shows_seconds_with_the_digits_they_need(tmp_path: Path) -> None:
    one = np.array([1, 1, 1])
    workload = Workload(
        arrival=np.array([0, 150_000_000_000, 100_000_000_001]),
        prompt_tokens=one,
        output_tokens=one,
    )
    write_workload(workload, tmp_path / "log.csv")
    assert (tmp_path / "log.csv").read_text() == (
        "arrival,prompt_tokens,output_tokens\n0,1,1\n1.5,1,1\n1.00000000001,1,1\n"
    )


def test_parquet_holds_ticks_as_whole_numbers(tmp_path: Path) -> None:
    write_workload(synthesize(requests=10), tmp_path / "log.parquet")
    schema = pl.read_parquet(tmp_path / "log.parquet").schema
    assert schema["arrival_ticks"] == pl.Int64


@pytest.mark.parametrize("name", ["log", "log.txt", "log.csv.bz2", "log.gz"])
def test_another_ending_is_refused_and_the_endings_are_told(tmp_path: Path, name: str) -> None:
    with pytest.raises(WorkloadError, match=r"\.csv, \.jsonl, \.parquet"):
        write_workload(synthesize(requests=3), tmp_path / name)


def test_hash_ids_do_not_go_into_csv(tmp_path: Path) -> None:
    workload = synthesize(requests=1)
    workload.hash_ids = [(1, 2)]
    with pytest.raises(WorkloadError, match="CSV cannot hold hash_ids"):
        write_workload(workload, tmp_path / "log.csv")


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_file_that_cannot_be_written_says_so(tmp_path: Path, ending: str) -> None:
    path = tmp_path / "none" / ("log" + ending)
    with pytest.raises(WorkloadError, match="cannot be written: No such file"):
        write_workload(synthesize(requests=3), path)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, ending: str) -> None:
    """/dev/full takes the place of the unfinished file: every write to it finds no space."""
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    path = tmp_path / ("log" + ending)
    path.write_text("what was there")
    (tmp_path / ("log" + ending + ".part")).symlink_to("/dev/full")
    with pytest.raises(WorkloadError, match="No space left"):
        write_workload(synthesize(requests=100_000), path)
    assert path.read_text() == "what was there"
    assert list(tmp_path.iterdir()) == [path]
