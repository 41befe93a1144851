"""vLLM's shape: a new request costs one, whatever its prompt."""

FAULT = "token-budget"


class Scheduler:
    def __init__(self, scheduler_config):
        self.budget = scheduler_config.max_num_batched_tokens
        self.waiting = []
        self.running = []

    def add_request(self, request):
        self.waiting.append(request)

    def has_unfinished_requests(self):
        return bool(self.waiting or self.running)

    def schedule(self):
        budget, counts = self.budget, {}
        for request in self.running:
            tokens = min(request.num_tokens - request.num_computed_tokens, budget)
            if tokens:
                counts[request.request_id] = tokens
                budget -= tokens
        while self.waiting and budget:
            request = self.waiting.pop(0)
            tokens = min(request.num_tokens, budget)
            counts[request.request_id] = request.num_tokens
            budget -= 1
            self.running.append(request)
        return {"num_scheduled_tokens": counts}

    def update_from_output(self, output, sampled):
        for request in list(self.running):
            id = request.request_id
            request.num_computed_tokens += output["num_scheduled_tokens"].get(id, 0)
            if id in sampled:
                request.append_output_token_ids(sampled[id])
                if request.num_output_tokens == request.max_tokens:
                    request.status = "FINISHED_LENGTH_CAPPED"
                    self.running.remove(request)
