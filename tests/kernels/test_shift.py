"""The paper's shift experiment: what the four costs see when one density slides past the other."""

import pytest
import torch

import kermix as km

V = 0.01
SHIFTS = torch.linspace(-1, 1, 21, dtype=torch.float64)


def density_samples(count=150):
    """A mixture of three Gaussians on a line, symmetric in no point, by its quantiles."""
    generator = torch.Generator().manual_seed(0)
    state = torch.multinomial(torch.tensor([0.5, 0.3, 0.2]), count, True, generator=generator)
    noise = torch.randn(count, 2, generator=generator, dtype=torch.float64)
    centres = torch.tensor([[-0.3, 0.0], [0.1, 0.2], [0.35, -0.1]], dtype=torch.float64)
    return centres[state] + 0.06 * noise


@pytest.fixture(scope="module")
def curves():
    x = density_samples()
    y = density_samples()
    shifted = [y + torch.tensor([s, 0.0], dtype=torch.float64) for s in SHIFTS]
    return {
        "scalar": torch.stack([km.scalar_cost(x, z, V) for z in shifted]),
        "vector": torch.stack([km.vector_cost(x, z, V) for z in shifted]),
        "matrix": torch.stack([km.matrix_cost(x, z, V, form="data_fixed") for z in shifted]),
        "svd": torch.stack([km.svd_cost(x, z, V) for z in shifted]),
    }


def asymmetry(curve):
    peaked = curve / curve.max()
    return (peaked - peaked.flip(0)).abs().max()


def test_svd_cost_is_symmetric_with_its_only_peak_at_zero(curves):
    svd = curves["svd"] / curves["svd"].max()
    middle = len(SHIFTS) // 2
    assert svd.argmax() == middle
    assert (svd[: middle + 1].diff() > 0).all()
    assert (svd[middle:].diff() < 0).all()
    assert asymmetry(svd) < 1e-9


def test_vector_and_matrix_costs_are_not_symmetric(curves):
    for name in ("vector", "matrix"):
        assert asymmetry(curves[name]) > 1e-3


def test_scalar_cost_saturates_first(curves):
    """It falls to a twentieth of its peak at a smaller shift than every other cost."""

    def width(curve):
        return SHIFTS[(curve / curve.max()) > 0.05].abs().max()

    assert all(width(curves["scalar"]) <= width(curves[n]) for n in ("vector", "matrix", "svd"))
    assert width(curves["scalar"]) < width(curves["svd"])
