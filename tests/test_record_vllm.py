"""The example that records a vLLM: what it writes is a log, and tells of the schedule as it was.

Most tests put a stand-in in vLLM's place: a class with the attributes of vLLM's scheduler that the
example uses, whose decisions are those of our own scheduler. The last ones need vLLM itself.
"""

from __future__ import annotations

import importlib.util
import random
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import Asked, any_rules, workloads

from tokenyard.check import check_steps
from tokenyard.core import Request, Rules, Scheduler, State
from tokenyard.engine.log import FORMAT, Header, Step, read_log, rules_of

ROOT = Path(__file__).resolve().parent.parent
HAS_VLLM = importlib.util.find_spec("vllm") is not None


def load(name: str, folder: str) -> ModuleType:
    """A file of the project that is no part of the package, as a module."""
    spec = importlib.util.spec_from_file_location(f"{folder}_{name}", ROOT / folder / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---------------------------------------------------------------------- the stand-in


class StandInRequest:
    """A request as vLLM's scheduler sees it. While a step is in flight its scheduled tokens count
    as computed already."""

    def __init__(self, request: Request, arrival_time: float, block_hashes: list[bytes]) -> None:
        self.request = request
        self.request_id = request.id
        self.num_prompt_tokens = request.prompt_tokens
        self.max_tokens = request.max_tokens
        self.priority = request.priority
        self.arrival_time = arrival_time
        self.block_hashes = block_hashes
        self.in_flight = 0

    @property
    def num_output_tokens(self) -> int:
        return self.request.output_tokens

    @property
    def num_computed_tokens(self) -> int:
        return self.request.computed_tokens + self.in_flight

    @property
    def is_prefill_chunk(self) -> bool:
        return self.num_computed_tokens < self.request.known_tokens


class StandIn:
    """vLLM's scheduler, as far as the recorder looks at it."""

    def __init__(self, rules: Rules, **config: Any) -> None:
        self.inner = Scheduler(rules)
        self.requests: dict[str, StandInRequest] = {}
        self.finished_req_ids: set[str] = set()
        self.max_model_len = config.pop("max_model_len", 1 << 20)
        self.block_size = self.hash_block_size = rules.block_size
        self.max_num_scheduled_tokens = rules.max_num_batched_tokens
        self.max_num_active_reqs = rules.max_num_seqs
        self.scheduler_config = SimpleNamespace(
            enable_chunked_prefill=rules.enable_chunked_prefill,
            long_prefill_token_threshold=rules.long_prefill_token_threshold,
            policy=rules.policy,
            scheduler_reserve_full_isl=rules.scheduler_reserve_full_isl,
            async_scheduling=config.pop("async_scheduling", False),
        )
        self.cache_config = SimpleNamespace(enable_prefix_caching=rules.enable_prefix_caching)
        spec = type(config.pop("spec", "FullAttentionSpec"), (), {})()
        self.kv_cache_config = SimpleNamespace(
            num_blocks=(rules.num_blocks or 1_000_000) + 1,
            kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec)],
        )
        pool = SimpleNamespace(get_num_free_blocks=lambda: self.inner.blocks.free)
        self.kv_cache_manager = SimpleNamespace(block_pool=pool)
        self.vllm_config = SimpleNamespace(
            scheduler_config=self.scheduler_config,
            parallel_config=SimpleNamespace(
                data_parallel_index=config.pop("rank", 0), pipeline_parallel_size=1
            ),
            model_config=SimpleNamespace(model="a-model", runner_type="generate"),
            speculative_config=config.pop("speculative_config", None),
            kv_transfer_config=None,
        )
        assert not config

    @property
    def running(self) -> list[StandInRequest]:
        return [self.requests[request.id] for request in self.inner.running]

    def add_request(self, request: StandInRequest) -> None:
        reason = self.inner.submit(request.request)
        assert reason is None, reason
        self.requests[request.request_id] = request

    def finish_requests(self, id: str, _status: Any) -> list[StandInRequest]:
        if id not in self.requests:
            return []
        self.inner.abort(id)
        self.finished_req_ids.add(id)
        return [self.requests.pop(id)]

    def _preempt_request(self, request: StandInRequest, _timestamp: float) -> None: ...

    def schedule(self) -> Any:
        waiting = {request.id: request.preemptions for request in self.inner.waiting}
        self.batch = batch = self.inner.schedule()
        self.in_flight = bool(batch)
        self.finished_req_ids = set()
        for request in batch.preempted:
            self._preempt_request(self.requests[request.id], time.monotonic())
        tokens = {request.id: count for request, count in batch.prefill}
        tokens |= {request.id: 1 for request in batch.decode}
        scheduled = {r.id: tokens[r.id] for r in self.inner.running if r.id in tokens}
        for id, count in scheduled.items():
            self.requests[id].in_flight = count
        admitted = [id for id in scheduled if id in waiting]
        return SimpleNamespace(
            num_scheduled_tokens=scheduled,
            scheduled_new_reqs=[id for id in admitted if not waiting[id]],
            scheduled_cached_reqs=SimpleNamespace(
                resumed_req_ids={id for id in admitted if waiting[id]}
            ),
        )

    def update_from_output(self, output: Any, stopped: list[str]) -> Any:
        for id in output.num_scheduled_tokens:
            if id in self.requests:
                self.requests[id].in_flight = 0
        done = self.inner.commit(self.batch, stopped) if self.in_flight else []
        self.finished_req_ids |= {request.id for request in done}
        outputs = [SimpleNamespace(request_id="somebody", finish_reason=None)]
        for request in done:
            del self.requests[request.id]
            reason = request.finish_reason.value if request.finish_reason else None
            outputs.append(SimpleNamespace(request_id=request.id, finish_reason=reason))
        return {0: SimpleNamespace(outputs=outputs)}


@pytest.fixture(scope="module")
def example() -> ModuleType:
    """The example, with the stand-in where it imports vLLM's scheduler."""
    parts = ["vllm", "v1", "core", "sched", "scheduler"]
    modules = {name: ModuleType(name) for name in accumulate(parts, "{}.{}".format)}
    modules["vllm"].__version__ = "0"  # type: ignore[attr-defined]
    modules[".".join(parts)].Scheduler = StandIn  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        for name, module in modules.items():
            patch.setitem(sys.modules, name, module)
        return load("record_vllm", "examples")


@pytest.fixture
def recording(
    example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """Makes a recording scheduler that works by these rules and writes to log.jsonl."""
    monkeypatch.setenv("RECORD_VLLM", str(tmp_path / "log.jsonl"))
    return lambda rules, **config: example.RecordingScheduler(rules, **config)


def read(path: Path) -> tuple[Header, list[Step]]:
    header, steps = read_log(path)
    return header, list(steps)


def ask(id: str, prompt: int, output: int, hashes: list[bytes] | None = None, **more: Any) -> Any:
    request = Request(id, prompt, output, **more)
    return StandInRequest(request, time.time(), hashes or [])


# ---------------------------------------------------------------------- worked by hand


def test_a_schedule_worked_by_hand_is_written_as_it_was(
    recording: Callable[..., Any], tmp_path: Path
) -> None:
    # Budget 8. a: 10 tokens, b: 3. Step 0: a gets 8. Step 1: a its last 2, b its 3, both their
    # first token. Step 2: both decode; b has its 2 tokens. Step 3: a decodes and stops.
    rules = Rules.vllm(max_num_batched_tokens=8, num_blocks=10, block_size=4)
    scheduler = recording(rules)
    scheduler.add_request(ask("a", 10, 9))
    scheduler.add_request(ask("b", 3, 2, priority=1))
    for stopped in ([], [], [], ["a"], []):
        scheduler.update_from_output(scheduler.schedule(), stopped)
    header, steps = read(tmp_path / "log.jsonl")
    assert header.format == FORMAT
    assert header.source == "vLLM 0, a-model"
    assert rules_of(header) == rules
    a, b = steps[0].arrived
    assert (a.id, a.prompt_tokens, a.max_tokens, a.priority, a.hash_ids) == ("a", 10, 9, 0, None)
    assert (b.id, b.prompt_tokens, b.max_tokens, b.priority) == ("b", 3, 2, 1)
    assert 0 <= a.arrival <= b.arrival <= steps[0].start
    told = [(s.step, s.prefill, s.decode, s.finished, s.free_blocks) for s in steps]
    assert told == [
        (0, [("a", 8)], None, [], 8),
        (1, [("a", 2), ("b", 3)], None, [], 6),
        (2, [], None, [("b", "length")], 7),  # a in 3 blocks: 11 tokens
        (3, [], None, [("a", "stop")], 10),
    ]
    assert not list(check_steps(rules, steps))


def test_who_got_no_token_is_left_out_of_the_decodes(
    recording: Callable[..., Any], tmp_path: Path
) -> None:
    # 4 blocks of 2; y has the better priority, and stands behind x. x holds 1, 2, 2 blocks after
    # steps 0, 1, 2 and y 0, 1, 2. In step 3 x needs a third: it gives up its own, and vLLM then
    # looks at nobody behind it. y ends in step 7; x computes its 2 + 3 tokens again in step 8.
    rules = Rules.vllm(policy="priority", num_blocks=4, block_size=2)
    scheduler = recording(rules)
    scheduler.add_request(ask("x", 2, 6, priority=1))
    scheduler.update_from_output(scheduler.schedule(), [])
    scheduler.add_request(ask("y", 2, 6))
    while scheduler.requests:
        scheduler.update_from_output(scheduler.schedule(), [])
    _, steps = read(tmp_path / "log.jsonl")
    assert (steps[3].preempted, steps[3].decode, steps[3].free_blocks) == (["x"], [], 2)
    assert [step.decode for step in steps if step.step != 3] == [None] * (len(steps) - 1)
    assert [step.finished for step in steps[7:9]] == [[("y", "length")], []]
    assert steps[8].prefill == [("x", 5)]
    assert not list(check_steps(rules, steps))


def recorder(example: ModuleType) -> tuple[Any, list[dict[str, Any]]]:
    """A recorder, and the lines that it makes."""
    lines: list[dict[str, Any]] = []
    return example.Recorder(lines.append, 16), lines


def running(id: str, computed: int, *, chunk: bool) -> Any:
    return SimpleNamespace(request_id=id, num_computed_tokens=computed, is_prefill_chunk=chunk)


def test_a_prefill_that_is_preempted_or_aborted_is_no_prefill_any_more(
    example: ModuleType,
) -> None:
    told, lines = recorder(example)
    x, y = running("x", 4, chunk=True), running("y", 2, chunk=False)

    def step(scheduled: dict[str, int], admitted: list[Any], count: int, preempted: Any) -> None:
        told.begins(time.monotonic_ns())
        for request in preempted:
            told.preempts(request)
        told.plans(scheduled, admitted, count)
        told.ends([], 1, time.monotonic_ns())

    step({"y": 2, "x": 4}, [y, x], 2, [])
    step({}, [], 1, [x])  # y, in decode, got nothing
    step({"y": 1, "x": 4}, [x], 3, [])  # a third one, in decode, got nothing
    told.aborts(x)
    step({}, [], 1, [])  # nor did y
    assert [line.get("prefill") for line in lines] == [[("y", 2), ("x", 4)], None, [("x", 4)], None]
    assert [line.get("decode") for line in lines] == [None, [], ["y"], []]
    assert lines[1]["preempted"] == ["x"] and lines[3]["aborted"] == ["x"]


def test_an_error_within_the_step_is_an_abort(example: ModuleType) -> None:
    told, lines = recorder(example)
    x = running("x", 4, chunk=True)
    told.begins(time.monotonic_ns())
    told.plans({"x": 4}, [x], 1)
    told.aborts(x)
    told.ends([("x", "error")], 1, time.monotonic_ns())
    told.begins(time.monotonic_ns())
    told.plans({}, [], 0)
    told.ends([], 2, time.monotonic_ns())
    assert "finished" not in lines[0] and lines[1]["aborted"] == ["x"]


def test_prompts_are_told_by_the_hashes_of_their_blocks(
    recording: Callable[..., Any], tmp_path: Path
) -> None:
    rules = Rules.vllm(num_blocks=20, block_size=4, enable_prefix_caching=True)
    scheduler = recording(rules)
    one, two, other = b"1" * 32, b"2" * 32, b"3" * 32
    for id, prompt, hashes in (
        ("a", 10, [one, two]),
        ("b", 10, [one, two]),
        ("c", 8, [one, other]),
        ("d", 3, []),  # no full block: nothing can be shared, nothing is told
    ):
        scheduler.add_request(ask(id, prompt, 1, hashes))
    scheduler.update_from_output(scheduler.schedule(), [])
    _, (step,) = read(tmp_path / "log.jsonl")
    a, b, c, d = (arrived.hash_ids for arrived in step.arrived)
    assert a and b and c
    assert a[:2] == b[:2] and a[2] != b[2]  # the third is not full
    assert c[0] == a[0] and c[1] != a[1]
    assert d is None
    assert [arrived.hash_block_size for arrived in step.arrived] == [4, 4, 4, 512]
    for arrived in step.arrived:  # and each is a request that our own scheduler takes
        Request(
            arrived.id,
            arrived.prompt_tokens,
            1,
            hash_ids=arrived.hash_ids,
            hash_block_size=arrived.hash_block_size,
        )


def test_the_length_of_the_model_bounds_max_tokens(
    recording: Callable[..., Any], tmp_path: Path
) -> None:
    scheduler = recording(Rules.vllm(), max_model_len=12)
    scheduler.add_request(ask("a", 10, 9))
    scheduler.update_from_output(scheduler.schedule(), [])
    assert read(tmp_path / "log.jsonl")[1][0].arrived[0].max_tokens == 2


def test_an_abort_during_a_step_is_told_with_the_next(
    recording: Callable[..., Any], tmp_path: Path
) -> None:
    rules = Rules.vllm(num_blocks=20)
    scheduler = recording(rules)
    scheduler.add_request(ask("a", 10, 9))
    scheduler.add_request(ask("b", 10, 9))
    output = scheduler.schedule()
    scheduler.finish_requests("b", None)
    scheduler.update_from_output(output, [])
    scheduler.finish_requests("a", None)
    scheduler.update_from_output(scheduler.schedule(), [])
    _, steps = read(tmp_path / "log.jsonl")
    assert steps[0].prefill == [("a", 10), ("b", 10)]
    assert steps[0].free_blocks is None  # b's are free already, and the step does not say so
    assert steps[1].aborted == ["b", "a"] and steps[1].free_blocks == 20
    assert not list(check_steps(rules, steps))


def test_an_abort_during_the_step_of_the_last_token_comes_too_late(
    recording: Callable[..., Any], tmp_path: Path
) -> None:
    rules = Rules.vllm(num_blocks=20)
    scheduler = recording(rules)
    scheduler.add_request(ask("a", 10, 1))
    output = scheduler.schedule()
    scheduler.finish_requests("a", None)
    scheduler.update_from_output(output, [])
    _, (step,) = read(tmp_path / "log.jsonl")
    assert step.finished == [("a", "length")] and not step.aborted
    assert not list(check_steps(rules, [step]))


def test_steps_of_no_tokens_are_not_written(recording: Callable[..., Any], tmp_path: Path) -> None:
    scheduler = recording(Rules.vllm())
    for _ in range(3):
        scheduler.update_from_output(scheduler.schedule(), [])
    assert read(tmp_path / "log.jsonl")[1] == []


def test_memory_is_left_out_where_blocks_do_not_hold_all_tokens(
    recording: Callable[..., Any], tmp_path: Path
) -> None:
    scheduler = recording(Rules.vllm(num_blocks=20), spec="SlidingWindowSpec")
    scheduler.add_request(ask("a", 10, 1))
    scheduler.update_from_output(scheduler.schedule(), [])
    header, (step,) = read(tmp_path / "log.jsonl")
    assert step.free_blocks is None and "num_blocks" not in header.rules


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"async_scheduling": True}, "--no-async-scheduling"),
        ({"speculative_config": object()}, "speculative decoding"),
    ],
)
def test_an_engine_that_the_log_has_no_words_for_is_refused(
    recording: Callable[..., Any], tmp_path: Path, config: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        recording(Rules.vllm(), **config)
    assert not list(tmp_path.iterdir())


def test_every_rank_of_data_parallelism_has_its_file(
    recording: Callable[..., Any], tmp_path: Path
) -> None:
    recording(Rules.vllm())
    recording(Rules.vllm(), rank=1)
    assert {path.name for path in tmp_path.iterdir()} == {"log.jsonl", "log-1.jsonl"}


def test_a_full_disk_ends_the_recording_and_not_the_engine(
    recording: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    monkeypatch.setenv("RECORD_VLLM", str(full))
    scheduler = recording(Rules.vllm())
    scheduler.add_request(ask("a", 10, 3))
    for _ in range(3):
        scheduler.update_from_output(scheduler.schedule(), [])
    assert not scheduler.requests


# ---------------------------------------------------------------------- any schedule


@st.composite
def vllm_rules(draw: st.DrawFn) -> Rules:
    """Rules that a vLLM can be started with."""
    seqs = draw(st.integers(1, 6))
    return draw(
        any_rules(
            max_num_seqs=seqs,
            max_num_batched_tokens=seqs + draw(st.integers(0, 20)),
            policy=draw(st.sampled_from(["fcfs", "priority"])),
            num_blocks=draw(st.integers(4, 40)),
            **{name: getattr(Rules.vllm(), name) for name in NOT_IN_VLLM},
        )
    )


NOT_IN_VLLM = (
    "prefill_token_budget",
    "running_order",
    "head_of_line",
    "max_skips",
    "preemption",
    "first_token",
)


def block_hashes(token_ids: tuple[int, ...], block_size: int) -> list[bytes]:
    """One for each full block, which stands for the tokens up to its end."""
    ends = range(block_size, len(token_ids) + 1, block_size)
    return [sha256(repr(token_ids[:end]).encode()).digest() for end in ends]


def plan_of(scheduler: Any) -> dict[str, Any]:
    """What the step just planned holds, by the scheduler's own account."""
    batch, inner = scheduler.batch, scheduler.inner
    everybody = len(batch.decode) == sum(r.state is State.DECODE for r in inner.running)
    return {
        "prefill": [(request.id, count) for request, count in batch.prefill],
        "cached": [(request.id, count) for request, count in batch.cached],
        "decode": None if everybody else [request.id for request in batch.decode],
        "preempted": [request.id for request in batch.preempted],
    }


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rules=vllm_rules(), asked=workloads(deadlines=False), chance=st.randoms())
def test_a_recording_tells_what_the_scheduler_did(
    recording: Callable[..., Any],
    tmp_path: Path,
    rules: Rules,
    asked: list[Asked],
    chance: random.Random,
) -> None:
    scheduler = recording(rules)
    length = {each.id: each.output_tokens for each in asked}
    upcoming = [each for each in asked if not Scheduler(rules).why_never(each.request())]
    expected: list[dict[str, Any]] = []
    called_off: list[str] = []  # and not told yet
    now = 0
    while upcoming or scheduler.requests or scheduler.finished_req_ids:
        told: dict[str, Any] = {"arrived": []}
        while upcoming and upcoming[0].arrival <= now:
            each = upcoming.pop(0)
            hashes = block_hashes(each.token_ids or (), rules.block_size)
            scheduler.add_request(StandInRequest(each.request(), time.time(), hashes))
            told["arrived"].append(each.id)
        if scheduler.requests and chance.random() < 0.1:
            called_off.append(chance.choice(list(scheduler.requests)))
            scheduler.finish_requests(called_off[-1], None)
        told["aborted"], called_off = called_off, []
        output = scheduler.schedule()
        told |= plan_of(scheduler)
        batch = scheduler.batch
        sampled = [*batch.decode, *(r for r, count in batch.prefill if count == r.pending_tokens)]
        late: list[tuple[str, str]] = []  # called off during the step that brings their last token
        if scheduler.requests and chance.random() < 0.1:
            id = chance.choice(list(scheduler.requests))
            request = scheduler.requests[id].request
            if request in sampled and request.output_tokens + 1 == request.max_tokens:
                late = [(id, "length")]
            else:
                called_off = [id]
            sampled = [other for other in sampled if other is not request]
            scheduler.finish_requests(id, None)
        stopped = [r.id for r in sampled if length[r.id] == r.output_tokens + 1]
        outputs = scheduler.update_from_output(output, stopped)[0].outputs
        told["finished"] = [
            *((out.request_id, out.finish_reason) for out in outputs if out.finish_reason),
            *late,
        ]
        told["free_blocks"] = None if called_off else scheduler.inner.blocks.free
        if output.num_scheduled_tokens or told["aborted"]:
            expected.append(told)
        now += 1
    header, steps = read(tmp_path / "log.jsonl")
    assert rules_of(header) == rules
    assert [step.step for step in steps] == list(range(len(expected)))
    for step, told in zip(steps, expected, strict=True):
        ids = [arrived.id for arrived in step.arrived]
        assert {name: getattr(step, name) for name in told} | {"arrived": ids} == told
    assert not list(check_steps(rules, steps))


# ---------------------------------------------------------------------- vLLM itself


@pytest.mark.skipif(not HAS_VLLM, reason="needs vLLM (0.32.0), which is not part of these tests")
def test_a_real_vllm_decides_the_same_when_it_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random schedules under pressure: the recording scheduler decides as the plain one, its log
    tells of that, and no invariant finds fault with it."""
    from vllm.v1.core.sched.scheduler import Scheduler as VllmScheduler
    from vllm.v1.request import RequestStatus

    bench = load("record_vllm", "benchmarks")
    recording = bench.recorder().RecordingScheduler
    monkeypatch.setenv("RECORD_VLLM", str(tmp_path / "log.jsonl"))

    def drive(kind: Any, chance: random.Random) -> list[Any]:
        cached = chance.random() < 0.5
        engine = bench.scheduler(
            kind,
            str(tmp_path),
            max_model_len=4096,
            block_size=4,
            num_blocks=1 + chance.randint(25, 40),
            max_num_seqs=8,
            max_num_batched_tokens=chance.choice([8, 24, 64]),
            policy=chance.choice(["fcfs", "priority"]),
            long_prefill_token_threshold=chance.choice([0, 0, 7]),
            enable_prefix_caching=cached,
        )
        did: list[Any] = []
        number = 0
        while number < 12 or engine.has_requests():
            while number < 12 and chance.random() < 0.4:
                prompt, shared = chance.randint(1, 60), chance.randint(0, 60)
                ids = [k if k < shared else 1000 * (number + 1) + k for k in range(prompt)]
                asked = bench.request(
                    f"r{number}",
                    ids,
                    chance.randint(1, 40),
                    priority=chance.randint(0, 3),
                    arrival_time=time.time() + number * 1e-6,
                    stop_token_ids=(11,),
                    cached_block_size=4 if cached else None,
                )
                engine.add_request(asked)
                number += 1
            if engine.requests and chance.random() < 0.03:
                gone = chance.choice(sorted(engine.requests))
                engine.finish_requests(gone, RequestStatus.FINISHED_ABORTED)
            output = engine.schedule()
            stops = {id for id in sorted(engine.requests) if chance.random() < 0.02}
            token = lambda asked, stops=stops: 11 if asked.request_id in stops else 7  # noqa: E731
            result = bench.executed(engine, output, token)
            engine.update_from_output(output, result)
            if output.num_scheduled_tokens:
                did.append((output.num_scheduled_tokens, sorted(output.preempted_req_ids)))
        return did

    preempted = 0
    for seed in range(40):
        plain = drive(VllmScheduler, random.Random(seed))
        assert drive(recording, random.Random(seed)) == plain
        header, steps = read(tmp_path / "log.jsonl")
        told = []
        decoding: dict[str, None] = {}
        for step in steps:
            for id in (*step.aborted, *step.preempted):
                decoding.pop(id, None)
            turns = dict.fromkeys(decoding if step.decode is None else step.decode, 1)
            told.append((turns | dict(step.prefill), sorted(step.preempted)))
            for id, _ in step.prefill:
                decoding[id] = None
            for id, _ in step.finished:
                decoding.pop(id, None)
        assert [turns for turns in told if turns[0]] == plain
        preempted += sum(len(gone) for _, gone in plain)
        assert not list(check_steps(rules_of(header), steps))
    assert preempted > 100
