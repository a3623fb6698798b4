"""Entropic novelty: the published formula, the square-root bound, planted modes and exemplars."""

import math

import numpy as np
import pytest
import torch

import kermix as km
from internals import spectra_EXACT_UP_TO as EXACT_UP_TO
from kermix.errors import OptionError, ShapeError

CENTRES = 6.0 * torch.eye(10, dtype=torch.float64)


def kernel(a, b, v):
    return np.exp(-((a[:, None] - b[None]) ** 2).sum(-1) / (4 * v * a.shape[1]))


def published(x, y, v, eta):
    """The block matrix of the paper, which is not symmetric, and the entropy of its spectrum."""
    n, m = len(x), len(y)
    cross = math.sqrt(eta / (n * m)) * kernel(x, y, v)
    matrix = np.block([[kernel(x, x, v) / n, cross], [-cross.T, -eta * kernel(y, y, v) / m]])
    values = np.linalg.eigvals(matrix).real
    positive = values[values > 1e-14]
    total = positive.sum()
    return -(positive * np.log(positive / total)).sum()


def draw(shares, n, seed, spread=0.4):
    generator = torch.Generator().manual_seed(seed)
    mode = torch.multinomial(torch.tensor(shares), n, True, generator=generator)
    noise = torch.randn(n, 10, generator=generator, dtype=torch.float64)
    return CENTRES[mode] + spread * noise, mode


@pytest.mark.parametrize("eta", [0.5, 1.0, 3.0])
def test_small_samples_have_the_published_score(eta):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3)), rng.normal(size=(55, 3)) * 0.7 + 0.2
    found = km.metrics.ken(torch.from_numpy(x), torch.from_numpy(y), 0.2, eta=eta)
    assert float(found) == pytest.approx(published(x, y, 0.2, eta), abs=1e-8)


def test_sketches_are_within_the_square_root_bound_of_the_exact_score():
    finite = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        n, m, d = rng.integers(5, 60), rng.integers(5, 60), rng.integers(1, 4)
        x, y = rng.normal(size=(n, d)), rng.normal(size=(m, d)) + rng.uniform(0, 2)
        v, eta = float(10 ** rng.uniform(-1, 1)), float(rng.uniform(0.5, 2))
        value, info = km.metrics.ken(
            torch.from_numpy(x),
            torch.from_numpy(y),
            v,
            eta=eta,
            rank=int(rng.integers(2, n + m)),
            return_info=True,
        )
        assert abs(float(value) - published(x, y, v, eta)) <= float(info.error_bound) + 1e-9
        finite += math.isfinite(float(info.error_bound))
    assert finite > 10


def test_of_a_planted_mode_mass_and_rows_are_found():
    x, mode = draw([0.1] * 8 + [0.14, 0.06], 4000, 0)
    y, _ = draw([0.125] * 8 + [0, 0], 3000, 1)
    found = km.metrics.novel_modes(x, y, 0.4, exemplars=20, count=2)
    assert [set(mode[list(m.exemplars)].tolist()) for m in found] == [{8}, {9}]
    # Of a mode of spread s in d dimensions the first eigenfunction holds less than all.
    assert 0.7 * 0.14 < found[0].mass < 0.15
    assert found[0].share_elsewhere < 1e-3
    assert found[0].mass > found[1].mass > 0.7 * 0.06


def test_modes_of_equal_mass_are_told_apart():
    x, mode = draw([0.1] * 10, 4000, 0)
    y, _ = draw([0.25] * 4 + [0] * 6, 3000, 1)
    found = km.metrics.novel_modes(x, y, 0.4, exemplars=20, count=6)
    seen = [set(mode[list(m.exemplars)].tolist()) for m in found]
    assert all(len(s) == 1 for s in seen)
    assert set.union(*seen) == set(range(4, 10))


def test_nothing_is_new_in_the_same_sample():
    x, _ = draw([0.1] * 10, 500, 0)
    value, info = km.metrics.ken(x, x, 1.0, return_info=True)
    assert float(value) <= float(info.error_bound) < 1e-5
    assert km.metrics.novel_modes(x, x, 1.0) == ()


def test_sketches_and_samples_give_the_same():
    x, _ = draw([0.1] * 10, EXACT_UP_TO, 0)
    y, _ = draw([0.125] * 8 + [0, 0], 500, 1)
    features = km.nystrom_features(torch.cat([x, y]), 0.4, rank=200)
    sketches = [km.Sketch(features).update(s) for s in (x, y)]
    by_sketch = km.metrics.ken(*sketches)
    assert float(km.metrics.ken(x, sketches[1])) == pytest.approx(float(by_sketch), rel=1e-9)
    assert float(km.metrics.ken(x, y, 0.4, rank=200)) == pytest.approx(float(by_sketch), rel=0.05)
    exact = published(x[:700].numpy(), y.numpy(), 0.4, 1.0)
    assert float(km.metrics.ken(x[:700], y, 0.4)) == pytest.approx(exact, abs=1e-7)
    halves = km.Sketch(features).update(x[:900]) + km.Sketch(features).update(x[900:])
    assert float(km.metrics.ken(halves, sketches[1])) == pytest.approx(float(by_sketch), rel=1e-9)
    assert km.metrics.novel_modes(x, sketches[1], count=2)[0].mass > 0.05


def test_bad_input_is_refused_by_name():
    x = torch.randn(10, 2)
    with pytest.raises(OptionError, match="eta"):
        km.metrics.ken(x, x, 0.5, eta=-1)
    with pytest.raises(ShapeError, match="dimension"):
        km.metrics.ken(x, x[:, :1], 0.5)
    with pytest.raises(OptionError, match="variance v"):
        km.metrics.novel_modes(x, x)
