"""`tokenyard synth`: its flags are the arguments of `synthesize`, its file is a request log."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from tokenyard.cli import main
from tokenyard.cli.synth import synth
from tokenyard.workload import read_workload, synthesize


def test_the_flags_have_the_names_and_defaults_of_the_arguments() -> None:
    flags = {name: one.default for name, one in inspect.signature(synth).parameters.items()}
    del flags["out"]
    arguments = inspect.signature(synthesize).parameters
    assert flags == {name: one.default for name, one in arguments.items()}


@pytest.mark.parametrize("name", ["out.csv", "out.jsonl.gz", "out.parquet"])
def test_what_it_writes_is_what_the_arguments_make(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / name
    flags = ["--requests", "50", "--rate", "2", "--arrivals", "gamma", "--cv", "3", "--seed", "7"]
    assert main(["synth", str(out), *flags]) == 0
    assert "50 requests" in capsys.readouterr().out
    read = read_workload(out)
    made = synthesize(requests=50, rate=2, arrivals="gamma", cv=3, seed=7)
    assert read.arrival.tolist() == made.arrival.tolist()
    assert read.prompt_tokens.tolist() == made.prompt_tokens.tolist()
    assert read.output_tokens.tolist() == made.output_tokens.tolist()


def test_the_same_command_twice_writes_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        assert main(["synth", str(tmp_path / name), "--requests", "20"]) == 0
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["out.txt"], ["out.txt", ".csv"]),
        (["out.csv", "--requests", "0"], ["requests", "0"]),
        (["out.csv", "--requests", "2.5"], ["--requests", "'2.5'"]),
        (["out.csv", "--rate", "-1"], ["rate", "-1"]),
        (["out.csv", "--rate", "nan"], ["rate", "nan"]),
        (["out.csv", "--arrivals", "weekly"], ["--arrivals", "weekly", "poisson"]),
        (["absent/out.csv"], ["absent", "No such file"]),
        ([], ["OUT"]),
    ],
)
def test_what_cannot_be_made_or_written_is_told(
    arguments: list[str],
    parts: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["synth", *arguments]) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    for part in parts:
        assert part in said
    assert list(tmp_path.iterdir()) == []
