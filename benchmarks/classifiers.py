"""Which classifier tells samples apart: boosted trees or ridge regression, how well and how long.

`python -m benchmarks.classifiers --data FOLDER [--samples FOLDER]`. Rows of tables on which
settings are chosen against other rows of the same table: unchanged (`null`), one column permuted
(`permuted`), one number moved by a fifth of its standard deviation (`shifted`), or drawn from a
Gaussian copula (`copula`); with samples (NAME-0.parquet), against those of a table model (`fit`).
`trees` is the product (`two_sample/classifier_test`). `ridge` is what was there before: ridge
regression of the labels on scores of columns and features of two kernels, of the module given by
`--before` (`git show ae99d2ad:src/kermix/two_sample/classifier_test.py`). AUC on rows that are
held out, in five folds, and seconds on one core; `above` is the share of repetitions whose
interval is above one half: for `null` the level (0.025), for others the power.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.coverage import LEFT_OUT
from benchmarks.quality import default_path, write_record
from kermix.data.readers.common import Reading
from kermix.data.sources import read_sources
from kermix.tables.compare.column_changes import ComparedRows
from kermix.two_sample.classifier_test import tell_apart

__all__ = ["CELLS", "changed", "main"]

CELLS = [  # table, change, rows of a side, repetitions
    *(("diamonds", kind, rows, 4) for rows in (200, 1000) for kind in ("permuted", "shifted")),
    *(("letter", kind, rows, 4) for rows in (200, 1000) for kind in ("permuted", "shifted")),
    *(("satimage", kind, rows, 4) for rows in (200, 1000) for kind in ("permuted", "shifted")),
    *((name, "copula", 1000, 2) for name in ("diamonds", "letter", "satimage")),
    *((name, "null", rows, 30) for rows in (60, 400) for name in ("diamonds", "letter",
                                                                  "satimage")),
]  # fmt: skip
FITS = ("diamonds", "satimage", "penbased", "flights")
MOVED = 3  # the column that is permuted or shifted, counted among those that can be


def table_of(name: str, folder: Path) -> Any:
    """A table without its row numbers."""
    import pandas as pd

    path = folder / f"{name}.csv.gz"
    table = pd.read_csv(path) if path.exists() else pd.read_parquet(folder / f"{name}.parquet")
    return table.drop(columns=LEFT_OUT, errors="ignore")


def changed(table: Any, kind: str, rng: np.random.Generator) -> Any:
    """The same rows, changed in one way."""
    table = table.copy()
    if kind == "permuted":
        name = table.columns[MOVED]
        table[name] = rng.permutation(table[name].to_numpy())
    elif kind == "shifted":
        name = table.select_dtypes("number").columns[1]
        table[name] = table[name] + 0.2 * table[name].std()
    elif kind == "copula":
        from scipy.stats import norm, rankdata

        numbers = [
            table[c].to_numpy(float) if table[c].dtype.kind in "fi"
            else np.unique(table[c].astype(str), return_inverse=True)[1]
            for c in table
        ]  # fmt: skip
        scores = norm.ppf(np.stack([rankdata(v) for v in numbers], 1) / (len(table) + 1))
        drawn = rng.multivariate_normal(np.zeros(len(numbers)), np.corrcoef(scores.T), len(table))
        for k, name in enumerate(table.columns):
            ordered = table[name].to_numpy()[np.argsort(numbers[k], kind="stable")]
            table[name] = ordered[rankdata(drawn[:, k], "ordinal") - 1]
    return table


def ridge_before(path: Path) -> Any:
    """The classifier of a module as it was."""
    spec = spec_from_file_location("classifier_before", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["classifier_before"] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.tell_apart


def measured(
    table: Any, kind: str, rows: int, repetitions: int, samples: Any, ridge: Any
) -> dict[str, float]:
    """A line for one cell."""
    found = []
    for seed in range(repetitions):
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(table))
        own = table.iloc[order[:rows]].reset_index(drop=True)
        if samples is None:
            other = changed(table.iloc[order[rows : 2 * rows]].reset_index(drop=True), kind, rng)
        else:
            other = samples.iloc[rng.permutation(len(samples))[:rows]].reset_index(drop=True)
        compared = ComparedRows.of(read_sources([own, other], Reading(), False))
        start = time.perf_counter()
        apart = tell_apart(
            compared.pooled, compared.n, compared.places, torch.Generator().manual_seed(seed)
        )
        between = time.perf_counter()
        assert apart is not None
        line = {"trees": apart.auc, "above": float(apart.interval[0] > 0.5),
                "below": float(apart.interval[1] < 0.5), "trees_s": between - start}  # fmt: skip
        if ridge is not None:
            before = ridge(compared.pooled.double(), compared.n, compared.places, compared.layout,
                           torch.Generator().manual_seed(seed))  # fmt: skip
            line["ridge"] = before.auc
            line["ridge_above"] = float(before.interval[0] > 0.5)
            line["ridge_s"] = time.perf_counter() - between
        found.append(line)
    return {name: float(np.mean([f[name] for f in found])) for name in found[0]}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write the record."""
    import pandas as pd

    parser = argparse.ArgumentParser("benchmarks.classifiers", description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--samples", type=Path, default=None)
    parser.add_argument("--before", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=default_path("classifiers"))
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    ridge = None if given.before is None else ridge_before(given.before)
    rows: list[dict[str, Any]] = []
    cells: list[tuple[str, str, int, int]] = list(CELLS)
    if given.samples is not None:
        cells = [*((name, "fit", 1000, 2) for name in FITS), *cells]
    for name, kind, count, repetitions in cells:
        samples = None if kind != "fit" else pd.read_parquet(given.samples / f"{name}-0.parquet")
        table = table_of(name, given.data)
        found = measured(table, kind, count, repetitions, samples, ridge)
        rows.append({"table": name, "change": kind, "rows": count, "repetitions": repetitions,
                     **found})  # fmt: skip
        write_record("classifiers", given.out, {"classifiers": rows}, {"protocol": __doc__},
                     shown="classifiers")  # fmt: skip


if __name__ == "__main__":
    main()
