"""The result of `vllm bench serve --save-result --save-detailed`: one JSON object of lists.

`input_lens`, `output_lens` and `start_times` (seconds of a clock of its own) have one entry a
request; a request that failed has 0 output tokens. https://github.com/vllm-project/vllm
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tokenyard.workload.format import Format
from tokenyard.workload.workload import WorkloadError

if TYPE_CHECKING:
    import polars as pl

VLLM_BENCH = Format(
    "vllm bench serve",
    {
        "arrival": ["start_times"],
        "prompt_tokens": ["input_lens"],
        "output_tokens": ["output_lens"],
    },
    failed="failed request (0 output tokens)",
)


def is_result(document: Mapping[str, Any]) -> bool:
    """Whether a JSON object is such a result, detailed or not."""
    return "input_lens" in document or {"request_rate", "total_input_tokens"} <= document.keys()


def result_columns(name: str, document: Mapping[str, Any]) -> dict[str, pl.Series]:
    """The lists as columns, start_times as exact decimal texts. Raises `WorkloadError`."""
    from tokenyard.workload.json_lines import series

    if "input_lens" not in document:
        raise WorkloadError(
            f"{name}: a result of vllm bench serve without its requests (no input_lens): "
            "save it with --save-detailed"
        )
    lists: dict[str, Any] = {
        column: document.get(column) for column in ("input_lens", "output_lens")
    }
    lists["start_times"] = document.get("start_times") or _sent_at_once(name, document)
    for column, values in lists.items():
        if not isinstance(values, list):
            raise WorkloadError(
                f"{name}: a result of vllm bench serve must hold {column} as a list "
                f"(got {type(values).__name__})"
            )
    lengths = {column: len(values) for column, values in lists.items()}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{column} {length:,}" for column, length in lengths.items())
        raise WorkloadError(f"{name}: the lists of a result must be equally long (got {said})")
    return {column: series(column, values) for column, values in lists.items()}


def _sent_at_once(name: str, document: Mapping[str, Any]) -> list[int]:
    """Older results have no start_times. At an infinite rate all were sent at the start."""
    rate, concurrency = document.get("request_rate"), document.get("max_concurrency")
    if rate not in ("inf", None) or concurrency is not None:
        raise WorkloadError(
            f"{name}: a result of vllm bench serve without start_times (request_rate {rate}, "
            f"max_concurrency {concurrency}): it does not say when its requests were sent. "
            "Run the benchmark again with a vLLM whose detailed results have start_times"
        )
    return [0] * len(document["input_lens"])
