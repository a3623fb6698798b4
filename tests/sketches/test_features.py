"""Feature maps: what landmarks and frequencies reproduce of the kernel, and how well."""

import signal
from contextlib import contextmanager

import pytest
import torch
from torch.testing import assert_close

import kermix as km
import tolerances
from cases import normal, uniform
from internals import NystromFeatures, fingerprint
from kermix import errors

V = 0.1


@contextmanager
def seconds(limit):
    """Stop a call that does not end, and only that one."""

    def stop(*_):
        raise TimeoutError(f"no answer in {limit} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(limit)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def residuals(features, x):
    return 1 - features(x).square().sum(-1)


def clustered(seed):
    """Nearly all points in one cluster, the rest in thirty far away from each other."""
    large = 0.05 * normal(2000, 2, seed=seed)
    small = 40 * normal(30, 2, seed=seed + 1).repeat(2, 1) + 0.05 * normal(60, 2, seed=seed + 2)
    return torch.cat([large, small])


@pytest.mark.parametrize("v", [V, [0.01, 1.0], km.GaussianKernel(V, per_dimension=False)])
@pytest.mark.parametrize("landmarks", ["pivoted", "uniform"])
def test_all_points_as_landmarks_give_the_kernel(landmarks, v):
    x = normal(40, 3, seed=1)
    features = km.nystrom_features(x, v, rank=40, landmarks=landmarks)
    phi = features(x)
    assert phi.shape == (40, features.rank) == (40, 40)
    assert_close(phi @ phi.mT, km.gram(x, x, v), rtol=0, atol=1e-8)


@pytest.mark.parametrize("rank", [1, 7, 25])
def test_what_is_left_out_is_positive_semi_definite(rank):
    x, y = normal(60, 2, seed=1), normal(50, 2, seed=2)
    features = km.nystrom_features(x, V, rank=rank)
    assert features.rank == rank
    both = torch.cat([x, y])
    left_out = km.gram(both, both, V) - features(both) @ features(both).mT
    assert torch.linalg.eigvalsh(left_out).min() > -1e-9
    assert_close(left_out.diagonal(), residuals(features, both), rtol=0, atol=1e-12)


def test_landmarks_are_points_and_have_no_residual():
    x = normal(200, 2, seed=1)
    for landmarks in ("pivoted", "uniform"):
        features = km.nystrom_features(x, V, rank=20, landmarks=landmarks)
        assert (features.landmarks[:, None] == x).all(-1).any(1).all()
        assert len(features.landmarks.unique(dim=0)) == 20
        assert_close(
            residuals(features, features.landmarks), torch.zeros(20).double(), atol=1e-8, rtol=0
        )


@pytest.mark.parametrize("landmarks", ["pivoted", "uniform"])
def test_residual_falls_with_rank(landmarks):
    x = normal(1000, 2, seed=1)
    means = [
        residuals(km.nystrom_features(x, V, rank=rank, landmarks=landmarks), x).mean().item()
        for rank in (5, 20, 80, 300)
    ]
    assert means == sorted(means, reverse=True)
    assert means[0] > 0.3
    assert means[-1] < (1e-4 if landmarks == "pivoted" else 2e-2)


def test_pivoted_landmarks_find_small_clusters():
    for seed in range(5):
        x = clustered(seed)
        means = {
            rule: residuals(
                km.nystrom_features(x, V, rank=60, landmarks=rule, seed=seed), x
            ).mean()
            for rule in ("pivoted", "uniform")
        }
        assert means["pivoted"] < 0.1 * means["uniform"]


@pytest.mark.parametrize("tolerance", [1e-1, 1e-3, 1e-5])
@pytest.mark.parametrize("n", [300, 3000])
def test_tolerance_is_reached(n, tolerance):
    x = normal(n, 2, seed=1)
    features = km.nystrom_features(x, V, tolerance=tolerance, candidates=n)
    assert residuals(features, x).mean() <= 1.01 * tolerance
    assert features.rank < n / 2
    coarse = km.nystrom_features(x, V, rank=5, tolerance=tolerance)
    assert coarse.rank == 5


def test_pivots_follow_the_residual():
    """The second of two pivots, by one at a time: proportional to 1 - k(first, i)^2."""
    x = torch.tensor([[0.0], [0.3], [0.5], [3.0]], dtype=torch.float64)
    gram = km.gram(x, x, V)
    counts = torch.zeros(4, 4, dtype=torch.float64)
    draws = 700
    for seed in range(draws):
        chosen = km.nystrom_features(x, V, rank=2, seed=seed).landmarks
        first, second = (int(i) for i in torch.cdist(chosen, x).argmin(1))
        counts[first, second] += 1
    left = 1 - gram.square()
    truth = draws / 4 * left / left.sum(1, keepdim=True)
    # Within 4.5 standard deviations of a count; the diagonal is never drawn.
    assert ((counts - truth).abs() <= 4.5 * truth.clamp(min=0).sqrt() + 1e-9).all()


@pytest.mark.parametrize(
    ("distinct", "rank"),
    [
        pytest.param(1, 3),
        pytest.param(4, 10),
        *((4, 3), (4, 200), (30, 10), (30, 50), (30, 200)),
    ],
)
def test_fewer_distinct_points_than_landmarks(distinct, rank):
    x = normal(distinct, 2, seed=distinct).repeat(200 // distinct, 1)
    with seconds(3):
        features = km.nystrom_features(x, 0.01, rank=rank)
    assert features.rank <= min(distinct, rank)
    assert len(features.landmarks.unique(dim=0)) == features.rank
    if rank >= distinct:
        assert residuals(features, x).max() < 1e-8


def test_smooth_kernels_stop_by_themselves():
    """Ranks at which the residual is between the levels of rounding that two tests allow for."""
    for seed in range(12):
        x = normal(90 + seed, 1, seed=seed)
        for v in (0.1, 1.0, 10.0):
            with seconds(2):
                features = km.nystrom_features(x, v, rank=60, seed=seed)
            assert residuals(features, x).mean() < 1e-10


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_features_are_float64_and_differentiable(dtype):
    x = normal(30, 2, seed=1).to(dtype)
    features = km.nystrom_features(x, V, rank=8)
    assert features.parameters.dtype == features(x).dtype == torch.float64
    leaf = x[:4].double().requires_grad_()
    assert torch.autograd.gradcheck(features, leaf)
    fourier = km.fourier_features(2, V, rank=6)
    assert fourier(x).dtype == torch.float64
    assert torch.autograd.gradcheck(fourier, leaf)


@pytest.mark.parametrize("v", [V, [0.05, 1.0]])
def test_fourier_features_converge_like_the_root_of_the_rank(v):
    x, y = normal(60, 3, seed=1), normal(50, 3, seed=2)
    truth = km.gram(x, y, v)

    def error(rank):
        errors = []
        for seed in range(8):
            features = km.fourier_features(3, v, rank=rank, seed=seed)
            errors.append((features(x) @ features(y).mT - truth).square().mean())
        return torch.stack(errors).mean().sqrt().item()

    few, many = error(50), error(50 * 64)
    # The variance of one pair is at most 1, so the error is at most sqrt(2 / rank).
    assert few <= 0.2
    assert few / many == pytest.approx(8, rel=0.3)


def test_fourier_features_have_unit_norm():
    features = km.fourier_features(3, V, rank=10)
    norms = features(normal(5, 3, seed=1)).square().sum(1)
    assert_close(norms, torch.ones(5).double(), **tolerances.value(torch.float64))
    assert features.rank == 10
    assert features.dimension == 3
    assert not features.certified


def test_seeds():
    x = normal(300, 2, seed=1)
    state = torch.get_rng_state()

    def maps(seed):
        yield km.nystrom_features(x, V, rank=10, seed=seed)
        yield km.nystrom_features(x, V, rank=10, seed=seed, landmarks="uniform")
        yield km.nystrom_features(x, V, rank=10, seed=seed, candidates=50)
        yield km.fourier_features(2, V, rank=10, seed=seed)

    for first, again, other in zip(maps(3), maps(3), maps(4), strict=True):
        assert first.parameters.equal(again.parameters)
        assert fingerprint(first) == fingerprint(again) != fingerprint(other)
    assert torch.get_rng_state().equal(state), "the global generator was used"


def test_fingerprint_tells_maps_apart():
    z = normal(5, 2, seed=1)
    maps = [
        NystromFeatures(z, km.GaussianKernel(0.1)),
        NystromFeatures(z, km.GaussianKernel(0.2)),
        NystromFeatures(z, km.GaussianKernel([0.1, 0.2])),
        NystromFeatures(z, km.GaussianKernel(0.1, per_dimension=False)),
        NystromFeatures(z[:4], km.GaussianKernel(0.1)),
        NystromFeatures(z + 1e-9, km.GaussianKernel(0.1)),
        km.fourier_features(2, 0.1, rank=10),
    ]
    assert len({fingerprint(m) for m in maps}) == len(maps)
    assert fingerprint(maps[0]) == fingerprint(NystromFeatures(z.clone(), km.GaussianKernel(0.1)))


def test_a_rule_gives_the_variance():
    x = 3 * uniform(50, 2, seed=1)
    found = km.nystrom_features(x, "median", rank=5).kernel
    assert float(found.v_p[0]) == pytest.approx(km.choose_variance(x).item())


X = normal(10, 2, seed=1)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((X, V), errors.OptionError, "rank.*tolerance"),
        ((X, V, 0), errors.OptionError, "rank"),
        ((X, V, -3), errors.OptionError, "rank"),
        ((X, V, 3, None, "best"), errors.OptionError, "landmarks"),
        ((X[None], V, 3), errors.ShapeError, "x"),
        ((X[0], V, 3), errors.ShapeError, "x"),
        ((X * torch.nan, V, 3), errors.SampleError, "x"),
        ((X.long(), V, 3), errors.SampleError, "x"),
        ((X[:0], V, 3), errors.SampleError, "x"),
        ((X, -1.0, 3), errors.VarianceError, "v"),
        ((X, km.GaussianKernel(0.1, 0.2), 3), errors.VarianceError, "variance"),
    ],
)
def test_errors_of_landmarks(arguments, error, text):
    with pytest.raises(error, match=text):
        km.nystrom_features(*arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((2, V, 5), errors.OptionError, "rank=5"),
        ((2, V, 0), errors.OptionError, "rank=0"),
        ((2, "median", 4), errors.VarianceError, "median"),
        ((2, 0.0, 4), errors.VarianceError, "v"),
        ((2, km.GaussianKernel(0.1, 0.2), 4), errors.VarianceError, "variance"),
    ],
)
def test_errors_of_frequencies(arguments, error, text):
    with pytest.raises(error, match=text):
        km.fourier_features(*arguments)


@pytest.mark.parametrize("v", [0.1, [0.1, 1.0]])
def test_equal_variances_given_twice_are_one_kernel(v):
    x = normal(20, 2, seed=1)
    kernel = km.GaussianKernel(v, v)
    assert repr(kernel) == repr(km.GaussianKernel(v))
    for features, once in (
        (km.nystrom_features(x, kernel, rank=5), km.nystrom_features(x, v, rank=5)),
        (km.fourier_features(2, kernel, 4), km.fourier_features(2, v, 4)),
    ):
        assert_close(features(x), once(x), rtol=0, atol=0)
    with pytest.raises(km.errors.VarianceError):
        km.nystrom_features(x, km.GaussianKernel(0.1, 0.2), rank=5)
