"""The process in which somebody's scheduler runs, seen from outside."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from tokenyard.check.drive import Event
from tokenyard.check.workload import Workload

WALL_S = 5.0
"""Seconds that a run may stand still before its process is killed, if nothing else helps."""
IMPORT_WALL_S = 60.0
MEMORY = 1 << 30
"""Bytes of data that the process may have."""
STEP_S = 0.5
"""Seconds of CPU that one call of the scheduler may take."""
STEP_WALL_S = 2.0
"""Seconds on the clock that it may take."""


class SchedulerFileError(ValueError):
    """The file cannot be used: it is not there, or holds no scheduler, or several."""


class Process:
    """Runs workloads, each on a fresh instance. Close it, or use it in a `with` block."""

    def __init__(
        self,
        path: Path,
        name: str | None = None,
        *,
        memory: int = MEMORY,
        rules: Mapping[str, Any] | None = None,
    ) -> None:
        """Raises `SchedulerFileError` if the file is not there."""
        if not path.is_file():
            raise SchedulerFileError(f"{path}: there is no such file")
        self.path = path
        self.printed = 0
        self._argument = json.dumps([str(path.resolve()), name, memory, STEP_S, STEP_WALL_S, rules])
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._child = 0
        self._loaded: dict[str, Any] | None = None
        self._start()

    @property
    def loaded(self) -> dict[str, Any]:
        """`shape` and `name` of the class; or `error`, what went wrong with the import.

        Raises `SchedulerFileError` if there is no scheduler in it, or several.
        """
        if self._loaded is None:
            self._loaded = self._load()
        if "usage" in self._loaded:
            raise SchedulerFileError(f"{self.path}: {self._loaded['usage']}")
        return self._loaded

    def run(self, workload: Workload) -> list[Event]:
        """What each step did; the last event may hold an error."""
        trace: list[Event] = self._ask(workload)
        return trace

    def run_in_turn(self, workload: Workload) -> list[list[Event]]:
        """Four traces: alone, alone again, and two instances in turn. Empty where it died."""
        traces: list[list[Event]] = self._ask(workload)
        return traces if all(isinstance(trace, list) for trace in traces) else []

    def fresh(self) -> None:
        """Let what comes next run as the import left things."""
        if self._child:
            self._send("fresh")
            self._child = 0
            while (answer := self._read(WALL_S)) is not None and "died" not in answer:
                pass

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        self._selector.close()
        for pid in (self._child, process.pid):
            if pid:
                _kill(pid)
        for pipe in (process.stdin, process.stdout):
            if pipe:
                pipe.close()
        process.wait()
        self._child = 0

    def _start(self) -> None:
        self._buffer = b""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tokenyard.check.worker", self._argument],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=os.environ | {"PYTHONHASHSEED": "0", "PYTHONPATH": _search_path()},
            start_new_session=True,  # Ctrl-C is for us
        )
        assert self._process.stdout is not None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)

    def _load(self) -> dict[str, Any]:
        answer = self._read(IMPORT_WALL_S)
        if answer is None:
            return {"error": "exit", "message": "the process ended while the file was imported"}
        if answer == {}:
            self.close()
            message = f"the import took more than {IMPORT_WALL_S:g} s"
            return {"error": "time", "message": message}
        loaded: dict[str, Any] = answer["loaded"]
        return loaded

    def _ask(self, workload: Workload) -> list[Any]:
        if self._process is None:
            self._start()
            self._read(IMPORT_WALL_S)
        if not self.loaded.get("shape"):
            raise RuntimeError("a scheduler that was not imported cannot be run")
        while not self._child:
            answer = self._read(IMPORT_WALL_S)
            if not answer:
                self.close()
                return [_death("its process could not be started again")]
            self._child = answer.get("pid", 0)
        requests = [
            [one.id, one.arrival, one.prompt_tokens, one.output_tokens] for one in workload.requests
        ]
        ask = {
            "capacity": workload.capacity,
            "requests": requests,
            "instances": workload.instances,
        }
        self._send(ask)
        said: list[Any] = []
        while True:
            answer = self._read(WALL_S)
            if answer is None:
                self.close()
                return [*said, _death("it ended its process, and ours beside it")]
            if answer == {}:
                _kill(self._child)
                while (answer := self._read(WALL_S)) and "died" not in answer:
                    pass
                self._child = 0
                message = f"no answer within {WALL_S:g} s"
                return [*said, {"error": "time", "message": message}]
            if isinstance(answer, dict) and "done" in answer:
                self.printed += answer["done"]
                return said
            if isinstance(answer, dict) and "died" in answer:
                self._child = 0
                return [*said, _death(_how(answer["died"]))]
            said.append(answer)

    def _send(self, what: Any) -> None:
        assert self._process is not None and self._process.stdin is not None
        with suppress(BrokenPipeError):  # that is told by the end of what it says
            self._process.stdin.write(json.dumps(what).encode() + b"\n")

    def _read(self, wait_s: float) -> Any:
        """The next line. {} if none came in time, None at the end."""
        assert self._process is not None and self._process.stdout is not None
        out = self._process.stdout
        until = time.monotonic() + wait_s
        while b"\n" not in self._buffer:
            if not self._selector.select(max(0.0, until - time.monotonic())):
                return {}
            piece = os.read(out.fileno(), 1 << 16)
            if not piece:
                return None
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _search_path() -> str:
    """Where the process finds tokenyard, and what we find."""
    return os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])


def _kill(pid: int) -> None:
    with suppress(OSError):
        os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))


def _death(message: str) -> Event:
    return {"error": "exit", "message": message}


def _how(code: int) -> str:
    if code >= 0:
        return f"it ended the whole process with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = str(-code)
    return f"its process was ended by signal {name}"
