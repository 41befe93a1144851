"""KV cache memory, in blocks of a fixed number of tokens, with or without sharing of prefixes."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Hashable, Sequence
from itertools import islice
from typing import cast

from tokenyard.core.request import Request, SchedulerError
from tokenyard.core.rules import Rules

UNBOUNDED = 1 << 62
"""Stands for "as many as you like" where a rule is None."""


def block_pool(rules: Rules) -> BlockPool:
    """The memory that the rules describe."""
    return PrefixCachingBlockPool(rules) if rules.enable_prefix_caching else BlockPool(rules)


class BlockPool:
    """Blocks as a count: each request holds enough for its tokens in the KV cache."""

    def __init__(self, rules: Rules) -> None:
        self.block_size = rules.block_size
        self.bounded = rules.num_blocks is not None
        self.num_blocks = UNBOUNDED if rules.num_blocks is None else rules.num_blocks
        self.free = self.num_blocks

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-tokens // self.block_size)

    def lookup(self, request: Request) -> Sequence[Block]:
        """Cached blocks that hold the beginning of the request's tokens: none without caching."""
        return ()

    def allocate(
        self,
        request: Request,
        tokens: int,
        hits: Sequence[Block] = (),
        hold: int = 0,
        must_fit: int = 0,
    ) -> bool:
        """Give the request blocks for its first `tokens` tokens, of which `hits` are there already.

        `hold`: give it blocks for so many at once, if that is more. False, changing nothing, if the
        blocks are not free, or if those for `must_fit` tokens are not, though they are not taken.
        """
        needed = self.blocks_for(max(tokens, hold)) - request.held
        if max(needed, self.blocks_for(must_fit) - request.held) > self.free:
            return False
        if needed > 0:
            self.free -= needed
            request.held += needed
        return True

    def extend(self, request: Request, tokens: int) -> None:
        """Like `allocate`, for the one more token with which the request's blocks change. The
        caller knows that a block is free."""
        self.free -= 1
        request.held += 1

    def release(self, request: Request) -> None:
        """Take all blocks of a request back."""
        self.free += request.held
        request.held = 0
        if self.free > self.num_blocks:
            raise SchedulerError(f"{self.free} blocks free of {self.num_blocks}")

    def unchanged_decodes(self, request: Request, computed: int) -> int:
        """Decode steps that the request can take from `computed` tokens in the KV cache before its
        blocks change (0: not one)."""
        return request.held * self.block_size - computed if self.bounded else UNBOUNDED


class Block:
    """One block: the key of its content once it is full, and how many requests hold it."""

    __slots__ = ("key", "refs")

    def __init__(self) -> None:
        self.key: Hashable | None = None
        self.refs = 0


class PrefixCachingBlockPool(BlockPool):
    """Blocks shared by content, as in vLLM.

    A full block can be hit from the moment at which it is allocated for the tokens that fill it. A
    free block keeps its content until it is taken; those without content are taken first, then the
    one that has been free for longest. Of a request, later blocks are freed before earlier ones.
    """

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules)
        self._unsampled = rules.unsampled
        self._reusable: dict[Block, None] = {}  # free blocks with content, longest free first
        self._by_key: dict[Hashable, list[Block]] = {}

    def lookup(self, request: Request) -> Sequence[Block]:
        """The longest run of cached blocks from the start of the request's tokens. At least one
        token is left to compute, since somebody has to produce the next one."""
        most = (request.known_tokens - 1) // self.block_size
        hits: list[Block] = []
        for key in islice(block_keys(request, most, self.block_size), most):
            found = self._by_key.get(key)
            if not found:
                break
            hits.append(found[0])
        return hits

    def allocate(
        self,
        request: Request,
        tokens: int,
        hits: Sequence[Block] = (),
        hold: int = 0,
        must_fit: int = 0,
    ) -> bool:
        needed = self.blocks_for(max(tokens, hold)) - len(hits) - request.held
        fit = self.blocks_for(must_fit) - len(hits) - request.held
        revived = sum(1 for block in hits if not block.refs)
        if max(needed, fit) + revived > self.free:
            return False
        for block in hits:
            if not block.refs:
                del self._reusable[block]
            block.refs += 1
        self.free -= revived
        request.blocks.extend(hits)
        if needed > 0:
            request.blocks.extend(self._take() for _ in range(needed))
        request.held = len(request.blocks)
        self._remember(request, min(tokens, request.known_tokens))
        return True

    def extend(self, request: Request, tokens: int) -> None:
        if tokens > request.held * self.block_size:
            request.blocks.append(self._take())
            request.held += 1
        self._remember(request, min(tokens, request.known_tokens))

    def release(self, request: Request) -> None:
        for block in reversed(request.blocks):
            block.refs -= 1
            if block.refs < 0:
                raise SchedulerError(f"a block of request {request.id!r} was freed twice")
            if not block.refs:
                self.free += 1
                if block.key is not None:
                    self._reusable[block] = None
        request.blocks.clear()
        request.held = 0

    def unchanged_decodes(self, request: Request, computed: int) -> int:
        """Blocks change when one is taken, and when one becomes hittable: with the step that
        computes its last token, or with the next one where that token was not known before."""
        if computed == request.held * self.block_size:
            return 0
        return (self.block_size - self._unsampled - computed) % self.block_size

    def _take(self) -> Block:
        """A block to write to: one without content while there is one, else the longest free."""
        if self.free > len(self._reusable):
            block = Block()
        else:
            block = next(iter(self._reusable))
            del self._reusable[block]
            same = self._by_key[block.key]
            same.remove(block)
            if not same:
                del self._by_key[block.key]
            block.key = None
        block.refs = 1
        self.free -= 1
        return block

    def _remember(self, request: Request, tokens: int) -> None:
        """Make the blocks that the request's first `tokens` tokens fill hittable."""
        full = tokens // self.block_size
        keys = block_keys(request, full, self.block_size)
        for place in range(full - 1, -1, -1):
            block = request.blocks[place]
            if block.key is not None:
                break
            block.key = keys[place]
            self._by_key.setdefault(block.key, []).append(block)


def block_keys(request: Request, count: int, block_size: int) -> list[Hashable]:
    """What the request's full blocks hold, each with everything before it: equal keys mean equal
    content. At least the first `count`, which have only known tokens; kept with the request.

    Content that nobody told, as output usually is, equals no other's.
    """
    keys = request.block_keys
    for place in range(len(keys), count):
        end = (place + 1) * block_size
        key: Hashable = (request, place)
        if request.token_ids is not None:
            if end <= len(request.token_ids):
                content = array("q", request.token_ids[end - block_size : end]).tobytes()
                before = cast(bytes, keys[-1]) if keys else b""
                key = hashlib.blake2b(before + content, digest_size=16).digest()
        elif request.hash_ids is not None:
            if end <= request.prompt_tokens:
                key = (request.hash_ids[(end - 1) // request.hash_block_size], place)
        elif request.prefix_group is not None and end <= request.prefix_tokens:
            key = (request.prefix_group, place)
        keys.append(key)
    return keys
