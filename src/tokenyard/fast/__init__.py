"""The compiled engine: the same answer as the loop over `core`, at a cost per change of state.

Importing this compiles nothing and loads no Numba; `replay` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tokenyard.core import Rules
    from tokenyard.engine.step_time import StepTime
    from tokenyard.metrics import RequestTable, RunSums
    from tokenyard.workload import Workload

__all__ = ["ReplayError", "StepColumns", "needs_compiling", "replay", "unsupported"]

LARGEST_BLOCK = 1 << 20
"""Tokens in the largest block that the engine takes: it keeps a table of that size."""


class ReplayError(ValueError):
    """The run cannot be told in 64-bit ticks."""


class StepColumns:
    """What the steps of a run did, as columns, for pictures: hand an empty one to `replay`.

    A line stands for `repeat` steps in which nobody joins or leaves, as in the schedule log. With
    `every` n only each n-th line is kept. Memory: 80 bytes a line.
    """

    FIELDS = (
        "step",
        "start",
        "repeat",
        "duration",
        "duration_growth",
        "prefill_tokens",
        "decodes",
        "waiting",
        "running",
        "free_blocks",
    )

    def __init__(self, every: int = 1) -> None:
        if every < 1:
            raise ValueError(f"every must be 1 or more (got {every})")
        self.every = every
        self._pieces: list[NDArray[np.int64]] = []

    def add(self, lines: NDArray[np.int64]) -> None:
        """Take in lines, one a column; they are copied."""
        if lines.shape[1]:
            self._pieces.append(lines.copy())

    def columns(self) -> dict[str, NDArray[np.int64]]:
        """By name: int64, one entry a line, times in ticks. `waiting`, `running` and `free_blocks`
        (0 without memory) are those after the line's last step; `decodes` is each step's."""
        import numpy as np

        empty = np.empty((len(self.FIELDS), 0), np.int64)
        return dict(zip(self.FIELDS, np.concatenate([empty, *self._pieces], axis=1), strict=True))


def unsupported(rules: Rules, workload: Workload) -> str | None:
    """Why the compiled engine cannot run this, or None. If it cannot, the reference engine does."""
    from tokenyard.core import POLICIES

    if rules.policy not in POLICIES:
        return f"policy {rules.policy} is a class of yours"
    if rules.policy == "sjf" and workload.predicted_tokens is None:
        return "policy sjf needs predicted_tokens, which the workload does not have"
    if rules.head_of_line == "skip":
        return "head_of_line is skip"
    if rules.enable_prefix_caching:
        return "enable_prefix_caching is on"
    if rules.block_size > LARGEST_BLOCK:
        return f"block_size {rules.block_size:,} is more than {LARGEST_BLOCK:,}"
    return None


def needs_compiling() -> bool:
    """Whether the next `replay` compiles first, which takes some ten seconds; later runs on this
    machine find the code where Numba keeps it (NUMBA_CACHE_DIR, if set)."""
    from tokenyard.fast import arrays

    return arrays.needs_compiling()


def replay(
    workload: Workload,
    rules: Rules,
    step_time: StepTime,
    *,
    go_on: Callable[[int], bool] | None = None,
    steps: StepColumns | None = None,
) -> tuple[RequestTable, RunSums]:
    """Replay a workload under rules that are not `unsupported`.

    `steps` takes in what the steps did, for pictures.

    `go_on` is called from time to time with the number of requests that have left; when it returns
    False the run ends there, and the table holds those that have arrived. Raises `ReplayError` when
    a run would pass 2^62 ticks (1.4 years).
    """
    from tokenyard.fast.arrays import replay_arrays

    return replay_arrays(workload, rules, step_time, go_on, steps)
