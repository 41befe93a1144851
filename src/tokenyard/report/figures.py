"""Figures as people read them."""

from __future__ import annotations


def duration(seconds: float | None) -> str:
    """A time with three significant digits, in the unit that suits it: 0.0123 is "12.3 ms"."""
    if seconds is None:
        return "–"
    if seconds == 0:
        return "0 s"
    for least, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= least * 0.9995:  # what rounds to 1.00 of a unit is told in it
            return f"{significant(seconds / least)} {unit}"
    return f"{significant(seconds * 1e9)} ns"


def significant(value: float | None) -> str:
    """A number with three significant digits, and thousands apart."""
    if value is None:
        return "–"
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    text = f"{value:.2f}" if abs(value) < 9.995 else f"{value:.1f}"
    return text.rstrip("0").rstrip(".") if float(text) == int(float(text)) else text


def count(number: int, noun: str = "", nouns: str = "") -> str:
    """A count with thousands apart, and what is counted: "1 row", "1,234 rows"."""
    if not noun:
        return f"{number:,}"
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def percent(share: float | None) -> str:
    """A share as a percentage: 0.123 is "12.3 %". Only all is 100 %."""
    if share is None:
        return "–"
    if 0.9995 <= share < 1:
        return f"{min(100 * share, 99.99):.2f} %"
    return f"{significant(100 * share)} %"
