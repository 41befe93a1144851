"""The state machine under random rules and requests: what must hold after every call."""

from __future__ import annotations

from typing import Any

from driver import Driver
from hypothesis import given
from hypothesis import strategies as st
from strategies import Asked, any_rules, workloads

from tokenyard.core import Batch, Rules, Scheduler


@given(any_rules(), workloads(deadlines=False), st.data())
def test_every_call_keeps_every_promise(rules: Rules, asked: list[Asked], data: Any) -> None:
    driver = Driver(rules)
    upcoming = list(asked)
    batch: Batch | None = None
    actions = data.draw(
        st.lists(
            st.sampled_from(["submit", "step", "step", "schedule", "commit", "abort"]), max_size=60
        )
    )
    for action in actions:
        if action == "submit" and upcoming:
            driver.submit(upcoming.pop(0))
        elif action == "abort" and driver.scheduler.requests:
            driver.abort(data.draw(st.sampled_from(sorted(driver.scheduler.requests))))
        elif action == "schedule" and batch is None:
            batch = driver.schedule() or None
        elif action == "commit" and batch is not None:
            driver.commit(batch)
            batch = None
        elif action == "step" and batch is None:
            driver.step()
    if batch is not None:
        driver.commit(batch)
    for late in upcoming:
        driver.submit(late)
    driver.finish()


def told(batch: Batch) -> tuple[list[Any], ...]:
    """A plan in ids, so that plans of different schedulers can be compared."""
    return (
        [request.id for request in batch.decode],
        [(request.id, tokens) for request, tokens in batch.prefill],
        [(request.id, tokens) for request, tokens in batch.cached],
        [request.id for request in batch.preempted],
    )


class LongWay(Scheduler):
    """Never takes the shortcut of a step in which everybody decodes."""

    def _all_decode_and_fit(self, budget: Any) -> bool:
        return False


@given(any_rules(), workloads(deadlines=False))
def test_the_shortcut_of_steady_steps_decides_as_the_long_way_does(
    rules: Rules, asked: list[Asked]
) -> None:
    short, long = Driver(rules), Driver(rules)
    long.scheduler = LongWay(rules)
    upcoming = list(asked)
    step = 0
    while upcoming or short.scheduler.requests:
        while upcoming and upcoming[0].arrival <= step:
            late = upcoming.pop(0)
            short.submit(late)
            long.submit(late)
        one, two = short.step(), long.step()
        assert told(one) == told(two)
        assert short.scheduler.blocks.free == long.scheduler.blocks.free
        step += 1
