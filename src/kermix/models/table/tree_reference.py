"""What boosted trees tell about a number from all others: a network learns as much by itself."""

from collections.abc import Callable

import numpy as np

__all__ = ["gains_by_trees"]

LEARNED_FROM, FEWEST = 10_000, 20  # rows, up to twice as many of the first
FINEST = 1e-4  # errors in normal scores, below which they are not told apart
LARGEST_ERROR = 10.0  # in units of its width, so that a few rows do not widen all


def gains_by_trees(
    scores: np.ndarray, own: np.ndarray, number: int, judged: np.ndarray, worst: float
) -> float:
    """Nats that trees gain for a number, against a normal distribution of its own.

    Each half of the rows teaches a centre, and how far the other half is from it; both depend on
    all other numbers. Rows that are judged teach nothing, and nothing is random.

    Args:
        scores: Normal scores of complete rows, (N, Q).
        own: Rows in which the number is no atom, (N,).
        number: Which one.
        judged: Rows that judge.
        worst: Nats of a row, at least.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(2000, 2))
        >>> both = np.stack([x[:, 0], np.sin(2 * x[:, 0]) + 0.1 * x[:, 1]], 1)
        >>> rows, judged = np.ones(2000, bool), np.arange(0, 2000, 4)
        >>> round(gains_by_trees(both, rows, 1, judged, -10.0), 1)
        2.0
    """
    from sklearn.ensemble import HistGradientBoostingRegressor

    inputs, wanted = np.delete(scores, number, 1), scores[:, number]
    other = own.copy()
    other[judged] = False
    rows = np.flatnonzero(other)
    rows, judged = rows[:: max(1, len(rows) // LEARNED_FROM)], judged[own[judged]]
    if len(rows) < FEWEST:
        return 0.0  # too few to teach anything

    def trees(some: np.ndarray, values: np.ndarray, count: int) -> Callable[..., np.ndarray]:
        model = HistGradientBoostingRegressor(
            learning_rate=0.15, max_leaf_nodes=16, max_iter=count, early_stopping=False
        )  # stopped early, it would draw rows at random
        model.fit(inputs[some], values)
        return lambda asked: model.predict(inputs[asked])

    halves = rows[::2], rows[1::2]
    first, second = (trees(half, wanted[half], 60) for half in halves)
    errors = np.concatenate(
        [wanted[halves[1]] - first(halves[1]), wanted[halves[0]] - second(halves[0])]
    )
    rows = np.concatenate(halves[::-1])
    width = trees(rows, np.log(np.abs(errors) + FINEST), 30)
    size = np.sqrt(np.mean(np.minimum(np.abs(errors) / np.exp(width(rows)), LARGEST_ERROR) ** 2))
    log_scales = np.log(size) + width(judged)
    z = (wanted[judged] - (first(judged) + second(judged)) / 2) / np.exp(log_scales)
    return float(np.maximum((wanted[judged] ** 2 - z**2) / 2 - log_scales, worst).mean())
