"""Small workloads for somebody's scheduler: how they are told, the edges, and how they shrink."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

FORMAT = "tokenyard.case/1"


class CaseError(ValueError):
    """A case that cannot be read; the message says what was expected."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of a workload. `arrival` is a step number."""

    id: str
    arrival: int
    prompt_tokens: int
    output_tokens: int

    def __str__(self) -> str:
        return f"{self.id}@{self.arrival}:{self.prompt_tokens}+{self.output_tokens}"


@dataclass(frozen=True, slots=True)
class Workload:
    """A capacity, and requests in order of arrival.

    As text: `4 A@0:3+1 B@1:2+5` is capacity 4, request A that arrives at step 0 with 3 prompt and 1
    output tokens, and so on. `instances` 2: two instances of the scheduler run it in turn.
    """

    capacity: int
    requests: tuple[Asked, ...]
    instances: int = 1

    def __str__(self) -> str:
        twice = ["x2"] if self.instances == 2 else []
        return " ".join([str(self.capacity), *map(str, self.requests), *twice])

    @property
    def tokens(self) -> int:
        """Prompt and output tokens of all requests."""
        return sum(one.prompt_tokens + one.output_tokens for one in self.requests)

    def to_dict(self) -> dict[str, Any]:
        """The workload as JSON has it."""
        return {
            "format": FORMAT,
            "capacity": self.capacity,
            "requests": [
                {
                    "id": one.id,
                    "arrival": one.arrival,
                    "prompt_tokens": one.prompt_tokens,
                    "output_tokens": one.output_tokens,
                }
                for one in self.requests
            ],
            "instances": self.instances,
        }


_REQUEST = re.compile(r"(?P<id>[^\s@]+)@(?P<arrival>\d+):(?P<prompt>\d+)\+(?P<output>\d+)")


def parse_workload(text: str) -> Workload:
    """A workload from its text. Raises `CaseError`."""
    first, *rest = text.split() or [""]
    instances = 1
    if rest and rest[-1] == "x2":
        instances = 2
        rest.pop()
    matches = [_REQUEST.fullmatch(part) for part in rest]
    wrong = [part for part, match in zip(rest, matches, strict=True) if not match]
    if not first.isdigit() or wrong or not rest:
        raise CaseError(
            f"expected a capacity and requests, such as '4 A@0:3+1 B@1:2+5' (capacity 4; A arrives "
            f"at step 0 with 3 prompt and 1 output tokens); got {(wrong or [text])[0]!r}"
        )
    requests = [
        Asked(m["id"], int(m["arrival"]), int(m["prompt"]), int(m["output"])) for m in matches if m
    ]
    return checked(Workload(int(first), tuple(requests), instances))


def workload_of(case: Any) -> Workload:
    """A workload from its JSON. Raises `CaseError`."""
    try:
        if case["format"] != FORMAT:
            raise CaseError(f"format {case['format']!r} is not known; expected {FORMAT!r}")
        requests = [
            Asked(one["id"], one["arrival"], one["prompt_tokens"], one["output_tokens"])
            for one in case["requests"]
        ]
        return checked(Workload(case["capacity"], tuple(requests), case.get("instances", 1)))
    except (KeyError, TypeError, AttributeError) as error:
        raise CaseError(
            f"expected a case with format, capacity and requests, each with id, arrival, "
            f"prompt_tokens and output_tokens ({type(error).__name__}: {error})"
        ) from error


def checked(workload: Workload) -> Workload:
    """The workload, requests in order of arrival. Raises `CaseError` for values out of range."""
    for name, value in [
        ("capacity", workload.capacity),
        *(
            (f"{name} of {one.id}", value)
            for one in workload.requests
            for name, value in (
                ("prompt_tokens", one.prompt_tokens),
                ("output_tokens", one.output_tokens),
            )
        ),
    ]:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1_000_000:
            raise CaseError(f"{name} must be a whole number from 1 to 1,000,000 (got {value!r})")
    for one in workload.requests:
        if isinstance(one.arrival, bool) or not isinstance(one.arrival, int) or one.arrival < 0:
            raise CaseError(f"arrival of {one.id} must be a step, 0 or later (got {one.arrival!r})")
    if len({one.id for one in workload.requests}) < len(workload.requests):
        raise CaseError("two requests have the same id")
    if workload.instances not in (1, 2):
        raise CaseError(f"instances must be 1 or 2 (got {workload.instances!r})")
    in_order = sorted(workload.requests, key=lambda one: one.arrival)
    return replace(workload, requests=tuple(in_order))


def name(place: int) -> str:
    """A, B, … Z, A1, B1, …"""
    letter, round = chr(ord("A") + place % 26), place // 26
    return f"{letter}{round}" if round else letter


def workload(capacity: int, *asked: tuple[int, int, int], backwards: bool = False) -> Workload:
    """A workload from (arrival, prompt tokens, output tokens). `backwards`: the names do not come
    in the order of arrival, so that who sorts by name is found out."""
    requests = sorted(asked, key=lambda one: one[0])
    names = [name(place) for place in range(len(requests))]
    if backwards:
        names.reverse()
    return Workload(
        capacity, tuple(Asked(id, *one) for id, one in zip(names, requests, strict=True))
    )


# ------------------------------------------------------------------------------ the edges

ALONE = [workload(8, (0, 2, output)) for output in (1, 2, 3)]
"""One request each: they tell when a scheduler gives the first token."""

SHARED = workload(4, (0, 2, 2), (0, 1, 3), (1, 3, 1), (2, 2, 2))
"""Run by two instances in turn."""


def edges(capacity: int | None = None) -> Iterator[Workload]:
    """Workloads on which schedulers break, the smallest first; all of one `capacity` if given."""
    for each in _edges():
        if capacity is None:
            yield each
        else:
            yield scaled(each, capacity)


def _edges() -> Iterator[Workload]:
    yield from ALONE
    yield workload(1, (0, 1, 1))  # capacity 1
    yield workload(4, (0, 4, 1))  # a prompt as large as the capacity
    yield workload(4, (0, 5, 1))  # one above
    yield workload(4, (0, 9, 2))
    yield workload(1, (0, 1, 2), (0, 1, 1))  # a decode fills the whole capacity
    yield workload(4, (0, 2, 1), (0, 2, 1))
    yield workload(4, (0, 2, 2), (0, 3, 1))  # the second does not fit beside the first
    yield workload(4, (0, 3, 1), (0, 3, 1))
    yield workload(4, (0, 2, 2), (0, 2, 2), backwards=True)
    yield workload(2, (0, 2, 1), (0, 2, 1), backwards=True)
    yield workload(4, (0, 1, 3), (1, 3, 1))  # fits exactly beside a decode
    yield workload(4, (0, 1, 3), (1, 4, 1))  # one more than fits beside a decode
    yield workload(4, (0, 3, 3), (1, 1, 3), (2, 3, 1))
    yield workload(4, (0, 1, 1), (20, 1, 1))  # a long idle gap
    yield workload(4, (0, 1, 1), (9, 4, 2), (9, 4, 1))
    yield workload(4, (0, 1, 4), (0, 1, 4), (0, 1, 4), (0, 1, 4), (0, 1, 4))  # decodes fill it
    yield workload(3, (0, 1, 5), (1, 3, 1), (1, 1, 1))  # a big head of line, a small one behind
    yield workload(3, (0, 1, 2), (0, 3, 1), (0, 1, 1), (0, 1, 1))
    yield workload(4, (0, 3, 1), (0, 2, 1), (0, 4, 2), backwards=True)
    yield workload(4, (0, 1, 1), (0, 5, 1), (0, 1, 1))  # one that never fits in the middle
    yield workload(4, (0, 5, 1), (1, 1, 1))
    yield workload(6, (0, 2, 3), (0, 3, 2), (1, 6, 1), (2, 1, 4), (2, 5, 1), (3, 2, 2))
    yield workload(8, (0, 3, 3), (0, 4, 2), (1, 7, 1), (1, 2, 2), (4, 5, 1), backwards=True)
    yield workload(10, *((0, 1, 1 + place % 3) for place in range(12)))
    yield workload(16, *((place // 3, 1 + 5 * place % 16, 1 + place % 4) for place in range(14)))
    # Larger than one would draw: what breaks only with many, long or large ones.
    yield workload(8, *((place // 4, 1 + place % 5, 1 + place % 7) for place in range(40)))
    yield workload(
        64, *((place // 2, 1 + 29 * place % 64, 1 + 13 * place % 40) for place in range(16))
    )
    yield workload(2048, (0, 1000, 60), (0, 900, 3), (5, 2048, 2), (5, 100, 20), (6, 1500, 9))
    # A stream of small ones that a big one has to get past.
    yield workload(4, (0, 1, 2), (1, 4, 1), *((step, 1, 2) for step in range(1, 80)))
    yield workload(8, (0, 2, 3), (1, 8, 2), *((step, 3, 2) for step in range(1, 80)))


def scaled(workload: Workload, capacity: int) -> Workload:
    """The same edge at another capacity: prompts keep their distance from it, or from 1."""

    def prompt(tokens: int) -> int:
        below = workload.capacity - tokens
        return max(1, capacity - below) if below <= workload.capacity // 2 else tokens

    requests = [replace(one, prompt_tokens=prompt(one.prompt_tokens)) for one in workload.requests]
    return Workload(capacity, tuple(requests))


# ------------------------------------------------------------------------------ shrinking


def smaller(workload: Workload) -> Iterator[Workload]:
    """Simpler workloads, the boldest steps first: fewer requests, then smaller numbers."""
    requests = workload.requests
    for size in sorted({len(requests) // 2, len(requests) // 4, 2, 1} - {0}, reverse=True):
        if size < len(requests):
            for place in range(len(requests) - size, -1, -1):
                yield replace(workload, requests=requests[:place] + requests[place + size :])
    early = min((one.arrival for one in requests), default=0)
    if early:
        moved = [replace(one, arrival=one.arrival - early) for one in requests]
        yield replace(workload, requests=tuple(moved))
    for place, one in enumerate(requests):
        for field, least in (("arrival", 0), ("output_tokens", 1), ("prompt_tokens", 1)):
            value = getattr(one, field)
            for less in sorted({least, (value + least) // 2, value - 1}):
                if least <= less < value:
                    changed = list(requests)
                    changed[place] = replace(one, **{field: less})
                    changed.sort(key=lambda one: one.arrival)
                    yield replace(workload, requests=tuple(changed))
    for less in sorted({1, workload.capacity // 2, workload.capacity - 1}):
        if 1 <= less < workload.capacity:
            yield replace(workload, capacity=less)
            drop = workload.capacity - less  # what was just too large stays so
            yield replace(
                workload,
                capacity=less,
                requests=tuple(
                    replace(one, prompt_tokens=max(1, one.prompt_tokens - drop)) for one in requests
                ),
            )


def renamed(workload: Workload) -> Workload:
    """The same with the names A, B, … in order of arrival."""
    requests = [replace(one, id=name(place)) for place, one in enumerate(workload.requests)]
    return replace(workload, requests=tuple(requests))
