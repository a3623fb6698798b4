"""How often the demo ends well: samples of its table are compared with it, for many seeds.

`python -m benchmarks demo`. For each seed the table of penguins is fitted as `scripts/demo.sh`
does it, as many rows are drawn as it has, and both are compared. Beside it stands the same
comparison with one column of the samples moved by half a standard deviation, which should be
found; and how many samples equal a row of the table, as one learned by heart would.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

import kermix as km

__all__ = ["run"]

TABLE = Path(__file__).resolve().parents[1] / "examples" / "penguins.csv"
SEEDS = 20
SETTINGS: dict[str, Any] = {"steps": 1000, "validation_fraction": 0}
MOVED, BY = "flipper_mm", 0.5  # of its standard deviation


def run(quick: bool = False) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """A line for each seed, and the sum of them."""
    table = pd.read_csv(TABLE)
    modelled = [name for name in table.columns if name not in ("id", "note")]
    known = set(table[modelled].itertuples(index=False, name=None))
    rows: list[dict[str, Any]] = []
    for seed in range(2 if quick else SEEDS):
        settings = SETTINGS | ({"steps": 20} if quick else {})
        model = km.TableModel(random_state=seed, **settings).fit(table)
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
                "copies": sum(
                    row in known for row in samples[modelled].itertuples(index=False, name=None)
                ),
            }
        )
        sums = {
            "fits": len(rows),
            "rows": len(table),
            "different": sum(row["different"] for row in rows),
            "found where one column moved": sum(row["moved found"] for row in rows),
            "copies": sum(row["copies"] for row in rows),
            "mean AUC": sum(row["AUC"] for row in rows) / len(rows),
        }
        yield {"demo": [sums], "fits": rows}
