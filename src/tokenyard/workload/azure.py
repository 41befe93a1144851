"""Azure LLM inference traces of 2023 and 2024: CSV of TIMESTAMP, ContextTokens, GeneratedTokens.

Timestamps have up to 7 digits after the second; those of 2024 carry an offset such as +00:00.
https://github.com/Azure/AzurePublicDataset
"""

from __future__ import annotations

from tokenyard.workload.format import Format

AZURE = Format(
    "Azure LLM inference",
    {
        "arrival": ["TIMESTAMP"],
        "prompt_tokens": ["ContextTokens"],
        "output_tokens": ["GeneratedTokens"],
    },
)
