"""What mixtures refuse, and what they say."""

import math

import numpy as np
import pytest
import torch
from torch.distributions import (
    MultivariateNormal,
)
from torch.testing import assert_close

from kermix.errors import (
    DeviceError,
    KermixError,
    OptionError,
    SampleError,
    ShapeError,
    SizeError,
    VarianceError,
    WeightError,
)
from kermix.mixtures.mixture import GaussianMixture
from kermix.mixtures.sampled_mixture import SampledMixture
from mixture_cases import (
    make,
    sampled,
)

ONES, MEANS = torch.ones(3), torch.zeros(3, 2)
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("family", [GaussianMixture, SampledMixture])
@pytest.mark.parametrize(
    ("weights", "means", "covariances", "error", "text"),
    [
        (torch.ones(3, dtype=torch.long), MEANS, ONES, WeightError, "floating-point"),
        (torch.tensor([1.0, -1.0, 1.0]), MEANS, ONES, WeightError, "negative"),
        (torch.tensor([1.0, NAN, 1.0]), MEANS, ONES, WeightError, "NaN"),
        (torch.zeros(3), MEANS, ONES, WeightError, "zero"),
        (torch.ones(4), MEANS, ONES, WeightError, "one weight per point"),
        (torch.ones(2, 3), torch.zeros(3, 3, 2), ONES.expand(3, 3), WeightError, "batch"),
        (ONES, torch.zeros(3, 2, dtype=torch.long), ONES, SampleError, "means has dtype"),
        (ONES, torch.full((3, 2), NAN), ONES, SampleError, "means has 6 NaN"),
        (ONES, torch.zeros(3), ONES, ShapeError, "means has shape"),
        (ONES, torch.zeros(3, 0), ONES, SampleError, "empty"),
        (ONES, [[0.0]], ONES, SampleError, "list"),
        (ONES, MEANS, 1.0, VarianceError, "not float"),
        (ONES, MEANS, torch.ones(3, dtype=torch.long), VarianceError, "int64"),
        (ONES, MEANS, torch.ones(()), ShapeError, "number of axes"),
        (ONES, MEANS, torch.ones(4), ShapeError, "isotropic"),
        (ONES, MEANS, torch.ones(3, 3), ShapeError, "diagonal"),
        (ONES, MEANS, torch.ones(5, 3, 2), ShapeError, "batch axes"),
        (ONES, MEANS, torch.ones(1, 3, 2, 2), ShapeError, "full"),
        (ONES, torch.zeros(2, 3, 2), torch.ones(5, 3), ShapeError, "broadcast"),
        (ONES, MEANS, torch.tensor([1.0, 0.0, 1.0]), VarianceError, "not positive"),
        (ONES, MEANS, -torch.ones(3, 2), VarianceError, "smallest -1"),
        (ONES, MEANS, torch.full((3,), INF), VarianceError, "3 NaN or infinite"),
        (ONES, MEANS, torch.full((3, 2, 2), NAN), VarianceError, "NaN"),
        (ONES, MEANS, torch.tensor([[1.0, 0.5], [0, 1]]).expand(3, 2, 2), VarianceError, "symm"),
        (ONES, MEANS, torch.ones(3, 2, 2) * -1, VarianceError, "smallest eigenvalue -2"),
        (ONES, MEANS, torch.ones(3, 2, 2), VarianceError, "positive definite"),
        (ONES, MEANS, ONES.to("meta"), DeviceError, "meta"),
        (ONES.to("meta"), MEANS, ONES, DeviceError, "meta"),
    ],
)  # fmt: skip
def test_bad_arguments(family, weights, means, covariances, error, text):
    with pytest.raises(error, match=text) as caught:
        family(weights, means, covariances)
    assert isinstance(caught.value, KermixError)


def test_validation_of_values_can_be_switched_off():
    p = GaussianMixture(ONES, MEANS, -ONES, validate_args=False)
    assert torch.isnan(p.log_norm2())
    p = GaussianMixture(ONES, MEANS, -torch.eye(2).expand(3, 2, 2), validate_args=False)
    assert torch.isnan(p.log_norm2())
    assert torch.isnan(p.sample()).all()


def test_bad_points():
    p = make("isotropic", batch=(4,))
    for points in (torch.zeros(3), torch.zeros(3, 2), torch.zeros(4, 3), torch.zeros(5, 3, 2)):
        with pytest.raises(ShapeError, match="takes points of shape"):
            p.log_prob(points)
    with pytest.raises(ShapeError):
        p.log_prob(torch.zeros(()))
    with pytest.raises(SampleError, match="NaN"):
        p.log_prob(torch.full((2,), NAN))
    with pytest.raises(SampleError, match="int64"):
        p.log_prob(torch.zeros(2, dtype=torch.long))
    with pytest.raises(SampleError, match="list"):
        p.log_prob([0.0, 0.0])
    with pytest.raises(DeviceError, match="meta"):
        p.log_prob(torch.zeros(2, device="meta"))


def test_bad_partners():
    p = make("isotropic", batch=(4,))
    for method in (p.inner, p.log_inner, p.cauchy_schwarz):
        with pytest.raises(OptionError, match="GaussianMixture or a SampledMixture"):
            method(MultivariateNormal(torch.zeros(2), torch.eye(2)))
        with pytest.raises(ShapeError, match="dimension"):
            method(make("isotropic", dim=3))
        with pytest.raises(ShapeError, match="broadcast"):
            method(make("isotropic", batch=(3,)))
    elsewhere = GaussianMixture(ONES.to("meta"), MEANS.to("meta"), ONES.to("meta"))
    with pytest.raises(DeviceError, match="meta"):
        p.inner(elsewhere)


@pytest.mark.parametrize("n", [0, -1, 1.5, -0.5, float("nan"), float("inf"), "2", None, True])
def test_bad_powers(n):
    for p in (make("isotropic"), sampled("isotropic")):
        for norm in (p.lp_norm, p.log_lp_norm):
            with pytest.raises(OptionError, match=r"positive (integers|number)"):
                norm(n)


def test_numpy_integers_are_powers():
    p = make("isotropic")
    assert_close(p.lp_norm(np.int64(3)), p.lp_norm(3))


def test_sizes_that_cannot_finish():
    with pytest.raises(SizeError, match=f"{math.comb(103, 4):,} products"):
        make("isotropic", count=100).lp_norm(4)
    with pytest.raises(SizeError, match=f"{math.comb(100, 4):,} products"):
        sampled("isotropic", count=100).lp_norm(4, unbiased=True)
    weights = torch.ones(30)
    covariances = torch.eye(784).expand(30, 784, 784)
    p = GaussianMixture(weights, torch.zeros(30, 784), covariances, validate_args=False)
    with pytest.raises(SizeError, match="operations") as caught:
        p.lp_norm(3)
    assert "log_prob" in str(caught.value)
