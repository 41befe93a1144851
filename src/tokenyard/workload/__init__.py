"""Workloads: request logs in, synthetic ones made, either written.

Contents: `Workload` and `WorkloadError` (workload.py); `read_workload` (read.py) and the formats it
knows, each in a file of its own; `write_workload` (write.py); `synthesize` (synth.py). Polars is
imported when a file is first read or written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenyard.workload.synth import synthesize
from tokenyard.workload.workload import Workload, WorkloadError

if TYPE_CHECKING:
    from tokenyard.workload.read import read_workload
    from tokenyard.workload.write import write_workload

__all__ = ["Workload", "WorkloadError", "read_workload", "synthesize", "write_workload"]


def __getattr__(name: str) -> Any:
    if name == "read_workload":
        from tokenyard.workload.read import read_workload

        return read_workload
    if name == "write_workload":
        from tokenyard.workload.write import write_workload

        return write_workload
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
