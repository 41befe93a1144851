"""Decodes may have half of the capacity only."""

from dataclasses import dataclass
from enum import Enum, auto

FAULT = "decodes-go-first"


class State(Enum):
    WAITING = auto()
    PREFILL = auto()
    DECODE = auto()
    FINISHED = auto()


@dataclass
class Request:
    id: str
    prompt: int
    output: int
    state: State = State.WAITING
    generated: int = 0


class Scheduler:
    def __init__(self, capacity):
        self.capacity = capacity
        self.requests = []

    def add_request(self, request_id, prompt_tokens, output_tokens):
        if prompt_tokens > self.capacity:
            raise ValueError("the prompt never fits")
        self.requests.append(Request(request_id, prompt_tokens, output_tokens))

    def in_state(self, state):
        return [request for request in self.requests if request.state is state]

    def has_work(self):
        return any(request.state is not State.FINISHED for request in self.requests)

    def step(self):
        for request in self.in_state(State.PREFILL):
            request.state = State.DECODE
        used = 0
        result = {"decode": [], "prefill": [], "finished": []}
        for request in self.in_state(State.DECODE):
            if 2 * used + 1 > self.capacity:
                break
            used += 1
            request.generated += 1
            result["decode"].append(request.id)
            if request.generated == request.output:
                request.state = State.FINISHED
                result["finished"].append(request.id)
        for request in self.in_state(State.WAITING):
            if used + request.prompt > self.capacity:
                break
            used += request.prompt
            request.state = State.PREFILL
            result["prefill"].append(request.id)
        return result
