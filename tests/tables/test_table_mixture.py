"""A mixture of a table far from its data: all its answers are of one and the same law."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import norm

import kermix as km
from internals import QueryService, TableMixture
from kermix import Schema
from kermix.errors import OptionError

WEIGHTS = np.array([0.5, 0.3, 0.2])
MEANS = np.array([[0.0, 0.0], [3.0, 3.0], [1.0, -2.0]])
SPREADS = np.array([[[1, 0.9], [0.9, 1]], [[1, -0.9], [-0.9, 1]], [[0.25, 0], [0, 4.0]]])


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(0)
    parts = [rng.multivariate_normal(m, s, 200) for m, s in zip(MEANS, SPREADS, strict=True)]
    values = np.concatenate(parts)
    schema = Schema.infer({"a": values[:, 0], "b": values[:, 1]})
    tensors = (torch.from_numpy(part) for part in (WEIGHTS, MEANS, SPREADS))
    return TableMixture(schema, km.GaussianMixture(*tensors), "pandas", "closed-form mixture")


def b_given(a):
    """Weights, means and deviations of b given a, by the textbook."""
    logs = np.log(WEIGHTS) + norm.logpdf(a, MEANS[:, 0], np.sqrt(SPREADS[:, 0, 0]))
    weights = np.exp(logs - logs.max())
    slopes = SPREADS[:, 0, 1] / SPREADS[:, 0, 0]
    means = MEANS[:, 1] + slopes * (a - MEANS[:, 0])
    return weights / weights.sum(), means, np.sqrt(SPREADS[:, 1, 1] - slopes * SPREADS[:, 0, 1])


def quantile(law, share):
    weights, means, scales = law
    ends = (means - 40 * scales).min(), (means + 40 * scales).max()
    return brentq(lambda x: weights @ norm.cdf(x, means, scales) - share, *ends, xtol=1e-12)


@pytest.mark.parametrize("a", [0.5, -8.9, 9.1, 20.0, 100.0, -1e4, 1e6])
def test_conditionals_are_right_however_far_the_given_value_is(model, a):
    law = b_given(a)
    for found in (model.conditionals({"a": a})["b"], model.conditional("b", {"a": [0.0, a]})):
        for share in (0.05, 0.5, 0.95):
            assert found.quantile(share)[-1] == pytest.approx(quantile(law, share), rel=1e-9)
        assert found.mean()[-1] == pytest.approx(law[0] @ law[1], rel=1e-9)
        at = law[1] - 0.7
        upto = [law[0] @ norm.cdf(x, law[1], law[2]) for x in at]
        own = [found.cdf(x)[-1] for x in at]
        np.testing.assert_allclose(own, upto, rtol=1e-6, atol=1e-12)
    drawn = model.sample(2000, given={"a": a})["b"].to_numpy()
    assert (drawn <= quantile(law, 0.5)).mean() == pytest.approx(0.5, abs=0.05)
    likely = model.most_likely({"a": a}, "dict")["b"][0]
    assert np.abs(likely - law[1]).min() < 1e-6 * max(1, abs(likely))
    asked = QueryService(model).ask({"a": str(a)})["b"]
    assert float(asked["middle"]) == pytest.approx(quantile(law, 0.5), rel=1e-9)


def test_a_far_row_does_not_take_digits_from_a_near_one(model):
    found = model.conditional("b", {"a": [0.3, 1e60]}).quantile(0.5)
    assert found[0] == pytest.approx(quantile(b_given(0.3), 0.5), rel=1e-9)


@pytest.mark.parametrize("value", [1e200, -1e308])
def test_a_value_without_an_answer_is_refused_by_column_and_value(model, value):
    for ask in (model.conditionals, model.most_likely, lambda g: model.sample(3, given=g)):
        with pytest.raises(OptionError, match=rf"given: a={value:g}".replace("+", r"\+")):
            ask({"a": value})
    with pytest.raises(OptionError, match=r"given, row 1: a="):
        model.conditional("b", {"a": [0.0, value]})


@pytest.mark.parametrize("value", [3.0, 0.1, 20.0, 1 / 3, 123456.7])
def test_given_numbers_are_written_as_they_were(model, value):
    assert set(model.sample(50, given={"a": value})["a"]) == {value}
    assert model.most_likely({"a": value}, "dict")["a"] == [value]
    shown = QueryService(model).shown_draws({"b": str(value)}, 3, 0)
    assert [float(row[1]) for row in shown["rows"]] == [value] * 3


def test_samples_are_the_numbers_that_were_drawn(model):
    generator = torch.Generator().manual_seed(4)
    own = model.mixture_.sample((100,), generator=generator).numpy()
    table = model.sample(100, random_state=4)
    assert isinstance(table, pd.DataFrame)
    np.testing.assert_array_equal(table.to_numpy(), own)
