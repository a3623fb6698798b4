"""The kernel of mixed rows is the Gaussian of one-hot columns; whatever holds for it, holds."""

import math

import pytest
import torch

import kermix as km
from internals import Layout, MixedKernel, attraction, mismatch_of, mixed_kernel, squared_distances
from kermix import two_sample_test
from kermix.errors import OptionError, ShapeError, VarianceError

LAYOUT = Layout(codes=3, mismatch=2.5, columns=6)


def rows(n, seed, numbers=4, codes=3, values=5):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, numbers, generator=generator, dtype=torch.float64)
    c = torch.randint(values, (n, codes), generator=generator).double()
    return torch.cat([x, c], 1)


def one_hot(points, layout, values=5):
    """The obvious way: columns of height s / sqrt(2), all of them."""
    numbers, codes = points[:, : -layout.codes], points[:, -layout.codes :].long()
    height = math.sqrt(layout.mismatch / 2)
    hot = torch.nn.functional.one_hot(codes, values).flatten(1)
    # Distances are divided by the user's columns, and here by the dimension.
    wide = torch.cat([numbers, height * hot.to(points)], 1)
    return wide * math.sqrt(wide.shape[1] / layout.columns)


@pytest.mark.parametrize("numbers", [0, 1, 4, 12])
def test_distances_are_those_of_one_hot_columns(numbers):
    a, b = rows(30, 0, numbers), rows(20, 1, numbers)
    found = squared_distances(a, b, layout=LAYOUT)
    wide = [one_hot(t, LAYOUT) for t in (a, b)]
    scale = LAYOUT.columns / wide[0].shape[1]
    assert torch.allclose(found, torch.cdist(*wide).square() * scale, atol=1e-12)
    assert (squared_distances(a, a, True, LAYOUT).diagonal() == 0).all()


def test_the_kernel_is_a_product():
    a, b = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, 2.0]])
    kernel = MixedKernel(0.3, Layout(1, 2.0, 1))
    rho = math.exp(-2.0 / (2 * 2 * 0.3))
    assert float(km.gram(a, b, kernel)) == pytest.approx(rho, rel=1e-6)
    assert float(km.gram(a, a, kernel)) == 1


@pytest.mark.parametrize("numbers", [2, 12])
@pytest.mark.parametrize("cost", ["svd_cost", "matrix_cost", "vector_cost", "scalar_cost"])
def test_costs_are_those_of_one_hot_columns(cost, numbers):
    x, y = rows(40, 0, numbers), rows(30, 1, numbers) + 0.0
    kernel = MixedKernel([0.3, 1.0], LAYOUT)
    plain = km.GaussianKernel([0.3, 1.0])
    found = getattr(km, cost)(x, y, kernel, normalized=True)
    wide = [one_hot(t, LAYOUT) for t in (x, y)]
    assert float(found) == pytest.approx(float(getattr(km, cost)(*wide, plain, normalized=True)),
                                         rel=1e-9)  # fmt: skip


@pytest.mark.parametrize("numbers", [2, 12])
@pytest.mark.parametrize("loss", [km.MatrixLoss, km.ScalarLoss, km.SVDLoss, km.VectorLoss])
def test_gradients_are_those_of_one_hot_columns_and_codes_have_none(loss, numbers):
    x, y = rows(20, 0, numbers), rows(15, 1, numbers).requires_grad_()
    kernel, plain = MixedKernel(0.4, LAYOUT), km.GaussianKernel(0.4)
    loss(kernel)(x, y).backward()
    other = y.detach().clone().requires_grad_()
    loss(plain)(one_hot(x, LAYOUT), one_hot(other, LAYOUT)).backward()
    assert torch.allclose(y.grad[:, :numbers], other.grad[:, :numbers], atol=1e-10)
    assert (y.grad[:, numbers:] == 0).all()


def test_tiled_means_and_their_second_derivative():
    x, y = rows(10, 0), rows(9, 1)[:, :4]
    codes = rows(9, 2)[:, 4:]

    def value(points):
        return km.scalar_cost(x, torch.cat([points, codes], 1), MixedKernel(0.5, LAYOUT))

    points = y.clone().requires_grad_()
    assert torch.autograd.gradcheck(value, points)
    assert torch.autograd.gradgradcheck(value, points)


def test_attraction_leaves_codes_where_they_are():
    a, b = rows(5, 0), rows(6, 1)
    pull = torch.rand(5, 6, dtype=torch.float64)
    toward, back = attraction(pull, a, b, squared_distances(a, b, layout=LAYOUT), layout=LAYOUT)
    wanted = (pull.unsqueeze(-1) * (b[None, :, :4] - a[:, None, :4])).sum(1)
    assert torch.allclose(toward[:, :4], wanted)
    assert (toward[:, 4:] == 0).all()
    assert (back[:, 4:] == 0).all()


@pytest.mark.parametrize("numbers", [0, 4, 12])
def test_sketches_hold_their_certificate_and_merge(numbers, tmp_path):
    x, y = rows(600, 0, numbers), rows(500, 1, numbers, values=4)
    kernel = MixedKernel(0.5, LAYOUT)
    features = km.nystrom_features(torch.cat([x, y]), kernel, rank=60)
    whole = km.Sketch(features).update(x)
    halves = km.Sketch(features).update(x[:123]) + km.Sketch(features).update(x[123:])
    other = km.Sketch(features).update(y)
    assert torch.allclose(whole.sums.second, halves.sums.second, atol=1e-9)
    found, info = km.svd_cost(whole, other, None, normalized=True, return_info=True)
    exact = km.svd_cost(x, y, kernel, normalized=True)
    assert abs(float(found - exact)) <= float(info.error_bound)
    assert float(info.error_bound) < 0.8
    whole.save(tmp_path / "x.sketch")
    again = km.Sketch.load(tmp_path / "x.sketch")
    assert again.feature_map.kernel.layout == LAYOUT
    assert float(km.svd_cost(again, other, normalized=True)) == float(found)
    # The features of the fast way on a CPU are the features.
    assert torch.allclose(whole.sums.first, features(x).sum(0), atol=1e-9)


def test_another_layout_is_another_map():
    x = rows(50, 0)
    maps = [km.nystrom_features(x, MixedKernel(0.5, LAYOUT._replace(mismatch=s)), rank=5)
            for s in (1.0, 2.0)]  # fmt: skip
    first, second = (km.Sketch(m).update(x) for m in maps)
    with pytest.raises(km.errors.SketchError, match="different feature maps"):
        first.merge(second)


@pytest.mark.parametrize("cost", ["svd", "matrix", "vector", "scalar", "mmd", "energy"])
def test_tests_are_those_of_one_hot_columns(cost):
    x, y = rows(40, 0), rows(40, 1, values=3)
    found = two_sample_test(x, y, cost, [0.2, 1.0], 99, layout=LAYOUT)
    wide = two_sample_test(one_hot(x, LAYOUT), one_hot(y, LAYOUT), cost, [0.2, 1.0], 99)
    if cost == "energy":
        scale = math.sqrt(one_hot(x, LAYOUT).shape[1] / LAYOUT.columns)
        assert found.statistic * scale == pytest.approx(wide.statistic)
    else:
        assert found.statistics == pytest.approx(wide.statistics, rel=1e-6)
    assert abs(found.pvalue - wide.pvalue) <= 0.02


def test_two_random_rows_differ_as_much_by_a_category_as_by_a_number():
    x = rows(4000, 0, values=3)
    s2 = mismatch_of(x[:, 4:])
    differ = (x[:2000, 4:] != x[2000:, 4:]).double().mean()
    numbers = (x[:2000, :4] - x[2000:, :4]).square().mean()
    assert float(s2 * differ) == pytest.approx(float(numbers), rel=0.1)
    assert mismatch_of(x[torch.randperm(4000)][:, 4:]) == s2
    assert mismatch_of(torch.zeros(10, 1)) == pytest.approx(100)
    assert mismatch_of(torch.zeros(10, 0)) == 2


def test_the_median_rule_sees_the_codes():
    x = rows(300, 0)
    v = mixed_kernel(x, LAYOUT).v_p[0]
    squares = squared_distances(x, x, layout=LAYOUT)
    pairs = squares[torch.ones(300, 300).triu(1).bool()]
    assert v == pytest.approx(float(pairs.median()) / (2 * LAYOUT.columns))


def test_what_cannot_be_is_refused():
    with pytest.raises(VarianceError):
        MixedKernel(1.0, Layout(1, 0.0, 1))
    with pytest.raises(ShapeError, match="last 3"):
        km.gram(torch.zeros(2, 2), torch.zeros(2, 2), MixedKernel(1.0, LAYOUT))
    with pytest.raises(OptionError, match="Fourier features do not support codes"):
        km.fourier_features(4, MixedKernel(1.0, LAYOUT), 10)


def test_singular_functions_of_mixed_rows():
    x, y = rows(40, 0), rows(30, 1)
    kernel = MixedKernel(0.5, LAYOUT)
    found = km.decompose(x, y, kernel)
    wide = km.decompose(one_hot(x, LAYOUT), one_hot(y, LAYOUT), 0.5)
    assert torch.allclose(found.singular_values, wide.singular_values, atol=1e-10)
    assert torch.allclose(found.left(x[:5]).abs(), wide.left(one_hot(x[:5], LAYOUT)).abs(),
                          atol=1e-5, rtol=1e-3)  # fmt: skip
    assert found.swapped().kernel.layout == LAYOUT
    with pytest.raises(OptionError, match="no density with respect to dX"):
        found.left(form="lebesgue")
    with pytest.raises(OptionError, match="no density with respect to dX"):
        found.identity(y, x)
