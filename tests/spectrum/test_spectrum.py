"""Decompositions: convergence to the truth on a grid, orthonormality, identities, signs."""

import math

import pytest
import torch
from torch.testing import assert_close

import kermix as km
from cases import normal
from kermix.errors import OptionError, ShapeError, VarianceError
from kermix.linalg.cholesky import leading_svd
from kermix.spectrum.decomposition import unit_gaussians

V = 0.2


def line(count=401, reach=6.0):
    grid = torch.linspace(-reach, reach, count, dtype=torch.float64)[:, None]
    return grid, 2 * reach / (count - 1)


def gaussian(points, mean, sd):
    d = points.shape[-1]
    squares = ((points - torch.as_tensor(mean)) / sd).square().sum(-1)
    return torch.exp(-squares / 2) / (2 * math.pi * sd**2) ** (d / 2)


def two_bumps(points):
    return 0.6 * gaussian(points, [-1.0] * points.shape[-1], 0.7) + 0.4 * gaussian(
        points, [1.5] * points.shape[-1], 0.5
    )


def draw_two_bumps(n, d, seed):
    generator = torch.Generator().manual_seed(seed)
    first = torch.rand(n, 1, generator=generator, dtype=torch.float64) < 0.6
    noise = torch.randn(n, d, generator=generator, dtype=torch.float64)
    return torch.where(first, -1 + 0.7 * noise, 1.5 + 0.5 * noise)


def plane(count=41, reach=4.0):
    axis, step = line(count, reach)
    return torch.cartesian_prod(axis[:, 0], axis[:, 0]), step**2


def aligned(functions, truth, weights):
    """Functions with the signs of the truth, and their error in the mean square."""
    signs = (functions * truth * weights[:, None]).sum(0).sign()
    return ((functions * signs - truth).square() * weights[:, None]).sum(0).sqrt()


@pytest.mark.parametrize("d", [1, 2])
def test_samples_converge_to_the_grid(d):
    # In the plane the third and fourth values are close, and their functions may mix.
    grid, cell, count = (*line(), 3) if d == 1 else (*plane(), 2)
    p, q = two_bumps(grid), gaussian(grid, [0.0] * d, 1.2)
    p, q = p / p.sum() / cell, q / q.sum() / cell
    truth = km.decompose_grid(p, q, grid, cell, V, rank=count)
    values, left, right = [], [], []
    for n in (100, 400, 1600):
        errors = []
        for seed in range(3):
            x = draw_two_bumps(n, d, seed)
            y = 1.2 * normal(n, d, seed=100 + seed)
            found = km.decompose(x, y, V, rank=count)
            errors.append(
                (
                    (found.singular_values - truth.singular_values).abs().mean(),
                    aligned(found.left(grid), truth.left(), p * cell).mean(),
                    aligned(found.right(grid), truth.right(), q * cell).mean(),
                )
            )
        for kept, error in zip((values, left, right), zip(*errors, strict=True), strict=True):
            kept.append(torch.stack(error).mean().item())
    for errors in (values, left, right):
        assert errors[0] > errors[1] > errors[2]
        assert errors[2] < errors[0] / 2
    assert values[2] < 0.01
    assert max(left[2], right[2]) < 0.25


def test_functions_are_orthonormal_under_p_and_q_within_sampling_error():
    n = 2000
    x, y = draw_two_bumps(n, 1, 0), 1.2 * normal(n, 1, seed=1)
    found = km.decompose(x, y, V, rank=4)
    fresh_x, fresh_y = draw_two_bumps(5000, 1, 2), 1.2 * normal(5000, 1, seed=3)
    eye = torch.eye(4, dtype=torch.float64)
    for functions, fresh in ((found.left, fresh_x), (found.right, fresh_y)):
        assert_close(functions().T @ functions() / n, eye, atol=1e-9, rtol=0)
        values = functions(fresh)
        assert_close(values.T @ values / len(fresh), eye, atol=0.15, rtol=0)


def test_lebesgue_form_is_orthonormal_on_the_grid_and_shares_values():
    grid, cell = line()
    p, q = two_bumps(grid), gaussian(grid, 0.0, 1.2)
    found = km.decompose_grid(p, q, grid, cell, V, rank=5)
    phi = found.left(form="lebesgue")
    assert_close(phi.T @ phi * cell, torch.eye(5, dtype=torch.float64), atol=1e-6, rtol=0)
    assert_close(phi, found.left() * p.sqrt()[:, None])
    x = draw_two_bumps(500, 1, 0)
    sample = km.decompose(x, v=V, rank=2)
    assert_close(sample.left(grid, "lebesgue", p), sample.left(grid) * p.sqrt()[:, None])
    assert_close(sample.left(grid, "lebesgue", two_bumps), sample.left(grid, "lebesgue", p))
    phi = sample.left(grid, "lebesgue")  # with the samples' own mixture density
    assert_close(phi.square().sum(0) * cell, torch.ones(2, dtype=torch.float64), atol=0.3, rtol=0)


def test_the_extension_agrees_with_the_vectors_at_the_samples():
    x, y = normal(60, 2, seed=0), normal(40, 2, seed=1)
    found = km.decompose(x, y, 0.5, rank=5)
    assert_close(found.left(x), found.left(), atol=1e-8, rtol=1e-6)
    assert_close(found.right(y), found.right(), atol=1e-8, rtol=1e-6)
    assert_close(found.swapped().left(y), found.right(y))


def test_all_functions_reconstruct_the_kernel_and_the_values_sum_to_the_cost():
    x, y = normal(30, 1, seed=0), normal(20, 1, seed=1)
    found = km.decompose(x, y, 0.01)
    assert_close(found.reconstruct(x, y), km.gram(x, y, 0.01), atol=1e-8, rtol=0)
    assert_close(found.singular_values.sum(), km.svd_cost(x, y, 0.01, normalized=True))
    weights = torch.linspace(0, 1, 30, dtype=torch.float64)
    weighted = km.decompose(x, y, 0.01, weights_x=weights)
    assert_close(weighted.singular_values.sum(), km.svd_cost(x, y, 0.01, weights_x=weights))


def test_eigenvectors_are_the_left_singular_vectors_of_the_half_variance_root():
    grid, cell = line(201, 5.0)
    wide, _ = line(401, 10.0)
    p = two_bumps(grid)
    p = p / p.sum() / cell
    found = km.decompose_grid(p, None, grid, cell, V, rank=6)
    c = (p * cell).sqrt()[:, None] * unit_gaussians(grid, wide, V) * cell**0.5
    matrix = (p * cell).sqrt()[:, None] * km.gram(grid, grid, V) * (p * cell).sqrt()
    assert_close(c @ c.T, matrix, atol=1e-10, rtol=0)
    u, s, _ = torch.linalg.svd(c)
    assert_close(s[:6].square(), found.singular_values, atol=1e-10, rtol=0)
    overlap = (u[:, :6] * found.left_vectors).sum(0).abs()
    assert_close(overlap, torch.ones(6, dtype=torch.float64), atol=1e-6, rtol=0)


def test_whitened_form_gives_canonical_correlations_and_orthonormal_functions():
    x, y = normal(15, 1, seed=0), normal(12, 1, seed=1)
    found = km.decompose(x, y, 0.05, whiten=True, ridge=1e-10)
    trace = km.matrix_cost(x, y, 0.05, ridge=1e-10)
    assert_close(found.singular_values.square().sum(), trace, rtol=1e-4, atol=0)
    assert (found.singular_values <= 1 + 1e-9).all()
    grid, cell = line(4001, 10.0)
    for functions in (found.left, found.right):
        values = functions(grid, "lebesgue")
        eye = torch.eye(values.shape[1], dtype=torch.float64)
        assert_close(values.T @ values * cell, eye, atol=1e-3, rtol=0)
    cross = found.left(grid, "lebesgue").T @ found.right(grid, "lebesgue") * cell
    assert_close(cross, torch.diag(found.singular_values), atol=1e-3, rtol=0)


@pytest.mark.parametrize("whiten", [False, True])
def test_the_projected_identity_reproduces_the_gaussians(whiten):
    x = torch.linspace(-2, 2, 12, dtype=torch.float64)[:, None]
    y = x + 0.02 * normal(12, 1)
    v = 0.02
    found = km.decompose(x, y, v, whiten=whiten, ridge=0.0)
    grid, cell = line(1001, 5.0)
    identity = found.identity(grid, grid)
    f = unit_gaussians(grid, y, v)
    assert_close(identity @ f * cell, f, atol=1e-6, rtol=0)
    smoothed = found.identity(grid, grid, "smoothed")
    assert smoothed.diagonal().sum() > 0
    # Both are nearly diagonal: the mass lies within a few kernel widths of the diagonal.
    near = (grid - grid.T).abs() < 6 * v**0.5
    for matrix in (identity, smoothed):
        assert matrix[near].square().sum() > 0.95 * matrix.square().sum()


def test_the_papers_smoothed_weighting_is_its_formula():
    x, y = normal(6, 1, seed=0), normal(5, 1, seed=1)
    grid, _ = line(11, 2.0)
    u, s, vh = torch.linalg.svd(km.gram(y, x, V), full_matrices=False)
    f, g = unit_gaussians(grid, y, V) @ u, unit_gaussians(grid, x, V) @ vh.T
    found = km.decompose(x, y, V)
    assert_close(found.identity(grid, grid, "smoothed"), (f * s) @ g.T)


def test_signs_are_fixed_whatever_the_order_of_the_points():
    x, y = normal(80, 2, seed=0), normal(70, 2, seed=1)
    first = km.decompose(x, y, 0.3, rank=4)
    order = torch.randperm(80, generator=torch.Generator().manual_seed(0))
    second = km.decompose(x[order], y, 0.3, rank=4)
    assert_close(second.left(), first.left()[order], atol=1e-8, rtol=1e-6)
    assert_close(km.decompose(x, y, 0.3, rank=4).left(), first.left(), atol=0, rtol=0)


def test_truncated_and_full_agree_and_auto_says_which():
    x, y = normal(700, 2, seed=0), normal(600, 2, seed=1) + 0.3
    full = km.decompose(x, y, 0.3, rank=8, method="full")
    truncated = km.decompose(x, y, 0.3, rank=8)
    assert (full.method, truncated.method) == ("full", "truncated")
    assert_close(truncated.singular_values, full.singular_values, atol=1e-10, rtol=0)
    assert_close(truncated.left(), full.left(), atol=1e-4, rtol=0)
    own = km.decompose(x, v=0.3, rank=8)
    assert_close(own.left_vectors, own.right_vectors, atol=0, rtol=0)


def test_leading_values_of_a_flat_spectrum_are_found():
    matrix = normal(300, 200)
    _, s, _ = leading_svd(matrix, 5)
    assert_close(s, torch.linalg.svdvals(matrix)[:5], rtol=1e-3, atol=0)


def test_small_variance_on_a_discrete_set_gives_the_bhattacharyya_coefficient():
    points = torch.arange(6, dtype=torch.float64)[:, None]
    p = torch.tensor([0.3, 0.1, 0.2, 0.1, 0.25, 0.05], dtype=torch.float64)
    q = p.flip(0)
    values = [
        km.svd_cost(points, points, v, weights_x=p, weights_y=q).item() for v in (0.5, 0.1, 0.02)
    ]
    limit = (p * q).sqrt().sum().item()
    gaps = [abs(value - limit) for value in values]
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 1e-4
    assert km.decompose_grid(p, q, points, 1.0, 0.02).singular_values.sum() == pytest.approx(
        limit, abs=1e-4
    )


def test_wrong_requests_say_what_to_do():
    x = normal(10, 1)
    with pytest.raises(OptionError, match="between 1 and 10"):
        km.decompose(x, v=1.0, rank=11)
    with pytest.raises(OptionError, match="needs the number of leading"):
        km.decompose(x, v=1.0, method="truncated")
    with pytest.raises(ShapeError, match=r"\(M, 1\)"):
        km.decompose(x, v=1.0).left(normal(3, 2))
    with pytest.raises(VarianceError, match="one variance"):
        km.decompose(x, v=[0.1, 1.0]).identity(x, x)
    with pytest.raises(OptionError, match="integrates to"):
        km.decompose_grid(torch.ones(10), None, x, 1.0, 0.1)
    with pytest.raises(OptionError, match="whiten=False"):
        km.decompose(x, x, 1.0, whiten=True).reconstruct(x, x)
