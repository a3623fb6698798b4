"""Questions to a fitted table: what a page shows is what the library computes."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm

import kermix as km
from explore_cases import EVIL, HOSTILE, people
from internals import (
    QueryService,
    TableData,
    TableMixture,
    as_frame,
    checked,
    outliers,
    texts,
)
from kermix import Schema
from kermix.errors import KermixError, OptionError, SchemaError


@pytest.fixture(scope="module")
def model():
    kinds = {"pets": "number"}  # few values, shown as bars
    return km.TableModel(kinds=kinds, width=16, blocks=1, steps=40, random_state=0).fit(people())


@pytest.fixture(scope="module")
def questions(model):
    return QueryService(model)


def gaussian(table, mean, deviations):
    """Independent normal columns with a density that is known."""
    mixture = km.GaussianMixture(
        torch.ones(1).double(), torch.tensor([mean]).double(),
        torch.tensor([deviations]).double() ** 2,
    )  # fmt: skip
    return TableMixture(Schema.infer(table), mixture, "pandas", "one Gaussian")


def test_answers_are_what_the_library_computes(model, questions):
    given = {"sex": "m", "pets": "2", HOSTILE: EVIL}
    known = {"sex": "m", "pets": 2, HOSTILE: EVIL}
    answer = questions.ask(given)
    assert list(answer) == ["sex", "size", "pets", HOSTILE, "day", "income"]
    size = model.conditional("size", known)
    found = answer["size"]
    for share, name in ((0.05, "low"), (0.5, "middle"), (0.95, "high")):
        assert float(found[name]) == pytest.approx(size.quantile(share)[0])
    sex = model.conditional("sex", known)
    assert answer["sex"]["shares"] == pytest.approx(sex.filled[0], abs=1e-5)
    assert answer["sex"]["place"] == 1
    pets = model.conditional("pets", known)
    missing = pets.probabilities[0, pets.column.missing_code]
    assert answer["pets"]["missing"] == pytest.approx(missing, abs=1e-6)
    day = model.conditional("day", known).quantile(0.5)[0]
    assert pd.Timestamp(answer["day"]["middle"]) == pd.Timestamp(day)
    row = questions.likely(given)
    assert (row["sex"], row["pets"], row[HOSTILE]) == ("m", "2", EVIL)


@pytest.mark.parametrize("name", ["size", "pets", "day", "income"])
def test_shares_are_those_of_draws(model, questions, name):
    scale = questions.scales[name]
    row = people().iloc[5].astype(object).drop([name, "key"])
    drawn = model.sample(20_000, given=row.to_dict(), random_state=0)
    encoded = model.schema_.encode(drawn, extra=True)
    place = [c.name for c in model.schema_.modelled].index(name)
    number = [c.name for c in model.schema_.numbers].index(name)
    codes = encoded.codes[:, place]
    if scale.bins is None:
        counted = np.roll(np.bincount(codes[codes <= len(scale.column.atoms)]), -1)
        counted = counted / counted.sum()
    else:
        numbers = scale.column.numbers_of(codes, encoded.values[:, number])
        counted = scale.bins.shares(numbers[~np.isnan(numbers)])
    given = {n: None if pd.isna(v) else str(v) for n, v in row.items()}
    shares = questions.ask(given)[name]["shares"]
    assert sum(shares) == pytest.approx(1, abs=1e-4)
    assert np.abs(counted - shares).sum() / 2 < 0.04


def test_every_position_of_a_slider_can_be_asked(questions):
    for column in questions.described["columns"]:
        offered = column.get("values", column.get("positions"))
        assert 2 <= len(offered) <= 101
        assert len(set(offered)) == len(offered)
        for value in (offered[0], offered[len(offered) // 2], offered[-1]):
            assert questions.likely({column["name"]: value})[column["name"]] == value
            assert questions.ask({column["name"]: value})[column["name"]]["place"] is not None
    size = [float(v) for v in questions.described["columns"][1]["positions"]]
    assert size == sorted(size)
    table = people()
    assert (size[0], size[-1]) == (table["size"].min(), table["size"].max())
    # As many rows between any two positions: the middle one is about the median.
    assert (table["size"] <= size[len(size) // 2]).mean() == pytest.approx(0.5, abs=0.15)


def test_a_gap_can_be_given(model, questions):
    answer = questions.ask({"pets": None})
    assert questions.likely({"pets": None})["pets"] is None
    assert answer["pets"]["place"] is None
    middle = model.conditional("size", {"pets": None}).quantile(0.5)[0]
    assert float(answer["size"]["middle"]) == pytest.approx(middle)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ([], "an object of values"),
        ({"sx": "m"}, "no column sx; did you mean sex"),
        ({"key": "P-0001"}, "key is a key, which is not modelled"),
        ({"size": "tall"}, "'tall' is not a number"),
        ({"size": 172.0}, "must be text"),
        ({"size": "nan"}, "missing"),
        ({"size": "inf"}, "infinite"),
        ({"size": "1e9"}, "outside the range"),
        ({"sex": "M"}, "is never 'M'"),
        ({"sex": ["m"]}, "must be text"),
        ({"day": "yesterday"}, "is not a time"),
        ({"sex": "m" * 10_001}, "more than 10000 characters"),
    ],
)
def test_odd_input_is_refused_by_name(questions, given, error):
    with pytest.raises(KermixError, match=error):
        questions.ask(given)


@pytest.mark.parametrize("count", [0, -1, 2.5, "3", True, None, 100_001])
def test_odd_numbers_of_draws_are_refused(questions, count):
    with pytest.raises(OptionError, match="n="):
        questions.draws({}, count, 0)
    with pytest.raises(OptionError, match="seed="):
        questions.draws({}, 1, -1)


def test_draws_are_those_of_the_model(model, questions):
    table = questions.draws({"sex": "m"}, 30, 7)
    source = torch.Generator().manual_seed(7)
    same = model.sample(30, given={"sex": "m"}, random_state=source, frame="arrow")
    assert table.equals(same)
    shown = questions.shown_draws({"sex": "m"}, 3, 7)
    assert shown["names"] == table.column_names
    assert [row[0] for row in shown["rows"]] == ["m"] * 3


def test_odd_rows_have_the_lowest_density_and_say_why():
    """Independent columns: the surprise of a cell is known in closed form."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(0, 1, 600), "b": rng.normal(5000, 1000, 600)})
    table.loc[17, "b"] = 15_000.0
    table.loc[33, "a"] = -7.0
    model = gaussian(table, [0.0, 5000.0], [1.0, 1000.0])
    found = outliers(model, as_frame(table))
    assert [row["row"] for row in found["rows"][:2]] == [17, 33]
    logs = norm(0, 1).logpdf(table["a"]) + norm(5000, 1000).logpdf(table["b"])
    assert found["rows"][0]["log_density"] == pytest.approx(logs[17])
    assert found["median"] == pytest.approx(np.median(logs))
    (reason,) = found["rows"][0]["reasons"]
    assert reason["column"] == "b"
    # 50 nats for ten deviations, less what is usual: half a nat.
    assert reason["nats"] == pytest.approx(50 - 0.5, abs=0.2)
    assert float(reason["expected"]) == pytest.approx(5000, abs=1)
    assert found["rows"][1]["reasons"][0]["column"] == "a"
    assert found["rows"][1]["values"]["a"] == "-7"
    assert len(found["rows"]) == 100


def test_the_reasons_of_an_odd_row_do_not_depend_on_units():
    rng = np.random.default_rng(1)
    table = pd.DataFrame({"a": rng.normal(0, 1, 300), "b": rng.normal(0, 1, 300)})
    table.loc[5, "a"] = 6.0
    nats = []
    for unit in (1e-4, 1.0, 1e4):
        scaled = table * [unit, 1.0]
        found = outliers(gaussian(scaled, [0.0, 0.0], [unit, 1.0]), as_frame(scaled))
        assert found["rows"][0]["row"] == 5
        nats.append([r["nats"] for r in found["rows"][0]["reasons"]])
    np.testing.assert_allclose(nats[0], nats[1])
    np.testing.assert_allclose(nats[2], nats[1])


def test_a_mixed_table_has_odd_rows_too(model):
    table = people()
    table.loc[3, "size"] = 150.0
    table.loc[3, "sex"] = "m"
    found = outliers(model, as_frame(table))
    assert len(found["rows"]) == 100
    logs = [row["log_density"] for row in found["rows"]]
    assert logs == sorted(logs)
    np.testing.assert_allclose(logs, np.sort(model.score_samples(table))[:100])


def test_data_and_samples_are_compared_worst_first(model):
    table = people()
    data = TableData.of(as_frame(table), model.schema_, model.network_.layout)
    half = np.arange(200)
    found = checked(model, data, (half[:20], half[20:]), 0)
    differences = [column["difference"] for column in found["columns"]]
    assert differences == sorted(differences, reverse=True)
    sex = next(c for c in found["columns"] if c["name"] == "sex")
    shares = [f">{100 * (table['sex'] == v).mean():.0f}, " for v in "fm"]
    assert all(share in sex["chart"] for share in shares)
    pets = next(c for c in found["columns"] if c["name"] == "pets")
    assert pets["data_missing"] == pytest.approx(table["pets"].isna().mean())
    pairs = [pair["difference"] for pair in found["pairs"]]
    assert pairs == sorted(pairs, reverse=True)
    assert all(pair["chart"].startswith("<svg") for pair in found["pairs"])
    assert 0 <= found["scores"]["auc"] <= 1


def test_texts_are_read_back_as_the_same_values(model):
    table = people(50)
    frame = as_frame(table)
    for name in ("size", "income", "day", "pets", "sex"):
        written = texts(frame.columns[name])
        again = QueryService(model).typed({name: written[7]})[name].to_pylist()[0]
        assert again == frame.columns[name][7].as_py()
    with pytest.raises(SchemaError):
        QueryService(model).ask({"pets": None, "sex": None})


def test_whole_numbers_of_many_digits_are_kept():
    """Odd ones beyond 2**53 are no floats; those of a text stay what they are."""
    rng = np.random.default_rng(0)
    table = {"big": 2**53 + rng.integers(0, 20_000, 200), "x": rng.normal(size=200)}
    model = km.TableModel(kinds={"big": "number"}, width=8, blocks=1, steps=3, random_state=0)
    questions = QueryService(model.fit(table))
    given = {"big": str(2**53 + 12_345)}
    assert float(given["big"]) != int(given["big"])
    assert [row[0] for row in questions.shown_draws(given, 3, 0)["rows"]] == [given["big"]] * 3
    assert questions.likely(given)["big"] == given["big"]
    assert questions.typed({"x": "99999999999999999999"})["x"].to_pylist() == [1e20]
    with pytest.raises(OptionError, match="'0x10' is not a number"):
        questions.ask({"x": "0x10"})


def test_how_much_the_order_counts_is_told_where_it_is_much(model):
    spread = QueryService(model).order_spread
    rows = model.sample(200, random_state=0)
    assert spread == pytest.approx(model.order_spread(rows), rel=0.2)
    for least, expected in ((spread * 2, None), (spread / 2, spread)):
        described = QueryService(model, large_spread=least).described
        assert described.get("order_spread") == expected
    values = np.random.default_rng(0).normal(size=(50, 2))
    closed = gaussian(pd.DataFrame(values, columns=["a", "b"]), [0.0, 0.0], [1.0, 1.0])
    assert QueryService(closed).order_spread == 0
