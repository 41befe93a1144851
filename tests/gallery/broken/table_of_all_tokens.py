"""Reserves a table for every token that it could ever have to hold."""

import heapq
import itertools
from collections import namedtuple

FAULT = "within-memory"
Step = namedtuple("Step", "decode prefill finished")


class Scheduler:
    def __init__(self, capacity):
        self.capacity = capacity
        self.ticket = itertools.count()
        self.waiting = []
        self.owed = {}
        self.table = bytearray(10 * 2**30)

    def add_request(self, request_id, prompt_tokens, output_tokens):
        if not 0 < prompt_tokens <= self.capacity:
            raise ValueError("prompt_tokens out of range")
        heapq.heappush(self.waiting, (next(self.ticket), request_id, prompt_tokens, output_tokens))

    @property
    def has_work(self):
        return bool(self.waiting) or bool(self.owed)

    def step(self):
        spent = 0
        decode = tuple(self.owed)
        for name in decode:
            spent += 1
            self.owed[name] -= 1
        finished = tuple(name for name in decode if self.owed[name] == 0)
        for name in finished:
            self.owed.pop(name)
        prefill = []
        while self.waiting and spent + self.waiting[0][2] <= self.capacity:
            _, name, prompt, output = heapq.heappop(self.waiting)
            spent += prompt
            self.owed[name] = output
            prefill.append(name)
        return Step(decode, tuple(prefill), finished)
