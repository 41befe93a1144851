"""BurstGPT: CSV of Timestamp (seconds), Model, Request tokens, Response tokens, and more.

Later releases add Session ID and Elapsed time. A row with 0 response tokens is a request that
failed. https://github.com/HPMLL/BurstGPT
"""

from __future__ import annotations

from tokenyard.workload.format import Format

BURSTGPT = Format(
    "BurstGPT",
    {
        "arrival": ["Timestamp"],
        "prompt_tokens": ["Request tokens"],
        "output_tokens": ["Response tokens"],
    },
    failed="failed request (0 response tokens)",
)
