"""Tables that no setting was chosen on, generated and judged as TabCascade's paper has it.

Two commands, as for `benchmarks.generated_tables`::

    python -m benchmarks.unseen_tables train --data FOLDER --out SAMPLES
    python -m benchmarks.unseen_tables judge --data FOLDER --samples SAMPLES --out RECORD

A model is trained with 80 % of the rows (a tenth is for tests and a tenth for validation, by
scikit-learn's `train_test_split` with seed 42, stratified by a class), gaps of categories are a
value of their own, and it draws as many rows. LightGBM (depth 5, 31 leaves, at most 200 rounds,
10 without gain, five folds) tries to tell them apart: the score is 2 - 2 max(AUC, 1/2), so 1 means
that it cannot. Of the twelve tables of the paper, airlines and news could not be had.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.generated_tables import CATEGORIES
from benchmarks.generators import METHODS, Job, imported
from benchmarks.quality import default_path, write_record
from kermix.environment import environment
from kermix.errors import OptionError
from kermix.files import write_json

__all__ = ["detection_score", "main", "training_rows"]

UNSEEN = {
    "adult": CATEGORIES["adult"],
    "beijing": CATEGORIES["beijing"],
    "credit_g": [
        "class", "checking_status", "credit_history", "purpose", "savings_status", "employment",
        "personal_status", "other_parties", "property_magnitude", "other_payment_plans",
        "housing", "job", "own_telephone", "foreign_worker",
    ],
    "default": CATEGORIES["default"],
    "diabetes": [
        "readmitted", "race", "gender", "admission_type_id", "discharge_disposition_id",
        "admission_source_id", "diag_1", "diag_2", "diag_3", "max_glu_serum", "A1Cresult",
        "metformin", "repaglinide", "nateglinide", "chlorpropamide", "glimepiride", "glipizide",
        "glyburide", "tolbutamide", "pioglitazone", "rosiglitazone", "acarbose", "miglitol",
        "tolazamide", "insulin", "glyburide-metformin", "change", "diabetesMed", "age",
    ],
    "electricity": ["class", "day"],
    "kc1": ["defects"],
    "nmes": ["employed", "insurance", "medicaid", "adl", "region", "afam", "gender", "married",
             "health"],
    "phoneme": ["class"],
    "shoppers": CATEGORIES["shoppers"],
}  # fmt: skip
COUNTS = [  # numbers of diabetes; its other columns are dropped
    "num_lab_procedures", "num_medications", "number_outpatient", "number_emergency",
    "number_inpatient", "time_in_hospital", "num_procedures", "number_diagnoses",
]  # fmt: skip
CLASSES = {  # of the other tables the target is a number
    "adult": "income", "credit_g": "class", "default": "class", "diabetes": "readmitted",
    "electricity": "class", "kc1": "defects", "phoneme": "class", "shoppers": "Revenue",
}  # fmt: skip
SPLIT_SEED = 42
PUBLISHED = [  # means over the paper's twelve tables
    {"method": "TabCascade", "detection": 0.787}, {"method": "CDTD", "detection": 0.518},
    {"method": "TabDiff", "detection": 0.430},
]  # fmt: skip


def whole_table(name: str, folder: Path) -> Any:
    """All rows of a table, with the columns of the protocol."""
    import pandas as pd

    if name not in UNSEEN:
        raise OptionError(f"There is no table {name}; there are {', '.join(UNSEEN)}.")
    if name == "adult":
        parts = [pd.read_csv(folder / f"adult-{part}.csv.gz") for part in ("train", "test")]
        return pd.concat(parts, ignore_index=True)
    if name == "diabetes":
        table = pd.read_parquet(folder / "diabetes.parquet")
        table["readmitted"] = np.where(table["readmitted"] == "NO", "no", "yes")
        numbers = table[COUNTS].apply(pd.to_numeric)
        return pd.concat([table[UNSEEN[name]], numbers], axis=1)
    table = pd.read_csv(folder / f"{name}.csv.gz")
    if name == "beijing":
        table = table.dropna(subset=["pm2.5"]).drop(columns="No", errors="ignore")
    unnamed = [column for column in table if column.startswith("Unnamed")]
    return table.drop(columns=[*unnamed, "rownames"], errors="ignore")


def training_rows(name: str, folder: Path) -> Any:
    """The rows that a model is trained with; gaps of categories are a value."""
    from sklearn.model_selection import train_test_split

    table = whole_table(name, folder)
    for column in UNSEEN[name]:
        own = table[column].astype(object)
        table[column] = own.where(own.notna(), "missing").astype(str)

    def divided(rows: Any, size: float | int) -> Any:
        labels = rows[CLASSES[name]] if name in CLASSES else None
        return train_test_split(rows, test_size=size, random_state=SPLIT_SEED, stratify=labels)

    rest, test = divided(table, 0.1)
    return divided(rest, len(test))[0].reset_index(drop=True)


def train(method: str, job: Job, folder: Path, out: Path) -> None:
    """One model and its samples: NAME-SEED.parquet, and NAME-SEED.json about it."""
    rows = training_rows(job.table, folder)
    drawn, told = METHODS[method](rows, UNSEEN[job.table], job)
    name = f"{job.table}-{job.seed}" if method == "kermix" else f"{method}-{job.table}-{job.seed}"
    drawn.to_parquet(out / f"{name}.parquet", compression="zstd")
    write_json(out / f"{name}.json", {
        "method": method, "table": job.table, "seed": job.seed, "device": job.device,
        "rows": len(rows), **told, **environment(),
    })  # fmt: skip


def detection_score(real: Any, fake: Any, categories: Sequence[str]) -> float:
    """How little LightGBM can tell generated rows from true ones."""
    import pandas as pd
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedKFold

    lightgbm = imported("lightgbm", "lightgbm")
    both = pd.concat([real, fake[real.columns]], ignore_index=True)
    for column in categories:
        both[column] = both[column].astype(str).astype("category")
    both.columns = [f"x{place}" for place in range(both.shape[1])]  # some names are no JSON
    made = np.repeat([0, 1], [len(real), len(fake)])
    areas = []
    for fitted, judged in StratifiedKFold(5, shuffle=True, random_state=0).split(both, made):
        trees = lightgbm.LGBMClassifier(
            n_estimators=200, max_depth=5, num_leaves=31, random_state=0, verbose=-1
        )
        trees.fit(
            both.iloc[fitted], made[fitted], eval_set=[(both.iloc[judged], made[judged])],
            eval_metric="auc", callbacks=[lightgbm.early_stopping(10, verbose=False)],
        )  # fmt: skip
        areas.append(roc_auc_score(made[judged], trees.predict_proba(both.iloc[judged])[:, 1]))
    return float(2 - 2 * max(np.mean(areas), 0.5))


def judge(folder: Path, samples: Path, out: Path) -> Path:
    """Score every sample that is there."""
    import pandas as pd

    rows = []
    for told in sorted(samples.glob("*.json")):
        about = json.loads(told.read_text())
        real = training_rows(about["table"], folder)
        drawn = pd.read_parquet(told.with_suffix(".parquet"))
        score = detection_score(real, drawn, UNSEEN[about["table"]])
        rows.append({"detection": score, **about})
    if not rows:
        raise OptionError(f"{samples} holds no samples: run the command `train` first.")
    means = [
        {"table": name, "models": len(own), "detection": float(np.mean(own))}
        for name in UNSEEN
        if (own := [r["detection"] for r in rows if r["table"] == name])
    ]
    mean = float(np.mean([row["detection"] for row in means]))
    means.append({"table": f"mean of {len(means)}", "models": len(rows), "detection": mean})
    tables = {"means": means, "published": PUBLISHED, "models": rows}
    protocol = {"protocol": __doc__, "trained_on": rows[0]["machine"],
                "trained_at": rows[0]["commit"]}  # fmt: skip
    return write_record("unseen-tables", out, tables, protocol, shown="means")


def main(arguments: Sequence[str] | None = None) -> None:
    """Train or judge."""
    parser = argparse.ArgumentParser("benchmarks.unseen_tables", description=__doc__)
    parser.add_argument("what", choices=("train", "judge"))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--samples", type=Path)
    parser.add_argument("--out", type=Path, default=default_path("unseen-tables"))
    parser.add_argument("--tables", default=",".join(UNSEEN))
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
            train(given.method, Job(name, seed, given.device, changed), given.data, given.out)


if __name__ == "__main__":
    main()
