"""The map to normal scores: increasing, invertible, smooth, with densities that integrate to 1."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from kermix.data.schema.monotone import MonotoneMap

SOURCES = {
    "normal": stats.norm(3, 2),
    "far": stats.norm(1e9, 1),
    "skewed": stats.lognorm(2),
    "heavy": stats.t(2),
    "bounded": stats.uniform(),
    "exponential": stats.expon(),
}


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("rows", [1000, 20_000])
def test_unseen_values_have_nearly_their_true_density(name, rows):
    source = SOURCES[name]
    learned = MonotoneMap.of(source.rvs(rows, random_state=1))
    unseen = source.rvs(20_000, random_state=2)
    scores = learned(unseen)
    found = stats.norm.logpdf(scores) + learned.log_derivative(scores)
    lost = np.mean(source.logpdf(unseen) - found)
    assert lost < (0.04 if rows == 1000 else 0.01)


@pytest.mark.parametrize("name", ["normal", "skewed", "bounded", "heavy"])
def test_the_density_integrates_to_one(name):
    learned = MonotoneMap.of(SOURCES[name].rvs(500, random_state=0))

    def density(x):
        score = learned(np.array([x]))
        return float(np.exp(stats.norm.logpdf(score) + learned.log_derivative(score))[0])

    # Split where the map has its knots: there the derivative has a kink.
    inside = learned.inverse(learned.scores)
    borders = [learned.inverse(np.array([s]))[0] for s in (-9.0, 9.0)]
    pieces = np.unique([borders[0], *inside, borders[1]])
    total = sum(integrate.quad(density, a, b, limit=200)[0] for a, b in pairwise(pieces))
    assert total == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("power", [-1070, -1060, -1022, -1000, -960, 900, 960])
def test_tiny_and_huge_numbers_are_as_all_others(power):
    """Powers of 2 move the map, and change its scores where numbers are not exact alone."""
    x = np.random.default_rng(0).normal(size=200) * 2.0**20
    moved = np.ldexp(x, power)
    plain, learned = MonotoneMap.of(x), MonotoneMap.of(moved)
    spacing = max(1e-13, 4 * np.ldexp(1.0, -1074 - power) / 2.0**20) if power < -900 else 1e-13
    scores = learned(moved)
    assert scores == pytest.approx(plain(x), abs=50 * spacing)
    assert learned.log_derivative(scores) == pytest.approx(
        plain.log_derivative(plain(x)) - power * np.log(2), abs=max(1e-9, 500 * spacing)
    )
    back = learned.inverse(scores)
    assert (
        np.abs(back / 2 - moved / 2).max() <= 5e-13 * (moved.max() / 2 - moved.min() / 2) + 5e-324
    )


def test_denormal_numbers_come_back():
    x = np.random.default_rng(0).integers(1, 1000, 60) * 5e-324
    learned = MonotoneMap.of(x)
    assert np.abs(learned.inverse(learned(x)) - x).max() <= 5e-324


def test_the_derivative_is_that_of_the_map():
    learned = MonotoneMap.of(SOURCES["skewed"].rvs(2000, random_state=0))
    x = np.linspace(-3, 400, 1001)
    h = 1e-6
    slopes = (learned(x + h) - learned(x - h)) / (2 * h)
    assert np.log(slopes) == pytest.approx(learned.log_derivative(learned(x)), abs=1e-5)


@given(
    st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=60),
    st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=20),
)
def test_any_numbers_have_finite_scores_in_their_order(values, others):
    learned = MonotoneMap.of(np.array(values))
    x = np.sort(np.array(values + others))
    scores = learned(x)
    assert np.isfinite(scores).all()
    assert (np.diff(scores) >= -1e-9 * (1 + np.abs(scores[1:]))).all()
    assert np.isfinite(learned.inverse(scores)).all()
    assert np.isfinite(learned.log_derivative(scores)).all()


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60))
def test_values_come_back(values):
    x = np.array(values)
    learned = MonotoneMap.of(x)
    spread = np.abs(x - learned.middle) + learned.scale
    assert (
        np.abs(learned.inverse(learned(x)) - x) <= 1e-11 * (spread + np.abs(learned.middle))
    ).all()


def test_it_is_of_the_values_whatever_their_order_and_saved_with_every_digit():
    x = SOURCES["skewed"].rvs(999, random_state=0)
    learned = MonotoneMap.of(x)
    turned = MonotoneMap.of(x[::-1])
    saved = MonotoneMap.from_dict(json.loads(json.dumps(learned.to_dict())))
    counted = MonotoneMap.of(*np.unique(np.repeat(x, 3), return_counts=True))
    for other in (turned, saved):
        assert (other(x) == learned(x)).all()
    assert counted(x) == pytest.approx(learned(x), abs=0.2)


@pytest.mark.parametrize(
    "change", [{"scale": 0.0}, {"knots": [1.0, 0.0]}, {"slopes": [1.0]}, {"scores": [0.0, np.nan]}]
)
def test_a_damaged_map_is_refused(change):
    saved = MonotoneMap.of(np.array([1.0, 2.0, 3.0])).to_dict()
    with pytest.raises(ValueError, match="does not increase"):
        MonotoneMap.from_dict({**saved, **change})


def test_large_columns_follow_more_than_one_hump():
    rng = np.random.default_rng(0)
    humps = np.concatenate([rng.normal(size=15_000), rng.normal(6, 0.3, 15_000)])
    assert 16 < len(MonotoneMap.of(humps).knots) <= 80
    assert len(MonotoneMap.of(humps[::20]).knots) <= 16
