"""Gradient flow of the four costs.

Points start in one blob, far away, and follow the gradient of a loss. It is computed in log space,
so it does not vanish at a distance. The scalar and SVD losses bring every point to the data. The
vector and matrix losses ask what combinations of the points' Gaussians can do, and leave behind
points that they do not need.
"""

import os

import matplotlib.pyplot as plt
import torch

import kermix as km
from kermix.data.dataset import toy

quick = bool(os.environ.get("KERMIX_QUICK"))
steps = 20 if quick else 400
generator = torch.Generator().manual_seed(0)
data = toy("moons").sample(300, generator)
start = 0.2 * torch.randn(150, 2, generator=generator) + torch.tensor([-2.0, -2.0])

losses = [km.ScalarLoss, km.VectorLoss, km.MatrixLoss, km.SVDLoss]
figure, axes = plt.subplots(1, 4, figsize=(10, 2.7), layout="constrained", sharey=True)
for loss_class, ax in zip(losses, axes, strict=True):
    points = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([points], lr=0.05)
    path = []
    for step in range(steps):
        variance = 0.5 * 0.01 ** (step / steps)  # from coarse to fine
        loss = loss_class([variance, 10 * variance])(data, points)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        path.append(points.detach().clone())
    fidelity = km.svd_cost(data, points.detach(), 0.01, normalized=True)
    lines = torch.stack(path)[::4, ::5]  # every fourth step of every fifth point
    ax.plot(lines[..., 0], lines[..., 1], color="0.85", linewidth=0.5)
    ax.scatter(*data.T, s=4, color="#0072B2", alpha=0.4)
    ax.scatter(*points.detach().T, s=6, color="#D55E00")
    ax.set_title(f"{loss_class.__name__}, fidelity {fidelity:.3f}", fontsize=9)
    ax.set_aspect("equal", adjustable="datalim")
figure.savefig("gradient_flow.png", dpi=90)
