"""`tokenyard check` on recorded schedules: logs, and vLLM's own recordings."""

from __future__ import annotations

import copy
import json
import tracemalloc
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import Asked, any_rules, workloads
from test_invariants import chat_of
from vllm_recordings import load

from tokenyard.check.logs import LogReport, _check_log, _check_recording, check_path
from tokenyard.check.recording import Recording, rules_of
from tokenyard.cli import main
from tokenyard.core import Request, Rules, Scheduler
from tokenyard.engine.log import LogWriter, Step, header_of
from tokenyard.engine.loop import SimulatedExecutor, run
from tokenyard.engine.step_time import UNIT

FOLDER = Path(__file__).parent / "data" / "vllm"
RECORDINGS = sorted(FOLDER.glob("*.json.zst"))


def checked(path: Path, **options: Any) -> LogReport:
    (report,) = deque(check_path(path, **options), maxlen=1)
    return report


def check_recorded(recording: dict[str, Any]) -> LogReport:
    decoded = msgspec.convert(recording, Recording)
    report = LogReport("altered", "vLLM recording", rules_of(decoded), True)
    deque(_check_recording(decoded, report), maxlen=0)
    return report


# ------------------------------------------------------------------------------ recordings


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.split(".")[0])
def test_a_recording_of_vllm_passes(path: Path) -> None:
    report = checked(path)
    assert report.ok, report.violations
    assert report.compared
    assert report.steps == len(load(path)["steps"])


@given(st.data())
@settings(max_examples=150)
def test_a_recording_with_one_field_altered_in_any_step_fails_at_that_step(
    data: st.DataObject,
) -> None:
    recording = load(data.draw(st.sampled_from(RECORDINGS)))
    step = data.draw(st.sampled_from(recording["steps"]))
    number = step["step"]
    field = data.draw(st.sampled_from(sorted(step)))
    before = copy.deepcopy(step[field])
    step[field] = altered(data, before, pairs=field in ("scheduled", "cached"))
    assume(step[field] != before)
    report = check_recorded(recording)
    assert not report.ok, (field, before, step[field])
    assert report.violations[0].step == number, (field, before, step[field])


def altered(data: st.DataObject, value: Any, *, pairs: bool = False) -> Any:
    """The value with one thing changed: a number by one, an entry gone, doubled or swapped."""
    if isinstance(value, int):
        return value + data.draw(st.sampled_from([-1, 1, 5]))
    if isinstance(value, str):
        return value + "x"
    place = data.draw(st.integers(0, len(value)))
    if place == len(value):
        return [*value, ["r0", 1] if pairs else "r0"]
    how = data.draw(st.sampled_from(["drop", "double", "swap", "change"]))
    rest = value[:place], value[place + 1 :]
    if how == "drop":
        return [*rest[0], *rest[1]]
    if how == "double":
        return [*rest[0], value[place], value[place], *rest[1]]
    if how == "swap":
        return [*rest[0], *rest[1], value[place]]
    entry = value[place]
    if isinstance(entry, list):
        part = data.draw(st.integers(0, 1))
        entry = [altered(data, one) if part == i else one for i, one in enumerate(entry)]
    else:
        entry = altered(data, entry)
    return [*rest[0], entry, *rest[1]]


def test_what_a_recording_of_another_field_says_is_refused(tmp_path: Path) -> None:
    recording = load(RECORDINGS[0])
    recording["config"]["num_speculative_tokens"] = 3
    path = tmp_path / "recording.json"
    path.write_text(json.dumps(recording))
    assert main(["check", str(path)]) == 2


# ------------------------------------------------------------------------------ logs

RULES = Rules.vllm(max_num_batched_tokens=32, max_num_seqs=4, num_blocks=20, block_size=4)


def steps_of(rules: Rules) -> Iterator[Step]:
    requests = [
        Request(f"r{place}", 5 + 7 * place % 20, 3 + place % 9, arrival=place * UNIT.fixed)
        for place in range(40)
    ]
    return run(Scheduler(rules), requests, SimulatedExecutor(UNIT))


def write(path: Path, steps: list[Step], rules: Rules = RULES) -> Path:
    with LogWriter(path) as writer:
        writer.write(header_of(rules))
        for step in steps:
            writer.write(step)
    return path


@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.zst"])
def test_a_log_of_our_own_passes_and_decides_as_we_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path = write(tmp_path / name, list(steps_of(RULES)))
    report = checked(path, against_reference=True)
    assert report.ok, report.violations
    assert report.requests == 40
    assert main(["check", str(path)]) == 0
    assert capsys.readouterr().err == ""  # the progress bar is for a terminal alone


def test_a_step_with_too_many_tokens_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = list(steps_of(RULES))
    place = next(place for place, step in enumerate(steps) if step.prefill)
    id, tokens = steps[place].prefill[0]
    steps[place].prefill[0] = (id, tokens + 40)
    path = write(tmp_path / "log.jsonl", steps)
    assert main(["check", str(path), "--json"]) == 1
    out = json.loads(capsys.readouterr().out)
    first = out["violations"][0]
    assert first["step"] == steps[place].step
    assert {"prefill-exact", "token-budget"} <= set(out["counts"])
    assert main(["check", str(path)]) == 1
    assert "✗" in capsys.readouterr().out


def test_the_first_step_that_the_reference_decides_otherwise_is_shown_with_both_sides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Made with 32 tokens a step, held against 8.
    path = write(tmp_path / "log.jsonl", list(steps_of(RULES)))
    rules = tmp_path / "rules.json"
    rules.write_text(
        '{"max_num_batched_tokens": 8, "max_num_seqs": 4, "num_blocks": 20, "block_size": 4}'
    )
    assert (
        main(["check", str(path), "--against", "reference", "--rules", str(rules), "--json"]) == 1
    )
    out = json.loads(capsys.readouterr().out)
    (difference,) = (v for v in out["violations"] if v["invariant"] == "decides-as-reference")
    # r1 has 12 prompt tokens; r0 decodes, so 7 of the 8 are left for it.
    assert difference["step"] == 1
    assert difference["message"] == "prefill is r1 12; tokenyard: r1 7"
    assert out["expected"]["prefill"] == [["r1", 7]]


# Blocks of 4. a: 6 prompt tokens and 3 output tokens, of which 8 are cached: two full blocks. b's
# prompt is the conversation so far, so it finds both; what the second holds (id 12), nobody told.
CHAT = """\
{"format":"tokenyard.schedule/1","rules":{"block_size":4,"num_blocks":20,"enable_prefix_caching":true}}
{"step":0,"start":0,"duration":1,"arrived":[{"id":"a","arrival":0,"prompt_tokens":6,"max_tokens":3,\
"hash_ids":[11,1],"hash_block_size":4}],"prefill":[["a",6]],"free_blocks":18}
{"step":1,"start":1,"duration":1,"free_blocks":18}
{"step":2,"start":2,"duration":1,"finished":[["a","length"]],"free_blocks":20}
{"step":3,"start":3,"duration":1,"arrived":[{"id":"b","arrival":3,"prompt_tokens":10,"max_tokens":1,\
"hash_ids":[11,12,2],"hash_block_size":4}],"prefill":[["b",2]],"cached":[["b",8]],\
"finished":[["b","length"]],"free_blocks":20}
"""


def test_decisions_are_compared_up_to_a_hit_on_output_which_no_log_tells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text(CHAT)
    assert main(["check", str(path), "--against", "reference"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "every decision" not in out
    assert "no invariant is broken" in out
    assert "up to step 3, in which 'b' finds 8 tokens in the prefix cache, and tokenyard 4" in out
    assert main(["check", str(path), "--against", "reference", "--json"]) == 0
    assert "step 3" in json.loads(capsys.readouterr().out)["beyond"]


@pytest.mark.parametrize(
    ("said", "instead"),
    [
        ('"cached":[["b",8]]', '"cached":[["b",4]]'),  # the prefill of 2 is then too little
        ('"prefill":[["b",2]]', '"prefill":[["b",3]]'),
        ('"hash_ids":[11,1]', '"hash_ids":[13,1]'),  # a's output does not go on where b's does
        ('"max_tokens":3', '"max_tokens":2'),
        # No invariant is broken: but b could have found the first block, which a's prompt told.
        ('"prefill":[["b",2]],"cached":[["b",8]]', '"prefill":[["b",10]]'),
    ],
)
def test_a_chat_that_is_told_wrong_is_found(tmp_path: Path, said: str, instead: str) -> None:
    assert said in CHAT
    path = tmp_path / "chat.jsonl"
    path.write_text(CHAT.replace(said, instead))
    assert not checked(path, against_reference=True).ok


@given(any_rules(enable_prefix_caching=True), workloads())
def test_a_chat_whose_output_is_not_told_shows_no_wrong_decision(
    rules: Rules, asked: list[Asked]
) -> None:
    report = LogReport("made", "schedule log", rules, True)
    steps = chat_of(rules, asked, rules.block_size)
    deque(_check_log(header_of(rules), steps, report), maxlen=0)
    assert report.ok, report.violations


def test_a_log_that_ends_before_its_requests_is_told(tmp_path: Path) -> None:
    report = checked(write(tmp_path / "log.jsonl", list(steps_of(RULES))[:20]))
    assert set(report.counts) == {"conservation"}


def test_memory_does_not_grow_with_the_steps() -> None:
    rules = Rules.textbook(4)

    def steps(count: int) -> Iterator[Step]:
        requests = (Request(f"r{i}", 2, 2, arrival=2 * i * UNIT.fixed) for i in range(count))
        return run(Scheduler(rules), requests, SimulatedExecutor(UNIT))

    def peak(count: int) -> int:
        report = LogReport("made", "schedule log", rules, True)
        tracemalloc.start()
        deque(_check_log(header_of(rules), steps(count), report), maxlen=0)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert report.ok, report.violations
        return most

    peak(1200)  # what is remembered of the last who left is bounded, and full by then
    assert peak(6000) < 1.2 * peak(1500)
