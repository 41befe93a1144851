"""What is measured of a run. docs/metrics.md is its page."""

from tokenyard.metrics.collect import Collector, CollectorError
from tokenyard.metrics.requests import Reason, RequestTable
from tokenyard.metrics.slo import Slo, SloError, parse_slo
from tokenyard.metrics.summary import Goodput, Stats, Summary, summarize
from tokenyard.metrics.sums import Rejected, RunSums

__all__ = [
    "Collector",
    "CollectorError",
    "Goodput",
    "Reason",
    "Rejected",
    "RequestTable",
    "RunSums",
    "Slo",
    "SloError",
    "Stats",
    "Summary",
    "parse_slo",
    "summarize",
]
