"""Numbers in text, as people write them: money, percent, units, marks between thousands.

A column has one form: its cells have the same text around their numbers, signs, spaces and gaps
apart, and the same decimal mark. What has several, such as two currencies, has none.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from kermix.data.readers.common import GAPS, load_pyarrow

__all__ = ["NumberForm", "NumberLook", "look_at_numbers", "without_marks"]

SPACES = " \u00a0\u2009\u202f"  # those after the first are of typesetters
MINUS = "-\u2212\u2013"
SIGNS = MINUS + "+()"
MARKS = ".,'\u2019" + SPACES  # what may be inside a number
WORD = r"[^\W\d_](?:[^\W\d_]|[.%\u00b0\u00b7*])*"
CELL = re.compile(
    r"(?P<before>(?:\D*[^\W\d_]\.)?\D*?)"
    rf"(?P<body>[0-9]+(?:[{MARKS}][0-9]+)*|[.,][0-9]+)"
    r"(?P<after>\D*(?:[^\W\d_][23]\D*)?)",
    re.ASCII,
)
UNIT = re.compile(rf"{WORD}(?:/{WORD})?[23]?\.?(?: {WORD})?")


CURRENCIES = frozenset(" ".join((
    "AED ARS AUD BGN BRL BTC CAD CHF CLP CNY COP CZK DKK EGP ETH EUR GBP HKD HUF IDR ILS INR ISK",
    "JPY KES KRW MAD MXN MYR NGN NOK NZD PEN PHP PKR PLN RMB RON RSD RUB SAR SEK SGD THB TRY TWD",
    "UAH USD VND ZAR Fr Fr. SFr SFr. Ft Kr Kr. kr kr. RM Rp Rp. Rs Rs. z\u0142 K\u010d TL",
)).split())  # fmt: skip
UNITS = frozenset(" ".join((  # that may follow a number without a space
    "ng mg \u00b5g \u03bcg ug g kg t oz lb lbs nm \u00b5m \u03bcm um mm cm dm m km in ft yd mi ml",
    "mL cl dl l L hl gal ns \u00b5s \u03bcs us ms s sec min mins h hr hrs d yr yrs mW W kW MW GW",
    "Wh kWh MWh mV V kV mA mAh Ah Hz kHz MHz GHz b B kb kB KB Mb MB Gb GB Tb TB PB kbps Mbps Gbps",
    "MBit bit px pt em rpm cc hp bhp PS K k M Mio Mrd bn mn m2 m3 cm2 cm3 km2 mm2 ft2 m\u00b2",
    "m\u00b3 cm\u00b2 cm\u00b3 km\u00b2 ha Pa hPa kPa MPa mbar bar psi ppm ppb bps pp dB cal kcal",
    "J kJ MJ N Nm x mol mmol mph dpi fps % \u2030 \u00b0 \u00b0C \u00b0F \u2103 \u2109",
)).split())  # fmt: skip
NO_UNITS = frozenset(" ".join((
    "st nd rd th am pm a.m p.m uhr jan feb mar apr may jun jul aug sep sept oct nov dec january",
    "february march april june july august september october november december",
)).split())  # fmt: skip
MOSTLY, OFTEN = 0.5, 0.2  # shares of numbers, and of one form, that are told of: convention
# A measure and no code, whatever it is: with a sign of about, or a fraction, and without letters;
# or hours, minutes and seconds.
UNKNOWN = re.compile(
    r"^(?=[^A-Za-z]*$)(?:.*[~<>\u2248\u2264\u2265\u00b1].*[0-9]"
    r"|.*(?<![0-9.])[0-9]+[.,][0-9]+(?![0-9.])"
    r"|-?[0-9]+:[0-5][0-9](?::[0-5][0-9](?:[.,][0-9]+)?)?$)"
)
CODE = re.compile(r"[\w ./#-]+")


@dataclass(frozen=True)
class NumberForm:
    """How the numbers of a column are written.

    Attributes:
        positive: A cell, with # for its digits: "$#", "# kg".
        negative: The same of a negative number: "-$#", "($#)".
        decimal: The decimal mark.
        thousands: What is between thousands; empty for nothing.
        decimals: The most digits after the mark.
        least: The fewest.
        whole: Whether whole numbers have none, however many others have.
        bare: Whether no zero is written before the mark.
        pairs: Whether digits before the last three are in pairs, as in India: 1,23,456.

    Example:
        >>> import pyarrow
        >>> look = look_at_numbers(pyarrow.array(["$1,234.50", "-$5.00", None]))
        >>> look.form.read(pyarrow.array(["$2,000.00"])).to_pylist()
        [2000.0]
        >>> look.form.write(np.array([1e6, -0.5]))
        ['$1,000,000.00', '-$0.50']
    """

    positive: str = "#"
    negative: str = "-#"
    decimal: str = "."
    thousands: str = ""
    decimals: int = 0
    least: int = 0
    whole: bool = False
    bare: bool = False
    pairs: bool = False

    @property
    def marks(self) -> "Marks":
        """What is inside of numbers."""
        return Marks(self.decimal, self.thousands, self.pairs)

    @property
    def around(self) -> tuple[str, str]:
        """What is before and after digits, without signs and spaces."""
        before, _, after = self.positive.partition("#")
        return before.strip(SPACES + SIGNS), after.strip(SPACES + SIGNS)

    def read(self, cells: Any, plain: bool = True) -> Any:
        """The numbers of cells, an Arrow array of floats; null where a cell is not in this form.

        Args:
            cells: Text.
            plain: Whether cells without what is usually around numbers count, such as 5 for $5.
        """
        from pyarrow import compute

        affixes = [self.around, ("", "")] if plain else [self.around]
        cells = _combined(cells)
        bodies = _bodies(cells, affixes)
        bodies = compute.if_else(_match(bodies, self.marks.body), bodies, None)
        return _numbers(cells, bodies, self.marks)

    def write(self, numbers: np.ndarray) -> list[str]:
        """Numbers as text, rounded as all are."""
        marks = str.maketrans({",": self.thousands, ".": self.decimal})
        texts = []
        for number in np.asarray(numbers, np.float64).tolist():
            body = self._body(abs(number))
            body = _in_pairs(body) if self.pairs else body
            below = number < 0 and body.strip("0.,") != ""
            around = self.negative if below else self.positive
            texts.append(around.replace("#", body.translate(marks), 1))
        return texts

    def example(self) -> str:
        """One written in this form; minus one if that does not have the usual sign."""
        return self.write(np.array([1.0 if "-" in self.negative else -1.0]))[0].strip()

    def dressed(self, text: str) -> str:
        """A rounded number, written as in Python, with the marks and affixes of this form.

        Example:
            >>> form = NumberForm("$#", "-$#", thousands=",")
            >>> form.dressed("1,230,000"), form.dressed("-0.5")
            ('$1,230,000', '-$0.5')
        """
        around = self.negative if text.startswith("-") else self.positive
        marks = str.maketrans({",": self.thousands, ".": self.decimal})
        return around.replace("#", text.lstrip("-").translate(marks), 1).strip()

    def _body(self, size: float) -> str:
        """The digits of a number that is not negative, with the marks of Python."""
        comma = "," if self.thousands else ""
        digits, point, rest = f"{size:{comma}.{self.decimals}f}".partition(".")
        if not point:
            return digits
        if self.whole and not rest.strip("0"):
            rest = ""
        elif self.least < self.decimals:
            rest = rest.rstrip("0").ljust(self.least, "0")
        if self.bare and rest and digits == "0":
            digits = ""
        return f"{digits}.{rest}" if rest else digits

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON, without what is rare."""
        return {name: value for name, value in asdict(self).items() if name != "pairs" or value}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> "NumberForm":
        """What was saved; ValueError if it is damaged."""
        try:
            form = cls(**saved)
        except TypeError as error:
            raise ValueError(f"the form of numbers: {error}") from None
        texts = (form.positive, form.negative, form.decimal, form.thousands)
        if not all(isinstance(text, str) for text in texts) or form.decimal not in (".", ","):
            raise ValueError(f"the form of numbers is {saved!r:.80}")
        counts = (form.decimals, form.least)
        if not all(isinstance(n, int) and 0 <= n < 100 for n in counts):
            raise ValueError(f"the form of numbers has {form.decimals!r} decimals")
        return form


def _in_pairs(body: str) -> str:
    """A number with commas before its last three whole digits and each pair before them."""
    whole, point, rest = body.replace(",", "").partition(".")
    head, tail = whole[:-3], whole[-3:]
    pairs = [head[max(0, k - 2) : k] for k in range(len(head), 0, -2)]
    return ",".join([*reversed(pairs), tail]) + point + rest


class Marks(NamedTuple):
    """What is inside of numbers: the decimal mark, what is between thousands, and Indian pairs."""

    decimal: str
    thousands: str = ""
    pairs: bool = False

    @property
    def body(self) -> str:
        """What numbers look like, as a regular expression."""
        mark, rest = _escaped(self.decimal), f"(?:{_escaped(self.decimal)}[0-9]+)?"
        plain = f"[0-9]+{rest}|{mark}[0-9]+"
        if not self.thousands:
            return plain
        if self.pairs:
            return f"[1-9][0-9]?(?:,[0-9]{{2}})*,[0-9]{{3}}{rest}|{plain}"
        spaced = self.thousands in SPACES
        between = f"[{SPACES}]" if spaced else f"[{_escaped(self.thousands)}]"
        return f"[1-9][0-9]{{0,2}}(?:{between}[0-9]{{3}})+{rest}|{plain}"


class NumberLook(NamedTuple):
    """What a look at the cells of a column of text has told.

    Attributes:
        form: How its numbers are written; None if not all cells are numbers in one form.
        numbers: The share of cells, gaps apart, that are numbers in some form.
        share: The share of those in the most usual form.
        example: A cell in that form.
        others: Some cells that are not.
        marks: What stands for a gap, of cells that are not empty.
        unknown: Whether most cells hold numbers, but in no form that is known, as the example.
    """

    form: NumberForm | None = None
    numbers: float = 0.0
    share: float = 0.0
    example: str = ""
    others: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    unknown: bool = False

    def note(self, name: str, becomes: str = "text") -> str | None:
        """What to say of a column that is text, say, although most of its cells are numbers."""
        if self.unknown:
            return (
                f"{name}: {self.example!r} and others hold numbers in a form that is not known, "
                f"so it is {becomes}. Write numbers alone, each in a column of its own, or use "
                f"--kind {name}=category."
            )
        if self.form is not None or min(self.numbers / MOSTLY, self.share / OFTEN) < 1:
            return None
        if self.others:
            shown = " and ".join(repr(other) for other in self.others[:2])
            return (
                f"{name}: {100 * (1 - self.share):.2g} % of the cells, such as {shown}, are not "
                f"numbers written as {self.example!r} is, so it is {becomes}. Correct them, name "
                f"them as gaps (--missing), or use --kind {name}=category."
            )
        if any(c not in f"0123456789{MARKS}{SIGNS}" for c in self.example):
            return (
                f"{name}: {self.example!r} and the others do not have one decimal mark, so it is "
                f"{becomes}; if it is a category, use --kind {name}=category."
            )
        return None

    @property
    def may_be_codes(self) -> bool:
        """Whether its most usual cells are digits alone, and others have no signs but codes'."""
        if self.unknown:
            return False
        return self.example.isdigit() and all(CODE.fullmatch(other) for other in self.others)


class _Cell(NamedTuple):
    """A cell in parts."""

    around: tuple[str, str]  # without signs and spaces
    pattern: str  # with # for the digits
    body: str
    below: bool  # whether it is negative


def look_at_numbers(
    cells: Any, decimal: str = ".", sure: bool = False, counts: np.ndarray | None = None
) -> NumberLook:
    """Whether a column of text holds numbers, and how they are written.

    What may as well be a code is no number: digits alone, with zeros before them, or all with a
    sign between letters and digits.

    Args:
        cells: Text, with or without gaps.
        decimal: The decimal mark, where nothing else tells it.
        sure: Whether somebody has said that these are numbers.
        counts: How often each cell is there, if not once.

    Example:
        >>> import pyarrow
        >>> look_at_numbers(pyarrow.array(["5 kg", "7.5 kg", "?"])).form.positive
        '# kg'
        >>> look_at_numbers(pyarrow.array(["$5", "$7", "ca. 5"])).others
        ('ca. 5',)
        >>> look_at_numbers(pyarrow.array(["T-104233", "T-104234"])).form is None
        True
    """
    from pyarrow import compute

    cells = _combined(cells)
    trimmed = compute.utf8_trim_whitespace(cells)
    empty = _are_gaps(trimmed)
    marks = tuple(sorted(filter(None, compute.unique(trimmed.filter(empty)).to_pylist())))
    filled = cells.filter(compute.invert(empty))
    some = _some(filled)
    parts = [p for p in map(_parts, some) if p is not None]
    if len(parts) < OFTEN * max(1, len(some)):
        unknown = [cell for cell in some if UNKNOWN.search(cell)]
        if 2 * len(unknown) > len(some):
            return NumberLook(example=unknown[0], marks=marks, unknown=True)
        return NumberLook(marks=marks)
    around = Counter(p.around for p in parts).most_common(1)[0][0]
    bodies = _bodies(filled, [around])
    own = [p for p in parts if p.around == around]
    others = filled.filter(bodies.is_null()).unique().slice(0, 3).to_pylist()
    weights = np.ones(len(cells)) if counts is None else counts
    weights = weights[~empty.to_numpy(zero_copy_only=False)]
    share = np.average(bodies.is_valid().to_numpy(zero_copy_only=False), weights=weights)
    example = own[0].pattern.replace("#", own[0].body, 1)
    look = NumberLook(None, len(parts) / len(some), float(share), example, tuple(others), marks)
    if others:
        return look
    form = _form(filled, bodies, own, decimal, sure)
    return look._replace(form=form, unknown=form is None and _are_odd_numbers(bodies, around))


def _are_odd_numbers(bodies: Any, around: tuple[str, str]) -> bool:
    """Whether cells are no codes, though their commas are not understood: 1,2,345."""
    return around == ("", "") and _has(bodies, ",")


def without_marks(cells: Any) -> Any:
    """Text with nulls for what stands for a gap among numbers, such as "-" and "?"."""
    from pyarrow import compute

    return compute.if_else(_are_gaps(compute.utf8_trim_whitespace(cells)), None, cells)


def _are_gaps(trimmed: Any) -> Any:
    from pyarrow import compute

    gaps = load_pyarrow().array([*sorted(GAPS), None], "string")
    return compute.is_in(trimmed.cast("string"), value_set=gaps)


def _form(
    filled: Any, bodies: Any, parts: Sequence[_Cell], decimal: str, sure: bool
) -> NumberForm | None:
    """The form of numbers with the same text around them; None if they have several, or none."""
    from pyarrow import compute

    if not sure and _may_be_codes(bodies, parts):
        return None
    marks = _marks(bodies, decimal, not any(parts[0].around))
    if marks is None:
        return None
    numbers = _numbers(filled, bodies, marks)
    below = compute.less(numbers, 0)
    if compute.any(below).as_py():
        parts = [*parts, *filter(None, map(_parts, _some(filled.filter(below))))]
    form = replace(_signed(parts), **marks._asdict())
    form = _with_decimals(form, bodies)
    if any(parts[0].around) or sure:
        return form
    return form if _is_plain_form(form, filled, numbers) else None


def _is_plain_form(form: NumberForm, filled: Any, numbers: Any) -> bool:
    """Whether numbers with nothing around them are more than digits, and written back so."""
    from pyarrow import compute

    signed = bool(compute.any(compute.less(numbers, 0)).as_py())
    if not (form.decimals or form.thousands or signed):
        return False
    sizes = np.asarray(numbers)
    texts = (text.replace("-", "") if size == 0 else text  # -0.00 comes back as 0.00
             for text, size in zip(filled.to_pylist(), sizes.tolist(), strict=True))  # fmt: skip
    return form.write(sizes) == [*texts]


def _some(cells: Any, count: int = 1000) -> list[str]:
    """Cells from all over a column, by convention about so many."""
    step = max(1, len(cells) // count)
    return list(cells.take(np.arange(0, len(cells), step)).to_pylist())


def _parts(cell: str) -> _Cell | None:
    match = CELL.fullmatch(cell)
    if match is None:
        return None
    before, after = match["before"], match["after"]
    signs = [c for c in before + after if c in SIGNS]
    inner = before.strip(SPACES + SIGNS), after.strip(SPACES + SIGNS)
    if signs not in ([], ["+"], ["(", ")"], *([m] for m in MINUS)):
        return None
    if any(c in SIGNS for c in "".join(inner)) or not _is_affix(inner, after[:1] in SPACES):
        return None
    below = bool(signs) and signs != ["+"]
    return _Cell(inner, f"{before}#{after}", match["body"], below)


def _is_affix(around: tuple[str, str], spaced: bool) -> bool:
    """Whether texts before and after digits may be a currency and a unit."""
    before, after = around
    if before and not _is_currency(before):
        return False
    if not after or _is_currency(after) or after in UNITS:
        return True
    after = after.removeprefix("/" if before else "")
    if not _may_be_unit(after):
        return False
    return bool(before) or spaced or UNITS.issuperset(re.split(r"[/ ]", after))


def _may_be_unit(text: str, longest: int = 20) -> bool:
    """Whether a text has the shape of a unit, is no month, and not longer than by convention."""
    if UNIT.fullmatch(text) is None or len(text) > longest:
        return False
    return NO_UNITS.isdisjoint(text.lower().rstrip(".").split())


def _is_currency(text: str) -> bool:
    signs = [c for c in text if unicodedata.category(c) == "Sc"]
    letters = [c for c in text if c.isalpha()]
    symbol = len(signs) == 1 and len(letters) <= 3 and len(letters) + 1 == len(text)
    return symbol or text in CURRENCIES


def _combined(cells: Any) -> Any:
    arrow = load_pyarrow()
    cells = cells.combine_chunks() if hasattr(cells, "chunks") else cells
    return cells.cast(arrow.string())


def _match(cells: Any, pattern: str) -> Any:
    from pyarrow import compute

    return compute.match_substring_regex(cells, f"^(?:{pattern})$")


def _any(marks: Any) -> bool:
    from pyarrow import compute

    return bool(compute.any(marks).as_py())


def _all(marks: Any) -> bool:
    from pyarrow import compute

    return bool(compute.all(marks).as_py())


def _bodies(cells: Any, affixes: Sequence[tuple[str, str]]) -> Any:
    """What is inside of one of some pairs of texts, signs apart; null where there is no number."""
    from pyarrow import compute

    found = load_pyarrow().nulls(len(cells), "string")
    for before, after in affixes:
        space, minus = f"[{SPACES}]*", f"[{MINUS}]"
        sign = f"(?:[{MINUS}+]{space})?"
        inner = rf"(?:[0-9]+(?:[{MARKS}][0-9]+)*|[.,][0-9]+)"
        one = f"{sign}{space}{_escaped(before)}{space}{sign}{inner}{space}"
        shapes = (f"{one}{_escaped(after)}",
                  f"{_escaped(before)}{space}{inner}{minus}{space}{_escaped(after)}",
                  f"{_escaped(before)}{space}{inner}{space}{_escaped(after)}{minus}",
                  rf"\({_escaped(before)}{space}{inner}{space}{_escaped(after)}\)",
                  rf"{_escaped(before)}{space}\({inner}\){space}{_escaped(after)}",
                  rf"\({_escaped(before)}{space}{inner}\){space}{_escaped(after)}",
                  rf"{_escaped(before)}{space}\({inner}{space}{_escaped(after)}\)")  # fmt: skip
        fits = _match(cells, f"{space}(?:{'|'.join(shapes)}){space}")
        text = _cut(_cut(cells, after, end=True), before, end=False)
        found = compute.if_else(fits, compute.coalesce(found, text), found)
    return found


def _cut(cells: Any, affix: str, end: bool) -> Any:
    """Text without signs and spaces at its ends, and without what follows or begins it then."""
    from pyarrow import compute

    cells = compute.utf8_trim(cells, characters=SPACES + SIGNS)
    if not affix:
        return cells
    if end:
        cut = compute.utf8_slice_codeunits(cells, 0, -len(affix))
        has = compute.ends_with(cells, affix)
    else:
        cut = compute.utf8_slice_codeunits(cells, len(affix))
        has = compute.starts_with(cells, affix)
    return compute.utf8_trim(compute.if_else(has, cut, cells), characters=SPACES + SIGNS)


def _escaped(text: str) -> str:
    """Text for the regular expressions of Arrow."""
    return "".join(c if c.isalnum() else f"\\x{{{ord(c):x}}}" for c in text)


def _numbers(cells: Any, bodies: Any, marks: Marks) -> Any:
    """Digits as floats, negative where the cells are."""
    from pyarrow import compute

    arrow = load_pyarrow()
    spaced = marks.thousands and marks.thousands in SPACES
    for mark in SPACES if spaced else marks.thousands:
        bodies = compute.replace_substring(bodies, mark, "")
    if marks.decimal != ".":
        bodies = compute.replace_substring(bodies, marks.decimal, ".")
    sizes = bodies.cast(arrow.float64())
    below = compute.match_substring_regex(cells, f"[{MINUS}(]")
    return compute.if_else(below, compute.negate(sizes), sizes)


def _may_be_codes(bodies: Any, parts: Sequence[_Cell], exact: int = 15) -> bool:
    """Whether digits have zeros before them, are more than a float holds, or part of an id."""
    from pyarrow import compute

    if _any(compute.match_substring_regex(bodies, "^0[0-9]")):
        return True
    longest = bodies.filter(compute.greater(compute.utf8_length(bodies), exact))
    if any(sum(map(str.isdigit, body)) > exact for body in longest.to_pylist()):
        return True
    letters = any(c.isalpha() for c in parts[0].around[0])
    return letters and all(p.below and p.pattern[0] not in SIGNS for p in parts)


def _marks(bodies: Any, decimal: str, plain: bool) -> Marks | None:
    """The decimal mark and what is between thousands; None if cells do not agree."""
    points = [m for m in ".," if _has(bodies, m)]
    ways = _possible_marks(bodies, points, decimal, plain)
    fits = _fitting(bodies, ways) or _fitting(bodies, [Marks(".", ",", pairs=True)])
    sure = len(fits) == 1 or len(points) < 2
    if not fits or not sure or (plain and _is_a_name(bodies, fits[0], decimal)):
        return None
    return fits[0]


def _fitting(bodies: Any, ways: Sequence[Marks]) -> list[Marks]:
    return [way for way in ways if _all(_match(bodies, way.body))]


def _possible_marks(bodies: Any, points: list[str], decimal: str, plain: bool) -> list[Marks]:
    """Decimal marks with what may then be between thousands, the most likely ones first."""
    if groups := [m for m in MARKS if m not in ".," and _has(bodies, m)]:
        return _with_groups(bodies, points or [decimal], groups)
    if not points:
        return [Marks(decimal)]
    if len(points) == 1:
        ways = [Marks(points[0]), Marks(_other_point(points[0]), points[0])]
        return ways[::-1] if _are_groups(bodies, points[0], decimal, plain) else ways
    other = _other_point(decimal)
    return [Marks(decimal, other), Marks(other, decimal)]


def _with_groups(bodies: Any, points: list[str], groups: list[str]) -> list[Marks]:
    """The one way of numbers with spaces or apostrophes, if there is one."""
    from pyarrow import compute

    if len(points) > 1 or len({mark in SPACES for mark in groups}) > 1:
        return []
    most = max(groups, key=lambda m: compute.sum(compute.match_substring(bodies, m)).as_py())
    return [Marks(points[0], most)]


def _other_point(mark: str) -> str:
    return "," if mark == "." else "."


def _has(bodies: Any, mark: str) -> bool:
    from pyarrow import compute

    return _any(compute.match_substring(bodies, mark))


def _are_groups(bodies: Any, mark: str, decimal: str, plain: bool) -> bool:
    """Whether a mark that is always before three digits is one between thousands.

    A comma is, where decimals have points; a point is where other cells have fewer than four
    digits, as in 1.250 kg beside 980 kg.
    """
    from pyarrow import compute

    if mark != decimal:
        return True
    without = bodies.filter(compute.invert(compute.match_substring(bodies, mark)))
    if plain or not len(without):
        return False
    return compute.max(compute.utf8_length(without)).as_py() <= 3


def _is_a_name(bodies: Any, marks: Marks, usual: str) -> bool:
    """Whether groups of digits may be a telephone number, or an address of a computer."""
    from pyarrow import compute

    if not marks.thousands or _has(bodies, marks.decimal):
        return False
    if marks.thousands in SPACES:
        ends = compute.min_max(compute.utf8_length(bodies)).as_py()
        return bool(ends["min"] == ends["max"])
    return marks.thousands == "." and usual == "."


def _signed(parts: Sequence[_Cell]) -> NumberForm:
    """The most usual way in which positive and negative cells are written."""
    above = Counter(p.pattern for p in parts if not p.below).most_common(1)
    below = Counter(p.pattern for p in parts if p.below).most_common(1)
    positive = above[0][0] if above else re.sub(f"[{re.escape(SIGNS)}]", "", below[0][0])
    negative = below[0][0] if below else f"-{positive.replace('+', '')}"
    return NumberForm(positive, negative)


def _with_decimals(form: NumberForm, bodies: Any) -> NumberForm:
    """The form with as many decimals as numbers have, in the way that fits most of them."""
    from pyarrow import compute

    places = compute.find_substring(bodies, form.decimal)
    after = compute.binary_length(bodies).to_numpy() - places.to_numpy() - 1
    after = np.where(places.to_numpy() < 0, 0, after)
    most = int(after.max(initial=0))
    if not most:
        return form
    bare = _all(compute.match_substring_regex(
        bodies.filter(_match(bodies, f"0?{_escaped(form.decimal)}[0-9]+")),
        f"^{_escaped(form.decimal)}").fill_null(True))  # fmt: skip
    bare = bare and _any(compute.starts_with(bodies, form.decimal))
    zeros = _match(bodies, f".*{_escaped(form.decimal)}0+").to_numpy(zero_copy_only=False)
    padded = _match(bodies, f".*{_escaped(form.decimal)}[0-9]*0").to_numpy(zero_copy_only=False)
    ways = {
        (most, False): after == most,
        (0, False): ~padded,
        (most, True): np.where(zeros, False, (after == most) | (after == 0)),
        (1, False): (after >= 1) & (~padded | (after == 1)),
    }
    least, whole = max(ways, key=lambda way: ways[way].sum())
    return replace(form, decimals=most, least=least, whole=whole, bare=bare)
