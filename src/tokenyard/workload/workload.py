"""A workload: the requests of a trace, in order of arrival, as columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenyard.core import Request

Column = NDArray[np.int64]


class WorkloadError(ValueError):
    """A request log cannot be read or written, or a workload cannot be made; the message says which
    file, line, column and value, and what was expected."""


@dataclass(kw_only=True)
class Workload:
    """Requests in order of arrival; every column has one entry a request.

    `arrival` in ticks from the first arrival of the trace (>= 0, sorted; equal times keep the order
    of the file); `prompt_tokens` and `output_tokens` >= 1 (`output_tokens` is the true length,
    which the scheduler never sees). `max_tokens` None: the same as output_tokens, so every request
    ends by length; where given it is >= output_tokens. `deadline`: ticks after arrival at which
    the client gives up and the request is aborted (-1: never).
    """

    arrival: Column
    prompt_tokens: Column
    output_tokens: Column
    ids: list[str] | None = None
    """None: the row of the request in its file, counted from 1, which `rows` holds."""
    rows: Column | None = None
    """Row in the file (from 1, without header) of each request. None: 1, 2, 3 …"""
    max_tokens: Column | None = None
    priority: Column | None = None
    predicted_tokens: Column | None = None
    deadline: Column | None = None
    hash_ids: list[tuple[int, ...]] | None = None
    hash_block_size: int = 512
    prefix_group: list[str | None] | None = None
    prefix_tokens: Column | None = None
    source: str = ""
    """What was read, for people: the file's name and its format."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Rows that could not be used, counted by reason (each row once, by the first that applies)."""
    skipped_examples: dict[str, str] = field(default_factory=dict)
    """For each reason in `skipped`: where it first applied, and the value."""

    def __len__(self) -> int:
        return len(self.arrival)

    def id(self, place: int) -> str:
        """The id of request number `place` (from 0)."""
        if self.ids is not None:
            return self.ids[place]
        return str(place + 1 if self.rows is None else self.rows[place])

    def take(self, places: Column) -> Workload:
        """The requests at these places (from 0, ascending); their ids and arrivals stay."""

        def column(values: Column | None) -> Column | None:
            return None if values is None else values[places]

        def listed(values: list[Any] | None) -> list[Any] | None:
            return None if values is None else [values[place] for place in places.tolist()]

        return replace(
            self,
            arrival=self.arrival[places],
            prompt_tokens=self.prompt_tokens[places],
            output_tokens=self.output_tokens[places],
            ids=listed(self.ids),
            rows=places + 1 if self.rows is None else self.rows[places],
            max_tokens=column(self.max_tokens),
            priority=column(self.priority),
            predicted_tokens=column(self.predicted_tokens),
            deadline=column(self.deadline),
            hash_ids=listed(self.hash_ids),
            prefix_group=listed(self.prefix_group),
            prefix_tokens=column(self.prefix_tokens),
        )

    def requests(self, *, predict: bool = False) -> Iterator[Request]:
        """The requests as the scheduler takes them. `predict`: hand in the true output length as
        predicted_tokens (for the policy sjf-oracle)."""
        arrival = self.arrival.tolist()
        prompt = self.prompt_tokens.tolist()
        output = self.output_tokens.tolist()
        most = output if self.max_tokens is None else self.max_tokens.tolist()
        priority = None if self.priority is None else self.priority.tolist()
        predicted = output if predict else None
        if not predict and self.predicted_tokens is not None:
            predicted = self.predicted_tokens.tolist()
        deadline = None if self.deadline is None else self.deadline.tolist()
        prefix_tokens = None if self.prefix_tokens is None else self.prefix_tokens.tolist()
        for place in range(len(arrival)):
            yield Request(
                self.id(place),
                prompt[place],
                most[place],
                arrival=arrival[place],
                priority=priority[place] if priority else 0,
                deadline=deadline[place] if deadline and deadline[place] >= 0 else None,
                predicted_tokens=predicted[place] if predicted else None,
                hash_ids=self.hash_ids[place] if self.hash_ids else None,
                hash_block_size=self.hash_block_size,
                prefix_group=self.prefix_group[place] if self.prefix_group else None,
                prefix_tokens=prefix_tokens[place] if prefix_tokens else 0,
            )
