"""The state machine over arrays, compiled: it costs per change of state, not per token.

Three ideas carry it.

- One clock. `s[STEPS]` counts steps, and every decoding request gets a token in each of them. So a
  request's tokens in the KV cache are the clock minus a number of its own (`base`), its end is a
  fixed reading of the clock, and a heap of these readings says who ends next. A request that misses a
  step (its budget or its memory was gone) has its number moved by one.
- Leaps. A step in which nobody joins, leaves or is prefilled is followed by others like it until
  somebody ends, arrives, gives up, or a block is missing. Durations grow evenly meanwhile, so their
  sum is a closed form in whole ticks. Blocks are taken by the remainder of `base`: how many requests
  cross the edge of a block in a step is one entry of a table of `block_size` numbers.
- The largest gap between tokens since some step is a suffix maximum over the steps: kept in a stack
  from which every new gap removes the smaller ones before it, and found by bisection.

Only when blocks or decode budget run out is a step walked request by request, as `core` walks it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

ENDLESS = 1 << 62
LATEST = 1 << 62
"""Ticks at which a run is given up: half of what int64 holds."""

MOST_STEPS = 1 << 30
"""Steps at which a run is given up: with 10^9 more tokens the clock still fits into half a word."""

# Where a request stands.
UNSEEN, WAITING, PREFILL, DECODE, FINISHED, ABORTED, REJECTED = range(7)

# What `advance` returns.
GOING, DONE, TOO_LONG, GAPS_FULL = range(4)

# Scalars of a run, in one array so that every function can change them.
(
    NOW,  # ticks at which the next step is planned
    ENDED,  # ticks at which the last step ended
    STEPS,  # the clock
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
) = range(27)
SCALARS = 27


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
    whole_prompt: bool
    block_size: int
    unsampled: int
    fixed: int
    per_prefill_token: int
    per_attention_pair: int
    per_decode: int
    per_kv_token: int


class Requests(NamedTuple):
    """A column for everything that is known of a request."""

    arrival: Any
    prompt: Any
    length: Any  # output tokens that it ends with
    most: Any  # max_tokens
    rejected: Any
    rank: Any  # its place in the policy's order (fcfs: none, the number of the request)
    ranked: Any  # the request of each rank
    late_at: Any  # deadlines in order, and whose they are
    late: Any
    admitted: Any
    first: Any
    finished: Any
    output: Any
    preemptions: Any
    recomputed: Any
    largest: Any
    state: Any
    base: Any  # PREFILL: tokens in the KV cache; DECODE: the clock minus these
    since: Any  # the clock after its last token that `largest` knows
    last: Any  # when that token came
    lost: Any  # most tokens that a preemption threw out of the KV cache
    tokens: Any  # tokens in the step that is planned
    fresh: Any  # whether the gap before its next token is its own
    before: Any  # neighbours among the running
    after: Any


class Lists(NamedTuple):
    """Heaps and lists of requests."""

    ends: Any  # heap: clock at the end << 32 | request
    queue: Any  # heap of ranks of those who wait (fcfs: only of the preempted)
    prefilling: Any  # in order of admission
    fresh: Any
    gap_at: Any
    gap: Any
    edge: Any  # DECODE requests by the remainder of their base


# ------------------------------------------------------------------------------ small things


@njit(cache=True)
def push(heap: Any, size: int, value: int) -> None:
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        if heap[parent] <= value:
            break
        heap[i] = heap[parent]
        i = parent
    heap[i] = value


@njit(cache=True)
def pop(heap: Any, size: int) -> None:
    """Take the least out; the heap has `size` - 1 values then."""
    size -= 1
    value = heap[size]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if value <= heap[child]:
            break
        heap[i] = heap[child]
        i = child
    heap[i] = value


@njit(cache=True)
def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@njit(cache=True)
def join(s: Any, q: Any, r: int) -> None:
    """Append to the running."""
    q.before[r] = s[TAIL]
    q.after[r] = -1
    if s[TAIL] >= 0:
        q.after[s[TAIL]] = r
    else:
        s[HEAD] = r
    s[TAIL] = r


@njit(cache=True)
def unlink(s: Any, q: Any, r: int) -> None:
    """Take out of the running."""
    before, after = q.before[r], q.after[r]
    if before >= 0:
        q.after[before] = after
    else:
        s[HEAD] = after
    if after >= 0:
        q.before[after] = before
    else:
        s[TAIL] = before


@njit(cache=True)
def end_clock(q: Any, p: Any, r: int) -> int:
    """The clock at which a decoding request has all its output."""
    return q.base[r] + q.prompt[r] + q.length[r] - p.unsampled


@njit(cache=True)
def largest_gap(s: Any, a: Any, since: int) -> int:
    """The largest gap of a step after the clock `since`."""
    low, high = 0, s[GAPS]
    while low < high:
        middle = (low + high) >> 1
        if a.gap_at[middle] > since:
            high = middle
        else:
            low = middle + 1
    return a.gap[low] if low < s[GAPS] else -1


@njit(cache=True)
def push_gap(s: Any, a: Any, gap: int) -> None:
    """Note the gap of the step that has just ended."""
    size = s[GAPS]
    while size > 0 and a.gap[size - 1] <= gap:
        size -= 1
    a.gap_at[size] = s[STEPS]
    a.gap[size] = gap
    s[GAPS] = size + 1


@njit(cache=True)
def settle(s: Any, q: Any, a: Any, r: int) -> None:
    """Look at a decoding request up to its last token, which the last step gave it."""
    if not q.fresh[r]:
        if q.since[r] < s[STEPS]:
            q.largest[r] = max(q.largest[r], largest_gap(s, a, q.since[r]))
            q.since[r] = s[STEPS]
        q.last[r] = s[ENDED]


@njit(cache=True)
def make_fresh(s: Any, q: Any, a: Any, r: int) -> None:
    """The next token of a decoding request has a gap of its own."""
    if q.fresh[r]:
        return
    if s[FRESH] == len(a.fresh):  # drop those that are not any more
        kept = 0
        for i in range(s[FRESH]):
            if q.fresh[a.fresh[i]]:
                a.fresh[kept] = a.fresh[i]
                kept += 1
        s[FRESH] = kept
    q.fresh[r] = True
    a.fresh[s[FRESH]] = r
    s[FRESH] += 1


@njit(cache=True)
def token(s: Any, q: Any, r: int, end: int) -> None:
    """A token with a gap of its own, at the end of a step that the clock has counted."""
    if q.last[r] < 0:
        q.first[r] = end
    else:
        q.largest[r] = max(q.largest[r], end - q.last[r])
    q.last[r] = end


@njit(cache=True)
def begin_decode(s: Any, p: Any, q: Any, a: Any, r: int) -> None:
    """From PREFILL to DECODE, all its tokens being in the KV cache now."""
    known = q.prompt[r] + q.output[r]
    q.state[r] = DECODE
    q.base[r] = s[STEPS] - known
    s[DECODING] += 1
    s[CACHED] += known
    a.edge[q.base[r] % p.block_size] += 1
    if s[ENDS] == len(a.ends):  # drop the entries of those who are not in DECODE any more
        kept = 0
        for i in range(s[ENDS]):
            other = a.ends[i] & 0xFFFFFFFF
            if q.state[other] == DECODE and a.ends[i] >> 32 == end_clock(q, p, other):
                entry = a.ends[i]
                push(a.ends, kept, entry)
                kept += 1
        s[ENDS] = kept
    push(a.ends, s[ENDS], end_clock(q, p, r) << 32 | r)
    s[ENDS] += 1


@njit(cache=True)
def stop_decode(s: Any, p: Any, q: Any, a: Any, r: int) -> None:
    """Out of DECODE: note its tokens, and give its blocks back."""
    computed = s[STEPS] - q.base[r]
    settle(s, q, a, r)
    q.fresh[r] = False
    q.output[r] = computed - q.prompt[r] + p.unsampled
    s[DECODING] -= 1
    s[CACHED] -= computed
    a.edge[q.base[r] % p.block_size] -= 1
    if s[DECODING] == 0:
        s[GAPS] = 0
    give_back(s, p, q, r, computed)


@njit(cache=True)
def give_back(s: Any, p: Any, q: Any, r: int, computed: int) -> None:
    """Free the blocks of a request with so many tokens in the KV cache."""
    if p.memory:
        if p.reserve:
            computed = q.prompt[r] + q.most[r] - p.unsampled
        s[FREE] += ceil_div(computed, p.block_size)


@njit(cache=True)
def drop_prefill(s: Any, a: Any, r: int) -> None:
    """Take out of the list of begun prefills."""
    kept = 0
    for i in range(s[PREFILLING]):
        if a.prefilling[i] != r:
            a.prefilling[kept] = a.prefilling[i]
            kept += 1
    s[PREFILLING] = kept


@njit(cache=True)
def finish(s: Any, p: Any, q: Any, a: Any, r: int) -> None:
    """Done with the token of the step that has just ended."""
    stop_decode(s, p, q, a, r)
    q.state[r] = FINISHED
    q.finished[r] = s[ENDED]
    unlink(s, q, r)
    s[LEFT] += 1


@njit(cache=True)
def abort(s: Any, p: Any, q: Any, a: Any, r: int) -> None:
    """Call a request off, at the planning of a step."""
    if q.state[r] == WAITING:
        s[WAIT] -= 1  # its place in the line is passed over later
    else:
        if q.state[r] == DECODE:
            stop_decode(s, p, q, a, r)
        else:
            give_back(s, p, q, r, q.base[r])
            drop_prefill(s, a, r)
        unlink(s, q, r)
    q.state[r] = ABORTED
    q.finished[r] = s[NOW]
    s[LEFT] += 1


@njit(cache=True)
def preempt(s: Any, p: Any, q: Any, a: Any, r: int) -> None:
    """Back to the waiting, at the planning of a step; its plan in it (`tokens`) is undone."""
    planned = q.tokens[r]
    if q.state[r] == DECODE:
        computed = s[STEPS] - q.base[r]
        stop_decode(s, p, q, a, r)
    else:
        computed = q.base[r]
        give_back(s, p, q, r, computed)
        drop_prefill(s, a, r)
    # The blocks that this step's plan had taken on top.
    s[FREE] += ceil_div(computed + planned, p.block_size) - ceil_div(computed, p.block_size)
    q.tokens[r] = 0
    q.lost[r] = max(q.lost[r], computed)
    q.preemptions[r] += 1
    q.state[r] = WAITING
    unlink(s, q, r)
    s[WAIT] += 1
    push(a.queue, s[QUEUE], r if p.fcfs else q.rank[r])
    s[QUEUE] += 1


@njit(cache=True)
def first_in_line(s: Any, p: Any, q: Any, a: Any) -> int:
    """The waiting request that the policy serves first; there is one."""
    while s[QUEUE] > 0:
        r = a.queue[0] if p.fcfs else q.ranked[a.queue[0]]
        if q.state[r] == WAITING:
            return r  # fcfs: the preempted came before everybody who has not run
        pop(a.queue, s[QUEUE])
        s[QUEUE] -= 1
    while q.state[s[LINE]] != WAITING:
        s[LINE] += 1
    return s[LINE]


# ------------------------------------------------------------------------------ parts of a step


@njit(cache=True)
def walk(s: Any, p: Any, q: Any, a: Any, chunk: int) -> tuple[int, int, int, int]:
    """Plan the running one by one, in the order in which they are served, where blocks or the
    decode budget do not suffice. Returns decodes, tokens that they read, preemptions, and what is
    left of the prefill budget."""
    running = s[DECODING] + s[PREFILLING]
    order = np.empty(running, np.int64)
    count = 0
    for turn in range(2 if p.decode_first else 1):
        r = s[HEAD]
        while r >= 0:
            if not p.decode_first or (q.state[r] == DECODE) == (turn == 0):
                order[count] = r
                count += 1
            r = q.after[r]
    decode_left, prefill_left = p.budget, p.prefill_budget
    preempted = 0
    for i in range(running):
        r = order[i]
        if q.state[r] == WAITING:
            continue
        decoding = q.state[r] == DECODE
        left = decode_left if decoding or p.shared else prefill_left
        if decoding:
            computed, tokens = s[STEPS] - q.base[r], 1
        else:
            computed = q.base[r]
            tokens = min(q.prompt[r] + q.output[r] - computed, min(chunk, left))
        if tokens <= 0 or tokens > left:
            continue
        if p.memory and not p.reserve:
            size = p.block_size
            needed = ceil_div(computed + tokens, size) - ceil_div(computed, size)
            while needed > s[FREE]:
                victim, worst = -1, -1
                other = s[HEAD]
                while other >= 0:
                    rank = other if p.fcfs else q.rank[other]
                    if rank > worst:
                        victim, worst = other, rank
                    other = q.after[other]
                if q.state[victim] == DECODE or p.shared:
                    decode_left += q.tokens[victim]
                else:
                    prefill_left += q.tokens[victim]
                preempt(s, p, q, a, victim)
                preempted += 1
                if victim == r:
                    break
            if q.state[r] == WAITING:
                break
            s[FREE] -= needed
        q.tokens[r] = tokens
        if decoding or p.shared:
            decode_left -= tokens
        else:
            prefill_left -= tokens
    decodes = reads = 0
    r = s[HEAD]
    while r >= 0:
        if q.state[r] == DECODE:
            if q.tokens[r]:
                decodes += 1
                reads += s[STEPS] - q.base[r]
                q.tokens[r] = 0
            else:  # it misses this step: its clock stands still
                settle(s, q, a, r)
                make_fresh(s, q, a, r)
                q.tokens[r] = -1
                a.edge[q.base[r] % p.block_size] -= 1
                q.base[r] += 1
                a.edge[q.base[r] % p.block_size] += 1
        r = q.after[r]
    return decodes, reads, preempted, decode_left if p.shared else prefill_left


@njit(cache=True)
def plan_prefills(s: Any, p: Any, q: Any, a: Any, chunk: int, left: int) -> tuple[int, int]:
    """Plan the begun prefills; what is left of the budget, and the blocks that they need."""
    needed = 0
    for i in range(s[PREFILLING]):
        r = a.prefilling[i]
        computed = q.base[r]
        tokens = max(0, min(q.prompt[r] + q.output[r] - computed, min(chunk, left)))
        q.tokens[r] = tokens
        left -= tokens
        needed += ceil_div(computed + tokens, p.block_size) - ceil_div(computed, p.block_size)
    return left, needed


@njit(cache=True)
def admit(s: Any, p: Any, q: Any, a: Any, chunk: int, left: int) -> int:
    """Let waiting requests join while they fit; returns what is left of the budget."""
    while s[WAIT] > 0 and left > 0 and s[DECODING] + s[PREFILLING] < p.seqs:
        r = first_in_line(s, p, q, a)
        known = q.prompt[r] + q.output[r]
        tokens = min(known, chunk)
        if p.chunked:
            tokens = min(tokens, left)
        if tokens > left:
            break
        if p.memory:
            if p.reserve:
                needed = ceil_div(q.prompt[r] + q.most[r] - p.unsampled, p.block_size)
                fit = needed
            else:
                needed = ceil_div(tokens, p.block_size)
                fit = ceil_div(known, p.block_size) if p.whole_prompt else needed
            if max(needed, fit) > s[FREE]:
                break
            s[FREE] -= needed
        if s[QUEUE] > 0:
            pop(a.queue, s[QUEUE])
            s[QUEUE] -= 1
        else:
            s[LINE] += 1
        s[WAIT] -= 1
        q.state[r] = PREFILL
        q.base[r] = 0
        q.tokens[r] = tokens
        a.prefilling[s[PREFILLING]] = r
        s[PREFILLING] += 1
        join(s, q, r)
        left -= tokens
        if q.admitted[r] < 0:
            q.admitted[r] = s[NOW]
    return left


@njit(cache=True)
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


@njit(cache=True)
def gaps_of_their_own(s: Any, q: Any, a: Any, end: int) -> None:
    """Tokens at `end` for those whose gap is their own, if they were in the step, which the clock
    has not counted yet."""
    kept = 0
    for i in range(s[FRESH]):
        r = a.fresh[i]
        if not q.fresh[r]:
            continue
        if q.tokens[r] < 0:  # it missed the step
            q.tokens[r] = 0
            a.fresh[kept] = r
            kept += 1
            continue
        token(s, q, r, end)
        q.since[r] = s[STEPS] + 1
        q.fresh[r] = False
    s[FRESH] = kept


@njit(cache=True)
def one_step(s: Any, p: Any, q: Any, a: Any, decodes: int, reads: int) -> bool:
    """Run the planned step; False if it would take too long for int64."""
    prefill = pairs = 0
    size = decodes
    for i in range(s[PREFILLING]):
        r = a.prefilling[i]
        tokens = q.tokens[r]
        if tokens > 0:
            size += 1
            prefill += tokens
            pairs += tokens * q.base[r] + tokens * (tokens + 1) // 2
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
    gaps_of_their_own(s, q, a, end)
    s[STEPS] += 1
    s[CACHED] += decodes
    if s[DECODING] > 0:
        push_gap(s, a, end - s[ENDED])
    s[ENDED] = end
    kept = 0
    for i in range(s[PREFILLING]):
        r = a.prefilling[i]
        tokens = q.tokens[r]
        q.tokens[r] = 0
        computed = q.base[r] + tokens
        again = min(computed, q.lost[r]) - q.base[r]
        if again > 0:
            q.recomputed[r] += again
        q.base[r] = computed
        if computed < q.prompt[r] + q.output[r]:
            a.prefilling[kept] = r
            kept += 1
            continue
        begin_decode(s, p, q, a, r)
        q.since[r] = s[STEPS]
        if p.unsampled:
            token(s, q, r, end)
        else:
            make_fresh(s, q, a, r)
    s[PREFILLING] = kept
    return True


@njit(cache=True)
def ticks_of(steps: int, first: int, growth: int) -> int:
    """Ticks of so many steps of which each is `growth` longer than the one before."""
    return steps * first + growth * (steps * (steps - 1) // 2)


@njit(cache=True)
def steps_until(ticks: int, most: int, first: int, growth: int) -> int:
    """The least steps that take at least so many ticks, `most` if they don't."""
    if ticks_of(most, first, growth) < ticks:
        return most
    low, high = 1, most
    while low < high:
        middle = (low + high) >> 1
        if ticks_of(middle, first, growth) >= ticks:
            high = middle
        else:
            low = middle + 1
    return low


@njit(cache=True)
def leap(s: Any, p: Any, q: Any, a: Any, left: int) -> None:
    """Run the planned step, in which all decode and nobody else does anything, and as many like it
    as follow."""
    decoding = s[DECODING]
    first = p.fixed + p.per_decode * decoding + p.per_kv_token * s[CACHED]
    growth = p.per_kv_token * decoding
    steps = (a.ends[0] >> 32) - s[STEPS]
    while steps > 1 and float(steps) * first + 0.5 * growth * steps * steps > 4e18:
        steps >>= 1
    # Whoever arrives matters if there is room for them, and nobody before them waits for it.
    if s[NEXT] < len(q.arrival) and decoding < p.seqs and left > 0 and not (p.fcfs and s[WAIT]):
        steps = steps_until(q.arrival[s[NEXT]] - s[NOW], steps, first, growth)
    if s[DEADLINES] < len(q.late):
        steps = steps_until(q.late_at[s[DEADLINES]] - s[NOW], steps, first, growth)
    if p.memory and not p.reserve:
        # The first step has its blocks. In block_size steps every request takes one.
        size, free, done = p.block_size, s[FREE], 1
        rounds = min((steps - 1) // size, free // decoding)
        free -= rounds * decoding
        done += rounds * size
        while done < steps and a.edge[(s[STEPS] + done) % size] <= free:
            free -= a.edge[(s[STEPS] + done) % size]
            done += 1
        steps = done
        if steps > 1:  # after the last step somebody may give blocks back: look at the one before
            s[LEAST_FREE] = min(s[LEAST_FREE], free + a.edge[(s[STEPS] + steps - 1) % size])
        s[FREE] = free
    busy = ticks_of(steps, first, growth)
    if s[FRESH]:
        gaps_of_their_own(s, q, a, s[NOW] + first)
    count(s, steps, busy, 0, decoding, decoding)
    s[STEPS] += steps
    s[CACHED] += steps * decoding
    s[ENDED] = s[NOW] + busy
    push_gap(s, a, first + growth * (steps - 1))


@njit(cache=True, nogil=True)
def advance(s: Any, p: Any, q: Any, a: Any, events: int) -> int:
    """Run up to so many changes of state; says how it ended."""
    total = len(q.arrival)
    for _ in range(events):
        # Who is here.
        if s[WAIT] + s[DECODING] + s[PREFILLING] == 0:
            if s[NEXT] == total:
                return DONE
            s[NOW] = max(s[NOW], q.arrival[s[NEXT]])
        while s[NEXT] < total and q.arrival[s[NEXT]] <= s[NOW]:
            r = s[NEXT]
            s[NEXT] += 1
            if q.rejected[r]:
                q.state[r] = REJECTED
                s[LEFT] += 1
                continue
            q.state[r] = WAITING
            s[WAIT] += 1
            if not p.fcfs:
                push(a.queue, s[QUEUE], q.rank[r])
                s[QUEUE] += 1
        while s[DEADLINES] < len(q.late) and q.late_at[s[DEADLINES]] <= s[NOW]:
            r = q.late[s[DEADLINES]]
            s[DEADLINES] += 1
            if WAITING <= q.state[r] <= DECODE:
                abort(s, p, q, a, r)
        if s[WAIT] + s[DECODING] + s[PREFILLING] == 0:
            continue
        if s[NOW] > LATEST or s[STEPS] > MOST_STEPS:
            return TOO_LONG
        if s[GAPS] >= len(a.gap) - 1:
            return GAPS_FULL

        # Who runs.
        alone = s[WAIT] + s[DECODING] + s[PREFILLING] == 1
        chunk = ENDLESS if alone else p.threshold
        decodes, reads, preempted = s[DECODING], s[CACHED], 0
        short = decodes > p.budget
        if not short:
            left = p.budget - decodes if p.shared else p.prefill_budget
            needed = 0
            if s[PREFILLING]:
                left, needed = plan_prefills(s, p, q, a, chunk, left)
            if p.memory and not p.reserve:
                needed += a.edge[s[STEPS] % p.block_size]
                short = needed > s[FREE]
                if not short:
                    s[FREE] -= needed
        if short:
            for i in range(s[PREFILLING]):
                q.tokens[a.prefilling[i]] = 0
            decodes, reads, preempted, left = walk(s, p, q, a, chunk)
        if not preempted:
            left = admit(s, p, q, a, chunk, left)

        # Run it.
        if short or s[PREFILLING]:
            if not one_step(s, p, q, a, decodes, reads):
                return TOO_LONG
        else:
            while True:  # the end of somebody who is there, at the clock at which it comes
                entry = a.ends[0]
                r = entry & 0xFFFFFFFF
                at = end_clock(q, p, r)
                if q.state[r] == DECODE and entry >> 32 == at:
                    break
                pop(a.ends, s[ENDS])
                s[ENDS] -= 1
                if q.state[r] == DECODE and entry >> 32 < at:
                    push(a.ends, s[ENDS], at << 32 | r)
                    s[ENDS] += 1
            leap(s, p, q, a, left)
        while s[ENDS] > 0 and a.ends[0] >> 32 <= s[STEPS]:
            entry = a.ends[0]
            r = entry & 0xFFFFFFFF
            pop(a.ends, s[ENDS])
            s[ENDS] -= 1
            if q.state[r] != DECODE:
                continue
            at = end_clock(q, p, r)
            if at <= s[STEPS]:
                finish(s, p, q, a, r)
            elif entry >> 32 < at:
                push(a.ends, s[ENDS], at << 32 | r)
                s[ENDS] += 1
        s[LEAST_FREE] = min(s[LEAST_FREE], s[FREE])
        s[NOW] = s[ENDED]
    return GOING


@njit(cache=True)
def settle_all(s: Any, p: Any, q: Any, a: Any) -> None:
    """Note the tokens so far of those who still decode, where a run was cut short."""
    r = s[HEAD]
    while r >= 0:
        if q.state[r] == DECODE:
            settle(s, q, a, r)
            q.output[r] = s[STEPS] - q.base[r] - q.prompt[r] + p.unsampled
        r = q.after[r]
