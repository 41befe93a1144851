"""The shapes that a scheduler may have, each made to look like the plainest one.

| shape | methods |
| --- | --- |
| plain | `__init__(capacity)`, `add_request(request_id, prompt_tokens, output_tokens)`, `step()` |
| tokenyard | `__init__(rules)`, `submit(request)`, `schedule()`, `commit(batch)` |
| nano-vllm | `add(seq)`, `schedule() -> (seqs, is_prefill)`, `postprocess(seqs, token_ids)` |
| vllm | `add_request(request)`, `schedule()`, `update_from_output(output, sampled)` or `update` |

This runs beside the scheduler's own code, so it needs the standard library alone.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

from tokenyard.check.workload import Asked

MOST_IDS = 10_000
"""Ids in one list of a step: more are a runaway."""

FIELDS = ("decode", "prefill", "finished", "rejected")

QUEUES = ("waiting", "pending", "prefill", "prefilling", "running", "active", "decode", "decoding")
"""Attributes that are taken for queues, if they hold requests."""

CONTAINERS = (list, tuple, dict, set, frozenset, deque)
"""What can be looked at without changing it, as a generator cannot."""

ID_NAMES = ("request_id", "id", "req_id", "rid", "seq_id", "uid")


class BadResultError(Exception):
    """Something was returned that the contract does not allow."""


class Rejected(Exception):  # noqa: N818
    """The scheduler refused a request."""


class ShapeError(ValueError):
    """No class, or several, with the methods of a scheduler; the message lists what is there."""


class Adapter:
    """One instance of somebody's scheduler, in the plain shape.

    `has_work` is None where the scheduler does not say.
    """

    has_work: Callable[[], bool] | None = None
    asks: tuple[str, ...] = ("has_work",)
    """What has_work may be called."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.known: dict[Any, str] = {}
        self._prompts: dict[str, int] = {}
        self._gone: dict[str, None] = {}  # who was rejected before
        self._numbers = _wants_numbers(scheduler)
        self._loop: Any = None
        for name in self.asks:
            if hasattr(scheduler, name):
                self.has_work = self._asker(name, empty=name == "is_finished")
                break

    def _asker(self, name: str, *, empty: bool) -> Callable[[], bool]:
        def ask() -> bool:
            answer = getattr(self.scheduler, name)
            answer = self.result(answer() if callable(answer) else answer)
            return bool(answer) is not empty

        return ask

    def result(self, value: Any) -> Any:
        """The value, awaited if it is a coroutine."""
        if not inspect.isawaitable(value):
            return value
        import asyncio

        self._loop = self._loop or asyncio.new_event_loop()

        async def wait() -> Any:
            return await value

        return self._loop.run_until_complete(wait())

    def add(self, asked: Asked) -> None:
        """Submit a request. Raises `Rejected`."""
        name: Any = len(self.known) if self._numbers else asked.id
        self.known[name] = asked.id
        self._prompts[asked.id] = asked.prompt_tokens
        try:
            answer = self.result(
                self.scheduler.add_request(name, asked.prompt_tokens, asked.output_tokens)
            )
        except ValueError as error:
            raise Rejected(str(error)) from error
        if answer is False:
            raise Rejected("add_request returned False")
        if asked.id in self._refused():
            raise Rejected("it is in rejected")

    def _refused(self) -> list[str]:
        """Ids that are new in an attribute `rejected`, where there is one."""
        entries = getattr(self.scheduler, "rejected", ())
        if not isinstance(entries, CONTAINERS):
            return []
        new = dict.fromkeys(id for id in map(self._queued, entries) if id not in self._gone)
        self._gone.update(dict.fromkeys(id for id in new if id is not None))
        return [id for id in new if id is not None]

    def step(self) -> dict[str, Any]:
        """What ran in a step: lists `decode`, `finished`, `rejected` of ids, `prefill` of [id,
        tokens]. Raises `BadResultError`."""
        result = self.result(self.scheduler.step())
        parts = {field: self._part(result, field) for field in FIELDS}
        prefill = parts["prefill"]
        entries = prefill.items() if isinstance(prefill, Mapping) else _each("prefill", prefill)
        return {
            "decode": [self._id("decode", one) for one in _each("decode", parts["decode"])],
            "prefill": [self._prefill(one) for one in entries],
            "finished": [self._id("finished", one) for one in _each("finished", parts["finished"])],
            "rejected": [
                *(self._id("rejected", one) for one in _each("rejected", parts["rejected"])),
                *self._refused(),
            ],
        }

    def _part(self, result: Any, field: str) -> Any:
        if result is None:
            return ()
        if isinstance(result, Mapping):
            if result and not any(name in result for name in FIELDS):
                raise BadResultError(
                    "step() returned a dict with the keys "
                    f"{', '.join(map(repr, list(result)[:5]))}; expected decode, prefill, finished"
                )
            return result.get(field, ())
        if not any(hasattr(result, name) for name in FIELDS):
            raise BadResultError(
                f"step() returned {_shown(result)}; expected a dict with decode, prefill and "
                "finished, or an object with these attributes"
            )
        return getattr(result, field, ())

    def _id(self, field: str, value: Any) -> str:
        id = self.id_of(value)
        if id is None:
            if isinstance(value, (str, int)):
                return str(value)  # nobody's: the invariants say so
            raise BadResultError(f"{field} holds {_shown(value)}; expected the id of a request")
        return id

    def _prefill(self, value: Any) -> list[Any]:
        if isinstance(value, (tuple, list)):
            if len(value) != 2:
                raise BadResultError(f"prefill holds {_shown(value)}; expected id or (id, tokens)")
            id, tokens = self._id("prefill", value[0]), value[1]
            if isinstance(tokens, bool) or not isinstance(tokens, int):
                raise BadResultError(
                    f"prefill holds {_shown(value)}; expected a whole number of tokens"
                )
            return [id, tokens]
        id = self._id("prefill", value)
        return [id, self._prompts.get(id, 1)]

    def id_of(self, value: Any) -> str | None:
        """The id of a request that is given as an id, or as an object or dict that has one."""
        try:
            if value in self.known:
                return self.known[value]
        except TypeError:
            pass  # not hashable
        for name in ID_NAMES:
            inner = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
            if isinstance(inner, (str, int)) and inner in self.known:
                return self.known[inner]
        return None

    def queues(self) -> dict[str, list[str]]:
        """What the attributes that look like queues hold; left out if it is not understood."""
        shown = {}
        for name in QUEUES:
            queue = getattr(self.scheduler, name, None)
            if not isinstance(queue, CONTAINERS):
                continue
            found = [self._queued(entry) for entry in list(queue)[:MOST_IDS]]
            if None not in found:
                shown[name] = [id for id in found if id is not None]
        return shown

    def _queued(self, entry: Any) -> str | None:
        """The id of an entry: itself, or in a tuple such as (priority, id)."""
        if isinstance(entry, (tuple, list)):
            return next((id for part in entry if (id := self.id_of(part)) is not None), None)
        return self.id_of(entry)


def _wants_numbers(scheduler: Any) -> bool:
    """Whether add_request says that ids are of type int."""
    try:
        parameters = inspect.signature(scheduler.add_request).parameters.values()
    except (AttributeError, TypeError, ValueError):
        return False
    return bool(parameters) and next(iter(parameters)).annotation in (int, "int")


def _each(field: str, value: Any) -> Iterable[Any]:
    if value is None:
        return ()
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise BadResultError(f"{field} is {_shown(value)}; expected a list")
    entries = []
    for entry in value:
        entries.append(entry)
        if len(entries) > MOST_IDS:
            raise BadResultError(f"{field} holds more than {MOST_IDS:,} entries")
    return entries


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "…"


# ------------------------------------------------------------------------------ other shapes


class OwnShape(Adapter):
    """tokenyard's own: submit, schedule, commit."""

    def add(self, asked: Asked) -> None:
        from tokenyard.core import Request

        self.known[asked.id] = asked.id
        request = Request(asked.id, asked.prompt_tokens, asked.output_tokens, arrival=asked.arrival)
        if reason := self.scheduler.submit(request):
            raise Rejected(reason)

    def step(self) -> dict[str, Any]:
        batch = self.scheduler.schedule()
        ran = {
            "decode": [request.id for request in batch.decode],
            "prefill": [[request.id, tokens] for request, tokens in batch.prefill],
            "cached": [[request.id, tokens] for request, tokens in batch.cached],
            "preempted": [request.id for request in batch.preempted],
            "finished": [],
        }
        if batch:
            ran["finished"] = [request.id for request in self.scheduler.commit(batch)]
        return ran

    def queues(self) -> dict[str, list[str]]:
        return {
            name: [request.id for request in getattr(self.scheduler, name)]
            for name in ("waiting", "running")
        }


TOKEN = 7
"""What every output token is, where a shape wants to see tokens."""


class Seq:
    """A request as schedulers of nano-vllm's and vLLM's shape look at it: the fields of both."""

    block_size = 256

    def __init__(self, asked: Asked) -> None:
        self.seq_id = self.request_id = self.id = asked.id
        self.arrival_time = float(asked.arrival)
        self.priority = 0
        self.status: Any = "WAITING"
        self.token_ids = self.prompt_token_ids = [0] * asked.prompt_tokens
        self.token_ids = list(self.token_ids)
        self.output_token_ids: list[int] = []
        self.num_prompt_tokens = asked.prompt_tokens
        self.num_tokens = asked.prompt_tokens
        self.num_cached_tokens = self.num_computed_tokens = self.num_scheduled_tokens = 0
        self.num_preemptions = 0
        self.block_table: list[int] = []
        self.temperature, self.ignore_eos = 1.0, True
        self.max_tokens = asked.output_tokens
        self.sampling_params = SimpleNamespace(
            max_tokens=asked.output_tokens, temperature=1.0, ignore_eos=True
        )

    def __len__(self) -> int:
        return self.num_tokens

    def __getitem__(self, key: Any) -> Any:
        return self.token_ids[key]

    def append_token(self, token: int) -> None:
        """Take in an output token."""
        self.token_ids.append(token)
        self.output_token_ids.append(token)
        self.last_token = token
        self.num_tokens += 1

    def append_output_token_ids(self, tokens: Any) -> None:
        """Take in output tokens, one or several."""
        for token in [tokens] if isinstance(tokens, int) else tokens:
            self.append_token(token)

    @property
    def num_completion_tokens(self) -> int:
        """Output tokens so far."""
        return self.num_tokens - self.num_prompt_tokens

    num_output_tokens = num_completion_tokens

    @property
    def num_blocks(self) -> int:
        """Blocks that its tokens fill, the last one partly."""
        return -(-self.num_tokens // self.block_size)

    def block(self, place: int) -> list[int]:
        """The tokens of one block."""
        return self.token_ids[place * self.block_size : (place + 1) * self.block_size]

    @property
    def is_finished(self) -> bool:
        """Whether the scheduler has set its status so."""
        return "FINISH" in str(getattr(self.status, "name", self.status)).upper()


def config(capacity: int) -> SimpleNamespace:
    """The fields that configurations of these engines have; only the token budget is tight."""
    return SimpleNamespace(
        capacity=capacity,
        max_num_batched_tokens=capacity,
        max_num_scheduled_tokens=capacity,
        max_num_seqs=1024,
        max_num_running_reqs=1024,
        max_model_len=1 << 20,
        long_prefill_token_threshold=0,
        enable_chunked_prefill=True,
        enable_prefix_caching=False,
        policy="fcfs",
        eos=-1,
        hf_config=None,
        num_kvcache_blocks=1 << 14,
        num_gpu_blocks=1 << 14,
        num_blocks=1 << 14,
        kvcache_block_size=Seq.block_size,
        block_size=Seq.block_size,
    )


class NanoShape(Adapter):
    """nano-vllm's: steps are either prefill or decode; every sequence of one gets a token."""

    asks = ("is_finished",)

    def __init__(self, scheduler: Any) -> None:
        super().__init__(scheduler)
        self._seqs: dict[str, Seq] = {}

    def add(self, asked: Asked) -> None:
        self.known[asked.id] = asked.id
        self._seqs[asked.id] = seq = Seq(asked)
        try:
            self.scheduler.add(seq)
        except ValueError as error:
            raise Rejected(str(error)) from error

    def step(self) -> dict[str, Any]:
        planned = self.scheduler.schedule()
        if not isinstance(planned, tuple) or len(planned) != 2:
            raise BadResultError(f"schedule() returned {_shown(planned)}; expected (seqs, bool)")
        seqs, is_prefill = list(planned[0]), planned[1]
        before = {seq.id: seq.num_computed_tokens for seq in seqs}
        ran: dict[str, Any] = {"decode": [], "prefill": [], "finished": []}
        for seq in seqs:
            if is_prefill:
                new = len(seq) - max(before[seq.id], seq.num_cached_tokens)
                tokens = seq.num_scheduled_tokens or new
                seq.num_computed_tokens += tokens
                ran["prefill"].append([seq.id, tokens])
            else:
                ran["decode"].append(seq.id)
        arguments: list[Any] = [seqs, [TOKEN] * len(seqs), is_prefill]
        wanted = len(inspect.signature(self.scheduler.postprocess).parameters)
        self.scheduler.postprocess(*arguments[:wanted])
        ran["finished"] = [seq.id for seq in seqs if seq.is_finished]
        return ran


class VllmShape(Adapter):
    """vLLM's: `schedule()` says how many tokens of each request run; what they brought is told to
    `update_from_output(output, sampled)` or `update(output, sampled)`, where sampled is {id: token}
    with vLLM's names beside it. Who has finished is what that returns, or whose status says so."""

    asks = ("has_requests", "has_unfinished_requests", "has_work")

    def __init__(self, scheduler: Any) -> None:
        super().__init__(scheduler)
        self._seqs: dict[str, Seq] = {}
        self._done: dict[str, int] = {}

    def add(self, asked: Asked) -> None:
        self.known[asked.id] = asked.id
        self._seqs[asked.id] = seq = Seq(asked)
        self._done[asked.id] = 0
        try:
            self.scheduler.add_request(seq)
        except ValueError as error:
            raise Rejected(str(error)) from error

    def step(self) -> dict[str, Any]:
        output = self.scheduler.schedule()
        counts = output if isinstance(output, Mapping) else None
        counts = getattr(output, "num_scheduled_tokens", counts)
        if isinstance(counts, Mapping) and "num_scheduled_tokens" in counts:
            counts = counts["num_scheduled_tokens"]
        if not isinstance(counts, Mapping):
            raise BadResultError(
                f"schedule() returned {_shown(output)}; expected num_scheduled_tokens, a dict from "
                "id to tokens"
            )
        ran: dict[str, Any] = {"decode": [], "prefill": [], "finished": []}
        sampled = Sampled()
        for key, tokens in counts.items():
            id = self._id("num_scheduled_tokens", key)
            seq = self._seqs.get(id)  # None: nobody's, which the invariants say
            if seq is not None and self._done[id] >= seq.num_prompt_tokens and tokens == 1:
                ran["decode"].append(id)
            else:
                ran["prefill"].append([id, tokens])
            if seq is not None:
                self._done[id] += tokens
                if self._done[id] >= seq.num_prompt_tokens:
                    sampled[id] = TOKEN
        update = getattr(self.scheduler, "update_from_output", None) or self.scheduler.update
        told = update(output, sampled)
        finished = told if isinstance(told, (list, tuple, set, frozenset)) else ()
        ran["finished"] = [id for id in map(self.id_of, finished) if id is not None]
        for request in self._seqs.values():
            if request.is_finished and request.id not in {*self._gone, *ran["finished"]}:
                ran["finished"].append(request.id)
        self._gone.update(dict.fromkeys(ran["finished"]))
        return ran


class Sampled(dict[str, int]):
    """id to token, and the same under the names of vLLM's ModelRunnerOutput."""

    @property
    def req_ids(self) -> list[str]:
        """Ids, in order."""
        return list(self)

    @property
    def req_id_to_index(self) -> dict[str, int]:
        """Place of each id."""
        return {id: place for place, id in enumerate(self)}

    @property
    def sampled_token_ids(self) -> list[list[int]]:
        """Tokens of each id, in that order."""
        return [[token] for token in self.values()]


# ------------------------------------------------------------------------------ finding the class

SHAPES: dict[str, tuple[type[Adapter], tuple[tuple[str, ...], ...]]] = {
    "plain": (Adapter, (("add_request",), ("step",))),
    "tokenyard": (OwnShape, (("submit",), ("schedule",), ("commit",))),
    "nano-vllm": (NanoShape, (("add",), ("schedule",), ("postprocess",))),
    "vllm": (VllmShape, (("add_request",), ("schedule",), ("update_from_output", "update"))),
}


def shape_of(thing: Any) -> str | None:
    """The first shape whose methods a class has."""
    for shape, (_, methods) in SHAPES.items():
        if all(any(callable(getattr(thing, name, None)) for name in names) for names in methods):
            return shape
    return None


def find(module: ModuleType, wanted: str | None) -> tuple[Any, str]:
    """The scheduler class of a module, and its shape. Raises `ShapeError`."""
    if wanted is not None:
        thing = getattr(module, wanted, None)
        if thing is None:
            raise ShapeError(f"there is no {wanted!r} in it; {_candidates(module)}")
        shape = shape_of(thing) if inspect.isclass(thing) else "plain" if callable(thing) else None
        if shape is None:
            raise ShapeError(f"{wanted} is no scheduler: it needs {_needs()}")
        return thing, shape
    found = [thing for thing in _classes(module) if shape_of(thing)]
    own = [thing for thing in found if thing.__module__ == module.__name__] or found
    # Of a class and one that is built on it, the latter is meant.
    leaves = [
        one for one in own if not any(one is not other and issubclass(other, one) for other in own)
    ]
    if len(leaves) != 1:
        if leaves:
            names = ", ".join(thing.__name__ for thing in leaves)
            raise ShapeError(
                f"it holds {len(leaves)} schedulers: {names}; name one, as in FILE:Name"
            )
        raise ShapeError(
            f"no class in it is a scheduler: it needs {_needs()}; {_candidates(module)}"
        )
    only = leaves[0]
    return only, str(shape_of(only))


def _classes(module: ModuleType) -> list[type]:
    classes = {id(thing): thing for thing in vars(module).values() if inspect.isclass(thing)}
    return [thing for thing in classes.values() if not inspect.isabstract(thing)]


def _needs() -> str:
    return "the methods add_request and step (or those of another shape in docs/check.md)"


def _candidates(module: ModuleType) -> str:
    lines = []
    for thing in _classes(module):
        if thing.__module__ == module.__name__:
            methods = [
                name
                for name, value in vars(thing).items()
                if callable(value) and not name.startswith("_")
            ]
            lines.append(f"{thing.__name__} has {', '.join(methods) or 'no methods'}")
    return "classes there: " + ("; ".join(lines) or "none")


def maker(
    thing: Any, shape: str, rules: Mapping[str, Any] | None = None
) -> Callable[[int], Adapter]:
    """What makes a fresh instance, given a capacity. `rules`: fields of Rules that tokenyard's own
    shape is made with; its max_num_batched_tokens is the capacity."""
    adapter = SHAPES[shape][0]
    if shape == "tokenyard":
        from tokenyard.core import Rules

        def own(capacity: int) -> Adapter:
            if rules is None:
                return adapter(thing(Rules.textbook(capacity)))
            return adapter(thing(Rules(**{**rules, "max_num_batched_tokens": capacity})))

        return own
    if _wants_config(thing):
        return lambda capacity: adapter(thing(config(capacity)))
    return lambda capacity: adapter(thing(capacity))


def _wants_config(thing: Any) -> bool:
    """Whether the first argument is named as a configuration."""
    try:
        names = list(inspect.signature(thing).parameters)
    except (TypeError, ValueError):
        return False
    return bool(names) and ("config" in names[0] or names[0] in ("cfg", "args"))
