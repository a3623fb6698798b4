"""Errata of the paper: each is seen in numbers of its own, from NumPy and from what is defined."""

import numpy as np
import pytest
import torch
from scipy.integrate import quad, trapezoid
from scipy.stats import norm

import kermix as km

V, N, K = 0.05, 7, 5


def points(seed, count, dim=1):
    return np.random.default_rng(seed).normal(size=(count, dim))


X, Y = points(0, N), points(1, K)


def gram(a, b, s, dim=1):
    squares = ((a[:, None] - b[None]) ** 2).sum(-1)
    return np.exp(-squares / (2 * dim * s))


def matrices():
    """P (K x N), R_F and R_G of the same variance on both sides."""
    return gram(Y, X, 2 * V), gram(Y, Y, 2 * V), gram(X, X, 2 * V)


def tensor(array):
    return torch.from_numpy(np.array(array))


def root(matrix):
    values, vectors = np.linalg.eigh(matrix)
    return vectors @ np.diag(values**-0.5) @ vectors.T


def test_the_matrix_cost_is_what_the_schur_complement_takes_away():
    p, r_f, r_g = matrices()
    white = root(r_g) @ (r_g - p.T @ np.linalg.solve(r_f, p)) @ root(r_g)
    cost = float(km.matrix_cost(tensor(X), tensor(Y), V, ridge=0.0))
    assert cost == pytest.approx(N - np.trace(white), rel=1e-8)
    # Maximizing the cost, as the paper does, makes the complement's trace small.
    assert float(km.matrix_cost(tensor(X), tensor(X), V, ridge=0.0)) == pytest.approx(N)


def test_the_vector_cost_is_the_norm_less_the_squared_error():
    """By integrals over a fine axis, with the Gaussians written out."""
    axis = np.linspace(-9, 9, 20001)
    data = norm.pdf(axis[:, None], X[:, 0], V**0.5).mean(1)
    centres = norm.pdf(axis[:, None], Y[:, 0], V**0.5)
    weights = km.vector_weights(tensor(X), tensor(Y), V, ridge=0.0).numpy()
    error = trapezoid((data - centres @ weights) ** 2, axis)
    whole = trapezoid(data**2, axis)
    constant = norm.pdf(0, 0, (2 * V) ** 0.5)  # that the costs leave out
    cost = float(km.vector_cost(tensor(X), tensor(Y), V, ridge=0.0))
    assert constant * cost == pytest.approx(whole - error, rel=1e-7)
    # No other weights do better.
    for seed in range(20):
        other = weights + 0.05 * np.random.default_rng(seed).normal(size=K)
        assert trapezoid((data - centres @ other) ** 2, axis) > error


def test_rows_are_averaged_not_summed():
    p, r_f, r_g = matrices()
    cost = float(km.vector_cost(tensor(X), tensor(Y), V, ridge=0.0))
    mean, total = p.mean(1), p.sum(1)
    assert mean @ np.linalg.solve(r_f, mean) == pytest.approx(cost, rel=1e-8)
    assert total @ np.linalg.solve(r_f, total) == pytest.approx(N**2 * cost, rel=1e-8)
    assert cost <= r_g.mean() < total @ np.linalg.solve(r_f, total)


def test_without_constants_the_bound_fails_for_unequal_variances():
    """v_p = 0.5 and v_q = 0.05: entries without constants, as (14) has them."""
    wide, narrow = 0.5, 0.05
    x, y = np.linspace(-0.5, 0.5, 9)[:, None], np.linspace(-2, 2, 41)[:, None]
    p, r_f, r_g = gram(y, x, wide + narrow), gram(y, y, 2 * narrow), gram(x, x, 2 * wide)
    one = p.mean(1)
    raw = one @ np.linalg.solve(r_f, one)
    assert raw > 1.5 * r_g.mean()
    # With the constants of (1) the bound holds.
    full = [norm.pdf(0, 0, s**0.5) for s in (wide + narrow, 2 * narrow, 2 * wide)]
    assert full[0] ** 2 / full[1] * raw <= full[2] * r_g.mean() * (1 + 1e-9)
    kernel = km.GaussianKernel((wide, narrow))
    found = float(km.vector_cost(tensor(x), tensor(y), kernel, normalized=True, ridge=1e-10))
    assert found == pytest.approx(full[0] ** 2 / full[1] * raw / (full[2] * r_g.mean()), rel=1e-4)


def test_there_are_as_many_singular_values_as_the_smaller_number():
    p, _, _ = matrices()
    assert p.shape == (K, N)
    values = np.linalg.svd(p, compute_uv=False)
    assert len(values) == min(N, K)
    cost = float(km.svd_cost(tensor(X), tensor(Y), V, method="svd"))
    assert cost == pytest.approx(values.sum(), rel=1e-9)


def test_functions_of_the_data_need_the_transpose():
    """With P = U S V it is V g that diagonalizes P; with V' g it is not."""
    p, _, _ = matrices()
    u, s, v = np.linalg.svd(p, full_matrices=False)  # p = u @ diag(s) @ v
    np.testing.assert_allclose(u.T @ p @ v.T, np.diag(s), atol=1e-12)
    square = p[:, :K]
    u, s, v = np.linalg.svd(square)
    assert abs(u.T @ square @ v - np.diag(s)).max() > 0.01


def test_discrete_functions_are_orthonormal_by_columns():
    """Eq. 18: K = U S V with the conditions on the columns of U and the rows of V."""
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
    kernel = gram(np.arange(3.0)[:, None], np.arange(3.0)[:, None], 0.5)
    u, s, v = np.linalg.svd(np.diag(p**0.5) @ kernel @ np.diag(q**0.5))
    u, v = np.diag(p**-0.5) @ u, v @ np.diag(q**-0.5)
    np.testing.assert_allclose(u @ np.diag(s) @ v, kernel, atol=1e-12)
    np.testing.assert_allclose(u.T @ np.diag(p) @ u, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(v @ np.diag(q) @ v.T, np.eye(3), atol=1e-12)
    assert abs(u @ np.diag(p) @ u.T - np.eye(3)).max() > 0.1


def test_the_eigendecomposition_has_a_transpose():
    kernel = gram(X, X, 2 * V)
    values, vectors = np.linalg.eigh(kernel)
    np.testing.assert_allclose(vectors @ np.diag(values) @ vectors.T, kernel, atol=1e-12)
    assert abs(vectors @ np.diag(values) @ vectors - kernel).max() > 0.1


def test_samples_that_match_in_any_order_are_best():
    order = np.random.default_rng(2).permutation(N)
    assert float(km.svd_cost(tensor(X), tensor(X[order]), V)) == pytest.approx(N, rel=1e-6)
    assert float(km.svd_cost(tensor(X), tensor(X + 0.3), V)) < 0.95 * N


def test_without_a_smoother_nothing_overlaps():
    narrow = float(km.svd_cost(tensor(X), tensor(points(5, N)), 1e-9, normalized=True))
    assert narrow == pytest.approx(0, abs=1e-6)


def test_norms_of_fractional_exponents_of_a_mixture_are_no_sums_of_pairs():
    """Of two equal halves far apart; the corollary holds for one Gaussian and for integers."""
    apart = km.GaussianMixture(torch.ones(2), tensor([[-20.0], [20.0]]), tensor([1.0, 1.0]))
    value, error = apart.lp_norm_estimate(1.5, 20_000)
    power = quad(lambda z: (norm.pdf(z) / 2) ** 1.5, -12, 12)[0] * 2
    assert float(value) == pytest.approx(power ** (1 / 1.5), abs=max(4 * float(error), 1e-9))
    with pytest.raises(km.errors.OptionError, match="lp_norm_estimate"):
        apart.lp_norm(1.5)
