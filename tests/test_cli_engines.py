"""Which engine `tokenyard run` takes, and that it does not matter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tokenyard.cli import main


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "requests.csv"
    rows = [f"{n / 7:.6f},{40 + 37 * n % 900},{1 + 13 * n % 50}\n" for n in range(200)]
    path.write_text("arrival,prompt_tokens,output_tokens\n" + "".join(rows))
    return str(path)


def result(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["run", *arguments, "--json"]) == 0
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    return said


def test_auto_takes_the_compiled_engine_and_gives_the_answer_of_the_reference(
    log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables, summaries = [], []
    for engine in ("auto", "fast", "reference"):
        path = tmp_path / f"{engine}.csv"
        said = result(capsys, log, "--engine", engine, "--requests", str(path))
        assert said["engine"]["name"] == ("reference" if engine == "reference" else "fast")
        tables.append(path.read_text())
        summaries.append((said["summary"], said["waiting"]))
    assert tables[0] == tables[1] == tables[2]
    assert summaries[0] == summaries[1] == summaries[2]


def test_auto_takes_the_reference_where_it_must_and_says_why(
    log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = result(capsys, log, "--log", str(tmp_path / "x.jsonl"))
    assert said["engine"]["name"] == "reference"
    assert "every step" in said["engine"]["why"]
    said = result(capsys, log, "--policy", "examples.policy:ShortPromptFirst")
    assert said["engine"]["name"] == "reference"
    assert "examples.policy:ShortPromptFirst" in said["engine"]["why"]
    assert (
        main(["run", log, "--engine", "fast", "--policy", "examples.policy:ShortPromptFirst"]) == 2
    )
    assert "--engine fast" in capsys.readouterr().err


def test_the_compiled_engine_is_not_for_those_who_want_every_step(
    log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", log, "--engine", "fast", "--steps"]) == 2
    said = capsys.readouterr().err
    assert "--engine fast" in said
    assert "every step" in said
