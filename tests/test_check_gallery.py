"""`tokenyard check` on a gallery: every broken scheduler is caught by name, no correct one is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tokenyard.check.contract import Reading, sentence
from tokenyard.check.process import Process
from tokenyard.check.search import Result, Search
from tokenyard.check.workload import Workload, parse_workload
from tokenyard.core import Rules

GALLERY = Path(__file__).parent / "gallery"
BROKEN = sorted((GALLERY / "broken").glob("*.py"))
CORRECT = sorted((GALLERY / "correct").glob("*.py"))


def fault_of(path: Path) -> str:
    """The invariant that the file says it breaks."""
    found = re.search(r'^FAULT = "(.+)"$', path.read_text(), re.MULTILINE)
    assert found, path
    return found[1]


def needs_many(path: Path) -> bool:
    return "MANY_REQUESTS = True" in path.read_text()


def check(path: Path, examples: int = 300, replay: Workload | None = None) -> Result:
    with Process(path) as process:
        shape = process.loaded["shape"]
        reading = Reading(
            alternating=shape == "nano-vllm",
            rules=Rules.textbook if shape == "tokenyard" else None,
        )
        search = Search(process, reading, examples)
        return search.replay(replay) if replay else search.run()


@pytest.mark.parametrize("path", BROKEN, ids=lambda path: path.stem)
def test_a_fault_is_found_by_name_in_a_small_workload_that_shows_it_again(path: Path) -> None:
    finding = check(path).finding
    assert finding is not None
    assert finding.invariant == fault_of(path), finding.message
    assert finding.sentence
    assert len(finding.workload.requests) <= (100 if needs_many(path) else 3)
    again = check(path, replay=parse_workload(str(finding.workload))).finding
    assert again is not None
    assert (again.invariant, again.message) == (finding.invariant, finding.message)


def test_the_gallery_is_large_and_nine_in_ten_need_three_requests_at_most() -> None:
    assert len(BROKEN) >= 40
    assert len(CORRECT) >= 12
    assert sum(map(needs_many, BROKEN)) <= len(BROKEN) / 10
    assert all(sentence(fault_of(path)) for path in BROKEN)


@pytest.mark.parametrize("path", CORRECT, ids=lambda path: path.stem)
def test_a_correct_scheduler_is_not_flagged(path: Path) -> None:
    result = check(path, examples=80)
    assert result.finding is None, result.finding
    assert result.examples >= 80


@pytest.mark.parametrize("name", ["queues", "dict_of_dicts", "states"])
def test_the_textbook_ones_decide_as_the_reference_does(name: str) -> None:
    path = GALLERY / "correct" / f"{name}.py"
    with Process(path) as process:
        reading = Reading(rules=Rules.textbook, reference=True)
        assert Search(process, reading, 80).run().finding is None


def test_our_own_scheduler_keeps_every_invariant_with_memory_and_caching() -> None:
    rules = {"max_num_seqs": 3, "num_blocks": 8, "block_size": 2, "enable_prefix_caching": True}

    def of(capacity: int) -> Rules:
        return Rules(max_num_batched_tokens=capacity, **rules)

    with Process(GALLERY / "correct" / "own.py", rules=rules) as process:
        assert Search(process, Reading(rules=of, reference=True), 80).run().finding is None


def test_one_that_lets_others_pass_differs_from_the_reference_in_the_first_such_step() -> None:
    with Process(GALLERY / "correct" / "skip_with_age.py") as process:
        finding = Search(process, Reading(rules=Rules.textbook, reference=True), 80).run().finding
    assert finding is not None
    assert finding.invariant == "decides-as-reference"
    # Capacity 2: A (1) and C (1) run, B (2) is passed; ours runs A alone.
    assert finding.message == "prefill is A 1, C 1; tokenyard: A 1"
    assert finding.expected is not None
    assert finding.expected.prefill == [("A", 1)]
