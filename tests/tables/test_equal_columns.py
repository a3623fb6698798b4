"""Columns that are equal in all rows are so in all that is drawn, filled and asked."""

import time

import numpy as np
import pandas as pd
import pytest
import torch

import kermix as km
from internals import find_equal_columns, with_equal_columns
from kermix import errors

TINY = {"width": 16, "blocks": 1, "steps": 40, "device": "cpu", "random_state": 0}


def shop(rows=400, seed=0):
    """Prices written twice (with zeros and gaps), towns three times, and a sum often paid."""
    rng = np.random.default_rng(seed)
    price = np.where(rng.random(rows) < 0.2, 0.0, rng.lognormal(3, 1, rows))
    price[rng.random(rows) < 0.1] = np.nan
    town = rng.choice(["Bonn", "Köln", "Ulm"], rows)
    paid = np.where(rng.random(rows) < 0.7, price, rng.lognormal(3, 1, rows))
    return pd.DataFrame({"town": town, "price": price, "city": town, "paid": paid,
                         "again": price, "place": town,
                         "n": rng.integers(0, 900, rows)})  # fmt: skip


@pytest.fixture(scope="module")
def model():
    return km.TableModel(**TINY).fit(shop())


def same(a, b):
    return ((a == b) | (a.isna() & b.isna())).all()


def test_all_equal_columns_are_found_and_no_others():
    table = shop()
    schema = km.Schema.infer(table)
    wanted = (("town", "city"), ("price", "again"), ("town", "place"))
    assert find_equal_columns(schema, schema.encode(table)) == wanted
    wrong = "Ulm" if table["town"][3] != "Ulm" else "Bonn"
    for column, value in (("again", 7.25), ("city", wrong), ("again", np.nan)):
        other = table.copy()
        row = int(np.flatnonzero(table["price"] > 0)[0]) if column == "again" else 3
        other.loc[row, column] = value
        schema = km.Schema.infer(other)
        names = [b for _, b in find_equal_columns(schema, schema.encode(other))]
        assert column not in names
    few = table.head(10)
    schema = km.Schema.infer(few, kinds={"town": "category", "city": "category"})
    assert find_equal_columns(schema, schema.encode(few)) == ()


def meaning(column):
    """What codes and scores of a column mean, as its description has it but for its name."""
    told = {key: value for key, value in column.items() if key != "name"}
    return repr(told)


def compared_in_pairs(schema, encoded):
    """The reference: each column with each one before it, by all that is known of them."""
    described = {column["name"]: meaning(column) for column in schema.to_dict()["columns"]}
    names = [column.name for column in schema.modelled]
    values = {column.name: encoded.values[:, q] for q, column in enumerate(schema.numbers)}
    found, firsts = [], []
    for k, name in enumerate(names):
        for j in firsts:
            other = names[j]
            same = (encoded.codes[:, j] == encoded.codes[:, k]).all()
            same &= described[other] == described[name] and (other in values) == (name in values)
            if same and (name not in values or (values[other] == values[name]).all()):
                found.append((other, name))
                break
        else:
            firsts.append(k)
    return tuple(found)


@pytest.mark.parametrize("seed", range(10))
def test_they_are_those_that_comparing_all_pairs_finds(seed):
    rng = np.random.default_rng(seed)
    own = {
        "number": rng.normal(size=60),
        "zeros": np.where(rng.random(60) < 0.4, 0.0, rng.lognormal(size=60)),
        "gaps": np.where(rng.random(60) < 0.3, np.nan, rng.normal(size=60)),
        "whole": rng.integers(0, 10**6, 60),
        "letter": rng.choice(list("abc"), 60),
        "digit": rng.choice([0, 1], 60),
        "yes": rng.random(60) < 0.5,
        "day": np.datetime64("2024-01-01") + rng.integers(0, 900, 60),
    }
    columns = {}
    for k in range(40):
        name = rng.choice(list(own))
        cells = pd.Series(own[name]).copy()
        match rng.integers(0, 6):
            case 0 if name in ("number", "zeros", "gaps", "whole"):
                cells = cells * 2
            case 1:
                cells[int(rng.integers(60))] = cells[int(rng.integers(60))]
            case 2 if name == "letter":
                cells = cells.map({"a": "x", "b": "y", "c": "z"})
            case 3 if name in ("digit", "yes", "whole"):
                cells = cells.astype(float)
        columns[f"{name} {k}"] = cells
    table = pd.DataFrame(columns)
    schema = km.Schema.infer(table)
    encoded = schema.encode(table)
    found = find_equal_columns(schema, encoded)
    assert found == compared_in_pairs(schema, encoded)
    assert found


@pytest.mark.parametrize(("rows", "columns"), [(100, 1600), (60, 5000)])
def test_many_columns_take_seconds(rows, columns):
    """Seen before: 15 seconds for 1600 of them, and minutes for 5000."""
    cells = np.random.default_rng(0).normal(size=(rows, columns))
    cells[:, -1] = cells[:, 0]
    table = pd.DataFrame(cells, columns=[f"c{k}" for k in range(columns)])
    schema = km.Schema.infer(table)
    encoded = schema.encode(table)
    begun = time.process_time()
    assert find_equal_columns(schema, encoded) == (("c0", f"c{columns - 1}"),)
    assert time.process_time() - begun < 3


@pytest.mark.parametrize("rows", [50, 300])
@pytest.mark.parametrize(
    "other",
    [lambda x: 2 * x, lambda x: 4 * x, lambda x: x + 1, lambda x: 2.0**30 * x, lambda x: -x],
)
def test_multiples_and_shifts_are_not_equal(other, rows):
    rng = np.random.default_rng(0)
    for x in (1000 * rng.normal(size=rows), rng.integers(0, 10**6, rows),
              rng.lognormal(3, 1, rows).round(2)):  # fmt: skip
        table = pd.DataFrame({"x": x, "y": other(x), "again": x})
        schema = km.Schema.infer(table)
        assert find_equal_columns(schema, schema.encode(table)) == (("x", "again"),)


def test_a_double_is_drawn_and_filled_as_such():
    b = np.random.default_rng(0).normal(size=300)
    table = pd.DataFrame({"b": b, "c": 2 * b, "x": b[::-1]})
    model = km.TableModel(**TINY).fit(table)
    drawn = model.sample(200, random_state=1)
    assert np.abs(drawn["c"] - 2 * drawn["b"]).median() < 0.05
    gaps = table.head(20).assign(c=np.nan)
    assert np.abs(model.impute(gaps)["c"] - 2 * gaps["b"]).max() < 0.1


def test_samples_are_equal_in_every_row(model):
    table = model.sample(1000, random_state=1)
    assert same(table["price"], table["again"])
    assert same(table["town"], table["city"])
    assert same(table["town"], table["place"])
    assert 0.3 < (table["paid"] == table["price"]).mean() < 0.9  # often equal, which is learned
    given = model.sample(200, given={"place": "Ulm", "again": 12.5}, random_state=2)
    assert (given["town"] == "Ulm").all()
    assert (given["city"] == "Ulm").all()
    assert given["price"].to_numpy() == pytest.approx(12.5)
    assert same(given["price"], given["again"])


def test_no_code_is_learned_for_them(model):
    layout = model.network_.layout
    assert [(layout.links[0].first, layout.links[0].second)] == [(1, 3)]
    assert len(layout.links) == 1
    assert layout.equal_pairs == ((0, 2), (1, 4), (0, 5))
    assert sorted(layout.equal_to(5)) == [0, 2, 5]
    assert layout.equal_to(6) == [6]


def test_one_seen_is_all_seen():
    seen = torch.zeros(4, 6, dtype=torch.bool)
    seen[0, 5] = seen[1, 0] = seen[2, 3] = True
    found = with_equal_columns(((0, 2), (0, 5)), seen)
    assert found[:2, [0, 2, 5]].all()
    assert not found[2, [0, 2, 5]].any()
    assert not found[3].any()
    assert seen.sum() == 3  # what was given stays


def test_gaps_are_filled_with_the_twin_to_the_letter(model):
    table = shop(60, seed=4).dropna()
    gaps = table.astype({"price": float}).copy()
    gaps.loc[gaps.index[::2], "price"] = np.nan
    gaps.loc[gaps.index[1::2], "again"] = np.nan
    gaps.loc[gaps.index[::3], "town"] = None
    filled = model.impute(gaps)
    pd.testing.assert_frame_equal(filled, table)


def test_the_density_is_that_of_one_of_them(model):
    table = shop(80, seed=5)
    one = model.score_samples(table)
    assert np.isfinite(one).all()
    less = table.drop(columns=["again", "city", "place"])
    alone = km.TableModel(**TINY).fit(shop().drop(columns=["again", "city", "place"]))
    # Two models of the same density: that of the whole row has no part for the copies.
    assert abs(one.mean() - alone.score_samples(less).mean()) < 2.0
    wrong = table.copy()
    wrong.loc[7, "city"] = "Ulm" if table["town"][7] != "Ulm" else "Bonn"
    with pytest.warns(errors.ZeroDensityWarning, match=r"row 7: town and city are equal in all"):
        assert np.flatnonzero(model.score_samples(wrong) == -np.inf).tolist() == [7]
    with pytest.raises(errors.SchemaError, match="price and again are equal"):
        model.sample(2, given={"price": 3.0, "again": 4.0})


def test_a_twin_does_not_answer_for_a_target(model):
    known = {"city": "Ulm", "paid": 20.0}
    with_twin = model.conditional("place", known).probabilities
    np.testing.assert_array_equal(
        with_twin, model.conditional("place", {"paid": 20.0}).probabilities
    )
    target = km.TableModel("again", target_share=1.0, **TINY).fit(shop())
    asked = target.conditional("again", shop(20, seed=6)).quantile(0.5)
    assert np.isfinite(asked).all()


def test_saved_and_read_again(model, tmp_path):
    model.save(tmp_path / "m.safetensors")
    again = km.TableModel.load(tmp_path / "m.safetensors")
    assert again.network_.layout.equal_pairs == model.network_.layout.equal_pairs
    table = again.sample(100, random_state=3)
    pd.testing.assert_frame_equal(table, model.sample(100, random_state=3))


def test_they_can_be_left_to_the_network():
    plain = km.TableModel(equal_columns=False, **TINY).fit(shop())
    assert plain.network_.layout.equal_pairs == ()
    table = plain.sample(500, random_state=1)
    assert not same(table["town"], table["city"])


def test_one_of_equal_columns_says_as_much_as_both(model):
    both = model.conditional("paid", {"price": 20.0, "again": 20.0}).quantile(0.5)
    for name in ("price", "again"):
        assert model.conditional("paid", {name: 20.0}).quantile(0.5) == both
    with pytest.raises(errors.SchemaError, match="price and again are equal"):
        model.conditional("paid", {"price": 20.0, "again": 30.0})


def test_gaps_of_equal_columns_are_filled_with_one_value(model):
    table = shop(60, seed=3).astype({"n": float})
    table.loc[:19, ["price", "again", "town", "city", "place"]] = np.nan
    table.loc[20:29, ["again", "paid"]] = np.nan
    filled = model.impute(table)
    assert not filled.isna().any().any()
    assert same(filled["price"], filled["again"])
    assert same(filled["town"], filled["city"])
    assert same(filled["town"], filled["place"])
    # What a number is filled with does not depend on which of two equal columns is known.
    other = table.rename(columns={"price": "again", "again": "price"})[table.columns]
    np.testing.assert_allclose(model.impute(other)["paid"], filled["paid"], rtol=1e-6)


def test_what_is_asked_for_need_not_be_known():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.normal(size=200), "c": rng.choice(["a", "b"], 200)})
    model = km.TableModel(**TINY).fit(table)
    for name in ("x", "c"):
        empty = table.head(3).assign(**{name: None})
        full = table.head(3)
        assert (model.predict(empty, name) == model.predict(full, name)).all()
    assert len(model.conditional("x", {"x": 1.0})) == 1
