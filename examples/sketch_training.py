"""Training against a sketch.

The data are read once, in batches, and become one small matrix. After that they are not needed:
the loss compares the points with the sketch of *all* the data, so there is no minibatch noise, and
a step costs the same for a thousand data points as for a hundred million.
"""

import os

import matplotlib.pyplot as plt
import torch

import kermix as km
from kermix.data.dataset import toy

quick = bool(os.environ.get("KERMIX_QUICK"))
steps, rows = (20, 2000) if quick else (200, 200_000)
generator = torch.Generator().manual_seed(0)
spirals = toy("2spirals")

features = km.nystrom_features(spirals.sample(5000, generator), 0.05, tolerance=1e-2)
sketch = km.Sketch(features)
for _ in range(10):  # ten pieces, none of them kept
    sketch.update(spirals.sample(rows // 10, generator))
print(sketch)

points = torch.randn(300, 2, generator=generator).requires_grad_()
optimizer = torch.optim.Adam([points], lr=0.05)
loss_function = km.SVDLoss()  # the kernel is the sketch's
losses = []
for _ in range(steps):
    loss = loss_function(sketch, points)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

figure, axes = plt.subplots(1, 3, figsize=(9, 3), layout="constrained")
axes[0].scatter(*spirals.sample(2000, generator).T, s=2, color="#0072B2")
axes[0].set_title(f"{sketch.count:,} points", fontsize=9)
size = f"{features.rank} x {features.rank}"
axes[1].imshow(sketch.moments.second.abs().clamp(min=1e-4).log10().numpy(), cmap="cividis")
axes[1].set_title(f"their sketch, {size}", fontsize=9)
axes[2].scatter(*points.detach().T, s=4, color="#D55E00")
axes[2].set_title(f"trained points, loss {losses[-1]:.4f}", fontsize=9)
figure.savefig("sketch_training.png", dpi=75)
