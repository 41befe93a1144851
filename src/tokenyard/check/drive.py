"""Drives somebody's scheduler over a workload and tells what it did, step by step.

This is what runs beside the scheduler's own code: it needs the standard library alone, believes
nothing that it is given, and judges only what cannot be put into a schedule log.
"""

from __future__ import annotations

import itertools
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from tokenyard.check.adapters import Adapter, BadResultError, Rejected
from tokenyard.check.workload import Asked, Workload

Event = dict[str, Any]
"""What one step did: `t` (step number), `added` [[id, reason or None]], `decode` [ids], `prefill`
[[id, tokens]], `finished` [ids], `rejected` [ids], `queues` {name: ids}, `has_work` (if it says).
The last one may tell what went wrong: `error` (its kind), `where` (in which call), `message`,
`traceback`."""

IDLE_STEPS = 2
"""Steps that a scheduler is asked for when nobody is there and its has_work() is not false."""


AFTER_THE_END = 3
"""Steps that a scheduler is asked for when has_work() is false and somebody has not finished."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds that one call may take. `wall_s` also ends what waits; a test suite may have a timer
    of its own there, so it is for a process that is ours."""

    cpu_s: float
    wall_s: float | None = None

    def __str__(self) -> str:
        wall = f", or {self.wall_s:g} s on the clock" if self.wall_s else ""
        return f"{self.cpu_s:g} s of CPU time{wall}"


class TooLongError(BaseException):
    """A call did not return in time. No Exception, so that few handlers catch it."""


def drive(make: Callable[[int], Adapter], workload: Workload, limits: Limits) -> Iterator[Event]:
    """The steps of one fresh instance, until everybody has finished and nobody more comes.

    What it raises is in the last event. Somebody
    who never ends is left after as many steps as there are tokens, and some.
    """
    event: Event = {"t": 0, "added": []}
    try:
        yield from _steps(make, workload, limits, event)
    except Exception as error:
        yield event | _error(error)
    except TooLongError:
        yield event | {"error": "time", "message": f"no answer within {limits}"}
    except (SystemExit, KeyboardInterrupt) as error:
        message = f"it raised {type(error).__name__}, which ends the whole process"
        yield event | {"error": "exit", "message": message, "traceback": own_lines(error)}


def drive_in_turn(
    make: Callable[[int], Adapter], workload: Workload, limits: Limits
) -> list[list[Event]]:
    """Four runs of one workload: alone; alone again; and by two instances step by step in turn.
    The first alone, if it fails."""
    one = list(drive(make, workload, limits))
    if one and "error" in one[-1]:
        return [one]
    again = list(drive(make, workload, limits))
    traces: tuple[list[Event], list[Event]] = ([], [])
    runs = drive(make, workload, limits), drive(make, workload, limits)
    traces[0].extend(itertools.islice(runs[0], 1))  # a step ahead: in step they could be as one
    for events in itertools.zip_longest(*runs):
        for trace, event in zip(traces, events, strict=True):
            if event is not None:
                trace.append(event)
    return [one, again, *traces]


def _steps(
    make: Callable[[int], Adapter], workload: Workload, limits: Limits, event: Event
) -> Iterator[Event]:
    """The events; `event` is the one at work, so that whoever catches an error has it."""
    event["where"] = "__init__"
    with limited(limits):
        adapter = make(workload.capacity)
    upcoming = list(workload.requests)
    live: set[str] = set()
    t, idle, most = 0, 0, workload.tokens + len(workload.requests) + 8
    event_before: Event = {}
    while most:
        event.clear()
        event.update(t=t, added=[])
        while upcoming and upcoming[0].arrival <= t:
            asked = upcoming.pop(0)
            event["where"] = "add_request"
            with limited(limits):
                reason = _add(adapter, asked, workload.capacity)
            event["added"].append([asked.id, reason])
            if reason is None:
                live.add(asked.id)
        if not live and not event["added"]:
            if idle >= IDLE_STEPS or event_before.get("has_work") is False:
                if not upcoming:
                    return
                t, idle = upcoming[0].arrival, 0
                event_before = {}
                continue
            idle += 1  # whoever does not say that there is nothing to do is asked
        else:
            idle = 0
        if live or not event["added"]:
            event["where"] = "step"
            with limited(limits):
                event.update(adapter.step())
            most -= 1
        if adapter.has_work is not None:
            event["where"] = "has_work"
            with limited(limits):
                event["has_work"] = adapter.has_work()
        event["where"] = "queues"
        with limited(limits):
            event["queues"] = adapter.queues()
        live.difference_update(event.get("finished", ()), event.get("rejected", ()))
        event_before = dict(event)
        yield event_before
        if live and event.get("has_work") is False:
            most = min(most, AFTER_THE_END)  # does it have work all the same?
        t += 1


def _add(adapter: Adapter, asked: Asked, capacity: int) -> str | None:
    """Why it was rejected, if it was. Of what never fits any error is a rejection."""
    try:
        adapter.add(asked)
    except Rejected as rejected:
        return str(rejected) or "it gave no reason"
    except Exception as error:
        if asked.prompt_tokens <= capacity:
            raise
        return f"{type(error).__name__}: {error}"
    return None


def _error(error: Exception) -> Event:
    if isinstance(error, BadResultError):
        return {"error": "result", "message": str(error)}
    if isinstance(error, MemoryError):
        return {"error": "memory", "message": "it ran out of memory"}
    return {
        "error": "exception",
        "message": f"{type(error).__name__}: {error}"[:500],
        "traceback": own_lines(error),
    }


def own_lines(error: BaseException) -> list[str]:
    """The traceback without our own frames: file, line and source."""
    ours = __file__.rpartition("/")[0]
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((ours, "<frozen"))
    ]
    return [f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}" for frame in frames][
        -6:
    ]


@contextmanager
def limited(limits: Limits) -> Iterator[None]:
    """End what takes longer, where signals can do it."""
    if not _can_limit():
        yield
        return
    timers = [(signal.ITIMER_VIRTUAL, signal.SIGVTALRM, limits.cpu_s)]
    if limits.wall_s:
        timers.append((signal.ITIMER_REAL, signal.SIGALRM, limits.wall_s))
    before = [signal.signal(number, _too_long) for _, number, _ in timers]
    for timer, _, seconds in timers:
        signal.setitimer(timer, seconds, 0.1)  # again, in case that it was caught
    try:
        yield
    finally:
        for timer, _, _ in timers:
            signal.setitimer(timer, 0)
        for (_, number, _), handler in zip(timers, before, strict=True):
            signal.signal(number, handler)


def _can_limit() -> bool:
    return hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()


def _too_long(_signal: int, _frame: FrameType | None) -> None:
    raise TooLongError


def ids(events: Iterable[Event]) -> list[tuple[Any, ...]]:
    """What the events say, so that two runs can be compared."""
    return [
        (
            event["t"],
            [tuple(one) for one in event["added"]],
            sorted(event.get("decode", ())),
            sorted(map(tuple, event.get("prefill", ()))),
            sorted(event.get("finished", ())),
            event.get("error"),
        )
        for event in events
    ]
