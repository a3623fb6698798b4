"""Gaps that stay because there is no value: storms that are no hurricanes have no category."""

import numpy as np
import pandas as pd
import pytest

import kermix as km
from internals import given_cell
from kermix.errors import OptionError

SMALL = {"width": 8, "blocks": 1, "steps": 2, "average": 0, "random_state": 0}
OTHERS = ["tropical storm", "tropical depression", "extratropical", "other low", "wave"]


def storms(rows=600, seed=0, gaps=0.0):
    """Categories of hurricanes alone, diameters since 2004, and gaps at random elsewhere.

    Returns the table, and where it is empty because there is no value.
    """
    rng = np.random.default_rng(seed)
    status = rng.choice(["hurricane", *OTHERS], rows, p=[0.25, 0.35, 0.2, 0.1, 0.09, 0.01])
    is_hurricane = status == "hurricane"
    wind = np.where(is_hurricane, rng.integers(13, 31, rows), rng.integers(2, 14, rows)) * 5.0
    year = rng.integers(1975, 2022, rows)
    table = pd.DataFrame(
        {
            "year": year,
            "status": pd.Series(status, dtype=object),
            "category": np.where(is_hurricane, np.clip((wind - 50) // 15, 1, 5), np.nan),
            "wind": wind,
            "lat": rng.normal(27, 8, rows).round(1),
            "diameter": np.where(year < 2004, np.nan, (wind * rng.uniform(1, 4, rows)).round()),
        }
    )
    none = table.isna()
    for name in ("status", "wind", "lat"):
        table.loc[rng.random(rows) < gaps, name] = None
    table.loc[rng.random(rows) < 0.1, "category"] = np.nan
    table.loc[rng.random(rows) < 0.1, "diameter"] = np.nan
    return table, none


@pytest.fixture(scope="module")
def model():
    return km.TableModel(**SMALL).fit(storms()[0])


@pytest.mark.parametrize("rows", [200, 600, 5000])
def test_what_has_no_value_stays_empty_and_other_gaps_are_filled(rows):
    table, none = storms(rows, seed=rows)
    model = km.TableModel(**SMALL).fit(table)
    assert model.absences == {
        "category": "category is empty unless status is hurricane",
        "diameter": "diameter is empty where year is at most 2003",
    }
    for filled in (model.impute(table), *model.impute(table, draws=2, random_state=0)):
        pd.testing.assert_frame_equal(filled.isna(), none)
        was = table.notna()
        assert (filled[was] == table[was]).eq(True).where(was, True).all(axis=None)
    assert not model.impute(table, fill_all=True).isna().any(axis=None)


def test_a_new_table_of_one_row_and_a_model_that_was_saved(model, tmp_path):
    model.save(tmp_path / "model")
    again = km.TableModel.load(tmp_path / "model")
    assert again.absences == model.absences
    row = {"year": [2010], "lat": [20.5], "wind": [90.0], "diameter": [np.nan]}
    for status, stays in (("wave", True), ("hurricane", False)):
        one = pd.DataFrame({**row, "status": status, "category": [np.nan]})
        filled = again.impute(one)
        assert filled["category"].isna()[0] == stays
        assert filled["diameter"].notna()[0]
        assert not again.impute(one, fill_all=True).isna().any(axis=None)


def test_a_status_that_is_a_gap_decides_as_it_is_filled():
    table, _ = storms(gaps=0.1)
    model = km.TableModel(width=16, blocks=1, steps=80, random_state=0).fit(table)
    gap = table["category"].isna() & table["status"].isna()
    assert gap.sum() > 20
    drawn = model.impute(table, draws=3, random_state=0)
    for filled in (model.impute(table), *drawn):
        stays = filled["category"].isna()
        assert (stays == (filled["status"] != "hurricane"))[table["category"].isna()].all()
    # A category drawn first would make hurricanes of all.
    share = np.mean([(t["status"][gap] == "hurricane").mean() for t in drawn])
    assert share < 0.4


def test_draws_ask_whether_there_is_a_value_before_they_draw_one():
    """The category comes first in the table, so it would be drawn before the status."""
    table, _ = storms(gaps=0.1)
    turned = table[["category", "status", "year", "lat"]]
    model = km.TableModel(width=16, blocks=1, steps=150, random_state=0).fit(turned)
    gap = table["category"].isna() & table["status"].isna()
    drawn = model.impute(turned, draws=4, random_state=0)
    assert np.mean([(t["status"][gap] == "hurricane").mean() for t in drawn]) < 0.3


def test_columns_to_fill_are_named_and_their_cells_are_as_in_the_whole(model):
    table, none = storms(seed=1)
    whole, some = model.impute(table), model.impute(table, columns=["category"])
    pd.testing.assert_series_equal(some["category"], whole["category"])
    pd.testing.assert_frame_equal(some.drop(columns="category"), table.drop(columns="category"))
    assert (some["category"].isna() == none["category"]).all()
    with pytest.raises(OptionError, match=r"columns: size is not a column of the model.* year, "):
        model.impute(table, columns=["size"])


def random_table(seed):
    """Categories, numbers and counts with gaps at random: few in some columns, most in others."""
    rng = np.random.default_rng(seed)
    rows = int(np.exp(rng.uniform(np.log(200), np.log(5000))))
    columns = {}
    for k in range(rng.integers(4, 8)):
        values = [
            lambda: rng.choice(list("abcdef"), rows, p=rng.dirichlet(np.ones(6))),
            lambda: rng.normal(size=rows),
            lambda: rng.integers(0, 8, rows).astype(float),
            lambda: rng.choice([f"town {j}" for j in range(60)], rows),
        ][rng.integers(4)]()
        gaps = rng.random(rows) < rng.choice([0.02, 0.1, 0.3, 0.5, 0.8, 0.9, 0.94, 0.97, 0.99])
        gaps[: rows // 20] &= k > 0  # some column has its values
        columns[f"c{k}"] = pd.Series(values, dtype=object).where(~gaps).infer_objects()
    return pd.DataFrame(columns)


@pytest.mark.parametrize("seed", range(20))
def test_nothing_stays_empty_where_gaps_are_at_random(seed):
    table = random_table(seed)
    model = km.TableModel(**SMALL).fit(table)
    assert model.absences == {}
    modelled = [column.name for column in model.schema_.modelled]  # a few towns may be keys
    rare = {
        c.name for c in model.schema_.modelled
        if c.kind == "category" and c.gaps > 0.5 and isinstance(c.values[0], str)
    }  # fmt: skip
    assert model.rarely_filled.keys() == rare
    filled = model.impute(table)
    assert not filled[[name for name in modelled if name not in rare]].isna().any(axis=None)
    assert (filled[[*rare]].isna() == table[[*rare]].isna()).all(axis=None)
    assert not model.impute(table, fill_all=True)[modelled].isna().any(axis=None)
    for name in rare:  # those who ask for it have it
        assert not model.impute(table, columns=[name])[name].isna().any()


def test_hundreds_of_texts_with_many_gaps_are_remarks():
    """A comment that people wrote is none to fill with the commonest one."""
    rng = np.random.default_rng(0)
    texts = np.array([f"note {k}" for k in range(250)] * 3, object)
    comment = np.concatenate([texts, np.full(500, None, object)])
    table = pd.DataFrame({"comment": comment, "x": rng.normal(size=1250)})
    model = km.TableModel(**SMALL).fit(table)
    told = "comment has 250 different texts, and is empty in 40 % of the rows"
    assert model.rarely_filled == {"comment": told}
    assert model.impute(table)["comment"].isna().sum() == 500


def test_a_number_is_given_as_its_column_is_written():
    schema = km.Schema.infer({"total": [f"€ {k}.50" for k in range(1000, 1100)]})
    for text in ("€ 1050.00", "€ 1050", "1050"):
        assert given_cell(schema, "total", text, "total").to_pylist() == [1050.0]
    with pytest.raises(OptionError, match="is not a number"):
        given_cell(schema, "total", "£ 50", "total")


def survey(rows=1500, seed=0):
    """Questions that not everybody is asked."""
    rng = np.random.default_rng(seed)
    sex, age = rng.choice(["f", "m"], rows), rng.integers(0, 90, rows)
    smokes = rng.choice(["never", "once", "daily"], rows, p=[0.5, 0.2, 0.3])
    tested = rng.random(rows) < 0.6
    whole = {
        "births": (rng.poisson(2, rows), (sex == "f") & (age >= 15)),
        "served": (rng.integers(0, 400, rows) / 10, (sex == "f") | (age >= 40)),
        "packs": (rng.poisson(9, rows) / 10, smokes == "daily"),
        "sugar": (rng.normal(5, 1, rows).round(2), tested),
        "iron": (rng.normal(9, 2, rows).round(2), tested),
    }
    answers = {name: np.where(asked, values, np.nan) for name, (values, asked) in whole.items()}
    return pd.DataFrame({"sex": sex, "age": age, "smokes": smokes, **answers})


def test_ranges_pairs_several_patterns_and_columns_that_are_empty_together():
    table = survey()
    model = km.TableModel(**SMALL).fit(table)
    told = model.absences
    assert told["births"] in (
        "births is empty where sex is m, or where age is at most 14",
        "births is empty where age is at most 14, or where sex is m",
    )
    assert told["served"] in (
        "served is empty where sex is m and age is at most 39",
        "served is empty where age is at most 39 and sex is m",
    )
    assert told["packs"] == "packs is empty where smokes is not daily" or (
        told["packs"] == "packs is empty unless smokes is daily"
    )
    assert told["sugar"] == "sugar is empty where iron is empty"
    assert told["iron"] == "iron is empty where sugar is empty"
    pd.testing.assert_frame_equal(model.impute(table), table)
    # One of the two alone is a gap like any other.
    gaps = table.assign(iron=np.nan)
    filled = model.impute(gaps)
    assert (filled["iron"].isna() == table["sugar"].isna()).all()


def test_what_follows_from_a_gap_that_is_filled_is_filled():
    """A total is empty where the price is; the price is empty at random, and the tax besides."""
    rng = np.random.default_rng(0)
    price = np.where(rng.random(1500) < 0.2, np.nan, rng.lognormal(3, 1, 1500).round(2))
    total = np.where(rng.random(1500) < 0.3, np.nan, 3 * price)
    table = pd.DataFrame({"price": price, "total": total, "shop": rng.choice(["a", "b"], 1500)})
    model = km.TableModel(**SMALL).fit(table)
    assert model.absences == {"total": "total is empty where price is empty"}
    assert not model.impute(table).isna().any(axis=None)


def test_of_two_columns_of_which_one_is_filled_one_is_filled():
    rng = np.random.default_rng(0)
    by_phone = rng.random(800) < 0.5
    grade = rng.integers(1, 13, 800)
    table = pd.DataFrame(
        {
            "phone": np.where(by_phone, rng.integers(100, 999, 800), np.nan),
            "email": np.where(by_phone, np.nan, rng.integers(100, 999, 800)),
            "grade": grade,
            "thesis": np.where(grade < 9, np.nan, rng.normal(size=800).round(2)),
        }
    )
    model = km.TableModel(**SMALL).fit(table)
    assert model.absences == {
        "phone": "phone is empty where email is filled",
        "email": "email is empty where phone is filled",
        "thesis": "thesis is empty unless grade is at least 9",
    }
    pd.testing.assert_frame_equal(model.impute(table), table)
    neither = table.assign(phone=np.nan, email=np.nan)
    for filled in (model.impute(neither), model.impute(neither, draws=1)[0]):
        assert (filled["phone"].isna() ^ filled["email"].isna()).all()


def test_rare_patterns_and_patterns_with_exceptions_are_filled():
    rng = np.random.default_rng(0)
    kind = rng.choice(["a", "b", "c"], 2000, p=[0.48, 0.5, 0.02])
    value = rng.normal(size=2000).round(2)
    rare = np.where(kind == "c", np.nan, value)  # forty rows are too few to know
    often = np.where((kind == "a") & (rng.random(2000) < 0.9), np.nan, value + 1)
    table = pd.DataFrame({"kind": kind, "rare": rare, "often": often})
    model = km.TableModel(**SMALL).fit(table)
    assert model.absences == {}
    assert not model.impute(table).isna().any(axis=None)


def test_a_constant_is_filled_in_where_it_is_one():
    table, _ = storms(300)
    model = km.TableModel(**SMALL).fit(table.assign(ocean="Atlantic", planet=3))
    new = table.assign(ocean=["Atlantic", None] * 150, planet=[3.0, np.nan] * 150)
    filled = model.impute(new)
    assert set(filled["ocean"]) == {"Atlantic"}
    assert set(filled["planet"]) == {3.0}
    other = model.impute(table.assign(ocean=["Pacific", None] * 150, planet=np.nan))
    assert other["ocean"].isna().sum() == 150
    assert set(other["planet"]) == {3}
    assert model.impute(new, columns=["wind"])["ocean"].isna().sum() == 150


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow", "dict"])
def test_every_kind_of_table(model, kind):
    import pyarrow as arrow

    table, none = storms(50, seed=3)
    given = {
        "pandas": lambda: table,
        "polars": lambda: pytest.importorskip("polars").from_pandas(table),
        "arrow": lambda: arrow.Table.from_pandas(table),
        "dict": lambda: arrow.Table.from_pandas(table).to_pydict(),
    }[kind]()
    found = model.impute(given)
    cells = found["category"].tolist() if kind == "pandas" else list(found["category"])
    assert sum(c is None or str(c) in ("nan", "None", "<NA>") for c in cells) == (
        none["category"].sum()
    )
