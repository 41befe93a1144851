"""Records the schedule of a running vLLM in tokenyard's log format, step by step.

Put this file where you start vLLM; it needs nothing that vLLM does not bring:

    RECORD_VLLM=schedule.jsonl PYTHONPATH=. vllm serve MODEL \\
        --no-async-scheduling --scheduler-cls record_vllm.RecordingScheduler

docs/record-vllm.md tells what is recorded, what is not, and how to check it afterwards. Held
against vLLM 0.32.0; the scheduler is no public interface of vLLM, so other versions may differ.
"""

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from vllm import __version__
from vllm.v1.core.sched.scheduler import Scheduler

FORMAT = "tokenyard.schedule/1"
TICKS_PER_SECOND = 10**11
TICKS_PER_NANOSECOND = 100

log = logging.getLogger("vllm.record_vllm")


class RecordingScheduler(Scheduler):  # type: ignore[misc]  # vLLM is not there where types are checked
    """vLLM's own scheduler; it decides the same, and writes down what it decided.

    The file is the one that the environment variable RECORD_VLLM names, or vllm-schedule.jsonl;
    with data parallelism every rank but the first adds its number to the name. Raises `ValueError`
    for an engine whose steps the log format has no words for.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if reasons := unrecordable(self.vllm_config):
            raise ValueError("this engine's schedule cannot be recorded: " + "; ".join(reasons))
        path = Path(os.environ.get("RECORD_VLLM", "vllm-schedule.jsonl"))
        if rank := self.vllm_config.parallel_config.data_parallel_index:
            path = path.with_stem(f"{path.stem}-{rank}")
        write = writer(path)
        write(
            {
                "format": FORMAT,
                "rules": rules_of(self),
                "tick_s": 1e-11,
                "source": f"vLLM {__version__}, {self.vllm_config.model_config.model}",
            }
        )
        self.recorder = Recorder(write, self.hash_block_size)
        self.blocks_tell = one_full_attention(self.kv_cache_config)

    def add_request(self, request: Any) -> None:
        if request.request_id not in self.requests:
            most = self.max_model_len - request.num_prompt_tokens
            self.recorder.arrives(request, min(request.max_tokens, most))
        super().add_request(request)

    def finish_requests(self, *args: Any, **kwargs: Any) -> Any:
        gone = super().finish_requests(*args, **kwargs)
        for request in gone:
            self.recorder.aborts(request)
        return gone

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super()._preempt_request(request, *args, **kwargs)
        self.recorder.preempts(request)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        self.recorder.begins(time.monotonic_ns())
        output = super().schedule(*args, **kwargs)
        admitted = len(output.scheduled_new_reqs)
        admitted += len(output.scheduled_cached_reqs.resumed_req_ids)
        self.recorder.plans(
            output.num_scheduled_tokens,
            self.running[len(self.running) - admitted :],
            len(self.running),
        )
        return output

    def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
        outputs = super().update_from_output(*args, **kwargs)
        finished: list[tuple[str, str]] = []
        if self.finished_req_ids:  # most steps finish nobody, and need not be looked through
            finished = [
                (output.request_id, str(output.finish_reason))
                for client in outputs.values()
                for output in client.outputs
                if output.finish_reason is not None
            ]
        free = self.kv_cache_manager.block_pool.get_num_free_blocks() if self.blocks_tell else None
        self.recorder.ends(finished, free, time.monotonic_ns())
        return outputs


class Recorder:
    """Makes one line of each step. A step costs what it changes, not how many requests run.

    It is told of everything in the order in which it happens; `begins`, `plans` and `ends` once for
    each step. A request is seen as vLLM's `Request`.
    """

    def __init__(self, write: Callable[[dict[str, Any]], None], hash_block_size: int) -> None:
        self._write = write
        self._hash_block_size = hash_block_size
        self._clock_start = time.monotonic_ns()
        self._wall_start = time.time()
        self._step = 0
        self._arrivals = 0
        #: Running requests whose known tokens are not all in the KV cache, in order of admission.
        self._prefilling: dict[str, Any] = {}
        #: What each request that is in flight has scheduled; None between two steps.
        self._scheduled: Mapping[str, int] | None = None
        self._max_tokens: dict[str, int] = {}
        # What the next line, or the one that is being made, has to tell.
        self._start = 0
        self._arrived: list[tuple[Any, int]] = []
        self._aborted: list[str] = []
        self._preempted: list[str] = []
        self._line: dict[str, Any] = {}
        self._ended_early: list[tuple[str, str]] = []
        self._blocks_known = True

    def arrives(self, request: Any, max_tokens: int) -> None:
        """A request joins the waiting queue; it can have so many output tokens."""
        self._arrived.append((request, max_tokens))
        self._max_tokens[request.request_id] = max_tokens

    def preempts(self, request: Any) -> None:
        """A running request gives up its blocks and waits."""
        self._prefilling.pop(request.request_id, None)
        self._preempted.append(request.request_id)

    def aborts(self, request: Any) -> None:
        """A request is called off, also while a step is in flight."""
        id = request.request_id
        self._prefilling.pop(id, None)
        most = self._max_tokens.pop(id, None)
        if self._scheduled is None:
            self._aborted.append(id)
            return
        # The log aborts before a step is planned. So the step in flight tells of the request as if
        # it went on, the next one aborts it, and how many blocks are free in between is not known.
        done = id in self._scheduled and not request.is_prefill_chunk
        if done and request.num_output_tokens + 1 == most:
            self._ended_early.append((id, "length"))  # there is nothing left to abort
        else:
            self._aborted.append(id)
            self._blocks_known = False

    def begins(self, nanoseconds: int) -> None:
        """The planning of a step begins."""
        start = (nanoseconds - self._clock_start) * TICKS_PER_NANOSECOND
        line: dict[str, Any] = {"step": self._step, "start": start, "duration": 0}
        self._line = line
        if self._arrived:
            line["arrived"] = [self._arrival(*arrived, start) for arrived in self._arrived]
            self._arrived = []
        if self._aborted:
            line["aborted"], self._aborted = self._aborted, []

    def plans(self, scheduled: Mapping[str, int], admitted: Sequence[Any], running: int) -> None:
        """A step is planned: tokens by request in order of scheduling, who of them came from the
        waiting queue, and how many requests run now."""
        line = self._line
        self._scheduled = scheduled
        if self._preempted:
            line["preempted"], self._preempted = self._preempted, []
        if admitted:
            ids = {request.request_id: request for request in admitted}
            self._prefilling |= ids
            cached = [
                (id, found)
                for id, request in ids.items()
                if (found := request.num_computed_tokens - scheduled[id])
            ]
            if cached:
                line["cached"] = cached
        decoding = running - len(self._prefilling)
        prefill: list[tuple[str, int]] = []
        if self._prefilling:
            prefill = [(id, scheduled[id]) for id in self._prefilling if id in scheduled]
            for id, _ in prefill:
                if not self._prefilling[id].is_prefill_chunk:
                    del self._prefilling[id]
        if prefill:
            line["prefill"] = prefill
        if len(scheduled) - len(prefill) < decoding:
            in_prefill = dict(prefill)
            line["decode"] = [id for id in scheduled if id not in in_prefill]

    def ends(
        self, finished: Sequence[tuple[str, str]], free_blocks: int | None, nanoseconds: int
    ) -> None:
        """A step is over: who finished in it, with vLLM's reason."""
        line = self._line
        # vLLM takes a step of no tokens to tell its workers who has finished.
        idle = not (self._scheduled or line.keys() & {"arrived", "aborted", "preempted"})
        self._scheduled = None
        gone = {*self._aborted, *(id for id, _ in self._ended_early)}
        leaving = [
            (id, "length" if reason == "length" else "stop")
            for id, reason in finished
            if id not in gone
        ]
        for id, _ in leaving:
            del self._max_tokens[id]
        if leaving or self._ended_early:
            line["finished"] = leaving + self._ended_early
        if self._blocks_known and free_blocks is not None:
            line["free_blocks"] = free_blocks
        self._ended_early, self._blocks_known = [], True
        if idle:
            return
        end = (nanoseconds - self._clock_start) * TICKS_PER_NANOSECOND
        line["duration"] = end - line["start"]
        self._step += 1
        self._write(line)

    def _arrival(self, request: Any, max_tokens: int, start: int) -> dict[str, Any]:
        """The request as the log tells of it. Clocks of two processes may differ a little; nobody
        arrives after the step that first sees them."""
        arrival = round((request.arrival_time - self._wall_start) * TICKS_PER_SECOND)
        arrived: dict[str, Any] = {
            "id": request.request_id,
            "arrival": min(max(0, arrival), start),
            "prompt_tokens": request.num_prompt_tokens,
            "max_tokens": max_tokens,
            "priority": request.priority,
        }
        self._arrivals += 1
        full, part = divmod(request.num_prompt_tokens, self._hash_block_size)
        if full and len(request.block_hashes) >= full:
            ids = [int.from_bytes(key[:8]) >> 1 for key in request.block_hashes[:full]]
            if part:
                ids.append(self._arrivals)  # a block that is not full is shared with nobody
            arrived |= {"hash_ids": ids, "hash_block_size": self._hash_block_size}
        return arrived


def rules_of(scheduler: Any) -> dict[str, Any]:
    """The rules that this scheduler works by, in tokenyard's names."""
    config = scheduler.scheduler_config
    rules = {
        "max_num_batched_tokens": scheduler.max_num_scheduled_tokens,
        "max_num_seqs": scheduler.max_num_active_reqs,
        "enable_chunked_prefill": config.enable_chunked_prefill,
        "long_prefill_token_threshold": config.long_prefill_token_threshold,
        "policy": config.policy,
        "block_size": scheduler.block_size,
        "enable_prefix_caching": bool(scheduler.cache_config.enable_prefix_caching),
        "scheduler_reserve_full_isl": config.scheduler_reserve_full_isl,
    }
    if one_full_attention(scheduler.kv_cache_config):
        rules["num_blocks"] = scheduler.kv_cache_config.num_blocks - 1  # vLLM keeps a null block
    return rules


def one_full_attention(kv_cache_config: Any) -> bool:
    """Whether a request holds a block for every block_size tokens, as the log's memory model says.
    Sliding windows, Mamba and mixtures of these do not; then memory is left out."""
    kinds = [type(group.kv_cache_spec).__name__ for group in kv_cache_config.kv_cache_groups]
    return kinds in (["FullAttentionSpec"], ["MLAAttentionSpec"])


def unrecordable(vllm_config: Any) -> list[str]:
    """Why the log format has no words for what this engine does in a step."""
    config = vllm_config.scheduler_config
    reasons = {
        "steps overlap: start vLLM with --no-async-scheduling": config.async_scheduling,
        "steps overlap with pipeline parallelism": (
            vllm_config.parallel_config.pipeline_parallel_size > 1
        ),
        "speculative decoding yields several tokens a step": vllm_config.speculative_config,
        "a KV connector loads blocks beside the steps": vllm_config.kv_transfer_config,
        "a pooling model has no decode": vllm_config.model_config.runner_type == "pooling",
        "long_prefill_token_threshold splits prompts, and enable_chunked_prefill is off": (
            config.long_prefill_token_threshold and not config.enable_chunked_prefill
        ),
    }
    return [reason for reason, holds in reasons.items() if holds]


def writer(path: Path) -> Callable[[dict[str, Any]], None]:
    """Appends lines to a new file, each whole as soon as it is made, so that a recording is good
    up to the last step however the engine ends. A full disk ends the recording, not the engine."""
    file = path.open("wb", buffering=0)
    encode = msgspec.json.Encoder().encode
    log.info("recording the schedule to %s", path)

    def write(line: dict[str, Any]) -> None:
        if file.closed:
            return
        try:
            file.write(encode(line) + b"\n")
        except OSError as error:
            log.error("recording to %s ended at step %s: %s", path, line.get("step"), error)
            file.close()

    return write
