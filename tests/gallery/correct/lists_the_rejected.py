"""Whoever never fits is put into a list of the rejected; ids are numbers."""


class Scheduler:
    def __init__(self, capacity: int):
        self.capacity = capacity
        self.rejected: list[int] = []
        self.slots: dict[int, list[int]] = {}

    def add_request(self, request_id: int, prompt_tokens: int, output_tokens: int) -> None:
        if prompt_tokens > self.capacity:
            self.rejected.append(request_id)
        else:
            self.slots[request_id + 0] = [prompt_tokens, output_tokens]

    def has_work(self) -> bool:
        return len(self.slots) > 0

    def step(self) -> dict[str, list[int]]:
        decode = [slot for slot, (prompt, _) in self.slots.items() if prompt == 0]
        free, prefill = self.capacity - len(decode), []
        for slot in sorted(self.slots.keys() - set(decode)):
            if self.slots[slot][0] > free:
                break
            free -= self.slots[slot][0]
            self.slots[slot][0] = 0
            prefill.append(slot)
        finished = []
        for slot in decode:
            self.slots[slot][1] -= 1
            if self.slots[slot][1] == 0:
                finished.append(slot)
                del self.slots[slot]
        return {"decode": decode, "prefill": prefill, "finished": finished}
