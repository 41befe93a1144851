"""nano-vllm's shape: the sum is compared before the next sequence is added to it."""

from collections import deque

FAULT = "token-budget"


class Scheduler:
    def __init__(self, config):
        self.max_num_batched_tokens = config.max_num_batched_tokens
        self.waiting = deque()
        self.running = deque()

    def is_finished(self):
        return not self.waiting and not self.running

    def add(self, seq):
        if len(seq) > self.max_num_batched_tokens:
            raise ValueError("the sequence is longer than a batch")
        self.waiting.append(seq)

    def schedule(self):
        batch, tokens = [], 0
        while self.waiting and tokens < self.max_num_batched_tokens:
            seq = self.waiting.popleft()
            tokens += len(seq)
            seq.status = "RUNNING"
            self.running.append(seq)
            batch.append(seq)
        if batch:
            return batch, True
        batch = list(self.running)[: self.max_num_batched_tokens]
        return batch, False

    def postprocess(self, seqs, token_ids):
        for seq, token in zip(seqs, token_ids, strict=True):
            seq.append_token(token)
            if seq.num_completion_tokens == seq.max_tokens:
                seq.status = "FINISHED"
                self.running.remove(seq)
