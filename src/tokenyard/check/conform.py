"""For test suites: hold a scheduler class against the promises, in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tokenyard.check.adapters import Adapter, maker, shape_of
from tokenyard.check.contract import Reading
from tokenyard.check.drive import Event, Limits, drive, drive_in_turn
from tokenyard.check.process import STEP_S
from tokenyard.check.search import Search
from tokenyard.check.workload import Workload, parse_workload, workload_of
from tokenyard.core import Rules


class InProcess:
    """Runs workloads in this process: nothing bounds memory, and nothing is fresh but instances."""

    def __init__(self, make: Callable[[int], Adapter]) -> None:
        self._make, self._limits = make, Limits(STEP_S)

    def run(self, workload: Workload) -> list[Event]:
        """What each step did."""
        return list(drive(self._make, workload, self._limits))

    def run_in_turn(self, workload: Workload) -> list[list[Event]]:
        """Traces alone, alone again, and by two instances in turn."""
        return drive_in_turn(self._make, workload, self._limits)

    def fresh(self) -> None:
        """Nothing: it is this process."""


def assert_conforms(
    scheduler: Any,
    *,
    examples: int = 200,
    seed: int = 0,
    capacity: int | None = None,
    rules: Callable[[int], Rules] | None = None,
    against_reference: bool = False,
    replay: str | dict[str, Any] | Workload | None = None,
) -> None:
    """Hold a scheduler class against the promises; the smallest workload that breaks one is in the
    `AssertionError`.

    `scheduler`: a class of one of the shapes in docs/check.md, or a function from a capacity to
    an instance. `capacity` fixes the capacity of all workloads. `rules`: rules of a capacity, such
    as `Rules.textbook`, which every step has to keep in full. `against_reference`: each decision
    has to equal tokenyard's under these rules. `replay`: one workload, as text, JSON or object.
    """
    __tracebackhide__ = True
    shape = shape_of(scheduler) or "plain"
    reading = Reading(
        alternating=shape == "nano-vllm",
        rules=rules or (Rules.textbook if against_reference or shape == "tokenyard" else None),
        reference=against_reference,
    )
    search = Search(InProcess(maker(scheduler, shape)), reading, examples, seed, capacity)
    if replay is None:
        result = search.run()
    else:
        if isinstance(replay, str):
            replay = parse_workload(replay)
        elif isinstance(replay, dict):
            replay = workload_of(replay)
        result = search.replay(replay)
    if result.finding is not None:
        from tokenyard.check.show import finding_text

        workload = result.finding.workload
        text = finding_text(
            result.finding,
            result.reading.rules_of(workload.capacity),
            f"assert_conforms({getattr(scheduler, '__name__', 'make')}, replay={str(workload)!r})",
        )
        raise AssertionError(text)
