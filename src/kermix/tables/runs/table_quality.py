"""What a fit's report says: how good samples are, columns given others, and what may help."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import combinations, pairwise
from typing import Any, Protocol

import numpy as np
import torch
from scipy.special import logsumexp

from kermix.data.readers.common import Reading
from kermix.data.readers.frames import Frame, taken_rows
from kermix.data.schema.columns import CategoryColumn, NumberColumn
from kermix.data.schema.schema import EncodedTable, Schema
from kermix.errors import SampleError
from kermix.pages.charts import Bins
from kermix.runs.run import Outcome
from kermix.tables.compare.coincidence import read_once
from kermix.tables.compare.column_changes import (
    ColumnValues,
    ComparedRows,
    difference_of,
    pair_groups,
    variation,
    variation_by_chance,
)
from kermix.tables.compare.column_charts import encoded_values, step_of
from kermix.tables.model.distribution import ColumnDistribution
from kermix.tables.model.table_settings import TableModelSettings
from kermix.tables.model.training_rows import closest_distances, copies
from kermix.training.budget import BEST, DEFAULT, QUICK, in_words, seconds_of
from kermix.training.mixture_search import gaussian_log_densities
from kermix.two_sample.classifier_test import area_text, tell_apart
from kermix.two_sample.permutation import own_generator

__all__ = [
    "Conditional",
    "Pair",
    "Privacy",
    "TableQuality",
    "conditionals_of",
    "grouped",
    "judge_samples",
    "longer_budget",
    "not_good_yet",
    "steps_told",
    "strongest_pairs",
]

GROUPS = 8  # of a column, where two are looked at together


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
    `kermix.evaluate`, which looks for near copies. In a panel of entities the place, such as the
    year, does not count.
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
        pair_floor: What equal distributions would give for a pair, on average, as in
            `Evaluation.tables`.
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
    rows = _read_as(schema, tables)
    apart = tell_apart(rows.pooled, rows.n, rows.places, own_generator(0))
    modelled = {column.name for column in schema.modelled}
    values = {name: rows.column(name) for name in rows.names if name in modelled}
    pairs, floor = _pairs(values, rows.n)
    return TableQuality(
        log_density=float(log_density.mean()),
        density_name="held-out log-density" if len(held) else "log-density of the rows fitted",
        references=tuple(_references(schema, fitted, judged)),
        auc=None if apart is None else apart.auc,
        interval=None if apart is None else apart.interval,
        copies=_copied(samples, fitted) or 0.0,
        copies_held=_copied(data[held], fitted),
        privacy=_privacy(schema, samples, fitted, data[held]),
        columns=tuple((n, difference_of(found, rows.n)) for n, found in values.items()),
        pairs=pairs,
        pair_floor=floor,
    )


def _read_as(schema: Schema, tables: tuple[Any, Any]) -> ComparedRows:
    """Two tables as `km.compare` reads them, with the kinds of columns that the run has."""
    usual = {c.name: c.kind for c in Schema.infer(tables[0]).columns}
    chosen = {c.name: c.kind for c in schema.columns if c.kind != usual.get(c.name)}
    return ComparedRows.of(read_once(tables, Reading(kinds=chosen)).read)


def _copied(rows: EncodedTable, fitted: EncodedTable) -> float | None:
    """The share of rows that equal a training row; None of no rows."""
    return float(copies(rows, fitted).mean()) if len(rows) else None


def _pairs(
    values: Mapping[str, ColumnValues], n: int, shown: int = 10
) -> tuple[tuple[Pair, ...], float]:
    """The pairs of columns that differ most, and how much pairs would by chance."""
    found: list[Pair] = []
    by_chance: list[float] = []
    for one, two in combinations(values.values(), 2):
        groups = pair_groups(one, two)
        found.append(Pair(one.name, two.name, variation(groups, n)))
        by_chance.append(variation_by_chance(groups, n))
    worst = sorted(found, key=lambda pair: -pair.difference)[:shown]
    return tuple(worst), float(np.mean(by_chance)) if by_chance else 0.0


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


def _references(
    schema: Schema, fitted: EncodedTable, judged: EncodedTable
) -> list[tuple[str, float]]:
    found = [("independent columns", _independent(schema, fitted, judged))]
    plain = all(not len(c.atoms) and not c.gaps for c in schema.numbers)
    if len(schema.numbers) == len(schema.modelled) and plain and len(fitted) > len(schema.numbers):
        found += _one_gaussian(schema, fitted, judged)
    return found


def _independent(
    schema: Schema, fitted: EncodedTable, judged: EncodedTable, centers: int = 1000
) -> float:
    """Frequencies of codes times a kernel density of scores, column by column."""
    total = schema.log_derivative(judged).sum(1)
    for k, column in enumerate(schema.modelled):
        counts = np.bincount(fitted.codes[:, k], minlength=column.code_count) + 0.5
        total = total + np.log(counts / counts.sum())[judged.codes[:, k]]
    for q, k in enumerate(schema.number_columns):
        own = fitted.values[fitted.codes[:, k] == 0, q][:centers]
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
    schema: Schema,
    samples: EncodedTable,
    fitted: EncodedTable,
    held: EncodedTable,
    rows: int = 500,
    among: int = 10_000,
) -> Privacy:
    few = samples[:rows]
    places = _places(schema, fitted)
    to_training = closest_distances(schema, few, fitted[:among], places)
    if len(held) < 2:
        return Privacy(_spread(to_training), None)
    of_held = closest_distances(schema, held[:rows], fitted[:among], places)
    return Privacy(_spread(to_training), _spread(of_held))


def _places(schema: Schema, rows: EncodedTable) -> tuple[str, ...]:
    """Columns of a panel in which held-out rows are never where training rows are: the year."""
    from kermix.tables.evaluate.copies import looked_at, panel_of

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


VALUES = 3


class _Answers(Protocol):
    def conditional(self, column: str, given: Any, *, unseen: Any = ...) -> ColumnDistribution: ...


@dataclass(frozen=True)
class Conditional:
    """A column where another one has some value: shares of its own values.

    Attributes:
        column: The column.
        given: What the other one is, in words.
        values: The column's own values in the data's rows.
        bins: Intervals of a number; None for a category.
        data: Shares in the data's rows.
        model: Shares by the model, the mean over the same rows' values of the other column.
    """

    column: str
    given: str
    values: ColumnValues
    bins: Bins | None
    data: np.ndarray
    model: np.ndarray


def strongest_pairs(
    schema: Schema, data: EncodedTable, most_pairs: int = 3
) -> list[tuple[str, str]]:
    """Columns that tell most about each other, as (given, asked for); none in more than two pairs.

    By the mutual information of at most 8 groups of each. Numbers are asked for rather than
    categories.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> sex = rng.choice(["f", "m"], 400)
        >>> table = {"sex": sex, "size": rng.normal(170 + 10 * (sex == "m"), 5),
        ...          "luck": rng.normal(size=400)}
        >>> schema = Schema.infer(table)
        >>> strongest_pairs(schema, schema.encode(table))[0]
        ('sex', 'size')
    """
    columns, groups = schema.modelled, grouped(schema, data, data)
    plain = [k for k, c in enumerate(columns) if not isinstance(c, NumberColumn) or _is_plain(c)]
    told = {(a, b): _information(groups[:, a], groups[:, b]) for a, b in combinations(plain, 2)}
    found: list[tuple[str, str]] = []
    used: list[int] = []
    for a, b in sorted(told, key=lambda pair: -told[pair]):
        if max(used.count(a), used.count(b)) < 2 and len(found) < most_pairs:
            used += [a, b]
            given, asked = (b, a) if isinstance(columns[b], CategoryColumn) else (a, b)
            found.append((columns[given].name, columns[asked].name))
    return found


def _is_plain(column: NumberColumn) -> bool:
    return not column.time and column.origin == 0


def _information(first: np.ndarray, second: np.ndarray) -> float:
    joint = np.bincount(first * GROUPS + second, minlength=GROUPS**2).reshape(GROUPS, GROUPS)
    joint = joint / max(1, joint.sum())
    apart = joint.sum(1, keepdims=True) * joint.sum(0)
    at = joint > 0
    return float((joint[at] * np.log(joint[at] / apart[at])).sum())


def conditionals_of(
    model: _Answers, schema: Schema, frame: Frame, data: EncodedTable, most_rows: int = 200
) -> list[list[Conditional]]:
    """For each of the strongest pairs, one column where the other has each of some values."""
    found = []
    for given, asked in strongest_pairs(schema, data):
        row = []
        for words, rows in _values(schema, data, given):
            few = np.sort(np.random.default_rng(0).permutation(rows)[:most_rows])
            known = taken_rows(frame, few)
            alone = Frame(known.kind, known.name, {given: known.columns[given]},
                          {given: known.types[given]}, known.rows)  # fmt: skip
            answer = model.conditional(asked, alone, unseen="unknown")
            row.append(_compared(schema, data[rows], answer, words))
        if row:
            found.append(row)
    return found


def _values(
    schema: Schema, data: EncodedTable, name: str, least_rows: int = 30
) -> list[tuple[str, np.ndarray]]:
    """Values of a column in words, and the rows that have them: frequent ones, or thirds."""
    found = encoded_values(schema, data, name)
    if found.codes is not None:
        column = schema[name]
        filled = found.codes != (-1 if column.missing_code is None else column.missing_code)
        often = np.bincount(found.codes[filled]).argsort(kind="stable")[::-1][:VALUES]
        groups = [(f"{name} = {found.names[k]}", found.codes == k) for k in often]
    else:
        assert found.numbers is not None
        values = found.numbers
        filled = ~np.isnan(values)
        ends = np.quantile(values[filled], np.arange(VALUES + 1) / VALUES)
        ends = np.unique(np.append(ends[:-1], np.nextafter(ends[-1], np.inf)))
        groups = []
        for low, high in pairwise(ends):
            rows = (values >= low) & (values < high)
            if rows.any():
                least, most = (f"{v:.4g}" for v in (values[rows].min(), values[rows].max()))
                words = least if least == most else f"{least} to {most}"
                groups.append((f"{name} = {words}", rows))
    return [(w, np.flatnonzero(r)) for w, r in groups if r.sum() >= least_rows]


def _compared(
    schema: Schema, rows: EncodedTable, answer: ColumnDistribution, words: str
) -> Conditional:
    column = answer.column
    values = encoded_values(schema, rows, column.name)
    if values.codes is not None:
        chances = answer.filled.mean(0)
        own = np.bincount(values.codes, minlength=len(chances))[: len(chances)]
        return Conditional(column.name, words, values, None, own / max(1, own.sum()), chances)
    assert values.numbers is not None
    numbers = values.numbers[~np.isnan(values.numbers)]
    bins = Bins.over(numbers, step_of(values), log=False)
    model = answer.shares(bins.edges).mean(0)
    return Conditional(column.name, words, values, bins, bins.shares(numbers), model)


# Conventions.
TO_THE_END = 0.9  # share of the steps after which the best one is called the end
EASILY = 0.9  # AUC from which samples are told from data easily
LONGER = 4  # times as long


def steps_told(outcome: Outcome, kept: int, settings: TableModelSettings) -> str:
    """How many steps there were and how long they took, which was kept, and what more would bring.

    Args:
        outcome: How the training ended.
        kept: The step whose weights are kept; 0 where no rows were held out.
        settings: Those of the fit.
    """
    steps = f"{outcome.step:,}"
    if outcome.trainer is not None and outcome.trainer.task.course.spent:
        steps += f" in {in_words(outcome.trainer.task.course.spent)}"
        if seconds_of(settings.budget) is not None:
            steps += f" of the {settings.budget} for the whole fit"
    if not kept:
        return steps
    if not gained_to_the_end(outcome, kept):
        return (f"{steps}, of which step {kept:,} was kept; held-out rows gained nothing after "
                "it, so more steps would probably not help")  # fmt: skip
    longer = longer_budget(settings)
    how = f" (--budget {longer})" if longer else ""
    return f"{steps}; held-out rows gained to the end, so more steps would probably help{how}"


def gained_to_the_end(outcome: Outcome, kept: int) -> bool:
    """Whether the best step was among the last."""
    return kept >= TO_THE_END * outcome.step


def longer_budget(settings: TableModelSettings) -> str | None:
    """The next longer budget; None where there is none.

    Example:
        >>> longer_budget(TableModelSettings(budget="quick"))
        'default'
        >>> longer_budget(TableModelSettings(budget="30s"))
        '2m'
    """
    seconds = seconds_of(settings.budget)
    if seconds is None:
        return {QUICK: DEFAULT, DEFAULT: BEST, None: BEST}.get(settings.budget)
    return in_words(LONGER * seconds).replace(" min", "m").replace(" ", "")


def not_good_yet(
    quality: TableQuality, outcome: Outcome, kept: int, settings: TableModelSettings
) -> str | None:
    """Why samples should not be used yet, and what would help, as a sentence; None if they may."""
    if quality.auc is None or quality.interval is None or quality.auc < EASILY:
        return None
    told = (f"Not a good model yet: a classifier tells samples from data easily, with "
            f"{area_text(quality.auc, quality.interval)}")  # fmt: skip
    longer = longer_budget(settings)
    if longer is None or not gained_to_the_end(outcome, kept):
        return (f"{told}. More steps would probably not help; more rows or fewer columns "
                "(--exclude) may.")  # fmt: skip
    return f"{told}. A longer fit would probably help: --budget {longer}."
