"""Choosing the variance.

The variance is the scale of the differences that a cost can detect. If it is far too small, even
two samples of the same density look different; if it is far too large, everything looks the same.
In between, the gap between the two curves is widest: choose a variance there. Several variances at
once are a safe choice.
"""

import os

import matplotlib.pyplot as plt
import torch

import kermix as km
from kermix.data.dataset import toy

quick = bool(os.environ.get("KERMIX_QUICK"))
n = 100 if quick else 600
generator = torch.Generator().manual_seed(0)
moons, rings = toy("moons"), toy("circles")
x, again, other = (t.sample(n, generator) for t in (moons, moons, rings))

variances = torch.logspace(-5, 2, 8 if quick else 36).tolist()
same, different = (
    [km.svd_cost(x, y, v, normalized=True).item() for v in variances] for y in (again, other)
)
rules = {rule: km.choose_variance(x, rule).item() for rule in ("silverman", "median")}

figure, axes = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
axes[0].scatter(*x.T, s=3, color="#0072B2")
axes[0].scatter(*other.T, s=3, color="#D55E00")
axes[0].set_title("two densities", fontsize=9)
axes[1].semilogx(variances, same, color="#0072B2", label="two samples of the moons")
axes[1].semilogx(variances, different, color="#D55E00", label="moons and circles")
for rule, style in zip(rules, (":", "--"), strict=True):
    axes[1].axvline(rules[rule], color="0.5", linestyle=style, label=f'"{rule}" rule')
axes[1].set(xlabel="variance", ylabel="fidelity")
axes[1].legend(fontsize=7)
figure.savefig("choose_variance.png", dpi=110)
