"""The state machine under random rules and requests: what must hold after every call."""

from __future__ import annotations

from typing import Any

from driver import Driver
from hypothesis import given
from hypothesis import strategies as st
from strategies import Asked, any_rules, workloads

from tokenyard.core import Batch, Rules


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
