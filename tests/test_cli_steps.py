"""`--steps`: the whiteboard picture of a small workload."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import ROOT

from tokenyard.cli import main
from tokenyard.core import Request, Rules, Scheduler
from tokenyard.engine.loop import SimulatedExecutor, run
from tokenyard.engine.step_time import UNIT
from tokenyard.report.steps import MOST_STEPS, StepTable

Row = dict[str, str]


def table_of_page(page: Path) -> list[Row]:
    """The worked example: the first table of the page that has a column named WAITING."""
    lines = page.read_text().splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("| step") and "WAIT" in line)
    rows = []
    for line in (lines[start], *lines[start + 2 :]):
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip().strip("|").split("|")])
    return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]


def table_printed(text: str) -> list[Row]:
    """The rows of a table whose cells fit on one line, by where its headings begin or end."""
    lines = text.splitlines()
    heading = next(n for n, line in enumerate(lines) if line.split()[:2] == ["step", "start"])
    names = lines[heading].split()
    places = [lines[heading].index(name) for name in names]
    rows = []
    for line in lines[heading + 2 :]:
        if not line:
            break
        cells: Row = {}
        for name, begin, end in zip(names, places, [*places[1:], None], strict=True):
            if name in ("step", "start", "used", "left"):
                begin, end = max(begin - 1, 0), begin + len(name)  # a number ends below its heading
            cells[name] = line[begin:end].strip()
        rows.append(cells)
    return rows


def test_the_worked_example_worked_by_hand_is_what_steps_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    log = str(ROOT / "examples" / "textbook.csv")
    flags = ["--preset", "textbook", "--max-num-batched-tokens", "8", "--steps"]
    assert main(["run", log, *flags]) == 0
    printed = table_printed(capsys.readouterr().out)
    by_hand = table_of_page(ROOT / "docs" / "state-machine.md")
    assert len(by_hand) == 7
    assert [{name: row[name] for name in by_hand[0]} for row in printed] == by_hand


def steps_of(rules: Rules, *requests: Request) -> StepTable:
    table = StepTable(rules)
    for step in run(Scheduler(rules), requests, SimulatedExecutor(UNIT), snapshots=True):
        table.feed(step)
    return table


def column(table: StepTable, name: str) -> list[str]:
    return [", ".join(row[name]) for row in table.rows]


def test_a_prompt_in_chunks_shows_how_far_it_has_come() -> None:
    # 7 prompt tokens at 3 a step: 3, 6, 7; the first token comes with the last chunk.
    table = steps_of(Rules.vllm(max_num_batched_tokens=3), Request("A", 7, 2))
    assert column(table, "prefill") == ["A 3", "A 3", "A 1", ""]
    assert column(table, "PREFILL") == ["A 3/7", "A 6/7", "", ""]
    assert column(table, "DECODE") == ["", "", "A 1/2", ""]
    assert column(table, "used") == ["3", "3", "1", "1"]
    assert column(table, "left") == ["0", "0", "2", "2"]
    assert column(table, "out") == ["", "", "", "A length"]


def test_a_preempted_request_computes_its_output_again() -> None:
    # 4 blocks of 2 tokens. A and B take 2 each for prompts of 3 and 4 tokens, and get their first
    # token. In step 1 A decodes into the last place of its second block; B needs a third: B is
    # the last in line, so it gives up its blocks. Its prompt of 4 and 1 token of output are 5
    # tokens to compute, 3 blocks, which are free when A has gone: after step 3, with 4 tokens.
    rules = Rules.vllm(num_blocks=4, block_size=2)
    table = steps_of(rules, Request("A", 3, 3), Request("B", 4, 3))
    assert column(table, "preempted")[1] == "B"
    assert column(table, "WAITING")[1] == "B"
    again = column(table, "prefill").index("B 5")
    assert again > 1
    assert column(table, "DECODE")[again] == "B 2/3"
    assert column(table, "free")[-1] == "4"


def test_a_preempted_request_begins_its_prefill_again() -> None:
    # As above with 4 tokens a step: B's 5 tokens are computed again as 4 and 1, or 3 and 2 where
    # somebody decodes beside it.
    rules = Rules.vllm(num_blocks=4, block_size=2, max_num_batched_tokens=4)
    table = steps_of(rules, Request("A", 3, 3), Request("B", 4, 3))
    preempted = next(n for n, who in enumerate(column(table, "preempted")) if who == "B")
    shown = [cell for cell in column(table, "PREFILL")[preempted:] if cell]
    assert shown
    assert shown[0] in ("B 4/5", "B 3/5")


def test_separate_budgets_are_shown_side_by_side() -> None:
    rules = Rules.vllm(max_num_batched_tokens=2, prefill_token_budget=4)
    table = steps_of(rules, Request("A", 3, 2), Request("B", 6, 1))
    # Step 0: A's 3 prompt tokens and 1 of B's. Step 1: A decodes, 4 more of B's. Step 2: the last.
    assert column(table, "used") == ["0 + 4", "1 + 4", "0 + 1"]
    assert column(table, "left") == ["2 + 0", "1 + 0", "2 + 3"]


def test_a_long_run_shows_its_beginning_and_says_how_much_is_missing() -> None:
    table = steps_of(Rules.vllm(), Request("A", 1, MOST_STEPS + 7))
    assert len(table.rows) == MOST_STEPS
    assert any("7 more steps" in note for note in table.notes())


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_narrow_terminal_breaks_lines_between_entries_only(width: int) -> None:
    requests = [Request(f"r{n}", 3 + n, 2 + n) for n in range(6)]
    table = steps_of(Rules.vllm(max_num_batched_tokens=16), *requests)
    lines = table.lines(width)
    words = {word.rstrip(",") for line in lines for word in line.split()}
    assert {f"r{n}" for n in range(6)} <= words
    assert max(map(len, lines)) <= width
    assert all(line == line.rstrip() for line in lines)
