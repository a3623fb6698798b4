"""Your own network.

A kermix loss is a PyTorch module like any other: data and generated points in, a number out.
Here a small network learns to turn noise into a Swiss roll. The variance shrinks during training,
and using three variances at once keeps distant points in reach.
"""

import os

import matplotlib.pyplot as plt
import torch
from torch import nn

import kermix as km
from kermix.data.dataset import toy

quick = bool(os.environ.get("KERMIX_QUICK"))
steps = 10 if quick else 2000
torch.manual_seed(0)
generator = torch.Generator().manual_seed(0)
data = toy("swissroll").sample(20_000, generator)

network = nn.Sequential(
    nn.Linear(3, 128), nn.BatchNorm1d(128), nn.ReLU(),
    nn.Linear(128, 128), nn.BatchNorm1d(128), nn.ReLU(),
    nn.Linear(128, 128), nn.BatchNorm1d(128), nn.ReLU(),
    nn.Linear(128, 2),
)  # fmt: skip
optimizer = torch.optim.Adam(network.parameters(), lr=2e-3, betas=(0.5, 0.9))
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

for step in range(steps):
    variance = 0.1 * 0.02 ** (step / steps)
    batch = data[torch.randint(len(data), (300,), generator=generator)]
    points = network(torch.randn(300, 3, generator=generator))
    loss = km.SVDLoss([variance, 10 * variance, 100 * variance])(batch, points)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()

with torch.no_grad():
    samples = network(torch.randn(2000, 3, generator=generator))
figure, axes = plt.subplots(1, 2, figsize=(7, 3.5), layout="constrained", sharex=True, sharey=True)
axes[0].scatter(*data[:2000].T, s=2, color="#0072B2")
axes[0].set_title("data", fontsize=9)
axes[1].scatter(*samples.T, s=2, color="#D55E00")
axes[1].set_title("network", fontsize=9)
figure.savefig("custom_network.png", dpi=110)
