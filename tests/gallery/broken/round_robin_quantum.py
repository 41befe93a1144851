"""After three tokens a request goes to the back and sits out one step."""

from collections import deque

FAULT = "decodes-go-first"


class Scheduler:
    def __init__(self, capacity):
        self.capacity = capacity
        self.ring = deque()
        self.rested = set()

    def add_request(self, request_id, prompt_tokens, output_tokens):
        if prompt_tokens > self.capacity:
            raise ValueError("too long")
        self.ring.append((request_id, prompt_tokens, output_tokens))

    def step(self):
        decode, prefill, finished = [], [], []
        left = self.capacity - sum(1 for entry in self.ring if entry[1] == 0)
        blocked = False
        for _ in range(len(self.ring)):
            name, prompt, output = self.ring.popleft()
            if prompt == 0 and output % 4 == 3 and name not in self.rested:
                self.rested.add(name)
            elif prompt == 0:
                self.rested.discard(name)
                decode.append(name)
                output -= 1
            elif not blocked and prompt <= left:
                left -= prompt
                prefill.append(name)
                prompt = 0
            else:
                blocked = True
            if output:
                self.ring.append((name, prompt, output))
            else:
                finished.append(name)
        return {"decode": decode, "prefill": prefill, "finished": finished}

    def has_work(self):
        return len(self.ring) > 0
