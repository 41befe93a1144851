"""Looks for the smallest workload that breaks somebody's scheduler."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Protocol

from tokenyard.check.contract import OF_THE_CODE, Finding, Reading, judge, judge_in_turn
from tokenyard.check.drive import Event
from tokenyard.check.faults import kind_of
from tokenyard.check.workload import ALONE, SHARED, Workload, edges, renamed, scaled, smaller
from tokenyard.core import Rules
from tokenyard.core.rules import FirstToken

EXAMPLES = 300
"""Workloads that are tried by default."""
SECONDS, SECONDS_PER_EXAMPLE = 30.0, 0.05
"""A search that takes longer than this is ended: a slow scheduler is not tried for ever."""
FIRST_TOKENS: tuple[FirstToken, ...] = ("next_step", "prefill")
SHRINK_TRIES = 1000
HANG_TRIES = 4
"""Of what hangs each try costs its whole time."""
SHRINK_S = 3.0


class Runner(Protocol):
    """Runs workloads on fresh instances: in a process of its own, or in this one."""

    def run(self, workload: Workload) -> list[Event]: ...
    def run_in_turn(self, workload: Workload) -> list[list[Event]]: ...
    def fresh(self) -> None: ...


@dataclass
class Result:
    """What came of the search."""

    finding: Finding | None
    examples: int
    """Workloads that were run before it was found."""
    reading: Reading
    """How the open questions were read."""
    notes: list[str] = field(default_factory=list)


@dataclass
class Search:
    """Edges first, then workloads at random, until one breaks a promise."""

    runner: Runner
    reading: Reading
    examples: int = EXAMPLES
    seed: int = 0
    capacity: int | None = None
    """Fixes the capacity of every workload."""
    on_example: Callable[[], None] = lambda: None
    tried: int = 0
    _hangs: bool = False
    _until: float = 0.0
    _traces: dict[Workload, list[Event]] = field(default_factory=dict)

    def run(self) -> Result:
        """The first finding, shrunk, or none."""
        self._until = time.monotonic() + SECONDS + SECONDS_PER_EXAMPLE * self.examples
        found = self._sharing(SHARED)
        if found is None:
            self.runner.fresh()
            self._read()
            found = self._edges() or self._random()
            if found is not None:
                found = self._settled(found)
        return self._result(found)

    def replay(self, workload: Workload) -> Result:
        """The finding of this workload alone."""
        self._read()
        found = self._sharing(workload) if workload.instances == 2 else self._judged(workload)
        return self._result(found)

    def _result(self, found: Finding | None) -> Result:
        if found is not None:
            found.kind = kind_of(found)
        notes = []
        if found is None and self._late():
            notes.append(
                f"ended early, after {self.tried} of {self.examples} workloads: it is slow"
            )
        return Result(found, self.tried, self.reading, notes)

    def _late(self) -> bool:
        return bool(self._until) and time.monotonic() > self._until

    # ------------------------------------------------------------------ looking

    def _judged(self, workload: Workload) -> Finding | None:
        self.tried += 1
        workload = self._fitted(workload)
        trace = self._traces.pop(workload, None) or self.runner.run(workload)
        found = judge(trace, workload, self.reading)
        if found and found.invariant == "answers-in-time" and not self._hangs:
            # On a busy machine anything can take long once.
            found = judge(self.runner.run(workload), workload, self.reading)
            self._hangs = found is not None
        return found

    def _read(self) -> None:
        """See how this scheduler reads the open questions, where nobody pinned them."""
        if self.reading.rules is not None:
            return
        first_token = self._first_token()
        self.reading = replace(self.reading, first_token=first_token)
        if self.reading.reference:
            self.reading = replace(
                self.reading,
                rules=lambda capacity: Rules.textbook(capacity, first_token=first_token),
            )

    def _first_token(self) -> FirstToken:
        """When this scheduler gives the first token: what fits most of the single requests."""
        traces = []
        for one in map(self._scaled, ALONE):
            self._traces[one] = self.runner.run(one)
            traces.append((one, self._traces[one]))
            if "error" in traces[-1][1][-1]:
                break  # it will be found; a second hang costs time

        def kept(first_token: FirstToken) -> int:
            reading = replace(self.reading, first_token=first_token)
            return sum(judge(trace, one, reading) is None for one, trace in traces)

        return max(FIRST_TOKENS, key=kept)

    def _fitted(self, workload: Workload) -> Workload:
        """Without prompts that this shape is never given."""
        if not self.reading.alternating:
            return workload
        requests = [
            replace(one, prompt_tokens=min(one.prompt_tokens, workload.capacity))
            for one in workload.requests
        ]
        return replace(workload, requests=tuple(requests))

    def _scaled(self, workload: Workload) -> Workload:
        return workload if self.capacity is None else scaled(workload, self.capacity)

    def _edges(self) -> Finding | None:
        for workload in edges(self.capacity):
            if self.tried >= self.examples or self._late():
                break
            self.on_example()
            if found := self._judged(workload):
                return found
        return None

    def _random(self) -> Finding | None:
        if self.tried >= self.examples:
            return None
        import hypothesis

        from tokenyard.check.strategies import workloads

        best: list[Finding] = []

        def breaks(workload: Workload) -> bool:
            if not best:
                if self._late():
                    return False
                self.on_example()
            found = self._judged(workload)
            if found is not None:
                best[:] = [found]
            return found is not None

        with suppress(hypothesis.errors.NoSuchExample):
            hypothesis.find(
                workloads(capacity=self.capacity),
                breaks,
                settings=hypothesis.settings(
                    max_examples=self.examples - self.tried,
                    database=None,
                    deadline=None,
                    derandomize=False,
                    phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
                    suppress_health_check=list(hypothesis.HealthCheck),
                ),
                random=Random(self.seed),
            )
        return best[0] if best else None

    # ------------------------------------------------------------------ settling

    def _settled(self, found: Finding) -> Finding:
        """The same in the smallest workload that shows it, where nothing went before."""
        if found.invariant == "answers-in-time":
            return self._shrunk(found, self._judged)
        self.runner.fresh()
        again = self._judged(found.workload)
        if again is None:
            shared = self._sharing(found.workload)
            name = "instances-share-nothing"
            return shared or replace(
                found,
                invariant=name,
                sentence=OF_THE_CODE[name],
                message="only after other instances have run it breaks a promise: "
                f"{found.invariant}: {found.message}",
                kind="state is shared between instances",
            )
        return self._shrunk(again, self._judged)

    def _shrunk(self, found: Finding, judged: Callable[[Workload], Finding | None]) -> Finding:
        tries, until, smallest = 0, time.monotonic() + SHRINK_S, False
        most = HANG_TRIES if found.invariant == "answers-in-time" else SHRINK_TRIES
        while not smallest:
            smallest = True
            for workload in smaller(found.workload):
                if self.capacity not in (None, workload.capacity):
                    continue
                tries += 1
                if tries > most or time.monotonic() > until:
                    return found
                other = judged(workload)
                if other is not None and other.invariant == found.invariant:
                    found, smallest = other, False
                    break
        named = renamed(found.workload)
        if named != found.workload:
            other = judged(named)
            if other is not None and other.invariant == found.invariant:
                found = other
        return found

    def _sharing(self, workload: Workload) -> Finding | None:
        """Whether instances disturb each other, where one alone keeps its promises."""
        workload = replace(self._scaled(workload), instances=2)
        found = self._in_turn(workload)
        return found and self._shrunk(found, self._in_turn)

    def _in_turn(self, workload: Workload) -> Finding | None:
        self.tried += 1
        self.runner.fresh()
        traces = self.runner.run_in_turn(replace(workload, instances=2))
        if not traces or not self._one_keeps(traces[0], workload):
            return None
        return judge_in_turn(traces, workload, self.reading)

    def _one_keeps(self, trace: Sequence[Event], workload: Workload) -> bool:
        if self.reading.rules is not None:
            return judge(trace, workload, self.reading) is None
        return any(
            judge(trace, workload, replace(self.reading, first_token=first_token)) is None
            for first_token in FIRST_TOKENS
        )
