"""Intervals of predicted numbers of tables: how many true values of new rows they hold.

For each table on which settings are chosen, a table model with default settings is trained on at
most 20,000 rows, once for all columns and once for one number alone (`target`, `target_share=1`,
as `kermix classify --target`). For 3,000 other rows each number is predicted from all other
columns; its randomized rank in the predicted distribution (a value with a probability of its own
is anywhere within its step, at random) is uniform if that is right. Coverage is the share of ranks
in the central 50 or 90 %, a mean over columns; `furthest` is the column that is furthest off.

    python -m benchmarks.coverage --data FOLDER [--device cuda] [--tables diamonds,letter]
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.quality import default_path, write_record
from kermix.tables.model.table_estimator import TableModel

__all__ = ["SHARES", "coverage_of", "main", "measured", "rows_of"]

TARGETS = {
    "diamonds": ("price",), "letter": ("x0",), "flights": ("arr_delay",), "satimage": ("x16",),
    "segment": ("x1", "x10"),  # a place; the mean of three other columns, so known exactly
    "penbased": ("x0",),
}  # fmt: skip
LEFT_OUT = ["rownames", "time_hour", "tailnum", "year"]
TRAINING_ROWS, TEST_ROWS, SEED = 20_000, 3_000, 1234
SHARES = (0.5, 0.9)


def rows_of(name: str, folder: Path) -> tuple[Any, Any]:
    """Rows to train with, and other ones."""
    import pandas as pd

    if name == "flights":
        table = pd.read_parquet(folder / "flights.parquet")
    else:
        table = pd.read_csv(folder / f"{name}.csv.gz")
    table = table.drop(columns=LEFT_OUT, errors="ignore")
    order = np.random.default_rng(SEED).permutation(len(table))
    test = min(TEST_ROWS, len(table) // 5)
    return tuple(table.iloc[part].reset_index(drop=True)
                 for part in (order[test : test + TRAINING_ROWS], order[:test]))  # fmt: skip


def coverage_of(model: TableModel, column: str, rows: Any) -> list[float] | None:
    """Shares of the true values of a number in its intervals, given all other columns."""
    there = rows[rows[column].notna()].reset_index(drop=True)
    found = model.conditional(column, there, unseen="unknown")
    if not found.is_number:
        return None
    ranks = found.randomized_ranks(there[column].to_numpy())
    return [float((np.abs(ranks - 0.5) <= share / 2).mean()) for share in SHARES]


def measured(name: str, folder: Path, device: str, seed: int, **settings: Any) -> Any:
    """One line for a model of all columns, and one for a model of the target."""
    train, test = rows_of(name, folder)
    for target in (None, *TARGETS[name]):
        start = time.perf_counter()
        model = TableModel(target, target_share=1.0 if target else 0.0, device=device,
                           random_state=seed, **settings).fit(train)  # fmt: skip
        took = time.perf_counter() - start
        columns = [c.name for c in model.schema_.numbers] if target is None else [target]
        shares = {c: s for c in columns if (s := coverage_of(model, c, test)) is not None}
        if not shares:
            continue
        means = np.mean(list(shares.values()), axis=0)
        off = {c: np.abs(np.array(s) - SHARES).max() for c, s in shares.items()}
        worst = max(off, key=lambda c: off[c])
        yield {
            "table": name, "predicted": target or f"each of {len(shares)} numbers",
            "calibrated": bool(target or settings.get("calibrate")), "seed": seed,
            "rows": len(train), "coverage_50": float(means[0]), "coverage_90": float(means[1]),
            "furthest": worst, "furthest_50": shares[worst][0], "furthest_90": shares[worst][1],
            "within_3_points": bool(np.abs(means - SHARES).max() <= 0.03),
            "kept_step": model.n_iter_, "training_seconds": took,
        }, model, train  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser("benchmarks.coverage", description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=default_path("coverage"))
    parser.add_argument("--tables", default=",".join(TARGETS))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--calibrate", action="store_true", help="all columns, as is no default")
    parser.add_argument("--samples", type=Path, default=None)
    given = parser.parse_args(arguments)
    settings: dict[str, Any] = {} if given.steps is None else {"steps": given.steps}
    if given.calibrate:
        settings["calibrate"] = True
    rows: list[dict[str, Any]] = []
    jobs = [(n, int(s)) for n in given.tables.split(",") for s in given.seeds.split(",")]
    for name, seed in jobs:
        for row, model, train in measured(name, given.data, given.device, seed, **settings):
            rows.append(row)
            if given.samples is not None and model.target is None:
                drawn = model.sample(min(len(train), 6000), random_state=seed)
                drawn.to_parquet(given.samples / f"{name}-{seed}.parquet")
            told = {"protocol": __doc__, "settings": settings or "default"}
            write_record("coverage", given.out, {"coverage": rows}, told, shown="coverage")


if __name__ == "__main__":
    main()
