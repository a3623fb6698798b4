"""The order of periods that are named in words: months, quarters, weeks, numbered things."""

import re
import unicodedata
from collections.abc import Sequence
from typing import Any

__all__ = ["order_of_names"]

MONTHS = (
    "january janvier januar janner janeiro enero gennaio januari",
    "february fevrier februar feber fevereiro febrero febbraio februari",
    "march mars marz maerz marco marzo maart",
    "april avril abril aprile",
    "may mai maio mayo maggio mei",
    "june juin juni junho junio giugno",
    "july juillet juli julho julio luglio",
    "august aout agosto augustus",
    "september septembre setembro septiembre setiembre settembre sept",
    "october octobre oktober outubro octubre ottobre",
    "november novembre novembro noviembre",
    "december decembre dezember dezembro diciembre dicembre",
)
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
SHORTEST = 3
CENTURY = 70  # years of two digits from here on are of the twentieth
NAMED = re.compile(r"([^\W\d_]+)[\s.,/_'-]*(\d{4}|\d{2})")
YEAR_FIRST = re.compile(r"(\d{4})[\s.,/_-]*([^\W\d_]+)\.?")
NUMBERED = re.compile(r"([^\W\d_]*)[\s.]*(\d{1,2})[\s./_-]+(\d{4})")

Place = tuple[Any, ...]


def order_of_names(values: Sequence[str]) -> list[str] | None:
    """Names of periods in their order; None if it cannot be told from the names.

    Months by name, in seven languages, with or without a year; weekdays; a number and a year, as
    in 11/2023 and Q1 2023; and names that differ in numbers alone.

    Example:
        >>> order_of_names(["Jan 2024", "Feb 2023"]), order_of_names(["Q1 2024", "Q4 2023"])
        (['Feb 2023', 'Jan 2024'], ['Q4 2023', 'Q1 2024'])
        >>> order_of_names(["v1.10", "v1.9"]), order_of_names(["after", "before"])
        (['v1.9', 'v1.10'], None)
    """
    plain = [_plain(v) for v in values]
    for places in (
        [_of_month(p) for p in plain],
        [_of_weekday(p) for p in plain],
        [_of_month_and_year(p) for p in plain],
        _of_number_and_year(plain),
        _of_numbers(plain),
    ):
        if None not in places:
            return [v for _, v in sorted(zip(places, values, strict=True))]
    return None


def _plain(word: str) -> str:
    """Lower case without accents."""
    parts = unicodedata.normalize("NFKD", word.strip().lower())
    return "".join(c for c in parts if not unicodedata.combining(c))


def _of_month(word: str) -> Place | None:
    text = word.rstrip(".")
    found = {k for k, names in enumerate(MONTHS) if any(n.startswith(text) for n in names.split())}
    return (found.pop(),) if len(found) == 1 and len(text) >= SHORTEST else None


def _of_weekday(word: str) -> Place | None:
    text = word.rstrip(".")
    found = [k for k, name in enumerate(WEEKDAYS) if name.startswith(text)]
    return (found[0],) if found and len(text) >= SHORTEST else None


def _of_month_and_year(word: str) -> Place | None:
    if match := NAMED.fullmatch(word):
        name, digits = match.groups()
    elif match := YEAR_FIRST.fullmatch(word):
        digits, name = match.groups()
    else:
        return None
    month = _of_month(name)
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
