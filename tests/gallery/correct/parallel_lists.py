"""Parallel lists and indices; nothing is ever removed, a cursor moves on."""


class Scheduler:
    def __init__(self, capacity):
        self.capacity = capacity
        self.names, self.prompts, self.left = [], [], []
        self.cursor = 0  # the first that waits
        self.begun = []

    def add_request(self, request_id, prompt_tokens, output_tokens):
        if prompt_tokens > self.capacity:
            raise ValueError("prompt_tokens > capacity")
        self.names.append(request_id)
        self.prompts.append(prompt_tokens)
        self.left.append(output_tokens)

    def has_work(self):
        return self.cursor < len(self.names) or bool(self.begun)

    def step(self):
        decoded = self.begun
        tokens = len(decoded)
        first = self.cursor
        while self.cursor < len(self.names) and tokens + self.prompts[self.cursor] <= self.capacity:
            tokens += self.prompts[self.cursor]
            self.cursor += 1
        finished = []
        for place in decoded:
            self.left[place] -= 1
            if self.left[place] == 0:
                finished.append(place)
        new = list(range(first, self.cursor))
        self.begun = [place for place in decoded if place not in finished] + new
        return {
            "decode": [self.names[place] for place in decoded],
            "prefill": [self.names[place] for place in new],
            "finished": [self.names[place] for place in finished],
        }
