"""Names the kind of fault where a broken promise has a known pattern."""

from __future__ import annotations

from tokenyard.check.contract import Finding
from tokenyard.engine.log import Step


def kind_of(finding: Finding) -> str | None:
    """What the author probably did, in a sentence, or None."""
    step = finding.steps[-1] if finding.steps else None
    match finding.invariant:
        case "token-budget" if step:
            return _over_budget(finding, step)
        case "prefill-before-decode" if step:
            if any(id == finding.request for id, _ in step.prefill):
                return "decode in the step of its prefill: who is admitted decodes one step later"
            if any(id == finding.request for earlier in finding.steps for id, _ in earlier.prefill):
                return "decode before the last chunk of its prompt"
            return "decode without a prefill"
        case "gone-is-gone":
            if finding.request not in {one.id for one in finding.workload.requests}:
                return "an id that nobody submitted"
            return "finished, and not removed from a queue"
        case "finished-leaves-queues":
            return "finished, and not removed from a queue"
        case "one-turn-a-step" | "one-queue-at-a-time":
            return "one request is served twice: it is in two places, or twice in one"
        case "prefill-exact" if "prefills 0" in finding.message:
            return "a request is told as prefilled that got no tokens"
        case "prefill-exact" | "legal-transitions":
            if finding.invariant == "prefill-exact" and _split(finding):
                return "a chunk is computed again: the tokens of a chunk are not counted"
            return "one request is prefilled again: it stayed in the waiting queue"
        case "every-request-finishes":
            return _lost(finding)
        case "nobody-waits-for-ever":
            if "more than the capacity" in finding.message:
                return "a request that can never run is accepted, and waits for ever"
            return "deadlock: the first in line waits for what nobody will free"
        case "nobody-starves":
            return "starvation of the head: smaller ones pass it without a bound"
        case "first-come-first-served" | "admission-order":
            return "order broken: a later request is admitted first"
        case "work-conserving":
            if _used_before(finding):
                return "budget leaked from step to step: what earlier steps used is still counted"
            return "room is left unused: an off-by-one, or a loop that ends early"
        case "decodes-go-first" | "running-order":
            return "prefill takes the place of decodes, or some decodes are left out"
        case "finish-reason":
            if finding.first_token == "prefill" and "of its 1 tokens" in finding.message:
                return "output tokens are miscounted by one, or one token alone is treated apart"
            if "is not finished" in finding.message:
                return "finishes late: a token more than asked for, or noticed a step later"
            return "finishes early: a token is counted twice, or the comparison is off by one"
        case "first-token-after-prefill":
            return "finished without an output token"
        case "has-work-is-true":
            return "has_work() looks at a part of the queues only"
        case "rejected-for-a-reason":
            return "rejects what it could serve: an off-by-one in the check of the capacity"
        case "instances-share-nothing":
            return finding.kind
    return None


def _split(finding: Finding) -> bool:
    prompts = {one.id: one.prompt_tokens for one in finding.workload.requests}
    return any(tokens < prompts.get(id, 0) for step in finding.steps for id, tokens in step.prefill)


def _over_budget(finding: Finding, step: Step) -> str:
    capacity = finding.workload.capacity
    prefill = sum(tokens for _, tokens in step.prefill)
    decodes = len(step.decode or ())
    unused = sum(
        max(0, capacity - len(before.decode or ()) - sum(tokens for _, tokens in before.prefill))
        for before in finding.steps[:-1]
    )
    over = decodes + prefill - capacity
    if not step.prefill:
        return "more decodes than the capacity"
    if len(step.prefill) == 1 and prefill > capacity:
        return "a prompt larger than the capacity is let in"
    if over <= unused:
        return "budget leaked from step to step: what earlier steps left is spent in this one"
    if prefill <= capacity and decodes:
        return "decodes are not counted against the capacity, or it is checked after adding"
    return f"capacity checked after adding: {step.prefill[-1][0]!r} no longer fitted"


def _lost(finding: Finding) -> str:
    if any(id == finding.request for step in finding.steps for id, _ in step.prefill):
        return "one request is lost after it began: it is in no queue any more"
    if _used_before(finding):
        return "one request is lost, or budget leaked from step to step until nothing fits"
    return "one request is lost: it is never run"


def _used_before(finding: Finding) -> bool:
    return any(step.decode or step.prefill for step in finding.steps[:-1])
