"""Rules on the command line: a flag for each field, and who overrules whom."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tokenyard.cli import main
from tokenyard.core import Rules

LOG = "id,arrival,prompt_tokens,output_tokens\nA,0,3,2\nB,1,4,1\n"


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "requests.csv"
    path.write_text(LOG)
    return str(path)


def rules_of_run(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The rules that a run says it ran under."""
    assert main(["run", *arguments, "--step-time", "unit", "--json"]) == 0
    rules: dict[str, Any] = json.loads(capsys.readouterr().out)["rules"]
    return rules


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The message of a run that is refused as bad usage."""
    assert main(["run", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "Traceback" not in said.err
    return said.err


OTHER_VALUES: dict[str, tuple[list[str], Any]] = {
    "max_num_batched_tokens": (["--max-num-batched-tokens", "100"], 100),
    "max_num_seqs": (["--max-num-seqs", "none"], None),
    "prefill_token_budget": (["--prefill-token-budget", "7"], 7),
    "enable_chunked_prefill": (["--no-enable-chunked-prefill"], False),
    "long_prefill_token_threshold": (["--long-prefill-token-threshold", "5"], 5),
    "policy": (["--policy", "priority"], "priority"),
    "running_order": (["--running-order", "decode_first"], "decode_first"),
    "head_of_line": (["--head-of-line", "skip"], "skip"),
    "max_skips": (["--max-skips", "3"], 3),
    "preemption": (["--preemption", "none"], "none"),
    "first_token": (["--first-token", "next_step"], "next_step"),
    "num_blocks": (["--num-blocks", "1_000"], 1000),
    "block_size": (["--block-size", "32"], 32),
    "enable_prefix_caching": (["--enable-prefix-caching"], True),
    "scheduler_reserve_full_isl": (["--no-scheduler-reserve-full-isl"], False),
}


def test_the_table_of_this_test_has_every_rule() -> None:
    assert set(OTHER_VALUES) == {field.name for field in fields(Rules)}


@pytest.mark.parametrize("name", OTHER_VALUES)
def test_every_rule_is_a_flag_that_changes_it_and_no_other(
    name: str, log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags, value = OTHER_VALUES[name]
    before = rules_of_run(capsys, log)
    after = rules_of_run(capsys, log, *flags)
    assert after[name] == value
    assert before[name] != value
    assert {**before, name: value} == after


def test_help_tells_of_every_rule_what_its_docstring_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["run", "--help"]) == 0
    help = " ".join(capsys.readouterr().out.split())
    for field in fields(Rules):
        assert f"--{field.name.replace('_', '-')}" in help
    assert "Tokens in a KV cache block. [default: 16]" in help
    assert "[vllm: 128; textbook: none]" in help


def test_flags_overrule_the_file_and_the_file_overrules_the_preset(
    log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rules.toml"
    file.write_text('max_num_seqs = 5\nblock_size = 8\nnum_blocks = "none"\n')
    rules = rules_of_run(capsys, log, "--rules", str(file), "--block-size", "4")
    assert rules["max_num_seqs"] == 5
    assert rules["block_size"] == 4
    assert rules["num_blocks"] is None
    assert rules["max_num_batched_tokens"] == Rules.vllm().max_num_batched_tokens


def test_a_flag_that_is_not_given_leaves_the_preset_alone(
    log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = rules_of_run(capsys, log, "--preset", "textbook", "--max-num-batched-tokens", "8")
    textbook = Rules.textbook(8)
    assert rules == {field.name: getattr(textbook, field.name) for field in fields(Rules)}


def test_the_textbook_asks_for_its_capacity(
    log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "--max-num-batched-tokens" in complaint(capsys, log, "--preset", "textbook")
    file = tmp_path / "rules.toml"
    file.write_text("max_num_batched_tokens = 9\n")
    rules = rules_of_run(capsys, log, "--preset", "textbook", "--rules", str(file))
    assert rules["max_num_batched_tokens"] == 9
    rules = rules_of_run(capsys, log, "--preset", "textbook", "--max-num-batched-tokens", "none")
    assert rules["max_num_batched_tokens"] is None


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("max_num_seq = 5", ["rules.toml", "'max_num_seq'", "max_num_seqs"]),
        ("[max_num_seqs]\nx = 5", ["rules.toml", "max_num_seqs", "whole number"]),
        ("max_num_seqs = 1.5", ["rules.toml", "max_num_seqs", "1.5"]),
        ("max_num_seqs = 0", ["rules.toml", "max_num_seqs", "0"]),
        ("block_size = 'none'", ["rules.toml", "block_size", "'none'"]),
        ("enable_chunked_prefill = 'yes'", ["rules.toml", "true or false", "'yes'"]),
        ("max_num_seqs 5", ["rules.toml", "TOML"]),
        ("\x00", ["rules.toml", "TOML"]),
        ("colour = 5", ["rules.toml", "'colour'", "max_num_batched_tokens"]),
    ],
)
def test_a_bad_rules_file_is_told_with_file_field_and_value(
    text: str, parts: list[str], log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(text)
    said = complaint(capsys, log, "--rules", str(file))
    for part in parts:
        assert part in said


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--max-num-seqs", "3.5"], ["--max-num-seqs", "'3.5'", "whole number or none"]),
        (["--max-num-seqs", "many"], ["--max-num-seqs", "'many'"]),
        (["--block-size", "none"], ["--block-size", "'none'"]),
        (["--max-num-seqs", "0"], ["max_num_seqs", "0"]),
        (["--num-blocks", "-3"], ["num_blocks", "-3"]),
        (["--max-num-seqs", "99999999999999999999"], ["max_num_seqs", "99999999999999999999"]),
        (["--max-num-seq", "3"], ["--max-num-seq", "--max-num-seqs"]),
        (["--running-order", "up"], ["--running-order", "up", "decode_first", "admission"]),
        (["--policy", "lifo"], ["policy", "'lifo'", "fcfs"]),
        (["--policy", "nowhere:Class"], ["policy", "nowhere"]),
        (["--policy", "json:loads"], ["policy", "json:loads"]),
        (["--rules", "absent.toml"], ["absent.toml", "No such file"]),
        (
            ["--long-prefill-token-threshold", "5", "--no-enable-chunked-prefill"],
            ["long_prefill_token_threshold 5", "enable_chunked_prefill"],
        ),
    ],
)
def test_a_bad_flag_is_told_with_its_name_and_value(
    arguments: list[str], parts: list[str], log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = complaint(capsys, log, *arguments)
    for part in parts:
        assert part in said
