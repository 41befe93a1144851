"""In what order waiting requests go, and the line in which they wait."""

from __future__ import annotations

import importlib
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, Protocol

from tokenyard.core.request import Request, RequestError
from tokenyard.core.rules import RulesError


class Policy(Protocol):
    """Gives a request its place in the line.

    `key` is asked when the request is submitted. Whatever it returns is compared with `<`; the
    lowest is served first, ties in order of submission. When memory runs out, the running request
    with the highest key is preempted.
    """

    def key(self, request: Request) -> Any: ...


class Fcfs:
    """First come, first served."""

    def key(self, request: Request) -> Any:
        return 0


class Priority:
    """The lowest `priority` first; ties by arrival."""

    def key(self, request: Request) -> Any:
        return (request.priority, request.arrival)


class ShortestJobFirst:
    """The smallest `predicted_tokens` first; ties by arrival."""

    def key(self, request: Request) -> Any:
        if request.predicted_tokens is None:
            raise RequestError(
                f"request {request.id!r} has no predicted_tokens, by which policy sjf orders them"
            )
        return (request.predicted_tokens, request.arrival)


#: sjf-oracle is sjf in a run that hands in the true length as the prediction.
POLICIES: dict[str, type[Policy]] = {
    "fcfs": Fcfs,
    "priority": Priority,
    "sjf": ShortestJobFirst,
    "sjf-oracle": ShortestJobFirst,
}


def load_policy(name: str) -> Policy:
    """The policy of that name, or the class named as module:Class. Raises `RulesError`."""
    if name in POLICIES:
        return POLICIES[name]()
    module_name, colon, class_name = name.partition(":")
    if not colon:
        raise RulesError(
            f"policy must be one of {', '.join(POLICIES)}, or a class of yours as module:Class "
            f"(got {name!r})"
        )
    try:
        policy: Policy = getattr(importlib.import_module(module_name), class_name)()
    except (ImportError, AttributeError, TypeError) as error:
        raise RulesError(f"policy {name!r} cannot be loaded: {error}") from error
    if not callable(getattr(policy, "key", None)):
        raise RulesError(f"policy {name!r} has no method key(request)")
    return policy


_rank: Callable[[Request], Any] = attrgetter("rank")


class WaitingQueue:
    """Waiting requests in order of rank. The head leaves in constant time."""

    def __init__(self) -> None:
        self._line: list[Request] = []
        self._head = 0

    def __len__(self) -> int:
        return len(self._line) - self._head

    def __iter__(self) -> Iterator[Request]:
        for place in range(self._head, len(self._line)):
            yield self._line[place]

    def __getitem__(self, place: int) -> Request:
        return self._line[self._head + place]

    def add(self, request: Request) -> None:
        insort(self._line, request, lo=self._head, key=_rank)

    def pop(self, place: int) -> Request:
        if place:
            return self._line.pop(self._head + place)
        request = self._line[self._head]
        self._head += 1
        if self._head * 2 > len(self._line):  # keeps the space in proportion to who waits
            del self._line[: self._head]
            self._head = 0
        return request

    def remove(self, request: Request) -> None:
        place = bisect_left(self._line, request.rank, lo=self._head, key=_rank)
        self.pop(place - self._head)
