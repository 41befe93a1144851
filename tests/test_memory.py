"""KV memory: blocks, preemption, prefix caching, and faults that real engines are reported for."""

from __future__ import annotations

from typing import Any

import pytest
from driver import Driver
from hypothesis import given
from hypothesis import strategies as st
from strategies import Asked

from tokenyard.core import FinishReason, Request, RequestError, Rules, Scheduler, State
from tokenyard.core.blocks import BlockPool, PrefixCachingBlockPool, block_keys


def asked(number: int, prompt: int, output: int, **more: Any) -> Asked:
    return Asked(f"r{number}", prompt, output, 0, output, **more)


def driven(rules: Rules, *requests: Asked) -> Driver:
    driver = Driver(rules)
    for request in requests:
        driver.submit(request)
    return driver


def reasons(driver: Driver) -> list[FinishReason | None]:
    return [request.finish_reason for request in driver.submitted]


class TestFaultsOfRealEngines:
    """Each hung an engine, or broke a promise of it. None may here."""

    def test_a_prompt_longer_than_the_budget_without_chunking_is_refused(self) -> None:
        rules = Rules(max_num_batched_tokens=2048, enable_chunked_prefill=False)
        request = Request("r0", 2049, 1)
        reason = Scheduler(rules).submit(request)
        assert reason is not None
        assert "2049" in reason
        assert "2048" in reason

    def test_prompts_that_need_more_blocks_than_exist_are_each_refused(self) -> None:
        # ceil(1002 / 16) = 63 > 49.
        driver = driven(Rules(num_blocks=49), *(asked(i, 1002, 1) for i in range(5)))
        assert reasons(driver) == [FinishReason.REJECTED] * 5
        assert not driver.scheduler.requests

    def test_a_request_that_would_outgrow_the_memory_alone_is_refused(self) -> None:
        # The prompt fits into one block of 16; 10 + 24 - 1 = 33 tokens need 3 of 2.
        driver = driven(Rules(num_blocks=2), asked(0, 10, 24))
        assert reasons(driver) == [FinishReason.REJECTED]

    def test_a_request_that_just_fits_runs_alone(self) -> None:
        # 10 + 23 - 1 = 32 tokens are exactly the 2 blocks.
        driver = driven(Rules(num_blocks=2), asked(0, 10, 23))
        driver.finish()
        assert reasons(driver) == [FinishReason.LENGTH]

    def test_a_budget_smaller_than_the_number_of_running_requests(self) -> None:
        rules = Rules(max_num_batched_tokens=2, prefill_token_budget=8, max_num_seqs=9)
        driver = driven(rules, *(asked(i, 1, 3) for i in range(8)))
        driver.finish()

    def test_memory_full_of_half_prefilled_prompts(self) -> None:
        # 17 blocks of 4 and eight prompts of 40 tokens, 5 tokens each a step: without reserving
        # whole prompts all would begin, and 17 blocks hold 68 of their 320 tokens.
        rules = Rules(
            num_blocks=17,
            block_size=4,
            max_num_seqs=32,
            max_num_batched_tokens=64,
            long_prefill_token_threshold=5,
            scheduler_reserve_full_isl=False,
        )
        driver = driven(rules, *(asked(i, 40, 4) for i in range(8)))
        driver.step()
        assert len(driver.scheduler.running) == 8
        driver.finish()
        assert sum(request.preemptions for request in driver.submitted) > 0

    def test_a_prompt_whose_first_chunk_alone_fits_is_not_admitted(self) -> None:
        # 4 blocks of 4. r0 holds 2 (5 tokens), so 2 are free: r1's chunk would fit, its 12 not.
        rules = Rules(num_blocks=4, block_size=4, max_num_batched_tokens=8)
        driver = driven(rules, asked(0, 5, 4))
        driver.step()
        driver.submit(asked(1, 12, 1))
        batch = driver.step()
        assert [r.id for r in batch.decode] == ["r0"]
        assert not batch.prefill
        assert not batch.preempted
        driver.finish()
        assert sum(request.preemptions for request in driver.submitted) == 0

    def test_it_is_admitted_when_the_rule_says_first_chunk_only(self) -> None:
        # One token of the budget of 8 is r0's decode: the chunk is 7.
        rules = Rules(
            num_blocks=4, block_size=4, max_num_batched_tokens=8, scheduler_reserve_full_isl=False
        )
        driver = driven(rules, asked(0, 5, 4))
        driver.step()
        driver.submit(asked(1, 12, 1))
        assert [(r.id, tokens) for r, tokens in driver.step().prefill] == [("r1", 7)]
        driver.finish()

    def test_no_request_is_visited_after_it_was_evicted(self) -> None:
        # Four requests of one full block each in 5 blocks of 4. In step 1 each needs a second one:
        # r0 takes the fifth; r1 evicts r3, r2's turn comes: nothing is free, it is the last in line
        # itself and gives up its own. One block stays free: r2's.
        rules = Rules(num_blocks=5, block_size=4)
        driver = driven(rules, *(asked(i, 4, 6) for i in range(4)))
        driver.step()
        batch = driver.step()
        assert [r.id for r in batch.decode] == ["r0", "r1"]
        assert [r.id for r in batch.preempted] == ["r3", "r2"]
        assert [r.id for r in driver.scheduler.waiting] == ["r2", "r3"], (
            "back to the head, in order"
        )
        driver.finish()

    def test_the_room_in_the_last_block_counts(self) -> None:
        # 2 blocks of 4, r0 has 5 tokens in both of them: three more need nothing new.
        rules = Rules(num_blocks=2, block_size=4)
        driver = driven(rules, asked(0, 5, 4))
        driver.finish()
        assert driver.submitted[0].preemptions == 0

    def test_a_higher_priority_evicts_the_lowest(self) -> None:
        # 4 blocks of 4, each request holds one full block. By priority r1 and r2 are admitted
        # before r0. Step 1: r1 takes the last free block, r2 needs one: r0 gives up its own.
        rules = Rules(num_blocks=4, block_size=4, policy="priority", max_num_batched_tokens=12)
        driver = driven(rules, asked(0, 4, 4, priority=9))
        driver.submit(asked(1, 4, 4, priority=1))
        driver.submit(asked(2, 4, 4, priority=1))
        assert [r.id for r, _ in driver.step().prefill] == ["r1", "r2", "r0"]
        batch = driver.step()
        assert [r.id for r in batch.preempted] == ["r0"]
        assert [r.id for r in batch.decode] == ["r1", "r2"]
        driver.finish()

    def test_one_evicted_in_the_step_that_had_planned_it_leaves_the_plan(self) -> None:
        # r0 was admitted first, so it is in the plan of the step when r1 needs its blocks.
        rules = Rules(num_blocks=3, block_size=2, policy="priority")
        driver = driven(rules, asked(0, 2, 4, priority=9))
        driver.step()
        driver.submit(asked(1, 2, 4, priority=1))
        driver.step()  # r0: 3 tokens, 2 blocks; r1: 2 tokens, 1 block
        batch = driver.step()  # r0's fourth needs nothing and is planned; r1's third needs a block
        assert [r.id for r in batch.preempted] == ["r0"]
        assert [r.id for r in batch.decode] == ["r1"]
        driver.finish()

    def test_the_tokens_of_one_evicted_in_the_plan_are_free_again(self) -> None:
        # 9 blocks of 2, budget 4, chunks of 2 unless alone. r0 (the lowest priority) goes on by 2 a
        # step: 4, 6, 8, 10 tokens after steps 0 to 3. r1: prompt 2 in step 1, then a decode a step:
        # 3 tokens after step 2, 4 after step 3. r2 gets what is left: 1 in step 2, 1 in step 3.
        # Blocks: 5 + 2 + 1 = 8. Step 4: r0 is planned with 2 tokens and the ninth block; r1's fifth
        # token needs a block, r0 is evicted. 4 - 1 = 3 are left, so r2 takes its chunk of 2.
        rules = Rules(
            num_blocks=9,
            block_size=2,
            max_num_batched_tokens=4,
            long_prefill_token_threshold=2,
            policy="priority",
            scheduler_reserve_full_isl=False,
        )
        driver = driven(rules, asked(0, 18, 1, priority=9))
        driver.step()
        driver.submit(asked(1, 2, 9, priority=1))
        driver.step()
        driver.submit(asked(2, 9, 1, priority=1))
        driver.step()
        driver.step()
        assert driver.scheduler.blocks.free == 1
        batch = driver.step()
        assert [r.id for r in batch.preempted] == ["r0"]
        assert [r.id for r in batch.decode] == ["r1"]
        assert [(r.id, tokens) for r, tokens in batch.prefill] == [("r2", 2)]
        driver.finish()

    def test_a_request_whose_recompute_would_not_fit_a_step_whole_is_refused(self) -> None:
        rules = Rules(max_num_batched_tokens=16, enable_chunked_prefill=False, num_blocks=100)
        driver = driven(rules, asked(0, 10, 8), asked(1, 10, 7))
        # 10 + 8 - 1 = 17 > 16; 10 + 7 - 1 = 16.
        assert reasons(driver) == [FinishReason.REJECTED, None]
        driver.finish()

    def test_an_abort_of_a_preempted_request(self) -> None:
        rules = Rules(num_blocks=5, block_size=4)
        driver = driven(rules, *(asked(i, 4, 6) for i in range(4)))
        driver.step()
        driver.step()
        driver.abort("r2")
        driver.finish()
        assert driver.submitted[2].output_tokens == 1, "its output is kept"

    def test_two_identical_prompts_in_one_step(self) -> None:
        # Prompt of 9 in blocks of 4: the second finds two full blocks of the first, 1 is computed.
        rules = Rules(num_blocks=20, block_size=4, enable_prefix_caching=True)
        same = tuple(range(9))
        driver = driven(rules, asked(0, 9, 2, token_ids=same), asked(1, 9, 2, token_ids=same))
        batch = driver.step()
        assert [(r.id, tokens) for r, tokens in batch.prefill] == [("r0", 9), ("r1", 1)]
        assert [(r.id, tokens) for r, tokens in batch.cached] == [("r1", 8)]
        assert driver.scheduler.blocks.free == 20 - 4  # two shared, one more each
        driver.finish()

    def test_a_hit_of_the_whole_prompt_leaves_a_token_to_compute(self) -> None:
        # Prompt of 8: both its blocks are cached, but (8 - 1) // 4 = 1 is hit, so 4 are computed.
        rules = Rules(num_blocks=20, block_size=4, enable_prefix_caching=True)
        same = tuple(range(8))
        driver = driven(rules, asked(0, 8, 1, token_ids=same))
        driver.finish()
        driver.submit(asked(1, 8, 1, token_ids=same))
        batch = driver.step()
        assert [(r.id, tokens) for r, tokens in batch.cached] == [("r1", 4)]
        assert [(r.id, tokens) for r, tokens in batch.prefill] == [("r1", 4)]


class TestPreemption:
    def test_a_preempted_request_computes_its_output_again_and_goes_on(self) -> None:
        # 5 blocks of 4, see above: r3 and r2 have one token each when they are evicted in step 1,
        # so each prefills 4 + 1 = 5 tokens when it resumes, and ends with exactly its 6.
        rules = Rules(num_blocks=5, block_size=4)
        driver = driven(rules, *(asked(i, 4, 6) for i in range(4)))
        driver.step()
        driver.step()
        resumed: dict[str, int] = {}
        while driver.scheduler.requests:
            for request, tokens in driver.step().prefill:
                resumed.setdefault(request.id, tokens)
        assert resumed["r2"] == resumed["r3"] == 5
        assert [request.output_tokens for request in driver.submitted] == [6, 6, 6, 6]

    def test_nobody_is_admitted_in_a_step_that_preempted(self) -> None:
        rules = Rules(num_blocks=5, block_size=4)
        driver = driven(rules, *(asked(i, 4, 6) for i in range(4)))
        driver.step()
        driver.submit(asked(9, 1, 1))  # one block would be free for it after r2 gave up
        batch = driver.step()
        assert batch.preempted
        assert driver.scheduler.blocks.free == 1
        assert not batch.prefill

    def test_without_preemption_admission_reserves_prompt_and_output(self) -> None:
        # 4 + 6 - 1 = 9 tokens are 3 blocks of 4: of 7 blocks two requests take 6, the third waits.
        rules = Rules(num_blocks=7, block_size=4, preemption="none")
        driver = driven(rules, *(asked(i, 4, 6) for i in range(3)))
        driver.step()
        assert [r.id for r in driver.scheduler.running] == ["r0", "r1"]
        assert driver.scheduler.blocks.free == 1
        driver.finish()
        assert all(request.preemptions == 0 for request in driver.submitted)

    @pytest.mark.parametrize("policy", ["fcfs", "priority", "sjf"])
    def test_the_last_in_the_policys_order_is_the_victim(self, policy: str) -> None:
        # Three requests of one full block in 4 blocks: the first decode takes the fourth, the next
        # needs a victim. fcfs: the youngest, r2. priority and sjf: r0, which both put last.
        rules = Rules(num_blocks=4, block_size=4, policy=policy)
        driver = driven(
            rules,
            *(asked(i, 4, 5, priority=9 - i, predicted_tokens=9 - i) for i in range(3)),
        )
        driver.step()
        victim = driver.step().preempted[0].id
        assert victim == ("r2" if policy == "fcfs" else "r0")
        driver.finish()


class TestBlockPool:
    @given(st.integers(1, 9), st.integers(0, 60))
    def test_blocks_for_is_the_ceiling(self, block_size: int, tokens: int) -> None:
        pool = BlockPool(Rules(num_blocks=9, block_size=block_size))
        blocks = pool.blocks_for(tokens)
        assert blocks * block_size >= tokens > (blocks - 1) * block_size or tokens == blocks == 0

    def test_a_failed_allocation_changes_nothing(self) -> None:
        pool = BlockPool(Rules(num_blocks=2, block_size=4))
        request = Request("r", 12, 1)
        assert not pool.allocate(request, 9)
        assert (pool.free, request.held) == (2, 0)
        assert not pool.allocate(request, 4, must_fit=12)
        assert (pool.free, request.held) == (2, 0)
        assert pool.allocate(request, 4, hold=8)
        assert (pool.free, request.held) == (0, 2)

    def test_the_block_that_was_free_for_longest_is_forgotten_first(self) -> None:
        # 3 blocks of 2. a (tokens 1 1) then b (2 2), each one full block, are freed in that order;
        # c takes the block without content, d takes a's; b is still found, a is not.
        rules = Rules(num_blocks=3, block_size=2, enable_prefix_caching=True)
        pool = PrefixCachingBlockPool(rules)
        a, b, c, d = (Request(id, 2, 1, token_ids=[n, n]) for n, id in enumerate("abcd", start=1))
        for request in (a, b):
            assert pool.allocate(request, 2)
        for request in (a, b):
            pool.release(request)
        for request in (c, d):
            assert pool.allocate(request, 2)
        again = {id: Request(id, 3, 1, token_ids=[n, n, 0]) for n, id in enumerate("ab", start=1)}
        assert len(pool.lookup(again["a"])) == 0
        assert len(pool.lookup(again["b"])) == 1

    def test_of_a_request_the_later_block_is_forgotten_first(self) -> None:
        rules = Rules(num_blocks=2, block_size=2, enable_prefix_caching=True)
        pool = PrefixCachingBlockPool(rules)
        long = Request("long", 4, 1, token_ids=[1, 2, 3, 4])
        assert pool.allocate(long, 4)
        pool.release(long)
        assert pool.allocate(Request("other", 2, 1, token_ids=[9, 9]), 2)
        assert len(pool.lookup(Request("again", 5, 1, token_ids=[1, 2, 3, 4, 5]))) == 1

    def test_a_found_block_that_nobody_holds_counts_against_the_free_ones(self) -> None:
        # 2 blocks of 2, both cached and free. A prompt of 5 with both needs a third.
        rules = Rules(num_blocks=2, block_size=2, enable_prefix_caching=True)
        pool = PrefixCachingBlockPool(rules)
        first = Request("first", 4, 1, token_ids=[1, 2, 3, 4])
        assert pool.allocate(first, 4)
        pool.release(first)
        longer = Request("longer", 5, 1, token_ids=[1, 2, 3, 4, 5])
        hits = pool.lookup(longer)
        assert len(hits) == 2
        assert not pool.allocate(longer, 5, hits)
        assert (pool.free, longer.held) == (2, 0)


class TestContent:
    """Equal keys mean equal content, and equal content before it."""

    def keys(self, block_size: int, request: Request) -> list[Any]:
        return block_keys(request, request.prompt_tokens // block_size, block_size)

    def test_token_ids_are_chained(self) -> None:
        one = Request("a", 6, 1, token_ids=[1, 2, 3, 4, 5, 6])
        same = Request("b", 6, 1, token_ids=[1, 2, 3, 4, 5, 9])
        other = Request("c", 6, 1, token_ids=[9, 2, 3, 4, 5, 6])
        assert self.keys(2, one)[:2] == self.keys(2, same)[:2]
        assert self.keys(2, one)[2] != self.keys(2, same)[2]
        assert not set(self.keys(2, one)) & set(self.keys(2, other)), "a different beginning"

    def test_hash_ids_of_512_tokens_cover_smaller_blocks(self) -> None:
        # 700 tokens are ids 5 and 6. In blocks of 256: two of id 5; 512 to 768 is not full.
        one = Request("a", 700, 1, hash_ids=[5, 6])
        two = Request("b", 1100, 1, hash_ids=[5, 7, 8])
        assert self.keys(256, one)[:2] == self.keys(256, two)[:2]
        assert len(self.keys(256, one)) == 2
        assert self.keys(256, two)[2] == (7, 2)

    def test_hash_ids_cover_blocks_that_do_not_divide_512(self) -> None:
        # Blocks of 100: number 5 covers tokens 500 to 600, which ids 5 and 6 tell: it is id 6's.
        one = Request("a", 700, 1, hash_ids=[5, 6])
        two = Request("b", 700, 1, hash_ids=[5, 7])
        assert self.keys(100, one)[:5] == self.keys(100, two)[:5]
        assert self.keys(100, one)[5] != self.keys(100, two)[5]

    def test_a_prefix_group_shares_what_both_have(self) -> None:
        one = Request("a", 8, 1, prefix_group="g", prefix_tokens=6)
        two = Request("b", 8, 1, prefix_group="g", prefix_tokens=4)
        assert self.keys(2, one)[:2] == self.keys(2, two)[:2]
        assert self.keys(2, one)[2] != self.keys(2, two)[2]

    def test_what_nobody_told_equals_nothing_else(self) -> None:
        one, two = Request("a", 4, 1), Request("b", 4, 1)
        assert not set(self.keys(2, one)) & set(self.keys(2, two))

    def test_a_preempted_request_finds_its_own_blocks_again(self) -> None:
        # Content that nobody told is still the request's own: 2 full blocks of 2 when it resumes.
        rules = Rules(num_blocks=9, block_size=2, enable_prefix_caching=True)
        pool = PrefixCachingBlockPool(rules)
        request = Request("a", 5, 3)
        assert pool.allocate(request, 5)
        pool.release(request)
        assert len(pool.lookup(request)) == 2


def test_a_token_that_nobody_told_ends_what_is_known_of_the_content() -> None:
    # Prompt of 3, blocks of 2. The first output token is not told, so the second block (prompt
    # token 2 and that output) and all later ones are the request's own, though later are told.
    rules = Rules(num_blocks=9, block_size=2, enable_prefix_caching=True)
    scheduler = Scheduler(rules)
    request = Request("r", 3, 9, token_ids=[1, 2, 3])
    scheduler.submit(request)
    scheduler.commit(scheduler.schedule())
    for _ in range(4):
        scheduler.commit(scheduler.schedule(), tokens={"r": 7})
    assert request.token_ids == [1, 2, 3]
    assert block_keys(request, 3, 2)[1:] == [(request, 1), (request, 2)]


def test_a_token_for_nobody_is_a_clear_error() -> None:
    scheduler = Scheduler(Rules())
    scheduler.submit(Request("r", 3, 9, token_ids=[1, 2, 3]))
    with pytest.raises(RequestError, match="'ghost' is not in the system"):
        scheduler.commit(scheduler.schedule(), tokens={"ghost": 7})


def test_a_decode_that_fills_a_block_makes_it_hittable_in_that_step() -> None:
    # Block of 4, prompt 3, outputs are token 1 (odd counts) and 0: the request's fourth token is
    # its first output. In step 1 it is computed, the block is full, and r1, whose prompt says the
    # same, finds it in that very step.
    rules = Rules(num_blocks=9, block_size=4, enable_prefix_caching=True)
    driver = driven(rules, asked(0, 3, 5, token_ids=(7, 8, 9)))
    driver.step()
    assert driver.submitted[0].token_ids == [7, 8, 9, 1]
    driver.submit(asked(1, 5, 1, token_ids=(7, 8, 9, 1, 5)))
    assert [(r.id, tokens) for r, tokens in driver.step().cached] == [("r1", 4)]
    assert driver.submitted[0].state is State.DECODE
    driver.finish()
