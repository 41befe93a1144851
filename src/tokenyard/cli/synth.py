"""`tokenyard synth OUT`: write a synthetic request log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from tokenyard.cli.exit_codes import OK
from tokenyard.cli.numbers import WHOLE_NUMBER

ARRIVALS = Parameter(group=Group("Arrivals", sort_key=1))
LENGTHS = Parameter(group=Group("Lengths", sort_key=2))
MORE = Parameter(group=Group("More", sort_key=3))

Count = Annotated[int, WHOLE_NUMBER]


def synth(
    out: Annotated[Path, Parameter(name="OUT")],
    /,
    *,
    requests: Annotated[Count, ARRIVALS] = 1000,
    rate: Annotated[float, ARRIVALS] = 1.0,
    arrivals: Annotated[Literal["poisson", "gamma", "daily"], ARRIVALS] = "poisson",
    cv: Annotated[float, ARRIVALS] = 2.0,
    amplitude: Annotated[float, ARRIVALS] = 0.5,
    period: Annotated[float, ARRIVALS] = 86_400.0,
    prompt_mean: Annotated[float, LENGTHS] = 1024.0,
    prompt_sigma: Annotated[float, LENGTHS] = 1.0,
    prompt_max: Annotated[Count, LENGTHS] = 32_768,
    output_mean: Annotated[float, LENGTHS] = 256.0,
    output_sigma: Annotated[float, LENGTHS] = 0.8,
    output_max: Annotated[Count, LENGTHS] = 4096,
    prefix_groups: Annotated[Count, MORE] = 0,
    prefix_tokens: Annotated[Count, MORE] = 0,
    priorities: Annotated[Count, MORE] = 1,
    seed: Annotated[Count, MORE] = 0,
) -> int:
    """Parameters
    ----------
    out
        File to write: .csv, .jsonl or .parquet, and after it .gz or .zst to compress.
    requests
        How many requests.
    rate
        Mean arrivals a second.
    arrivals
        poisson: independent, at a constant rate. gamma: in bursts, or more even than poisson, by
        --cv. daily: poisson with a rate that rises and falls, from the low of the night on.
    cv
        With gamma: standard deviation of the gaps / their mean (1: poisson; above: bursts).
    amplitude
        With daily: from 0 (a constant rate) to 1 (no arrivals in the deepest night).
    period
        With daily: seconds from one low to the next.
    prompt_mean
        Mean prompt tokens, log-normal, before --prompt-max cuts them.
    prompt_sigma
        Standard deviation of their logarithm (0: all equal).
    prompt_max
        Most prompt tokens.
    output_mean
        Mean output tokens, log-normal, before --output-max cuts them.
    output_sigma
        Standard deviation of their logarithm (0: all equal).
    output_max
        Most output tokens.
    prefix_groups
        Groups of requests that share a prefix (0: none). Each request is in one, at random.
    prefix_tokens
        Tokens of that prefix, which come before the prompt.
    priorities
        Levels of priority, 0 and up, at random (1: no priorities).
    seed
        Of the random numbers: the same seed gives the same file.
    """
    from tokenyard.engine.ticks import seconds
    from tokenyard.workload import synthesize, write_workload

    workload = synthesize(
        requests=requests,
        rate=rate,
        arrivals=arrivals,
        cv=cv,
        amplitude=amplitude,
        period=period,
        prompt_mean=prompt_mean,
        prompt_sigma=prompt_sigma,
        prompt_max=prompt_max,
        output_mean=output_mean,
        output_sigma=output_sigma,
        output_max=output_max,
        prefix_groups=prefix_groups,
        prefix_tokens=prefix_tokens,
        priorities=priorities,
        seed=seed,
    )
    write_workload(workload, out)
    over = seconds(int(workload.arrival[-1]))
    print(
        f"{out}: {len(workload):,} requests over {over:,.0f} s, {workload.prompt_tokens.sum():,} "
        f"prompt tokens, {workload.output_tokens.sum():,} output tokens"
    )
    return OK
