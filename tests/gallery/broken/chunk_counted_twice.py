"""A prompt in chunks is counted twice against the step (SGLang PR 30295)."""

FAULT = "work-conserving"


class Scheduler:
    def __init__(self, capacity):
        self.capacity = capacity
        self.queue = []
        self.prompt = {}
        self.output = {}

    def add_request(self, request_id, prompt_tokens, output_tokens):
        self.queue.append(request_id)
        self.prompt[request_id] = prompt_tokens
        self.output[request_id] = output_tokens

    def has_work(self):
        return bool(self.queue)

    def step(self):
        decode = [name for name in self.queue if self.prompt[name] == 0]
        left = self.capacity - len(decode)
        prefill = []
        for name in self.queue:
            if left == 0:
                break
            if self.prompt[name]:
                tokens = min(self.prompt[name], left)
                self.prompt[name] -= tokens
                left = max(0, left - 2 * tokens)
                prefill.append((name, tokens))
        for name in decode:
            self.output[name] -= 1
        finished = [name for name in decode if self.output[name] == 0]
        self.queue = [name for name in self.queue if name not in finished]
        return {"decode": decode, "prefill": prefill, "finished": finished}
