"""Weights of rows, as scikit-learn's `sample_weight`."""

from typing import Any

import numpy as np

from kermix.errors import OptionError

__all__ = ["row_weights"]


def row_weights(given: Any, rows: int) -> np.ndarray:  # (rows,), float32
    """Weights as shares of the largest, some of which may be 0.

    Example:
        >>> row_weights([1, 0, 2], 3).tolist()
        [0.5, 0.0, 1.0]
    """
    try:
        weights = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        weights = np.empty(0)  # refused below
    good = weights.shape == (rows,) and bool(np.isfinite(weights).all())
    if not good or bool((weights < 0).any()) or not bool((weights > 0).any()):
        raise OptionError(
            f"sample_weight must be {rows} finite, non-negative numbers, not all zero."
        )
    return (weights / weights.max()).astype(np.float32)
