"""What all readers of tables share."""

from collections.abc import Iterable
from typing import Any

from kermix.errors import MissingExtraError

__all__ = ["is_number", "listed", "load_pyarrow"]


def is_number(text: str, decimal: str = ".") -> bool:
    """Whether a cell is a number."""
    try:
        float(text.replace(",", ".", 1) if decimal == "," else text)
    except ValueError:
        return False
    return True


def listed(names: Iterable[str]) -> str:
    """Names with commas between; of many, the first twelve."""
    shown = [str(n) for n in names]
    return ", ".join(shown[:12]) + (f" and {len(shown) - 12} more" if len(shown) > 12 else "")


def load_pyarrow() -> Any:
    """PyArrow, or an error that says how to install it."""
    try:
        import pyarrow
    except ImportError:
        raise MissingExtraError(
            "Reading tables needs PyArrow: pip install 'kermix[tables]'."
        ) from None
    return pyarrow
