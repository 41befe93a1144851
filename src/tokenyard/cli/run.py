"""`tokenyard run LOG`: replay a request log through the scheduler."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter

from tokenyard.cli.exit_codes import INTERRUPTED, OK, UsageError
from tokenyard.cli.numbers import WHOLE_NUMBER, WHOLE_NUMBER_OR_NONE
from tokenyard.cli.output_files import different_files
from tokenyard.cli.rule_flags import (
    RULES,
    Preset,
    RuleFlags,
    make_rules,
    preset_rules,
    rule_changes,
)

if TYPE_CHECKING:
    from tokenyard.engine.step_time import StepTime
    from tokenyard.report.result import Result
    from tokenyard.report.steps import StepTable

DEFAULT_MODEL, DEFAULT_GPU = "llama-3.1-8b", "h100"


def _group(name: str, place: int) -> Parameter:
    return Parameter(name="*", group=Group(name, sort_key=place))


SWITCH = Parameter(negative="", show_default=False)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What is read of the log."""

    limit: Annotated[int | None, WHOLE_NUMBER_OR_NONE] = None
    """Read this many requests."""
    skip: Annotated[int, WHOLE_NUMBER] = 0
    """Leave out this many requests at the beginning."""
    rate_scale: float = 1.0
    """Let requests arrive this many times as fast."""
    sample: float | None = None
    """Keep each request with this probability (0 to 1)."""
    seed: Annotated[int, WHOLE_NUMBER] = 0
    """Seed of the sample."""


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Where step times, and the size of the KV cache, come from."""

    model: str | None = None
    """Model whose step times are simulated (with preset vllm: llama-3.1-8b)."""
    gpu: str | None = None
    """GPU that it runs on (with preset vllm: h100)."""
    tensor_parallel_size: Annotated[int, WHOLE_NUMBER] = 1
    """GPUs that share the model."""
    gpu_memory_utilization: float = 0.9
    """Share of the GPU's memory for weights and KV cache: gives num_blocks, with preset vllm and
    where --num-blocks is not given."""
    step_time: Literal["unit"] | None = None
    """unit: every step takes one second, so that times read as step counts. The default of preset
    textbook, where no model or GPU is given."""


@dataclass(frozen=True, kw_only=True)
class Output:
    """What is shown and written."""

    slo: str | None = None
    """Objective that goodput counts: limits such as ttft=1s,tpot=50ms (ttft, tpot, itl, e2e)."""
    steps: Annotated[bool, SWITCH] = False
    """Show each step: who ran, what was left of the budget, and every queue afterwards."""
    log: Path | None = None
    """Write the schedule log: schedule.jsonl, or compressed, schedule.jsonl.zst (--log=-: to
    stdout)."""
    requests: Path | None = None
    """Write what became of each request, one row a request: .parquet, .csv or .jsonl."""
    json: Annotated[bool, SWITCH] = False
    """Print the result as JSON."""


def run(
    trace: Annotated[Path, Parameter(name="LOG")],
    /,
    *,
    preset: Annotated[Preset, Parameter(group=RULES)] = "vllm",
    rules: Annotated[Path | None, Parameter(group=RULES)] = None,
    rule_flags: Annotated[RuleFlags | None, Parameter(name="*")] = None,
    reading: Annotated[Reading, _group("Log", 1)] = Reading(),
    hardware: Annotated[Hardware, _group("Step time", 3)] = Hardware(),
    output: Annotated[Output, _group("Output", 4)] = Output(),
    engine: Annotated[
        Literal["auto", "reference", "fast"], Parameter(group=Group("Engine", sort_key=5))
    ] = "auto",
) -> int:
    """Parameters
    ----------
    trace
        The request log.
    preset
        Rules to begin with: vllm decides as vLLM's V1 scheduler does, textbook is the four-state
        exercise.
    rules
        TOML file with fields of the rules by name, which overrule the preset. Flags overrule both.
    engine
        reference: the scheduler itself, step by step. fast: the compiled engine, which gives the
        same answer. auto: fast where it can.
    """
    if output.json and (output.steps or str(output.log) == "-"):
        raise UsageError("--json has stdout for itself: leave --steps and --log=- out")
    different_files(
        read={"LOG": trace, "--rules": rules},
        written={"--log": output.log, "--requests": output.requests},
    )
    changes = rule_changes(rules, rule_flags)
    chosen = make_rules(preset, changes)

    # What follows loads NumPy and Polars, which --help does not need.
    from tokenyard.cli.replay import choose_engine, replay
    from tokenyard.cli.request_file import writing_requests
    from tokenyard.core.policy import load_policy
    from tokenyard.metrics import parse_slo
    from tokenyard.report.result import Result, Setup
    from tokenyard.report.steps import StepTable
    from tokenyard.workload import read_workload

    load_policy(chosen.policy)  # a long log is not read for a name that is none
    slo = parse_slo(output.slo) if output.slo is not None else None
    notes: list[str] = []
    step_time, step_time_name = _step_time(preset, hardware)
    if preset == "vllm" and "num_blocks" not in changes and hardware.step_time is None:
        chosen = replace(chosen, num_blocks=_num_blocks(hardware, chosen.block_size, notes))
    if chosen.policy == "sjf-oracle":
        notes.append("policy sjf-oracle sees the true output lengths, which no real one can")
    workload = read_workload(trace, **asdict(reading))
    used, why = choose_engine(
        engine, chosen, workload, every_step=output.steps or output.log is not None
    )
    steps = StepTable(chosen) if output.steps else None
    with writing_requests(output.requests) as write_requests:
        run = replay(used, workload, chosen, step_time, log=output.log, steps=steps)
        write_requests(run.table)
    setup = Setup(
        source=workload.source,
        requests=len(workload),
        skipped=workload.skipped,
        skipped_examples=workload.skipped_examples,
        preset=preset,
        rules=chosen,
        preset_rules=preset_rules(preset),
        step_time=step_time,
        step_time_name=step_time_name,
        engine=used,
        engine_why=why,
        notes=notes,
    )
    _show(Result.of(setup, run.table, run.sums, slo, interrupted=run.interrupted), output, steps)
    return INTERRUPTED if run.interrupted else OK


def _step_time(preset: Preset, hardware: Hardware) -> tuple[StepTime, str]:
    """The step-time model, and its name for people."""
    from tokenyard.engine.step_time import UNIT

    named = hardware.model or hardware.gpu
    if hardware.step_time == "unit":
        if named:
            raise UsageError(f"--step-time unit uses no model and no GPU: leave {named} out")
        return UNIT, "unit: one second a step"
    if preset == "textbook" and not named:
        return UNIT, "unit: one second a step (--model and --gpu give those of an LLM)"
    from tokenyard.engine import presets

    model, gpu = hardware.model or DEFAULT_MODEL, hardware.gpu or DEFAULT_GPU
    size = hardware.tensor_parallel_size
    return (
        presets.step_time(model, gpu, tensor_parallel_size=size),
        f"{model} on {f'{size} × ' if size > 1 else ''}{gpu}, by the formula of docs/step-time.md",
    )


def _num_blocks(hardware: Hardware, block_size: int, notes: list[str]) -> int:
    """KV cache blocks in the memory that the weights leave; a note says how they were found."""
    from tokenyard.engine import presets

    blocks = presets.kv_blocks(
        hardware.model or DEFAULT_MODEL,
        hardware.gpu or DEFAULT_GPU,
        tensor_parallel_size=hardware.tensor_parallel_size,
        gpu_memory_utilization=hardware.gpu_memory_utilization,
        block_size=block_size,
    )
    _, usable, left, *_, number = blocks.explain()
    notes.append(f"num_blocks: {usable} {left}; {number}")
    return blocks.num_blocks


def _show(result: Result, output: Output, steps: StepTable | None) -> None:
    """Print the result, for people or as JSON."""
    if output.json:
        import msgspec

        text = msgspec.json.format(msgspec.json.encode(result.to_dict()), indent=2)
        print(text.decode())
        return
    from rich.console import Console

    from tokenyard.report.terminal import print_result, print_steps

    # Where the schedule log takes stdout, what people read goes to stderr.
    console = Console(stderr=str(output.log) == "-")
    if steps:
        print_steps(steps, console)
    print_result(result, console)
