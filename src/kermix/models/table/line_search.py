"""Which numbers straight lines foretell, and in how many regimes."""

import warnings
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from kermix.data.tables.monotone import MonotoneMap
from kermix.data.tables.schema import EncodedTable, Schema
from kermix.models.table.lines import RIDGE, Lines, StraightLines
from kermix.models.table.tree_reference import gains_by_trees

__all__ = ["find_lines"]

LOOKED_AT, SORTED, JUDGED = 20_000, 5000, 2000  # rows for lines, for regimes, for their gains
MOST_NUMBERS, MOST_WORK = 64, 8 * 40**3  # work: regimes times the cube of numbers
LEAST_FILLED = 0.5  # share of rows: columns with more gaps have no part in lines
ROWS_OF_EACH = 10  # for each number, or a line follows the noise
REGIMES = (2, 4, 8)  # that are tried
ROWS_OF_REGIMES = 4  # for each number and regime: too many regimes are seen by the other rows
LEAST_MORE = 0.5  # nats of a row that more regimes must tell
LEAST_GAIN = 1.0  # nats: the error of a line is a third of the spread of the number
CLOSE_GAIN = 4.0  # nats: the error is a fiftieth of the spread, as in sums with a few slips
MORE_THAN_TREES = 1.0  # nats of a row: what trees know as well, a network learns without lines
WORST = -10.0  # nats of a row: a mixture has room for a few that are off the line
LEFT_OUT = 0.01  # share of rows that are farthest from the others


def find_lines(
    schema: Schema, encoded: EncodedTable, rows_of_each: int = ROWS_OF_EACH
) -> Lines | None:
    """Lines of a table, if some number is foretold much better by them than by its own column.

    Half of the rows that have all numbers are for the lines, the others judge them; a number
    follows lines if its log-density rises by a nat and by more than boosted trees can tell;
    unless lines are close, all numbers together must rise by a nat more than that.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> a, b = rng.exponential(size=(2, 400)) * 100
        >>> table = {"a": a, "b": b, "total": a + b, "c": rng.normal(size=400)}
        >>> schema = Schema.of(table)
        >>> find_lines(schema, schema.encode(table)).followed
        array([ True,  True,  True, False])
    """
    columns = schema.numbers
    names = tuple(column.name for column in columns)
    if not 2 <= len(names) <= MOST_NUMBERS:
        return None
    encoded = encoded[:: max(1, len(encoded) // LOOKED_AT)]
    codes = encoded.codes[:, schema.number_columns]
    known = (codes <= np.array([len(column.atoms) for column in columns])) & (codes >= 0)
    filled = known.mean(0) >= LEAST_FILLED
    some = known[:, filled].all(1)
    codes, scores = codes[some], schema.positions(encoded)[some]
    if len(scores) < 2 * rows_of_each * len(names):
        return None
    maps = tuple(column.map for column in columns)
    values = np.stack([own.inverse(scores[:, k]) for k, own in enumerate(maps)], 1)
    values[:, ~filled] = 0.0  # no line goes through them
    continuous = (codes == 0) & filled
    others = slice(1, None, 2 * max(1, len(values) // (2 * JUDGED)))
    best: tuple[int, Tensor] | None = None
    for regimes in (1, *REGIMES):
        few = len(values) // 2 < ROWS_OF_REGIMES * regimes * len(names)
        if regimes > 1 and (few or regimes * len(names) ** 3 > MOST_WORK):
            break
        learned = lines_of(names, values[::2], regimes)
        if learned is None:
            break
        gains = _mean_gains(learned, maps, scores[others], continuous[others])
        if best is None or gains.clamp(min=0).sum() > best[1].clamp(min=0).sum() + LEAST_MORE:
            best = regimes, gains
    found = None if best is None else lines_of(names, values, best[0])
    if best is None or found is None:
        return None
    told, enough = best[1].numpy(), continuous[others].sum(0) >= rows_of_each
    followed, closely = ((told > least) & enough for least in (LEAST_GAIN, CLOSE_GAIN))
    judged, more = np.arange(len(values))[others], np.zeros(len(names))
    for k in np.flatnonzero(followed & ~closely):
        more[k] = told[k] - gains_by_trees(scores, continuous[:, k], int(k), judged, WORST)
    worth = more.clip(min=0).sum() > MORE_THAN_TREES
    followed = closely | ((more > 0) & worth)
    if not followed.any():
        return None
    return replace(found, followed=followed, closely=closely)


def lines_of(names: tuple[str, ...], rows: np.ndarray, regimes: int = 1) -> Lines | None:
    """Those of complete rows; None where all columns are constant or not finite in them.

    Rows that are far from the others, by mistake or in a long tail, would draw the lines to
    them, so the farthest are left out, in two rounds.
    """
    found, near = lines_of_all(names, rows), rows
    for _ in range(2):
        if found is None:
            return None
        near = rows[_near(found, rows)]
        found = lines_of_all(names, near)
    return found if found is None or regimes == 1 else _in_regimes(found, near, regimes)


def lines_of_all(names: tuple[str, ...], rows: np.ndarray) -> Lines | None:
    """Lines of one regime, of all rows; columns without a spread, or too wide, are on none."""
    with np.errstate(over="ignore", invalid="ignore"):
        centre, size = rows.mean(0), rows.std(0)
    spread = np.isfinite(centre) & np.isfinite(size) & (size > 0)
    if not spread.any():
        return None
    centre, size = np.where(spread, centre, 0.0), np.where(spread, size, 1.0)
    scaled = np.where(spread, rows - centre, 0.0) / size
    correlation = scaled.T @ scaled / len(rows) + np.diag(np.where(spread, RIDGE, 1.0))
    every = np.ones(len(names), bool)
    return Lines(names, size, np.ones(1), centre[None], correlation[None], every, every)


def _near(lines: Lines, rows: np.ndarray) -> np.ndarray:  # (N,), bool
    scaled = _scaled(lines, rows)
    distance = (np.linalg.solve(lines.correlation[0], scaled.T).T * scaled).sum(1)
    return distance <= np.quantile(distance, 1 - LEFT_OUT)


def _scaled(lines: Lines, rows: np.ndarray) -> np.ndarray:  # (N, Q)
    """In deviations from the mean; 0 in columns that no line goes through."""
    linked = lines.correlation[0] - np.diag(np.diag(lines.correlation[0]))
    return np.where(linked.any(0), rows - lines.centre[0], 0.0) / lines.size


def _in_regimes(lines: Lines, rows: np.ndarray, regimes: int) -> Lines | None:
    """Several regimes by expectation-maximization; None where one of them has no spread."""
    try:
        from sklearn.mixture import GaussianMixture
    except ImportError:
        return None
    mixture = GaussianMixture(regimes, reg_covar=RIDGE, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # regimes need not be the best there are: rows judge them
        try:
            some = rows[:: max(1, len(rows) // SORTED)]
            scaled = _scaled(lines, some)
            mixture.fit(scaled)
        except ValueError:
            return None
    centre = lines.centre[0] + mixture.means_ * lines.size
    alone = np.diag(np.where(scaled.any(0), 0.0, 1.0))
    correlation = mixture.covariances_ + alone
    return replace(lines, shares=mixture.weights_, centre=centre, correlation=correlation)


def _mean_gains(
    lines: Lines, maps: tuple[MonotoneMap, ...], scores: np.ndarray, continuous: np.ndarray
) -> Tensor:  # (Q,)
    """Nats that each number gains from all others, against a normal distribution of its own."""
    solver, places = StraightLines(lines, maps).eval(), torch.from_numpy(scores)
    found = []
    for k in range(places.shape[1]):
        seen = torch.ones_like(places, dtype=torch.bool)
        seen[:, k] = False
        centres, scales = (part[:, k].double() for part in solver(places, seen))
        z = (places[:, k] - centres) / scales
        found.append((places[:, k].square() - z.square()) / 2 - scales.log())
    gains, counted = torch.stack(found, 1).clamp(min=WORST), torch.from_numpy(continuous)
    return (gains * counted).sum(0) / counted.sum(0).clamp(min=1)
