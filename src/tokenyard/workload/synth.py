"""Synthetic workloads: arrivals and lengths drawn from a seed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tokenyard.core.rules import MAX_COUNT
from tokenyard.workload.workload import Column, Workload, WorkloadError

Floats = NDArray[np.float64]
Arrivals = Literal["poisson", "gamma", "daily"]

_MICROSECOND = 100_000
"""In ticks. Arrivals are whole microseconds, like those of a log; so they are short to write."""
_MAX_MICROSECONDS = (2**63 - 1) // _MICROSECOND
_AT_ONCE = 1 << 20


def synthesize(
    *,
    requests: int = 1000,
    rate: float = 1.0,
    arrivals: Arrivals = "poisson",
    cv: float = 2.0,
    amplitude: float = 0.5,
    period: float = 86_400.0,
    prompt_mean: float = 1024.0,
    prompt_sigma: float = 1.0,
    prompt_max: int = 32_768,
    output_mean: float = 256.0,
    output_sigma: float = 0.8,
    output_max: int = 4096,
    prefix_groups: int = 0,
    prefix_tokens: int = 0,
    priorities: int = 1,
    seed: int = 0,
) -> Workload:
    """A workload drawn at random; the same arguments give the same workload.

    Parameters
    ----------
    requests
        How many.
    rate
        Mean arrivals a second (with `daily`: over a whole period).
    arrivals
        poisson: independent arrivals at a constant rate. gamma: gaps from a Gamma distribution,
        in bursts if cv is above 1, more even than Poisson if below. daily: Poisson whose rate at
        time t is rate × (1 - amplitude × cos(2π t / period)): it starts at the low of the night.
    cv
        With gamma: coefficient of variation of the gaps, standard deviation / mean (1 is Poisson;
        vLLM's burstiness is 1 / cv²).
    amplitude
        With daily: from 0 (constant) to 1 (no arrivals in the deepest night).
    period
        With daily: seconds from one low to the next.
    prompt_mean, output_mean
        Mean tokens, before the cap.
    prompt_sigma, output_sigma
        Standard deviation of the logarithm of the tokens (0: all equal to the mean).
    prompt_max, output_max
        Larger draws are cut to this.
    prefix_groups
        How many groups of requests share a prefix (0: none). Each request is in one, at random.
    prefix_tokens
        With prefix_groups: tokens of the shared prefix, which come before the prompt drawn.
    priorities
        How many levels of priority, 0 and up, at random (1: no priorities).
    seed
        Of the random numbers.

    Raises `WorkloadError`, which names the argument, for a value out of range.
    """
    _check("requests", requests, 1, MAX_COUNT)
    _check("rate", rate, 1e-6, 1e9)
    _check("cv", cv, 0.01, 100)
    _check("amplitude", amplitude, 0, 1)
    _check("period", period, 1e-3, 1e9)
    _check("prompt_mean", prompt_mean, 1, MAX_COUNT)
    _check("prompt_sigma", prompt_sigma, 0, 10)
    _check("prompt_max", prompt_max, 1, MAX_COUNT)
    _check("output_mean", output_mean, 1, MAX_COUNT)
    _check("output_sigma", output_sigma, 0, 10)
    _check("output_max", output_max, 1, MAX_COUNT)
    _check("prefix_groups", prefix_groups, 0, 1_000_000)
    _check("prefix_tokens", prefix_tokens, 0, MAX_COUNT - prompt_max)
    _check("priorities", priorities, 1, MAX_COUNT)
    _check("seed", seed, 0, 2**64 - 1)
    if bool(prefix_groups) != bool(prefix_tokens):
        raise WorkloadError(
            "prefix_groups and prefix_tokens go together "
            f"(got {prefix_groups} groups of {prefix_tokens} tokens)"
        )

    # A stream of its own for each column: changing one leaves the others as they are.
    times, prompts, outputs, groups, levels = (
        np.random.default_rng(stream) for stream in np.random.SeedSequence(seed).spawn(5)
    )
    if arrivals == "poisson":
        arrival = _from_gaps(requests, lambda n: times.standard_exponential(n) / rate)
    elif arrivals == "gamma":
        arrival = _from_gaps(requests, lambda n: times.standard_gamma(cv**-2, n) * (cv**2 / rate))
    elif arrivals == "daily":
        arrival = _daily(requests, times, rate, amplitude, period)
    else:
        raise WorkloadError(f"arrivals must be poisson, gamma or daily (got {arrivals!r})")
    prompt_tokens = _lengths(requests, prompts, prompt_mean, prompt_sigma, prompt_max)
    output_tokens = _lengths(requests, outputs, output_mean, output_sigma, output_max)
    workload = Workload(
        arrival=arrival,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        source=f"synthetic ({arrivals}, seed {seed})",
    )
    if prefix_groups:
        names = [f"prefix-{group}" for group in range(prefix_groups)]
        drawn = groups.integers(prefix_groups, size=requests)
        workload.prefix_group = [names[group] for group in drawn.tolist()]
        workload.prefix_tokens = np.full(requests, prefix_tokens, dtype=np.int64)
        workload.prompt_tokens += prefix_tokens
    if priorities > 1:
        workload.priority = levels.integers(priorities, size=requests)
    return workload


def _from_gaps(requests: int, gaps: Callable[[int], Floats]) -> Column:
    """Arrivals whose gaps, in seconds, come from `gaps(how many)`."""
    arrival = np.empty(requests, dtype=np.int64)
    now = 0.0
    for start in range(0, requests, _AT_ONCE):
        part = arrival[start : start + _AT_ONCE]
        seconds = now + np.cumsum(gaps(len(part)))
        now = float(seconds[-1])
        part[:] = _microseconds(seconds)
    return _from_first(arrival)


def _daily(
    requests: int, random: np.random.Generator, rate: float, amplitude: float, period: float
) -> Column:
    """Thinning (Lewis and Shedler 1979): arrivals at the highest rate, each kept with the
    probability rate(t) / highest rate. Exact for any rate(t)."""
    arrival = np.empty(requests, dtype=np.int64)
    highest = rate * (1 + amplitude)
    now, done = 0.0, 0
    while done < requests:
        count = min(_AT_ONCE, 2 * (requests - done) + 64)
        seconds = now + np.cumsum(random.standard_exponential(count) / highest)
        now = float(seconds[-1])
        rate_then = rate * (1 - amplitude * np.cos(seconds * (2 * math.pi / period)))
        kept = seconds[random.random(count) * highest < rate_then][: requests - done]
        arrival[done : done + len(kept)] = _microseconds(kept)
        done += len(kept)
    return _from_first(arrival)


def _microseconds(seconds: Floats) -> Column:
    if len(seconds) and seconds[-1] * 1e6 > _MAX_MICROSECONDS:
        raise WorkloadError(
            "so many requests at so low a rate span more than the 2.9 years that ticks of 10 ps "
            "can count: raise rate or lower requests"
        )
    return np.rint(seconds * 1e6).astype(np.int64)


def _from_first(microseconds: Column) -> Column:
    """Whole microseconds as ticks from the first."""
    microseconds -= microseconds[0]
    microseconds *= _MICROSECOND
    return microseconds


def _lengths(
    requests: int, random: np.random.Generator, mean: float, sigma: float, most: int
) -> Column:
    """Log-normal token counts from 1 to `most`. A log-normal whose logarithm has mean m and
    standard deviation s has the mean exp(m + s² / 2)."""
    lengths = np.empty(requests, dtype=np.int64)
    location = math.log(mean) - sigma**2 / 2
    for start in range(0, requests, _AT_ONCE):
        part = lengths[start : start + _AT_ONCE]
        drawn = np.exp(location + sigma * random.standard_normal(len(part)))
        part[:] = np.clip(np.rint(drawn), 1, most)
    return lengths


def _check(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise WorkloadError(f"{name} must be from {least:,} to {most:,} (got {value!r})")
