"""When somebody finishes, all others are released with it (llama.cpp issue 7834)."""

import asyncio
from types import SimpleNamespace

FAULT = "every-request-finishes"


class Scheduler:
    def __init__(self, capacity):
        self.capacity = capacity
        self.inbox = asyncio.Queue()
        self.backlog = []
        self.active = []

    async def add_request(self, request_id, prompt_tokens, output_tokens):
        if prompt_tokens > self.capacity:
            raise ValueError("prompt larger than the capacity")
        await self.inbox.put(
            SimpleNamespace(id=request_id, prompt=prompt_tokens, left=output_tokens)
        )

    def has_work(self):
        return not self.inbox.empty() or bool(self.backlog) or bool(self.active)

    async def step(self):
        while not self.inbox.empty():
            self.backlog.append(await self.inbox.get())
        room = self.capacity - len(self.active)
        decode = [request.id for request in self.active]
        for request in self.active:
            request.left -= 1
        finished = [request.id for request in self.active if request.left == 0]
        self.active = [] if finished else self.active
        prefill = []
        while self.backlog and self.backlog[0].prompt <= room:
            request = self.backlog.pop(0)
            room -= request.prompt
            prefill.append(request.id)
            self.active.append(request)
        await asyncio.sleep(0)
        return {"decode": decode, "prefill": prefill, "finished": finished}
