"""A big mixture made small.

Inner products of Gaussian mixtures have closed forms, so the Cauchy-Schwarz divergence between two
of them needs no samples, and it is differentiable. Here sixty components become eight by gradient
descent on that divergence.
"""

import os

import matplotlib.pyplot as plt
import torch

import kermix as km

quick = bool(os.environ.get("KERMIX_QUICK"))
steps = 20 if quick else 600
generator = torch.Generator().manual_seed(0)
angle = torch.linspace(0, 5, 60)
centres = torch.stack([angle * angle.cos(), angle * angle.sin()], 1)
big = km.GaussianMixture(torch.ones(60), centres, torch.full((60,), 0.1))

weights = torch.zeros(8, requires_grad=True)
means = big.sample((8,), generator=generator).requires_grad_()
factors = torch.eye(2).repeat(8, 1, 1).requires_grad_()
optimizer = torch.optim.Adam([weights, means, factors], lr=0.03)


def small() -> km.GaussianMixture:
    covariances = factors @ factors.mT + 1e-3 * torch.eye(2)
    return km.GaussianMixture(weights.softmax(0), means, covariances)


for _ in range(steps):
    divergence = big.cauchy_schwarz(small())
    optimizer.zero_grad()
    divergence.backward()
    optimizer.step()

side = torch.linspace(-6, 6, 120)
grid = torch.cartesian_prod(side, side)
figure, axes = plt.subplots(1, 2, figsize=(7, 3.5), layout="constrained", sharey=True)
titles = ("60 round components", f"8 full ones, divergence {divergence.item():.3f}")
for ax, mixture, title in zip(axes, (big, small()), titles, strict=True):
    with torch.no_grad():
        density = mixture.log_prob(grid).exp().reshape(120, 120)
    ax.contourf(side, side, density.T, levels=12, cmap="cividis")
    ax.scatter(*mixture.means.detach().T, s=6, color="#E69F00")
    ax.set_title(title, fontsize=9)
figure.savefig("mixture_closed_forms.png", dpi=110)
