"""Conditional densities of eight regression sets, against NGBoost and xgboost-distribution.

`python -m benchmarks.conditional --data FOLDER`: the folder holds uci/NAME.npz, with the rows of
the published test splits. The mean negative log-likelihood of the target in its own units, the
share of targets inside the middle 50, 90 and 95 % of their predicted distribution, and CPU seconds
of fit and prediction, of the first `--splits` splits. An error beside a share is what as many rows
of a calibrated density would have.

- kermix: `TableModel(target, target_share=1.0, width=128, steps=1000, members=4)`, all else as it
  is, the same for all sets. It calibrates itself by training rows that it holds out, or, of small
  sets, that two of its four networks leave out. That four networks are averaged was chosen on
  columns of diamonds, magic, beijing, letter and segment (300 to 1000 rows); which rows they leave
  out, on columns of diamonds, flights, phoneme, satimage, segment, texture and diabetes and on
  made sets; width and steps, when there was one network, on a tenth of the training rows of splits
  0 and 1. No test row decided anything.
- NGBoost: `NGBRegressor()`: a normal distribution, 500 trees, learning rate 0.01, as in its paper.
- xgboost-distribution: `XGBDistribution("normal", n_estimators=500, early_stopping_rounds=10)`
  with a tenth of the training rows held out for stopping, as its documentation has it.

Where a target has few values (the grades of wine, 51 of naval-propulsion-plant), our model gives
each a probability, and a density of infinite height would win any comparison of likelihoods. A
probability is therefore spread over the step to which the target is rounded (1, and 0.001), so
that no density is higher than one over the step. A normal density has no such bound where it is
evaluated, in the middle of a step; `nll_of_step` takes its probability of the step too, divided by
the step. It is `nll` for the other sets. Where in its step a rounded target lies is random for all
methods when shares inside intervals are counted.
"""

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.quality import default_path, side_by_side, write_record
from kermix.errors import MissingExtraError, OptionError
from kermix.tables.model.table_estimator import TableModel

__all__ = ["METHODS", "PUBLISHED", "SETS", "Predicted", "main", "measure_split", "run", "split_of"]

SETS = ("concrete", "energy", "kin8nm", "naval-propulsion-plant", "power-plant",
        "protein-tertiary-structure", "wine-quality-red", "yacht")  # fmt: skip
SPLITS = 3
INTERVALS = (0.5, 0.9, 0.95)
FEW_VALUES = 10  # rows for each value of a target that has few of them
OURS: dict[str, Any] = {"target_share": 1.0, "width": 128, "steps": 1000, "members": 4}
PUBLISHED = {  # mean and error of NGBoost's paper (Duan et al., 2020), table 1
    "concrete": (3.04, 0.17), "energy": (0.60, 0.45), "kin8nm": (-0.49, 0.02),
    "naval-propulsion-plant": (-5.34, 0.04), "power-plant": (2.79, 0.11),
    "protein-tertiary-structure": (2.81, 0.03), "wine-quality-red": (0.91, 0.06),
    "yacht": (0.20, 0.26),
}  # fmt: skip


class Predicted(NamedTuple):
    """What a model says about targets that it has not seen."""

    log_density: np.ndarray  # (N,)
    low: np.ndarray  # (N,), the share of the predicted distribution below the target's step
    high: np.ndarray  # (N,), and below its end


class Problem(NamedTuple):
    """Rows to fit, rows to predict, and what their target is rounded to."""

    inputs: np.ndarray
    target: np.ndarray
    test: np.ndarray
    wanted: np.ndarray
    step: float
    seed: int


Fit = Callable[[Problem], Predicted]


def split_of(path: Path, split: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Inputs and targets to train with, then those of the test."""
    content = np.load(path)
    if f"test_{split}" not in content:
        raise OptionError(f"{path} has no split {split}.")
    features, target = content["features"], content["target"].ravel()
    test = np.zeros(len(target), dtype=bool)
    test[content[f"test_{split}"]] = True
    return features[~test], target[~test], features[test], target[test]


def step_of(target: np.ndarray) -> float:
    """To what a target is rounded: a power of ten, or 0 where all digits count."""
    for decimals in range(7):
        if np.allclose(target, target.round(decimals), rtol=0, atol=1e-9):
            return float(10.0**-decimals)
    return 0.0


def _frame(features: np.ndarray, target: np.ndarray | None = None) -> Any:
    import pandas as pd

    table = pd.DataFrame({f"x{k}": column for k, column in enumerate(features.T)})
    return table if target is None else table.assign(y=target)


def by_kermix(problem: Problem) -> Predicted:
    """Our conditional density."""
    inputs, target, test, wanted, step, seed = problem
    model = TableModel("y", kinds={"y": "number"}, device="cpu", random_state=seed, **OURS)
    model.fit(_frame(inputs, target))
    encoded = model.schema_.encode(_frame(test, wanted), unseen="unknown", extra=True)
    place = [c.name for c in model.schema_.modelled].index("y")
    codes = encoded.codes[:, place]
    scores = encoded.values[:, model.network_.layout.numbers.index(place)].astype(np.float64)
    found = model.conditional("y", _frame(test), unseen="unknown")
    return Predicted(found.log_density(codes, scores), found.cdf(wanted - step), found.cdf(wanted))


def by_ngboost(problem: Problem) -> Predicted:
    """Natural gradient boosting."""
    inputs, target, test, wanted, step, seed = problem
    try:
        from ngboost import NGBRegressor
    except ImportError:
        raise MissingExtraError("This peer needs: pip install ngboost.") from None
    model = NGBRegressor(random_state=seed, verbose=False).fit(inputs, target)
    found = model.pred_dist(test)
    return Predicted(
        found.logpdf(wanted), found.cdf(wanted - step / 2), found.cdf(wanted + step / 2)
    )


def by_xgboost(problem: Problem) -> Predicted:
    """Boosted trees for both parameters of a normal distribution."""
    inputs, target, test, wanted, step, seed = problem
    try:
        from xgboost_distribution import XGBDistribution
    except ImportError:
        raise MissingExtraError("This peer needs: pip install xgboost-distribution.") from None
    from scipy.stats import norm

    order = np.random.default_rng(seed).permutation(len(target))
    held, own = np.split(order, [len(order) // 10])
    model = XGBDistribution(
        distribution="normal", n_estimators=500, early_stopping_rounds=10, random_state=seed,
        n_jobs=1,
    )  # fmt: skip
    model.fit(inputs[own], target[own], eval_set=[(inputs[held], target[held])], verbose=False)
    found = model.predict(test)
    normal = norm(found.loc, found.scale)
    return Predicted(
        normal.logpdf(wanted), normal.cdf(wanted - step / 2), normal.cdf(wanted + step / 2)
    )


METHODS: dict[str, Fit] = {
    "kermix": by_kermix,
    "NGBoost": by_ngboost,
    "xgboost-distribution": by_xgboost,
}


def measure_split(
    name: str, path: Path, split: int, methods: Sequence[str] = tuple(METHODS)
) -> Iterator[dict[str, Any]]:
    """One row for each method."""
    inputs, target, test, wanted = split_of(path, split)
    step = step_of(np.concatenate([target, wanted]))
    few = FEW_VALUES * len(np.unique(target)) <= len(target)
    place = np.random.default_rng(split).random(len(wanted))
    for method in methods:
        start = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = METHODS[method](Problem(inputs, target, test, wanted, step, split))
        seconds = time.process_time() - start
        of_step = found.log_density
        if few:
            of_step = np.log((found.high - found.low).clip(min=1e-300) / step)
        below = found.low + place * (found.high - found.low)
        inside = {f"inside_{100 * share:.0f}": float((np.abs(below - 0.5) < share / 2).mean())
                  for share in INTERVALS}  # fmt: skip
        yield {"set": name, "split": split, "rows": len(target), "inputs": inputs.shape[1],
               "test_rows": len(wanted), "method": method, "nll": -float(found.log_density.mean()),
               "nll_of_step": -float(of_step.mean()), **inside,
               "cpu_seconds": seconds}  # fmt: skip


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A line for each set: means of its splits, and what NGBoost's paper has."""
    found = []
    for name in dict.fromkeys(row["set"] for row in rows):
        line: dict[str, Any] = {"set": name}
        own = [row for row in rows if row["set"] == name]
        line["splits"] = len({row["split"] for row in own})
        for method in dict.fromkeys(row["method"] for row in own):
            losses = [row["nll"] for row in own if row["method"] == method]
            line[method] = float(np.mean(losses))
            line[f"{method}, error"] = float(np.std(losses) / np.sqrt(len(losses)))
        if name in PUBLISHED:
            line["NGBoost, published"] = PUBLISHED[name][0]
        found.append(line)
    return found


def means(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """All measures of each set and method: means over splits."""
    kinds = dict.fromkeys((row["set"], row["method"]) for row in rows)
    found = []
    for name, method in kinds:
        own = [row for row in rows if (row["set"], row["method"]) == (name, method)]
        tested = sum(row["test_rows"] for row in own)
        line: dict[str, Any] = {"set": name, "method": method, "test_rows": tested}
        for measure in ("nll", "nll_of_step", "cpu_seconds"):
            line[measure] = float(np.mean([row[measure] for row in own]))
        for share in INTERVALS:
            measure = f"inside_{100 * share:.0f}"
            line[measure] = float(np.mean([row[measure] for row in own]))
            line[f"{measure}, error"] = float(np.sqrt(share * (1 - share) / tested))
        found.append(line)
    return found


def measured(
    folder: Path,
    sets: Sequence[str],
    methods: Sequence[str],
    splits: int,
    *,
    kept: Sequence[dict[str, Any]] = (),
    processes: int = 1,
) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """The tables of results, one more split of a set at a time.

    Args:
        folder: Where the sets are.
        sets: Their names.
        methods: What is compared.
        splits: How many of the published splits.
        kept: Rows of an earlier run, which are not measured again.
        processes: How many splits are measured side by side, each on one core.
    """
    for what, listed, known in (("set", sets, SETS), ("method", methods, METHODS)):
        unknown = set(listed) - set(known)
        if unknown:
            raise OptionError(f"There is no {what} {min(unknown)}; there are {', '.join(known)}.")
    rows = [dict(row) for row in kept]
    done = {(row["set"], row["split"], row["method"]) for row in rows}
    jobs = []
    for split in range(splits):
        for name in sets:
            left = tuple(m for m in methods if (name, split, m) not in done)
            jobs.append((name, folder / "uci" / f"{name}.npz", split, left))
    for found in side_by_side(_one_job, [job for job in jobs if job[-1]], processes):
        rows += found
        yield tables_of(rows)


def tables_of(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The tables of a record, from one row for each split and method."""
    rows.sort(key=lambda row: (row["split"], SETS.index(row["set"]),
                               tuple(METHODS).index(row["method"])))  # fmt: skip
    return {"negative_log_likelihood": summary(rows), "means": means(rows), "splits": rows}


def join(paths: Sequence[Path], out: Path) -> Path:
    """One record of what several calls measured; of what two have, that of the later file."""
    records = [json.loads(path.read_text()) for path in paths]
    rows = {(row["set"], row["split"], row["method"]): row
            for record in records for row in record["tables"]["splits"]}  # fmt: skip
    before = [record.get("protocol", {}) for record in records]
    places = [
        told.get("measured_on", r["machine"]) for told, r in zip(before, records, strict=True)
    ]
    commits = [told.get("measured_at", [r["commit"]])
               for told, r in zip(before, records, strict=True)]  # fmt: skip
    told = {"protocol": __doc__, "measured_on": places[0],
            "measured_at": list(dict.fromkeys(c for group in commits for c in group))}  # fmt: skip
    return write_record("conditional", out, tables_of([*rows.values()]), told,
                        shown="negative_log_likelihood")  # fmt: skip


def _one_job(job: tuple[str, Path, int, Sequence[str]]) -> list[dict[str, Any]]:
    return list(measure_split(*job))


def kept_rows(
    path: Path, folder: Path, methods: Sequence[str]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows of some methods of an earlier record, and what to say about them."""
    record = json.loads(path.read_text())
    rows = [row for row in record["tables"]["splits"] if row["method"] in methods]
    for row in rows:
        if "test_rows" not in row:
            tests = np.load(folder / "uci" / f"{row['set']}.npz")
            row["test_rows"] = len(tests[f"test_{row['split']}"])
    return rows, {"kept": f"{', '.join(methods)}: {len(rows)} rows of {record['commit']}"}


def run(quick: bool = False) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """All sets, or the smallest; the variable KERMIX_TABLES says where the tables are."""
    folder = Path(os.environ.get("KERMIX_TABLES", "tables"))
    sets, splits = (("yacht",), 1) if quick else (SETS, SPLITS)
    return measured(folder, sets, tuple(METHODS), splits)


def main(arguments: Sequence[str] | None = None) -> Path:
    """Run the benchmark and write its result file, split by split."""
    parser = argparse.ArgumentParser("benchmarks.conditional", description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("tables"))
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--processes", type=int, default=1, help="splits side by side")
    parser.add_argument("--keep", default="", help="methods whose rows in the file are kept")
    parser.add_argument("--out", type=Path, default=default_path("conditional"))
    parser.add_argument("--join", nargs="+", type=Path, help="records to make one of, instead")
    given = parser.parse_args(arguments)
    path: Path = given.out
    if given.join:
        return join(given.join, path)
    kept, told = ((), {}) if not given.keep else kept_rows(
        path, given.data, given.keep.split(",")
    )  # fmt: skip
    sets, methods = given.sets.split(","), given.methods.split(",")
    for tables in measured(given.data, sets, methods, given.splits, kept=kept,
                           processes=given.processes):  # fmt: skip
        path = write_record("conditional", given.out, tables, {"protocol": __doc__, **told},
                            shown="negative_log_likelihood")  # fmt: skip
    return path


if __name__ == "__main__":
    main()
