"""How often the demo ends well: samples of its table are compared with it, for many seeds.

`python -m benchmarks demo`. For each seed the table of penguins is fitted with default settings,
as many rows are drawn as it has, and both are compared. Beside it stands the same comparison with
one column of the samples moved by half a standard deviation, which should be found.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

import kermix as km

__all__ = ["run"]

TABLE = Path(__file__).resolve().parents[1] / "examples" / "penguins.csv"
SEEDS = 20
MOVED, BY = "flipper_mm", 0.5  # of its standard deviation


def run(quick: bool = False) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """A line for each seed, and the sum of them."""
    table = pd.read_csv(TABLE)
    rows: list[dict[str, Any]] = []
    for seed in range(2 if quick else SEEDS):
        model = km.TableModel(random_state=seed, **({"steps": 20} if quick else {})).fit(table)
        samples = model.sample(len(table), random_state=seed)
        shift = BY * table[MOVED].std()
        moved = samples.assign(**{MOVED: samples[MOVED] + shift})
        same, other = (km.compare(table, drawn).verdict for drawn in (samples, moved))
        rows.append(
            {
                "seed": seed,
                "p": same.pvalue,
                "different": same.different,
                "AUC": same.effect,
                "p, moved": other.pvalue,
                "moved found": other.different,
            }
        )
        sums = {
            "fits": len(rows),
            "rows": len(table),
            "different": sum(row["different"] for row in rows),
            "found where one column moved": sum(row["moved found"] for row in rows),
            "mean AUC": sum(row["AUC"] for row in rows) / len(rows),
        }
        yield {"demo": [sums], "fits": rows}
