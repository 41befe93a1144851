"""Holds schedulers and schedules against the invariants.

`assert_conforms(MyScheduler)` is for test suites; `workloads()` is the Hypothesis strategy that it
draws from; `invariants` is the page of the invariants, for whoever has a schedule log.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenyard.check.conform import assert_conforms
    from tokenyard.check.invariants import (
        INVARIANTS,
        Checker,
        Invariant,
        Violation,
        check_steps,
    )
    from tokenyard.check.strategies import workloads

__all__ = [
    "INVARIANTS",
    "Checker",
    "Invariant",
    "Violation",
    "assert_conforms",
    "check_steps",
    "invariants",
    "workloads",
]

_HOMES = {
    "assert_conforms": "conform",
    "workloads": "strategies",
    "INVARIANTS": "invariants",
    "Checker": "invariants",
    "Invariant": "invariants",
    "Violation": "invariants",
    "check_steps": "invariants",
}


def __getattr__(name: str) -> Any:
    """Load a part when it is asked for: the process beside a scheduler's code needs none."""
    if name == "invariants":
        return import_module("tokenyard.check.invariants")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"tokenyard.check.{_HOMES[name]}"), name)
