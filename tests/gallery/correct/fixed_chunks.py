"""Chunks of at most four tokens, of several prompts in one step."""

from collections import OrderedDict

CHUNK = 4


class Scheduler:
    def __init__(self, capacity):
        self.capacity = capacity
        self.requests = OrderedDict()

    def add_request(self, request_id, prompt_tokens, output_tokens):
        self.requests[request_id] = {"todo": prompt_tokens, "left": output_tokens}

    def step(self):
        room = self.capacity
        decode, prefill, finished = [], [], []
        for name, request in self.requests.items():
            if request["todo"] == 0:
                room -= 1
                decode.append(name)
        for name, request in self.requests.items():
            tokens = min(request["todo"], CHUNK, room)
            if tokens > 0:
                room -= tokens
                prefill.append([name, tokens])
        for name, tokens in prefill:
            self.requests[name]["todo"] -= tokens
        for name in decode:
            self.requests[name]["left"] -= 1
            if self.requests[name]["left"] == 0:
                finished.append(name)
                self.requests.pop(name)
        return {"decode": decode, "prefill": prefill, "finished": finished}
