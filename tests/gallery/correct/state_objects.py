"""A class for each state; a request's state decides what it costs and what comes next."""


class Waiting:
    def cost(self, request):
        return request.prompt

    def ran(self, request):
        return Decoding()


class Decoding:
    def cost(self, request):
        return 1

    def ran(self, request):
        request.output -= 1
        return self if request.output else None


class Request:
    def __init__(self, id, prompt, output):
        self.id, self.prompt, self.output = id, prompt, output
        self.state = Waiting()


class Scheduler:
    def __init__(self, capacity):
        self.capacity = capacity
        self.all = []

    def add_request(self, request_id, prompt_tokens, output_tokens):
        if prompt_tokens > self.capacity:
            raise ValueError("this never runs")
        self.all.append(Request(request_id, prompt_tokens, output_tokens))

    def step(self):
        first = [request for request in self.all if isinstance(request.state, Decoding)]
        then = [request for request in self.all if isinstance(request.state, Waiting)]
        spent, batch = 0, []
        for request in first + then:
            cost = request.state.cost(request)
            if spent + cost > self.capacity:
                break
            spent += cost
            batch.append(request)
        result = {"decode": [], "prefill": [], "finished": []}
        for request in batch:
            part = "decode" if isinstance(request.state, Decoding) else "prefill"
            result[part].append(request.id)
            request.state = request.state.ran(request)
            if request.state is None:
                result["finished"].append(request.id)
        self.all = [request for request in self.all if request.state is not None]
        return result
