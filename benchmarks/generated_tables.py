"""Generated tables, judged as published: can XGBoost tell them from the training rows?

Two commands, since the second needs packages that a machine with a GPU may not have::

    python -m benchmarks.generated_tables train --data FOLDER --out SAMPLES
    python -m benchmarks.generated_tables judge --data FOLDER --samples SAMPLES --out RECORD

The first trains a table model for each table and seed, on rows as the published protocols have
them (Adult as given, the others without a tenth at random, Beijing without rows whose pm2.5 is
missing), and draws as many rows as it was trained with. The second scores them by SDMetrics'
detection metric with `XGBClassifier(eval_metric="logloss", enable_categorical=True,
random_state=0)`: 1 - (2 max(AUC, 1/2) - 1), so 1 means that it cannot tell. Settings are chosen by
the same score on other tables (`--tables diamonds,letter,flights`); `scripts/tables-on-gpu.sh`
trains all of them on one GPU.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.quality import default_path, write_record
from kermix.errors import MissingExtraError, OptionError
from kermix.reports.provenance import environment, write_json

__all__ = ["CATEGORIES", "detection_score", "main", "training_rows"]

CATEGORIES = {
    "adult": ["workclass", "education", "marital.status", "occupation", "relationship", "race",
              "sex", "native.country", "income"],
    "beijing": ["year", "month", "day", "hour", "cbwd"],
    "default": ["SEX", "EDUCATION", "MARRIAGE", "PAY_0", *(f"PAY_{k}" for k in range(2, 7)),
                "class"],
    "magic": ["class"],
    "shoppers": ["Month", "OperatingSystems", "Browser", "Region", "TrafficType", "VisitorType",
                 "Weekend", "Revenue"],
}  # fmt: skip
CHOOSING = {  # tables on which settings are chosen
    "diamonds": ["cut", "color", "clarity"],
    "letter": ["class"],
    "flights": ["carrier", "origin", "dest", "month", "day", "hour"],
}
ROWS_FOR_CHOOSING = 20_000
SPLIT_SEED = 1234
SETTINGS = {
    "cuda": {"width": 768, "blocks": 4, "steps": 8000, "learning_rate": 1e-3, "average": 500},
    "cpu": {"width": 256, "blocks": 3, "steps": 2000, "learning_rate": 2e-3},
}


def training_rows(name: str, folder: Path) -> Any:
    """The rows that published generators are trained with."""
    import pandas as pd

    if name not in CATEGORIES and name not in CHOOSING:
        raise OptionError(f"There is no table {name}; there are {', '.join(CATEGORIES)}.")
    if name == "adult":
        return pd.read_csv(folder / "adult-train.csv.gz")
    if name == "flights":
        table = pd.read_parquet(folder / "flights.parquet")
    else:
        table = pd.read_csv(folder / f"{name}.csv.gz")
    if name in CHOOSING:
        table = table.drop(columns=["rownames", "time_hour", "tailnum", "year"], errors="ignore")
        return table.sample(
            min(len(table), ROWS_FOR_CHOOSING), random_state=SPLIT_SEED
        ).reset_index(drop=True)
    if name == "beijing":
        table = table.dropna(subset=["pm2.5"]).reset_index(drop=True)
    order = np.arange(len(table))
    np.random.RandomState(SPLIT_SEED).shuffle(order)
    return table.iloc[order[: int(0.9 * len(table))]].reset_index(drop=True)


def categories_of(name: str) -> list[str]:
    """Columns of a table that are no numbers."""
    return CATEGORIES.get(name) or CHOOSING[name]


def train(
    name: str, seed: int, folder: Path, out: Path, device: str, changed: dict[str, Any]
) -> None:
    """One model and its samples: NAME-SEED.parquet, and NAME-SEED.json about it."""
    from kermix.sklearn.table import TableModel

    rows = training_rows(name, folder)
    settings = {**SETTINGS["cuda" if device.startswith("cuda") else "cpu"], **changed}
    kinds = dict.fromkeys((c for c in categories_of(name) if c in rows), "category")
    if device.startswith("cuda"):
        import torch

        torch.set_float32_matmul_precision("high")
    start = time.perf_counter()
    model = TableModel(kinds=kinds, device=device, random_state=seed, **settings).fit(rows)
    trained = time.perf_counter()
    drawn = model.sample(len(rows), random_state=seed)
    done = time.perf_counter()
    drawn.to_parquet(out / f"{name}-{seed}.parquet")
    write_json(out / f"{name}-{seed}.json", {
        "table": name, "seed": seed, "device": device, "rows": len(rows), **settings,
        "best_step": model.n_iter_, "training_seconds": trained - start,
        "sampled_rows_a_second": len(rows) / (done - trained), **environment(),
    })  # fmt: skip


def detection_score(real: Any, fake: Any, categories: Sequence[str]) -> float:
    """SDMetrics' detection score with XGBoost."""
    try:
        from sdmetrics.single_table.detection.sklearn import ScikitLearnClassifierDetectionMetric
        from xgboost import XGBClassifier
    except ImportError:
        raise MissingExtraError("Judging needs: pip install sdmetrics xgboost.") from None

    class Detection(ScikitLearnClassifierDetectionMetric):
        @staticmethod
        def _get_classifier() -> Any:
            return XGBClassifier(eval_metric="logloss", enable_categorical=True, random_state=0)

    kinds = {c: {"sdtype": "categorical" if c in categories else "numerical"} for c in real}
    return float(Detection.compute(real, fake[real.columns], metadata={"columns": kinds}))


def judge(folder: Path, samples: Path, out: Path) -> Path:
    """Score every sample that is there."""
    import pandas as pd

    rows = []
    for told in sorted(samples.glob("*.json")):
        about = json.loads(told.read_text())
        name = about["table"]
        drawn = pd.read_parquet(told.with_suffix(".parquet"))
        score = detection_score(training_rows(name, folder), drawn, categories_of(name))
        keep = (
            "table", "seed", "rows", "width", "blocks", "steps", "dropout", "learning_rate",
            "best_step", "training_seconds", "sampled_rows_a_second", "machine", "commit",
        )  # fmt: skip
        rows.append({"detection": score, **{k: about.get(k) for k in keep}})
    if not rows:
        raise OptionError(f"{samples} holds no samples: run the command `train` first.")
    means = [
        {"table": name, "detection": float(np.mean(found)), "deviation": float(np.std(found)),
         "models": len(found)}
        for name in CATEGORIES
        if (found := [r["detection"] for r in rows if r["table"] == name])
    ]  # fmt: skip
    means.append({"table": "mean", "detection": float(np.mean([m["detection"] for m in means]))})
    tables = {"means": means, "models": rows}
    return write_record("generated-tables", out, tables, {"protocol": __doc__}, shown="means")


def main(arguments: Sequence[str] | None = None) -> None:
    """Train or judge."""
    parser = argparse.ArgumentParser("benchmarks.generated_tables", description=__doc__)
    parser.add_argument("what", choices=("train", "judge"))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--samples", type=Path)
    parser.add_argument("--out", type=Path, default=default_path("generated-tables"))
    parser.add_argument("--tables", default=",".join(CATEGORIES))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--set", action="append", default=[], help="NAME=VALUE of a setting")
    given = parser.parse_args(arguments)
    if given.what == "judge":
        judge(given.data, given.samples or given.out.parent, given.out)
        return
    given.out.mkdir(parents=True, exist_ok=True)
    changed = {n: json.loads(v) for n, _, v in (text.partition("=") for text in given.set)}
    for seed in map(int, given.seeds.split(",")):
        for name in given.tables.split(","):
            train(name, seed, given.data, given.out, given.device, changed)


if __name__ == "__main__":
    main()
