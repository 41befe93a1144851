"""The process beside the scheduler's code: `python -m tokenyard.check.worker FILE [Name]`.

It imports the file, and runs workloads that come as JSON lines on what was standard input; steps
go out as JSON lines on what was standard output. Both are moved out of the way of the scheduler's
code first, so that what that prints or reads disturbs nothing.

The runs happen in a child, forked after the import: when one dies, the next is there in a
millisecond and as fresh as the import left it.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import random
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

from tokenyard.check.adapters import Adapter, ShapeError, find, maker
from tokenyard.check.drive import Limits, TooLongError, drive, drive_in_turn, limited, own_lines
from tokenyard.check.workload import Asked, Workload

IMPORT_CPU_S = 20.0

Maker = Callable[[int], Adapter]


class _Counted(io.TextIOBase):
    """Takes what the scheduler's code prints, and only counts it."""

    lines = 0

    def write(self, text: str) -> int:
        _Counted.lines += text.count("\n")
        return len(text)

    def writable(self) -> bool:
        return True


def main() -> None:
    """Serve until standard input ends."""
    path, name, memory, cpu_s, wall_s, rules = json.loads(sys.argv[1])
    limits = Limits(cpu_s, wall_s)
    asked, answers = _protocol()
    _bound_memory(memory)
    loaded: Any = None
    try:
        with limited(Limits(IMPORT_CPU_S)):
            thing, shape = find(_import(Path(path)), name)
        loaded = {"shape": shape, "name": getattr(thing, "__name__", name)}
    except ShapeError as error:
        loaded = {"usage": str(error)}
    except MemoryError:
        loaded = {"error": "memory", "message": "it ran out of memory"}
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        loaded = {"error": "import", "message": message, "traceback": _import_lines(error)}
    except TooLongError:
        loaded = {"error": "time", "message": f"the import took {IMPORT_CPU_S:g} s of CPU time"}
    except (SystemExit, KeyboardInterrupt) as error:
        loaded = {"error": "exit", "message": f"the import raised {type(error).__name__}"}
    _put(answers, {"loaded": loaded})
    if "shape" in loaded:
        _serve_forked(asked, answers, maker(thing, shape, rules), limits)


def _protocol() -> tuple[int, IO[bytes]]:
    """The two ends of the protocol, on descriptors of their own; 0, 1 and 2 lead nowhere."""
    asked = os.dup(0)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    sys.stdout = _Counted()
    return asked, answers


def _bound_memory(bytes: int) -> None:
    """Where the system can: let an allocation beyond this fail."""
    try:
        import resource

        for what in (resource.RLIMIT_DATA, resource.RLIMIT_CORE):
            most = 0 if what == resource.RLIMIT_CORE else bytes
            resource.setrlimit(what, (most, resource.getrlimit(what)[1]))
    except (ImportError, ValueError, OSError):
        pass


def _import(path: Path) -> Any:
    sys.path.insert(0, str(path.parent))
    sys.argv = [str(path)]
    name = path.stem
    if name in sys.stdlib_module_names:
        name = f"{name}_"  # queue.py is not to take the place of queue
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ShapeError("it is no Python file; expected a name that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _import_lines(error: Exception) -> list[str]:
    if isinstance(error, SyntaxError):
        return [f"{error.filename}:{error.lineno}: {(error.text or '').strip()}"]
    return own_lines(error)


FRESH, ENDED = 17, 18
"""What a child exits with: another one is wanted, or nothing more is asked."""


def _serve_forked(asked: int, answers: IO[bytes], make: Maker, limits: Limits) -> None:
    """Serve in children, one after the other, until nothing more is asked."""
    code = FRESH
    while code != ENDED:
        child = os.fork()
        if child == 0:
            try:
                code = _serve(asked, answers, make, limits)
            finally:
                os._exit(code)
        _put(answers, {"pid": child})
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        _put(answers, {"died": code})


def _serve(asked: int, answers: IO[bytes], make: Maker, limits: Limits) -> int:
    """Run what is asked for."""

    def seeded(capacity: int) -> Adapter:
        random.seed(0)
        return make(capacity)

    with os.fdopen(os.dup(asked), "rb") as lines:
        for line in lines:
            ask = json.loads(line)
            if ask == "fresh":
                return FRESH
            printed = _Counted.lines
            requests = tuple(Asked(*one) for one in ask["requests"])
            workload = Workload(ask["capacity"], requests)
            runs: Iterable[Any] = (
                drive_in_turn(seeded, workload, limits)
                if ask["instances"] == 2
                else drive(seeded, workload, limits)
            )
            for run in runs:
                _put(answers, run)
            _put(answers, {"done": _Counted.lines - printed})
    return ENDED


def _put(answers: IO[bytes], what: Any) -> None:
    data = json.dumps(what).encode() + b"\n"
    while data:
        data = data[answers.write(data) or 0 :]


if __name__ == "__main__":
    main()
