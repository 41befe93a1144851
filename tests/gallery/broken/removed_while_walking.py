"""The running list is changed while it is walked: one is left out (vLLM issue 49097)."""

from collections import deque

FAULT = "decodes-go-first"


class Scheduler:
    def __init__(self, capacity):
        self.capacity = capacity
        self.waiting = deque()
        self.running = []

    def add_request(self, request_id, prompt_tokens, output_tokens):
        if prompt_tokens > self.capacity:
            raise ValueError(f"prompt of {prompt_tokens} is more than {self.capacity}")
        self.waiting.append([request_id, prompt_tokens, output_tokens])

    def has_work(self):
        return bool(self.waiting or self.running)

    def step(self):
        budget = self.capacity - len(self.running)
        decoded = []
        admitted = []
        while self.waiting and self.waiting[0][1] <= budget:
            request = self.waiting.popleft()
            budget -= request[1]
            admitted.append(request)
        finished = []
        for request in self.running:
            decoded.append(request)
            request[2] -= 1
            if request[2] == 0:
                finished.append(request)
                self.running.remove(request)
        self.running.extend(admitted)
        return {
            "decode": [request[0] for request in decoded],
            "prefill": [request[0] for request in admitted],
            "finished": [request[0] for request in finished],
        }
