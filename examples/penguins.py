"""Learn a table, complete it, and ask whether its samples differ.

344 penguins as they were noted, with ids, dates, remarks and gaps, in `penguins.csv` beside this
script. The model generates whole rows, fills gaps, and knows what goes with what: the distribution
of a penguin's mass given its species and sex. The verdict says whether new rows can be told from
those that were seen.
"""

import os
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

import kermix as km

quick = bool(os.environ.get("KERMIX_QUICK"))
place = Path(__file__).parent if "__file__" in globals() else Path("..")  # a notebook has no file
penguins = pd.read_csv(place / "penguins.csv")
settings = {"steps": 20, "width": 16} if quick else {}

model = km.TableModel(random_state=0, **settings).fit(penguins)
new = model.sample(len(penguins), random_state=0)
filled = model.impute(penguins)
gaps = [int(table["sex"].isna().sum()) for table in (penguins, filled)]
verdict = km.compare(penguins, new).verdict
print(verdict)
print(f"{gaps[0]} penguins without a sex, {gaps[1]} after impute")

figure, axes = plt.subplots(1, 3, figsize=(10, 3.2), layout="constrained")
colors = {"Adelie": "#0072B2", "Chinstrap": "#D55E00", "Gentoo": "#009E73"}
for ax, table, title in ((axes[0], penguins, "as noted"), (axes[1], new, "new")):
    for species, color in colors.items():
        some = table[table["species"] == species]
        ax.scatter(some["bill_mm"], some["bill_depth_mm"], s=6, color=color, label=species)
    ax.set(title=title, xlabel="bill_mm", ylabel="bill_depth_mm", xlim=(31, 61), ylim=(12, 22))
axes[0].legend(fontsize=7, frameon=False)
mass = range(2700, 6400, 25)
for species, color in colors.items():
    for sex, style in (("female", "-"), ("male", "--")):
        given = model.conditional("mass_g", {"species": species, "sex": sex})
        steps = [given.cdf(m + 50.0) - given.cdf(m - 50.0) for m in mass]
        axes[2].plot(mass, steps, style, color=color, lw=1.2)
axes[2].set(title="mass_g given species, - female, -- male", yticks=[])
figure.savefig("penguins.png", dpi=110)
