"""Random rules and workloads, small enough to shrink well and tight enough to meet every rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from tokenyard.core import Request, Rules

Maker = Callable[[], Request]


@dataclass(frozen=True)
class Asked:
    """What a request asks for, to make a fresh `Request` from for every run."""

    id: str
    prompt_tokens: int
    max_tokens: int
    arrival: int
    output_tokens: int
    priority: int = 0
    predicted_tokens: int = 0
    deadline: int | None = None
    token_ids: tuple[int, ...] | None = None

    def request(self) -> Request:
        return Request(
            self.id,
            self.prompt_tokens,
            self.max_tokens,
            arrival=self.arrival,
            priority=self.priority,
            predicted_tokens=self.predicted_tokens,
            deadline=self.deadline,
            token_ids=self.token_ids,
        )


def any_rules(**fixed: Any) -> st.SearchStrategy[Rules]:
    """Rules of every kind; `fixed` holds fields that are given."""
    small = st.integers(1, 12)
    fields: dict[str, st.SearchStrategy[Any]] = {
        "max_num_batched_tokens": st.one_of(st.none(), small, st.just(1), st.integers(8, 40)),
        "max_num_seqs": st.one_of(st.none(), st.integers(1, 6)),
        "prefill_token_budget": st.one_of(st.none(), st.none(), small),
        "enable_chunked_prefill": st.booleans(),
        "long_prefill_token_threshold": st.sampled_from([0, 0, 1, 3, 8]),
        "policy": st.sampled_from(["fcfs", "fcfs", "priority", "sjf", "sjf-oracle"]),
        "running_order": st.sampled_from(["decode_first", "admission"]),
        "head_of_line": st.sampled_from(["block", "skip"]),
        "max_skips": st.integers(0, 3),
        "preemption": st.sampled_from(["recompute", "recompute", "none"]),
        "first_token": st.sampled_from(["prefill", "next_step"]),
        "num_blocks": st.one_of(st.none(), st.integers(1, 16), st.integers(6, 40)),
        "block_size": st.integers(1, 5),
        "enable_prefix_caching": st.booleans(),
        "scheduler_reserve_full_isl": st.booleans(),
    }

    def build(values: dict[str, Any]) -> Rules:
        values |= fixed
        if not values["enable_chunked_prefill"]:
            values["long_prefill_token_threshold"] = 0
        return Rules(**values)

    return st.fixed_dictionaries(fields).map(build)


@st.composite
def workloads(
    draw: st.DrawFn, *, most: int = 10, tick: int = 1, deadlines: bool = True
) -> list[Asked]:
    """Requests in order of arrival, with equal times, idle gaps and shared beginnings among them.
    Times are multiples of `tick`."""
    asked: list[Asked] = []
    now = 0
    for number in range(draw(st.integers(0, most))):
        now += draw(st.sampled_from([0, 0, 0, 1, 2, 30])) * tick
        prompt = draw(st.integers(1, 14))
        output = draw(st.integers(1, 10))
        family = draw(st.integers(0, 2))
        shared = draw(st.integers(0, prompt))
        asked.append(
            Asked(
                id=f"r{number}",
                prompt_tokens=prompt,
                max_tokens=output + draw(st.sampled_from([0, 0, 1, 5])),
                arrival=now,
                output_tokens=output,
                priority=draw(st.integers(0, 2)),
                predicted_tokens=draw(st.integers(0, 5)),
                deadline=draw(st.one_of(st.none(), st.integers(0, 12)))
                if deadlines and draw(st.booleans())
                else None,
                token_ids=tuple(
                    family if place < shared else 1000 * (number + 1) + place
                    for place in range(prompt)
                ),
            )
        )
    return asked
