"""Compare big files without having them in one place.

Each day's data are sketched on the machine where they are stored: a file of a few hundred
kilobytes. Sketches with the same feature map can be added, so weeks are sums of days, and any two
of them can be compared, each value with a certified error bound.
"""

import os
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import kermix as km

quick = bool(os.environ.get("KERMIX_QUICK"))
rows = 500 if quick else 20_000
generator = torch.Generator().manual_seed(0)


def day(number: int) -> torch.Tensor:
    """Measurements of one day; from day 8 on, one sensor slowly drifts."""
    points = torch.randn(rows, 3, generator=generator)
    points[:, 0] += 0.15 * max(0, number - 7)
    return points


features = km.nystrom_features(day(0), 0.5, rank=200)
folder = Path(tempfile.mkdtemp())
for number in range(14):
    sketch = km.Sketch(features).update(day(number))
    path = sketch.save(folder / f"{number:02}.safetensors")
print(f"a day: {rows} rows, {path.stat().st_size / 1000:.0f} kB")

days = [km.Sketch.load(file) for file in sorted(folder.glob("*.safetensors"))]
first_week = days[0]
for sketch in days[1:7]:
    first_week = first_week + sketch  # adding is all it takes

distances, bounds = [], []
for sketch in days:
    fidelity, info = km.svd_cost(first_week, sketch, normalized=True, return_info=True)
    distances.append((2 - 2 * fidelity).clamp(min=0).sqrt().item())
    bounds.append(info.error_bound.item())
print(f"error bound of a fidelity: {max(bounds):.1e}")

figure, ax = plt.subplots(figsize=(6, 3), layout="constrained")
ax.bar(range(1, 15), distances, color=["#0072B2"] * 7 + ["#D55E00"] * 7)
ax.set(xlabel="day", ylabel="Bures distance to the first week")
figure.savefig("merge_sketches.png", dpi=110)
