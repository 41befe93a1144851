"""Workloads at random, for Hypothesis: aimed at the edges, small enough to shrink well."""

from __future__ import annotations

from hypothesis import strategies as st

from tokenyard.check.workload import Workload, workload


@st.composite
def workloads(draw: st.DrawFn, *, capacity: int | None = None, most_requests: int = 8) -> Workload:
    """A capacity and some requests, seldom more than `most_requests`: prompts as large as the
    capacity, one more, one less; one output token; equal arrivals and idle gaps; decodes
    that fill the whole capacity.

    `capacity` fixes the capacity.
    """
    cap = capacity or draw(st.one_of(st.integers(1, 4), st.integers(1, 10), st.just(16)))
    prompts = st.one_of(
        st.integers(1, min(cap, 3)),
        st.integers(1, cap),
        st.sampled_from([cap, cap + 1, max(1, cap - 1), cap // 2 + 1, 2 * cap + 1]),
    )
    outputs = st.one_of(st.integers(1, 3), st.integers(1, 8))
    gaps = st.sampled_from([0, 0, 0, 1, 1, 2, 3, 25])
    now = 0
    asked: list[tuple[int, int, int]] = []
    count = draw(st.one_of(st.integers(1, most_requests), st.integers(1, 3 * most_requests)))
    for _ in range(count):
        now += draw(gaps) if asked else 0
        asked.append((now, draw(prompts), draw(outputs)))
    return workload(cap, *asked, backwards=draw(st.booleans()))
