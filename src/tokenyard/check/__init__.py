"""Holds schedules against the invariants."""

from tokenyard.check.invariants import INVARIANTS, Checker, Invariant, Violation, check_steps

__all__ = ["INVARIANTS", "Checker", "Invariant", "Violation", "check_steps"]
