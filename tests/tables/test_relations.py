"""Columns that follow from others: found, said, and kept in samples and in gaps."""

import warnings

import numpy as np
import pandas as pd
import pytest
from benchmarks.planted_tables import NULLS, PLANTED, null_table, planted_table

import kermix as km
from internals import ExactRelations, RawColumns, Relation, find_relations
from kermix.errors import InconsistentGivenWarning

TINY = {"width": 32, "blocks": 1, "steps": 150, "device": "cpu", "random_state": 0}


def lines(table):
    schema = km.Schema.infer(table)
    found = find_relations(schema, schema.encode(table))
    return [relation.description(RawColumns(schema)) for relation in found]


def mixed(column, share, random):
    broken = random.random(len(column)) < share
    column = np.array(column, copy=True)
    column[broken] = random.permutation(column)[broken]
    return column


def shop(rows=1200, seed=0):
    """A sum, a product with exceptions, a table of values, an order and equal steps."""
    random = np.random.default_rng(seed)
    city = random.integers(0, 12, rows)
    first = random.integers(1900, 2000, rows)
    table = {
        "total": np.zeros(rows),
        "men": random.poisson(30, rows), "women": random.poisson(20, rows),
        "price": random.lognormal(3, 0.7, rows).round(2), "count": random.integers(1, 50, rows),
        "city": np.array([f"city {k}" for k in range(12)])[city],
        "country": np.array(list("abcd"))[city % 4],
        "built": first, "rebuilt": first + random.exponential(15, rows).astype(int),
        "dose": 25 * random.poisson(20, rows),
    }  # fmt: skip
    table["total"] = table["men"] + table["women"]
    table["amount"] = mixed((table["price"] * table["count"]).round(2), 0.05, random)
    return pd.DataFrame(table)


@pytest.fixture(scope="module")
def model():
    return km.TableModel(**TINY).fit(shop())


@pytest.mark.parametrize("kind", PLANTED)
@pytest.mark.parametrize("seed", range(3))
def test_what_is_planted_is_found_and_nothing_else(kind, seed):
    planted = planted_table(kind, 800, (0.0, 0.02, 0.05)[seed], (0.0, 0.1)[seed % 2], seed + 100)
    schema = km.Schema.infer(planted.columns)
    names = [column.name for column in schema.modelled]
    found = find_relations(schema, schema.encode(planted.columns))
    about = [frozenset(names[k] for k in relation.places) for relation in found]
    assert planted.about in about
    assert all(one <= planted.about for one in about)


@pytest.mark.parametrize("kind", NULLS)
def test_nothing_is_found_where_nothing_is(kind):
    for seed in range(3):
        assert lines(null_table(kind, 600, (0.0, 0.1)[seed % 2], seed + 100)) == []


def test_rounded_ratios_are_told_from_the_finer_to_the_coarser_column():
    random = np.random.default_rng(0)
    v = random.lognormal(6, 1, 2000).round(2)
    d = (1 + random.lognormal(2, 0.8, 2000)).round(2)
    found = lines({"l": (1 / d).round(2), "d": d, "b": (v / 3000).round(2), "v": v})
    assert found == ["l = 1 / d, in all rows", "b = v / 3000, in all rows"]


def test_chains_of_formulas_are_said_from_their_sources_to_their_ends():
    random = np.random.default_rng(0)
    kinds, others = 1 + random.poisson(12, 1500), random.poisson(9, 1500)
    used = others * random.integers(1, 5, 1500)
    many = kinds * random.integers(2, 6, 1500)
    volume = ((many + used) * np.log2(kinds + others)).round(2)
    hard = np.where(others > 0, kinds / 2 * used / others.clip(1), 0.0)
    table = {
        "kinds": kinds, "others": others, "used": used, "many": many, "length": many + used,
        "volume": volume, "hard": hard.round(2), "effort": (volume * hard).round(2),
        "hours": (volume * hard / 18).round(),
    }  # fmt: skip
    found = {line.split(" = ")[0]: line for line in lines(table)}
    assert found["length"] in {
        f"length = {parts}, in all rows" for parts in ("many + used", "used + many")
    }
    assert "log2(kinds + others)" in found["volume"]
    assert found["hours"] == "hours = effort / 18, in all rows"
    assert found["hard"].startswith("hard = kinds * used / others / 2")
    assert not {"kinds", "others", "used", "many"} & set(found)


def test_what_was_computed_before_rounding_is_a_relation_up_to_rounding():
    random = np.random.default_rng(1)
    a, b = random.lognormal(3, 1, (2, 900))
    found = lines({"a": a.round(1), "b": b.round(1), "c": (a * b).round(2)})
    assert found == ["c = a * b up to rounding, in all rows"]


def test_logarithms_have_the_base_that_makes_their_factor_round():
    power = np.random.default_rng(4).lognormal(0, 2, 900)
    found = lines({"power": power, "db": (10 * np.log10(power) + 30).round(1),
                   "log": np.log(power).round(4)})  # fmt: skip
    assert "log = log(power), in all rows" in found
    assert any(line.startswith("db = ") for line in found)


def test_what_is_rounded_down_and_where_a_ratio_is_not_defined():
    random = np.random.default_rng(2)
    minutes, calls = random.integers(1, 4000, 900), random.poisson(1.5, 900)
    hits = random.binomial(calls, 0.5)
    found = lines({
        "minutes": minutes, "hours": minutes // 60, "calls": calls, "hits": hits,
        "rate": np.where(calls > 0, hits / calls.clip(1), 0.0).round(3),
    })  # fmt: skip
    assert "hours = minutes / 60, rounded down, in all rows" in found
    assert "rate = hits / calls, 0 where that is not defined, in all rows" in found


def test_the_widest_step_is_said_in_spite_of_exceptions():
    planted = planted_table("lattice", 5000, 0.05, 0.0, seed=2)
    [line] = lines(planted.columns)
    assert line.startswith("wind is a multiple of 50, in 95")


def test_sizes_of_the_same_things_have_no_order():
    random = np.random.default_rng(3)
    size = random.lognormal(1.5, 1.3, 2000)
    lines_ = 1 + random.poisson(size)
    table = {"lines": lines_, "branches": 1 + random.poisson(0.3 * size),
             "remarks": np.where(random.random(2000) < 0.5, 0, random.poisson(0.4 * size)),
             "score": (size * random.lognormal(0, 0.3, 2000)).round(2)}  # fmt: skip
    assert lines(table) == []


def test_a_few_wrong_rows_do_not_hide_a_sum():
    table = shop(2000)[["men", "women", "total"]].astype(float)
    table.loc[[3, 40, 800, 1200], "total"] = [0.0, 1e6, -5e4, 3.0]
    assert lines(table) == ["total = men + women, in 99.8 % of rows"]


def test_whole_rows_of_few_or_equal_values_are_no_relations():
    ones = {"a": np.ones(500), "b": np.r_[np.ones(499), 2], "c": np.arange(500) % 2}
    assert lines(ones) == []
    assert lines({name: cells[:40] for name, cells in shop().items()}) == []


def test_relations_are_read_again_as_they_were_written():
    schema = km.Schema.infer(shop())
    encoded = schema.encode(shop())
    names = [column.name for column in schema.modelled]
    found = find_relations(schema, encoded)
    again = [Relation.from_dict(relation.to_dict(names), names) for relation in found]
    first, second = (ExactRelations(schema, some) for some in (found, again))
    assert first.descriptions() == second.descriptions()
    assert (first.flags(encoded) == second.flags(encoded)).all()


def test_every_relation_has_a_line(model):
    told = {line.split(",")[0]: line for line in model.relations}
    assert set(told) == {
        "total = men + women", "amount = price * count", "country follows from city",
        "rebuilt is at least built", "dose is a multiple of 25",
    }  # fmt: skip
    assert told["total = men + women"].endswith("in all rows")
    assert "in 95" in told["amount = price * count"]


def kept(table):
    exact = np.abs(table["price"] * table["count"] - table["amount"]) < 0.006
    city = table["city"].str.removeprefix("city ").astype(int)
    country = np.array(list("abcd"))[city % 4] == table["country"]
    return {
        "sum": (table["men"] + table["women"] == table["total"]).mean(),
        "product": exact.mean(),
        "lookup": country.mean(),
        "order": (table["rebuilt"] >= table["built"]).mean(),
        "steps": (table["dose"] % 25 == 0).mean(),
    }


def test_samples_keep_them_as_often_as_the_table(model):
    wanted, found = kept(shop()), kept(model.sample(3000, random_state=0))
    for name in wanted:
        assert found[name] == pytest.approx(wanted[name], abs=0.02 if name == "product" else 0.0)


@pytest.mark.parametrize("kind", ["lookup", "order", "lattice", "sum"])
def test_exceptions_are_drawn_as_often_as_the_table_has_them(kind):
    planted = planted_table(kind, 1500, 0.05, 0.0, seed=7)
    table = pd.DataFrame(planted.columns)
    drawn = km.TableModel(**TINY).fit(table).sample(6000, random_state=1)
    assert planted.holds(drawn).mean() == pytest.approx(planted.holds(table).mean(), abs=0.01)


@pytest.mark.parametrize(
    "given", [{"total": 60}, {"amount": 512.4}, {"country": "c"}, {"rebuilt": 1950}, {"men": 31}]
)
@pytest.mark.filterwarnings("ignore::kermix.errors.InconsistentGivenWarning")
def test_what_follows_may_be_given(model, given):
    drawn = model.sample(300, given=given, random_state=1)
    assert all((drawn[name] == value).all() for name, value in given.items())
    for name, share in kept(drawn).items():
        assert share >= (0.85 if name == "product" else 0.995), name


def test_an_inconsistent_row_stays_and_is_said(model):
    with pytest.warns(
        InconsistentGivenWarning, match=r"total = men \+ women, in all rows .* 40 of"
    ):
        drawn = model.sample(40, given={"total": 60, "men": 30, "women": 31}, random_state=1)
    assert (drawn["total"] == 60).all()
    assert (drawn["women"] == 31).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.sample(40, given={"total": 61, "men": 30, "women": 31}, random_state=1)


def test_gaps_are_filled_by_them(model):
    table = shop(200, seed=1).astype({"total": float, "men": float})
    gaps = table.copy()
    gaps.loc[::2, "total"] = np.nan
    gaps.loc[1::2, "country"] = None
    for filled in (model.impute(gaps), model.impute(gaps, draws=1, random_state=0)[0]):
        assert (filled["total"] == table["total"]).all()
        assert (filled["country"] == table["country"]).all()


def test_gaps_of_the_table_are_drawn_as_often():
    random = np.random.default_rng(3)
    table = shop().astype(object).mask(random.random((1200, 11)) < 0.1).infer_objects()
    model = km.TableModel(**{**TINY, "steps": 300}).fit(table)
    assert "total = men + women, in all rows" in model.relations
    drawn = model.sample(2000, random_state=0)
    whole = drawn[["total", "men", "women"]].dropna()
    assert (whole["men"] + whole["women"] == whole["total"]).all()
    assert drawn["total"].isna().mean() == pytest.approx(table["total"].isna().mean(), abs=0.05)


def test_densities_are_finite_also_where_a_relation_is_broken(model):
    table = shop(50, seed=2)
    table.loc[7, "total"] += 1
    found = model.score_samples(table)
    assert np.isfinite(found).all()
    assert found[7] < np.median(found)


def mass(table, grids):
    """The sum of densities over all rows that there may be."""
    model = km.TableModel(**TINY).fit(pd.DataFrame(table))
    assert model.relations
    names, cells = zip(*grids.items(), strict=True)
    every = pd.MultiIndex.from_product(cells, names=names).to_frame(index=False)
    return np.exp(model.score_samples(every, orders=2)).sum()


def test_densities_sum_to_one_with_tables_of_values_sums_and_steps():
    random, rows = np.random.default_rng(0), 1500
    a, b, city = (random.integers(0, k, rows) for k in (25, 22, 12))
    broken = random.random(rows) < 0.05
    total = np.where(broken, random.integers(0, 46, rows), a + b)
    whole = {"a": range(25), "b": range(22), "total": range(47)}
    assert mass({"a": a, "b": b, "total": total}, whole) == pytest.approx(1, abs=0.005)
    names = np.array([f"city {k:02d}" for k in range(12)])
    country = np.array(list("wxyz"))[np.where(broken, random.integers(0, 4, rows), city % 4)]
    whole = {"city": list(names), "country": list("wxyz")}
    assert mass({"city": names[city], "country": country}, whole) == pytest.approx(1, abs=1e-4)
    dose = 5 * random.poisson(60, rows)
    dose = np.where(broken, dose + random.integers(-9, 9, rows), dose)
    sex = random.choice(["f", "m"], rows)
    whole = {"dose": range(dose.min() - 100, dose.max() + 101), "sex": ["f", "m"]}
    once = (np.unique(dose, return_counts=True)[1] == 1).mean()
    share = once * len(np.unique(dose)) / rows  # kept for values never seen, between those seen
    assert 1 - 1.5 * share < mass({"dose": dose, "sex": sex}, whole) < 1.001


def test_saved_with_the_model(model, tmp_path):
    model.save(tmp_path / "m.safetensors")
    again = km.TableModel.load(tmp_path / "m.safetensors")
    assert again.relations == model.relations
    pd.testing.assert_frame_equal(
        again.sample(50, random_state=3), model.sample(50, random_state=3)
    )


ORDERS_SEED = 3


@pytest.fixture(scope="module")
def orders():
    """Postage by country, with gaps; sums of orders, a few of them wrong; amounts often paid."""
    rng = np.random.default_rng(ORDERS_SEED)
    rows = 700
    country = rng.choice(["DE", "FR", "JP"], rows, p=[0.5, 0.3, 0.2])
    postage = pd.Series(country).map({"DE": 4.9, "FR": 9.9, "JP": 25.0}).to_numpy().copy()
    postage[rng.random(rows) < 0.05] = np.nan
    count, price = rng.integers(1, 9, rows), rng.lognormal(3, 0.6, rows).round(2)
    total = (count * price).round(2)
    wrong = rng.random(rows) < 0.03
    total[wrong] = (1.3 * total[wrong] + 0.7).round(2)
    bill = rng.lognormal(3, 1, rows).round(2)
    paid = np.where(rng.random(rows) < 0.9, bill, rng.lognormal(3, 1, rows).round(2))
    paid[rng.random(rows) < 0.1] = 0.0
    table = pd.DataFrame({"country": country, "postage": postage, "count": count, "price": price,
                          "total": total, "bill": bill, "paid": paid})  # fmt: skip
    return table, wrong


@pytest.fixture(scope="module")
def orders_model(orders):
    return km.TableModel(width=16, blocks=1, steps=80, random_state=0).fit(orders[0])


@pytest.mark.parametrize("column", ["postage", "total", "price", "bill", "paid"])
def test_predictions_follow_relations_as_filled_gaps_do(orders, orders_model, column):
    """Seen before: impute filled 25.0, predict said 9.9 for the same rows."""
    table, wrong = orders
    some = table[~wrong & table["postage"].notna() & (table["bill"] == table["paid"])][:60]
    predicted = orders_model.predict(some.drop(columns=column), column)
    filled = orders_model.impute(some.assign(**{column: np.nan}))[column]
    np.testing.assert_allclose(predicted, filled, rtol=1e-12)
    np.testing.assert_allclose(predicted, some[column], rtol=1e-12)


def test_a_conditional_distribution_has_a_relation_and_its_exceptions(orders_model):
    given = {"count": 3, "price": 12.34}
    found = orders_model.conditional("total", given)
    assert found.quantile(0.5) == 37.02
    mass = float(found.cdf(37.02)[0] - found.cdf(37.01)[0])
    assert 0.9 < mass < 0.995  # an exception in 3 %
    assert float(found.probabilities.sum()) == pytest.approx(1)
    every = orders_model.conditionals({"country": "JP", **given})
    assert every["total"].quantile(0.5) == 37.02
    postage = every["postage"]
    assert dict(zip(postage.names, postage.filled[0], strict=False))["25"] > 0.99
    assert 0.01 < float(postage.probabilities[0, -1]) < 0.15  # a gap, as in 5 %
    alone = orders_model.conditional("postage", {"country": "JP", **given})
    np.testing.assert_allclose(alone.probabilities, postage.probabilities, rtol=1e-5)
    none = orders_model.predict(pd.DataFrame({"count": [], "price": []}, dtype=float), "total")
    assert len(none) == 0


def test_gaps_in_sums_of_large_numbers_are_filled_to_the_last_digit():
    """Seen before: off by 26 in a million, for what is given was not rounded as written."""
    rng = np.random.default_rng(5)
    part = rng.integers(0, 50, 300) * 1.0
    other = (rng.normal(size=300) * 1e6).round(0)
    table = pd.DataFrame({"part": part, "other": other, "whole": part + other})
    model = km.TableModel(width=16, blocks=1, steps=20, random_state=0).fit(table)
    assert model.relations
    for column in table:
        filled = model.impute(table.assign(**{column: np.nan}))[column]
        np.testing.assert_array_equal(filled, table[column])
