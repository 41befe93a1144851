"""The first output token comes with the prefill, as in real engines."""

from collections import deque


class Scheduler:
    def __init__(self, capacity):
        self.capacity = capacity
        self.waiting = deque()
        self.running = deque()

    def add_request(self, request_id, prompt_tokens, output_tokens):
        if prompt_tokens > self.capacity:
            raise ValueError("too many prompt tokens")
        self.waiting.append({"id": request_id, "prompt": prompt_tokens, "left": output_tokens})

    def has_work(self):
        return bool(self.waiting) or bool(self.running)

    def step(self):
        batch = list(self.running)
        room = self.capacity - len(batch)
        prefill = []
        while self.waiting and self.waiting[0]["prompt"] <= room:
            request = self.waiting.popleft()
            room -= request["prompt"]
            self.running.append(request)
            prefill.append(request)
        finished = []
        for request in batch + prefill:
            request["left"] -= 1
            if request["left"] == 0:
                finished.append(request)
                self.running.remove(request)
        return {
            "decode": [request["id"] for request in batch],
            "prefill": [request["id"] for request in prefill],
            "finished": [request["id"] for request in finished],
        }
