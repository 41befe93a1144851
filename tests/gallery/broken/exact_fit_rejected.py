"""A prompt as large as the capacity is rejected."""

FAULT = "rejected-for-a-reason"


class Scheduler:
    def __init__(self, capacity):
        self.capacity = capacity
        self.table = {}

    def add_request(self, request_id, prompt_tokens, output_tokens):
        if prompt_tokens >= self.capacity:
            raise ValueError(f"{request_id} needs {prompt_tokens} of {self.capacity}")
        self.table[request_id] = {"prompt": prompt_tokens, "output": output_tokens}

    def step(self):
        decode = {key: row for key, row in self.table.items() if "left" in row}
        free = self.capacity - len(decode)
        finished = set()
        for key, row in decode.items():
            row["left"] -= 1
            if row["left"] <= 0:
                finished.add(key)
        prefill = {}
        for key, row in self.table.items():
            if "left" in row:
                continue
            if row["prompt"] > free:
                break
            free -= row["prompt"]
            prefill[key] = row["prompt"]
        for key in prefill:
            self.table[key]["left"] = self.table[key]["output"]
        for key in finished:
            del self.table[key]
        return {"decode": set(decode), "prefill": prefill, "finished": finished}
