"""`tokenyard run`, from a log on disk to what a person or a program reads."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conftest import ROOT

from tokenyard.cli import main
from tokenyard.cli.progress import Progress
from tokenyard.engine.log import read_log
from tokenyard.fast import arrays

HEADER = "id,arrival,prompt_tokens,output_tokens\n"
LOG = HEADER + "A,0,3,3\nB,0,4,2\nC,1,7,1\nD,1,2,2\nE,2,9,1\nF,4,5,1\n"
TEXTBOOK = ["--preset", "textbook", "--max-num-batched-tokens", "8"]


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "requests.csv"
    path.write_text(LOG)
    return str(path)


@pytest.fixture
def long_log(tmp_path: Path) -> str:
    """Keeps the reference engine busy: 20,000 requests, one at a time, 50 steps each."""
    path = tmp_path / "long.csv"
    path.write_text(HEADER + "".join(f"r{n},{n},5,50\n" for n in range(20_000)))
    return str(path)


def tokenyard(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """The real command, as a process."""
    command = [sys.executable, "-m", "tokenyard", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def result(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["run", *arguments, "--json"]) == 0
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    return said


# ---------------------------------------------------------------------- what is shown


def test_the_textbook_example_comes_out_as_worked_by_hand(
    log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # Worked in docs/state-machine.md. Waits: A 0, B 0, C 1→3 = 2, D 1→4 = 3, F 0; E is rejected.
    # First tokens one step after prefill: A and B at 2, C at 5, D and F at 6 → TTFT 2 2 4 5 2.
    said = result(capsys, log, *TEXTBOOK)
    summary = said["summary"]
    assert (summary["finished"], summary["rejected"]) == (5, 1)
    assert summary["steps"] == 7
    assert summary["queueing"]["mean"] == (0 + 0 + 2 + 3 + 0) / 5
    assert summary["ttft"]["mean"] == (2 + 2 + 4 + 5 + 2) / 5
    assert said["waiting"]["longest_id"] == "D"
    assert said["waiting"]["longest"] == 3.0


@pytest.mark.parametrize("columns", ["60", "80", "120"])
def test_the_result_fits_the_terminal_and_says_what_matters(
    columns: str, log: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["run", log, *TEXTBOOK, "--slo", "ttft=4s"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= int(columns)
    assert all(line == line.rstrip() for line in out.splitlines())
    said = " ".join(out.split())
    for part in (
        "6 requests",
        "preset textbook: max_num_batched_tokens 8",
        "one second a step",
        "5 finished, 1 rejected",
        "its prompt of 9 tokens is more than max_num_batched_tokens 8",
        "4 of 6",  # TTFT 2 2 4 5 2: all but D's are within 4 s; E, rejected, met nothing
        "The longest wait, 3 s, was that of request D",
    ):
        assert part in said


def test_the_readme_shows_the_output_of_the_command_that_it_names(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(ROOT)
    readme = (ROOT / "README.md").read_text()
    command, shown = re.findall(r"<!-- tokenyard (.+) -->\n```\n(.+?)```", readme, re.DOTALL)[0]
    assert main(command.split()) == 0
    assert capsys.readouterr().out.strip() == shown.strip()
    assert command in (ROOT / "Makefile").read_text()


def test_skipped_rows_are_counted_by_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log.csv"
    path.write_text(LOG + "G,4,5,0\nH,x,5,1\nI,5,0,1\n")
    assert main(["run", str(path), "--step-time", "unit"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "3 rows" in shown
    assert "'x'" in shown, "the line and the value of one of each kind"
    skipped = result(capsys, str(path), "--step-time", "unit")["skipped"]
    assert sum(skipped.values()) == 3
    assert len(skipped) >= 2


def test_the_reading_flags_choose_what_is_read(
    log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    unit = ["--step-time", "unit"]
    assert result(capsys, log, *unit, "--limit", "2")["requests"] == 2
    assert result(capsys, log, *unit, "--skip", "1", "--limit", "none")["requests"] == 5
    slow = result(capsys, log, *unit, "--rate-scale", "0.1")
    assert slow["summary"]["makespan"] == 40 + 1  # F arrives at 40 and takes one step
    seeds = [
        result(capsys, log, *unit, "--sample", "0.5", "--seed", str(seed))["requests"]
        for seed in range(4)
    ]
    assert len(set(seeds)) > 1


def test_the_default_is_a_model_on_a_gpu_and_says_so(
    log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = result(capsys, log)
    assert "llama-3.1-8b" in said["step_time"]["name"]
    assert "h100" in said["step_time"]["name"]
    assert said["rules"]["num_blocks"] > 1000
    assert any("num_blocks" in note for note in said["notes"])
    other = result(capsys, log, "--model", "llama-3.1-8b", "--gpu", "h200")
    assert other["rules"]["num_blocks"] > said["rules"]["num_blocks"]
    assert result(capsys, log, "--num-blocks", "none")["rules"]["num_blocks"] is None
    assert result(capsys, log, "--num-blocks", "77")["rules"]["num_blocks"] == 77
    textbook = result(capsys, log, *TEXTBOOK, "--model", "llama-3.1-8b")
    assert textbook["rules"]["num_blocks"] is None
    assert "llama-3.1-8b" in textbook["step_time"]["name"]


def test_the_oracle_is_said_to_see_true_lengths(
    log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert any("true output" in n for n in result(capsys, log, "--policy", "sjf-oracle")["notes"])


def test_a_policy_of_ones_own_is_found_in_the_current_directory(log: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "class Longest:\n    def key(self, request):\n        return -request.prompt_tokens\n"
    )
    flags = ["--policy", "mine:Longest", "--max-num-seqs", "1", "--step-time", "unit", "--json"]
    done = tokenyard("run", log, *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    # One at a time: B, the longer one, before A, though A is first in the file.
    fcfs = tokenyard("run", log, "--max-num-seqs", "1", "--step-time", "unit", "--json")
    assert json.loads(done.stdout)["summary"] != json.loads(fcfs.stdout)["summary"]


# ---------------------------------------------------------------------- what is written


def test_the_log_is_read_back_and_ends_with_everybody_out(log: str, tmp_path: Path) -> None:
    for name in ("schedule.jsonl", "schedule.jsonl.zst"):
        assert main(["run", log, *TEXTBOOK, "--log", str(tmp_path / name)]) == 0
        header, steps = read_log(tmp_path / name)
        assert header.rules["max_num_batched_tokens"] == 8
        finished = [id for step in steps for id, _ in step.finished]
        assert sorted(finished) == ["A", "B", "C", "D", "F"]


def test_the_log_is_the_same_whether_steps_are_shown_or_not(log: str, tmp_path: Path) -> None:
    assert main(["run", log, *TEXTBOOK, "--log", str(tmp_path / "a.jsonl")]) == 0
    assert main(["run", log, *TEXTBOOK, "--log", str(tmp_path / "b.jsonl"), "--steps"]) == 0
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()


def test_a_log_on_stdout_leaves_stdout_to_the_log(log: str) -> None:
    done = tokenyard("run", log, *TEXTBOOK, "--log=-")
    assert done.returncode == 0
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[0]["format"] == "tokenyard.schedule/1"
    assert "5 finished" in done.stderr


@pytest.mark.parametrize("name", ["out.parquet", "out.csv", "out.jsonl"])
def test_the_request_file_has_one_row_a_request(name: str, log: str, tmp_path: Path) -> None:
    path = tmp_path / "sub dir" / name
    path.parent.mkdir()
    assert main(["run", log, *TEXTBOOK, "--requests", str(path)]) == 0
    readers = {".parquet": pl.read_parquet, ".csv": pl.read_csv, ".jsonl": pl.read_ndjson}
    frame = readers[path.suffix](path)
    assert frame["id"].to_list() == ["A", "B", "C", "D", "E", "F"]
    assert frame["queueing_s"].to_list() == [0, 0, 2, 3, None, 0]
    assert frame["reason"].to_list() == [*["length"] * 4, "rejected", "length"]
    assert [one.name for one in path.parent.iterdir()] == [name]
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize("engine", ["reference", "auto"])
def test_the_same_command_twice_gives_the_same_bytes(engine: str, log: str, tmp_path: Path) -> None:
    said = []
    for turn in "12":
        out = tmp_path / turn
        out.mkdir()
        files = ["--requests", str(out / "requests.parquet")]
        if engine == "reference":
            files += ["--log", str(out / "schedule.jsonl.zst")]
        done = tokenyard("run", log, "--engine", engine, "--json", *files)
        assert done.returncode == 0, done.stderr
        said.append((done.stdout, *(file.read_bytes() for file in sorted(out.iterdir()))))
    assert said[0] == said[1]


@pytest.mark.parametrize("name", ["example", "azure_conv.csv"])
def test_every_request_finishes_and_the_schedule_breaks_no_invariant(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, requests = ROOT / "examples" / "requests.csv", 300
    if name != "example":
        log, requests = request.getfixturevalue("shared_data") / name, 19_366
    flags = ["--preset", "vllm", "--model", "llama-3.1-8b", "--gpu", "h100"]
    schedule = tmp_path / "schedule.jsonl.zst"
    summary = result(capsys, str(log), *flags, "--log", str(schedule))["summary"]
    assert (summary["arrived"], summary["finished"]) == (requests, requests)
    assert main(["check", str(schedule)]) == 0


# ---------------------------------------------------------------------- bad input


BAD_LOGS: dict[str, tuple[bytes, list[str]]] = {
    "empty": (b"", ["empty"]),
    "header only": (HEADER.encode(), ["header", "no row"]),
    "wrong columns": (b"when,who\n1,2\n", ["when", "who", "prompt_tokens"]),
    "binary": (bytes(range(256)) * 20, []),
    "text for a number": ((HEADER + "A,soon,many,few\n").encode(), ["soon"]),
    "no usable row": ((HEADER + "A,0,0,0\nB,0,nan,1\n").encode(), []),
    "mixed zones": (
        b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
        b"2023-11-16 18:15:46.68+00:00,5,5\n2023-11-16 18:15:50.99,5,5\n",
        ["zone"],
    ),
}


@pytest.mark.parametrize("kind", BAD_LOGS)
def test_a_log_that_is_none_is_told_and_nothing_is_written(kind: str, tmp_path: Path) -> None:
    content, parts = BAD_LOGS[kind]
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    out = tmp_path / "out.parquet"
    done = tokenyard("run", str(path), "--requests", str(out))
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    for part in ["bad.csv", *parts]:
        assert part in done.stderr
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "row", ["G,5,many,1", "G,5,nan,1", "G,5,1000000000000,1", "G,5,-3,1", "G,5,3,1.5", "G,5"]
)
def test_a_bad_row_among_good_ones_is_counted_and_the_rest_runs(row: str, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(LOG + row)
    done = tokenyard("run", str(path), "--step-time", "unit")
    assert done.returncode == 0, done.stderr
    assert "6 requests" in done.stdout
    assert "1 row" in done.stdout


def test_a_file_cut_in_the_middle_of_a_row_loses_that_row_alone(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(LOG[:-4])
    done = tokenyard("run", str(path), "--step-time", "unit")
    assert done.returncode == 0, done.stderr
    assert "5 requests" in done.stdout
    assert "1 row" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["absent.csv"], ["absent.csv", "o such file"]),
        (["."], ["irectory"]),
        ([], ["LOG"]),
        (["LOG", "--limit", "0"], ["limit", "0"]),
        (["LOG", "--limit", "1.5"], ["--limit", "'1.5'"]),
        (["LOG", "--skip", "99"], ["skip 99"]),
        (["LOG", "--sample", "2"], ["sample", "2"]),
        (["LOG", "--rate-scale", "0"], ["rate_scale", "0"]),
        (["LOG", "--rate-scale", "fast"], ["--rate-scale", "fast"]),
        (["LOG", "--slo", "ttft"], ["'ttft'", "ttft=1s"]),
        (["LOG", "--slo", ""], ["SLO"]),
        (["LOG", "--model", "gpt-9"], ["gpt-9", "llama-3.1-8b"]),
        (["LOG", "--gpu", "abacus"], ["abacus", "h100"]),
        (["LOG", "--tensor-parallel-size", "0"], ["0"]),
        (["LOG", "--gpu-memory-utilization", "2"], ["gpu_memory_utilization", "2"]),
        (["LOG", "--step-time", "unit", "--gpu", "h100"], ["--step-time unit", "h100"]),
        (["LOG", "--json", "--steps"], ["--json", "--steps"]),
        (["LOG", "--json", "--log=-"], ["--json", "--log"]),
        (["LOG", "--engine", "warp"], ["--engine", "warp"]),
        (["LOG", "--requests", "out.txt"], ["out.txt", ".parquet"]),
        (["LOG", "--requests", "absent/out.parquet"], ["absent/out.parquet", "No such file"]),
        (["LOG", "--requests", "dir.parquet"], ["dir.parquet", "Is a directory"]),
        (["LOG", "--requests", "requests.csv"], ["--requests requests.csv", "overwrite LOG"]),
        (["LOG", "--log", "./dir.parquet/../requests.csv"], ["--log dir.parquet", "overwrite LOG"]),
        (
            ["LOG", "--log", "x.csv", "--requests", "x.csv"],
            ["--requests x.csv", "overwrite --log x.csv"],
        ),
        (["LOG", "--log", "absent/s.jsonl"], ["absent/s.jsonl", "No such file"]),
        (["LOG", "--log", "."], ["Is a directory"]),
        (["LOG", "--log", "/dev/full"], ["/dev/full", "No space left"]),
        (["LOG", "--policy", "sjf"], ["predicted_tokens", "sjf"]),
    ],
)
def test_bad_usage_is_one_message_and_exit_code_2(
    arguments: list[str],
    parts: list[str],
    log: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "dir.parquet").mkdir()
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert main(["run", *(log if word == "LOG" else word for word in arguments)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "Traceback" not in said.err
    for part in parts:
        assert part in said.err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_full_stdout_is_told(log: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tokenyard", "run", log, "--step-time", "unit"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == "tokenyard: stdout: No space left on device\n"


def test_a_terminal_that_knows_ascii_alone_gets_the_result(log: str) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = tokenyard("run", log, *TEXTBOOK, "--steps", env=environment)
    assert done.returncode == 0, done.stderr
    assert "5 finished" in done.stdout


def test_a_reader_that_has_seen_enough_is_no_error(log: str) -> None:
    command = (
        f"{sys.executable} -m tokenyard run {log} --step-time unit | true; echo ${{PIPESTATUS[0]}}"
    )
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "0"
    assert done.stderr == ""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 kB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.parametrize("option", ["--requests", "--log"])
def test_a_full_disk_is_told_and_leaves_no_half_table(
    option: str, small_disk: Path, tmp_path: Path
) -> None:
    path = tmp_path / "many.csv"
    path.write_text(HEADER + "".join(f"r{n},{n},{5 + n % 7},{1 + n % 9}\n" for n in range(20000)))
    out = small_disk / ("out.parquet" if option == "--requests" else "out.jsonl")
    done = tokenyard("run", str(path), "--step-time", "unit", option, str(out))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr == f"tokenyard: {out}: No space left on device\n"
    if option == "--requests":
        assert list(small_disk.iterdir()) == []


# ---------------------------------------------------------------------- Ctrl-C


def test_the_first_ctrl_c_shows_what_is_known_so_far(long_log: str, tmp_path: Path) -> None:
    schedule = tmp_path / "schedule.jsonl"
    requests = tmp_path / "requests.parquet"
    flags = ["--step-time", "unit", "--max-num-seqs", "1", "--log", str(schedule)]
    run = subprocess.Popen(
        [sys.executable, "-m", "tokenyard", "run", long_log, *flags, "--requests", str(requests)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not schedule.exists() or not schedule.stat().st_size:
        assert run.poll() is None, run.communicate()
        time.sleep(0.05)
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=60)
    assert run.returncode == 130
    assert err == ""
    assert "Interrupted" in out
    assert "not yet arrived" in out or "unfinished" in out
    _, steps = read_log(schedule)
    assert sum(step.repeat for step in steps) > 0
    assert pl.read_parquet(requests)["reason"].to_list().count("unfinished") >= 1


def test_ctrl_c_ends_the_compiled_engine_too(
    long_log: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reach = Progress.reach

    def interrupt_then_reach(self: Progress, done: int) -> None:
        signal.raise_signal(signal.SIGINT)
        reach(self, done)

    monkeypatch.setattr(Progress, "reach", interrupt_then_reach)
    monkeypatch.setattr(arrays, "EVENTS", 1000)  # how often it asks
    flags = ["--step-time", "unit", "--max-num-seqs", "1", "--engine", "fast", "--json"]
    assert main(["run", long_log, *flags]) == 130
    said = json.loads(capsys.readouterr().out)
    assert said["interrupted"] is True
    assert said["summary"]["finished"] < 20_000


def test_the_second_ctrl_c_kills() -> None:
    code = (
        "import time\n"
        "from tokenyard.cli.interrupt import FirstInterrupt\n"
        "with FirstInterrupt() as first:\n"
        "    print('ready', flush=True)\n"
        "    while not first.noted: time.sleep(0.01)\n"
        "    print('noted', flush=True)\n"
        "    time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "noted\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == -signal.SIGINT
    process.stdout.close()
