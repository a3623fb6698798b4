"""Ids made anew in the pattern of those that a column has: none of these, and no two alike.

What is kept of a column are its patterns, and one or two bits for each row, in which an id that is
there is never missing: what they do not have is new. No id can be read off them.
"""

import base64
import datetime
import math
import re
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
import torch

from kermix.data.readers.common import all_match, any_match, load_pyarrow
from kermix.data.schema.key_text import (
    COVERED,
    FEW,
    MOST_FRAMES,
    SHARED,
    Codes,
    places_of,
    read_codes,
    round_ends,
)

__all__ = ["KeyMaker", "KeyPattern", "key_seed"]

HEX = "0123456789abcdef"
UUID = "[0-9a-f]{8}-[0-9a-f]{4}-[1-8][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
DAY = r"((?:19|20)\d\d)([-/._]?)(0[1-9]|1[0-2])\2(0[1-9]|[12]\d|3[01])"


class NumberPlace(NamedTuple):
    """Which number of an id counts: its pattern, with what is before it and after it."""

    pattern: str
    has_day: bool = False  # before the number, and in all ids

    @property
    def share(self) -> float:
        """Of ids that have to be so."""
        return 1.0 if self.has_day else COVERED


SPLITS = (  # the first that tells ids apart counts
    NumberPlace(
        r"^(?P<before>(?s:.*?)(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01]))"
        r"(?P<number>\d{1,10})(?P<after>\D*)$", has_day=True,
    ),
    NumberPlace(r"^(?P<before>(?s:.*?))(?P<number>\d{1,18})(?P<after>\D*)$"),
    NumberPlace(r"^(?P<before>\D*)(?P<number>\d{1,18})(?P<after>(?s:.*))$"),
)  # fmt: skip


def key_seed(generator: torch.Generator) -> int:
    """The seed of the ids of rows that are about to be drawn; it draws nothing itself."""
    return int.from_bytes(sha256(generator.get_state().numpy().tobytes()).digest()[:8], "big")


@dataclass(frozen=True)
class Serial:
    """A number between texts: T-104233, 2015-001720, 20240131-0007, or the number alone.

    Attributes:
        frames: What is before and after the number, how many rows have it, and how many digits
            numbers have at least, by zeros before them; with days, as `strftime` takes it.
        low: The least number.
        high: The largest.
        rows: How many numbers there are.
        single: Whether no number is there twice, in different frames.
        days: The first and the last day, as ordinals.
        split: Which of `SPLITS` finds the number.
        step: What all differences of numbers are multiples of.
    """

    frames: tuple[tuple[str, str, int, int], ...]
    low: int
    high: int
    rows: int
    single: bool = True
    days: tuple[int, int] | None = None
    split: int = 1
    step: int = 1

    @property
    def dense(self) -> bool:
        """Whether new ones count on from the last: most numbers, or their pairs, are taken."""
        # Numbers that leave out fewer than every second one are counted on.
        span, most = (self.high - self.low) // self.step + 1, 2 * self.rows
        days = 1 if self.days is None else self.days[1] - self.days[0] + 1
        return span <= most and (self.single or span * len(self.frames) * days <= most)

    @property
    def capacity(self) -> float:
        """How many ids there are in the pattern."""
        return float((self.high - self.low) // self.step + 1)

    @property
    def rounded(self) -> "Serial":
        """The same with a round range, where the ends need not be known."""
        if self.dense:
            return self
        low, high = round_ends(self.low, self.high)
        return replace(self, low=low + (self.low - low) % self.step, high=high)

    def draw(
        self, generator: np.random.Generator, count: int, wider: int = 0, start: int = 0
    ) -> list[str]:
        """A block of ids.

        Args:
            generator: Of what is random.
            count: How many.
            wider: The range of numbers has so many digits more than usual.
            start: How many were drawn before.
        """
        shares = np.array([f[2] for f in self.frames], float)
        chosen = generator.choice(len(self.frames), count, p=shares / shares.sum()).tolist()
        days: list[datetime.date] = []
        if self.days is not None:
            first, last = self.days
            ordinals = generator.integers(first, last + 1, count).tolist()
            days = [datetime.date.fromordinal(d) for d in ordinals]
        if self.dense:
            first = self.high + self.step * (1 + start)
            numbers = [first + self.step * k for k in range(count)]
        else:
            own = self.rounded
            steps = min((own.high - own.low) // self.step + 1, 2**63 // 10**wider) * 10**wider
            drawn = generator.integers(0, steps - 1, count, endpoint=True).tolist()
            numbers = [min(own.low + self.step * k, 2**63 - 1) for k in drawn]
        found = []
        for k, (place, number) in enumerate(zip(chosen, numbers, strict=True)):
            before, after, _, width = self.frames[place]
            if days:
                before, after = days[k].strftime(before), days[k].strftime(after)
            found.append(f"{before}{number:0{width}d}{after}")
        return found

    def stretched(self, texts: Any) -> "Serial":
        """The same, with the numbers of further ids."""
        from pyarrow import compute

        found = compute.extract_regex(texts, SPLITS[self.split].pattern).drop_null()
        rows = self.rows + len(texts)
        if not len(found):
            return replace(self, rows=rows)
        numbers = compute.struct_field(found, "number").cast("int64").to_numpy()
        step = math.gcd(self.step, _step(numbers), abs(int(numbers[0]) - self.low))
        return replace(self, low=min(self.low, int(numbers.min())), step=max(1, step),
                       high=max(self.high, int(numbers.max())), rows=rows)  # fmt: skip


@dataclass(frozen=True)
class KeyPattern:
    """How the ids of a column look, and which are taken.

    Attributes:
        form: The pattern.
        distinct: The share of the rows whose id is not that of a row before.
        taken: Bits, of which each id has one.

    Example:
        >>> import pyarrow
        >>> ids = pyarrow.array([f"T-{k:04d}" for k in range(100, 130)])
        >>> KeyMaker(KeyPattern.of(ids), seed=0).take(2)
        ['T-0130', 'T-0131']
    """

    form: Serial | Codes
    distinct: float = 1.0
    taken: bytes = b""

    @classmethod
    def of(cls, values: Any, rows: int | None = None, sure: bool = False) -> "KeyPattern | None":
        """The pattern of different ids; None if they have none, as names and sentences.

        Args:
            values: Arrow's text, without gaps.
            rows: How many rows have them.
            sure: Whether somebody has said that these are ids.
        """
        if not len(values):
            return None
        form = _uuids(values) or _serial(values, True) or read_codes(values, sure)
        form = form or _serial(values, False)
        if form is None:
            return None
        share = len(values) / (rows or len(values))
        if form.dense:
            return cls(form, share)
        return cls(form, share, _no_bits(len(values)))._marked(values)

    @classmethod
    def counting(cls, before: str, width: int, first: int) -> "KeyPattern":
        """Numbers from the first on, after a text."""
        return cls(Serial(((before, "", 1, width),), first, first - 1, 1))

    def emptied(self, rows: int) -> "KeyPattern":
        """The pattern with room for the ids of so many rows, none of which it has seen."""
        form = replace(self.form, rows=0) if isinstance(self.form, Serial) else self.form
        return replace(self, form=form, taken=_no_bits(rows))

    def with_more(self, values: Any) -> "KeyPattern":
        """The pattern of further ids."""
        return replace(self, form=self.form.stretched(values))._marked(values)

    def _marked(self, values: Any, beyond_chance: float = 2.0**80) -> "KeyPattern":
        """The pattern with these ids taken, unless there are so many that none is met twice."""
        if self.form.capacity >= beyond_chance:
            return replace(self, taken=b"")
        marks = np.unpackbits(np.frombuffer(self.taken, np.uint8))
        marks[[_place(text, len(marks)) for text in values.to_pylist()]] = 1
        return replace(self, taken=np.packbits(marks).tobytes())

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; without the bits, where new ids cannot be among those that are taken."""
        form = self.form.rounded
        more: dict[str, Any] = (
            {"shapes": form.to_list()} if isinstance(form, Codes) else {**vars(form)}
        )
        taken = b"" if form.dense else self.taken
        return {**more, "distinct": self.distinct, "taken": base64.b64encode(taken).decode()}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> "KeyPattern":
        """What was saved."""
        fields = dict(saved)
        distinct, taken = fields.pop("distinct"), base64.b64decode(fields.pop("taken"))
        form: Serial | Codes
        if "shapes" in fields:
            form = Codes.from_list(fields["shapes"])
        else:
            days, width = fields["days"], fields.pop("width", 0)  # of older runs
            frames = tuple((*frame, width)[:4] for frame in fields["frames"])
            form = Serial(**{**fields, "frames": frames, "days": days and tuple(days)})
        return cls(form, distinct, taken)


class KeyMaker:
    """New ids, the same ones however many are taken at a time.

    Args:
        pattern: Of the ids.
        gaps: The share of rows without one.
        seed: Of what is random.
        highest: The largest number that a column of numbers holds; those beyond are counted
            downwards from the least.
    """

    def __init__(
        self, pattern: KeyPattern, gaps: float = 0.0, seed: int = 0, highest: int | None = None
    ) -> None:
        self._pattern, self._gaps, self._highest = pattern, gaps, highest
        self._blocks, self._rows = (np.random.default_rng([seed, k]) for k in (0, 1))
        self._taken = np.unpackbits(np.frombuffer(pattern.taken, np.uint8))
        self._made: list[str] = []
        self._known: set[str] = set()
        self._drawn = self._used = self._wider = 0

    def take(self, rows: int) -> list[str | None]:
        """The ids of the next rows."""
        if not self._gaps and self._pattern.distinct == 1:
            return list(self._new(rows))
        found: list[str | None] = []
        for gap, again, which in self._rows.random((rows, 3)).tolist():
            if gap < self._gaps:
                found.append(None)
            elif self._used and again >= self._pattern.distinct:
                found.append(self._made[int(which * self._used)])
            else:
                found += self._new(1)
        return found

    def _new(self, count: int) -> Sequence[str]:
        while len(self._made) < self._used + count:
            self._made += self._block()
        self._used += count
        return self._made[self._used - count : self._used]

    def _block(self, count: int = 4096, scarce: float = 0.1) -> list[str]:
        """Some new ids, of so many tried; if they are scarce, the pattern is made wider."""
        form = self._pattern.form
        tried = form.draw(self._blocks, count, self._wider, self._drawn)
        self._drawn += count
        if form.dense:
            return tried if self._highest is None else [self._held(text) for text in tried]
        found = []
        for text in tried:
            free = not len(self._taken) or not self._taken[_place(text, len(self._taken))]
            held = self._highest is None or int(text) <= self._highest
            if free and held and text not in self._known:
                self._known.add(text)
                found.append(text)
        self._wider += len(found) < scarce * count
        return found

    def _held(self, text: str) -> str:
        over = int(text) - (self._highest or 0)
        assert isinstance(self._pattern.form, Serial)
        return text if over <= 0 else str(self._pattern.form.low - over)


def _no_bits(rows: int) -> bytes:
    return bytes(max(64, 2 ** math.ceil(math.log2(2 * max(1, rows)))) // 8)


def _place(text: str, bits: int) -> int:
    return zlib.crc32(text.encode()) % bits


def _uuids(values: Any) -> Codes | None:
    from pyarrow import compute

    lower = compute.utf8_lower(values)
    if not all_match(lower, f"^{UUID}$"):
        return None
    ids = HEX if compute.any(compute.equal(values, lower)).as_py() else HEX.upper()
    # Those of version and variant are not free.
    places = tuple(ids if len(letters) > 1 and k not in (14, 19) else letters
                   for k, letters in enumerate(places_of(values.to_pylist())))  # fmt: skip
    return Codes(((places, len(values)),))


def _serial(values: Any, even: bool) -> Serial | None:
    """The number that tells ids apart; if `even`, not one whose digits depend on its frame."""
    found = (_serial_of(k, values, even) for k in range(len(SPLITS)))
    return next((serial for serial in found if serial is not None), None)


def _serial_of(split: int, values: Any, even: bool) -> Serial | None:
    """The same where a certain number is the one; None if it does not tell ids apart."""
    way = SPLITS[split]
    parts = _divided(values, way)
    if parts is None or (frames := _frames(parts, len(values), way.has_day)) is None:
        return None
    numbers = parts.number.cast("int64")
    different = len(numbers.unique())
    if different < len(frames.rows):  # these are part of a code
        return None
    ends = numbers.to_numpy().min(), numbers.to_numpy().max()
    step = max(1, _step(numbers.to_numpy())) if len(values) >= FEW else 1
    serial = Serial(_with_widths(frames, parts), int(ends[0]), int(ends[1]), len(values),
                    different == len(numbers), frames.days, split, step)  # fmt: skip
    # N619AA and N14228: digits and letters change places.
    changing = frames.are_several_words and not serial.dense and not parts.are_even
    return None if even and changing else serial


class DividedIds(NamedTuple):
    """What is before a number, the number as text, and what is after it: Arrow arrays."""

    before: Any
    number: Any
    after: Any

    @property
    def lengths(self) -> Any:
        """How many digits numbers have."""
        from pyarrow import compute

        return compute.utf8_length(self.number)

    @property
    def are_even(self) -> bool:
        """Whether all numbers have as many digits."""
        return len(self.lengths.unique()) == 1


class SharedTexts(NamedTuple):
    """Texts around numbers with their rows, and the first and last day if they hold days."""

    rows: dict[tuple[str, str], int]
    days: tuple[int, int] | None

    @property
    def are_several_words(self) -> bool:
        """Whether there are several, and not because of their days."""
        return len(self.rows) > 1 and self.days is None


def _divided(values: Any, way: NumberPlace) -> DividedIds | None:
    """Ids divided at their number; None if too few of them have one."""
    from pyarrow import compute

    found = compute.extract_regex(values, way.pattern).drop_null()
    if len(found) < way.share * len(values):
        return None
    return DividedIds(*(compute.struct_field(found, name) for name in DividedIds._fields))


def _frames(parts: DividedIds, rows: int, with_days: bool) -> SharedTexts | None:
    """The texts around numbers that several rows share; None if too few do, or there are many.

    Args:
        parts: The ids.
        rows: How many there are, also those without a number.
        with_days: Whether all need a day in them.
    """
    from pyarrow import compute

    around = compute.binary_join_element_wise(parts.before, parts.after, "\0")
    counts = compute.value_counts(around)
    if len(counts) > MOST_FRAMES * 20:
        return None
    counted, days = _days(Counter({tuple(f["values"].split("\0", 1)): f["counts"]
                                   for f in counts.to_pylist()}))  # fmt: skip
    kept = {f: n for f, n in counted.items() if n >= min(SHARED, rows)}
    few = sum(kept.values()) < COVERED * rows
    if few or len(kept) > MOST_FRAMES or (with_days and days is None):
        return None
    return SharedTexts(kept, days)


def _step(numbers: np.ndarray) -> int:
    return int(np.gcd.reduce(np.abs(numbers - numbers[0])))


def _with_widths(frames: SharedTexts, parts: DividedIds) -> tuple[tuple[str, str, int, int], ...]:
    """Texts with their rows, and how many digits numbers in them have at least, if padded."""
    found = dict.fromkeys(frames.rows, 0)
    if any_match(parts.number, "^0."):
        if frames.days is not None:
            found = dict.fromkeys(found, min(parts.lengths.to_pylist()))
        else:
            found |= _widths(parts)
    return tuple((b, a, n, found[b, a]) for (b, a), n in sorted(frames.rows.items()))


def _widths(parts: DividedIds) -> dict[tuple[str, str], int]:
    """The fewest digits of numbers around which there are the same texts."""
    columns = {"before": parts.before, "after": parts.after, "digits": parts.lengths}
    found = load_pyarrow().table(columns).group_by(["before", "after"])
    rows = found.aggregate([("digits", "min")]).to_pylist()
    return {(row["before"], row["after"]): row["digits_min"] for row in rows}


def _days(frames: Counter[tuple[str, str]]) -> tuple[Counter[tuple[str, str]], Any]:
    """Texts around a number with their days left open, if all have one."""
    found: Counter[tuple[str, str]] = Counter()
    ordinals = []
    for (before, after), rows in frames.items():
        at = before if re.search(DAY, before) else after
        match = re.search(DAY, at)
        try:
            assert match is not None
            day = datetime.date(int(match[1]), int(match[3]), int(match[4]))
        except (AssertionError, ValueError):
            return frames, None
        form = match[2].join(("%Y", "%m", "%d"))
        opened = at[: match.start()].replace("%", "%%") + form + (
            at[match.end() :].replace("%", "%%"))  # fmt: skip
        other = (after if at is before else before).replace("%", "%%")
        found[(opened, other) if at is before else (other, opened)] += rows
        ordinals.append(day.toordinal())
    return found, (min(ordinals), max(ordinals))
