"""Columns that no model sees: constants, keys and free text."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from kermix.data.tables.columns import Column, family
from kermix.data.tables.common import load_pyarrow
from kermix.data.tables.frames import Frame, arrow_type, typed_array

__all__ = ["LeftOutColumn"]


@dataclass(frozen=True, eq=False)
class LeftOutColumn(Column):
    """A constant, a key or free text: no model sees it."""

    what: str = "text"  # constant, key or text
    value: Any = None  # the constant, or the first of a key's numbers
    prefix: str = ""  # of a key that is text
    digits: int = 0
    reason: str = ""

    @property
    def kind(self) -> str:  # type: ignore[override]
        """A constant, a key, or text."""
        return self.what

    def decode(self, rows: int, first: int = 0) -> Any | None:
        """A constant again, a key numbered anew; free text does not come back.

        Args:
            rows: How many.
            first: How many rows are before them.
        """
        if self.what == "text":
            return None
        arrow = load_pyarrow()
        own = arrow_type(self.type.arrow)
        if self.what == "constant":
            if self.value is None:
                return arrow.nulls(rows, own)
            return typed_array([self.value], own).take(arrow.array(np.zeros(rows, np.int64)))
        numbers = range(self.value + first, self.value + first + rows)
        if family(own) == "text":
            return arrow.array([f"{self.prefix}{k:0{self.digits}d}" for k in numbers], own)
        if family(own) == "numbers":
            if arrow.types.is_decimal(own) or numbers.stop >= 2**63:
                return arrow.array([str(k) for k in numbers]).cast(own)
            return arrow.array(numbers, arrow.int64()).cast(own, safe=False)
        return arrow.nulls(rows, own)

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
        return self.reason + ("; not modelled, renumbered" if self.what == "key" else "; left out")

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        more = {n: getattr(self, n) for n in ("value", "prefix", "digits", "reason")}
        return {**super().to_dict(), **more}
