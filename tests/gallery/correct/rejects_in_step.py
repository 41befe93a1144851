"""Looks at a prompt when its turn comes, and rejects it then; sweeps up a step later."""


class Scheduler:
    def __init__(self, capacity):
        self.capacity = capacity
        self.waiting = []
        self.running = []

    def add_request(self, request_id, prompt_tokens, output_tokens):
        self.waiting.append(
            {"id": request_id, "prompt": prompt_tokens, "output": output_tokens, "done": 0}
        )

    def has_work(self):
        return bool(self.waiting) or bool(self.running)

    def step(self):
        self.running = [entry for entry in self.running if entry["done"] < entry["output"]]
        ran = {"decode": [], "prefill": [], "finished": [], "rejected": []}
        budget = self.capacity
        for entry in self.running:
            entry["done"] += 1
            budget -= 1
            ran["decode"].append(entry["id"])
            if entry["done"] == entry["output"]:
                ran["finished"].append(entry["id"])
        while self.waiting:
            entry = self.waiting[0]
            if entry["prompt"] > self.capacity:
                ran["rejected"].append(self.waiting.pop(0)["id"])
                continue
            if entry["prompt"] > budget:
                break
            budget -= entry["prompt"]
            self.running.append(self.waiting.pop(0))
            ran["prefill"].append((entry["id"], entry["prompt"]))
        return ran
