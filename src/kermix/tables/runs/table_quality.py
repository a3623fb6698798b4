"""How good samples of a table are: densities, a classifier's verdict, pairs, privacy."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from scipy.special import logsumexp

from kermix.data.readers.common import Reading
from kermix.data.schema.columns import CategoryColumn
from kermix.data.schema.schema import EncodedTable, Schema
from kermix.errors import SampleError
from kermix.tables.compare.column_changes import (
    ColumnValues,
    ComparedRows,
    difference_of,
    pair_groups,
    variation,
)
from kermix.tables.compare.compare import read_once
from kermix.tables.compare.verdict import classify
from kermix.tables.evaluate.entities import looked_at, panel_of
from kermix.tables.model.closeness import closest_distances, copies
from kermix.training.mixture_search import gaussian_log_densities

__all__ = [
    "Pair",
    "Privacy",
    "TableQuality",
    "grouped",
    "judge_samples",
    "tree_categories",
    "tree_features",
]

GROUPS = 8  # of a column, where two are looked at together
MOST_CLASSES = 255  # of a categorical feature, for scikit-learn's trees
NEAREST_ROWS, AMONG = 500, 10_000
CENTRES = 1000  # of the kernel density of one column
SHOWN_PAIRS = 10


@dataclass(frozen=True)
class Pair:
    """Two columns, and how different data and samples are in their joint distribution."""

    first: str
    second: str
    difference: float  # total variation of the shares of at most 8 x 8 groups


@dataclass(frozen=True)
class Privacy:
    """Distances to the closest training row: median and 5 % quantile, of samples and of new rows.

    They say how far is far. Whether samples are nearer than new rows are is the question of
    `kermix.evaluate`, which looks for near copies. See
    `kermix.tables.model.closeness.closest_distances`; in a panel of entities the place, such as
    the year, does not count.
    """

    samples: tuple[float, float]
    held_out: tuple[float, float] | None


@dataclass(frozen=True)
class TableQuality:
    """What a report says of samples.

    Attributes:
        log_density: Mean of the model's log-densities, in the user's units.
        density_name: Of which rows it is.
        references: Simpler models' mean log-densities of the same rows, by name.
        auc: How well a classifier tells samples from data, as in `Verdict.effect`; None for too
            few rows.
        interval: Of 95 % for it.
        copies: Share of samples that equal a training row.
        copies_held: Share of held-out rows that do; None if there are none.
        privacy: Distances to training rows.
        columns: The difference of each column between data and samples, as in `ColumnVerdict`.
        pairs: The pairs that differ most.
        pair_floor: What equal distributions would give for a pair, about.
    """

    log_density: float
    density_name: str
    references: tuple[tuple[str, float], ...]
    auc: float | None
    interval: tuple[float, float] | None
    copies: float
    copies_held: float | None
    privacy: Privacy
    columns: tuple[tuple[str, float], ...]
    pairs: tuple[Pair, ...]
    pair_floor: float

    def as_json(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def judge_samples(
    tables: tuple[Any, Any],
    schema: Schema,
    data: EncodedTable,
    samples: EncodedTable,
    train: np.ndarray,
    held: np.ndarray,
    log_density: np.ndarray,
) -> TableQuality:
    """Compare samples with the rows of a table.

    The classifier and the differences of columns are those of `km.compare` on the same tables.

    Args:
        tables: All rows, and the samples, as tables.
        schema: What the columns are.
        data: All rows.
        samples: Rows of a model, decoded and encoded again.
        train: Which rows the model was trained with.
        held: Which rows were held out; may be empty.
        log_density: The model's log-density of the rows held out, or else of training rows.
    """
    fitted = data[train]
    judged = data[np.sort(held) if len(held) else np.sort(train[: len(log_density)])]
    usual = {c.name: c.kind for c in Schema.infer(tables[0]).columns}
    chosen = {c.name: c.kind for c in schema.columns if c.kind != usual.get(c.name)}
    rows = ComparedRows.of(read_once(tables, Reading(kinds=chosen)).read)
    apart = classify(rows)
    names = [name for name in rows.names if name in {c.name for c in schema.modelled}]
    values = {name: rows.column(name) for name in names}
    pairs, floor = _pairs(values, rows.n)
    return TableQuality(
        log_density=float(log_density.mean()),
        density_name="held-out log-density" if len(held) else "log-density of the rows fitted",
        references=tuple(_references(schema, fitted, judged)),
        auc=None if apart is None else apart.auc,
        interval=None if apart is None else apart.interval,
        copies=float(copies(samples, fitted).mean()) if len(samples) else 0.0,
        copies_held=float(copies(data[held], fitted).mean()) if len(held) else None,
        privacy=_privacy(schema, samples, fitted, data[held]),
        columns=tuple((name, difference_of(values[name], rows.n)) for name in names),
        pairs=pairs,
        pair_floor=floor,
    )


def _pairs(values: Mapping[str, ColumnValues], n: int) -> tuple[tuple[Pair, ...], float]:
    """The pairs of columns that differ most, and how much two halves of the data do."""
    half = np.random.default_rng(0).permutation(n)
    found: list[Pair] = []
    floors: list[float] = []
    for one, two in combinations(values.values(), 2):
        groups = pair_groups(one, two)
        found.append(Pair(one.name, two.name, variation(groups, n)))
        if len(floors) < SHOWN_PAIRS:
            floors.append(variation(groups[half], n // 2))
    worst = sorted(found, key=lambda pair: -pair.difference)[:SHOWN_PAIRS]
    return tuple(worst), float(np.mean(floors)) if floors else 0.0


def grouped(schema: Schema, data: EncodedTable, rows: EncodedTable) -> np.ndarray:  # (N, D)
    """Each column in at most 8 groups: its most frequent codes, or eighths of its numbers."""
    places, known = schema.positions(rows), schema.positions(data)
    number = {column.name: k for k, column in enumerate(schema.numbers)}
    found = np.empty(rows.codes.shape, np.int64)
    for k, column in enumerate(schema.modelled):
        codes = rows.codes[:, k]
        if isinstance(column, CategoryColumn):
            counts = np.bincount(data.codes[:, k], minlength=column.code_count)
            group = np.full(column.code_count, GROUPS - 1)
            often = counts.argsort(kind="stable")[::-1][: GROUPS - 1]
            group[often] = np.arange(len(often))
            found[:, k] = group[codes]
            continue
        q = number[column.name]
        missing = column.missing_code
        filled = known[data.codes[:, k] != missing, q] if missing is not None else known[:, q]
        cuts = np.quantile(filled, np.arange(1, GROUPS - 1) / (GROUPS - 1)) if len(filled) else []
        found[:, k] = np.searchsorted(np.unique(cuts), places[:, q])
        if missing is not None:
            found[codes == missing, k] = GROUPS - 1
    return found


def tree_categories(schema: Schema) -> list[bool]:
    """Which modelled columns are categories to scikit-learn's trees."""
    return [isinstance(c, CategoryColumn) and c.code_count <= MOST_CLASSES
            for c in schema.modelled]  # fmt: skip


def tree_features(schema: Schema, rows: EncodedTable) -> np.ndarray:  # (N, D)
    """Rows as trees take them: codes of categories, places of numbers, gaps as NaN."""
    found = rows.codes.astype(np.float64)
    places = schema.positions(rows)
    for q, k in enumerate(schema.number_columns):
        found[:, k] = places[:, q]
    for k, column in enumerate(schema.modelled):
        if column.missing_code is not None:
            found[rows.codes[:, k] == column.missing_code, k] = np.nan
    return found


def _references(
    schema: Schema, fitted: EncodedTable, judged: EncodedTable
) -> list[tuple[str, float]]:
    found = [("independent columns", _independent(schema, fitted, judged))]
    plain = all(not len(c.atoms) and not c.gaps for c in schema.numbers)
    if len(schema.numbers) == len(schema.modelled) and plain and len(fitted) > len(schema.numbers):
        found += _one_gaussian(schema, fitted, judged)
    return found


def _independent(schema: Schema, fitted: EncodedTable, judged: EncodedTable) -> float:
    """Frequencies of codes times a kernel density of scores, column by column."""
    total = schema.log_derivative(judged).sum(1)
    for k, column in enumerate(schema.modelled):
        counts = np.bincount(fitted.codes[:, k], minlength=column.code_count) + 0.5
        total = total + np.log(counts / counts.sum())[judged.codes[:, k]]
    for q, k in enumerate(schema.number_columns):
        own = fitted.values[fitted.codes[:, k] == 0, q][:CENTRES]
        at = judged.codes[:, k] == 0
        if len(own) < 2:
            own = np.array([-1.0, 0.0, 1.0])  # scores are about standard normal
        width = 1.06 * max(own.std(), 1e-3) * len(own) ** -0.2  # Silverman's rule
        z = (judged.values[at, q][:, None] - own) / width
        logs = logsumexp(-0.5 * z**2, axis=1) - np.log(len(own) * width * np.sqrt(2 * np.pi))
        total[at] += logs
    return float(total.mean())


def _one_gaussian(
    schema: Schema, fitted: EncodedTable, judged: EncodedTable
) -> list[tuple[str, float]]:
    values, others = (
        torch.from_numpy(
            np.stack([c.map.inverse(t.values[:, q]) for q, c in enumerate(schema.numbers)], 1)
        )
        for t in (fitted, judged)
    )
    try:
        return [("one Gaussian", float(gaussian_log_densities(values, others).mean()))]
    except SampleError:
        return []  # numbers too large or small to have variances


def _privacy(
    schema: Schema, samples: EncodedTable, fitted: EncodedTable, held: EncodedTable
) -> Privacy:
    few = samples[:NEAREST_ROWS]
    places = _places(schema, fitted)
    to_training = closest_distances(schema, few, fitted[:AMONG], places)
    if len(held) < 2:
        return Privacy(_spread(to_training), None)
    of_held = closest_distances(schema, held[:NEAREST_ROWS], fitted[:AMONG], places)
    return Privacy(_spread(to_training), _spread(of_held))


def _places(schema: Schema, rows: EncodedTable) -> tuple[str, ...]:
    """Columns of a panel in which held-out rows are never where training rows are: the year."""
    some = rows[looked_at(len(rows)).numpy()]
    numbers, positions = list(schema.numbers), schema.positions(some)
    columns = {}
    for k, column in enumerate(schema.modelled):
        if isinstance(column, CategoryColumn):
            columns[column.name] = ColumnValues(column.name, "category", codes=some.codes[:, k])
        else:
            own = positions[:, numbers.index(column)]
            columns[column.name] = ColumnValues(column.name, column.kind, own)
    panel = panel_of(columns)
    return () if panel is None else panel.places


def _spread(distances: np.ndarray) -> tuple[float, float]:
    return float(np.median(distances)), float(np.quantile(distances, 0.05))
