"""`tokenyard check`: the process, the shapes, workloads, and what a person gets to see."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from tokenyard.check import assert_conforms, workloads
from tokenyard.check.contract import MOST_SKIPS, OF_THE_CODE, PROMISES
from tokenyard.check.process import Process, SchedulerFileError
from tokenyard.check.workload import (
    CaseError,
    Workload,
    edges,
    parse_workload,
    smaller,
    workload_of,
)
from tokenyard.cli import main
from tokenyard.core import Rules

EXAMPLE = Path(__file__).parent.parent / "examples" / "my_scheduler.py"

GOOD = """
    class Good:
        def __init__(self, capacity):
            self.capacity, self.line, self.left = capacity, [], {}
        def add_request(self, request_id, prompt_tokens, output_tokens):
            if prompt_tokens > self.capacity:
                raise ValueError("never fits")
            self.line.append((request_id, prompt_tokens, output_tokens))
        def step(self):
            decode, prefill = list(self.left), []
            room = self.capacity - len(decode)
            while self.line and self.line[0][1] <= room:
                name, prompt, output = self.line.pop(0)
                room -= prompt
                self.left[name] = output
                prefill.append(name)
            for name in decode:
                self.left[name] -= 1
            finished = [name for name in decode if not self.left[name]]
            for name in finished:
                del self.left[name]
            return RESULT
"""
DICT = '{"decode": decode, "prefill": prefill, "finished": finished}'

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a scheduler's file."""

    def write(source: str) -> Path:
        path = tmp_path / "scheduler.py"
        path.write_text(textwrap.dedent(source))
        return path

    return write


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["check", *arguments, "--json"])
    out: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, out


# ------------------------------------------------------------------------------ workloads


@given(workloads())
def test_a_workload_is_the_same_after_its_text_and_its_json(workload: Workload) -> None:
    assert parse_workload(str(workload)) == workload
    assert workload_of(json.loads(json.dumps(workload.to_dict()))) == workload


@given(workloads(most_requests=4))
def test_what_is_tried_to_shrink_a_workload_is_smaller(workload: Workload) -> None:
    def size(one: Workload) -> int:
        arrivals = sum(asked.arrival for asked in one.requests)
        return one.capacity + len(one.requests) + one.tokens + arrivals

    for other in smaller(workload):
        assert size(other) < size(workload)
        assert other.capacity >= 1
        assert all(asked.prompt_tokens >= 1 <= asked.output_tokens for asked in other.requests)


def test_the_edges_are_of_the_capacity_that_is_asked_for() -> None:
    assert {one.capacity for one in edges(5)} == {5}
    prompts = {asked.prompt_tokens for one in edges(5) for asked in one.requests}
    assert {1, 4, 5, 6} <= prompts  # at the capacity, one below, one above


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected a capacity and requests"),
        ("4", "expected a capacity and requests"),
        ("4 A@0:3", "got 'A@0:3'"),
        ("4 A@0:0+1", "prompt_tokens of A must be a whole number from 1"),
        ("0 A@0:1+1", "capacity must be a whole number from 1"),
        ("4 A@0:1+1 A@1:1+1", "two requests have the same id"),
    ],
)
def test_a_workload_that_cannot_be_is_refused_with_what_was_expected(text: str, said: str) -> None:
    with pytest.raises(CaseError, match=said.replace("(", r"\(").replace("+", r"\+")):
        parse_workload(text)


# ------------------------------------------------------------------------------ the process


def test_what_it_prints_or_reads_disturbs_nothing(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    noisy = "print('hello'); import os; os.write(1, b'{}\\n'); return " + DICT
    path = write(GOOD.replace("return RESULT", noisy))
    code, out = run_json(capsys, str(path), "--examples", "30")
    assert (code, out["ok"]) == (0, True)
    assert "printed" in out["notes"][0]


@pytest.mark.parametrize(
    ("body", "invariant"),
    [
        ("while True: pass", "answers-in-time"),
        ("while True:\n    try: pass\n    except: pass", "answers-in-time"),
        ("import time; time.sleep(1000)", "answers-in-time"),
        ("import os; os._exit(0)", "process-lives"),
        ("import sys; sys.exit(3)", "process-lives"),
        ("import os; os.kill(os.getpid(), 9)", "process-lives"),
        ("self.x = bytearray(10 << 30)", "within-memory"),
        ("raise KeyError('x')", "raises-nothing"),
        ("return 5", "returns-what-ran"),
        ("return {'runs': []}", "returns-what-ran"),
        ("return {'decode': 'AB'}", "returns-what-ran"),
        ("return {'prefill': [(1, 2, 3)]}", "returns-what-ran"),
        ("return {'prefill': [('A', 'x')]}", "returns-what-ran"),
        ("import itertools; return {'decode': itertools.count()}", "returns-what-ran"),
        ("return None", "every-request-finishes"),
        ("input()", "raises-nothing"),
    ],
)
def test_whatever_it_does_is_a_finding_and_not_ours_to_die_of(
    write: Write, capsys: pytest.CaptureFixture[str], body: str, invariant: str
) -> None:
    path = write(
        "class Bad:\n"
        "    def __init__(self, capacity): pass\n"
        "    def add_request(self, request_id, prompt_tokens, output_tokens): pass\n"
        "    def step(self):\n" + textwrap.indent(body, " " * 8)
    )
    code, out = run_json(capsys, str(path))
    assert code == 1
    assert out["finding"]["invariant"] == invariant, out["finding"]["message"]


def test_what_takes_long_once_is_no_finding(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = tmp_path / "steps"  # one byte for each, over all processes
    slow_once = f"""import os
            with open({str(steps)!r}, "a") as file: file.write("x")
            while os.path.getsize({str(steps)!r}) == 100: pass
            return {DICT}"""
    code, _ = run_json(
        capsys, str(write(GOOD.replace("return RESULT", slow_once))), "--examples", "40"
    )
    assert code == 0
    assert steps.stat().st_size > 100


def test_an_error_is_shown_at_its_line_in_their_file(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(GOOD.replace("return RESULT", "return {}[1]"))
    _, out = run_json(capsys, str(path))
    (line,) = out["finding"]["traceback"]
    assert line.startswith(f"{path}:22 in step: return {{}}[1]")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import no_such_module", "ModuleNotFoundError"),
        ("def f(:", "SyntaxError"),
        ("import sys; sys.exit(0)", "SystemExit"),
        ("import os; os._exit(0)", "the process ended"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_file_that_cannot_be_imported_is_a_finding(
    write: Write, capsys: pytest.CaptureFixture[str], source: str, said: str
) -> None:
    code, out = run_json(capsys, str(write(source)))
    assert code == 1
    assert said in out["finding"]["message"]


def test_a_run_after_a_death_is_as_good_as_the_first(write: Write) -> None:
    deadly = f"import os; len(decode) > 1 and os._exit(1); return {DICT}"
    fine, deadly_one = parse_workload("4 A@0:2+2"), parse_workload("4 A@0:1+2 B@0:1+2")
    with Process(write(GOOD.replace("return RESULT", deadly))) as process:
        first = process.run(fine)
        assert "error" in process.run(deadly_one)[-1]
        assert process.run(fine) == first


# ------------------------------------------------------------------------------ which class


def test_several_schedulers_are_told_apart_by_name(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    good = textwrap.dedent(GOOD).replace("RESULT", DICT)
    path = write(good + good.replace("class Good", "class Other"))
    assert main(["check", str(path)]) == 2
    assert "it holds 2 schedulers: Good, Other" in capsys.readouterr().err
    assert main(["check", f"{path}:Other", "--examples", "20"]) == 0


def test_no_scheduler_in_the_file_says_what_is_there(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write("class Thing:\n    def run(self): pass\n")
    assert main(["check", str(path)]) == 2
    said = capsys.readouterr().err
    assert "methods add_request and step" in said
    assert "Thing has run" in said


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SchedulerFileError, match="there is no such file"):
        Process(tmp_path / "absent.py")


@pytest.mark.parametrize(
    "result",
    [
        DICT,
        "{'decode': tuple(decode), 'prefill': iter(prefill), 'finished': set(finished)}",
        "__import__('types').SimpleNamespace(decode=decode, prefill=prefill, finished=finished)",
        "__import__('collections').namedtuple('R', "
        + "'decode prefill finished')(decode, prefill, finished)",
        "{key: value for key, value in " + DICT + ".items() if value}",
    ],
)
def test_results_of_every_form_mean_the_same(write: Write, result: str) -> None:
    workload = parse_workload("4 A@0:2+2 B@0:2+1 C@1:4+1")
    with Process(write(GOOD.replace("RESULT", result))) as process:
        ran = [(e["t"], e["decode"], e["prefill"], e["finished"]) for e in process.run(workload)]
    # Step 0 prefills A and B: 2 + 2 = 4. C (4) waits for both to be gone: after step 2.
    assert [one[:3] for one in ran[:5]] == [
        (0, [], [["A", 2], ["B", 2]]),
        (1, ["A", "B"], []),
        (2, ["A"], []),
        (3, [], [["C", 4]]),
        (4, ["C"], []),
    ]
    assert [one[3] for one in ran[:5]] == [[], ["B"], ["A"], [], ["C"]]


# ------------------------------------------------------------------------------ the command


def test_the_example_passes(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run_json(capsys, str(EXAMPLE))
    assert (code, out["ok"], out["finding"]) == (0, True, None)
    assert out["examples"] >= 300
    assert main(["check", str(EXAMPLE), "--against", "reference", "--examples", "40"]) == 0


def test_the_command_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tokenyard", "check", str(EXAMPLE), "--examples", "60"]
    done = subprocess.run(command, capture_output=True, cwd=tmp_path, check=False)
    assert done.returncode == 0
    assert not list(tmp_path.iterdir())


def test_the_same_seed_gives_the_same_bytes(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    # Wrong only where somebody asks for five tokens and somebody else for seven.
    rare = f"5 in self.left.values() and 7 in self.left.values() and 1 / 0; return {DICT}"
    path = str(write(GOOD.replace("return RESULT", rare)))
    seen = []
    for _ in range(2):
        main(["check", path, "--seed", "3", "--examples", "1000"])
        seen.append(capsys.readouterr().out)
    assert seen[0] == seen[1]
    assert "ZeroDivisionError" in seen[0]


def test_a_finding_is_shown_with_its_workload_its_steps_and_how_to_run_it_again(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(GOOD.replace("RESULT", DICT).replace("self.line[0][1] <= room", "room > 0"))
    assert main(["check", str(path)]) == 1
    shown = capsys.readouterr().out
    # A takes 1 of 2, so there is room for one more token, and B has two.
    assert "✗ token-budget: The tokens of a step" in shown
    assert "likely: capacity checked after adding" in shown
    assert "✗ 3 of 2" in shown
    assert f"tokenyard check {path} --replay '2 A@0:1+1 B@0:2+1'" in shown


def test_a_saved_case_and_a_saved_test_show_the_finding_again(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(GOOD.replace("RESULT", DICT).replace("<= room", "< room"))
    case, test = tmp_path / "case.json", tmp_path / "test_found.py"
    _, found = run_json(capsys, str(path), "--save-case", str(case), "--save-test", str(test))
    _, again = run_json(capsys, str(path), "--replay", str(case))
    assert again["finding"]["workload"] == found["finding"]["workload"]
    assert again["finding"]["message"] == found["finding"]["message"]

    def pytest_says() -> int:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)]
        return subprocess.run(command, capture_output=True, cwd=tmp_path, check=False).returncode

    assert pytest_says() == 1
    write(GOOD.replace("RESULT", DICT))
    assert pytest_says() == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rules", "nothing"], "--rules must be textbook, vllm or a file"),
        (["--examples", "0"], "--examples must be 1 or more"),
        (["--capacity", "0"], "--capacity must be 1 or more"),
        (["--replay", "4 A"], "expected a capacity and requests"),
    ],
)
def test_flags_that_cannot_be_are_bad_usage(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["check", str(EXAMPLE), *arguments]) == 2
    assert said in capsys.readouterr().err


def test_rules_of_a_file_fix_the_capacity_and_are_kept_in_full(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = 'max_num_batched_tokens = 5\nfirst_token = "next_step"\n'
    rules = tmp_path / "rules.toml"
    rules.write_text(text + "enable_chunked_prefill = false\n")
    code, _ = run_json(capsys, str(EXAMPLE), "--rules", str(rules), "--examples", "60")
    assert code == 0
    rules.write_text(text + "max_num_seqs = 1\nenable_chunked_prefill = false\n")
    code, out = run_json(capsys, str(EXAMPLE), "--rules", str(rules))
    assert code == 1
    assert out["finding"]["invariant"] == "max-num-seqs"
    assert out["finding"]["workload"]["capacity"] == 5


# ------------------------------------------------------------------------------ in a test suite


def scheduler_class(result: str = DICT) -> Any:
    source = textwrap.dedent(GOOD).replace("RESULT", result)
    space: dict[str, Any] = {}
    exec(source, space)
    return space["Good"]


def test_three_lines_hold_a_class_to_the_promises() -> None:
    assert_conforms(scheduler_class(), examples=60)
    assert_conforms(scheduler_class(), examples=40, rules=Rules.textbook, against_reference=True)
    with pytest.raises(AssertionError, match="finish-reason"):
        assert_conforms(scheduler_class('{"decode": decode, "prefill": prefill}'))


def test_checking_loads_nothing_heavy() -> None:
    program = """
        import runpy, sys
        from tokenyard.check import assert_conforms, workloads, invariants
        assert_conforms(runpy.run_path(sys.argv[1])["MyScheduler"], examples=40)
        heavy = {"numpy", "polars", "numba", "pandas"} & set(sys.modules)
        assert not heavy, heavy
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(EXAMPLE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_page_names_every_promise() -> None:
    page = (Path(__file__).parent.parent / "docs" / "check.md").read_text()
    for name in (*PROMISES, *OF_THE_CODE):
        assert f"| `{name}` |" in page
    assert f"in more than {MOST_SKIPS} steps" in page
