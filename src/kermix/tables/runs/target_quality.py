"""How well one column of a table is predicted on rows that were kept for a test."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kermix.data.schema.columns import CategoryColumn
from kermix.data.schema.schema import EncodedTable, Schema
from kermix.tables.model.distribution import ColumnDistribution

__all__ = ["ClassQuality", "NumberQuality", "Predicted", "TargetQuality", "judge_target"]

SHARES = (0.5, 0.9, 0.95)  # of the intervals whose coverage is counted
TREE_ROWS = 200_000  # with more the trees would take longer than the model
TREES = "gradient-boosted trees"


@dataclass(frozen=True)
class ClassQuality:
    """Predictions of a category.

    Attributes:
        rows: Test rows.
        accuracy: Share of them whose most likely class is the true one.
        balanced_accuracy: The mean of that over classes, so that rare ones count as much.
        log_loss: Mean of `-log p(true class)`, in nats.
        classes: Names of the classes.
        confusion: Test rows by true class (rows) and class that was found (columns).
        references: What others reach on the same rows: name, accuracy, log-loss.
    """

    rows: int
    accuracy: float
    balanced_accuracy: float
    log_loss: float
    classes: tuple[str, ...]
    confusion: tuple[tuple[int, ...], ...]
    references: tuple[tuple[str, float, float], ...]

    @property
    def absent(self) -> list[str]:
        """Classes without test rows, of which nothing is known."""
        return [n for n, row in zip(self.classes, self.confusion, strict=True) if not sum(row)]

    def as_json(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"target": "category", **asdict(self)}


@dataclass(frozen=True)
class NumberQuality:
    """Predictions of a number.

    Attributes:
        rows: Test rows.
        error: Root of the mean squared error of the predicted means.
        absolute_error: Mean absolute error of the predicted medians.
        r2: Share of the variance of the test rows that the means explain.
        log_density: Mean log-density of the true values, in nats.
        coverage: Share of the true values inside the intervals of `SHARES`, by their randomized
            ranks (`ColumnDistribution.randomized_ranks`).
        references: What others reach on the same rows: name, error, R2.
    """

    rows: int
    error: float
    absolute_error: float
    r2: float
    log_density: float
    coverage: tuple[tuple[float, float], ...]
    references: tuple[tuple[str, float, float], ...]

    def as_json(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"target": "number", **asdict(self)}


TargetQuality = ClassQuality | NumberQuality


@dataclass(frozen=True)
class Predicted:
    """The target's distributions of all test rows, and what was true.

    Attributes:
        found: Distributions, one for each test row, part by part.
        codes: Codes of the true cells.
        scores: Their normal scores; nothing counts for a category.
        numbers: The true numbers, or the codes of a category.
    """

    found: tuple[ColumnDistribution, ...]
    codes: np.ndarray
    scores: np.ndarray
    numbers: np.ndarray

    def chances(self) -> np.ndarray:  # (N, K)
        """Probabilities of the classes."""
        return np.concatenate([part.filled for part in self.found])

    def means(self) -> np.ndarray:  # (N,)
        """Means of a number."""
        return np.concatenate([part.mean() for part in self.found])

    def quantiles(self, share: float) -> np.ndarray:  # (N,)
        """Quantiles of a number."""
        return np.concatenate([part.quantile(share) for part in self.found])

    def ranks(self) -> np.ndarray:  # (N,)
        """Randomized ranks of the true numbers: uniform if the distributions are right."""
        ends = np.cumsum([len(part) for part in self.found])[:-1]
        cells = zip(self.found, np.split(self.numbers, ends), strict=True)
        return np.concatenate([part.randomized_ranks(n, k) for k, (part, n) in enumerate(cells)])

    def log_density(self) -> np.ndarray:  # (N,)
        """Log-densities of the true cells."""
        ends = np.cumsum([len(part) for part in self.found])[:-1]
        cells = zip(self.found, np.split(self.codes, ends), np.split(self.scores, ends),
                    strict=True)  # fmt: skip
        return np.concatenate([part.log_density(c, s) for part, c, s in cells])


def judge_target(
    schema: Schema, target: str, fitted: EncodedTable, test: EncodedTable, predicted: Predicted
) -> TargetQuality:
    """Compare predictions with the truth, and with what is simple or usual.

    Args:
        schema: What the columns are.
        target: The column.
        fitted: The rows that were trained with.
        test: The test rows.
        predicted: What the model says of them.
    """
    place = [c.name for c in schema.modelled].index(target)
    column = schema.modelled[place]
    others = [k for k in range(len(schema.modelled)) if k != place]
    inputs = [tree_features(schema, rows)[:, others] for rows in (fitted, test)]
    categories = [tree_categories(schema)[k] for k in others]
    if isinstance(column, CategoryColumn):
        return _classes(column, fitted.codes[:, place], predicted, inputs, categories)
    number = schema.numbers.index(column)
    known = column.numbers_of(fitted.codes[:, place], fitted.values[:, number])
    known = known + column.origin
    return _number(known, predicted, inputs, categories)


def _classes(
    column: CategoryColumn, known: np.ndarray, predicted: Predicted, inputs: list[np.ndarray],
    categories: list[bool],
) -> ClassQuality:  # fmt: skip
    chances, truth = predicted.chances(), predicted.codes
    count = chances.shape[1]
    confusion = np.zeros((count, count), np.int64)
    np.add.at(confusion, (truth, chances.argmax(1)), 1)
    of_class = confusion.sum(1)
    recall = confusion.diagonal()[of_class > 0] / of_class[of_class > 0]
    shares = np.bincount(known, minlength=count) / len(known)
    often = np.broadcast_to(shares, chances.shape)
    references = [("the most frequent class", *_class_numbers(often, truth))]
    trees = _tree_chances(inputs, known, categories, count)
    if trees is not None:
        references.append((TREES, *_class_numbers(trees, truth)))
    accuracy, loss = _class_numbers(chances, truth)
    return ClassQuality(
        len(truth), accuracy, float(recall.mean()), loss, column.code_names[:count],
        tuple(tuple(int(n) for n in row) for row in confusion), tuple(references),
    )  # fmt: skip


def _class_numbers(
    chances: np.ndarray, truth: np.ndarray, least_chance: float = 1e-12
) -> tuple[float, float]:
    own = chances[np.arange(len(truth)), truth].clip(least_chance)
    return float((chances.argmax(1) == truth).mean()), float(-np.log(own).mean())


def _number(
    known: np.ndarray, predicted: Predicted, inputs: list[np.ndarray], categories: list[bool]
) -> NumberQuality:
    truth, means = predicted.numbers, predicted.means()
    apart = np.abs(predicted.ranks() - 0.5)
    coverage = [(share, float((apart <= share / 2).mean())) for share in SHARES]
    error, r2 = _number_numbers(means, truth)
    constant = np.full(len(truth), known.mean())
    references = [("the mean of the training rows", *_number_numbers(constant, truth))]
    trees = _tree_means(inputs, known, categories)
    references.append((TREES, *_number_numbers(trees, truth)))
    absolute = float(np.abs(predicted.quantiles(0.5) - truth).mean())
    return NumberQuality(
        len(truth), error, absolute, r2, float(predicted.log_density().mean()), tuple(coverage),
        tuple(references),
    )  # fmt: skip


def _number_numbers(found: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
    squared = float(((found - truth) ** 2).mean())
    variance = float(truth.var())
    return squared**0.5, 1 - squared / variance if variance > 0 else 0.0


def _tree_chances(
    inputs: list[np.ndarray],
    known: np.ndarray,
    categories: list[bool],
    count: int,
    most_classes: int = 20,
) -> np.ndarray | None:
    from sklearn.ensemble import HistGradientBoostingClassifier

    if len(np.unique(known)) > most_classes or not categories:
        return None
    trees = HistGradientBoostingClassifier(categorical_features=categories, early_stopping=False,
        random_state=0)  # fmt: skip
    trees.fit(inputs[0][:TREE_ROWS], known[:TREE_ROWS])
    found = np.zeros((len(inputs[1]), count))
    found[:, trees.classes_] = trees.predict_proba(inputs[1])
    return found


def _tree_means(inputs: list[np.ndarray], known: np.ndarray, categories: list[bool]) -> np.ndarray:
    from sklearn.ensemble import HistGradientBoostingRegressor

    trees = HistGradientBoostingRegressor(categorical_features=categories, early_stopping=False,
        random_state=0)  # fmt: skip
    return np.asarray(trees.fit(inputs[0][:TREE_ROWS], known[:TREE_ROWS]).predict(inputs[1]))


def tree_categories(schema: Schema) -> list[bool]:
    """Which modelled columns are categories to scikit-learn's trees, which take 255 values."""
    return [isinstance(c, CategoryColumn) and c.code_count <= 255
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
