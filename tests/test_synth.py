"""Synthetic workloads: the distributions that are promised, from a seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokenyard.workload import Workload, WorkloadError, read_workload, synthesize

SECOND = 10**11
ROOT = Path(__file__).resolve().parent.parent


def gaps(workload: Workload) -> np.ndarray:
    return np.diff(workload.arrival) / SECOND


@pytest.mark.parametrize("arrivals", ["poisson", "gamma", "daily"])
def test_a_seed_decides_everything(arrivals: Any) -> None:
    def make(seed: int) -> list[list[int]]:
        workload = synthesize(
            requests=500,
            arrivals=arrivals,
            seed=seed,
            prefix_groups=3,
            prefix_tokens=9,
            priorities=4,
        )
        assert workload.priority is not None and workload.prefix_group is not None
        groups = [int(str(group).removeprefix("prefix-")) for group in workload.prefix_group]
        return [
            workload.arrival.tolist(),
            workload.prompt_tokens.tolist(),
            workload.output_tokens.tolist(),
            workload.priority.tolist(),
            groups,
        ]

    first, again, other = make(1), make(1), make(2)
    assert first == again
    assert all(one != two for one, two in zip(first, other, strict=True))


def test_the_columns_of_one_draw_do_not_move_those_of_another() -> None:
    plain = synthesize(requests=100)
    other = synthesize(requests=100, arrivals="gamma", output_sigma=2, priorities=3)
    assert (plain.prompt_tokens == other.prompt_tokens).all()


@pytest.mark.parametrize("arrivals", ["poisson", "gamma", "daily"])
def test_arrivals_are_sorted_whole_microseconds_from_zero(arrivals: Any) -> None:
    workload = synthesize(requests=5000, rate=1e4, arrivals=arrivals)
    assert workload.arrival[0] == 0
    assert (np.diff(workload.arrival) >= 0).all()
    assert (workload.arrival % 100_000 == 0).all()
    assert len(workload) == 5000


def test_poisson_gaps_are_exponential() -> None:
    seconds = gaps(synthesize(requests=100_000, rate=4, seed=3))
    # Mean 1/4 s and deviation the same; each estimate from 100,000 gaps is good to about 0.3 %.
    assert seconds.mean() == pytest.approx(0.25, rel=0.02)
    assert seconds.std() == pytest.approx(0.25, rel=0.02)
    # P(gap > 0.5 s) = exp(-2).
    assert (seconds > 0.5).mean() == pytest.approx(np.exp(-2), rel=0.05)


@pytest.mark.parametrize("cv", [0.3, 1, 3])
def test_gamma_gaps_have_the_coefficient_of_variation_asked_for(cv: float) -> None:
    seconds = gaps(synthesize(requests=200_000, rate=4, arrivals="gamma", cv=cv, seed=5))
    assert seconds.mean() == pytest.approx(0.25, rel=0.03)
    assert seconds.std() / seconds.mean() == pytest.approx(cv, rel=0.03)


def test_daily_arrivals_follow_the_cosine() -> None:
    workload = synthesize(
        requests=200_000, rate=2, arrivals="daily", amplitude=0.8, period=1000, seed=2
    )
    seconds = workload.arrival / SECOND
    assert seconds[-1] == pytest.approx(100_000, rel=0.02)
    # Of a period's requests the first tenth holds
    # (1/10) - 0.8 sin(2π/10) / 2π = 0.0252 of all; the middle half
    # (1/2) + 0.8 × 2 sin(π/2) / 2π = 0.7546.
    phase = seconds % 1000 / 1000
    assert (phase < 0.1).mean() == pytest.approx(0.0252, rel=0.1)
    assert ((phase > 0.25) & (phase < 0.75)).mean() == pytest.approx(0.7546, rel=0.01)


def test_lengths_are_log_normal_with_the_mean_asked_for() -> None:
    workload = synthesize(
        requests=200_000, prompt_mean=900, prompt_sigma=0.7, prompt_max=10**9, output_max=50
    )
    logs = np.log(workload.prompt_tokens)
    assert workload.prompt_tokens.mean() == pytest.approx(900, rel=0.02)
    assert logs.std() == pytest.approx(0.7, rel=0.02)
    assert np.median(workload.prompt_tokens) == pytest.approx(900 * np.exp(-0.245), rel=0.02)
    assert workload.output_tokens.max() == 50
    assert workload.output_tokens.min() >= 1


def test_sigma_zero_makes_all_lengths_equal() -> None:
    workload = synthesize(requests=10, prompt_mean=100, prompt_sigma=0, output_mean=1)
    assert set(workload.prompt_tokens.tolist()) == {100}
    assert workload.output_tokens.min() == 1


def test_prefixes_come_before_the_prompts() -> None:
    plain = synthesize(requests=1000)
    shared = synthesize(requests=1000, prefix_groups=4, prefix_tokens=128)
    assert (shared.prompt_tokens == plain.prompt_tokens + 128).all()
    assert shared.prefix_group is not None and len(set(shared.prefix_group)) == 4
    assert plain.prefix_group is None and plain.prefix_tokens is None
    assert all(request.prefix_tokens == 128 for request in shared.requests())


def test_priorities_are_evenly_spread() -> None:
    priority = synthesize(requests=30_000, priorities=3).priority
    assert priority is not None and priority.dtype == np.int64
    for level in range(3):
        assert (priority == level).mean() == pytest.approx(1 / 3, rel=0.05)
    assert synthesize(requests=3).priority is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"requests": 0}, "requests"),
        ({"rate": 0.0}, "rate"),
        ({"rate": float("nan")}, "rate"),
        ({"arrivals": "weekly"}, "poisson, gamma or daily"),
        ({"cv": -1}, "cv"),
        ({"amplitude": 1.5}, "amplitude"),
        ({"period": 0}, "period"),
        ({"prompt_mean": 0}, "prompt_mean"),
        ({"output_sigma": -1}, "output_sigma"),
        ({"output_max": 0}, "output_max"),
        ({"priorities": 0}, "priorities"),
        ({"prefix_groups": 2}, "prefix_groups and prefix_tokens go together"),
        ({"prefix_tokens": 2}, "prefix_groups and prefix_tokens go together"),
        ({"seed": -1}, "seed"),
        ({"requests": 1000, "rate": 1e-6}, r"2\.9 years"),
    ],
)
def test_an_argument_out_of_range_is_named(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        synthesize(**arguments)


def test_the_example_log_is_what_its_command_makes() -> None:
    shipped = read_workload(ROOT / "examples" / "requests.csv")
    made = synthesize(requests=300, rate=8, arrivals="gamma", cv=2, seed=1)
    for name in ("arrival", "prompt_tokens", "output_tokens"):
        assert getattr(shipped, name).tolist() == getattr(made, name).tolist(), name
