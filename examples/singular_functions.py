"""What two densities have in common, in pieces.

The kernel between two moons and a Gaussian decomposes into pairs of functions. The left ones live
on the moons, the right ones on the Gaussian; each pair has the same shape. Their singular values
add up to the fidelity.
"""

import os

import matplotlib.pyplot as plt
import torch

import kermix as km
from kermix.data.dataset import toy

quick = bool(os.environ.get("KERMIX_QUICK"))
n = 200 if quick else 600
generator = torch.Generator().manual_seed(1)
moons = toy("moons").sample(n, generator)
gaussian = torch.randn(n, 2, generator=generator)

result = km.decompose(moons, gaussian, 0.1, rank=4)
left, right = result.left(), result.right()  # one column for each function

figure, axes = plt.subplots(
    2, 4, figsize=(7.5, 3.8), layout="constrained", sharex=True, sharey=True
)
for k in range(4):
    limit = float(left[:, k].abs().quantile(0.98))
    for ax, points, values in ((axes[0, k], moons, left), (axes[1, k], gaussian, right)):
        ax.scatter(*points.T, c=values[:, k], s=3, cmap="cividis", vmin=-limit, vmax=limit)
        ax.set(xticks=[], yticks=[])
    axes[0, k].set_title(f"singular value {result.singular_values[k]:.3f}", fontsize=9)
axes[0, 0].set_ylabel("left, on the moons")
axes[1, 0].set_ylabel("right, on the Gaussian")
figure.savefig("singular_functions.png", dpi=80)
