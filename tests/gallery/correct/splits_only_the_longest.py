"""Whole prompts, but for those that no step can hold: these alone are split."""


class Scheduler:
    def __init__(self, capacity):
        self.capacity = capacity
        self.queue = []

    def add_request(self, request_id, prompt_tokens, output_tokens):
        self.queue.append({"id": request_id, "todo": prompt_tokens, "output": output_tokens})
        self.queue[-1]["split"] = prompt_tokens > self.capacity

    def has_work(self):
        return self.queue != []

    def step(self):
        decode = [entry for entry in self.queue if not entry["todo"]]
        room = self.capacity - len(decode)
        prefill = []
        for entry in [entry for entry in self.queue if entry["todo"]]:
            tokens = min(entry["todo"], room) if entry["split"] else entry["todo"]
            if not 0 < tokens <= room:
                break
            entry["todo"] -= tokens
            room -= tokens
            prefill.append((entry["id"], tokens))
        for entry in decode:
            entry["output"] -= 1
        finished = [entry["id"] for entry in decode if entry["output"] == 0]
        self.queue = [entry for entry in self.queue if entry["output"]]
        return {
            "decode": [entry["id"] for entry in decode],
            "prefill": prefill,
            "finished": finished,
        }
