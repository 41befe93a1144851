"""The schedule log: what is written is read back, and what is no log is explained."""

from __future__ import annotations

import gzip
import io
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from strategies import Asked, any_rules, workloads

from tokenyard.check import check_steps
from tokenyard.core import Rules, RulesError, Scheduler
from tokenyard.engine import log
from tokenyard.engine.log import (
    FORMAT,
    Arrival,
    Header,
    LogError,
    LogWriter,
    Step,
    end_of,
    expand,
    header_of,
    read_log,
    rules_of,
)
from tokenyard.engine.loop import SimulatedExecutor, run
from tokenyard.engine.step_time import StepTime

HEADER = header_of(Rules(max_num_seqs=3), source="a test")
#: Steps 1 to 3 are nothing but decodes, each 5 ticks longer: one line. Step 4 starts after a gap.
STEPS = [
    Step(0, 10, 7, [Arrival("a", 9, 3, 9)], prefill=[("a", 3)], free_blocks=8),
    Step(1, 17, 20, free_blocks=8),
    Step(2, 37, 25, free_blocks=7),
    Step(3, 62, 30, free_blocks=7),
    Step(4, 99, 30, free_blocks=7),
    Step(5, 129, 30, finished=[("a", "stop")], free_blocks=9),
]


def written(path: Path, steps: Iterable[Step], header: Header = HEADER) -> Path:
    with LogWriter(path) as writer:
        writer.write(header)
        for step in steps:
            writer.write(step)
    return path


def lines_of(path: Path) -> list[bytes]:
    data = path.read_bytes()
    if path.suffix == ".zst":
        data = zstandard.ZstdDecompressor().decompressobj().decompress(data)
    return data.splitlines()


def expanded(steps: list[Step]) -> list[Step]:
    return [each for step in steps for each in expand(step)]


# ---------------------------------------------------------------------- written and read back


@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.zst"])
def test_steps_of_nothing_but_decodes_become_one_line(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / name, STEPS)
    assert lines_of(path)[2:4] == [
        b'{"step":1,"start":17,"duration":20,"free_blocks":7,"repeat":3,"duration_growth":5}',
        b'{"step":4,"start":99,"duration":30,"free_blocks":7}',
    ]
    header, steps = read_log(path)
    assert header == HEADER
    assert rules_of(header) == Rules(max_num_seqs=3)
    told = list(steps)
    assert len(told) == 4
    assert end_of(told[1]) == 17 + 20 + 25 + 30
    assert [step.step for step in expanded(told)] == [0, 1, 2, 3, 4, 5]
    assert [step.start for step in expanded(told)] == [step.start for step in STEPS]
    assert [step.duration for step in expanded(told)] == [step.duration for step in STEPS]
    assert [step.free_blocks for step in expanded(told)] == [8, None, None, 7, 7, 9]


@pytest.mark.parametrize(
    ("follower", "why"),
    [
        (Step(2, 38, 25, free_blocks=7), "it starts later"),
        (Step(3, 37, 25, free_blocks=7), "a number is left out"),
        (Step(2, 37, 25), "free blocks are not told"),
        (Step(2, 37, 25, free_blocks=7, decode=[]), "decodes are listed"),
        (Step(2, 37, 25, free_blocks=7, running=["a"]), "a queue is shown"),
        (Step(2, 37, 25, free_blocks=7, aborted=["a"]), "somebody leaves"),
    ],
)
def test_what_is_more_than_a_decode_keeps_its_line(
    tmp_path: Path, follower: Step, why: str
) -> None:
    steps = [Step(1, 17, 20, free_blocks=8), follower]
    assert list(read_log(written(tmp_path / "log.jsonl", steps))[1]) == steps, why


@st.composite
def some_steps(draw: st.DrawFn) -> list[Step]:
    """Steps of every kind, most of them nothing but decodes, with and without gaps."""
    steps: list[Step] = []
    number = start = 0
    duration = draw(st.integers(0, 5))
    for _ in range(draw(st.integers(0, 12))):
        duration = max(0, duration + draw(st.sampled_from([0, 0, 0, 1, 1, -1, 7])))
        start += draw(st.sampled_from([0, 0, 0, 0, 3]))
        step = Step(number, start, duration, free_blocks=draw(st.sampled_from([None, 4, 5])))
        match draw(st.integers(0, 12)):
            case 0:
                step.arrived = [Arrival("é\n", start, 1, 2, prefix_group="g", token_ids=(1, 2))]
            case 1:
                step.prefill, step.cached = [("a", 3)], [("a", 4)]
            case 2:
                step.decode = draw(st.sampled_from([[], ["a"]]))
            case 3:
                step.preempted, step.rejected = ["a"], [("b", "too long")]
            case 4:
                step.finished, step.aborted = [("a", "stop")], ["c"]
            case 5:
                step.waiting, step.running = [], ["a"]
        steps.append(step)
        number += draw(st.sampled_from([1, 1, 1, 2]))
        start += duration
    return steps


@given(some_steps(), st.sampled_from(["log.jsonl", "log.jsonl.zst"]))
def test_what_is_read_back_and_expanded_is_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step], name: str
) -> None:
    path = written(tmp_path_factory.getbasetemp() / name, steps)
    back = list(read_log(path)[1])
    assert len(back) <= len(steps)
    for one, other in zip(expanded(back), steps, strict=True):
        if one.free_blocks is None:  # within a run only the last figure is kept
            other = msgspec.structs.replace(other, free_blocks=None)
        assert one == other
    for step in back:
        assert list(expand(step))[-1].free_blocks == step.free_blocks
    again = written(path.with_name("again-" + name), back)
    assert again.read_bytes() == path.read_bytes(), "a log that is copied stays as it is"


@given(any_rules(), workloads())
def test_the_header_keeps_every_rule_and_the_log_every_step(
    tmp_path_factory: pytest.TempPathFactory, rules: Rules, asked: list[Asked]
) -> None:
    executor = SimulatedExecutor(StepTime(fixed=3, per_prefill_token=2, per_kv_token=1))
    steps = list(run(Scheduler(rules), [each.request() for each in asked], executor))
    path = written(tmp_path_factory.getbasetemp() / "run.jsonl", steps, header_of(rules))
    header, back = read_log(path)
    assert rules_of(header) == rules
    times = [(step.step, step.start, step.duration) for step in expanded(list(back))]
    assert times == [(step.step, step.start, step.duration) for step in steps]


def test_the_same_steps_give_the_same_bytes(tmp_path: Path) -> None:
    one, other = (written(tmp_path / f"{i}.jsonl.zst", STEPS).read_bytes() for i in range(2))
    assert one == other


def test_ten_million_steps_of_decodes_are_one_line() -> None:
    line = Step(0, 0, 10, repeat=10_000_000, duration_growth=2)
    # 10 + 12 + 14 + … : n × 10 + 2 × n (n − 1) / 2
    assert end_of(line) == 10**7 * 10 + 10**7 * (10**7 - 1)


def test_a_log_is_told_by_its_content_not_by_its_name(tmp_path: Path) -> None:
    path = written(tmp_path / "log.jsonl.zst", STEPS)
    path = path.rename(tmp_path / "log.txt")
    assert read_log(path)[0] == HEADER


def test_frames_written_one_after_another_are_one_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    lines = written(tmp_path / "plain.jsonl", STEPS).read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(zstandard.ZstdCompressor().compress(line) for line in lines))
    assert len(list(read_log(path)[1])) == 4


def test_standard_input_and_output_are_written_as_a_dash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", out)
    with LogWriter("-") as writer:
        writer.write(HEADER)
        for step in STEPS:
            writer.write(step)
    data = out.buffer.getvalue()  # type: ignore[attr-defined]
    assert data == written(tmp_path / "log.jsonl", STEPS).read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(data))))
    header, steps = read_log("-")
    assert header == HEADER
    assert len(list(steps)) == 4


def test_steps_are_read_as_they_are_asked_for(tmp_path: Path) -> None:
    path = written(tmp_path / "log.jsonl", STEPS)
    with path.open("ab") as file:
        file.write(b"no step\n")
    steps = read_log(path)[1]
    assert next(steps) == STEPS[0]


@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.zst"])
def test_an_interrupt_leaves_a_log_of_the_steps_so_far(tmp_path: Path, name: str) -> None:
    path = tmp_path / name

    def interrupted() -> Iterator[Step]:
        yield from STEPS[:3]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        written(path, interrupted())
    assert [step.step for step in expanded(list(read_log(path)[1]))] == [0, 1, 2]


def test_an_interrupt_while_a_piece_is_compressed_loses_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def compress(data: bytes) -> bytes:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return zstandard.ZstdCompressor().compress(data)

    monkeypatch.setattr(log, "_compressor", lambda: compress)
    monkeypatch.setattr(log, "PIECE", 500)
    steps = [Step(number, number, 1, preempted=["a"]) for number in range(60)]
    path = tmp_path / "log.jsonl.zst"
    with pytest.raises(KeyboardInterrupt):
        written(path, steps)
    back = list(read_log(path)[1])
    assert calls > 2
    assert 0 < len(back) < len(steps)
    assert back == steps[: len(back)]


def test_what_cannot_be_opened_names_the_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent" / "log.jsonl"):
        with pytest.raises(OSError, match=str(path)):
            LogWriter(path)
    with pytest.raises(FileNotFoundError, match="absent"):
        read_log(tmp_path / "absent.jsonl")
    with pytest.raises(IsADirectoryError, match=tmp_path.name):
        read_log(tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("name", ["full.jsonl", "full.jsonl.zst"])
def test_a_full_disk_names_the_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.symlink_to("/dev/full")
    with pytest.raises(OSError, match=name):
        written(path, STEPS * 20_000)
    with pytest.raises(OSError, match=name):
        written(path, STEPS)  # so little that only the end of it meets the disk


# ---------------------------------------------------------------------- what is no log

FIRST = b'{"format":"tokenyard.schedule/1"}\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "log is empty; expected a schedule log, whose first line is"),
        (b"\n \n", "log is empty"),
        (b"\x00\x01\x02\xff" * 99, "log, line 1: not a schedule log; expected a first line"),
        (b"\xfe" * 3_000_000, "log, line 1: not a schedule log"),
        (b"TIMESTAMP,ContextTokens\n1,2\n", "(got 'TIMESTAMP,ContextTokens')"),
        (b'{"id": "a", "arrival": 0}\n', "not a schedule log"),
        (
            gzip.compress(FIRST, mtime=0),
            "log is gzip; expected JSON Lines, plain or compressed with zstd",
        ),
        (b"PAR1" + b"\x00" * 9, "log is Parquet"),
        (
            b'{"format":"tokenyard.schedule/2","new":1}\n',
            "line 1: format 'tokenyard.schedule/2' is not known; expected 'tokenyard.schedule/1'",
        ),
        (
            b'{"format":"tokenyard.schedule/1","tick_s":0.001}\n',
            "line 1: tick_s must be 1e-11 (got 0.001)",
        ),
        (
            b'{"format":"tokenyard.schedule/1","rules":{"max_seqs":3}}\n',
            "line 1: rules: 'max_seqs' is no rule",
        ),
        (
            b'{"format":"tokenyard.schedule/1","rules":{"max_num_seqs":0}}\n',
            "line 1: rules: max_num_seqs must be a whole number from 1",
        ),
        (b'{"format":"tokenyard.schedule/1","rule":{}}\n', "unknown field `rule`"),
        (FIRST + b'{"step":0,"start":0}\n', "line 2: Object missing required field `duration`"),
        (
            FIRST + b'{"step":0,"start":0,"duration":1,"prefill":[["a",2],["b","3"]]}\n',
            "line 2: field prefill[1][1]: expected `int`, got `str`",
        ),
        (
            FIRST + b'\n{"step":0,"start":0.5,"duration":1}\n',
            "line 3: field start: expected `int`, got `float`",
        ),
        (FIRST + b'{"step":0,"start":0,"duration":1,"prefil":[]}\n', "unknown field `prefil`"),
        (FIRST + b"[]\n", "line 2: expected `object`, got `array`"),
        (FIRST + b"step 1\n", "line 2: expected one JSON object, but JSON is malformed"),
        (FIRST + b'{"step":0,"sta', "line 2: expected one JSON object"),
        (FIRST + b'{"step":0,"sta', "the file seems to have been cut here (got '{"),
        (FIRST + b'{"step":0,"start":0,"duration":1,"aborted":["\xff"]}\n', "line 2: expected one"),
        (
            FIRST + b'{"step":0,"start":0,"duration":1,"repeat":0}\n',
            "line 2: field repeat: expected 1 or more (got 0)",
        ),
        (
            FIRST + b'{"step":0,"start":0,"duration":1,"repeat":2,"aborted":["a"]}\n',
            "line 2: field repeat: a line that stands for 2 steps can hold nothing but decodes",
        ),
    ],
)
def test_what_is_no_log_is_explained(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    with pytest.raises(LogError) as caught:
        list(read_log(path)[1])
    assert str(path) in str(caught.value)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_a_compressed_log_that_is_cut_or_damaged_says_so(tmp_path: Path) -> None:
    data = written(tmp_path / "log.jsonl.zst", STEPS * 99).read_bytes()
    path = tmp_path / "cut.jsonl.zst"
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(LogError, match="the zstd data ends too early"):
        list(read_log(path)[1])
    path.write_bytes(data[:20] + bytes(50) + data[70:])
    with pytest.raises(LogError, match="the zstd data is damaged"):
        list(read_log(path)[1])


def test_what_was_written_before_the_cut_is_read(tmp_path: Path) -> None:
    path = written(tmp_path / "log.jsonl", STEPS)
    path.write_bytes(path.read_bytes()[:-5])
    steps = read_log(path)[1]
    assert [next(steps).step for _ in range(3)] == [0, 1, 4]
    with pytest.raises(LogError, match=r"line 5: .*cut here"):
        next(steps)


def test_rules_are_checked_where_a_header_is_made_by_hand() -> None:
    assert rules_of(Header(FORMAT)) == Rules()
    with pytest.raises(RulesError, match="'max_seqs' is no rule"):
        rules_of(Header(FORMAT, {"max_seqs": 3}))
    with pytest.raises(RulesError, match="max_num_seqs must be a whole number"):
        rules_of(Header(FORMAT, {"max_num_seqs": "3"}))


# ---------------------------------------------------------------------- the page


def test_the_example_on_the_page_is_a_right_log(tmp_path: Path) -> None:
    page = (Path(__file__).parent.parent / "docs" / "schedule-log.md").read_text(encoding="utf-8")
    path = tmp_path / "log.jsonl"
    path.write_text(page.split("```jsonl\n")[1].split("```")[0], encoding="utf-8")
    header, steps = read_log(path)
    assert list(check_steps(rules_of(header), steps)) == []
    run_of_decodes = page.split("```json\n")[1].split("```")[0].encode()
    steps_of_it = list(expand(msgspec.json.decode(run_of_decodes, type=Step)))
    assert [(step.step, step.start) for step in steps_of_it] == [
        (17, 5000),
        (18, 5300),
        (19, 5602),
        (20, 5906),
    ]


def test_the_page_tells_every_field() -> None:
    page = (Path(__file__).parent.parent / "docs" / "schedule-log.md").read_text(encoding="utf-8")
    for struct in (Header, Step, Arrival):
        for name in struct.__struct_fields__:
            assert f"`{name}`" in page
