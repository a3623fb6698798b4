"""Built-in sets: shapes, repeatability, densities that integrate to one, entropies."""

import pytest
import torch

from kermix.data.dataset import TOYS, toy
from kermix.data.loading import load
from kermix.errors import OptionError, TableError

# benchmarks.md; mixture10 is our own.
ENTROPIES = {
    "mixture10": -2.238, "ring8": -4.293, "grid25": 0.065, "8gaussians": 2.833,
    "checkerboard": 3.466, "moons": 2.393, "swissroll": 2.666, "circles": 3.272, "rings": 2.628,
}  # fmt: skip
PLANE = [name for name in TOYS if name != "digits"]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", PLANE)
def test_points_are_in_the_plane_and_repeat(name):
    first, second = (toy(name).sample(100, generator(3)) for _ in range(2))
    assert first.shape == (100, 2)
    assert first.dtype == torch.float32
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert not first.equal(toy(name).sample(100, generator(4)))


@pytest.mark.parametrize("name", ENTROPIES)
def test_entropy_is_the_mean_of_minus_the_log_density(name):
    chosen = toy(name)
    assert chosen.entropy == ENTROPIES[name]
    values = -chosen.log_prob(chosen.sample(1000, generator())).double()
    error = values.std() / len(values) ** 0.5
    assert abs(values.mean() - chosen.entropy) < 4 * error + 0.002


@pytest.mark.parametrize("name", ["moons", "swissroll", "checkerboard", "8gaussians"])
def test_density_integrates_to_one(name):
    chosen = toy(name)
    points = chosen.sample(2000, generator())
    low, high = points.amin(0) - 1.5, points.amax(0) + 1.5
    sides = [torch.linspace(float(low[i]), float(high[i]), 70) for i in (0, 1)]
    places = torch.cartesian_prod(*sides)
    cell = float((sides[0][1] - sides[0][0]) * (sides[1][1] - sides[1][0]))
    total = chosen.log_prob(places).double().exp().sum() * cell
    assert abs(total - 1) < 0.03  # the checkerboard has edges


def test_modes_are_where_the_points_are():
    for name in ("mixture10", "ring8", "grid25", "8gaussians"):
        chosen = toy(name)
        nearest = torch.cdist(chosen.sample(2000, generator()), chosen.modes.centres).min(1)
        assert len(nearest.indices.unique()) == len(chosen.modes.centres)
        assert (nearest.values < 3 * chosen.modes.deviation).float().mean() > 0.97


def test_digits_are_images():
    loaded = load("digits")
    assert loaded.values.shape == (1797, 64)
    assert loaded.image == (1, 8, 8)
    assert 0 <= loaded.values.min() <= loaded.values.max() <= 1


def test_names_that_do_not_exist():
    with pytest.raises(OptionError, match="mixture10"):
        toy("nothing")
    with pytest.raises(TableError, match="not a file"):
        load("nothing")
