"""Decompositions of mixtures and by other kernels."""

import pytest
import torch
from torch.testing import assert_close

import kermix as km
from cases import normal, uniform
from kermix import errors
from mixture_cases import KINDS, make, sampled

CLOSE = {"rtol": 1e-9, "atol": 1e-11}
LAPLACE = km.LaplaceKernel(0.8)


def inner(mixture, other):
    """The Gram matrix of the components when each has unit norm, one by one."""
    ones = torch.ones(1, dtype=torch.float64)

    def components(m):
        return [
            km.GaussianMixture(ones, m.means[i : i + 1], m.covariances[i : i + 1])
            for i in range(len(m.means))
        ]

    left, right = components(mixture), components(other)
    return torch.stack([
        torch.stack([(s.log_inner(t) - (s.log_norm2() + t.log_norm2()) / 2).exp() for t in right])
        for s in left
    ])  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_singular_values_are_those_of_the_components_gram_matrix(kind):
    p, q = make(kind, count=5), make("full", count=4, seed=1)
    found = km.decompose(p, q)
    matrix = p.weights.sqrt()[:, None] * inner(p, q) * q.weights.sqrt()
    assert_close(found.singular_values, torch.linalg.svdvals(matrix), **CLOSE)
    assert_close(found.singular_values.sum(), km.svd_cost(p, q), **CLOSE)
    left, right = found.left(), found.right()
    eye = torch.eye(4, dtype=torch.float64)
    assert_close(left.mT @ (p.weights[:, None] * left), eye, **CLOSE)
    assert_close((left * found.singular_values) @ right.mT, inner(p, q), **CLOSE)


def test_functions_of_components_extend_to_other_components():
    p, q = make("diagonal", count=5), make("isotropic", count=6, seed=1)
    found = km.decompose(p, q)
    assert_close(found.left(p), found.left(), rtol=1e-6, atol=1e-8)
    assert_close(found.right(q)[:, :4], found.right()[:, :4], rtol=1e-6, atol=1e-8)
    assert_close(found.reconstruct(p, q), inner(p, q), rtol=1e-6, atol=1e-8)
    assert found.left(make("full", seed=9)).shape == (3, 5)
    swapped = found.swapped()
    assert_close(swapped.right(), found.left())


def test_eigenfunctions_of_one_mixture():
    p = make("full", count=4)
    found = km.decompose(p)
    matrix = p.weights.sqrt()[:, None] * inner(p, p) * p.weights.sqrt()
    assert_close(found.singular_values, torch.linalg.eigvalsh(matrix).flip(0), **CLOSE)
    assert_close(found.singular_values.sum().item(), 1.0)


@pytest.mark.parametrize("whiten", [False, True])
def test_of_one_variance_it_is_the_decomposition_of_points(whiten):
    x, y, v = normal(7, 2), normal(5, 2, seed=1), 0.3
    a, b = uniform(7, seed=2) + 0.1, uniform(5, seed=3) + 0.1
    at = normal(6, 2, seed=4)
    weights = {"weights_x": a, "weights_y": b}
    expected = km.decompose(x, y, v, whiten=whiten, **weights)
    p = km.GaussianMixture(a, x, torch.full((7,), 2 * v, dtype=torch.float64))
    q = km.GaussianMixture(b, y, torch.full((5,), 2 * v, dtype=torch.float64))
    found = km.decompose(p, q, whiten=whiten)
    mixed = km.decompose(x, q, v, weights_x=a, whiten=whiten)
    for other in (found, mixed):
        assert_close(other.singular_values, expected.singular_values, rtol=1e-8, atol=1e-10)
        assert_close(other.left_vectors, expected.left_vectors, rtol=1e-6, atol=1e-8)
        assert_close(other.identity(at, at), expected.identity(at, at), rtol=1e-5, atol=1e-6)
    close = {"rtol": 1e-6, "atol": 1e-8}
    assert_close(mixed.left(at), expected.left(at), **close)
    lebesgue = mixed.left(at, form="lebesgue")
    assert_close(lebesgue, expected.left(at, form="lebesgue"), **close)
    if whiten:
        assert_close(found.right(at), expected.right(at), **close)


def test_whitened_functions_of_a_mixture_are_orthonormal():
    p, q = make("isotropic", dim=1, count=4), sampled("diagonal", dim=1, count=5)
    found = km.decompose(p, q, whiten=True, ridge=1e-12)
    grid = torch.linspace(-25, 25, 5001, dtype=torch.float64)[:, None]
    cell = 0.01
    left = found.left(grid, form="lebesgue")
    eye = torch.eye(4, dtype=torch.float64)
    assert_close(left.mT @ left * cell, eye, rtol=1e-6, atol=1e-6)
    right = found.right(grid, form="lebesgue")
    assert_close(left.mT @ right * cell, found.singular_values.diag(), rtol=1e-6, atol=1e-6)


def test_mixtures_are_refused_where_a_function_needs_more():
    p, x = make("full"), normal(4, 2)
    with pytest.raises(errors.OptionError, match="mean and covariance"):
        km.decompose(p).left(x)
    with pytest.raises(errors.OptionError, match="lebesgue"):
        km.decompose(p).left(form="lebesgue")
    with pytest.raises(errors.SampleError, match="points is a GaussianMixture"):
        km.decompose(x, p).left(p)
    with pytest.raises(errors.OptionError, match="two mixtures"):
        km.decompose(p, p, 0.1)
    with pytest.raises(errors.KernelError, match="closed form"):
        km.decompose(x, p, kernel=LAPLACE)
    with pytest.raises(errors.ShapeError, match="two sets"):
        km.decompose(make("full", batch=(2,)))


@pytest.mark.parametrize(
    "kernel", [LAPLACE, km.PolynomialKernel(3), km.CosineKernel(), lambda a, b: (a @ b.T).exp()]
)
def test_decomposition_by_another_kernel(kernel):
    x, y = normal(8, 2), normal(6, 2, seed=1)
    found = km.decompose(x, y, kernel=kernel)
    matrix = kernel(x, y)
    expected = torch.linalg.svdvals(matrix) / 48**0.5
    assert_close(found.singular_values, expected, **CLOSE)
    assert_close(found.reconstruct(x, y), matrix, rtol=1e-6, atol=1e-8)
    cost = km.svd_cost(x, y, kernel=kernel) / 48**0.5
    assert_close(found.singular_values.sum(), cost, rtol=1e-9, atol=1e-9)
    eigen = km.decompose(x, kernel=kernel)
    values = torch.linalg.eigvalsh(kernel(x, x)).flip(0) / 8
    assert_close(eigen.singular_values, values.clamp(min=0), rtol=1e-9, atol=1e-9)
    density = torch.ones(8, dtype=torch.float64)
    assert found.left(form="lebesgue", density=density).shape == (8, 6)
    assert_close(found.swapped().left(x), found.right(x))


def test_laplace_on_a_grid_agrees_with_the_discrete_form():
    grid = torch.linspace(-4, 4, 81, dtype=torch.float64)[:, None]
    p = torch.exp(-(grid[:, 0] ** 2) / 2) / (2 * torch.pi) ** 0.5
    q = torch.exp(-((grid[:, 0] - 1) ** 2)) / torch.pi**0.5
    found = km.decompose_grid(p, q, grid, 0.1, kernel=LAPLACE)
    expected = km.decompose_discrete(p, q, LAPLACE.gram(grid, grid))
    assert_close(found.singular_values, expected.singular_values, rtol=1e-8, atol=1e-12)
    cost = km.discrete_cost(p, q, LAPLACE.gram(grid, grid))
    assert_close(found.singular_values.sum(), cost, rtol=1e-8, atol=0)


def test_other_kernels_are_refused_where_gaussians_are_needed():
    x = normal(5, 2)
    with pytest.raises(errors.KernelError, match="whiten"):
        km.decompose(x, kernel=LAPLACE, whiten=True)
    with pytest.raises(errors.KernelError, match="identity"):
        km.decompose(x, kernel=LAPLACE).identity(x, x)
    with pytest.raises(errors.KernelError, match="density"):
        km.decompose(x, kernel=LAPLACE).left(form="lebesgue")
    with pytest.raises(errors.OptionError, match="both given"):
        km.decompose(x, v=0.1, kernel=LAPLACE)
    with pytest.raises(errors.OptionError, match="v is missing"):
        km.decompose_grid(torch.ones(5) / 5, None, x, 1.0)
