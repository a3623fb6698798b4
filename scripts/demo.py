"""The four costs between two toy samples: what `make demo` shows."""

import torch

import kermix as km


def main() -> None:
    """Compare a two-moon sample with itself shifted further and further away."""
    generator = torch.Generator().manual_seed(0)
    angle = torch.pi * torch.rand(500, generator=generator)
    moon = torch.stack([angle.cos(), angle.sin()], 1)
    moons = torch.cat([moon, torch.tensor([1.0, 0.5]) - moon])
    noise = [0.05 * torch.randn(moons.shape, generator=generator) for _ in range(2)]
    x, y = moons + noise[0], moons + noise[1]

    print("Two samples of 1000 points of the two moons, the second one shifted; v = 0.01.")
    print("Costs normalised to [0, 1]: 1 means that the samples could be the same.\n")
    print(f"{'shift':>6} {'scalar':>8} {'vector':>8} {'matrix':>8} {'SVD':>8}   SVD")
    for shift in (0.0, 0.1, 0.2, 0.4, 0.8, 1.6):
        moved = y + torch.tensor([shift, 0.0])
        costs = [
            cost(x, moved, 0.01, normalized=True).item()
            for cost in (km.scalar_cost, km.vector_cost, km.matrix_cost, km.svd_cost)
        ]
        bar = "#" * round(30 * costs[-1])
        print(f"{shift:6.1f} " + " ".join(f"{c:8.4f}" for c in costs) + f"   {bar}")


if __name__ == "__main__":
    main()
