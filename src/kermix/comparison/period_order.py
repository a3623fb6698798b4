"""The order of periods that are named in words: months, quarters, weeks, numbered things."""

import re
from collections.abc import Sequence
from typing import Any

__all__ = ["order_of_names"]

MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september",
    "october", "november", "december",
)  # fmt: skip
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
SHORTEST = 3
CENTURY = 70  # years of two digits from here on are of the twentieth
NAMED = re.compile(r"([^\W\d_]+)[\s.,/_'-]*(\d{4}|\d{2})")
YEAR_FIRST = re.compile(r"(\d{4})[\s.,/_-]*([^\W\d_]+)\.?")
NUMBERED = re.compile(r"([^\W\d_]*)[\s.]*(\d{1,2})[\s./_-]+(\d{4})")

Place = tuple[Any, ...]


def order_of_names(values: Sequence[str]) -> list[str] | None:
    """Names of periods in their order; None if it cannot be told from the names.

    English months with or without a year; weekdays; a number and a year, as in 11/2023 and
    Q1 2023; and names that differ in numbers alone.

    Example:
        >>> order_of_names(["Jan 2024", "Feb 2023"]), order_of_names(["Q1 2024", "Q4 2023"])
        (['Feb 2023', 'Jan 2024'], ['Q4 2023', 'Q1 2024'])
        >>> order_of_names(["v1.10", "v1.9"]), order_of_names(["after", "before"])
        (['v1.9', 'v1.10'], None)
    """
    plain = [v.strip().lower() for v in values]
    for places in (
        [_among(MONTHS, p) for p in plain],
        [_among(WEEKDAYS, p) for p in plain],
        [_of_month_and_year(p) for p in plain],
        _of_number_and_year(plain),
        _of_numbers(plain),
    ):
        if None not in places:
            return [v for _, v in sorted(zip(places, values, strict=True))]
    return None


def _among(names: Sequence[str], word: str) -> Place | None:
    """The place of the name that a word is, or begins."""
    text = word.rstrip(".")
    found = [k for k, name in enumerate(names) if name.startswith(text)]
    return (found[0],) if found and len(text) >= SHORTEST else None


def _of_month_and_year(word: str) -> Place | None:
    if match := NAMED.fullmatch(word):
        name, digits = match.groups()
    elif match := YEAR_FIRST.fullmatch(word):
        digits, name = match.groups()
    else:
        return None
    month = _among(MONTHS, name)
    year = int(digits)
    if len(digits) == 2:
        year += 1900 if year >= CENTURY else 2000
    return None if month is None else (year, *month)


def _of_number_and_year(words: Sequence[str]) -> list[Place | None]:
    """Quarters, months, weeks: all with one word, or none, before the number."""
    matches = [NUMBERED.fullmatch(w) for w in words]
    if len({m.group(1) for m in matches if m}) > 1:
        return [None]
    return [(int(m.group(3)), int(m.group(2))) if m else None for m in matches]


def _of_numbers(words: Sequence[str]) -> list[Place | None]:
    """Names that differ in their numbers alone: part2 before part10."""
    numbers = [tuple(int(p) for p in re.findall(r"\d+", w)) for w in words]
    rest = {re.sub(r"\d+", "0", w) for w in words}
    return [*numbers] if len(rest) == 1 and all(numbers) else [None]
