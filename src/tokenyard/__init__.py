"""tokenyard schedules LLM inference requests, and shows that it schedules them right."""

__version__ = "0.1.0"
