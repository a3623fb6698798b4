"""Costs of mixtures: against integrals, where nothing overlaps, in every kind and precision."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from torch.autograd import gradcheck
from torch.testing import assert_close

import kermix as km
import tolerances
from cases import BOUNDED, COSTS, LOSSES, normal, outputs, ridged, uniform
from kermix import errors
from kermix.distributed.loss import DistributedLoss
from mixture_cases import KIND_PAIRS, KINDS, build, full_covariances, make, raw_parameters, sampled

RIDGE = 1e-3
every_cost = pytest.mark.parametrize("name", COSTS)
every_kind = pytest.mark.parametrize("kind", KINDS)


def grid(dim):
    """Points and the size of their cell; sums over them integrate these Gaussians exactly."""
    line = np.linspace(-14, 14, 1401 if dim == 1 else 181)
    axes = np.meshgrid(*[line] * dim, indexing="ij")
    return np.stack([a.ravel() for a in axes], -1), (line[1] - line[0]) ** dim


def gaussians(means, covariances, points):  # (K, G)
    pairs = zip(means, covariances, strict=True)
    return np.stack([multivariate_normal(m, c).pdf(points) for m, c in pairs])


def weighted_gaussians(side, v, points):
    """Gaussians on the grid and weights that sum to 1, of a mixture or of points."""
    if isinstance(side, torch.Tensor):
        d = side.shape[1]
        covariances = np.broadcast_to(v * d * np.eye(d), (len(side), d, d))
        return gaussians(side.numpy(), covariances, points), np.full(len(side), 1 / len(side))
    weights = side.weights.numpy()
    found = gaussians(side.means.numpy(), full_covariances(side), points)
    return found, weights / weights.sum()


def integrated(name, x, y, v=None, normalized=False, ridge=RIDGE):
    """The costs by their definitions, with integrals on a grid in place of closed forms."""
    points, cell = grid((x if isinstance(x, torch.Tensor) else x.means).shape[-1])
    (g, a), (f, b) = (weighted_gaussians(side, v, points) for side in (x, y))

    def inner(s, t):
        return s @ t.T * cell

    norm_g, norm_f = (np.sqrt((s**2).sum(1) * cell) for s in (g, f))
    p, q = a @ g / math.sqrt(a @ norm_g**2), b @ f
    if name == "scalar":
        value = inner(p, q) ** 2 / inner(q, q)
        return value / inner(p, p) if normalized else value
    if name == "svd":
        roots = np.sqrt(b)[:, None] * np.sqrt(a)
        singular = np.linalg.svd(roots * inner(f, g) / np.outer(norm_f, norm_g), compute_uv=False)
        return singular.sum()  # of mass 1 if a side is a mixture: already divided by its bound
    f = f / norm_f[:, None] * np.sqrt(len(b) * b)[:, None]
    g = g / norm_g[:, None] * np.sqrt(len(a) * a)[:, None]
    r_f, r_g = inner(f, f), inner(g, g)
    r_f += ridge * r_f.diagonal().mean() * np.eye(len(b))
    r_g += ridge * r_g.diagonal().mean() * np.eye(len(a))
    if name == "vector":
        projection = inner(f, p)
        value = projection @ np.linalg.solve(r_f, projection)
        return value / inner(p, p) if normalized else value
    cross = inner(f, g)
    predicted = cross.T @ np.linalg.solve(r_f, cross)
    if name == "data_fixed":
        return np.trace(predicted) / (len(a) if normalized else 1)
    if name == "trace":
        value = np.trace(np.linalg.solve(r_g, predicted))
        return value / (min(len(a), len(b)) if normalized else 1)
    return np.linalg.slogdet(np.eye(len(a)) - np.linalg.solve(r_g, predicted))[1]


def assert_integral(name, x, y, v=None):
    for normalized in (False, True) if name in BOUNDED else (False,):
        asked = {"normalized": normalized, **ridged(name, RIDGE)}
        found = COSTS[name](x, y, v, **asked)
        expected = integrated(name, x, y, v, normalized)
        assert_close(found.item(), expected, rtol=1e-9, atol=0)


@every_kind
@every_cost
def test_two_mixtures_on_a_line(name, kind):
    assert_integral(name, make(kind, dim=1, count=4), make(kind, dim=1, count=3, seed=1))


@pytest.mark.parametrize("kinds", KIND_PAIRS)
@every_cost
def test_two_mixtures_in_the_plane(name, kinds):
    assert_integral(name, make(kinds[0], count=3), make(kinds[1], count=2, seed=1))


@pytest.mark.parametrize("dim", [1, 2])
@every_kind
@every_cost
def test_points_beside_a_mixture(name, kind, dim):
    points = normal(5, dim, seed=3)
    assert_integral(name, points, make(kind, dim=dim, seed=2), 0.2)
    assert_integral(name, make(kind, dim=dim, seed=2), points, 0.2)


@every_cost
def test_sampled_mixtures(name):
    assert_integral(name, sampled("diagonal"), make("full", count=3, seed=1))
    assert_integral(name, make("full", count=3, seed=1), sampled("isotropic", seed=4))


def test_scalar_cost_is_that_of_the_closed_forms():
    p, q = make("full"), make("diagonal", seed=1)
    divergence = -km.scalar_cost(p, q, normalized=True, log=True)
    assert_close(divergence, p.cauchy_schwarz(q), **tolerances.same(torch.float64))


def test_svd_cost_of_gaussians_of_unit_mass():
    """As the docstring says: by weights times the squared norms."""
    p, q = make("isotropic", count=4), make("isotropic", seed=1)
    points, cell = grid(2)
    (g, a), (f, b) = (weighted_gaussians(side, None, points) for side in (p, q))
    traces = [(w * (s**2).sum(1)).sum() * cell for s, w in ((g, a), (f, b))]
    matrix = np.sqrt(b)[:, None] * (f @ g.T * cell) * np.sqrt(a)
    expected = np.linalg.svd(matrix, compute_uv=False).sum() / math.sqrt(traces[0] * traces[1])
    scaled = [
        km.GaussianMixture(s.weights / s.covariances, s.means, s.covariances) for s in (p, q)
    ]
    assert_close(km.svd_cost(*scaled).item(), expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("nonnegative", [False, True])
@every_kind
def test_vector_weights_minimise_the_error(kind, nonnegative):
    p, q = make(kind, count=4, dim=1), make(kind, count=3, dim=1, seed=5)
    found = km.vector_weights(p, q, ridge=0.0, nonnegative=nonnegative)
    points, cell = grid(1)
    (g, a), (f, _) = (weighted_gaussians(side, None, points) for side in (p, q))
    if nonnegative:
        from scipy.optimize import nnls

        expected = nnls(f.T * math.sqrt(cell), a @ g * math.sqrt(cell))[0]
        expected /= expected.sum()
    else:
        expected = np.linalg.solve(f @ f.T, f @ (a @ g))
    assert_close(found.numpy(), expected, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("d", [1, 3, 784])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_single_gaussians_that_are_far_apart(d, dtype):
    """One formula in all: the logarithm of the inner product of two Gaussians of unit norm."""
    s, t, gap = 0.01, 0.04, 30.0
    p = km.GaussianMixture(torch.ones(1, dtype=dtype), torch.zeros(1, d, dtype=dtype),
                           torch.full((1,), s, dtype=dtype))  # fmt: skip
    q = km.GaussianMixture(torch.ones(1, dtype=dtype), torch.full((1, d), gap, dtype=dtype),
                           torch.full((1,), t, dtype=dtype))  # fmt: skip
    overlap = d / 2 * math.log(2 * math.sqrt(s * t) / (s + t)) - d * gap**2 / (2 * (s + t))
    close = {"rtol": tolerances.RELATIVE[dtype] / 10, "atol": 0}
    for name, times in (("svd", 1), ("scalar", 2), ("vector", 2), ("trace", 2), ("data_fixed", 2)):
        asked = {"normalized": True, "log": True, **ridged(name, 0.0)}
        assert_close(COSTS[name](p, q, **asked).item(), times * overlap, **close)
    assert_close(km.matrix_cost(p, q, form="logdet", ridge=0.0, log=True).item(), 2 * overlap,
                 **close)  # fmt: skip


def test_float32_keeps_small_differences_in_many_dimensions():
    """The Gaussians' constants are near 800 there, and cancel."""
    d, variances = 784, torch.tensor([0.01, 0.0103])
    sides = [km.GaussianMixture(torch.ones(1), torch.zeros(1, d), s[None]) for s in variances]
    s, t = variances.double().tolist()
    overlap = d / 2 * math.log(2 * math.sqrt(s * t) / (s + t))
    found = km.svd_cost(*sides, log=True)
    assert found.dtype == torch.float32
    assert_close(found.item(), overlap, rtol=1e-6, atol=0)


@every_cost
def test_far_mixtures_pull(name):
    p = make("isotropic", count=3)
    means = (make("isotropic", seed=1).means + 500).requires_grad_()
    q = km.GaussianMixture(torch.ones(3), means, torch.ones(3, dtype=torch.float64))
    loss = LOSSES[name]()(p, q)
    (gradient,) = torch.autograd.grad(loss, means)
    assert torch.isfinite(loss)
    assert torch.isfinite(gradient).all()
    assert (gradient.sum(0) > 0).all()  # downhill is back to the data


@pytest.mark.parametrize("ratio", [1e-12, 1e12])
@every_cost
def test_very_unequal_variances(name, ratio):
    p = km.GaussianMixture(torch.ones(3), normal(3, 5), torch.tensor([ratio, 1.0, 2.0]))
    log = COSTS[name](p, make("full", dim=5), log=True, **ridged(name, RIDGE))
    assert torch.isfinite(log)
    if name in BOUNDED:
        assert 0 <= COSTS[name](p, p, normalized=True, **ridged(name, RIDGE)) <= 1 + 1e-6


@every_kind
@every_cost
def test_float32_agrees_with_float64(name, kind):
    numbers = [make(kind, dim=12, count=6), make(kind, dim=12, count=5, seed=1)]
    single = [
        km.GaussianMixture(m.weights.float(), m.means.float(), m.covariances.float())
        for m in numbers
    ]
    ridge = ridged(name, 1e-2)
    found, expected = COSTS[name](*single, **ridge), COSTS[name](*numbers, **ridge)
    assert found.dtype == torch.float32
    assert_close(found.double(), expected, **tolerances.value(torch.float32))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@every_cost
def test_half_precision(name, dtype):
    given = [t.to(dtype) for t in (torch.ones(3), normal(3, 2), torch.ones(3))]
    mixture = km.GaussianMixture(*given)
    found = COSTS[name](mixture, normal(4, 2).to(dtype), 0.3)
    assert found.dtype == dtype
    assert torch.isfinite(found)


@pytest.mark.parametrize("kinds", [("isotropic", "full"), ("diagonal", "isotropic")])
@every_cost
def test_gradients_to_weights_means_and_covariances(name, kinds):
    def function(*raw):
        p, q = build(kinds[0], *raw[:3]), build(kinds[1], *raw[3:])
        ridge = ridged(name, 1e-2)
        ends = outputs(name)[0], outputs(name)[-1]
        return torch.stack([COSTS[name](p, q, **ridge, **asked) for asked in ends])

    raw = raw_parameters(kinds[0], 3, 2, 0) + raw_parameters(kinds[1], 2, 2, 1)
    assert gradcheck(function, raw, fast_mode=kinds[0] == "diagonal")


@every_cost
def test_gradients_beside_points(name):
    def function(points, weights, v, *raw):
        q = build("diagonal", *raw)
        ridge = ridged(name, 1e-2)
        there = COSTS[name](points, q, v, weights_x=weights, **ridge)
        return torch.stack([there, COSTS[name](q, points, v, weights_y=weights, **ridge)])

    inputs = [normal(3, 2, seed=4), uniform(3, seed=5) + 0.2, torch.tensor(0.3).double()]
    inputs = [t.requires_grad_() for t in inputs] + raw_parameters("diagonal", 2, 2, 0)
    assert gradcheck(function, inputs)


@every_cost
def test_weight_zero_is_absence(name):
    """Also where the absent component would be the one nearest to the other side."""
    p, near = make("isotropic", dim=2, count=3), torch.tensor([0.0, 1.0, 1.0]).double()
    q = km.GaussianMixture(near, torch.cat([p.means[:1], p.means[:2] + 40]), torch.ones(3))
    without = km.GaussianMixture(near[1:], q.means[1:], torch.ones(2))
    for log in (False, True):
        asked = {"log": log}
        if name in ("vector", "trace", "data_fixed", "logdet"):
            asked["ridge"] = 1e-9  # of one row more
        found, expected = COSTS[name](p, q, **asked), COSTS[name](p, without, **asked)
        assert_close(found, expected, rtol=1e-6, atol=1e-12)
    means = q.means.clone().requires_grad_()
    loss = LOSSES[name]()(p, km.GaussianMixture(near.requires_grad_(), means, torch.ones(3)))
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(loss, (means, near)))


@every_cost
def test_batches(name):
    ps = make("diagonal", batch=(2, 1), count=4)
    qs = make("full", batch=(3,), count=3, seed=1)
    found = COSTS[name](ps, qs, **ridged(name, RIDGE))
    assert found.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            p = km.GaussianMixture(ps.weights[i, 0], ps.means[i, 0], ps.covariances[i, 0])
            q = km.GaussianMixture(qs.weights[j], qs.means[j], qs.covariances[j])
            expected = COSTS[name](p, q, **ridged(name, RIDGE))
            assert_close(found[i, j], expected, **tolerances.same(torch.float64))


@pytest.mark.parametrize("dim", [2, 10])
@every_cost
def test_batches_beside_points(name, dim):
    qs = make("isotropic", batch=(2, 1), count=3, dim=dim)
    points, weights = normal(4, dim), uniform(3, 4, seed=1) + 0.1
    found = COSTS[name](qs, points, 0.2, weights_y=weights, **ridged(name, RIDGE))
    assert found.shape == (2, 3)
    q = km.GaussianMixture(qs.weights[1, 0], qs.means[1, 0], qs.covariances[1, 0])
    expected = COSTS[name](q, points, 0.2, weights_y=weights[2], **ridged(name, RIDGE))
    assert_close(found[1, 2], expected, **tolerances.same(torch.float64))


@every_kind
def test_the_same_in_one_block_or_many(kind, monkeypatch):
    p, q = make(kind, count=7, dim=3), make(kind, count=5, dim=3, seed=1)
    whole = [km.svd_cost(p, q), km.scalar_cost(p, q), km.vector_cost(p, q)]
    monkeypatch.setattr("kermix.mixtures.closed_forms.BLOCK_ELEMENTS", 40)
    parts = [km.svd_cost(p, q), km.scalar_cost(p, q), km.vector_cost(p, q)]
    for one, other in zip(whole, parts, strict=True):
        assert_close(one, other, **tolerances.same(torch.float64))


@every_cost
def test_losses_are_of_the_costs(name):
    p, q = make("isotropic", count=4), make("full", seed=1)
    asked = {"log": True, "normalized": name in BOUNDED}
    assert_close(LOSSES[name]()(p, q), -COSTS[name](p, q, **asked))
    linear = LOSSES[name](log=False)(p, q)
    expected = 1 - COSTS[name](p, q, normalized=True) if name in BOUNDED else COSTS[name](p, q) / 3
    assert_close(linear, expected)


@every_cost
def test_learning_by_a_loss_finds_the_mixture(name):
    """Weights, means and variances all move, and the loss falls."""
    target = make("isotropic", count=3)
    raw = raw_parameters("isotropic", 3, 2, 7)
    optimiser = torch.optim.Adam(raw, lr=0.05)
    loss_of, losses = LOSSES[name](), []
    before = [r.detach().clone() for r in raw]
    for _ in range(60):
        loss = loss_of(target, build("isotropic", *raw))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.05
    if name in ("scalar", "svd"):
        assert losses[-1] < 0.05
        assert all((r - b).abs().max() > 0.01 for r, b in zip(raw, before, strict=True))


MIXTURE = make("isotropic")
POINTS = normal(4, 2)
REFUSED = [
    ((MIXTURE, MIXTURE, 0.1), {}, errors.OptionError, "two mixtures"),
    ((MIXTURE, POINTS), {}, errors.OptionError, "v is missing.* points of y"),
    ((POINTS, MIXTURE), {}, errors.OptionError, "v is missing.* points of x"),
    ((POINTS, MIXTURE, [0.1, 0.2]), {}, errors.VarianceError, "v has 2 values"),
    ((POINTS, MIXTURE, km.GaussianKernel(0.1, 0.2)), {}, errors.VarianceError, "v_q"),
    ((MIXTURE, MIXTURE), {"weights_x": torch.ones(3)}, errors.OptionError, "weights_x"),
    ((POINTS, MIXTURE, 0.1), {"weights_y": torch.ones(3)}, errors.OptionError, "weights_y"),
    ((normal(4, 3), MIXTURE, 0.1), {}, errors.ShapeError, "y.means"),
    ((POINTS, MIXTURE), {"kernel": km.LaplaceKernel(1.0)}, errors.KernelError, "closed form"),
]


@pytest.mark.parametrize(("sides", "keywords", "error", "message"), REFUSED)
@every_cost
def test_refused_in_one_sentence(name, sides, keywords, error, message):
    with pytest.raises(error, match=message):
        COSTS[name](*sides, **keywords)


def test_paths_that_cannot_take_a_mixture():
    with pytest.raises(errors.OptionError, match="chunk"):
        km.scalar_cost(MIXTURE, MIXTURE, chunk=10)
    with pytest.raises(errors.KernelError, match="method='sketch'"):
        km.svd_cost(MIXTURE, MIXTURE, method="sketch")
    feature_map = km.nystrom_features(POINTS, 0.1, rank=3)
    sketch = km.Sketch(feature_map).update(POINTS)
    with pytest.raises(errors.OptionError, match="sketch and the other argument is a mixture"):
        km.svd_cost(sketch, MIXTURE)
    with pytest.raises(errors.SampleError, match="GaussianMixture"):
        km.two_sample_test(MIXTURE, POINTS)
    with pytest.raises(errors.TableError, match="GaussianMixture"):
        km.compare(MIXTURE, POINTS)
    with pytest.raises(errors.SampleError, match="GaussianMixture"):
        km.DebiasedLoss(km.SVDLoss(0.1))(POINTS, MIXTURE)
    with pytest.raises(errors.SampleError, match="x is a mixture"):
        DistributedLoss(km.SVDLoss(0.1))(MIXTURE, POINTS)
