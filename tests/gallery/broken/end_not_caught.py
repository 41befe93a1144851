"""The end of a generator is caught nowhere."""

FAULT = "raises-nothing"


def life(prompt, output):
    yield "prefill", prompt
    for _ in range(output):
        yield "decode", 1


class Scheduler:
    def __init__(self, capacity):
        self.capacity = capacity
        self.lives = {}

    def add_request(self, request_id, prompt_tokens, output_tokens):
        if prompt_tokens > self.capacity:
            raise ValueError("cannot ever run")
        steps = life(prompt_tokens, output_tokens)
        self.lives[request_id] = [steps, next(steps)]

    def step(self):
        ran = {"decode": [], "prefill": [], "finished": []}
        left = self.capacity
        decoding = [name for name, (_, wish) in self.lives.items() if wish[0] == "decode"]
        waiting = [name for name, (_, wish) in self.lives.items() if wish[0] == "prefill"]
        for name in decoding + waiting:
            kind, cost = self.lives[name][1]
            if cost > left:
                break
            left -= cost
            ran[kind].append(name)
        for name in ran["decode"] + ran["prefill"]:
            entry = self.lives[name]
            entry[1] = next(entry[0])
        return ran
