"""The state machine over arrays, compiled: it costs per change of state, not per token.

Three ideas carry it.

- One clock. `s[STEPS]` counts steps, and every decoding request gets a token in each of them. So
  a request's tokens in the KV cache are the clock minus a number of its own (BASE), its end is a
  fixed reading of the clock, and a heap of these readings says who ends next. A request that
  misses a step (its budget or its memory was gone) has its number moved by one.
- Leaps. A step in which nobody joins, leaves or is prefilled is followed by others like it until
  somebody ends, arrives, gives up, or a block is missing. Durations grow evenly meanwhile, so
  their sum is a closed form in whole ticks. Blocks are taken by the remainder of BASE: how many
  requests cross the edge of a block in a step is one entry of a table of `block_size` numbers.
- The largest gap between tokens since some step is a suffix maximum over the steps: kept in a stack
  from which every new gap removes the smaller ones before it, and found by bisection.

Only when blocks or the decode budget run out is a step walked request by request, as `core` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(*, inline: bool) -> Callable[[Function], Function]:
    """Compile a function, once for this machine, with Python's own meaning of whole numbers."""
    # No function here makes an array, so Numba need not count references to those that are handed
    # in (`_nrt`). Without that, and without inlining, counting would take most of the time.
    options: dict[str, Any] = {"error_model": "numpy", "_nrt": False, "forceinline": inline}

    def compile_it(function: Function) -> Function:
        try:
            return cast(Function, njit(cache=True, **options)(function))
        except RuntimeError:  # nowhere to keep the compiled code: compile it in every run
            return cast(Function, njit(**options)(function))

    return compile_it


inlined, called = compiled(inline=True), compiled(inline=False)

ENDLESS = 1 << 62
NOT_NEGATIVE = (1 << 63) - 1
"""`i & NOT_NEGATIVE` is i. Numba then need not see whether it counts from the end of an array."""
LATEST = 1 << 62
"""Ticks at which a run is given up: half of what int64 holds."""

MOST_STEPS = 1 << 30
"""Steps without a pause at which a run is given up: with 10^9 more tokens the clock still fits into
half a word."""

# Where a request stands.
UNSEEN, WAITING, PREFILL, DECODE, FINISHED, ABORTED, REJECTED = range(7)

# What `advance` returns.
GOING, DONE, TOO_LONG, GAPS_FULL, LINES_FULL = range(5)

# Scalars of a run, in one array so that every function can change them.
(
    NOW,  # ticks at which the next step is planned
    ENDED,  # ticks at which the last step ended
    STEPS,  # the clock
    EARLIER,  # steps before it began again
    NEXT,  # the first request that has not been submitted
    LINE,  # fcfs: the first request that may still wait without having run
    DEADLINES,  # the next deadline to look at
    WAIT,  # how many wait
    DECODING,  # how many are in DECODE
    CACHED,  # tokens in the KV cache of all of these
    PREFILLING,  # how many are in PREFILL
    FREE,  # free blocks
    HEAD,  # first and last of the running, in order of admission
    TAIL,
    ENDS,  # sizes of the heaps and lists
    QUEUE,
    FRESH,
    GAPS,
    LEFT,  # requests that have left
    COUNTED,  # sums over the run, as RunSums names them
    START,
    END,
    BUSY,
    PREFILL_TOKENS,
    DECODE_TOKENS,
    SCHEDULED,
    LARGEST,
    LEAST_FREE,
    LINES,  # lines of the steps told so far, and changes of state that were passed over since
    PASSED,
) = range(30)
SCALARS = 30

# Rows of `told`: a line for each change of state, as in the schedule log. It stands for `repeat`
# steps, each `growth` ticks longer than the one before.
(
    LINE_STEP,
    LINE_START,
    LINE_REPEAT,
    LINE_DURATION,
    LINE_GROWTH,
    LINE_PREFILL_TOKENS,
    LINE_DECODES,
    LINE_WAITING,
    LINE_RUNNING,
    LINE_FREE,
) = range(10)
LINE_ROWS = 10


class Limits(NamedTuple):
    """The rules and the step-time model, as numbers (ENDLESS for no bound)."""

    budget: int
    prefill_budget: int
    shared: bool
    seqs: int
    chunked: bool
    threshold: int
    fcfs: bool
    decode_first: bool
    memory: bool
    reserve: bool
    grows: bool  # memory, and taken as tokens come
    whole_prompt: bool
    block_size: int
    unsampled: int
    fixed: int
    per_prefill_token: int
    per_attention_pair: int
    per_decode: int
    per_kv_token: int
    every: int  # of the changes of state, which one is told


# Columns of a request in `w`, of 64 bits each …
(
    ADMITTED,
    FIRST,
    FINISHED_AT,
    RECOMPUTED,
    LARGEST_ITL,
    BASE,  # PREFILL: tokens in the KV cache; DECODE: the clock minus these
    SINCE,  # the clock after its last token that LARGEST_ITL knows
    LAST,  # when that token came
) = range(8)
WIDE = 8

# … and in `h`, of 32 bits each.
(
    PROMPT,
    LENGTH,  # output tokens that it ends with
    MOST,  # max_tokens
    RANK,  # its place in the policy's order
    OUTPUT,
    PREEMPTIONS,
    STATE,
    LOST,  # most tokens that a preemption threw out of the KV cache
    TOKENS,  # tokens in the step that is planned; -1: a decode that misses it
    IS_FRESH,  # whether the gap before its next token is its own
    BEFORE,  # neighbours among the running
    AFTER,
) = range(12)
HALF = 12

# Heaps and lists of requests, everywhere under these names:
#   ends        heap: clock at the end << 32 | request
#   queue       heap of those who wait: rank << 32 | request (fcfs: only of the preempted)
#   prefilling  in order of admission
#   fresh       DECODE requests whose next gap is their own
#   gap         stack of gaps that no later one reaches: clock after the step, and ticks
#   edge        DECODE requests by the remainder of their base

# ------------------------------------------------------------------------------ small things


@inlined
def push(heap: Any, size: int, value: int) -> None:
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        if heap[parent] <= value:
            break
        heap[i] = heap[parent]
        i = parent
    heap[i] = value


@inlined
def pop(heap: Any, size: int) -> None:
    """Take the least out; the heap has `size` - 1 values then."""
    size -= 1
    i, child = 0, 1
    while child + 1 < size:  # the gap goes down to a leaf, without a guess at each level …
        child += heap[child + 1] < heap[child]
        heap[i] = heap[child]
        i = child
        child = (2 * i + 1) & NOT_NEGATIVE
    if child < size:
        heap[i] = heap[child]
        i = child
    value = heap[size]
    while i > 0:  # … and the last value, which is large, rarely rises from there
        parent = (i - 1) >> 1
        if heap[parent] <= value:
            break
        heap[i] = heap[parent]
        i = parent
    heap[i] = value


@inlined
def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@inlined
def join(s: Any, h: Any, r: int) -> None:
    """Append to the running."""
    h[BEFORE, r] = s[TAIL]
    h[AFTER, r] = -1
    if s[TAIL] >= 0:
        h[AFTER, s[TAIL]] = r
    else:
        s[HEAD] = r
    s[TAIL] = r


@inlined
def unlink(s: Any, h: Any, r: int) -> None:
    """Take out of the running."""
    before, after = h[BEFORE, r], h[AFTER, r]
    if before >= 0:
        h[AFTER, before] = after
    else:
        s[HEAD] = after
    if after >= 0:
        h[BEFORE, after] = before
    else:
        s[TAIL] = before


@inlined
def end_clock(p: Any, w: Any, h: Any, r: int) -> int:
    """The clock at which a decoding request has all its output."""
    return int(w[BASE, r] + h[PROMPT, r] + h[LENGTH, r] - p.unsampled)


@inlined
def largest_gap(s: Any, gap: Any, since: int) -> int:
    """The largest gap of a step after the clock `since`; there is one."""
    low, size = 0, s[GAPS]
    while size > 1:
        half = size >> 1
        low = low + half if gap[0, low + half - 1] <= since else low
        size -= half
    return int(gap[1, low])


@inlined
def push_gap(s: Any, gap: Any, ticks: int) -> None:
    """Note the gap of the step that has just ended."""
    size = s[GAPS]
    while size > 0 and gap[1, size - 1] <= ticks:
        size -= 1
    gap[0, size] = s[STEPS]
    gap[1, size] = ticks
    s[GAPS] = size + 1


@inlined
def settle(s: Any, w: Any, h: Any, gap: Any, r: int) -> None:
    """Look at a decoding request up to its last token, which the last step gave it."""
    if not h[IS_FRESH, r]:
        if w[SINCE, r] < s[STEPS]:
            w[LARGEST_ITL, r] = max(w[LARGEST_ITL, r], largest_gap(s, gap, w[SINCE, r]))
            w[SINCE, r] = s[STEPS]
        w[LAST, r] = s[ENDED]


@called
def make_fresh(s: Any, h: Any, fresh: Any, r: int) -> None:
    """The next token of a decoding request has a gap of its own."""
    if h[IS_FRESH, r]:
        return
    if s[FRESH] == len(fresh):  # drop those that are not any more
        kept = 0
        for i in range(s[FRESH]):
            if h[IS_FRESH, fresh[i]]:
                fresh[kept] = fresh[i]
                kept += 1
        s[FRESH] = kept
    h[IS_FRESH, r] = True
    fresh[s[FRESH]] = r
    s[FRESH] += 1


@inlined
def token(w: Any, r: int, end: int) -> None:
    """A token with a gap of its own, at the end of a step that the clock has counted."""
    if w[LAST, r] < 0:
        w[FIRST, r] = end
    else:
        w[LARGEST_ITL, r] = max(w[LARGEST_ITL, r], end - w[LAST, r])
    w[LAST, r] = end


@inlined
def begin_decode(s: Any, p: Any, w: Any, h: Any, ends: Any, edge: Any, r: int) -> None:
    """From PREFILL to DECODE, all its tokens being in the KV cache now."""
    known = h[PROMPT, r] + h[OUTPUT, r]
    h[STATE, r] = DECODE
    w[BASE, r] = s[STEPS] - known
    s[DECODING] += 1
    s[CACHED] += known
    if p.grows:
        edge[w[BASE, r] % p.block_size] += 1
    if s[ENDS] == len(ends):  # drop the entries of those who are not in DECODE any more
        kept = 0
        for i in range(s[ENDS]):
            other = ends[i] & 0xFFFFFFFF
            if h[STATE, other] == DECODE and ends[i] >> 32 == end_clock(p, w, h, other):
                entry = ends[i]
                push(ends, kept, entry)
                kept += 1
        s[ENDS] = kept
    push(ends, s[ENDS], end_clock(p, w, h, r) << 32 | r)
    s[ENDS] += 1


@inlined
def stop_decode(s: Any, p: Any, w: Any, h: Any, gap: Any, edge: Any, r: int) -> None:
    """Out of DECODE: note its tokens, and give its blocks back."""
    computed = s[STEPS] - w[BASE, r]
    settle(s, w, h, gap, r)
    h[IS_FRESH, r] = False
    h[OUTPUT, r] = computed - h[PROMPT, r] + p.unsampled
    s[DECODING] -= 1
    s[CACHED] -= computed
    if p.grows:
        edge[w[BASE, r] % p.block_size] -= 1
    if s[DECODING] == 0:
        s[GAPS] = 0
    give_back(s, p, h, r, computed)


@inlined
def give_back(s: Any, p: Any, h: Any, r: int, computed: int) -> None:
    """Free the blocks of a request with so many tokens in the KV cache."""
    if p.memory:
        if p.reserve:
            computed = h[PROMPT, r] + h[MOST, r] - p.unsampled
        s[FREE] += ceil_div(computed, p.block_size)


@called
def drop_prefill(s: Any, prefilling: Any, r: int) -> None:
    """Take out of the list of begun prefills."""
    kept = 0
    for i in range(s[PREFILLING]):
        if prefilling[i] != r:
            prefilling[kept] = prefilling[i]
            kept += 1
    s[PREFILLING] = kept


@inlined
def finish(s: Any, p: Any, w: Any, h: Any, gap: Any, edge: Any, r: int) -> None:
    """Done with the token of the step that has just ended."""
    stop_decode(s, p, w, h, gap, edge, r)
    h[STATE, r] = FINISHED
    w[FINISHED_AT, r] = s[ENDED]
    unlink(s, h, r)
    s[LEFT] += 1


@called
def abort(s: Any, p: Any, w: Any, h: Any, gap: Any, edge: Any, prefilling: Any, r: int) -> None:
    """Call a request off, at the planning of a step."""
    if h[STATE, r] == WAITING:
        s[WAIT] -= 1  # its place in the line is passed over later
    else:
        if h[STATE, r] == DECODE:
            stop_decode(s, p, w, h, gap, edge, r)
        else:
            give_back(s, p, h, r, w[BASE, r])
            drop_prefill(s, prefilling, r)
        unlink(s, h, r)
    h[STATE, r] = ABORTED
    w[FINISHED_AT, r] = s[NOW]
    s[LEFT] += 1


@called
def preempt(
    s: Any,
    p: Any,
    w: Any,
    h: Any,
    gap: Any,
    edge: Any,
    prefilling: Any,
    queue: Any,
    r: int,
) -> None:
    """Back to the waiting, at the planning of a step; its plan in it (`tokens`) is undone."""
    planned = h[TOKENS, r]
    if h[STATE, r] == DECODE:
        computed = s[STEPS] - w[BASE, r]
        stop_decode(s, p, w, h, gap, edge, r)
    else:
        computed = w[BASE, r]
        give_back(s, p, h, r, computed)
        drop_prefill(s, prefilling, r)
    # The blocks that this step's plan had taken on top.
    s[FREE] += ceil_div(computed + planned, p.block_size) - ceil_div(computed, p.block_size)
    h[TOKENS, r] = 0
    h[LOST, r] = max(h[LOST, r], computed)
    h[PREEMPTIONS, r] += 1
    h[STATE, r] = WAITING
    unlink(s, h, r)
    s[WAIT] += 1
    push(queue, s[QUEUE], h[RANK, r] << 32 | r)
    s[QUEUE] += 1


@inlined
def first_in_line(s: Any, h: Any, queue: Any) -> int:
    """The waiting request that the policy serves first; there is one."""
    while s[QUEUE] > 0:
        r = queue[0] & 0xFFFFFFFF
        if h[STATE, r] == WAITING:
            return int(r)  # fcfs: the preempted came before everybody who has not run
        pop(queue, s[QUEUE])
        s[QUEUE] -= 1
    while h[STATE, s[LINE]] != WAITING:
        s[LINE] += 1
    return int(s[LINE])


# ------------------------------------------------------------------------------ parts of a step


@called
def walk(
    s: Any,
    p: Any,
    w: Any,
    h: Any,
    gap: Any,
    edge: Any,
    prefilling: Any,
    queue: Any,
    fresh: Any,
    order: Any,
    chunk: int,
) -> tuple[int, int, int, int]:
    """Plan the running one by one, in the order in which they are served, where blocks or the
    decode budget do not suffice. Returns decodes, tokens that they read, preemptions, and what is
    left of the prefill budget."""
    running = s[DECODING] + s[PREFILLING]
    count = 0
    for turn in range(2 if p.decode_first else 1):
        r = s[HEAD]
        while r >= 0:
            if not p.decode_first or (h[STATE, r] == DECODE) == (turn == 0):
                order[count] = r
                count += 1
            r = h[AFTER, r]
    decode_left, prefill_left = p.budget, p.prefill_budget
    preempted = 0
    for i in range(running):
        r = order[i]
        if h[STATE, r] == WAITING:
            continue
        decoding = h[STATE, r] == DECODE
        left = decode_left if decoding or p.shared else prefill_left
        if decoding:
            computed, tokens = s[STEPS] - w[BASE, r], 1
        else:
            computed = w[BASE, r]
            tokens = min(h[PROMPT, r] + h[OUTPUT, r] - computed, min(chunk, left))
        if tokens <= 0 or tokens > left:
            continue
        if p.grows:
            size = p.block_size
            needed = ceil_div(computed + tokens, size) - ceil_div(computed, size)
            while needed > s[FREE]:
                victim, worst = -1, -1
                other = s[HEAD]
                while other >= 0:
                    rank = h[RANK, other]
                    if rank > worst:
                        victim, worst = other, rank
                    other = h[AFTER, other]
                if h[STATE, victim] == DECODE or p.shared:
                    decode_left += h[TOKENS, victim]
                else:
                    prefill_left += h[TOKENS, victim]
                preempt(s, p, w, h, gap, edge, prefilling, queue, victim)
                preempted += 1
                if victim == r:
                    break
            if h[STATE, r] == WAITING:
                break
            s[FREE] -= needed
        h[TOKENS, r] = tokens
        if decoding or p.shared:
            decode_left -= tokens
        else:
            prefill_left -= tokens
    decodes = reads = 0
    r = s[HEAD]
    while r >= 0:
        if h[STATE, r] == DECODE:
            if h[TOKENS, r]:
                decodes += 1
                reads += s[STEPS] - w[BASE, r]
                h[TOKENS, r] = 0
            else:  # it misses this step: its clock stands still
                settle(s, w, h, gap, r)
                make_fresh(s, h, fresh, r)
                h[TOKENS, r] = -1
                edge[w[BASE, r] % p.block_size] -= 1
                w[BASE, r] += 1
                edge[w[BASE, r] % p.block_size] += 1
        r = h[AFTER, r]
    return decodes, reads, preempted, decode_left if p.shared else prefill_left


@inlined
def plan_prefills(
    s: Any, p: Any, w: Any, h: Any, prefilling: Any, chunk: int, left: int
) -> tuple[int, int]:
    """Plan the begun prefills; what is left of the budget, and the blocks that they need."""
    needed = 0
    for i in range(s[PREFILLING]):
        r = prefilling[i] & NOT_NEGATIVE
        computed = w[BASE, r]
        tokens = max(0, min(h[PROMPT, r] + h[OUTPUT, r] - computed, min(chunk, left)))
        h[TOKENS, r] = tokens
        left -= tokens
        if p.grows:
            needed += ceil_div(computed + tokens, p.block_size) - ceil_div(computed, p.block_size)
    return left, needed


@inlined
def admit(
    s: Any, p: Any, w: Any, h: Any, queue: Any, prefilling: Any, chunk: int, left: int
) -> int:
    """Let waiting requests join while they fit; returns what is left of the budget."""
    while s[WAIT] > 0 and left > 0 and s[DECODING] + s[PREFILLING] < p.seqs:
        r = first_in_line(s, h, queue) & NOT_NEGATIVE
        known = h[PROMPT, r] + h[OUTPUT, r]
        tokens = min(known, chunk)
        if p.chunked:
            tokens = min(tokens, left)
        if tokens > left:
            break
        if p.memory:
            if p.reserve:
                needed = ceil_div(h[PROMPT, r] + h[MOST, r] - p.unsampled, p.block_size)
                fit = needed
            else:
                needed = ceil_div(tokens, p.block_size)
                fit = ceil_div(known, p.block_size) if p.whole_prompt else needed
            if max(needed, fit) > s[FREE]:
                break
            s[FREE] -= needed
        if s[QUEUE] > 0:
            pop(queue, s[QUEUE])
            s[QUEUE] -= 1
        else:
            s[LINE] += 1
        s[WAIT] -= 1
        h[STATE, r] = PREFILL
        w[BASE, r] = 0
        h[TOKENS, r] = tokens
        prefilling[s[PREFILLING]] = r
        s[PREFILLING] += 1
        join(s, h, r)
        left -= tokens
        if w[ADMITTED, r] < 0:
            w[ADMITTED, r] = s[NOW]
    return left


@inlined
def count(s: Any, steps: int, busy: int, prefill: int, decodes: int, size: int) -> None:
    """Add steps of one kind to the sums."""
    if size == 0 and busy == 0:
        return
    if s[COUNTED] == 0:
        s[START] = s[NOW]
    s[COUNTED] += steps
    s[END] = s[NOW] + busy
    s[BUSY] += busy
    s[PREFILL_TOKENS] += prefill
    s[DECODE_TOKENS] += steps * decodes
    s[SCHEDULED] += steps * size
    s[LARGEST] = max(s[LARGEST], size)


@inlined
def gaps_of_their_own(s: Any, w: Any, h: Any, fresh: Any, end: int) -> None:
    """Tokens at `end` for those whose gap is their own, if they were in the step, which the clock
    has not counted yet."""
    kept = 0
    for i in range(s[FRESH]):
        r = fresh[i] & NOT_NEGATIVE
        if not h[IS_FRESH, r]:
            continue
        if h[TOKENS, r] < 0:  # it missed the step
            h[TOKENS, r] = 0
            fresh[kept] = r
            kept += 1
            continue
        token(w, r, end)
        w[SINCE, r] = s[STEPS] + 1
        h[IS_FRESH, r] = False
    s[FRESH] = kept


@inlined
def one_step(
    s: Any,
    p: Any,
    w: Any,
    h: Any,
    prefilling: Any,
    fresh: Any,
    gap: Any,
    ends: Any,
    edge: Any,
    decodes: int,
    reads: int,
) -> bool:
    """Run the planned step; False if it would take too long for int64."""
    prefill = pairs = 0
    size = decodes
    for i in range(s[PREFILLING]):
        r = prefilling[i] & NOT_NEGATIVE
        tokens = h[TOKENS, r]
        if tokens > 0:
            size += 1
            prefill += tokens
            pairs += tokens * w[BASE, r] + tokens * (tokens + 1) // 2
    duration = (
        p.fixed
        + p.per_prefill_token * prefill
        + p.per_attention_pair * pairs
        + p.per_decode * decodes
        + p.per_kv_token * reads
    )
    if float(p.per_attention_pair) * pairs + float(p.per_kv_token) * reads > 4e18:
        return False
    end = s[NOW] + duration
    count(s, 1, duration, prefill, decodes, size)
    gaps_of_their_own(s, w, h, fresh, end)
    s[STEPS] += 1
    s[CACHED] += decodes
    if s[DECODING] > 0:
        push_gap(s, gap, end - s[ENDED])
    s[ENDED] = end
    kept = 0
    for i in range(s[PREFILLING]):
        r = prefilling[i] & NOT_NEGATIVE
        tokens = h[TOKENS, r]
        h[TOKENS, r] = 0
        computed = w[BASE, r] + tokens
        again = min(computed, h[LOST, r]) - w[BASE, r]
        if again > 0:
            w[RECOMPUTED, r] += again
        w[BASE, r] = computed
        if computed < h[PROMPT, r] + h[OUTPUT, r]:
            prefilling[kept] = r
            kept += 1
            continue
        begin_decode(s, p, w, h, ends, edge, r)
        w[SINCE, r] = s[STEPS]
        if p.unsampled:
            token(w, r, end)
        else:
            make_fresh(s, h, fresh, r)
    s[PREFILLING] = kept
    return True


@inlined
def ticks_of(steps: int, first: int, growth: int) -> int:
    """Ticks of so many steps of which each is `growth` longer than the one before."""
    return steps * first + growth * (steps * (steps - 1) // 2)


@inlined
def steps_until(ticks: int, most: int, first: int, growth: int) -> int:
    """The least steps that take at least so many ticks, `most` if they don't."""
    if ticks_of(most, first, growth) < ticks:
        return most
    # The root of the parabola in floats, then to the exact step: mostly it is there already.
    half = 0.5 * growth
    linear = first - half
    root = (
        ticks / first
        if growth == 0
        else (np.sqrt(linear * linear + 4 * half * ticks) - linear) / (2 * half)
    )
    steps = min(max(int(root), 1), most)
    while steps > 1 and ticks_of(steps - 1, first, growth) >= ticks:
        steps -= 1
    while ticks_of(steps, first, growth) < ticks:
        steps += 1
    return steps


@inlined
def leap(
    s: Any,
    p: Any,
    w: Any,
    h: Any,
    arrival: Any,
    late_at: Any,
    ends: Any,
    edge: Any,
    gap: Any,
    fresh: Any,
    left: int,
) -> None:
    """Run the planned step, in which all decode and nobody else does anything, and as many like it
    as follow."""
    decoding = s[DECODING]
    first = p.fixed + p.per_decode * decoding + p.per_kv_token * s[CACHED]
    growth = p.per_kv_token * decoding
    steps = (ends[0] >> 32) - s[STEPS]
    while steps > 1 and float(steps) * first + 0.5 * growth * steps * steps > 4e18:
        steps >>= 1
    # Whoever arrives matters if there is room for them, and nobody before them waits for it.
    if s[NEXT] < len(arrival) and decoding < p.seqs and left > 0 and not (p.fcfs and s[WAIT]):
        steps = steps_until(arrival[s[NEXT]] - s[NOW], steps, first, growth)
    if s[DEADLINES] < len(late_at):
        steps = steps_until(late_at[s[DEADLINES]] - s[NOW], steps, first, growth)
    if p.grows:
        # The first step has its blocks. In block_size steps every request takes one.
        size, free, done = p.block_size, s[FREE], 1
        rounds = min((steps - 1) // size, free // decoding)
        free -= rounds * decoding
        done += rounds * size
        place, taken = (s[STEPS] + done) % size, edge[s[STEPS] % size]
        while done < steps and edge[place] <= free:
            taken = edge[place]
            free -= taken
            done += 1
            place = place + 1 if place + 1 < size else 0
        steps = done
        if steps > 1:  # after the last step somebody may give blocks back: look at the one before
            s[LEAST_FREE] = min(s[LEAST_FREE], free + taken)
        s[FREE] = free
    busy = ticks_of(steps, first, growth)
    if s[FRESH]:
        gaps_of_their_own(s, w, h, fresh, s[NOW] + first)
    count(s, steps, busy, 0, decoding, decoding)
    s[STEPS] += steps
    s[CACHED] += steps * decoding
    s[ENDED] = s[NOW] + busy
    push_gap(s, gap, first + growth * (steps - 1))


@called
def advance(
    s: Any,
    p: Any,
    w: Any,
    h: Any,
    arrival: Any,
    rejected: Any,
    late_at: Any,
    late: Any,
    ends: Any,
    queue: Any,
    prefilling: Any,
    fresh: Any,
    gap: Any,
    edge: Any,
    order: Any,
    told: Any,
    events: int,
) -> int:
    """Run up to so many changes of state; says how it ended."""
    total = len(arrival)
    for _ in range(events):
        # Who is here.
        if s[WAIT] + s[DECODING] + s[PREFILLING] == 0:
            if s[NEXT] == total:
                return DONE
            s[NOW] = max(s[NOW], arrival[s[NEXT]])
            # Nobody's numbers refer to the clock: it begins again, so that it never gets large.
            s[EARLIER] += s[STEPS]
            s[STEPS] = s[ENDS] = s[FRESH] = 0
        while s[NEXT] < total and arrival[s[NEXT]] <= s[NOW]:
            r = s[NEXT] & NOT_NEGATIVE
            s[NEXT] += 1
            if rejected[r]:
                h[STATE, r] = REJECTED
                s[LEFT] += 1
                continue
            h[STATE, r] = WAITING
            s[WAIT] += 1
            if not p.fcfs:
                push(queue, s[QUEUE], h[RANK, r] << 32 | r)
                s[QUEUE] += 1
        while s[DEADLINES] < len(late_at) and late_at[s[DEADLINES]] <= s[NOW]:
            r = late[s[DEADLINES]]
            s[DEADLINES] += 1
            if WAITING <= h[STATE, r] <= DECODE:
                abort(s, p, w, h, gap, edge, prefilling, r)
        if s[WAIT] + s[DECODING] + s[PREFILLING] == 0:
            continue
        if s[NOW] > LATEST or s[STEPS] > MOST_STEPS:
            return TOO_LONG
        if s[GAPS] >= gap.shape[1] - 1:
            return GAPS_FULL
        if s[LINES] == told.shape[1] and s[LINES] > 0:
            return LINES_FULL
        step, start = s[STEPS], s[NOW]
        prefill_tokens, decode_tokens = s[PREFILL_TOKENS], s[DECODE_TOKENS]

        # Who runs.
        alone = s[WAIT] + s[DECODING] + s[PREFILLING] == 1
        chunk = ENDLESS if alone else p.threshold
        decodes, reads, preempted = s[DECODING], s[CACHED], 0
        short = decodes > p.budget
        if not short:
            left = p.budget - decodes if p.shared else p.prefill_budget
            needed = 0
            if s[PREFILLING]:
                left, needed = plan_prefills(s, p, w, h, prefilling, chunk, left)
            if p.grows:
                needed += edge[s[STEPS] % p.block_size]
                short = needed > s[FREE]
                if not short:
                    s[FREE] -= needed
        if short:
            for i in range(s[PREFILLING]):
                h[TOKENS, prefilling[i]] = 0
            decodes, reads, preempted, left = walk(
                s, p, w, h, gap, edge, prefilling, queue, fresh, order, chunk
            )
        if not preempted:
            left = admit(s, p, w, h, queue, prefilling, chunk, left)

        # Run it.
        if short or s[PREFILLING]:
            if not one_step(s, p, w, h, prefilling, fresh, gap, ends, edge, decodes, reads):
                return TOO_LONG
        else:
            while True:  # the end of somebody who is there, at the clock at which it comes
                entry = ends[0]
                r = entry & 0xFFFFFFFF
                at = end_clock(p, w, h, r)
                if h[STATE, r] == DECODE and entry >> 32 == at:
                    break
                pop(ends, s[ENDS])
                s[ENDS] -= 1
                if h[STATE, r] == DECODE and entry >> 32 < at:
                    push(ends, s[ENDS], at << 32 | r)
                    s[ENDS] += 1
            leap(s, p, w, h, arrival, late_at, ends, edge, gap, fresh, left)
        while s[ENDS] > 0 and ends[0] >> 32 <= s[STEPS]:
            entry = ends[0]
            r = entry & 0xFFFFFFFF
            pop(ends, s[ENDS])
            s[ENDS] -= 1
            if h[STATE, r] != DECODE:
                continue
            at = end_clock(p, w, h, r)
            if at <= s[STEPS]:
                finish(s, p, w, h, gap, edge, r)
            elif entry >> 32 < at:
                push(ends, s[ENDS], at << 32 | r)
                s[ENDS] += 1
        s[LEAST_FREE] = min(s[LEAST_FREE], s[FREE])
        s[NOW] = s[ENDED]
        if told.shape[1] > 0:
            s[PASSED] += 1
            if s[PASSED] == p.every:
                s[PASSED] = 0
                line, repeat = s[LINES], s[STEPS] - step
                decodes = (s[DECODE_TOKENS] - decode_tokens) // repeat
                growth = p.per_kv_token * decodes if repeat > 1 else 0
                busy = s[NOW] - start
                told[LINE_STEP, line] = s[EARLIER] + step
                told[LINE_START, line] = start
                told[LINE_REPEAT, line] = repeat
                told[LINE_DURATION, line] = (busy - ticks_of(repeat, 0, growth)) // repeat
                told[LINE_GROWTH, line] = growth
                told[LINE_PREFILL_TOKENS, line] = s[PREFILL_TOKENS] - prefill_tokens
                told[LINE_DECODES, line] = decodes
                told[LINE_WAITING, line] = s[WAIT]
                told[LINE_RUNNING, line] = s[DECODING] + s[PREFILLING]
                told[LINE_FREE, line] = s[FREE]
                s[LINES] += 1
    return GOING


@called
def settle_all(s: Any, p: Any, w: Any, h: Any, gap: Any) -> None:
    """Note the tokens so far of those who still decode, where a run was cut short."""
    r = s[HEAD]
    while r >= 0:
        if h[STATE, r] == DECODE:
            settle(s, w, h, gap, r)
            h[OUTPUT, r] = s[STEPS] - w[BASE, r] - h[PROMPT, r] + p.unsampled
        r = h[AFTER, r]
