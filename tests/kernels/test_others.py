"""Kernels other than the Gaussian: values, positive definiteness, gradients, what is refused."""

import math

import pytest
import torch
from torch.autograd import gradcheck
from torch.testing import assert_close

import kermix as km
from cases import normal
from kermix import errors
from kermix.distributed.loss import DistributedLoss
from kermix.kernels.others import PointKernel, as_point_kernel


def smaller(a, b):
    """The kernel of Brownian motion: the smaller of two positive numbers, added up."""
    return torch.minimum(a.exp().unsqueeze(-2), b.exp().unsqueeze(-3)).sum(-1)


KERNELS = {
    "laplace": km.LaplaceKernel(0.7),
    "laplace, undivided": km.LaplaceKernel(1.5, per_dimension=False),
    "rational quadratic": km.RationalQuadraticKernel(0.5),
    "rational quadratic, 3": km.RationalQuadraticKernel(0.5, alpha=3.0, per_dimension=False),
    "linear": km.PolynomialKernel(1, constant=0.0),
    "polynomial": km.PolynomialKernel(3, constant=0.5),
    "cosine": km.CosineKernel(),
    "function": km.FunctionKernel(smaller),
}
every_kernel = pytest.mark.parametrize("name", KERNELS)


def slow(name, a, b):
    """One entry, in Python's numbers."""
    d, gaps = len(a), [s - t for s, t in zip(a, b, strict=True)]
    square = math.fsum(g * g for g in gaps)
    product = math.fsum(s * t for s, t in zip(a, b, strict=True))
    norms = [math.sqrt(math.fsum(t * t for t in p)) for p in (a, b)]
    return {
        "laplace": lambda: math.exp(-math.sqrt(square / d) / 0.7),
        "laplace, undivided": lambda: math.exp(-math.sqrt(square) / 1.5),
        "rational quadratic": lambda: 1 / (1 + square / d / 2 / 0.25),
        "rational quadratic, 3": lambda: (1 + square / 6 / 0.25) ** -3,
        "linear": lambda: product / d,
        "polynomial": lambda: (product / d + 0.5) ** 3,
        "cosine": lambda: product / norms[0] / norms[1],
        "function": lambda: sum(math.exp(min(s, t)) for s, t in zip(a, b, strict=True)),
    }[name]()


@pytest.mark.parametrize("d", [1, 3, 12])
@every_kernel
def test_values(name, d):
    a, b = normal(4, d), normal(3, d, seed=1)
    expected = [[slow(name, s, t) for t in b.tolist()] for s in a.tolist()]
    expected = torch.tensor(expected, dtype=torch.float64)
    assert_close(KERNELS[name].gram(a, b), expected, rtol=1e-10, atol=1e-12)
    assert_close(KERNELS[name](a, b), expected, rtol=1e-10, atol=1e-12)
    single = KERNELS[name].gram(a.float(), b.float())
    assert_close(single, expected.float(), rtol=2e-5, atol=2e-5)
    diagonal = torch.tensor([slow(name, s, s) for s in a.tolist()], dtype=torch.float64)
    assert_close(KERNELS[name].diagonal(a), diagonal, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("d", [1, 2, 10])
@pytest.mark.parametrize("spread", [0.05, 1.0, 20.0])
@every_kernel
def test_positive_semi_definite(name, d, spread):
    points = (spread if name != "function" else 1.0) * normal(40, d, seed=3)
    points = torch.cat([points, points[:3]])  # repeated rows: the matrix is singular
    matrix = KERNELS[name].gram(points, points)
    assert_close(matrix, matrix.mT)
    values = torch.linalg.eigvalsh(matrix)
    assert values[0] >= -1e-12 * values[-1]
    assert values[-1] > 0


@every_kernel
def test_scaled(name):
    a, b = normal(5, 2), normal(4, 2, seed=1)
    scaled, matrix = KERNELS[name].scaled_gram(a, b), KERNELS[name].gram(a, b)
    assert_close(scaled.matrix * scaled.log_scale.exp(), matrix)
    assert_close(scaled.matrix.abs().max(), torch.tensor(1.0).double())
    idle = torch.zeros(5, 4, dtype=torch.bool)
    idle[matrix.abs() == matrix.abs().max()] = True
    scaled = KERNELS[name].scaled_gram(a, b, idle)
    assert_close(scaled.matrix[~idle].abs().max(), torch.tensor(1.0).double())
    assert_close(scaled.matrix * scaled.log_scale.exp(), matrix)


def test_laplace_does_not_underflow():
    scaled = km.LaplaceKernel(1e-3).scaled_gram(torch.zeros(1, 2), torch.full((2, 2), 5.0))
    assert_close(scaled.matrix, torch.ones(1, 2))
    assert_close(scaled.log_scale, torch.tensor(-5000.0))


@pytest.mark.parametrize("d", [2, 10])
@every_kernel
def test_gradients(name, d):
    a, b = normal(3, d).requires_grad_(), normal(2, d, seed=1).requires_grad_()
    kernel = KERNELS[name]
    assert gradcheck(kernel.gram, (a, b))
    assert gradcheck(lambda t: kernel.gram(t, t), (a,))
    assert gradcheck(kernel.diagonal, (a,))


@every_kernel
def test_gradients_are_finite_where_points_coincide_or_vanish(name):
    a = torch.zeros(3, 2, dtype=torch.float64).requires_grad_()
    (gradient,) = torch.autograd.grad(KERNELS[name].gram(a, a.detach() + 0).sum(), a)
    assert torch.isfinite(gradient).all()


@every_kernel
def test_batches(name):
    a, b = normal(2, 1, 4, 3), normal(5, 6, 3, seed=1)
    found = KERNELS[name].gram(a, b)
    assert found.shape == (2, 5, 4, 6)
    assert_close(found[1, 3], KERNELS[name].gram(a[1, 0], b[3]))


def test_the_median_is_a_distance_of_the_data():
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]]).double()
    kernel = km.LaplaceKernel().fitted(x)
    assert_close(kernel.scale, 5 / math.sqrt(2))
    assert_close(kernel.gram(x, x)[0, 1].item(), math.exp(-1))
    assert km.RationalQuadraticKernel(per_dimension=False).fitted(x).scale == pytest.approx(5)
    with pytest.raises(errors.KernelError, match="no scale yet"):
        km.LaplaceKernel().gram(x, x)


def test_rational_quadratic_tends_to_the_gaussian():
    x = normal(5, 3)
    found = km.RationalQuadraticKernel(0.6**0.5, alpha=1e7).gram(x, x)
    assert_close(found, km.gram(x, x, 0.3), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: km.LaplaceKernel(0.0), errors.KernelError, "scale=0.0"),
        (lambda: km.LaplaceKernel("mean"), errors.KernelError, "scale='mean'"),
        (lambda: km.LaplaceKernel([1.0]), errors.OptionError, "scale"),
        (lambda: km.RationalQuadraticKernel(1.0, alpha=-1.0), errors.KernelError, "alpha"),
        (lambda: km.PolynomialKernel(0), errors.OptionError, "degree"),
        (lambda: km.PolynomialKernel(2, constant=-1.0), errors.KernelError, "constant"),
        (lambda: as_point_kernel("laplace"), errors.KernelError, "kernel='laplace'"),
        (lambda: as_point_kernel(km.LaplaceKernel), errors.KernelError, "a class"),
    ],
)
def test_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda a, b: a @ b.T.flip(-1) + a[:, :1], "not symmetric"),
        (lambda a, b: a.sum() + b.sum(), "returned \\(\\)"),
        (lambda a, b: 3.0, "returned float"),
        (lambda a, b: torch.full((len(a), len(b)), torch.nan), "NaN"),
        (lambda a, b: -torch.cdist(a, b) - 1, "negative between a point and itself"),
    ],
)
def test_functions_that_are_no_kernels(function, message):
    x = normal(4, 2)
    with pytest.raises(errors.KernelError, match=message):
        km.vector_cost(x, x.clone(), kernel=function)


@pytest.mark.parametrize("kernel", [km.LaplaceKernel(1.0), smaller])
def test_where_a_closed_form_needs_the_gaussian(kernel):
    x, y = normal(8, 2), normal(6, 2, seed=1)
    for call in (
        lambda: km.gram(x, y, kernel),
        lambda: km.svd_cost(x, y, kernel),
        lambda: km.GaussianKernel(0.1, kernel),
        lambda: km.nystrom_features(x, kernel, rank=3),
        lambda: km.fourier_features(2, kernel, rank=4),
        lambda: km.vector_weights(x, y, kernel),
        lambda: km.svd_cost(x, y, kernel=kernel, method="sketch"),
    ):
        with pytest.raises(errors.KernelError, match="Gaussian"):
            call()
    sketch = km.Sketch(km.nystrom_features(x, 0.1, rank=3)).update(x)
    with pytest.raises(errors.KernelError, match="for a sketch"):
        km.svd_cost(sketch, y, kernel=kernel)
    with pytest.raises(errors.KernelError, match="strategy='shard'"):
        DistributedLoss(km.SVDLoss(kernel=kernel), strategy="shard")
    with pytest.raises(errors.OptionError, match="both given"):
        km.svd_cost(x, y, 0.1, kernel=kernel)
    with pytest.raises(errors.OptionError, match="both given"):
        km.SVDLoss(0.1, kernel=kernel)
    assert isinstance(as_point_kernel(kernel), PointKernel)
