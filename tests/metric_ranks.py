"""What tests of metrics run on each process."""

import torch
import torch.distributed as dist

import kermix as km


def points(n=600):
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def values(rank, world, mixed_up=False):
    """Metrics of this rank's part of the samples."""
    real = points() if not (mixed_up and rank) else points()[:300]
    mine = 1.2 * points()[rank::world]
    found = {}
    for name, metric in (
        ("vendi", km.metrics.Vendi(real, 2.0, rank=50)),
        ("rke", km.metrics.RKE(real, 2.0, rank=50)),
        ("fidelity", km.metrics.Fidelity(real, 2.0, rank=50)),
        ("missed", km.metrics.KEN(real, 2.0, of="real", rank=50)),
        ("frechet", km.metrics.FrechetDistance(real)),
    ):
        for batch in mine.split(70):
            metric.update(batch)
        found[name] = float(metric.compute())
    return found


def on_ranks(mixed_up):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        return values(dist.get_rank(), dist.get_world_size(), mixed_up)
    finally:
        dist.destroy_process_group()
