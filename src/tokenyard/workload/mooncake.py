"""Mooncake traces: JSON Lines of timestamp (ms), input_length, output_length, hash_ids.

There is one hash id for each 512 tokens of the prompt; prompts whose ids are equal up to a place
are equal up to there. https://github.com/kvcache-ai/Mooncake
"""

from __future__ import annotations

from tokenyard.workload.format import Format

MOONCAKE = Format(
    "Mooncake",
    {
        "arrival": [("timestamp", "ms")],
        "prompt_tokens": ["input_length"],
        "output_tokens": ["output_length"],
        "hash_ids": ["hash_ids"],
    },
)
