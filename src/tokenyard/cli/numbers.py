"""Whole numbers on the command line. (Cyclopts by itself would round 3.5.)"""

from __future__ import annotations

from collections.abc import Sequence

from cyclopts import Parameter, Token


def _whole_number(_kind: type, tokens: Sequence[Token]) -> int:
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"expected a whole number (got {tokens[0].value!r})") from None


def _whole_number_or_none(_kind: type, tokens: Sequence[Token]) -> int | None:
    if tokens[0].value.lower() == "none":
        return None
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"expected a whole number or none (got {tokens[0].value!r})") from None


WHOLE_NUMBER = Parameter(converter=_whole_number, metavar="N")
"""Annotates a flag that is an int."""
WHOLE_NUMBER_OR_NONE = Parameter(converter=_whole_number_or_none, metavar="N")
"""Annotates a flag that is an int or None."""
