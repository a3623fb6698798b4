"""Regression with more than one answer.

For some inputs there are three possible outputs, so a curve through the middle is wrong.
`fit_conditional` learns the whole distribution of the output for each input: first with the SVD
cost on pairs, then with a closed form for each input.
"""

import os

import matplotlib.pyplot as plt
import torch

from kermix import fit_conditional

quick = bool(os.environ.get("KERMIX_QUICK"))
generator = torch.Generator().manual_seed(0)
output = torch.rand(2000, 1, generator=generator)
noise = 0.03 * torch.randn(2000, 1, generator=generator)
context = output + 0.3 * torch.sin(2 * torch.pi * output) + noise  # the wrong way round

steps, refine_steps = (10, 10) if quick else (200, 800)
model = fit_conditional(
    context, output, components=8, steps=steps, refine_steps=refine_steps, device="cpu"
)

grid = torch.linspace(0, 1, 120)[:, None]
heights = torch.linspace(-0.1, 1.1, 160, dtype=torch.float64)
with torch.no_grad():
    mixtures = model(grid)  # one mixture for each input
    density = mixtures.log_prob(heights[:, None, None].expand(-1, 120, 1)).exp()
    means = mixtures.mean

figure, axes = plt.subplots(1, 2, figsize=(7, 3.2), layout="constrained", sharey=True)
axes[0].scatter(context, output, s=2, color="#0072B2")
axes[0].set_title("data", fontsize=9)
window = {"extent": (0, 1, -0.1, 1.1), "origin": "lower", "aspect": "auto"}
axes[1].imshow(density.numpy(), **window, cmap="cividis", vmax=8)
axes[1].plot(grid[:, 0], means[:, 0], "--", color="white", linewidth=1, label="mean")
axes[1].legend(fontsize=7)
axes[1].set_title("density of the output for each input", fontsize=9)
for ax in axes:
    ax.set(xlim=(0, 1), ylim=(-0.1, 1.1), xlabel="input")
figure.savefig("conditional_regression.png", dpi=110)
