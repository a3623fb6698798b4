"""Half way between two data sets.

Points that minimize the sum of two losses lie between two data sets. With one minus the fidelity
as the loss (half the squared Bures distance) and a large variance, mass moves; the weights of the
two losses determine how far.
"""

import os

import matplotlib.pyplot as plt
import torch

import kermix as km
from kermix.data.dataset import toy

quick = bool(os.environ.get("KERMIX_QUICK"))
steps, n = (10, 60) if quick else (200, 150)
generator = torch.Generator().manual_seed(0)
moons = toy("moons").sample(n, generator)
ring = toy("circles").sample(n, generator) / 2
loss_function = km.SVDLoss([0.03, 0.3], log=False)

shares = (0.0, 0.25, 0.5, 0.75, 1.0)
figure, axes = plt.subplots(1, 5, figsize=(10, 2.3), layout="constrained")
for share, ax in zip(shares, axes, strict=True):
    points = moons.clone().requires_grad_()
    optimizer = torch.optim.Adam([points], lr=0.03)
    for _ in range(steps):
        loss = (1 - share) * loss_function(moons, points) + share * loss_function(ring, points)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    ax.scatter(*points.detach().T, s=4, color=(0.9 * share, 0.35, 0.7 * (1 - share)))
    ax.set(title=f"{share:.0%}", xticks=[], yticks=[], xlim=(-4, 4), ylim=(-4, 4))
figure.savefig("between.png", dpi=110)
