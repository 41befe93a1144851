"""Who does not fit is not put back."""

from collections import deque

FAULT = "every-request-finishes"


class Scheduler:
    def __init__(self, capacity):
        self.capacity = capacity
        self.ring = deque()

    def add_request(self, request_id, prompt_tokens, output_tokens):
        if prompt_tokens > self.capacity:
            raise ValueError("too long")
        self.ring.append((request_id, prompt_tokens, output_tokens))

    def step(self):
        decode, prefill, finished = [], [], []
        left = self.capacity - sum(1 for entry in self.ring if entry[1] == 0)
        for _ in range(len(self.ring)):
            name, prompt, output = self.ring.popleft()
            if prompt == 0:
                decode.append(name)
                output -= 1
            elif prompt <= left:
                left -= prompt
                prefill.append(name)
                prompt = 0
            else:
                continue
            if output:
                self.ring.append((name, prompt, output))
            else:
                finished.append(name)
        return {"decode": decode, "prefill": prefill, "finished": finished}

    def has_work(self):
        return len(self.ring) > 0
