"""The state machine."""

from tokenyard.core.batch import Batch
from tokenyard.core.policy import POLICIES, Policy
from tokenyard.core.request import (
    LEGAL_TRANSITIONS,
    FinishReason,
    IllegalTransitionError,
    Request,
    RequestError,
    SchedulerError,
    State,
)
from tokenyard.core.rules import Rules, RulesError
from tokenyard.core.scheduler import Scheduler

__all__ = [
    "LEGAL_TRANSITIONS",
    "POLICIES",
    "Batch",
    "FinishReason",
    "IllegalTransitionError",
    "Policy",
    "Request",
    "RequestError",
    "Rules",
    "RulesError",
    "Scheduler",
    "SchedulerError",
    "State",
]
