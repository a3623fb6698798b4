"""Gaps filled in real tables, against scikit-learn's imputers, on the same cells.

`python -m benchmarks.imputation --data FOLDER`: the folder holds adult-train.csv.gz, magic.csv.gz
and shoppers.csv.gz. Of at most `--rows` random rows of each, 30 % of the cells are removed at
random; every method fits the table with gaps and fills it. Numbers: root mean squared error over
the standard deviation of the column; categories: share of wrong ones; both are means over columns.

- kermix: `TableModel()` as it is; once what `impute(table)` fills in (most likely values), once
  means and votes of `impute(table, draws=20)`.
- scikit-learn: `IterativeImputer()` and `KNNImputer()` on standardized numbers and one-hot
  categories, whose largest entry is the answer; means and modes. For the first, which learns each
  column from all others, the most frequent value has no column: with it the columns of one
  category would determine each other, and stay at their means.

Coverage of 20 draws: how often the true number is not among the 5 (1) lowest or highest of 21, the
draws and itself, ties in random order. Draws from the true distribution have 11/21 = 52.4 % (19/21
= 90.5 %). IterativeImputer draws with `sample_posterior=True`. Times are CPU seconds, of both the
fit and the filling.
"""

import argparse
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.generated_tables import CATEGORIES
from benchmarks.quality import default_path, write_record
from kermix.errors import OptionError
from kermix.tables.model.table_estimator import TableModel

__all__ = ["TABLES", "coverage", "errors_of", "main", "measure_table", "run", "with_gaps"]

TABLES = {"adult": "adult-train", "magic": "magic", "shoppers": "shoppers"}
ROWS, SHARE, DRAWS = 10_000, 0.3, 20
INTERVALS = {"coverage_52": 5, "coverage_90": 1}  # draws outside, at each end


def with_gaps(
    table: Any, categories: Sequence[str], seed: int, rows: int = ROWS
) -> tuple[Any, Any, np.ndarray]:
    """Rows, the same with gaps, and where these are; categories are texts and all else numbers."""
    rng = np.random.default_rng(seed)
    whole = table.iloc[rng.permutation(len(table))[:rows]].reset_index(drop=True)
    whole = whole.astype({c: str if c in categories else float for c in whole})
    removed = (rng.random(whole.shape) < SHARE) & whole.notna().to_numpy()
    return whole, whole.mask(removed), removed


def errors_of(
    whole: Any, filled: Any, removed: np.ndarray, categories: Sequence[str]
) -> dict[str, float]:
    """Mean error of numbers and share of wrong categories."""
    numbers, wrong = [], []
    for column, at in zip(whole, removed.T, strict=True):
        true, found = (t[column].to_numpy()[at] for t in (whole, filled))
        if not at.any():
            continue
        if column in categories:
            wrong.append(float((true != found).mean()))
        elif whole[column].std() > 0:
            error = np.sqrt(np.mean((true - found.astype(float)) ** 2))
            numbers.append(float(error / whole[column].std()))
    return {
        "number_error": float(np.mean(numbers)) if numbers else float("nan"),
        "wrong_categories": float(np.mean(wrong)) if wrong else float("nan"),
    }


def coverage(
    whole: Any, draws: Sequence[Any], removed: np.ndarray, categories: Sequence[str], seed: int
) -> dict[str, float]:
    """How often true numbers are in the middle of their draws; a mean over columns."""
    rng = np.random.default_rng(seed)
    found: dict[str, list[float]] = {name: [] for name in INTERVALS}
    for column, at in zip(whole, removed.T, strict=True):
        if column in categories or not at.any():
            continue
        true = whole[column].to_numpy()[at]
        drawn = np.stack([d[column].to_numpy(dtype=float)[at] for d in draws])
        below, equal = (drawn < true).sum(0), (drawn == true).sum(0)
        rank = below + rng.integers(0, equal + 1)
        for name, outside in INTERVALS.items():
            inside = (rank >= outside) & (rank <= len(draws) - outside)
            found[name].append(float(inside.mean()))
    return {name: float(np.mean(shares)) for name, shares in found.items() if shares}


def pooled(draws: Sequence[Any], categories: Sequence[str]) -> Any:
    """Means of drawn numbers, and the categories that most draws have."""
    import pandas as pd

    found = draws[0].copy()
    for column in found:
        if column in categories:
            cells = np.stack([d[column].to_numpy(dtype=object) for d in draws])
            codes, names = pd.factorize(cells.ravel())
            votes = np.zeros((cells.shape[1], len(names)))
            for row in codes.reshape(cells.shape):
                votes[np.arange(len(row)), row] += 1
            found[column] = np.asarray(names)[votes.argmax(1)]
        else:
            found[column] = np.mean([d[column].to_numpy(dtype=float) for d in draws], 0)
    return found


class OneHot:
    """Standardized numbers and one-hot categories, with gaps, and back.

    Args:
        table: The table with gaps.
        categories: Its columns that are no numbers.
        less: Whether the most frequent value has no column, so that those of the others, which
            have gaps in the same rows, do not determine each other.
    """

    def __init__(self, table: Any, categories: Sequence[str], less: bool) -> None:
        self._columns, self._categories, self._first = list(table), categories, int(less)
        self._names = {c: table[c].value_counts().index.to_numpy(dtype=object) for c in table
                       if c in categories}  # fmt: skip
        self._scale = {c: (table[c].mean(), table[c].std() or 1.0) for c in table
                       if c not in categories}  # fmt: skip

    def encode(self, table: Any) -> np.ndarray:
        """Numbers, NaN where there is a gap."""
        parts = []
        for column in self._columns:
            cells = table[column]
            if column in self._categories:
                hot = (cells.to_numpy(dtype=object)[:, None] == self._names[column]).astype(float)
                hot[cells.isna().to_numpy()] = np.nan
                parts.append(hot[:, self._first :])
            else:
                mean, scale = self._scale[column]
                parts.append(((cells - mean) / scale).to_numpy(dtype=float)[:, None])
        return np.hstack(parts)

    def decode(self, rows: np.ndarray) -> Any:
        """The table that rows of numbers stand for."""
        import pandas as pd

        found: dict[str, Any] = {}
        place = 0
        for column in self._columns:
            if column in self._categories:
                names = self._names[column]
                hot = rows[:, place : place + len(names) - self._first]
                place += hot.shape[1]
                if self._first:
                    hot = np.column_stack([1 - hot.sum(1), hot])
                found[column] = names[hot.argmax(1)]
            else:
                mean, scale = self._scale[column]
                found[column] = rows[:, place] * scale + mean
                place += 1
        return pd.DataFrame(found)


def _simple(gaps: Any, categories: Sequence[str]) -> Any:
    return gaps.fillna({
        c: gaps[c].mode()[0] if c in categories else gaps[c].mean() for c in gaps
    })  # fmt: skip


def _by_scikit_learn(imputer: Any, less: bool) -> Callable[[Any, Sequence[str]], Any]:
    def filled(gaps: Any, categories: Sequence[str]) -> Any:
        form = OneHot(gaps, categories, less)
        return form.decode(imputer.fit_transform(form.encode(gaps)))

    return filled


def _drawn_by_scikit_learn(imputer: Any, gaps: Any, categories: Sequence[str]) -> list[Any]:
    form = OneHot(gaps, categories, less=True)
    rows = form.encode(gaps)
    imputer.fit(rows)
    return [form.decode(imputer.transform(rows)) for _ in range(DRAWS)]


def measure_table(
    name: str,
    table: Any,
    categories: Sequence[str],
    seed: int,
    settings: dict[str, Any],
    rows: int = ROWS,
) -> Iterator[dict[str, Any]]:
    """One row for each method."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer, KNNImputer

    whole, gaps, removed = with_gaps(table, categories, seed, rows)
    base = {"table": name, "rows": len(whole), "columns": whole.shape[1], "seed": seed}
    methods = {
        "mean or mode": _simple,
        "KNNImputer": _by_scikit_learn(KNNImputer(), less=False),
        "IterativeImputer": _by_scikit_learn(IterativeImputer(random_state=seed), less=True),
    }
    for title, fill in methods.items():
        start = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            filled = fill(gaps, categories)
        seconds = time.process_time() - start
        yield {**base, "method": title, **errors_of(whole, filled, removed, categories),
               "cpu_seconds": seconds}  # fmt: skip

    start = time.process_time()
    imputer = IterativeImputer(sample_posterior=True, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        draws = _drawn_by_scikit_learn(imputer, gaps, categories)
    seconds = time.process_time() - start
    yield {**base, "method": f"IterativeImputer, {DRAWS} draws",
           **errors_of(whole, pooled(draws, categories), removed, categories),
           "cpu_seconds": seconds,
           **coverage(whole, draws, removed, categories, seed)}  # fmt: skip

    start = time.process_time()
    kinds = dict.fromkeys((c for c in whole if c in categories), "category")
    model = TableModel(kinds=kinds, device="cpu", random_state=seed, **settings).fit(gaps)
    fitted = time.process_time()
    filled = model.impute(gaps, random_state=seed)
    seconds = time.process_time() - start
    yield {**base, "method": "kermix impute", **errors_of(whole, filled, removed, categories),
           "cpu_seconds": seconds, "best_step": model.n_iter_}  # fmt: skip
    drawing = time.process_time()
    draws = model.impute(gaps, draws=DRAWS, random_state=seed)
    seconds = fitted - start + time.process_time() - drawing
    yield {**base, "method": f"kermix impute, {DRAWS} draws",
           **errors_of(whole, pooled(draws, categories), removed, categories),
           "cpu_seconds": seconds, "best_step": model.n_iter_,
           **coverage(whole, draws, removed, categories, seed)}  # fmt: skip


def measured(
    folder: Path, tables: Sequence[str], seeds: Sequence[int], rows: int, settings: dict[str, Any]
) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """The table of results, row by row."""
    import pandas as pd

    unknown = set(tables) - set(TABLES)
    if unknown:
        raise OptionError(f"There is no table {min(unknown)}; there are {', '.join(TABLES)}.")
    found: list[dict[str, Any]] = []
    for seed in seeds:
        for name in tables:
            table = pd.read_csv(folder / f"{TABLES[name]}.csv.gz")
            categories = [c for c in CATEGORIES[name] if c in table]
            for row in measure_table(name, table, categories, seed, settings, rows):
                found.append(row)
                yield {"imputation": found}


def run(quick: bool = False) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """All tables; the environment variable KERMIX_TABLES says where they are."""
    folder = Path(os.environ.get("KERMIX_TABLES", "tables"))
    return measured(folder, tuple(TABLES), (0,), 300 if quick else ROWS,
                    {"steps": 20} if quick else {})  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> Path:
    """Run the benchmark and write its result file, row by row."""
    parser = argparse.ArgumentParser("benchmarks.imputation", description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--steps", type=int, help="of our model, if not those of TableModel()")
    parser.add_argument("--out", type=Path, default=default_path("imputation"))
    given = parser.parse_args(arguments)
    settings = {} if given.steps is None else {"steps": given.steps}
    protocol = {"protocol": __doc__, "rows": given.rows, **settings}
    seeds = [int(seed) for seed in given.seeds.split(",")]
    path: Path = given.out
    for tables in measured(given.data, given.tables.split(","), seeds, given.rows, settings):
        path = write_record("imputation", given.out, tables, protocol, shown="imputation")
    return path


if __name__ == "__main__":
    main()
