"""Gradients: exact where they exist, finite where the spectrum is degenerate."""

from functools import partial

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

import kermix as km
import tolerances
from cases import COSTS, DTYPES, normal, outputs, ridged, uniform
from kermix.paper import generation as ablations

every_cost = pytest.mark.parametrize("name", COSTS)
KERNELS = {
    "number": ([0.6], lambda v: v),
    "list": ([[0.4, 1.5, 0.9]], lambda v: km.GaussianKernel(v)),
    "lists": ([[0.4, 1.5], [0.5, 0.7]], lambda v, v_q: km.GaussianKernel(v, v_q)),
    "undivided": ([0.6, 0.9], lambda v, v_q: km.GaussianKernel(v, v_q, per_dimension=False)),
}


def leaf(tensor):
    return tensor.detach().clone().requires_grad_()


def all_outputs(name, x, y, v, **keywords):
    """Every number that a cost gives, in one tensor."""
    keywords = keywords | ridged(name, keywords.pop("ridge", None))
    return torch.stack([COSTS[name](x, y, v, **keywords, **asked) for asked in outputs(name)])


def assert_finite(outputs, inputs):
    """Each output is finite and so is its gradient with respect to each input."""
    for output in outputs:
        assert torch.isfinite(output)
        gradients = torch.autograd.grad(output, inputs, retain_graph=True)
        assert all(torch.isfinite(g).all() for g in gradients)


# Both ways to the distances, by the kernel that holds all others and by one of these each.
@pytest.mark.parametrize(
    ("kernel", "d"),
    [("number", 10), ("list", 2), ("lists", 2), ("lists", 10), ("undivided", 2)],
)
@every_cost
def test_gradcheck(name, kernel, d):
    variances, build = KERNELS[kernel]
    variances = [torch.tensor(v, dtype=torch.float64) for v in variances]

    def function(x, y, weights_x, weights_y, *v):
        weights = {"weights_x": weights_x, "weights_y": weights_y}
        return all_outputs(name, x, y, build(*v), ridge=1e-2, **weights)

    inputs = [normal(3, d, seed=1), normal(2, d, seed=2), uniform(3, seed=3), uniform(2, seed=4)]
    inputs = [leaf(t) for t in inputs[:2] + [w + 0.2 for w in inputs[2:]] + variances]
    # Entry by entry for the kernel that holds all others, along random directions for these.
    assert gradcheck(function, inputs, fast_mode=d > 2 or kernel != "lists")


@pytest.mark.parametrize(("n", "k"), [(5, 3), (3, 5), (1, 1)])
@every_cost
def test_gradcheck_without_weights(name, n, k):
    v = leaf(torch.tensor(0.7, dtype=torch.float64))
    inputs = (leaf(normal(2, n, 2, seed=1)), leaf(normal(k, 2, seed=2)), v)
    assert gradcheck(partial(all_outputs, name, ridge=1e-2), inputs, fast_mode=True)


def test_gradcheck_of_ablations_and_gram():
    x, y = leaf(normal(4, 2, seed=1)), leaf(normal(3, 2, seed=2))
    v = leaf(torch.tensor(0.7, dtype=torch.float64))
    assert gradcheck(ablations.frobenius_cost, (x, y, v))
    assert gradcheck(ablations.distance_nuclear_cost, (x, y))
    assert gradcheck(km.gram, (x, y, v))
    assert gradcheck(lambda x, v: km.gram(x, x, v), (leaf(normal(4, 12, seed=1)), v))
    assert gradcheck(partial(km.vector_weights, ridge=1e-2), (x, y, v))


@pytest.mark.parametrize("d", [2, 10])
@every_cost
def test_gradgradcheck(name, d):
    x, y = leaf(normal(3, d, seed=1)), leaf(normal(3, d, seed=2))
    function = partial(COSTS[name], v=0.7, log=True, **ridged(name, 1e-2))
    assert gradgradcheck(lambda x, y: function(x, y), (x, y), fast_mode=True)


@pytest.mark.parametrize("d", [2, 10])
def test_gradcheck_of_data_against_itself(d):
    x = leaf(normal(4, d, seed=1))
    for name in COSTS:
        # One tensor in both places: the gradient is the sum of both, and for equal samples
        # the distances are not smooth, which the kernel must not notice.
        function = partial(all_outputs, name, v=0.7, ridge=1e-2)
        assert gradcheck(lambda x, f=function: f(x, x), (x,), fast_mode=True)


@pytest.mark.parametrize(("d", "dtype"), [(2, torch.float32), (20, torch.float64)])
@pytest.mark.parametrize("kind", ["all equal", "equal sets", "same tensor", "pairs", "identity"])
@every_cost
def test_repeated_spectrum(name, kind, d, dtype):
    x = {
        "all equal": torch.ones(6, d),
        "pairs": normal(3, d, seed=1).repeat(2, 1),
        # Distances so large that P is the identity: all singular values are equal.
        "identity": 1e3 * normal(6, d, seed=1),
    }.get(kind, normal(6, d, seed=1))
    x = leaf(x.to(dtype))
    y = x if kind == "same tensor" else leaf(x[:4] if kind == "all equal" else x)
    v = leaf(torch.tensor(0.5, dtype=dtype))
    assert_finite(all_outputs(name, x, y, v), [x, v] if y is x else [x, y, v])


@pytest.mark.parametrize("dtype", DTYPES)
@every_cost
def test_points_without_weight(name, dtype):
    x, y = leaf(normal(6, 2, seed=1, dtype=dtype)), leaf(normal(5, 2, seed=2, dtype=dtype))
    weights_x = leaf(torch.tensor([0.0, 1, 2, 0, 1, 1], dtype=dtype))
    weights_y = leaf(torch.tensor([1.0, 0, 2, 0, 1], dtype=dtype))
    found = all_outputs(name, x, y, 0.5, weights_x=weights_x, weights_y=weights_y)
    assert_finite(found, [x, y])
    for output in found:
        gradients = torch.autograd.grad(output, [weights_x, weights_y], retain_graph=True)
        # The SVD cost grows as the square root of a weight: infinite at zero, but a number.
        assert not any(torch.isnan(g).any() for g in gradients)


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 1e30), (torch.float64, 1e200)])
@every_cost
def test_huge_coordinates_give_no_nan(name, dtype, size):
    d = (2, 20)[(list(COSTS).index(name) + DTYPES.index(dtype)) % 2]
    x, y = size * normal(5, d, seed=1, dtype=dtype), size * normal(4, d, seed=2, dtype=dtype)
    y[0] = x[0]
    for centres in (y, y[1:], y + size, y / size):
        inputs = [leaf(x), leaf(centres), leaf(torch.tensor(1.0, dtype=dtype))]
        for output in all_outputs(name, *inputs):
            gradients = torch.autograd.grad(output, inputs, retain_graph=True)
            assert not any(torch.isnan(t).any() for t in (output, *gradients))


@pytest.mark.parametrize("v", [1e-30, 1e30])
@pytest.mark.parametrize("dtype", DTYPES)
@every_cost
def test_extreme_variances_give_no_nan(name, dtype, v):
    x, y = normal(5, 2, seed=1, dtype=dtype), normal(4, 2, seed=2, dtype=dtype)
    inputs = [leaf(x), leaf(y), leaf(torch.tensor(v, dtype=dtype))]
    for output in all_outputs(name, *inputs):
        gradients = torch.autograd.grad(output, inputs, retain_graph=True)
        assert not any(torch.isnan(t).any() for t in (output, *gradients))


@pytest.mark.parametrize("dtype", DTYPES)
@every_cost
def test_apart_is_finite(name, dtype):
    x, y = normal(5, 2, seed=1, dtype=dtype), normal(4, 2, seed=2, dtype=dtype) + 1e3
    inputs = [leaf(x), leaf(y), leaf(torch.tensor(1.0, dtype=dtype))]
    assert_finite(all_outputs(name, *inputs), inputs)


def spectrum(*values, n, k):
    """A k x n matrix with these singular values."""
    u, w = torch.linalg.qr(normal(k, k, seed=1))[0], torch.linalg.qr(normal(n, n, seed=2))[0]
    count = len(values)
    return u[:, :count] @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ w[:, :count].T


@pytest.mark.parametrize("method", ["svd", "auto"])
@pytest.mark.parametrize(
    "p",
    [spectrum(3, 2, 1, n=3, k=3), spectrum(2, 2, 2, n=5, k=3), spectrum(1, 1, 0.5, n=3, k=4)],
    ids=["distinct", "repeated", "tall"],
)
def test_nuclear_norm_has_the_polar_factor_as_gradient(p, method):
    u, s, wh = torch.linalg.svd(p, full_matrices=False)
    p = leaf(p)
    value = km.nuclear_norm(p, method=method)
    (gradient,) = torch.autograd.grad(value, p)
    assert_close(value, s.sum(), **tolerances.value(torch.float64))
    assert_close(gradient, u @ wh, rtol=1e-9, atol=1e-9)
    assert gradcheck(partial(km.nuclear_norm, method=method), (p,))


@pytest.mark.parametrize("method", ["svd", "auto"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "p",
    [spectrum(1, 1, 0, n=4, k=3), spectrum(5, n=3, k=6), torch.zeros(3, 2), torch.ones(4, 4)],
    ids=["zero value", "rank one", "zero matrix", "ones"],
)
def test_nuclear_norm_of_deficient_rank(p, dtype, method):
    p = leaf(p.to(dtype))
    value = km.nuclear_norm(p, method=method)
    (gradient,) = torch.autograd.grad(value, p, create_graph=True)
    assert torch.isfinite(gradient).all()
    # A subgradient: no longer than one in any direction, and it reproduces the value.
    assert torch.linalg.matrix_norm(gradient.detach(), 2) <= 1 + 1e-5
    assert_close((gradient * p).sum(), value, rtol=1e-5, atol=1e-6)
    if gradient.requires_grad:
        (second,) = torch.autograd.grad(gradient.square().sum(), p)
        assert torch.isfinite(second).all()


@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (5, 3), (2, 3, 4)])
def test_nuclear_norm_can_be_differentiated_twice(shape):
    p = leaf(normal(*shape, seed=1))
    assert gradcheck(km.nuclear_norm, (p,))
    assert gradgradcheck(km.nuclear_norm, (p,))
