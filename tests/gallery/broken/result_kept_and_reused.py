"""One result object is used for all steps, and never emptied."""

from dataclasses import dataclass, field

FAULT = "gone-is-gone"


@dataclass
class Entry:
    request_id: str
    prompt_tokens: int
    remaining: int


@dataclass
class Ran:
    decode: list = field(default_factory=list)
    prefill: list = field(default_factory=list)
    finished: list = field(default_factory=list)


@dataclass
class Scheduler:
    capacity: int
    waiting: list = field(default_factory=list)
    decoding: list = field(default_factory=list)
    ran: Ran = field(default_factory=Ran)

    def add_request(self, request_id, prompt_tokens, output_tokens):
        if prompt_tokens > self.capacity:
            raise ValueError(f"{prompt_tokens} > {self.capacity}")
        self.waiting.append(Entry(request_id, prompt_tokens, output_tokens))

    def step(self):
        ran = self.ran
        ran.decode, ran.prefill = [], []
        room = self.capacity
        stay = []
        for entry in self.decoding:
            room -= 1
            ran.decode.append(entry.request_id)
            entry.remaining -= 1
            if entry.remaining:
                stay.append(entry)
            else:
                ran.finished.append(entry.request_id)
        while self.waiting:
            head = self.waiting[0]
            if head.prompt_tokens > room:
                break
            room -= head.prompt_tokens
            ran.prefill.append(head.request_id)
            stay.append(self.waiting.pop(0))
        self.decoding = stay
        return ran
