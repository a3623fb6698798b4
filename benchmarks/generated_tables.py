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
trains all of them on one GPU, `scripts/tables-on-two-cores.sh` on two cores each, beside
other generators (`--method`, see `benchmarks.generators`), whose settings are their own.
"""

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.generators import METHODS, Job
from benchmarks.quality import default_path, write_record
from kermix.environment import environment
from kermix.errors import MissingExtraError, OptionError
from kermix.files import write_json

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
ROWS_COMPARED = 3000
TARGETS = {"adult": "income", "beijing": "pm2.5", "default": "class", "magic": "class",
           "shoppers": "Revenue"}  # fmt: skip
PUBLISHED = [  # by the papers of these generators, in the tables of TabDiff's and TabPC's
    {"method": "TabDiff", "adult": 0.841, "beijing": 0.772, "default": 0.591, "magic": 0.773,
     "shoppers": 0.736},
    {"method": "TabPC", "adult": 0.855, "beijing": 0.570, "default": 0.262, "magic": 0.860,
     "shoppers": 0.894},
    {"method": "TabSyn", "adult": 0.794, "beijing": 0.527, "default": 0.402, "magic": 0.760,
     "shoppers": 0.655},
    {"method": "CTGAN", "adult": 0.0, "beijing": 0.0, "default": 0.0, "magic": 0.103,
     "shoppers": 0.0},
]  # fmt: skip
SPLIT_SEED = 1234


def training_rows(name: str, folder: Path) -> Any:
    """The rows that published generators are trained with."""
    return split_rows(name, folder)[0]


def split_rows(name: str, folder: Path) -> tuple[Any, Any]:
    """The rows that published generators are trained with, and those that are left out."""
    import pandas as pd

    if name not in CATEGORIES and name not in CHOOSING:
        raise OptionError(f"There is no table {name}; there are {', '.join(CATEGORIES)}.")
    if name == "adult":
        return tuple(pd.read_csv(folder / f"adult-{part}.csv.gz") for part in ("train", "test"))
    if name == "flights":
        table = pd.read_parquet(folder / "flights.parquet")
    else:
        table = pd.read_csv(folder / f"{name}.csv.gz")
    if name in CHOOSING:
        table = table.drop(columns=["rownames", "time_hour", "tailnum", "year"], errors="ignore")
    if name == "beijing":
        table = table.dropna(subset=["pm2.5"]).reset_index(drop=True)
    order = np.arange(len(table))
    np.random.RandomState(SPLIT_SEED).shuffle(order)
    count = int(0.9 * len(table))
    if name in CHOOSING:
        count = min(count, ROWS_FOR_CHOOSING)
    return tuple(
        table.iloc[part].reset_index(drop=True) for part in (order[:count], order[count:])
    )


def categories_of(name: str) -> list[str]:
    """Columns of a table that are no numbers."""
    return CATEGORIES.get(name) or CHOOSING[name]


def train(method: str, job: Job, folder: Path, out: Path) -> None:
    """One model and its samples: NAME-SEED.parquet, and NAME-SEED.json about it."""
    rows = training_rows(job.table, folder)
    texts = [c for c in categories_of(job.table) if c in rows]
    drawn, told = METHODS[method](rows, texts, job)
    name = f"{job.table}-{job.seed}" if method == "kermix" else f"{method}-{job.table}-{job.seed}"
    drawn.to_parquet(out / f"{name}.parquet")
    write_json(out / f"{name}.json", {
        "method": method, "table": job.table, "seed": job.seed, "device": job.device,
        "rows": len(rows), "cores": len(os.sched_getaffinity(0)), **told, **environment(),
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


def quality_scores(real: Any, fake: Any, categories: Sequence[str]) -> dict[str, float]:
    """SDMetrics' scores of single columns (shape) and of pairs of columns (trend)."""
    from sdmetrics.reports.single_table import QualityReport

    kinds = {c: {"sdtype": "categorical" if c in categories else "numerical"} for c in real}
    report = QualityReport()
    report.generate(real, fake[real.columns], {"columns": kinds}, verbose=False)
    found = dict(report.get_properties().to_numpy().tolist())
    return {"shape": found["Column Shapes"], "trend": found["Column Pair Trends"]}


def nearer_share(train: Any, held: Any, fake: Any, categories: Sequence[str]) -> float:
    """Share of generated rows that are nearer to a training row than to one left out.

    As many training rows as there are left-out ones; columns by their range, categories one-hot;
    absolute differences. Half of the rows are, if nothing was memorized.
    """
    import pandas as pd
    from sklearn.neighbors import NearestNeighbors

    rng = np.random.default_rng(SPLIT_SEED)
    count = min(len(train), len(held), ROWS_COMPARED)
    parts = [t.iloc[rng.permutation(len(t))[:count]] for t in (train, held, fake)]
    whole = pd.concat([p[train.columns] for p in parts], ignore_index=True)
    texts = [c for c in train if c in categories]
    numbers = whole.drop(columns=texts).astype(float)
    scaled = (numbers - numbers.min()) / (numbers.max() - numbers.min()).replace(0, 1)
    coded = pd.get_dummies(whole[texts].astype(str)).astype(float)
    points = np.hstack([scaled.fillna(-1).to_numpy(), coded.to_numpy()])
    distances = [
        NearestNeighbors(n_neighbors=1, metric="manhattan", algorithm="brute")
        .fit(points[k * count : (k + 1) * count])
        .kneighbors(points[2 * count :])[0][:, 0]
        for k in (0, 1)
    ]
    return float((distances[0] < distances[1]).mean() + (distances[0] == distances[1]).mean() / 2)


def efficiency(fitted: Any, held: Any, target: str, categories: Sequence[str]) -> float:
    """What XGBoost learns from rows about others: AUC, or the error of a number."""
    import pandas as pd
    from sklearn.metrics import roc_auc_score
    from xgboost import XGBClassifier, XGBRegressor

    whole = pd.concat([fitted, held[fitted.columns]], ignore_index=True)
    inputs = whole.drop(columns=target)
    for name in inputs:
        if name in categories:
            inputs[name] = inputs[name].astype(str).astype("category")
    own, other = slice(None, len(fitted)), slice(len(fitted), None)
    model: Any = XGBRegressor if target not in categories else XGBClassifier
    model = model(enable_categorical=True, random_state=0)
    if target not in categories:
        wanted = whole[target].to_numpy(float)
        found = model.fit(inputs[own], wanted[own]).predict(inputs[other])
        return float(np.sqrt(np.mean((found - wanted[other]) ** 2)))
    wanted = whole[target].astype(str).astype("category").cat.codes.to_numpy()
    chances = model.fit(inputs[own], wanted[own]).predict_proba(inputs[other])[:, 1]
    return float(roc_auc_score(wanted[other], chances))


def judged(told: Path, folder: Path) -> dict[str, Any]:
    """All scores of one sample, which are kept beside it."""
    import pandas as pd

    kept = told.with_suffix(".judged")
    if kept.exists():
        return dict(json.loads(kept.read_text()))
    about = json.loads(told.read_text())
    name = about["table"]
    drawn = pd.read_parquet(told.with_suffix(".parquet"))
    (train, held), texts = split_rows(name, folder), categories_of(name)
    row = {
        "detection": detection_score(train, drawn, texts),
        **quality_scores(train, drawn, texts),
        "nearer_training": nearer_share(train, held, drawn, texts),
    }
    if name in TARGETS:
        row["efficiency"] = efficiency(drawn, held, TARGETS[name], texts)
        row["efficiency_of_data"] = efficiency(train, held, TARGETS[name], texts)
    keep = (
        "method", "cores", "table", "seed", "rows", "width", "blocks", "steps", "dropout",
        "learning_rate", "average", "order_share", "max_training_time", "best_step",
        "training_seconds", "sampled_rows_a_second", "machine", "commit",
    )  # fmt: skip
    row |= {k: about.get(k) for k in keep}
    write_json(kept, row)
    return row


def judge(folder: Path, samples: Path, out: Path) -> Path:
    """Score every sample that is there."""
    rows = [judged(told, folder) for told in sorted(samples.glob("*.json"))]
    if not rows:
        raise OptionError(f"{samples} holds no samples: run the command `train` first.")
    measures = ("detection", "shape", "trend", "nearer_training", "efficiency",
                "efficiency_of_data", "training_seconds")  # fmt: skip
    means: list[dict[str, Any]] = []
    for method in sorted({r["method"] for r in rows}):
        some = [r for r in rows if r["method"] == method]
        of_method: list[dict[str, Any]] = []
        for name in dict.fromkeys(r["table"] for r in some):
            own = [r for r in some if r["table"] == name]
            found = {m: float(np.mean([r[m] for r in own])) for m in measures if m in own[0]}
            spread = float(np.std([r["detection"] for r in own]))
            of_method.append({"method": method, "table": name, "models": len(own),
                              "deviation": spread, **found})  # fmt: skip
        mean = float(np.mean([m["detection"] for m in of_method]))
        means += [*of_method, {"method": method, "table": "mean", "detection": mean}]
    tables = {"means": means, "published_detection": PUBLISHED, "models": rows}
    told = {"protocol": __doc__, "trained_on": rows[0]["machine"], "trained_at": rows[0]["commit"]}
    return write_record("generated-tables", out, tables, told, shown="means")


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
    parser.add_argument("--method", choices=METHODS, default="kermix")
    parser.add_argument("--set", action="append", default=[], help="NAME=VALUE of a setting")
    given = parser.parse_args(arguments)
    if given.what == "judge":
        judge(given.data, given.samples or given.out.parent, given.out)
        return
    given.out.mkdir(parents=True, exist_ok=True)
    changed = {n: json.loads(v) for n, _, v in (text.partition("=") for text in given.set)}
    for seed in map(int, given.seeds.split(",")):
        for name in given.tables.split(","):
            job = Job(name, seed, given.device, changed)
            train(given.method, job, given.data, given.out)


if __name__ == "__main__":
    main()
