"""Drift between two months of data.

Two tables from a shop: in February a few customers buy far more, at night. The means hardly move.
`km.compare` says whether the months differ at all (one p-value), by how much (the fidelity) and in
which columns. It also takes file names, as does `kermix compare january.csv february.csv`.
"""

import os

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import kermix as km

quick = bool(os.environ.get("KERMIX_QUICK"))
rng = np.random.default_rng(0)


def month(rows: int, share_of_big_buyers: float) -> pd.DataFrame:
    big = rng.random(rows) < share_of_big_buyers
    return pd.DataFrame(
        {
            "amount": rng.gamma(2, 20, rows) + big * 150,
            "hour": np.where(big, rng.normal(3, 1, rows), rng.normal(14, 4, rows)) % 24,
            "items": rng.poisson(3, rows) + 1.0,
            "visits": rng.gamma(1.5, 2, rows),
        }
    )


rows = 200 if quick else 800
january, february = month(rows, 0.0), month(rows, 0.05)
result = km.compare(january, february, permutations=50 if quick else 500, jackknife_groups=0)
print(result)

columns = sorted(result.verdict.columns, key=lambda c: c.difference)
figure, axes = plt.subplots(1, 2, figsize=(7, 2.8), layout="constrained")
colours = ["#D55E00" if c.pvalue < 0.05 else "0.7" for c in columns]
axes[0].barh([c.column for c in columns], [c.difference for c in columns], color=colours)
axes[0].set_xlabel("total variation")
p = result.tests["svd"].pvalue
axes[0].set_title(f"p = {p:.3f}; orange: the column differs", fontsize=9)
for table, colour, name in ((january, "#0072B2", "January"), (february, "#D55E00", "February")):
    axes[1].scatter(table["hour"], table["amount"], s=3, color=colour, label=name, alpha=0.7)
axes[1].set(xlabel="hour", ylabel="amount")
axes[1].legend(fontsize=7)
figure.savefig("drift.png", dpi=110)
