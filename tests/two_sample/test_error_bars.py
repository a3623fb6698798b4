"""Error bars of compare(): against repeated samples, quadrature, and each row left out by hand."""

import math

import numpy as np
import pytest
import torch
from benchmarks.errorbars import Setting, calibration
from scipy.spatial.distance import cdist
from scipy.special import logsumexp

from cases import normal
from internals import error_bars_module as means_module
from internals import groups, halves, jackknife_error, mean_measures, standard_error


def measures_of(x, y, v):
    labels = torch.zeros(0, len(x) + len(y), dtype=torch.bool)
    return {m.name: m for m in mean_measures(x, y, [v], labels)}


def measures_by_hand(x, y, v):
    """Of whole matrices; one axis of samples."""
    means = []
    for a, b in ((x, x), (x, y), (y, y)):
        distances = np.abs(a[:, :, None] - b[:, None, :])
        means.append([distances.mean((1, 2)), np.exp(-(distances**2) / (4 * v)).mean((1, 2))])
    (xx, xy, yy), kernel = np.array(means).transpose(1, 0, 2)
    divergence = np.log(kernel[0] * kernel[2]) - 2 * np.log(kernel[1])
    return {
        "energy": 2 * xy - xx - yy,
        "mmd": np.sqrt((kernel[0] + kernel[2] - 2 * kernel[1]).clip(0)),
        "cauchy_schwarz": divergence,
        "scalar": np.exp(-divergence),
    }


@pytest.mark.parametrize(
    ("n", "m", "shift", "v"),
    [(40, 40, 0.0, 0.003), (40, 40, 0.0, 0.3), (40, 40, 0.0, 30.0), (60, 25, 0.0, 0.3),
     (40, 40, 0.7, 0.3), (25, 60, 1.5, 30.0), (25, 60, 1.5, 0.003)],
)  # fmt: skip
def test_error_bars_of_means_are_the_scatter_of_new_samples(n, m, shift, v):
    """Equal and far sources, an almost diagonal and an almost constant kernel."""
    random = np.random.default_rng(0)
    new = random.normal(size=(1000, n)), random.normal(size=(1000, m)) + shift
    scatter = {name: values.std() for name, values in measures_by_hand(*new, v).items()}
    errors = {name: [] for name in scatter}
    for seed in range(80):
        x, y = normal(n, 1, seed=seed), normal(m, 1, seed=1000 + seed) + shift
        for name, measure in measures_of(x, y, v).items():
            errors[name].append(measure.error)
    for name, told in errors.items():
        assert 0.8 < scatter[name] / np.mean(told) < 1.25, name


def test_interactions_are_those_of_the_sources():
    """Without bias at any number of rows, against Gauss-Hermite quadrature."""
    n, m, v = 8, 5, 0.2
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    kernel = np.exp(-((nodes[:, None] - nodes) ** 2) / (4 * v))
    rows = kernel @ weights
    left = kernel - rows - rows[:, None] + weights @ rows
    moment = weights @ left**2 @ weights
    exact = moment * (2 * (n - 1) / n**3 + 4 / (n * m) + 2 * (m - 1) / m**3)
    found = []
    for seed in range(700):
        points = normal(n + m, 1, seed=seed)
        functions = [lambda squares: (-squares / (4 * v)).exp()]
        nothing = points.new_zeros(0, n + m)
        pairs, _ = means_module._sums(points, n, functions, nothing, nothing, None)
        found.append(pairs[0].interactions())
    assert abs(np.mean(found) - exact) < 4 * np.std(found) / math.sqrt(len(found))
    assert np.std(found) / math.sqrt(len(found)) < 0.05 * exact


@pytest.mark.parametrize("shift", [0.5, 300.0])
def test_divergence_without_each_row(shift):
    """The part of rows in the error, also of sets so far apart that the kernel underflows."""
    d, v = 2, 0.3
    x, y = normal(30, d, seed=0), normal(20, d, seed=1) + shift

    def divergence(i, j):
        found = []
        for a, b in ((x[i], x[i]), (x[i], y[j]), (y[j], y[j])):
            logs = -cdist(a, b, "sqeuclidean") / (4 * d * v)
            found.append(logs)
        # Pairs of a row with itself are as many of all as in the whole samples.
        own = []
        for logs, size in ((found[0], len(x)), (found[2], len(y))):
            others = np.exp(logs[~np.eye(len(logs), dtype=bool)]).mean()
            own.append(math.log(1 / size + (1 - 1 / size) * others))
        return own[0] + own[1] - 2 * (logsumexp(found[1]) - math.log(found[1].size))

    every = np.arange(30), np.arange(20)
    given = divergence(*every)
    variance = 0.0
    for side, size in ((0, 30), (1, 20)):
        left = []
        for k in range(size):
            rows = list(every)
            rows[side] = np.delete(every[side], k)
            left.append(divergence(*rows))
        variance += np.var(left) * (size - 1)
    found = measures_of(x, y, v)["cauchy_schwarz"]
    assert found.value == pytest.approx(given, rel=1e-9)
    # What interactions take away: nothing of a huge divergence, up to a half of a small one.
    share = found.error**2 / variance
    assert share == pytest.approx(1, abs=1e-3) if shift > 1 else 0.5 < share < 1


@pytest.mark.parametrize("shift", [0.0, 300.0])
def test_error_bars_do_not_depend_on_tiles(monkeypatch, shift):
    x, y = normal(20, 3, seed=0), normal(15, 3, seed=1) + shift
    whole = measures_of(x, y, 0.5)
    for tile in (1, 7, 15, 20):
        monkeypatch.setattr(means_module, "TILE", tile)
        for name, measure in measures_of(x, y, 0.5).items():
            assert measure.value == pytest.approx(whole[name].value, rel=1e-12)
            if name != "scalar" or shift == 0:  # underflows, without an error bar
                assert measure.error == pytest.approx(whole[name].error, rel=1e-9)


def test_means_of_a_single_row_have_no_error_bar():
    for sizes in ((1, 5), (5, 1), (1, 1)):
        found = measures_of(normal(sizes[0], 2), normal(sizes[1], 2, seed=1), 0.5)
        assert all(m.error is None and math.isfinite(m.value) for m in found.values())
    for sizes in ((2, 2), (2, 3), (3, 4)):
        found = measures_of(normal(sizes[0], 2), normal(sizes[1], 2, seed=1), 0.5)
        assert all(m.error > 0 for name, m in found.items() if m.error is not None)
    same = torch.zeros(6, 2, dtype=torch.float64)
    assert all(m.error == 0 for m in measures_of(same, same, 0.5).values())


def test_a_scalar_cost_too_skewed_for_an_error_bar_has_none():
    """Far apart on the scale of the kernel, it is as lognormal numbers are."""
    found = measures_of(normal(60, 2, seed=0), normal(60, 2, seed=1) + 6, 0.05)
    assert found["cauchy_schwarz"].error > 1
    assert found["scalar"].error is None


@pytest.mark.parametrize("dimensions", [1, 4])
@pytest.mark.parametrize("distance", [0.0, 1.0, 2.0, 6.0])
def test_standard_error_of_squares_of_normal_vectors(dimensions, distance):
    """At most 12 % below and 9 % above, as stated."""
    random = np.random.default_rng(0)
    drawn = random.normal(size=(20_000, dimensions))
    drawn[:, 0] += distance
    squares = (drawn**2).sum(1)
    errors = [standard_error(4 * square, 2.0 * dimensions) for square in squares]
    assert 0.86 < np.mean(errors) / squares.std() < 1.1


def test_jackknife_error_of_means_and_of_squares():
    """Of a mean, and of its square around zero, where a bootstrap is far too large."""
    errors, squares, values = [], [], []
    for seed in range(200):
        x = normal(60, 40, seed=seed)
        generator = torch.Generator().manual_seed(seed)
        left = groups(60, 60, 30, generator).x
        split = x[halves(60, 60, 10, generator).x].mean(2)  # (S, 2, d)
        means = torch.stack([x[rows].mean(0) for rows in left])
        errors.append(jackknife_error(means[:, 0], split[..., 0]))
        squares.append(jackknife_error(means.square().sum(-1), split.square().sum(-1)))
        values.append(float(x.mean(0).square().sum()))
    assert np.mean(errors) == pytest.approx(1 / math.sqrt(60), rel=0.05)
    assert np.mean(squares) == pytest.approx(np.std(values), rel=0.12)


def test_jackknife_error_of_constants_is_nothing():
    assert jackknife_error(torch.ones(5), torch.ones(3, 2)) == 0


@pytest.mark.parametrize("setting", [Setting(40, 40, 2, 0.5), Setting(30, 60, 5, 0.0)])
def test_error_bars_have_the_size_of_the_scatter_of_repeated_samples(setting):
    """A standard deviation of thirty numbers is itself uncertain by an eighth."""
    for row in calibration(setting, 30, draws=10):
        if row["standardized"] is None:
            assert row["measure"] == "vector"  # skewed near its bound
            continue
        # What a vector cost misses can fall faster than one over the number of points.
        larger = 2 if row["measure"] == "vector" else 1
        assert 0.5 / larger < row["standardized"] < 1.8, row
        assert 0.6 < row["error"] / row["scatter"] < 1.7 * larger, row


def test_a_value_too_skewed_for_an_error_bar_has_none():
    """Of 80 normal numbers some ten vector costs are between .9999 and 1, one is .998."""
    for row in calibration(Setting(80, 80, 1, 0.0), 12):
        if row["measure"] == "vector" and row["variance"] == "coarse":
            assert row["without_error"] >= 10
            assert row["standardized"] is None
        elif row["measure"] != "vector":
            assert row["without_error"] == 0
            assert row["standardized"] < 1.8


def test_each_row_is_left_out_once():
    for n, m in ((2, 3), (7, 100), (41, 40)):
        left = groups(n, m, 20, torch.Generator().manual_seed(0))
        assert len(left) == min(20, n, m)
        for parts, size in ((left.x, n), (left.y, m)):
            out = [set(range(size)) - set(rows.tolist()) for rows in parts]
            assert sorted(k for part in out for k in part) == list(range(size))
            assert {len(part) for part in out} <= {size // len(out), size // len(out) + 1}
    assert len(groups(1, 5, 20, torch.Generator())) == 0


def test_halves_do_not_overlap():
    for n, m in ((7, 1), (2, 3), (100, 30), (41, 400)):
        split = halves(n, m, 5, torch.Generator().manual_seed(0))
        for members, size in ((split.x, n), (split.y, m)):
            assert members.shape == (5, 2, max(1, size // 2))
            assert int(members.max()) < size
            if size > 1:
                assert all(not set(a.tolist()) & set(b.tolist()) for a, b in members)
