"""`tokenyard check`: hold a scheduler, or a recorded schedule, against the invariants."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from tokenyard.cli.exit_codes import FINDING, OK, UsageError
from tokenyard.cli.numbers import WHOLE_NUMBER, WHOLE_NUMBER_OR_NONE
from tokenyard.cli.output_files import different_files, replacing
from tokenyard.core.rules import Rules, RulesError

if TYPE_CHECKING:
    from tokenyard.check.workload import Workload

SWITCH = Parameter(negative="", show_default=False)


@dataclass(frozen=True, kw_only=True)
class Trying:
    """What is tried on a scheduler, and what is kept of a finding."""

    examples: Annotated[int, WHOLE_NUMBER] = 300
    """How many workloads are tried."""
    seed: Annotated[int, WHOLE_NUMBER] = 0
    """Seed of the workloads."""
    capacity: Annotated[int | None, WHOLE_NUMBER_OR_NONE] = None
    """Try workloads of this capacity only."""
    replay: str | None = None
    """Try one workload only: case.json, or its text, such as '4 A@0:3+1 B@1:2+5'."""
    save_case: Path | None = None
    """Write the workload of a finding: case.json."""
    save_test: Path | None = None
    """Write a finding as a pytest test: test_scheduler.py."""


def check(
    target: Annotated[str, Parameter(name="FILE")],
    /,
    *,
    rules: str | None = None,
    against: Literal["reference"] | None = None,
    json: Annotated[bool, SWITCH] = False,
    trying: Annotated[
        Trying, Parameter(name="*", group=Group("A scheduler", sort_key=2))
    ] = Trying(),
) -> int:
    """Parameters
    ----------
    target
        scheduler.py, or scheduler.py:Name where it holds several; or a schedule log (.jsonl,
        .jsonl.zst); or a recording of vLLM (.json, .json.zst).
    rules
        textbook, vllm, or a file (.toml, .json) with fields of the rules, to be kept in full.
        Without it a scheduler may read the open questions as it likes, and a log is held to its
        own rules.
    against
        reference: compare each decision with tokenyard's scheduler under the same rules, and show
        the first step that differs.
    json
        Print the result as JSON.
    """
    pinned = _rules(rules) if rules else None
    file, name = _target(target)
    if file.suffix == ".py":
        return _check_scheduler(target, file, name, pinned, against is not None, json, trying)
    for flag, given in vars(trying).items():
        if given != getattr(Trying(), flag):
            raise UsageError(
                f"--{flag.replace('_', '-')} is for schedulers (files that end in .py), and {file} "
                "is none"
            )
    return _check_log(file, pinned, against is not None, json)


def _target(target: str) -> tuple[Path, str | None]:
    file, colon, name = target.rpartition(":")
    if colon and name.isidentifier() and not Path(target).exists():
        return Path(file), name
    return Path(target), None


class _Pinned:
    """Rules that somebody named, and how to say them again."""

    def __init__(self, name: str, changes: dict[str, Any], file: Path | None = None) -> None:
        self.name, self.file = name, file
        self.base = asdict(Rules(**changes))
        self.capacity: int | None = changes.get("max_num_batched_tokens") if file else None

    def __call__(self, capacity: int) -> Rules:
        return Rules(**(self.base | {"max_num_batched_tokens": capacity}))

    def as_recorded(self) -> Rules:
        """For a log, which has no workload to take the capacity from."""
        if self.file is None:
            raise UsageError(
                f"--rules {self.name} leaves the budget of a step open, and a log has one: name a "
                "file with max_num_batched_tokens, or leave --rules out to use the log's own"
            )
        return Rules(**self.base)


def _rules(name: str) -> _Pinned:
    if name == "textbook":
        return _Pinned(name, asdict(Rules.textbook(None)))
    if name == "vllm":
        return _Pinned(name, {"max_num_seqs": None})
    path = Path(name)
    if not path.is_file():
        raise UsageError(f"--rules must be textbook, vllm or a file; there is no file {name}")
    if path.suffix == ".json":
        changes = _json_rules(path)
    else:
        from tokenyard.cli.rule_flags import read_rules

        changes = read_rules(path)
    return _Pinned(name, changes, path)


def _json_rules(path: Path) -> dict[str, Any]:
    import msgspec

    try:
        changes = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        Rules(**changes)
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError, RulesError) as error:
        raise RulesError(f"{path}: {error}") from error
    return changes


def _check_log(file: Path, pinned: _Pinned | None, compare: bool, json: bool) -> int:
    from tokenyard.check.logs import check_path
    from tokenyard.check.show import log_dict, print_log_report
    from tokenyard.cli.progress import Progress

    chosen = pinned.as_recorded() if pinned else None
    with Progress("steps", None) as bar:
        for report in check_path(file, rules=chosen, against_reference=compare):
            bar.reach(report.steps)
    if json:
        _print_json(log_dict(report))
    else:
        from rich.console import Console

        print_log_report(report, Console())
    return OK if report.ok else FINDING


def _check_scheduler(
    target: str,
    file: Path,
    name: str | None,
    pinned: _Pinned | None,
    compare: bool,
    json: bool,
    trying: Trying,
) -> int:
    for flag, number in (("--examples", trying.examples), ("--capacity", trying.capacity)):
        if number is not None and number < 1:
            raise UsageError(f"{flag} must be 1 or more (got {number})")
    different_files(
        read={"FILE": file, "--rules": pinned.file if pinned else None},
        written={"--save-case": trying.save_case, "--save-test": trying.save_test},
    )
    from tokenyard.check.process import Process

    with Process(file, name, rules=pinned.base if pinned else None) as process:
        # The process imports the file while we import what follows.
        from tokenyard.check.contract import Reading
        from tokenyard.check.search import Result, Search
        from tokenyard.check.show import print_result, result_dict
        from tokenyard.cli.progress import Progress

        workload = _workload(trying.replay) if trying.replay is not None else None
        capacity = trying.capacity or (pinned.capacity if pinned else None)
        loaded = process.loaded
        rules: Callable[[int], Rules] | None = pinned
        if loaded.get("shape") == "tokenyard" and rules is None:
            rules = Rules.textbook
        reading = Reading(
            alternating=loaded.get("shape") == "nano-vllm", rules=rules, reference=compare
        )
        if "error" in loaded:
            result = Result(_not_imported(loaded), 0, reading)
        else:
            with _no_traces(), Progress("workloads", trying.examples) as bar:
                search = Search(
                    process,
                    reading,
                    trying.examples,
                    trying.seed,
                    capacity,
                    on_example=lambda: bar.advance(1),
                )
                result = search.replay(workload) if workload else search.run()
        if process.printed:
            result.notes.append(
                f"its code printed {process.printed:,} lines, which were kept out of the way"
            )
        name = loaded.get("name") or name
    shown = result.finding.workload if result.finding else None
    again = _again(target, shown, pinned, compare)
    if result.finding is not None and result.finding.workload.requests:
        if trying.save_case:
            _save_case(trying.save_case, result.finding.workload)
        if trying.save_test:
            _save_test(trying.save_test, file, str(name), result, pinned, compare)
    if json:
        _print_json({"scheduler": target} | result_dict(result, again))
    else:
        from rich.console import Console

        print_result(result, target, again, Console())
    return OK if result.finding is None else FINDING


@contextmanager
def _no_traces() -> Iterator[None]:
    """Keep Hypothesis from leaving a folder where the command is called."""
    name = "HYPOTHESIS_STORAGE_DIRECTORY"
    if name in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ[name] = folder
        try:
            yield
        finally:
            del os.environ[name]


def _not_imported(loaded: dict[str, Any]) -> Any:
    from tokenyard.check.contract import KINDS, Finding, sentence
    from tokenyard.check.workload import Workload

    kind = KINDS[loaded["error"]]
    found = Finding(kind, sentence(kind), f"import: {loaded['message']}", Workload(1, ()), 0)
    found.traceback = loaded.get("traceback", [])
    return found


def _workload(replay: str) -> Workload:
    from tokenyard.check.workload import CaseError, parse_workload, workload_of

    path = Path(replay)
    if path.suffix != ".json" and not path.is_file():
        return parse_workload(replay)
    import msgspec

    try:
        return workload_of(msgspec.json.decode(path.read_bytes()))
    except (msgspec.DecodeError, CaseError) as error:
        raise CaseError(f"{path}: {error}") from error


def _again(target: str, workload: Workload | None, pinned: _Pinned | None, compare: bool) -> str:
    import shlex

    parts = ["tokenyard", "check", target]
    if workload is not None and workload.requests:
        parts += ["--replay", str(workload)]
    if pinned:
        parts += ["--rules", pinned.name]
    if compare:
        parts += ["--against", "reference"]
    return shlex.join(parts)


def _save_case(path: Path, workload: Workload) -> None:
    import msgspec

    with replacing(path) as file:
        text = msgspec.json.format(msgspec.json.encode(workload.to_dict()), indent=2)
        file.write_bytes(text + b"\n")


def _save_test(
    path: Path, file: Path, name: str, result: Any, pinned: _Pinned | None, compare: bool
) -> None:
    finding = result.finding
    more, imports = "", ""
    if pinned:
        imports = "from tokenyard.core import Rules\n"
        rules = {
            key: value for key, value in pinned.base.items() if key != "max_num_batched_tokens"
        }
        more += (
            f"\n        rules=lambda capacity: Rules(max_num_batched_tokens=capacity, **{rules}),"
        )
    if compare:
        more += "\n        against_reference=True,"
    words = finding.invariant.replace("-", "_")
    with replacing(path) as new:
        new.write_text(
            f'"""{finding.invariant}: {finding.sentence}"""\n\n'
            "import runpy\n\n"
            f"from tokenyard.check import assert_conforms\n{imports}\n"
            f"SCHEDULER = {str(file.resolve())!r}\n\n\n"
            f"def test_{words}():\n"
            "    assert_conforms(\n"
            f'        runpy.run_path(SCHEDULER)["{name}"],\n'
            f'        replay="{finding.workload}",{more}\n'
            "    )\n",
            encoding="utf-8",
        )


def _print_json(what: dict[str, Any]) -> None:
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(what), indent=2).decode())
