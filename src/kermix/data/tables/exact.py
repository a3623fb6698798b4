"""Numbers as floats, and whole and decimal ones far from zero as differences that lose nothing."""

import math
from decimal import Context, Decimal
from typing import Any

import numpy as np

from kermix.data.tables.common import load_pyarrow

__all__ = ["EXACT", "as_floats", "from_floats", "origin_of", "rounded"]

EXACT = 2**53  # whole numbers below are floats
DIGITS = Context(prec=100)  # of decimal numbers; 76 at most


def origin_of(filled: Any) -> int:
    """A whole number near to all cells, so that differences are exact or nearly so; 0 if none is.

    Args:
        filled: Cells without gaps, of whole or decimal numbers, at least one.

    Example:
        >>> import pyarrow
        >>> origin_of(pyarrow.array([10**18 + 5, 10**18 + 7])), origin_of(pyarrow.array([5, 7]))
        (1000000000000000005, 0)
    """
    from pyarrow import compute

    types = load_pyarrow().types
    if not types.is_integer(filled.type) and not types.is_decimal(filled.type):
        return 0
    ends = compute.min_max(filled).as_py()
    places = _places(filled.type)
    low, high = (_unscaled(ends[name], places) for name in ("min", "max"))
    near = high - low < max(EXACT, min(abs(low), abs(high)))
    if max(abs(low), abs(high)) < EXACT or not near:
        return 0
    return math.floor(ends["min"])


def as_floats(filled: Any, origin: int) -> np.ndarray:
    """Cells without gaps, less an origin."""
    arrow = load_pyarrow()
    if origin and arrow.types.is_integer(filled.type):
        # Python's whole numbers do not overflow.
        return (np.asarray(filled.to_numpy()).astype(object) - origin).astype(np.float64)
    if origin and arrow.types.is_decimal(filled.type):
        places = _places(filled.type)
        base, unit = origin * 10**places, 10**places
        cells = filled.to_pylist()
        return np.array([(_unscaled(c, places) - base) / unit for c in cells], dtype=np.float64)
    numbers = np.asarray(filled.cast(arrow.float64(), safe=False).to_numpy(), dtype=np.float64)
    return numbers - origin if origin else numbers


def from_floats(numbers: np.ndarray, origin: int, own: Any, gone: np.ndarray) -> Any:
    """Floats plus an origin as an Arrow array of a type of numbers, with gaps."""
    arrow = load_pyarrow()
    if arrow.types.is_integer(own):
        return arrow.array(_whole(numbers, origin, own), mask=gone).cast(own)
    if arrow.types.is_decimal(own):
        if origin:
            places = _places(own)
            base, unit = origin * 10**places, 10.0**places
            cells = [None if g else DIGITS.scaleb(Decimal(round(n * unit) + base), -places)
                     for n, g in zip(numbers.tolist(), gone.tolist(), strict=True)]  # fmt: skip
            return arrow.array(cells, own)
        from pyarrow import compute

        found = compute.round(arrow.array(numbers, mask=gone), ndigits=own.scale)
        return found.cast(arrow.decimal256(70, own.scale)).cast(own)
    return arrow.array(numbers, mask=gone).cast(own)


def rounded(numbers: np.ndarray, decimals: int) -> np.ndarray:
    """Numbers with so many decimals; those too large to have any stay as they are."""
    factor = 10.0**decimals
    small = np.abs(numbers) < EXACT / factor
    with np.errstate(over="ignore"):
        return np.where(small, np.rint(numbers * factor) / factor, numbers)


def _places(kind: Any) -> int:
    """Digits after the point."""
    return max(0, kind.scale) if load_pyarrow().types.is_decimal(kind) else 0


def _unscaled(value: Any, places: int) -> int:
    return int(DIGITS.scaleb(value, places)) if isinstance(value, Decimal) else int(value)


def _whole(numbers: np.ndarray, origin: int, own: Any) -> np.ndarray:
    """Floats as whole numbers; the least and the largest of their type where they are beyond."""
    info = np.iinfo(own.to_pandas_dtype())
    wide = np.uint64 if info.min == 0 else np.int64
    if origin:
        steps = [round(n) + origin for n in numbers.tolist()]
        return np.array([min(max(s, info.min), info.max) for s in steps], dtype=wide)
    over = numbers >= float(info.max)
    found = np.where(over, 0.0, np.maximum(numbers, float(info.min))).astype(wide)
    found[over] = info.max
    return found
