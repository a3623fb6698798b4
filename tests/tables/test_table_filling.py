"""Means of numbers, and gaps, which are filled with medians."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import integrate, stats

import kermix as km
from internals import ColumnDistribution
from kermix import Schema


def skewed(rows=800, seed=0):
    """Log-normal sums by sex, half of them 0; some ages are not known."""
    rng = np.random.default_rng(seed)
    sex = rng.choice(["f", "m"], rows)
    gain = np.exp(rng.normal(3 + (sex == "m"), 1.0)).round(2)
    gain[rng.random(rows) < 0.5] = 0.0
    age = np.where(rng.random(rows) < 0.1, np.nan, rng.integers(18, 90, rows))
    return pd.DataFrame({"sex": sex, "gain": gain, "age": age})


@pytest.fixture(scope="module")
def model():
    return km.TableModel(width=16, blocks=1, steps=120, random_state=0).fit(skewed())


# A wide Gaussian reaches the end of the column's range, where values have a bend.
@pytest.mark.parametrize(("scale", "within"), [(1e-3, 1e-6), (0.3, 1e-3), (1.5, 1e-2)])
def test_means_of_numbers_against_an_integral(scale, within):
    schema = Schema.infer(skewed(), kinds={"gain": "number"})
    column = schema.numbers[0]
    assert column.atoms.tolist() == [0.0]
    weights, means = np.array([0.3, 0.7]), np.array([-0.4, 1.1])
    one = ColumnDistribution(
        column, np.array([[0.6, 0.4]]), weights[None], means[None], np.full((1, 2), scale)
    )

    parts = []
    for mean in means:
        z = mean + scale * np.linspace(-9, 9, 100_001)
        values = column.map.inverse(z).clip(column.low, column.high)
        parts.append(integrate.simpson(values * stats.norm(mean, scale).pdf(z), x=z))
    expected = 0.6 * float(weights @ parts)
    assert one.mean()[0] == pytest.approx(expected, rel=within)


def test_gaps_are_filled_with_medians_given_the_cells_that_are_filled(model):
    table = skewed()
    gaps = table.assign(gain=np.nan)
    filled = model.impute(gaps)["gain"].to_numpy()
    asked = gaps[["sex", "age"]].copy()
    filled_age = gaps["age"].notna().to_numpy()
    found = model.conditional("gain", asked[filled_age]).quantile(0.5)
    np.testing.assert_allclose(filled[filled_age], found, atol=0.02)


def test_a_gap_does_not_depend_on_what_another_is_filled_with(model):
    table = skewed(60, seed=1)
    both = model.impute(table.assign(age=np.nan, gain=np.nan))
    alone = model.conditional("age", table[["sex"]])
    np.testing.assert_allclose(both["age"], alone.quantile(0.5), atol=0.51)
    assert both.equals(model.impute(table.assign(age=np.nan, gain=np.nan)))


def test_the_mean_of_a_category_is_refused(model):
    with pytest.raises(km.errors.OptionError, match="no mean"):
        model.conditional("sex").mean()


def test_equal_columns_are_filled_with_one_median():
    rng = np.random.default_rng(0)
    bill = np.exp(rng.normal(3, 1, 600)).round(2)
    paid = np.where(rng.random(600) < 0.9, bill, np.exp(rng.normal(3, 1, 600)).round(2))
    paid[rng.random(600) < 0.05] = 0.0
    table = pd.DataFrame({"bill": bill, "paid": paid})
    model = km.TableModel(width=16, blocks=1, steps=80, random_state=0).fit(table)
    assert model.network_.layout.links
    filled = model.impute(table.assign(bill=np.nan, paid=np.nan))
    assert (filled["bill"] == filled["paid"]).all()
    assert filled["bill"].between(*np.quantile(bill, [0.35, 0.65])).all()
    given = model.impute(table.assign(paid=np.nan))
    assert (given["paid"] == table["bill"]).mean() > 0.8


def test_filling_takes_the_rows_in_blocks(model, monkeypatch):
    from internals import sampling_module as filling

    table = skewed(50, seed=2).assign(gain=np.nan)
    whole, done = model.impute(table), []
    monkeypatch.setattr(filling, "network_rows_at_once", lambda network: 7)
    with torch.no_grad():
        pd.testing.assert_frame_equal(model.impute(table, on_rows=done.append), whole)
    assert done == [7] * 7 + [1]


@pytest.mark.parametrize("far", [1e3, 1e15, 1e30, 1e300])
@pytest.mark.parametrize("rows", [1, 40])
def test_quantiles_beside_one_number_far_away(far, rows):
    """Seen before: half of 2^-80 of the range for every row, once a number was 1e30."""
    rng = np.random.default_rng(0)
    values = rng.exponential(100, 500)
    values[7] = far
    schema = Schema.infer({"x": values})
    column = schema.numbers[0]
    means = np.linspace(-1, 1, rows)[:, None]
    every = ColumnDistribution(
        column, np.eye(1, len(column.code_names)).repeat(rows, 0), np.ones((rows, 1)), means,
        np.full((rows, 1), 0.3),
    )  # fmt: skip
    for share in (0.01, 0.5, 0.99):
        wanted = column.map.inverse(means[:, 0] + 0.3 * stats.norm.ppf(share))
        np.testing.assert_allclose(every.quantile(share), wanted + column.origin, rtol=1e-6)
