"""Log-densities of eight real tables of numbers, against scikit-learn's mixtures.

`python -m benchmarks.density_tables --data FOLDER`: the folder holds NAME.csv.gz. The protocol is
that of the design: rows permuted by a seed, at most 12,000; each column dithered by
uniform(-1/2, 1/2) times the median gap of its distinct values, so that no density is infinite; the
first 80 % train, columns standardized by them; class and constant columns left out; of diamonds
the logarithms of seven columns. scikit-learn's mixtures have `reg_covar=1e-4`, and 1e-6, its
default, in a search of their own, and a number of components chosen by the last 15 % of the
training rows: 1 to 32 (full) or 4 to 64 (diagonal), then fitted anew. Mean test log-density in
nats, and CPU seconds.
"""

import argparse
import time
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.quality import default_path, write_record
from kermix.errors import OptionError
from kermix.estimators.kernel_mixture import KernelMixture

__all__ = ["TABLES", "main", "measure_split", "prepared"]

TABLES = ("penbased", "letter", "magic", "satimage", "texture", "segment", "phoneme", "diamonds")
LOGARITHMS = ["carat", "price", "depth", "table", "x", "y", "z"]
ROWS = 12_000
FULL, DIAGONAL = (1, 2, 4, 8, 16, 32), (4, 8, 16, 32, 64)


def prepared(name: str, folder: Path, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Training and test rows of a table."""
    import pandas as pd

    table = pd.read_csv(folder / f"{name}.csv.gz")
    if name == "diamonds":
        table = np.log(table[LOGARITHMS].clip(lower=0.01))
    else:
        table = table.drop(columns="class").select_dtypes("number")
    return split_of(table.to_numpy(dtype=np.float64), seed)


def named_tables(text: str) -> list[str]:
    """Names with commas between, each of which must be that of a table."""
    names = text.split(",")
    unknown = set(names) - set(TABLES)
    if unknown:
        raise OptionError(f"There is no table {min(unknown)}; there are {', '.join(TABLES)}.")
    return names


def split_of(rows: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Permuted, dithered, divided and standardized rows."""
    rng = np.random.default_rng(seed)
    rows = rows[:, rows.std(0) > 0]
    rows = rows[rng.permutation(len(rows))][:ROWS]
    for column in rows.T:
        gaps = np.diff(np.unique(column))
        column += rng.uniform(-0.5, 0.5, len(rows)) * np.median(gaps)
    count = int(0.8 * len(rows))
    train, test = rows[:count], rows[count:]
    return (train - train.mean(0)) / train.std(0), (test - train.mean(0)) / train.std(0)


def _scikit_learn(train: np.ndarray, ridge: float) -> tuple[Any, str]:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    def mixture(kind: str, size: int) -> GaussianMixture:
        return GaussianMixture(size, covariance_type=kind, reg_covar=ridge, random_state=0)

    inner = int(0.85 * len(train))
    found: list[tuple[float, str, int]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for kind, sizes in (("full", FULL), ("diag", DIAGONAL)):
            for size in sizes:
                held_out = mixture(kind, size).fit(train[:inner]).score(train[inner:])
                found.append((float(held_out), kind, size))
        _, kind, size = max(found)
        return mixture(kind, size).fit(train), f"{kind}, {size}"


def _ours(train: np.ndarray) -> tuple[Any, str]:
    model = KernelMixture(random_state=0).fit(train)
    return model, f"{model.chosen_.covariance_type}, {model.chosen_.components}"


def measure_split(
    name: str, seed: int, train: np.ndarray, test: np.ndarray
) -> Iterator[dict[str, Any]]:
    """One row for each model."""
    from sklearn.mixture import GaussianMixture

    one = GaussianMixture(1, reg_covar=1e-4).fit(train)
    yield {"table": name, "columns": train.shape[1], "seed": seed, "model": "one Gaussian",
           "log_density": float(one.score(test))}  # fmt: skip
    for model_name, fit in (
        ("kermix KernelMixture()", _ours),
        ("scikit-learn, chosen by validation", partial(_scikit_learn, ridge=1e-4)),
        ("scikit-learn, reg_covar=1e-6", partial(_scikit_learn, ridge=1e-6)),
    ):
        start = time.process_time()
        model, chosen = fit(train)
        seconds = time.process_time() - start
        yield {"table": name, "columns": train.shape[1], "seed": seed, "model": model_name,
               "log_density": float(model.score(test)), "chosen": chosen,
               "cpu_seconds": seconds}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> Path:
    """Run the benchmark and write its result file, table by table."""
    parser = argparse.ArgumentParser("benchmarks.density_tables", description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--out", type=Path, default=default_path("density-tables"))
    given = parser.parse_args(arguments)
    names = named_tables(given.tables)
    rows: list[dict[str, Any]] = []
    path = given.out
    for seed in map(int, given.seeds.split(",")):
        for name in names:
            train, test = prepared(name, given.data, seed)
            rows += measure_split(name, seed, train, test)
            path = write_record("density-tables", given.out, {"density": rows},
                                {"protocol": __doc__}, shown="density")  # fmt: skip
    return path


if __name__ == "__main__":
    main()
