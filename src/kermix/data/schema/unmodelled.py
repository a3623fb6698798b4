"""Columns that no model sees: constants, keys and free text."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kermix.data.readers.common import load_pyarrow
from kermix.data.readers.frames import (
    Frame,
    arrow_type,
    family,
    typed_array,
)
from kermix.data.schema.columns import Column
from kermix.data.schema.keys import KeyMaker, KeyPattern
from kermix.errors import SchemaError

__all__ = ["LeftOutColumn"]


@dataclass(frozen=True, eq=False)
class LeftOutColumn(Column):
    """A constant, a key or free text: no model sees it."""

    what: str = "text"  # constant, key or text
    value: Any = None  # the constant
    reason: str = ""
    pattern: KeyPattern | None = None  # of a key

    @property
    def kind(self) -> str:  # type: ignore[override]
        """A constant, a key, or text."""
        return self.what

    @property
    def comes_back_empty(self) -> bool:
        """Whether samples have nothing in it, though the table has something."""
        return self.what != "constant" and self.pattern is None

    @property
    def why_empty(self) -> str:
        """Why samples have nothing in it, as the end of a sentence."""
        if self.what == "key":
            return "ids without a pattern are not made anew."
        if self.reason.startswith("holds "):
            return f"what {self.reason} is not modelled."
        return "free text is not modelled."

    def decode(self, rows: int, seed: int = 0) -> Any:
        """A constant again, new ids in the pattern of a key; free text comes back empty.

        Args:
            rows: How many.
            seed: Of the ids.
        """
        return self.source(seed)(rows)

    def source(self, seed: int) -> Callable[[int], Any]:
        """What makes the cells of so many further rows each time, no id of which is made twice."""
        arrow = load_pyarrow()
        own = self._own_type
        if self.pattern is None:
            if self.value is None:
                return lambda rows: arrow.nulls(rows, own)
            cell = typed_array([self.value], own)
            return lambda rows: cell.take(arrow.array(np.zeros(rows, np.int64)))
        numbers = family(own) == "numbers"
        highest = np.iinfo(own.to_pandas_dtype()).max if arrow.types.is_integer(own) else None
        maker = KeyMaker(self.pattern, self.gaps, seed ^ zlib.crc32(self.name.encode()), highest)

        def made(rows: int) -> Any:
            cells = arrow.array(maker.take(rows), arrow.string())
            if not numbers:
                return cells.cast(own)
            try:
                return cells.cast(own)
            except arrow.ArrowInvalid:  # an integer of few bits has no further ones
                return cells.cast(arrow.int64()).cast(own, safe=False)

        return made

    @property
    def _own_type(self) -> Any:
        try:
            return arrow_type(self.type.arrow)
        except SchemaError:  # of lists, say
            return load_pyarrow().null()

    def is_constant_in(self, frame: Frame) -> bool:
        """Whether a table has nothing but the constant, and gaps, where it has this column."""
        if self.what != "constant" or self.value is None or self.name not in frame.columns:
            return False
        from pyarrow import compute

        arrow = load_pyarrow()
        filled = frame.columns[self.name].drop_null()
        try:
            filled = filled.cast(arrow_type(self.type.arrow))
        except (arrow.ArrowInvalid, arrow.ArrowNotImplementedError):
            return False  # no value of another kind is the constant
        constant = self.decode(1)
        assert constant is not None
        return compute.all(compute.equal(filled, constant[0])).as_py() is not False

    def details(self) -> str:
        """What becomes of it."""
        if self.what == "constant":
            return f"always {self.value!r}" if self.value is not None else "empty"
        told = "empty" if self.pattern is None else "new ones"
        return f"{self.reason}; not modelled, {told} in samples"

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        pattern = None if self.pattern is None else self.pattern.to_dict()
        more = {"value": self.value, "reason": self.reason, "pattern": pattern}
        return {**super().to_dict(), **more}

    @classmethod
    def from_dict(cls, what: str, saved: dict[str, Any]) -> "LeftOutColumn":
        """What was saved, its type apart; of a key of older versions, how it began."""
        fields = dict(saved)
        prefix, digits = fields.pop("prefix", ""), fields.pop("digits", 0)
        pattern = fields.pop("pattern", None)
        if pattern is not None:
            return cls(what=what, **fields, pattern=KeyPattern.from_dict(pattern))
        if what != "constant":
            first = fields.pop("value", None)
            if what == "key" and first is not None and (
                prefix or family(arrow_type(fields["type"].arrow)) == "numbers"
            ):  # fmt: skip
                return cls(what=what, **fields, pattern=KeyPattern.counting(prefix, digits, first))
        return cls(what=what, **fields)
