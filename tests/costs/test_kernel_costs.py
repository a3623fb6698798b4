"""Costs by any kernel: against a slow reference, in [0, 1], with gradients; the discrete form."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck
from torch.testing import assert_close

import kermix as km
import tolerances
from cases import BOUNDED, COSTS, LOSSES, normal, outputs, ridged, uniform
from kermix import errors

RIDGE = 1e-3
KERNELS = {
    "laplace": km.LaplaceKernel(0.7),
    "rational quadratic": km.RationalQuadraticKernel(0.5),
    "polynomial": km.PolynomialKernel(3, constant=0.5),
    "cosine": km.CosineKernel(),
    "function": lambda a, b: torch.exp(a @ b.mT / 4),
}
every_cost = pytest.mark.parametrize("name", COSTS)
every_kernel = pytest.mark.parametrize("kernel", KERNELS)
law = settings(deadline=None, max_examples=15, derandomize=True, database=None)


def matrix_of(kernel, a, b):
    """The Gram matrix entry by entry."""
    one = KERNELS[kernel]
    rows = [[one(s[None], t[None]).item() for t in b] for s in a]
    return np.array(rows)


def reference(name, kernel, x, y, a, b, weighted, normalized=False):
    """The definitions, in NumPy."""
    p, r_f, r_g = (matrix_of(kernel, *s) for s in ((y, x), (y, y), (x, x)))
    n, k = len(x), len(y)
    if name == "scalar":
        value = (b @ p @ a) ** 2 / (b @ r_f @ b)
        return value / (a @ r_g @ a) if normalized else value
    if name == "svd":
        rooted = np.sqrt(b)[:, None] * p * np.sqrt(a)
        value = np.linalg.svd(rooted, compute_uv=False).sum()
        if normalized:
            return value / np.sqrt((a @ r_g.diagonal()) * (b @ r_f.diagonal()))
        return value if weighted else value * np.sqrt(n * k)
    if normalized and name == "data_fixed":
        unit = a @ r_g.diagonal()
        r_g, p = r_g / unit, p / np.sqrt(unit)
    roots_y, roots_x = np.sqrt(k * b), np.sqrt(n * a)
    r_f = r_f * np.outer(roots_y, roots_y)
    r_g = r_g * np.outer(roots_x, roots_x)
    r_f = r_f + RIDGE * r_f.diagonal().mean() * np.eye(k)
    ridged_g = r_g + RIDGE * r_g.diagonal().mean() * np.eye(n)
    if name == "vector":
        projection = roots_y * (p @ a)
        value = projection @ np.linalg.solve(r_f, projection)
        return value / (a @ matrix_of(kernel, x, x) @ a) if normalized else value
    cross = roots_y[:, None] * p * roots_x
    predicted = cross.T @ np.linalg.solve(r_f, cross)
    if name == "data_fixed":
        return np.trace(predicted) / (n if normalized else 1)
    squares = np.linalg.solve(ridged_g, predicted)
    if name == "trace":
        return np.trace(squares) / (min(n, k) if normalized else 1)
    return np.linalg.slogdet(np.eye(n) - squares)[1]


@pytest.mark.parametrize("weighted", [False, True])
@every_kernel
@every_cost
def test_values(name, kernel, weighted):
    x, y = normal(7, 3), normal(5, 3, seed=1) + 0.3
    a, b = (torch.full((n,), 1 / n, dtype=torch.float64) for n in (7, 5))
    weights = {}
    if weighted:
        a, b = uniform(7, seed=2) + 0.1, uniform(5, seed=3) + 0.1
        weights = {"weights_x": a, "weights_y": b}
        a, b = a / a.sum(), b / b.sum()
    for normalized in {False, name in BOUNDED}:
        asked = {"normalized": normalized, **ridged(name, RIDGE), **weights}
        found = COSTS[name](x, y, kernel=KERNELS[kernel], **asked)
        expected = reference(name, kernel, x, y, a.numpy(), b.numpy(), weighted, normalized)
        assert_close(found.item(), expected, rtol=1e-8, atol=1e-12)
        single = COSTS[name](x.float(), y.float(), kernel=KERNELS[kernel], **asked)
        if normalized:
            assert_close(single.item(), expected, rtol=1e-3, atol=1e-4)


@every_kernel
@pytest.mark.parametrize("name", BOUNDED)
@given(
    sizes=st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 5)),
    spread=st.sampled_from([0.1, 1.0, 3.0]),
    seed=st.integers(0, 1000),
)
@law
def test_between_zero_and_one(name, kernel, sizes, spread, seed):
    n, k, d = sizes
    x, y = spread * normal(n, d, seed=seed), spread * normal(k, d, seed=seed + 1)
    asked = {"normalized": True, "kernel": KERNELS[kernel], **ridged(name, RIDGE)}
    assert 0 <= COSTS[name](x, y, **asked) <= 1
    if name in ("scalar", "svd"):
        assert_close(COSTS[name](x, x.clone(), **asked).item(), 1.0, rtol=1e-7, atol=1e-7)


@every_cost
def test_the_gaussian_as_any_kernel_is_the_gaussian(name):
    x, y = normal(9, 4), normal(6, 4, seed=1)
    for asked in outputs(name):
        expected = COSTS[name](x, y, 0.3, **asked, **ridged(name, RIDGE))
        for kernel in (lambda a, b: km.gram(a, b, 0.3), km.GaussianKernel(0.3)):
            found = COSTS[name](x, y, kernel=kernel, **asked, **ridged(name, RIDGE))
            assert_close(found, expected, rtol=1e-9, atol=1e-11)


@every_kernel
@every_cost
def test_gradients(name, kernel):
    def function(x, y, a, b):
        asked = {"weights_x": a, "weights_y": b, **ridged(name, 1e-2)}
        ends = outputs(name)[0], outputs(name)[-1]
        cost, used = COSTS[name], KERNELS[kernel]
        return torch.stack([cost(x, y, kernel=used, **asked, **end) for end in ends])

    inputs = [normal(3, 2), normal(2, 2, seed=1), uniform(3, seed=2) + 0.2, uniform(2) + 0.2]
    assert gradcheck(function, [t.requires_grad_() for t in inputs], fast_mode=True)


@every_cost
def test_losses(name):
    x, y = normal(9, 2), normal(8, 2, seed=1)
    kernel = km.LaplaceKernel("median")
    asked = {"log": True, "normalized": name in BOUNDED, "kernel": kernel}
    loss = LOSSES[name](kernel=kernel)
    assert "LaplaceKernel" in repr(loss)
    assert_close(loss(x, y), -COSTS[name](x, y, **asked))


@every_cost
def test_far_points_pull_by_the_laplace_kernel(name):
    y = (normal(5, 2, seed=1) + 3000).requires_grad_()
    loss = LOSSES[name](kernel=km.LaplaceKernel(0.5))(normal(6, 2), y)
    (gradient,) = torch.autograd.grad(loss, y)
    assert torch.isfinite(loss)
    assert (gradient.sum(0) > 0).all()


@every_cost
def test_batches_and_weights(name):
    x, y, a = normal(3, 6, 2), normal(5, 2, seed=1), uniform(3, 6, seed=2) + 0.1
    asked = {"kernel": km.PolynomialKernel(2), **ridged(name, RIDGE)}
    found = COSTS[name](x, y, weights_x=a, **asked)
    for i in range(3):
        one = COSTS[name](x[i], y, weights_x=a[i], **asked)
        assert_close(found[i], one, rtol=1e-9, atol=1e-9)


def test_cosine_of_orthogonal_sets_is_zero_without_nan():
    x, y = torch.eye(4)[:2].requires_grad_(), torch.eye(4)[2:]
    for name, cost in COSTS.items():
        value = cost(x, y, kernel=km.CosineKernel(), normalized=name in BOUNDED)
        assert abs(value) < 1e-30
        (gradient,) = torch.autograd.grad(value, x)
        assert torch.isfinite(gradient).all()


def test_weighted_laplace_of_identical_sets_in_half_precision():
    x = normal(5, 2).half()
    assert km.svd_cost(x, x, kernel=km.LaplaceKernel(1.0), normalized=True).dtype == torch.float16


# The discrete form, Eqs. (17) to (19).


def states(n=6, d=2):
    points = normal(n, d)
    p, q = uniform(n, seed=1), uniform(n, seed=2)
    return p / p.sum(), q / q.sum(), km.LaplaceKernel(0.8).gram(points, points), points


def test_discrete_cost_is_the_nuclear_norm():
    p, q, k, points = states()
    rooted = np.sqrt(p.numpy())[:, None] * k.numpy() * np.sqrt(q.numpy())
    expected = np.linalg.svd(rooted, compute_uv=False).sum()
    assert_close(km.discrete_cost(p, q, k).item(), expected, rtol=1e-10, atol=0)
    weights = {"weights_x": q, "weights_y": p}
    by_points = km.svd_cost(points, points, kernel=km.LaplaceKernel(0.8), **weights)
    assert_close(by_points.item(), expected, rtol=1e-10, atol=0)


def test_discrete_bound_is_reached_where_both_agree():
    p, q, k, _ = states()
    k = 3 * k  # the bound is the kernel's at zero
    assert_close(km.discrete_cost(p, p, k).item(), 3.0)
    assert_close(km.discrete_cost(p, p, k, normalized=True).item(), 1.0)
    assert km.discrete_cost(p, q, k) < 3
    assert_close(km.discrete_cost(p, q, k, normalized=True), km.discrete_cost(p, q, k) / 3)


def test_discrete_identity_is_the_bhattacharyya_coefficient():
    p, q, _, _ = states()
    found = km.discrete_cost(7 * p, q, torch.eye(6, dtype=torch.float64))
    assert_close(found, (p * q).sqrt().sum())


def test_discrete_decomposition():
    p, q, k, _ = states()
    k = k[:, :4]
    found = km.decompose_discrete(p, q[:4], k)
    q4, eye = q[:4] / q[:4].sum(), torch.eye(4, dtype=torch.float64)
    values = found.singular_values
    close = {"rtol": 1e-10, "atol": 1e-12}
    rooted = p.sqrt()[:, None] * k * q4.sqrt()
    assert_close((found.left * values) @ found.right.mT, rooted, **close)  # Eq. (17)
    assert_close(found.left.mT @ found.left, eye, **close)
    left, right = found.left_functions(), found.right_functions()
    assert_close((left * values) @ right.mT, k, **close)  # Eq. (18)
    assert_close(left.mT @ (p[:, None] * left), eye, **close)
    assert_close(right.mT @ (q4[:, None] * right), eye, **close)
    assert_close(values.sum(), km.discrete_cost(p, q4, k))


def test_discrete_gradients_and_batches():
    p, q, k, _ = states()

    def function(a, b, matrix):
        matrix = matrix + matrix.mT
        plain = km.discrete_cost(a, b, matrix)
        return torch.stack([plain, km.discrete_cost(a, b, matrix, normalized=True)])

    assert gradcheck(function, [t.requires_grad_() for t in (p, q, k)])
    p, q, k = p.detach(), q.detach(), k.detach()
    both = km.discrete_cost(torch.stack([p, q]), q, k)
    assert_close(both, torch.stack([km.discrete_cost(p, q, k), km.discrete_cost(q, q, k)]))
    zero = torch.tensor([0.0, 0.5, 0.5, 0, 0, 0], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(km.discrete_cost(zero, q, k), zero)
    assert torch.isfinite(gradient).all()
    assert torch.isfinite(km.decompose_discrete(zero, q, k).left_functions()).all()


@pytest.mark.parametrize(
    ("change", "keywords", "error", "message"),
    [
        (lambda p, q, k: (p[:3], q, k), {}, errors.ShapeError, "p is"),
        (lambda p, q, k: (p, q[:3], k), {}, errors.ShapeError, "q is"),
        (lambda p, q, k: (-p, q, k), {}, errors.WeightError, "p has negative"),
        (lambda p, q, k: (p, q[:3], k[:, :3]), {"normalized": True}, errors.ShapeError, "square"),
        (lambda p, q, k: (p, q, k[0]), {}, errors.KernelError, "matrix"),
        (lambda p, q, k: (p, q, k * torch.nan), {}, errors.KernelError, "NaN"),
        (lambda p, q, k: (p, q, k.triu()), {"normalized": True}, errors.KernelError, "symmetric"),
    ],
)
def test_discrete_refusals(change, keywords, error, message):
    with pytest.raises(error, match=message):
        km.discrete_cost(*change(*states()[:3]), **keywords)


def test_tolerances_are_kept_by_float32():
    p, q, k, _ = states()
    found = km.discrete_cost(p.float(), q.float(), k.float())
    assert found.dtype == torch.float32
    assert_close(found.double(), km.discrete_cost(p, q, k), **tolerances.value(torch.float32))
