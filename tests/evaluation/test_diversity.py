"""Vendi score and RKE: against formulas in NumPy, and bounds that hold in every random case."""

import functools
import math

import numpy as np
import pytest
import torch

import kermix as km
from internals import Spectrum, number_interval
from internals import diversity_module as diversity
from internals import spectra_EXACT_UP_TO as EXACT_UP_TO
from kermix.errors import DegenerateDataWarning, KernelError, OptionError, SampleError, ShapeError


def vendi_of(matrix, order=1.0):
    """From the paper: the exponential of the entropy of the eigenvalues of K / n."""
    values = np.linalg.eigvalsh(matrix / np.trace(matrix))
    values = values[values > 0]
    if order == 1:
        return math.exp(-(values * np.log(values)).sum())
    if order == math.inf:
        return 1 / values.max()
    return (values**order).sum() ** (1 / (1 - order))


def gaussian(a, b, v):
    squares = ((a[:, None, :] - b[None, :, :]) ** 2).sum(-1)
    return np.exp(-squares / (4 * v * a.shape[1]))


def random_case(seed):
    """Clusters or a cloud of a random size, dimension and scale, and a variance."""
    rng = np.random.default_rng(seed)
    n, d, k = rng.integers(2, 90), rng.integers(1, 9), rng.integers(1, 12)
    scale = 10.0 ** rng.uniform(-4, 4)
    centres = rng.normal(size=(k, d)) * rng.uniform(0, 4)
    x = (centres[rng.integers(k, size=n)] + rng.normal(size=(n, d)) * rng.uniform(0, 1)) * scale
    if rng.random() < 0.2:
        x[n // 2 :] = x[: n - n // 2]  # repeated rows
    if rng.random() < 0.1:
        x = x + 1e3 * scale
    return x, float(10.0 ** rng.uniform(-2.5, 1.5)) * scale**2, int(rng.integers(1, n + 1))


@pytest.mark.parametrize("order", [1.0, 2.0, 0.5, 3.5, math.inf])
def test_scores_are_those_of_the_eigenvalues(order):
    x = np.random.default_rng(0).normal(size=(70, 3))
    found = km.metrics.vendi(torch.from_numpy(x), 0.3, order=order)
    assert float(found) == pytest.approx(vendi_of(gaussian(x, x, 0.3), order), rel=1e-9)


def test_the_kernel_is_the_one_that_is_written_out():
    # Two points at a distance r: eigenvalues (1 +- k) / 2 with k = exp(-r^2 / (4 v d)).
    r, v, d = 1.3, 0.4, 3
    x = torch.zeros(2, d, dtype=torch.float64)
    x[1, 0] = r
    k = math.exp(-(r**2) / (4 * v * d))
    p = np.array([1 + k, 1 - k]) / 2
    assert float(km.metrics.vendi(x, v)) == pytest.approx(
        math.exp(-(p * np.log(p)).sum()), rel=1e-12
    )
    assert float(km.metrics.rke(x, v)) == pytest.approx(2 / (1 + k**2), rel=1e-12)


def test_weights_are_repeated_rows():
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    times = torch.arange(1, 21) % 4 + 1
    repeated = x.repeat_interleave(times, 0)
    assert float(km.metrics.vendi(x, 0.5, weights=times.double())) == pytest.approx(
        float(km.metrics.vendi(repeated, 0.5)), rel=1e-9
    )
    sketched = km.metrics.vendi(x, 0.5, weights=times.double(), rank=20)
    assert float(sketched) == pytest.approx(float(km.metrics.vendi(repeated, 0.5)), rel=1e-6)


def test_bounds_hold_in_random_cases():
    wide = 0
    for seed in range(100):  # 500 others in benchmarks/evaluate.py
        x, v, rank = random_case(seed)
        matrix = gaussian(x, x, v)
        points = torch.from_numpy(x)
        sketch = km.Sketch(km.nystrom_features(points, v, rank, seed=seed)).update(points)
        for score, order in ((km.metrics.vendi, 1.0), (km.metrics.rke, 2.0)):
            value, info = score(sketch, return_info=True)
            gap = abs(float(value) - vendi_of(matrix, order))
            assert gap <= float(info.error_bound) * (1 + 1e-9) + 1e-9, (seed, order)
            wide += float(info.error_bound) > 0.5 * float(value)
    assert wide < 120  # not all of them say nothing


def test_bounds_hold_for_other_orders_and_weights():
    for seed in range(20):
        x, v, rank = random_case(seed)
        weights = np.random.default_rng(seed).uniform(0.1, 3, len(x))
        roots = np.sqrt(weights / weights.sum())
        matrix = gaussian(x, x, v) * roots[:, None] * roots
        for order in (0.5, 1.0, 4.0, math.inf):
            value, info = km.metrics.vendi(
                torch.from_numpy(x),
                v,
                weights=torch.from_numpy(weights),
                order=order,
                rank=rank,
                return_info=True,
            )
            gap = abs(float(value) - vendi_of(matrix, order))
            assert gap <= float(info.error_bound) * (1 + 1e-9) + 1e-9, (seed, order)


def test_the_ends_of_the_interval_can_occur():
    # What a sketch knows of [0.5, 0.3] with 0.2 left out, of 6 samples.
    found = number_interval(Spectrum(torch.tensor([0.5, 0.3], dtype=torch.float64), 0.2, 6.0, 0.0))
    assert float(found.lowest) == pytest.approx(vendi_of(np.diag([0.7, 0.3])), rel=1e-12)
    assert float(found.highest) == pytest.approx(
        vendi_of(np.diag([0.5, 0.3, *4 * [0.05]])), rel=1e-12
    )
    # More than the others hold: they are raised as well, and with no room left all are equal.
    tall = number_interval(Spectrum(torch.tensor([0.2, 0.1], dtype=torch.float64), 0.7, 3.0, 0.0))
    assert float(tall.highest) == pytest.approx(3.0, rel=1e-12)
    full = number_interval(Spectrum(torch.tensor([0.6, 0.1], dtype=torch.float64), 0.3, 2.0, 0.0))
    assert float(full.highest) == pytest.approx(vendi_of(np.diag([0.6, 0.4])), rel=1e-12)


def test_sketches_of_parts_give_the_score_of_the_whole():
    x = torch.randn(3000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    features = km.nystrom_features(x, 0.5, rank=60)
    parts = [km.Sketch(features).update(part) for part in x.split(700)]
    merged = sum(parts[1:], parts[0])
    whole = km.Sketch(features).update(x)
    assert float(km.metrics.vendi(merged)) == pytest.approx(
        float(km.metrics.vendi(whole)), rel=1e-9
    )


def test_many_samples_are_within_the_tolerance_that_was_asked_for():
    x = torch.randn(EXACT_UP_TO + 1, 2, generator=torch.Generator().manual_seed(1)).double()
    # The matrix of all is decomposed once, by NumPy.
    exact = vendi_of(gaussian(x.numpy(), x.numpy(), 0.4))
    value, info = km.metrics.vendi(x, 0.4, tolerance=1e-3, return_info=True)
    assert info.method == "sketch"
    assert float(info.error_bound) <= 1e-3 * float(value)
    assert abs(float(value) - exact) <= float(info.error_bound)
    dense, _ = km.metrics.vendi(x[:EXACT_UP_TO], 0.4, return_info=True)
    assert float(dense) == pytest.approx(exact, rel=0.01)


def test_a_tolerance_that_is_not_reached_is_an_error(monkeypatch):
    few = functools.partial(diversity.Aim, most_for_wanted=50)
    monkeypatch.setattr(diversity, "Aim", few)
    x = torch.randn(EXACT_UP_TO + 200, 8, generator=torch.Generator().manual_seed(1))
    with pytest.raises(OptionError, match=r"certified error is .* with 50 features"):
        km.metrics.vendi(x, 0.1, tolerance=0.01)


@pytest.mark.parametrize(
    ("kernel", "gram"),
    [
        (km.CosineKernel(), lambda x: x @ x.T),
        (km.PolynomialKernel(3), lambda x: (x @ x.T / x.shape[1] + 1) ** 3),
        (km.LaplaceKernel(1.0), lambda x: np.exp(
            -np.sqrt(((x[:, None] - x[None]) ** 2).sum(-1) / x.shape[1]))),
    ],
)  # fmt: skip
def test_other_kernels_are_normalized_and_can_be_sketched(kernel, gram):
    x = np.random.default_rng(0).normal(size=(60, 4)) * [1, 2, 3, 0.5]
    matrix = gram(x)
    roots = np.sqrt(np.diag(matrix))
    exact = vendi_of(matrix / roots[:, None] / roots)
    points = torch.from_numpy(x)
    assert float(km.metrics.vendi(points, kernel=kernel)) == pytest.approx(exact, rel=1e-9)
    for rank in (3, 4, 30):
        value, info = km.metrics.vendi(points, kernel=kernel, rank=rank, return_info=True)
        assert abs(float(value) - exact) <= float(info.error_bound) + 1e-9
    sketch = km.Sketch(km.kernel_features(points, kernel, rank=60)).update(points)
    assert float(km.metrics.vendi(sketch)) == pytest.approx(exact, rel=1e-5)


def test_sketches_with_the_cosine_kernel_are_exact_and_can_be_kept(tmp_path):
    x = torch.randn(500, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for kernel in (km.CosineKernel(), km.PolynomialKernel(2, constant=0.5)):
        features = km.kernel_features(x, kernel, rank=30)
        sketch = km.Sketch(features).update(x)
        read = km.Sketch.load(sketch.save(tmp_path / f"{type(kernel).__name__}.sketch"))
        assert float(km.metrics.vendi(read)) == float(km.metrics.vendi(sketch))
        merged = read + sketch
        assert merged.count == 1000
        assert float(km.svd_cost(read, sketch, normalized=True)) == pytest.approx(1, abs=1e-6)
        assert float(km.metrics.vendi(read)) == pytest.approx(
            float(km.metrics.vendi(x, kernel=kernel)), rel=1e-6
        )


def test_fourier_features_have_no_bound():
    x = torch.randn(400, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sketch = km.Sketch(km.fourier_features(2, 0.5, rank=2000)).update(x)
    value, info = km.metrics.vendi(sketch, return_info=True)
    assert info.error_bound is None
    assert float(value) == pytest.approx(float(km.metrics.vendi(x, 0.5)), rel=0.05)


def test_gradients_are_right():
    x = torch.randn(6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x.requires_grad_(True)
    for score in (km.metrics.vendi, km.metrics.rke):
        assert torch.autograd.gradcheck(lambda z, score=score: score(z, 0.7), x)


def test_stable_variance_does_not_depend_on_order_and_scales():
    generator = torch.Generator().manual_seed(2)
    many = torch.randn(900, 2, generator=generator, dtype=torch.float64).round(decimals=1)
    backwards = 1e-10 * many.flip(0)
    assert km.metrics.stable_variance(backwards) == pytest.approx(
        1e-20 * km.metrics.stable_variance(many)
    )
    x = torch.randn(400, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    v = km.metrics.stable_variance(x)
    shuffled = x[torch.randperm(400, generator=torch.Generator().manual_seed(1))]
    assert km.metrics.stable_variance(shuffled) == pytest.approx(v, rel=1e-9)
    for unit in (10.0, 1e10, 1e-10, 1 / 3):
        assert km.metrics.stable_variance(unit * x) == pytest.approx(unit**2 * v, rel=1e-9)
    assert float(km.metrics.vendi(x, v)) <= 1.08 * float(km.metrics.vendi(x[:200], v))
    assert float(km.metrics.vendi(x, v / 20)) > 1.1 * float(km.metrics.vendi(x[:200], v / 20))
    assert float(km.metrics.vendi(x, "stable")) == pytest.approx(
        float(km.metrics.vendi(x, v)), rel=1e-9
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_dtype_is_that_of_the_samples(dtype):
    x = torch.randn(30, 2, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = km.metrics.vendi(x, 0.5)
    assert found.dtype == dtype
    assert float(found) == pytest.approx(float(km.metrics.vendi(x.double(), 0.5)), rel=2e-3)
    for score in (km.metrics.vendi, km.metrics.rke, km.metrics.ken):
        samples = (x, x[:9]) if score is km.metrics.ken else (x,)
        value, info = score(*samples, 0.5, return_info=True)
        exact = float(score(*(s.double() for s in samples), 0.5))
        assert abs(float(value) - exact) <= float(info.error_bound)


def test_equal_samples_have_the_variance_that_the_warning_tells():
    with pytest.warns(DegenerateDataWarning, match="using the variance 1"):
        assert km.metrics.stable_variance(torch.full((50, 2), 7.0)) == 1.0


def test_bad_input_is_refused_by_name():
    x = torch.randn(10, 2)
    sketch = km.Sketch(km.nystrom_features(x, 0.5, 5)).update(x)
    for call, error, text in (
        (lambda: km.metrics.vendi(x), OptionError, "variance v"),
        (lambda: km.metrics.vendi(x, "foo"), OptionError, "median, silverman, stable"),
        (lambda: km.metrics.vendi(x, 0.5, kernel=km.CosineKernel()), OptionError, "both given"),
        (lambda: km.metrics.vendi(x[None], 0.5), ShapeError, "one set"),
        (lambda: km.metrics.vendi(x * math.nan, 0.5), SampleError, "NaN"),
        (lambda: km.metrics.vendi(sketch, 0.5), OptionError, "for a sketch"),
        (lambda: km.metrics.vendi(x, 0.5, order=0), OptionError, "order"),
        (lambda: km.metrics.vendi(x, 0.5, tolerance=2), OptionError, "tolerance"),
        (lambda: km.metrics.vendi(x, 0.5, rank=3, tolerance=0.1), OptionError, "both given"),
        (lambda: km.metrics.vendi(x, km.GaussianKernel(0.1, 0.2)), OptionError, "one variance"),
        (
            lambda: km.metrics.vendi(torch.zeros(3, 2), kernel=km.CosineKernel()),
            KernelError,
            "row 0",
        ),
    ):
        with pytest.raises(error, match=text):
            call()


def test_one_sample_and_equal_samples_have_the_score_one():
    assert float(km.metrics.vendi(torch.ones(1, 2), 0.5)) == pytest.approx(1)
    value, info = km.metrics.vendi(torch.ones(9, 2), 0.5, rank=3, return_info=True)
    assert float(value) == pytest.approx(1, rel=1e-6)
    assert float(info.error_bound) < 1e-6
