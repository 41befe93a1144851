"""Our own request logs: CSV, JSON Lines or Parquet with one row a request.

`arrival` (seconds, or timestamps), `prompt_tokens` and `output_tokens` are needed. What other
tools call these columns is understood too.
"""

from __future__ import annotations

from tokenyard.workload.format import Format

OWN = Format(
    "request log",
    {
        "arrival": [
            "arrival",
            ("arrival_ticks", "ticks"),
            "arrival_s",
            ("arrival_ms", "ms"),
            ("arrival_us", "us"),
            ("arrival_ns", "ns"),
            "arrival_time",
            "arrived_at",
            "arrival_timestamp",
            "timestamp",
            ("timestamp_ms", "ms"),
            ("timestamp_us", "us"),
            ("timestamp_ns", "ns"),
            "start_time",
            "request_time",
            "created_at",
            "time",
        ],
        "prompt_tokens": [
            "prompt_tokens",
            "input_tokens",
            "context_tokens",
            "request_tokens",
            "num_prompt_tokens",
            "num_prefill_tokens",
            "prompt_length",
            "prompt_len",
            "input_length",
            "input_len",
            "isl",
        ],
        "output_tokens": [
            "output_tokens",
            "completion_tokens",
            "generated_tokens",
            "response_tokens",
            "num_output_tokens",
            "num_decode_tokens",
            "output_length",
            "output_len",
            "osl",
        ],
        "max_tokens": ["max_tokens", "max_output_tokens", "max_completion_tokens"],
        "priority": ["priority"],
        "predicted_tokens": ["predicted_tokens", "predicted_output_tokens"],
        "deadline": [
            "deadline",
            ("deadline_ticks", "ticks"),
            "deadline_s",
            ("deadline_ms", "ms"),
            "timeout",
            "timeout_s",
            ("timeout_ms", "ms"),
        ],
        "id": ["id", "request_id", "req_id"],
        "prefix_group": ["prefix_group"],
        "prefix_tokens": ["prefix_tokens"],
        "hash_ids": ["hash_ids"],
        "hash_block_size": ["hash_block_size"],
    },
)
