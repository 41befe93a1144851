"""tokenyard's scheduler, made to accept what can never run."""

from tokenyard.core import Scheduler as Own

FAULT = "raises-nothing"


class Scheduler(Own):
    def why_never(self, request):
        return None
