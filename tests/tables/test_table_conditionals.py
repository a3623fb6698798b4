"""Conditional distributions of the table model, its orders, and what surrounds a fit."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import kermix as km
from kermix import errors


def people(rows=600, seed=0):
    """Size depends on sex; a pet or none."""
    rng = np.random.default_rng(seed)
    sex = rng.choice(["f", "m"], rows)
    size = rng.normal(170 + 10 * (sex == "m"), 5).round(1)
    return pd.DataFrame({"sex": sex, "size": size, "pets": rng.poisson(0.7, rows)})


@pytest.fixture(scope="module")
def model():
    return km.TableModel(width=16, blocks=1, steps=20, random_state=0).fit(people())


@pytest.mark.parametrize(("unit", "written"), [("s", False), ("ns", False), ("us", True)])
def test_times_are_times_in_conditional_distributions(unit, written):
    rng = np.random.default_rng(5)
    day = rng.integers(0, 365, 600)
    times = pd.Series(pd.Timestamp("2024-01-01") + pd.to_timedelta(day, "D")).dt.as_unit(unit)
    cells = times.dt.strftime("%d.%m.%Y") if written else times
    table = pd.DataFrame({"v": (day / 10 + rng.normal(size=600) * 0.3).round(3), "t": cells})
    model = km.TableModel("t", width=32, blocks=1, steps=150, random_state=0).fit(table)

    def days(values):
        found = pd.to_datetime(pd.Series(values), dayfirst=written, errors="raise")
        return (found - pd.Timestamp("2024-01-01")).dt.total_seconds() / 86_400

    assert np.median(np.abs(days(model.predict(table[["v"]])) - day)) < 15
    one = model.conditional("t", {"v": 18.2})
    low, high = one.interval(0.9)
    assert abs(days(one.quantile(0.5))[0] - 182) < 25
    assert days(low)[0] < days(one.quantile(0.5))[0] < days(high)[0]
    drawn = days(model.sample(4000, given={"v": 18.2}, random_state=0)["t"].to_numpy())
    for at in (170, 182, 200):
        asked = pd.Timestamp("2024-01-01") + pd.Timedelta(days=at)
        exact = np.datetime64(asked, "ns")
        for value in (asked, asked.to_datetime64(), exact, [exact], str(asked.date())):
            assert one.cdf(value)[0] == pytest.approx((drawn <= at).mean(), abs=0.03)


def test_the_distribution_of_whole_numbers_jumps_where_they_are():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"k": rng.integers(0, 60, 400)})
    model = km.TableModel(width=16, blocks=1, steps=80, random_state=0).fit(table)
    one, drawn = model.conditional("k"), model.sample(40_000, random_state=0)["k"]
    for at in (0, 3, 30, 58, 59, 30.5, -1, 100):
        assert one.cdf(at)[0] == pytest.approx((drawn <= at).mean(), abs=0.012), at
    assert one.cdf(59)[0] == 1
    assert one.cdf(-1)[0] == 0


@pytest.mark.parametrize("bad", ["x", None, np.nan, [1, 2, 3], object()])
def test_the_distribution_of_no_number_is_refused(bad):
    table = pd.DataFrame({"k": np.random.default_rng(0).normal(size=60)})
    model = km.TableModel(width=8, blocks=1, steps=2, random_state=0).fit(table)
    with pytest.raises(errors.OptionError, match="cdf"):
        model.conditional("k").cdf(bad)


@pytest.mark.parametrize("seed", range(2))
def test_two_columns_have_two_orders(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=300)
    table = pd.DataFrame({"x": x, "y": x + rng.normal(size=300)})
    model = km.TableModel(width=16, blocks=1, steps=60, random_state=seed).fit(table)
    assert model.order_spread(table, orders=2) > 0.001
    encoded = model.schema_.encode(table)

    def chain(first, second):
        places = {"x": 0, "y": 1}
        a, b = places[first], places[second]
        start = model.conditional(first)
        repeated = replace(
            start, **{n: np.repeat(getattr(start, n), 300, 0)
                      for n in ("probabilities", "weights", "means", "scales")},
        )  # fmt: skip
        then = model.conditional(second, table[[first]])
        return repeated.log_density(encoded.codes[:, a], encoded.values[:, a]) + then.log_density(
            encoded.codes[:, b], encoded.values[:, b]
        )

    both = np.logaddexp(chain("x", "y"), chain("y", "x")) - np.log(2)
    np.testing.assert_allclose(model.score_samples(table, orders=2), both, atol=1e-4)


def test_rows_of_weight_zero_are_as_if_they_were_not_there():
    table = people(200)
    far = table.assign(size=table["size"] + 1e5, sex="x")
    both = pd.concat([table, far])
    weights = np.r_[np.full(200, 1e300), np.zeros(200)]
    settings = {"width": 16, "blocks": 1, "steps": 30, "random_state": 0}
    alone = km.TableModel(**settings).fit(table)
    weighed = km.TableModel(**settings).fit(both, sample_weight=weights)
    assert weighed.schema_.table() == alone.schema_.table()
    np.testing.assert_allclose(weighed.score_samples(table), alone.score_samples(table), rtol=1e-6)
    with pytest.raises(errors.OptionError, match="sample_weight"):
        km.TableModel(**settings).fit(table, sample_weight=["a"] * 200)


def test_small_things_around_a_table(model):
    assert len(model.sample(0)) == 0
    table = people(30)
    table.index = [f"row {k}" for k in range(30)]
    table.iloc[3, 1] = None
    pd.testing.assert_index_equal(model.impute(table).index, table.index)
    always = km.TableModel(width=8, blocks=1, steps=2, validation_fraction=0, random_state=0)
    always.fit(table.assign(c="k"))
    with pytest.raises(errors.SchemaError, match="only seen 'k'"):
        always.sample(2, given={"c": "z"})
    with pytest.warns(errors.ZeroDensityWarning, match="row 0, column c"):
        assert np.isneginf(always.score_samples(table.assign(c="z"))).all()
    whole = km.TableModel("b", kinds={"b": "category"}, width=8, blocks=1, steps=2, random_state=0)
    whole.fit(pd.DataFrame({"b": [True, False] * 30, "x": np.arange(60) / 7}))
    assert whole.classes_.tolist() == [False, True]
    assert not hasattr(km.TableModel(), "classes_")


@pytest.mark.parametrize("what", ["sample", "score_samples", "impute"])
def test_a_model_of_one_column_says_that_it_knows_no_others(what):
    table = people(100)
    model = km.TableModel("size", target_share=1.0, width=8, blocks=1, steps=2, random_state=0)
    model.fit(table)
    assert len(model.predict(table.head(3))) == 3
    with pytest.raises(errors.OptionError, match="predict only size"):
        getattr(model, what)(*([5] if what == "sample" else [table]))


def test_files_are_read_as_their_columns_were_found(tmp_path):
    """Zip codes without a leading zero in the second file are text there too."""
    first, second = tmp_path / "first.csv", tmp_path / "second.csv"
    zips = ["01067", "10115", "20095", "80331"]
    first.write_text("zip,x\n" + "".join(f"{zips[k % 4]},{k / 7:.3f}\n" for k in range(80)))
    second.write_text("zip,x\n10115,\n80331,2.5\n")
    model = km.TableModel(width=8, blocks=1, steps=5, random_state=0).fit(first)
    assert np.isfinite(model.score_samples(second)).all()
    assert len(model.impute(second)) == 2


@pytest.mark.parametrize(
    "given", [{}, {"sex": "f"}, {"size": 171.5, "pets": 1}, {"sex": "m", "size": 180.0, "pets": 0}]
)
def test_conditionals_of_all_columns_are_those_of_each(model, given):
    every = model.conditionals(given)
    assert list(every) == ["sex", "size", "pets"]
    for name, found in every.items():
        alone = model.conditional(name, given)
        np.testing.assert_allclose(found.probabilities, alone.probabilities, atol=1e-6)
        if found.is_number:
            np.testing.assert_allclose(found.mean(), alone.mean(), rtol=1e-5)


def test_conditionals_do_not_see_equal_columns():
    table = people(400)
    table["twin"], table["paid"] = table["size"], table["size"].where(table.index % 2 == 0, 5.5)
    model = km.TableModel(width=16, blocks=1, steps=10, random_state=0).fit(table)
    assert model.network_.layout.equal_pairs
    assert model.network_.layout.links
    given = {"sex": "f", "size": 172.0, "twin": 172.0, "paid": 172.0}
    for some in (given, {"size": 172.0}, {"paid": 172.0, "sex": "f"}):
        every = model.conditionals(some)
        for name, found in every.items():
            alone = model.conditional(name, some)
            np.testing.assert_allclose(found.probabilities, alone.probabilities, atol=1e-6)
    row = model.most_likely({"size": 172.0})
    assert row["twin"][0] == 172.0


def test_shares_of_intervals_are_those_of_draws(model):
    found = model.conditional("size", {"sex": "m"})
    edges = np.arange(160.05, 200, 3.0)
    drawn = model.sample(20_000, given={"sex": "m"}, random_state=0)["size"].to_numpy()
    inside = np.histogram(drawn.clip(edges[0], edges[-1]), edges)[0] / len(drawn)
    np.testing.assert_allclose(found.shares(edges)[0], inside, atol=0.015)
    pets = model.conditional("pets")
    counts = model.sample(20_000, random_state=0)["pets"].to_numpy()
    ends = np.arange(-0.5, 4)
    inside = np.histogram(counts.clip(0, 3), ends)[0] / len(counts)
    if pets.is_number:
        np.testing.assert_allclose(pets.shares(ends)[0], inside, atol=0.015)


def test_the_most_likely_row_keeps_what_is_given(model):
    row = model.most_likely({"sex": "m", "pets": 2})
    assert (row["sex"][0], row["pets"][0]) == ("m", 2)
    assert row["size"][0] == pytest.approx(
        model.conditional("size", {"sex": "m", "pets": 2}).quantile(0.5)[0]
    )
    # Each column is given those before it.
    row = model.most_likely()
    assert row["sex"][0] == model.conditional("sex").most_likely()[0].as_py()
    size = model.conditional("size", {"sex": row["sex"][0]}).quantile(0.5)[0]
    assert row["size"][0] == pytest.approx(size)
    pets = model.conditional("pets", {"sex": row["sex"][0], "size": row["size"][0]})
    assert row["pets"][0] == pets.most_likely()[0].as_py()
    with pytest.raises(errors.OptionError, match="given has 2 rows"):
        model.conditionals({"sex": ["m", "f"]})


def test_few_rows_and_many_have_the_same_quantiles_and_means(model):
    """Few rows are looked at in another way; so are many numbers."""
    sizes = {"pets": [k % 3 for k in range(2000)], "sex": ["f", "m"] * 1000}
    whole = model.conditional("size", pd.DataFrame(sizes))
    for rows in (1, 16, 17, 69, 70, 900):
        some = model.conditional("size", pd.DataFrame(sizes).head(rows))
        for share in (0.001, 0.5, 0.99):
            np.testing.assert_allclose(some.quantile(share), whole.quantile(share)[:rows])
        np.testing.assert_allclose(some.mean(), whole.mean()[:rows], rtol=1e-6)
    each = whole.repeated(3).quantile_cells(np.array([0.1, 0.5, 0.9])).to_pylist()
    assert each == [whole.quantile(share)[0] for share in (0.1, 0.5, 0.9)]
    with pytest.raises(errors.OptionError, match="between 0 and 1"):
        whole.repeated(2).quantile_cells(np.array([0.5, 1.0]))
