"""A loss that does not shrink.

Data and model are normal, in 16 dimensions with 200 points each, and the model's standard
deviation varies. The SVD loss, and far more so the matrix loss, is smallest where the model is
narrower than the data: a point that cannot know where the next data will be does best near the
middle. `km.DebiasedLoss` subtracts the loss between two samples of the same density, and is
smallest where the model is right. The scalar and vector losses hardly have this bias.
"""

import os

import matplotlib.pyplot as plt
import torch

import kermix as km

quick = bool(os.environ.get("KERMIX_QUICK"))
repetitions, n = (2, 20) if quick else (8, 200)
generator = torch.Generator().manual_seed(0)
x, y = torch.randn(2, repetitions, n, 16, generator=generator)
deviations = torch.linspace(0.5, 1.2, 4 if quick else 15).tolist()

figure, axes = plt.subplots(1, 4, figsize=(10, 2.7), layout="constrained")
losses = [km.ScalarLoss, km.VectorLoss, km.MatrixLoss, km.SVDLoss]
for loss_class, ax in zip(losses, axes, strict=True):
    plain = loss_class([0.3, 3.0])
    for loss, colour, label in (
        (plain, "#D55E00", "plain"),
        (km.DebiasedLoss(plain), "#0072B2", "debiased"),
    ):
        values = torch.stack([loss(x, s * y).mean() for s in deviations])
        values = values - values.min()
        ax.plot(deviations, values, color=colour, label=label)
        ax.plot(deviations[int(values.argmin())], 0, "o", color=colour)
    ax.axvline(1, color="0.6", linestyle=":")
    ax.set_title(loss_class.__name__, fontsize=9)
    ax.set_xlabel("deviation of the model")
axes[0].set_ylabel("mean loss above its minimum")
axes[0].legend(fontsize=8)
figure.savefig("debiased_loss.png", dpi=110)
