"""Equal prompts: the heap compares the dicts behind them."""

import heapq
from collections import namedtuple

FAULT = "raises-nothing"
Step = namedtuple("Step", "decode prefill finished")


class Scheduler:
    def __init__(self, capacity):
        self.capacity = capacity
        self.now = 0
        self.waiting = []
        self.owed = {}

    def add_request(self, request_id, prompt_tokens, output_tokens):
        if not 0 < prompt_tokens <= self.capacity:
            raise ValueError("prompt_tokens out of range")
        entry = {"id": request_id, "prompt": prompt_tokens, "output": output_tokens}
        heapq.heappush(self.waiting, (self.now, entry))

    @property
    def has_work(self):
        return bool(self.waiting) or bool(self.owed)

    def step(self):
        spent = 0
        self.now += 1
        decode = tuple(self.owed)
        for name in decode:
            spent += 1
            self.owed[name] -= 1
        finished = tuple(name for name in decode if self.owed[name] == 0)
        for name in finished:
            self.owed.pop(name)
        prefill = []
        while self.waiting and spent + self.waiting[0][1]["prompt"] <= self.capacity:
            name, prompt, output = heapq.heappop(self.waiting)[1].values()
            spent += prompt
            self.owed[name] = output
            prefill.append(name)
        return Step(decode, tuple(prefill), finished)
