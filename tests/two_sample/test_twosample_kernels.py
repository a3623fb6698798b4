"""Two-sample tests by other kernels: statistics, level, order, what is refused."""

import math

import numpy as np
import pytest
import torch

import kermix as km
from cases import normal
from kermix import errors

KERNELS = {
    "laplace": km.LaplaceKernel(),
    "rational quadratic": km.RationalQuadraticKernel(0.7, alpha=2.0),
    "polynomial": km.PolynomialKernel(2),
    "cosine": km.CosineKernel(),
    "function": lambda a, b: (a @ b.mT / 2).exp(),
}
every_kernel = pytest.mark.parametrize("name", KERNELS)


def test_mmd_by_the_laplace_kernel_is_its_formula():
    x, y = normal(30, 2), normal(25, 2, seed=1) + 0.3
    found = km.two_sample_test(x, y, "mmd", kernel=km.LaplaceKernel(0.6), permutations=20)

    def mean(a, b):
        gaps = np.sqrt(((a[:, None] - b[None]) ** 2).sum(-1) / 2)
        return np.exp(-gaps / 0.6).mean()

    a, b = x.numpy(), y.numpy()
    assert found.statistic == pytest.approx(mean(a, a) + mean(b, b) - 2 * mean(a, b), rel=1e-9)
    assert found.kernels == ("LaplaceKernel(scale=0.6, per_dimension=True)",)
    assert found.variances == ()


@every_kernel
def test_scalar_statistic_is_minus_the_logarithm_of_the_cost(name):
    x, y = normal(20, 2), normal(25, 2, seed=1) + 0.3
    kernel = KERNELS[name]
    found = km.two_sample_test(x, y, "scalar", kernel=kernel, permutations=10)
    if name == "laplace":
        kernel = kernel.fitted(torch.cat([x, y]))
    cost = km.scalar_cost(x, y, kernel=kernel, normalized=True, log=True)
    assert found.statistic == pytest.approx(-cost.item(), rel=1e-8, abs=1e-12)


def test_exact_svd_statistic_is_one_minus_the_fidelity():
    x, y = normal(20, 2), normal(20, 2, seed=1) + 1
    for kernel in (km.LaplaceKernel(0.6), km.PolynomialKernel(2)):
        asked = {"form": "exact", "ridge": None, "kernel": kernel, "permutations": 5}
        found = km.two_sample_test(x, y, "svd", **asked)
        cost = km.svd_cost(x, y, kernel=kernel, normalized=True)
        assert found.statistic == pytest.approx(1 - cost.item(), rel=1e-6)


@pytest.mark.parametrize("cost", ["svd", "matrix", "vector", "scalar", "mmd"])
@every_kernel
def test_a_difference_is_found_and_equal_samples_are_not_told_apart(cost, name):
    x, y = normal(60, 2), normal(60, 2, seed=1)
    asked = {"kernel": KERNELS[name], "permutations": 99}
    far = y * 2 + 1.5
    assert km.two_sample_test(x, far, cost, **asked).pvalue <= 0.02
    assert km.two_sample_test(x, x.clone(), cost, **asked).pvalue > 0.5


@pytest.mark.parametrize("cost", ["mmd", "svd"])
def test_level_of_the_laplace_test(cost):
    """Of 200 tests under the null at 0.1, a binomial number within its 99.9 % range."""
    repetitions, level, rejected = 200, 0.1, 0
    generator = torch.Generator().manual_seed(0)
    for seed in range(repetitions):
        x, y = torch.randn(2, 20, 2, generator=generator, dtype=torch.float64)
        found = km.two_sample_test(
            x, y, cost, kernel=km.LaplaceKernel(), permutations=39, seed=seed
        )
        rejected += found.pvalue <= level
    deviation = math.sqrt(repetitions * level * (1 - level))
    assert abs(rejected - repetitions * level) < 3.3 * deviation


def test_whitening_is_for_the_gaussian_unless_asked_for():
    x, y = normal(40, 2), normal(40, 2, seed=1) + 0.5
    asked = {"permutations": 20, "kernel": km.LaplaceKernel(0.5)}
    plain = km.two_sample_test(x, y, **asked).statistic
    assert plain == km.two_sample_test(x, y, ridge=None, **asked).statistic
    assert plain != km.two_sample_test(x, y, ridge=1e-4, **asked).statistic
    gaussian = km.two_sample_test(x, y, variances=0.3, permutations=20)
    by_ridge = km.two_sample_test(x, y, variances=0.3, permutations=20, ridge=1e-4)
    assert gaussian.statistic == by_ridge.statistic


def test_several_kernels_are_combined():
    x, y = normal(50, 2), 2 * normal(50, 2, seed=1)
    kernels = [km.LaplaceKernel(s) for s in (0.1, 0.5, 2.0)]
    found = km.two_sample_test(x, y, kernel=kernels, permutations=99)
    assert len(found.pvalues) == len(found.kernels) == 3
    assert found.pvalue <= 0.05


@pytest.mark.parametrize("cost", ["svd", "mmd", "scalar"])
def test_order_of_rows_does_not_matter(cost):
    x, y = normal(30, 2), normal(30, 2, seed=1)
    order = torch.randperm(30, generator=torch.Generator().manual_seed(3))
    asked = {"kernel": km.LaplaceKernel(), "permutations": 10}
    found = km.two_sample_test(x, y, cost, **asked).statistic
    assert found == km.two_sample_test(x[order], y, cost, **asked).statistic


def test_the_gaussian_as_a_kernel_is_the_variance():
    x, y = normal(30, 2), normal(30, 2, seed=1) + 0.5
    for cost in ("svd", "mmd"):
        by_variance = km.two_sample_test(x, y, cost, 0.3, permutations=50)
        by_kernel = km.two_sample_test(x, y, cost, kernel=km.GaussianKernel(0.3), permutations=50)
        assert by_kernel.statistic == by_variance.statistic
        assert by_kernel.pvalue == by_variance.pvalue


def test_more_rows_than_eigenvectors_are_taken_of():
    x, y = normal(800, 2), normal(800, 2, seed=1) * 1.3
    found = km.two_sample_test(x, y, kernel=km.LaplaceKernel(), permutations=50)
    assert "Nystrom" in found.method
    assert found.pvalue <= 0.02


def test_far_samples_by_the_laplace_kernel():
    x, y = normal(20, 2), normal(20, 2, seed=1) + 1e4
    found = km.two_sample_test(x, y, "scalar", kernel=km.LaplaceKernel(1.0), permutations=30)
    assert math.isfinite(found.statistic)
    assert found.statistic == pytest.approx(2e4, rel=1e-2)


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        ({"cost": "energy", "kernel": km.LaplaceKernel()}, errors.OptionError, "energy"),
        ({"variances": 0.1, "kernel": km.LaplaceKernel()}, errors.OptionError, "both given"),
        ({"kernel": []}, errors.OptionError, "empty"),
        ({"kernel": "laplace"}, errors.KernelError, "kernel="),
        ({"variances": km.LaplaceKernel()}, errors.KernelError, "kernel="),
    ],
)
def test_refusals(asked, error, message):
    with pytest.raises(error, match=message):
        km.two_sample_test(normal(5, 2), normal(6, 2), **asked)
