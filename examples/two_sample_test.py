"""Do two samples differ, and where?

Both samples have the same mean and the same covariance, so simple tests find nothing. The
permutation test of the SVD cost does, at an exact level. The witness function shows where one
sample has more points than the other.
"""

import os

import matplotlib.pyplot as plt
import torch

import kermix as km

quick = bool(os.environ.get("KERMIX_QUICK"))
generator = torch.Generator().manual_seed(0)
n = 100 if quick else 600
x = torch.randn(n, 2, generator=generator)
angle = 2 * torch.pi * torch.rand(n, generator=generator)
ring = 1.4 * torch.stack([angle.cos(), angle.sin()], 1)
y = ring + 0.2 * torch.randn(n, 2, generator=generator)

test = km.two_sample_test(x, y, "svd", permutations=500)
result = km.compare(x, y, permutations=0, jackknife_groups=0)
print(f"p = {test.pvalue:.4f}, fidelity {result.measure('svd').normalized:.3f}")

side = torch.linspace(-3, 3, 80)
grid = torch.cartesian_prod(side, side)
witness = result.witness(grid).reshape(80, 80).numpy()

figure, axes = plt.subplots(1, 3, figsize=(9.5, 3), layout="constrained")
for ax, points, colour, name in ((axes[0], x, "#0072B2", "x"), (axes[1], y, "#D55E00", "y")):
    ax.scatter(*points.T, s=4, color=colour)
    ax.set(title=name, xlim=(-3, 3), ylim=(-3, 3), aspect="equal")
limit = abs(witness).max()
picture = axes[2].imshow(
    witness.T, origin="lower", extent=(-3, 3, -3, 3), cmap="PuOr", vmin=-limit, vmax=limit
)
figure.colorbar(picture, ax=axes[2], label="more y  -  more x", shrink=0.8)
axes[2].set_title(f"witness (p = {test.pvalue:.3f})")
figure.savefig("two_sample_test.png", dpi=110)
