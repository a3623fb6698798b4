"""What the texts of ids consist of: words that many of them share, numbers, and characters.

Texts are split at what is neither letter nor digit, and where letters and digits change places.
What takes few values, each in many rows, is a word; numbers keep their range and their zeros; all
else keeps its characters, and how many there are.
"""

import math
import re
import string
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np

from kermix.data.readers.common import all_match, any_match, load_pyarrow
from kermix.data.readers.frames import family

__all__ = [
    "COVERED",
    "FEW",
    "MOST_FRAMES",
    "SHARED",
    "Codes",
    "key_texts",
    "places_of",
    "read_codes",
    "round_ends",
]  # fmt: skip

MOST_FRAMES, MOST_SHAPES = 1000, 50  # beyond which there is no pattern
SHARED, COVERED = 2, 0.9  # a frame or shape has so many rows; those kept have this share of them
FEW = 10  # rows, from which on characters and words are those of the pattern
CLASSES = (string.digits, string.ascii_uppercase, string.ascii_lowercase)
FIELD = re.compile(r"([^\W_]+)")
RUN = re.compile(r"[0-9]+|[A-Z]+|[^A-Z0-9]+")
CLASS = {ord(c): "a" for c in map(chr, range(128)) if c.isalpha()} | {
    ord(c): one for of, one in ((string.digits, "0"), (string.ascii_uppercase, "A")) for c in of
}


def key_texts(cells: Any) -> Any | None:
    """Ids as text without gaps, also those that are whole numbers; None of anything else."""
    arrow = load_pyarrow()
    filled, holds = cells.drop_null(), family(cells.type)
    if holds not in ("text", "numbers"):
        return None
    try:
        if arrow.types.is_floating(filled.type):
            filled = filled.cast(arrow.int64())
        if arrow.types.is_decimal(filled.type):
            cells = filled.to_pylist()
            whole = all(c == c.to_integral_value() for c in cells)
            return arrow.array([f"{c:.0f}" for c in cells], "string") if whole else None
    except arrow.ArrowInvalid:  # not whole
        return None
    filled = filled.combine_chunks() if hasattr(filled, "chunks") else filled
    return filled.cast(arrow.string())


def round_ends(low: int, high: int) -> tuple[int, int]:
    """A round range around numbers, with the digits that both ends begin with."""
    places = len(str(high))
    differ = next((k for k, (a, b) in enumerate(zip(f"{low:0{places}d}", str(high), strict=True))
                   if a != b), places)  # fmt: skip
    unit = 10 ** max(0, places - differ - 2)
    return low // unit * unit, (high // unit + 1) * unit - 1


@dataclass(frozen=True)
class Span:
    """Whole numbers from `low` to `high`, with zeros before those of fewer than `width` digits."""

    low: int
    high: int
    width: int

    @classmethod
    def of(cls, texts: Sequence[str]) -> "Span":
        """The numbers between those that occur, or with as many digits as they have."""
        lengths = [len(text) for text in texts]
        padded = any(text[0] == "0" and len(text) > 1 for text in texts)
        width = min(lengths) if padded else 0
        if len(texts) < FEW:  # the ends might be the ids themselves
            least = 0 if padded or min(lengths) == 1 else 10 ** (min(lengths) - 1)
            return cls(least, 10 ** max(lengths) - 1, width)
        numbers = [int(text) for text in texts]
        return cls(min(numbers), max(numbers), width)

    @property
    def capacity(self) -> float:
        """How many numbers there are."""
        return float(self.high - self.low + 1)

    def draw(self, generator: np.random.Generator, count: int, wider: int = 0) -> list[str]:
        """So many of them; wider ones go on after the highest."""
        high = min(self.low + (self.high - self.low + 1) * 10**wider - 1, 2**63 - 1)
        numbers = generator.integers(self.low, high, count, endpoint=True).tolist()
        return [f"{number:0{self.width}d}" for number in numbers]


@dataclass(frozen=True)
class Codes:
    """Texts of parts: UUIDs, hashes, N619AA, addresses.

    Attributes:
        shapes: The parts of a text, and how many rows have such ids. A part is one of some
            characters, a number, or codes again; parts that are a text are that text.
    """

    shapes: tuple[tuple[str | tuple[Any, ...], int], ...]
    dense = False

    @cached_property
    def capacity(self) -> float:
        """How many ids there are in the smallest of the shapes."""
        return min(math.prod(map(_capacity, parts)) if isinstance(parts, tuple) else 1.0
                   for parts, _ in self.shapes)  # fmt: skip

    @property
    def rounded(self) -> "Codes":
        """The same."""
        return self

    def draw(
        self, generator: np.random.Generator, count: int, wider: int = 0, start: int = 0
    ) -> list[str]:
        """So many of them; wider ones have further digits, if they can at the end of a number."""
        shares = np.array([rows for _, rows in self.shapes], float)
        chosen = generator.choice(len(self.shapes), count, p=shares / shares.sum())
        words = [parts for parts, _ in self.shapes if isinstance(parts, str)]
        if len(words) == len(self.shapes) and not wider:
            return list(np.array(words, object)[chosen])
        found = np.empty(count, object)
        for k, (parts, _) in enumerate(self.shapes):
            rows = np.flatnonzero(chosen == k)
            cells = _drawn(parts, generator, len(rows), wider)
            found[rows] = ["".join(row) for row in zip(*cells, strict=True)] if cells else ""
        return list(found)

    def stretched(self, texts: Any) -> "Codes":
        """The same: further ids are of the same kind."""
        return self

    def to_list(self) -> list[Any]:
        """Ready for JSON."""

        def told(part: Any) -> Any:
            if isinstance(part, Span):
                return [part.low, part.high, part.width]
            return part if isinstance(part, str) else {"of": part.to_list()}

        return [[parts if isinstance(parts, str) else "".join(parts) if all(
            isinstance(p, str) and len(p) == 1 for p in parts) else [told(p) for p in parts], rows]
            for parts, rows in self.shapes]  # fmt: skip

    @classmethod
    def from_list(cls, saved: Sequence[Any]) -> "Codes":
        """What was saved."""

        def part(told: Any) -> Any:
            if isinstance(told, Mapping):
                return cls.from_list(told["of"])
            return told if isinstance(told, str) else Span(*told)

        return cls(tuple((parts if isinstance(parts, str) else tuple(map(part, parts)), rows)
                         for parts, rows in saved))  # fmt: skip


def _drawn(parts: Any, generator: np.random.Generator, count: int, wider: int) -> list[Any]:
    """Texts of each of the parts of a shape."""
    at = _widest(parts) if wider else None
    cells: list[Any] = []
    for place, part in enumerate(parts):
        own = wider if place == at else 0
        if isinstance(part, str):
            cells.append(np.array(list(part))[generator.integers(len(part), size=count)])
        else:
            cells.append(part.draw(generator, count, own if isinstance(part, Span) else 0))
        if own and not isinstance(part, Span):
            cells.append(Span(0, 10**wider - 1, wider).draw(generator, count))
    return cells


def _capacity(part: Any) -> float:
    return float(len(part)) if isinstance(part, str) else part.capacity


def _options(part: Any) -> float:
    return float(len(part.shapes)) if isinstance(part, Codes) else _capacity(part)


def _widest(parts: Any) -> int | None:
    """Which part gets further digits: the last number, or what has the most options."""
    numbers = [k for k, part in enumerate(parts) if isinstance(part, Span)]
    return numbers[-1] if numbers else max(
        range(len(parts)), key=lambda k: (_options(parts[k]), k), default=None)  # fmt: skip


def read_codes(values: Any, sure: bool) -> Codes | None:
    """The parts of ids; None of words and sentences, unless somebody is sure that they are ids."""
    from pyarrow import compute

    fixed = len(compute.unique(compute.utf8_length(values))) == 1
    least = 1 if sure else min(SHARED, len(values))
    if not sure and not _are_codes(values, fixed, least):
        return None
    texts = values.to_pylist()
    groups = _grouped(texts, _places_of_gaps if fixed else _gaps, least, 0 if sure else COVERED)
    if groups is None:
        return Codes(((tuple(places_of(texts)), len(texts)),))
    return Codes(tuple((_alone(_parts(group)), len(group)) for group in groups))


def _are_codes(values: Any, fixed: bool, least: int) -> bool:
    """Whether texts have digits or capitals, and nearly all look alike or are one word."""
    from pyarrow import compute

    digits = compute.mean(compute.match_substring_regex(values, "[0-9]").cast("int8")).as_py()
    capitals = fixed and all_match(values, "^[^a-z ]*[A-Z][^a-z ]*$")
    if digits <= 0.5 and not capitals:
        return False
    return _alike(values, least) or (fixed and not any_match(values, r"\s"))


def _alike(values: Any, least: int) -> bool:
    """Whether most texts have digits, capitals and small letters where others have them."""
    from pyarrow import compute

    shapes = values
    for those, one in (("[0-9]", "0"), ("[A-Z]", "A"), ("[a-z]", "a")):
        shapes = compute.replace_substring_regex(shapes, those, one)
    counts = compute.value_counts(shapes).field("counts").to_numpy()
    kept = np.sort(counts[counts >= least])[::-1][:MOST_SHAPES]
    return bool(kept.sum() >= COVERED * len(values))


def _gaps(text: str) -> Any:
    return tuple(FIELD.split(text)[::2])


def _places_of_gaps(text: str) -> Any:
    return FIELD.sub(lambda found: "w" * len(found[0]), text)


def _classes(text: str) -> Any:
    """Where digits, capitals and other letters are."""
    return text.translate(CLASS) if text.isascii() else "".join(
        CLASS.get(ord(letter), "a") for letter in text)  # fmt: skip


def _turns(text: str) -> Any:
    """In which order digits, capitals and other letters come."""
    return "".join(one for one, _ in groupby(_classes(text)))


def _grouped(
    texts: Sequence[str], key: Callable[[str], Any], least: int, covered: float = COVERED
) -> list[list[str]] | None:
    """Texts by what they have in common, the largest groups first; None if they are too small."""
    groups = defaultdict(list)
    for text in texts:
        groups[key(text)].append(text)
    kept = sorted((g for g in groups.items() if len(g[1]) >= least),
                  key=lambda g: (-len(g[1]), g[0]))[:MOST_SHAPES]  # fmt: skip
    return [g for _, g in kept] if kept and sum(len(g) for _, g in kept) >= (
        covered * len(texts)) else None  # fmt: skip


def _parts(texts: Sequence[str]) -> tuple[Any, ...]:
    """The parts of texts that have the same between their letters and digits."""
    columns = list(zip(*map(FIELD.split, texts), strict=True))
    parts: list[Any] = [*columns[0][0]]
    at = 1
    while at < len(columns):
        own, words = columns[at], _words(columns[at])
        while words is not None and at + 2 < len(columns):  # web.de, not web.com
            joint = ["".join(row) for row in zip(own, *columns[at + 1 : at + 3], strict=True)]
            more = _words(joint) if _words(columns[at + 2]) is not None else None
            if more is None:
                break
            own, words, at = tuple(joint), more, at + 2
        parts += [*(_field(own) if words is None else words), *columns[at + 1][0]]
        at += 2
    return tuple(parts)


def _words(texts: Sequence[str]) -> tuple[Any, ...] | None:
    """What few values are, each of which many rows have."""
    counted = Counter(texts)
    kept = sorted((text, rows) for text, rows in counted.items() if rows >= FEW)
    most = MOST_SHAPES if all(text.isdigit() for text, _ in kept) else MOST_FRAMES
    if not kept or len(kept) > most or sum(n for _, n in kept) < COVERED * len(texts):
        return None
    return tuple(kept[0][0]) if len(kept) == 1 else (Codes(tuple(kept)),)


def _field(texts: Sequence[str]) -> tuple[Any, ...]:
    """The parts of letters and digits."""
    words = _words(texts)
    if words is not None:
        return words
    fixed = len(set(map(len, texts))) == 1
    turns = {_turns(classes) for classes in {_classes(text) for text in texts}}
    return (_field_in_turns(texts, turns.pop(), fixed) if len(turns) == 1 else None) or (
        _mixed_field(texts, fixed))  # fmt: skip


def _field_in_turns(
    texts: Sequence[str], turns: str, fixed: bool, longest: int = 18
) -> tuple[Any, ...] | None:
    """The parts of letters and digits that come in one order; None if they cannot be told apart.

    Args:
        texts: Of the column.
        turns: The order, such as a0.
        fixed: Whether all texts have one length.
        longest: Digits of a number; longer ones are characters.
    """
    columns = list(zip(*map(RUN.findall, texts), strict=True))
    if len(columns) > 1 and (not fixed or all(len(set(map(len, c))) == 1 for c in columns)):
        return tuple(part for column in columns for part in _field(column))
    if len(columns) == 1 and turns == "0" and max(map(len, texts)) <= longest:
        return (Span.of(texts),)
    return None


def _mixed_field(texts: Sequence[str], fixed: bool) -> tuple[Any, ...]:
    """The parts of letters and digits that do not come in one order: N619AA and N14228."""
    groups = _grouped(texts, _classes if fixed else _turns, FEW)
    if groups is not None and len(groups) > 1:
        return (Codes(tuple((_field(group), len(group)) for group in groups)),)
    if fixed:
        return tuple(places_of(texts))
    letters = _characters("".join(texts), len(texts))
    lengths = Counter(map(len, texts)).most_common(MOST_SHAPES)
    return (Codes(tuple(((letters,) * length, rows) for length, rows in sorted(lengths))),)


def _alone(parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """Parts with a round range of a number that alone tells ids apart."""
    free = [part for part in parts if _options(part) > 1]
    if len(free) != 1 or not isinstance(free[0], Span):
        return parts
    low, high = round_ends(free[0].low, free[0].high)
    return tuple(replace(p, low=low, high=high) if p is free[0] else p for p in parts)


def places_of(texts: Sequence[str]) -> list[str]:
    """The characters that texts of one length have at each place."""
    words = np.array(texts)
    letters = words.view("U1").reshape(len(words), -1)
    return [_characters(letters[:, k], len(words)) for k in range(letters.shape[1])]


def _characters(letters: Any, rows: int) -> str:
    found = "".join(sorted(set(letters)))
    if rows >= FEW:
        return found
    # What few rows have might be the ids themselves.
    return next((all_ for all_ in CLASSES if set(found) <= set(all_)), found)
