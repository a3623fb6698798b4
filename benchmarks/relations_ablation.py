"""What looking at numbers relative to lines brings, on the tables for choosing.

    python -m benchmarks.relations_ablation --data FOLDER --out RECORD [--device cuda]

Each variant of `find_lines` fits the same small model to the same rows of each table; the mean
log-density of rows left out says which is better (in nats of a row, with the standard error of
the difference from no lines at all), and a boosted classifier how well samples are told apart.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import kermix as km
from benchmarks.quality import write_record
from kermix.tables.model import layout, linear_relations

__all__ = ["detection", "main"]

TABLES = ("diamonds", "letter", "flights", "satimage", "segment", "penbased")
ROWS, LEFT_OUT = 6000, 1500


def _with(**changes: Any) -> Callable[..., Any]:
    """The search for lines with some of its parts replaced."""

    def find(*given: Any, **more: Any) -> Any:
        with mock.patch.multiple(linear_relations, **changes):
            return linear_relations.find_lines(*given, **more)

    return find


# Until commit b2656638 lines were compared with boosted trees as well.
VARIANTS: dict[str, Callable[..., Any]] = {
    "none": lambda *_, **__: None,
    "as it is": linear_relations.find_lines,
    "looser lines": _with(CLOSE_GAIN=1.0),
    "one regime": _with(REGIMES=()),
}


def read_table(name: str, folder: Path) -> Any:
    """Some rows of a table, in a random order."""
    import pandas as pd

    for file in folder.glob(f"{name}.*"):
        table = pd.read_parquet(file) if file.suffix == ".parquet" else pd.read_csv(file)
        table = table.drop(columns=["rownames", "time_hour", "tailnum", "year"], errors="ignore")
        return table.sample(min(len(table), ROWS + LEFT_OUT), random_state=0)
    raise FileNotFoundError(f"{folder} holds no table {name}.")


def detection(data: Any, samples: Any) -> float:
    """The AUC of boosted trees between rows left out and samples, by five folds."""
    import pandas as pd
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import cross_val_predict

    both = pd.concat([data, samples])
    for name in both.columns:
        if pd.api.types.is_datetime64_any_dtype(both[name]):
            both[name] = both[name].astype("int64")
        elif not pd.api.types.is_numeric_dtype(both[name]):
            both[name] = pd.factorize(both[name])[0]
    labels = np.repeat([0, 1], [len(data), len(samples)])
    model = HistGradientBoostingClassifier(max_iter=100, random_state=0)
    found = cross_val_predict(model, both.to_numpy(float), labels, cv=5, method="predict_proba")
    return float(roc_auc_score(labels, found[:, 1]))


def judged(table: Any, variant: str, steps: int, device: str) -> tuple[dict[str, Any], np.ndarray]:
    """A row of the record, and the log-densities of rows left out."""
    cut = max(len(table) - LEFT_OUT, int(0.8 * len(table)))
    train, test = table.iloc[:cut], table.iloc[cut:]
    model = km.TableModel(steps=steps, device=device, random_state=0)
    begun = time.perf_counter()
    with mock.patch.object(layout, "find_lines", VARIANTS[variant]):
        model.fit(train)
    seconds = time.perf_counter() - begun
    lines = model.network_.layout.lines
    logs = model.score_samples(test)
    samples = model.sample(len(test), random_state=1)
    return {
        "variant": variant, "numbers that follow lines": 0 if lines is None else int(
            lines.followed.sum()),
        "regimes": 0 if lines is None else len(lines.shares),
        "log-density": float(logs[np.isfinite(logs)].mean()),
        "AUC": detection(test, samples), "seconds": seconds,
    }, logs  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Run variants on tables, and write the record after each."""
    parser = argparse.ArgumentParser("benchmarks.relations_ablation", description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--device", default="auto")
    given = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    for name in given.tables.split(","):
        table, base = read_table(name, given.data), None
        for variant in given.variants.split(","):
            row, logs = judged(table, variant, given.steps, given.device)
            base = logs if base is None else base
            gain = (logs - base)[np.isfinite(logs) & np.isfinite(base)]
            row |= {"gain": float(gain.mean()),
                    "error": float(gain.std() / max(1, len(gain)) ** 0.5)}  # fmt: skip
            rows.append({"table": name, **row})
            print(json.dumps(rows[-1]), flush=True)
            write_record("relations-ablation", given.out, {"lines": rows},
                         {"what": __doc__, "steps": given.steps}, shown="lines")  # fmt: skip


if __name__ == "__main__":
    main()
