"""Mixtures given some coordinates, against densities that are divided and integrated."""

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import multivariate_normal

import kermix as km
from kermix.errors import ShapeError
from kermix.mixtures.mixture import conditional_mixture

WEIGHTS = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
MEANS = torch.tensor([[0.0, 1.0, -2.0], [3.0, -1.0, 0.5], [1.0, 1.0, 4.0]], dtype=torch.float64)


def mixture(kind):
    generator = torch.Generator().manual_seed(0)
    factors = torch.randn(3, 3, 3, generator=generator).double()
    full = factors @ factors.mT + 0.3 * torch.eye(3)
    spread = {"full": full, "diagonal": full.diagonal(dim1=1, dim2=2), "isotropic": full[:, 0, 0]}
    return km.GaussianMixture(WEIGHTS, MEANS, spread[kind])


def density(kind):
    """The joint density by SciPy, component by component."""
    own = mixture(kind).covariances
    matrices = [
        c.numpy() if kind == "full" else np.diag(np.broadcast_to(c.numpy(), 3)) for c in own
    ]
    laws = [multivariate_normal(m, c) for m, c in zip(MEANS.numpy(), matrices, strict=True)]
    return lambda x: sum(float(w) * law.pdf(x) for w, law in zip(WEIGHTS, laws, strict=True))


@pytest.mark.parametrize("kind", ["full", "diagonal", "isotropic"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_coordinate_given_the_others_is_the_joint_density_divided(kind, place):
    seen = torch.arange(3) != place
    values = torch.tensor([[0.5, -0.7], [2.5, 9.0]], dtype=torch.float64)
    found = conditional_mixture(mixture(kind), seen, values)
    joint = density(kind)
    for row, given in enumerate(values.numpy()):

        def along(x, given=given):
            return joint(np.insert(given, place, x))

        total = quad(along, -40, 40, limit=400, points=[-4, 0, 4])[0]
        for x in (-3.0, 0.1, 2.2):
            own = found.log_prob(torch.full((2, 1), x).double())[row].exp()
            assert float(own) == pytest.approx(along(x) / total, rel=1e-6)


def test_two_coordinates_given_one_have_the_right_joint_density():
    seen = torch.tensor([False, True, False])
    found = conditional_mixture(mixture("full"), seen, torch.tensor([[0.8]], dtype=torch.float64))
    joint = density("full")
    own = mixture("full")
    alone = sum(
        float(w) * multivariate_normal(float(m[1]), float(c[1, 1])).pdf(0.8)
        for w, m, c in zip(WEIGHTS, MEANS, own.covariances, strict=True)
    )
    for a, b in ((0.0, 0.0), (2.0, -1.0), (1.0, 4.0)):
        point = torch.tensor([[a, b]], dtype=torch.float64)
        assert float(found.log_prob(point).exp()) == pytest.approx(
            joint([a, 0.8, b]) / alone, rel=1e-9
        )


def test_nothing_given_is_the_mixture_itself():
    own = mixture("full")
    found = conditional_mixture(own, torch.zeros(3, dtype=torch.bool), torch.zeros(2, 0))
    points = torch.tensor([[0.0, 1.0, 2.0]], dtype=torch.float64)
    np.testing.assert_allclose(found.log_prob(points), own.log_prob(points).expand(2))


def test_coordinates_that_nearly_determine_each_other_keep_a_variance():
    close = 1 - 1e-14
    covariance = torch.tensor([[[1.0, close], [close, 1.0]]], dtype=torch.float64)
    one = km.GaussianMixture(torch.ones(1).double(), torch.zeros(1, 2).double(), covariance)
    found = conditional_mixture(
        one, torch.tensor([True, False]), torch.tensor([[1.0]], dtype=torch.float64)
    )
    assert float(found.variance) > 0
    assert torch.isfinite(found.sample((5,), generator=torch.Generator().manual_seed(0))).all()


def test_far_conditions_have_finite_weights():
    far = torch.tensor([[1e6, -1e6]], dtype=torch.float64)
    found = conditional_mixture(mixture("full"), torch.tensor([True, True, False]), far)
    assert float(found.weights.sum()) == pytest.approx(1)
    assert torch.isfinite(found.means).all()


def test_shapes_that_do_not_fit_are_refused():
    own = mixture("full")
    with pytest.raises(ShapeError, match="coordinate left"):
        conditional_mixture(own, torch.ones(3, dtype=torch.bool), torch.zeros(1, 3))
    with pytest.raises(ShapeError, match="1 coordinates are given"):
        conditional_mixture(own, torch.tensor([True, False, False]), torch.zeros(1, 2))
