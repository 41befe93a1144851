"""Who does not fit may be passed, but at most ten times."""


class Request:
    def __init__(self, request_id, prompt_tokens, output_tokens):
        self.request_id = request_id
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.passed = 0


class Scheduler:
    MOST = 10

    def __init__(self, capacity):
        self.capacity = capacity
        self.waiting = []
        self.running = []

    def add_request(self, request_id, prompt_tokens, output_tokens):
        if prompt_tokens > self.capacity:
            raise ValueError("never fits")
        self.waiting.append(Request(request_id, prompt_tokens, output_tokens))

    def has_work(self):
        return len(self.waiting) + len(self.running) > 0

    def step(self):
        room = self.capacity - len(self.running)
        chosen, behind = [], []
        for request in self.waiting:
            if request.prompt_tokens <= room:
                room -= request.prompt_tokens
                chosen.append(request)
            else:
                behind.append(request)
                if request.passed >= self.MOST:
                    break
        for request in behind:
            if any(self.waiting.index(one) > self.waiting.index(request) for one in chosen):
                request.passed += 1
        self.waiting = [request for request in self.waiting if request not in chosen]
        decoded = self.running
        for request in decoded:
            request.output_tokens -= 1
        done = [request for request in decoded if not request.output_tokens]
        self.running = [request for request in decoded if request.output_tokens] + chosen
        return {"decode": decoded, "prefill": chosen, "finished": done}
