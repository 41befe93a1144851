"""Which format a table is in, by the names of its columns."""

from __future__ import annotations

from collections.abc import Sequence

from tokenyard.workload.azure import AZURE
from tokenyard.workload.burstgpt import BURSTGPT
from tokenyard.workload.format import REQUIRED, Format, Found, plain
from tokenyard.workload.mooncake import MOONCAKE
from tokenyard.workload.own import OWN
from tokenyard.workload.vllm_bench import VLLM_BENCH
from tokenyard.workload.workload import WorkloadError

FORMATS: tuple[Format, ...] = (AZURE, BURSTGPT, MOONCAKE, VLLM_BENCH, OWN)
"""Known formats; the first whose columns are there is taken."""

_KNOWN = {
    plain(candidate if isinstance(candidate, str) else candidate[0])
    for format in FORMATS
    for candidates in format.columns.values()
    for candidate in candidates
}


def is_known(column: str) -> bool:
    """Whether any format has a column of that name."""
    return plain(column) in _KNOWN


def detect(name: str, kind: str, columns: Sequence[str]) -> tuple[Format, dict[str, Found]]:
    """The format of a file with these columns, and which column holds which field. Raises
    `WorkloadError`, which lists the columns found and those expected."""
    for format in FORMATS:
        if (found := format.find(columns)) is not None:
            return format, found
    listed = ", ".join(map(repr, columns[:20])) or "none"
    if len(columns) > 20:
        listed += f" and {len(columns) - 20} more"
    expected = "\n".join(f"  {format.name}: {_expected(format)}" for format in FORMATS)
    raise WorkloadError(
        f"{name}: {kind} with the columns {listed}. Expected are those of one of these formats "
        f"(case, spaces and punctuation of names do not matter):\n{expected}"
    )


def _expected(format: Format) -> str:
    said = []
    for field in REQUIRED:
        names = [c if isinstance(c, str) else c[0] for c in format.columns[field]]
        others = f" (or {', '.join(names[1:4])} …)" if names[1:] else ""
        said.append(names[0] + others)
    return ", ".join(said)
