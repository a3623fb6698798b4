"""Columns of text files: what type their cells have, and the cells as that type.

`01067` is no 1067, and `-` among numbers is a gap. Numbers with anything around them stay text, as
does a column of numbers and codes (`98102` and `98102-5783`) or of numbers and few words; many
words among numbers are a fault.
Cells are looked at in blocks, so that a file has the same types whether memory holds it or not.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kermix.data.readers.common import (
    GAPS,
    MARKS,
    NULLS,
    Reading,
    all_match,
    any_match,
    listed,
    load_pyarrow,
)
from kermix.data.readers.frames import arrow_type
from kermix.data.readers.number_forms import without_marks

__all__ = [
    "CellType",
    "ColumnJudge",
    "StrayWords",
    "alike",
    "decide",
    "is_code_text",
    "null_words",
    "read_words",
]

WHOLE = r"^\+?[0-9]+$"
PADDED = r"^\+?0[0-9]"
HEXADECIMAL = r"^0[xX]"
PHONE = r"^\+[0-9]{7,}$"
WORDS_OF_TRUTH = r"^(?:true|True|TRUE|false|False|FALSE)$"
CLOCK = r"^\d\d:\d\d(?::\d\d)?$"
TWO_LETTERS = r"^[A-Z]{2}$"
SPELLED_NA = "NA"
GROUPED = {
    d: rf"^[-+]?(?:(?:\d+{m}?\d*|{m}\d+)(?:[eE][-+]?\d+)?|\d{{1,3}}(?:{t}\d{{3}})+(?:{m}\d+)?)$"
    for d, m, t in ((".", r"\.", ","), (",", ",", r"\."))
}  # numbers by decimal mark, with or without marks between thousands
THOUSANDS = {".": ",", ",": "."}
# A number among words, by decimal mark, and zeros before it that make it a code.
PLAIN = {
    d: rf"^[-+]?(?:[0-9]+{m}?[0-9]*|{m}[0-9]+)(?:[eE][-+]?[0-9]+)?$"
    for d, m in ((".", r"\."), (",", ","))
}
TIMES = ("timestamp[s]", "timestamp[ns]")
INSTANTS = ("timestamp[s, tz=UTC]", "timestamp[ns, tz=UTC]")
# Types that cells may have, by the one that those before had: the next that fits is it.
LADDER = {
    "null": ("int64", "bool", "date32[day]", "time32[s]", *TIMES, *INSTANTS, "double"),
    "int64": ("int64", "double"),
    "double": ("double",),
    "bool": ("bool",),
    "date32[day]": ("date32[day]", *TIMES),
    "time32[s]": ("time32[s]",),
    "timestamp[s]": TIMES,
    "timestamp[ns]": ("timestamp[ns]",),
    "timestamp[s, tz=UTC]": INSTANTS,
    "timestamp[ns, tz=UTC]": ("timestamp[ns, tz=UTC]",),
}
NUMBERS = ("int64", "double")
NOTES = {  # what is said of columns that look like others
    "digits": "{file}: digits of {columns} are text, because of leading zeros or signs; for "
    "numbers, use --kind {first}=number.",
    "marks": "{file}: {shown} in {columns} means missing; if it is a value, use --kind "
    "{first}=category.",
    "groups": "{file}: {columns} has thousands separators, as in {shown}; if these are not "
    "numbers, use --kind {first}=category.",
    "NA": "{file}: NA in {columns} is a code like the others; if it means missing, use "
    "--missing NA.",
}
NONE = frozenset[str]()


def null_words(missing: Sequence[str]) -> list[str]:
    """Cells that are a gap in every column, before anything is known of it."""
    return [*(word for word in NULLS if word != SPELLED_NA), *missing]


@dataclass(frozen=True)
class CellType:
    """How the text of a column is read.

    Attributes:
        arrow: The Arrow type of its cells.
        decimal: "." or ",".
        gaps: Words that stand for a gap in it.
        trimmed: Whether blanks around cells are left out.
        code: Whether its digits are no number, or not all of its cells are.
        grouped: Whether there may be marks between thousands.
    """

    arrow: str
    decimal: str = "."
    gaps: frozenset[str] = NONE
    trimmed: bool = False
    code: bool = False
    grouped: bool = False

    def read(self, text: Any) -> Any:
        """Text as cells of this type.

        Example:
            >>> import pyarrow
            >>> cells = pyarrow.array(["7,5", "-"])
            >>> CellType("double", ",", frozenset("-")).read(cells).to_pylist()
            [7.5, None]
        """
        from pyarrow import compute

        arrow = load_pyarrow()
        if self.arrow == "null":
            return arrow.nulls(len(text))
        if self.trimmed:
            text = compute.utf8_trim_whitespace(text)
        if self.gaps:
            known = compute.is_in(text, value_set=arrow.array(sorted(self.gaps), arrow.string()))
            text = compute.if_else(known, arrow.scalar(None, arrow.string()), text)
        found = text if self.arrow == "string" else self.cast(text)
        if found is None:
            raise arrow.ArrowInvalid(f"cells are no {self.arrow} any more")
        return found

    def cast(self, text: Any) -> Any:
        """Cells without gaps as this type; None if they are of another."""
        from pyarrow import compute

        arrow = load_pyarrow()
        shape = self._shape
        if shape is not None and not all_match(text, shape):
            return None
        try:
            if self.arrow == "time32[s]":
                text = compute.binary_join_element_wise("1970-01-01", text, " ")
                text = text.cast(arrow.timestamp("s"))
            elif self.arrow in NUMBERS and shape is not None:
                text = compute.replace_substring(text, THOUSANDS[self.decimal], "")
                text = compute.replace_substring(text, self.decimal, ".")
            return text.cast(arrow_type(self.arrow))
        except arrow.ArrowInvalid:
            return None

    @property
    def _shape(self) -> str | None:
        """What cells must look like, where Arrow would read others as well, or not these."""
        if self.arrow in NUMBERS:
            plain = None if self.decimal == "." else r"^[^.]*$"
            return GROUPED[self.decimal] if self.grouped else plain
        return {"bool": WORDS_OF_TRUTH, "time32[s]": CLOCK}.get(self.arrow)


@dataclass(frozen=True)
class Conventions:
    """What is many and what is few, where the cells of a column are judged.

    Attributes:
        first: Cells that are tried before all, as to fail at all takes long.
        first_words: Cells that tell how many different numbers there are.
        shown_words: Those that are no numbers, and are told of.
        codes: With so many others of two letters, NA is one of them.
        long: Digits with which 64 bits may not hold a whole number.
    """

    first: int = 16
    first_words: int = 1000
    shown_words: int = 5
    codes: int = 3
    long: int = 19


class ColumnJudge:
    """What was seen of a column of text so far, and what type it has by that.

    Args:
        decimal: The decimal mark of the file.
        asked: Its kind, if the user said so: "text" stays as it is, a "number" is never a code,
            and of another kind unusual numbers are left alone.
        by: What is many and what is few.
    """

    def __init__(
        self, decimal: str, asked: str | None = None, by: Conventions | None = None
    ) -> None:
        self.asked, self.decimal, self._by = asked, decimal, by or Conventions()
        self.kind = "string" if asked == "text" else "null"
        self.grouped: str | None = None  # a number with marks between thousands
        self.gaps: set[str] = set()
        self._marks = sorted(GAPS if asked in (None, "number") else NULLS)  # that may be gaps
        self.has_nulls = self.trimmed = False
        self._digits, self._padded, self._phones = True, False, True
        self._cells = self._long = 0  # how many, and how many that 64 bits may not hold
        self._rows = self._words = self._numbers = 0
        self._different = 0  # numbers, of the first cells
        self._filled = 0  # cells that are not empty
        self._stray: dict[str, int] = {}  # the first words without a digit, and their rows
        self._stray_cells, self._more_stray = 0, False
        self._coded = False  # whether a word that is no number has digits
        self._codes: set[str] | None = set()  # words of two letters; None: there are others
        self.has_na = False

    def look(self, text: Any) -> None:
        """Look at more cells."""
        cells = text.drop_null()
        self.has_nulls = self.has_nulls or len(cells) < len(text)
        self._filled += len(cells)
        if len(cells) and (self.kind == "string" or not self._fits_with_gaps(cells)):
            self._look_at_words(cells, text)
        self._rows += len(text)

    def _fits_with_gaps(self, cells: Any) -> bool:
        """Whether cells are of the type of those before, but for blanks and what is a gap."""
        from pyarrow import compute

        if self._fits(cells):
            return True
        plain = compute.utf8_trim_whitespace(cells)
        words = load_pyarrow().array(self._marks, "string")
        gaps = compute.is_in(plain, value_set=words)
        rest = plain.filter(compute.invert(gaps))
        if len(rest) and not self._fits(rest):
            if self.kind != "null":  # the cells before were of another type
                self._codes = None
            if self.kind in NUMBERS:
                self._numbers = self._words = self._different
            self.kind = "string"
            return False
        self.trimmed = True
        self.gaps |= {*plain.filter(gaps).unique().to_pylist()}
        return True

    def _fits(self, cells: Any) -> bool:
        """Whether cells are of the type that those before had, or one that both have."""
        some = cells.slice(0, self._by.first)
        plain = [CellType(kind, self.decimal, grouped=bool(self.grouped))
                 for kind in LADDER[self.kind]]  # fmt: skip
        grouped = [replace(t, grouped=True) for t in plain if t.arrow in NUMBERS]
        usual = self.asked in (None, "number") and not self.grouped
        for tried in [*plain, *(grouped if usual else ())]:
            typed = None if tried.cast(some) is None else tried.cast(cells)
            if typed is not None:
                if tried.grouped and not self.grouped:
                    self.grouped = _first_with(cells, THOUSANDS[self.decimal])
                return self._see(tried.arrow, cells, typed)
        return False

    def _see(self, kind: str, cells: Any, typed: Any) -> bool:
        if kind in NUMBERS and self._digits:
            from pyarrow import compute

            if kind == "int64":
                if any_match(cells, HEXADECIMAL):
                    return False
                self._digits, self._phones = compute.min(typed).as_py() >= 0, False
            else:
                self._digits = all_match(cells, WHOLE)
                self._phones = self._phones and self._digits and all_match(cells, PHONE)
            self._padded = self._padded or (self._digits and any_match(cells, PADDED))
            self._different = self._different or len(cells.slice(0, self._by.first_words).unique())
            lengths = compute.binary_length(cells)
            self._long += compute.sum(compute.greater_equal(lengths, self._by.long)).as_py()
            self._cells += len(cells)
        self.kind = kind
        return True

    def _look_at_words(self, cells: Any, text: Any) -> None:
        from pyarrow import compute

        words = cells.unique()
        self.has_na = self.has_na or bool(compute.any(compute.equal(words, SPELLED_NA)).as_py())
        if self._codes is not None:
            codes = None if not all_match(words, TWO_LETTERS) else words.to_pylist()
            self._codes = None if codes is None else self._codes.union(codes)
        if self.asked in (None, "number") and 2 * self._numbers >= self._words:
            self._look_for_numbers(words, text)

    def _look_for_numbers(self, words: Any, text: Any) -> None:
        """Count numbers among words, and keep the first word that may be a mistake."""
        from pyarrow import compute

        plain = compute.utf8_trim_whitespace(words)
        filled = without_marks(plain).is_valid()
        words, plain = words.filter(filled), plain.filter(filled)
        numbers = compute.match_substring_regex(plain, PLAIN[self.decimal])
        self._words += len(words)
        self._numbers += compute.sum(numbers).as_py() or 0
        self._padded = self._padded or any_match(plain.filter(numbers), PADDED)
        others = words.filter(compute.invert(numbers))
        digits = compute.match_substring_regex(others, f"[0-9]|{WORDS_OF_TRUTH}")
        self._coded = self._coded or bool(compute.any(digits).as_py())
        if 2 * self._numbers > self._words:
            self._keep_stray(others.filter(compute.invert(digits)), text)

    def _keep_stray(self, words: Any, text: Any) -> None:
        from pyarrow import compute

        self._stray_cells += compute.sum(compute.is_in(text, value_set=words)).as_py() or 0
        shown = self._by.shown_words
        for word in words[: shown + 1].to_pylist():
            if word not in self._stray and len(self._stray) == shown:
                self._more_stray = True
            else:
                self._stray.setdefault(word, self._rows + compute.index(text, word).as_py())

    @property
    def has_words(self) -> bool:
        """Whether most of its different cells are words."""
        return self.kind == "string" and 2 * self._numbers < self._words

    def stray_words(self, name: str) -> "StrayWords | None":
        """Words without a digit, where nearly all else are numbers.

        Args:
            name: Of the column.
        """
        mostly = self.kind == "string" and 2 * self._numbers > self._words
        if not mostly or not self._stray or self._coded or self._padded:
            return None
        return StrayWords(name, self._stray, self._stray_cells, self._filled, self._more_stray,
                          self.asked == "number")  # fmt: skip

    @property
    def is_code(self) -> bool:
        """Whether its digits are no number: padded, of telephones, or longer than numbers are."""
        if self.kind not in NUMBERS or self.asked == "number" or not self._digits:
            return False
        long = self.kind == "double" and 2 * self._long > self._cells
        return self._padded or self._phones or long

    @property
    def may_have_na(self) -> bool:
        """Whether NA may be one of its codes, as of countries, and nothing that is missing."""
        others = (self._codes or set()) - {SPELLED_NA}
        many = len(others) >= self._by.codes
        return self.kind == "string" and self.has_na and not self.has_nulls and many

    def type(self, na_is_code: bool = False) -> CellType:
        """The type of all cells seen."""
        words = frozenset() if na_is_code else frozenset((SPELLED_NA,))
        if self.kind == "string" or self.is_code or (self.kind == "null" and self.gaps - {*NULLS}):
            code = self.is_code or self.stray_words("") is not None
            return CellType("string", self.decimal, words, code=code)
        grouped = bool(self.grouped)
        return CellType(
            self.kind, self.decimal, frozenset(self.gaps), self.trimmed, grouped=grouped
        )


@dataclass(frozen=True)
class StrayWords:
    """Words in a column whose other cells are numbers.

    Attributes:
        column: Its name.
        words: The first of them, each with the row in which it is first.
        cells: How many cells hold such words.
        filled: How many cells are not empty.
        more: Whether there are further words.
        asked: Whether somebody has said that the column holds numbers.
    """

    column: str
    words: Mapping[str, int]
    cells: int
    filled: int
    more: bool = False
    asked: bool = False

    @property
    def row(self) -> int:
        """The first row that has one."""
        return min(self.words.values())

    def are_fault(self, most: float = 0.05) -> bool:
        """Whether the table is refused; else the column is text by itself.

        Args:
            most: The share of cells from which on words are too many to be passed over:
                a convention.
        """
        return self.asked or self.cells > most * self.filled

    def fault(self, place: str) -> str:
        """What to say of a table that is refused.

        Args:
            place: Of the first such cell.
        """
        return (
            f"{place}, column {self.column}: {self._no_number}, and most cells of this column "
            f"are. Correct such cells, read them as gaps ({self._as_gaps}), exclude the column, "
            f"or use --kind {self.column}=category."
        )

    def fault_of_row(self, place: str) -> str:
        """What to say of a row whose other cells are not of their columns either."""
        return (
            f"{place}, column {self.column}: {self._no_number}, and cells beside it are not of "
            "their columns either; the row may be shifted, so correct it."
        )

    def note(self, place: str) -> str:
        """What to say of a column that is text by itself."""
        return (
            f"{place}, column {self.column}: {self._no_number}, so the column is text, although "
            f"all but {self.cells:,} of its {self.filled:,} cells are numbers; to have numbers, "
            f"read such cells as gaps: {self._as_gaps}."
        )

    @property
    def _no_number(self) -> str:
        first, *others = self.words
        verb = "is" if len(others) == 1 and not self.more else "are"
        shown = listed(map(repr, others)) + (" and more" if self.more else "")
        return f"{first!r} is not a number" + (f" (nor {verb} {shown})" if others else "")

    @property
    def _as_gaps(self) -> str:
        named = " ".join(f"--missing {shlex.quote(word)}" for word in self.words)
        return f"{named} and so on" if self.more else named


def decide(
    judges: Mapping[str, ColumnJudge], reading: Reading, name: str, some: Any
) -> tuple[dict[str, CellType], list[str]]:
    """The types of all columns, and what to say of those that look like another.

    Args:
        judges: What was seen of each column.
        reading: What the user said.
        name: Of the file.
        some: Some of its rows as text, an Arrow table.
    """
    codes = _with_na_as_code(judges)
    types = {n: judge.type(n in codes) for n, judge in judges.items()}
    used = reading.used(judges)
    digits = [n for n in used if judges[n].is_code and n not in reading.kinds]
    typed = [n for n in used if types[n].arrow != "string"]
    marked = {n: gaps for n in typed if (gaps := types[n].gaps & {*MARKS})}
    grouped = {n: number for n in typed if (number := judges[n].grouped)}
    shown = listed(map(repr, sorted(frozenset().union(*marked.values()))))
    having = {
        "digits": ([n for n in digits if _repeats(some.column(n))], ""),
        "marks": (list(marked), shown),
        "groups": (list(grouped), repr(next(iter(grouped.values()), ""))),
        "NA": ([n for n in codes if n in used], ""),
    }
    notes = [NOTES[what].format(file=name, columns=listed(columns), first=columns[0], shown=cells)
             for what, (columns, cells) in having.items() if columns]  # fmt: skip
    return types, notes


def _with_na_as_code(judges: Mapping[str, ColumnJudge]) -> list[str]:
    """The columns in which NA is a code: none, if it stands for a gap in another."""
    for judge in judges.values():
        if SPELLED_NA in judge.gaps or (judge.has_na and not judge.may_have_na):
            return []
    return [name for name, judge in judges.items() if judge.may_have_na]


def alike(types: Sequence[CellType]) -> list[CellType]:
    """The types of a column in several files, so that rows of all are of one type.

    Example:
        >>> [t.arrow for t in alike([CellType("int64"), CellType("double"), CellType("null")])]
        ['double', 'double', 'double']
        >>> [t.arrow for t in alike([CellType("string", code=True), CellType("int64")])]
        ['string', 'string']
    """
    kinds = {t.arrow for t in types} - {"null"}
    if any(t.code for t in types) and kinds <= {"string", *NUMBERS}:
        return [replace(t, arrow="string", gaps=frozenset((SPELLED_NA,))) for t in types]
    families = (NUMBERS, ("date32[day]", *TIMES), INSTANTS, tuple(kinds)[:1])
    fitting = next((family for family in families if kinds <= {*family} and kinds), None)
    if fitting is None:
        return list(types)
    return [replace(t, arrow=max(kinds, key=fitting.index)) for t in types]


def is_code_text(column: Any) -> bool:
    """Whether a column is text of digits alone, which in another file might look like numbers."""
    types = load_pyarrow().types
    return (
        types.is_string(column.type)
        and column.null_count < len(column)
        and all_match(column, WHOLE)
    )


def read_words(text: Any) -> Any:
    """Text with nulls for what stands for a gap in every column."""
    from pyarrow import compute

    nulls = load_pyarrow().array(null_words(()), "string")
    text = compute.if_else(compute.is_in(text, value_set=nulls), None, text)
    judge = ColumnJudge(".", "text")
    judge.look(text)
    return judge.type(judge.may_have_na).read(text)


def _repeats(column: Any) -> bool:
    """Whether a column does not tell rows apart: of one that does, nobody wants to hear."""
    cells = column.drop_null()
    return len(cells) < 2 or len(cells.unique()) < len(cells)


def _first_with(cells: Any, mark: str) -> str:
    from pyarrow import compute

    found: str = cells.filter(compute.match_substring(cells, mark))[0].as_py()
    return found
