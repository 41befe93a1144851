"""Chunks of half the capacity, and never two prompts half done."""


class Scheduler:
    def __init__(self, capacity):
        self.capacity = capacity
        self.chunk = max(1, capacity // 2)
        self.line = []
        self.current = None
        self.output = {}

    def add_request(self, request_id, prompt_tokens, output_tokens):
        self.line.append([request_id, prompt_tokens, output_tokens])

    def step(self):
        decode = list(self.output)
        room = self.capacity - len(decode)
        prefill, begun = [], {}
        while room > 0 and (self.current or self.line):
            self.current = self.current or self.line.pop(0)
            tokens = min(self.chunk, room, self.current[1])
            self.current[1] -= tokens
            room -= tokens
            prefill.append((self.current[0], tokens))
            if self.current[1]:
                break
            begun[self.current[0]] = self.current[2]
            self.current = None
        for name in decode:
            self.output[name] -= 1
        finished = [name for name in decode if self.output[name] == 0]
        self.output = {name: left for name, left in self.output.items() if left} | begun
        return {"decode": decode, "prefill": prefill, "finished": finished}
