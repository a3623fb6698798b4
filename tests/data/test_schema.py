"""Kinds of columns, and tables that do not match a schema."""

import json
import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy import stats

import kermix as km
from kermix.errors import OptionError, SchemaError

ROWS = 200
RNG = np.random.default_rng(0)
TABLE = pd.DataFrame({
    "id": range(ROWS),
    "color": RNG.choice(["red", "green", "blue"], ROWS),
    "rooms": RNG.integers(1, 6, ROWS),
    "price": RNG.lognormal(10, 1, ROWS).round(2),
    "sold": RNG.choice([True, False], ROWS),
    "when": pd.date_range("2020-01-01", periods=ROWS, freq="D"),
    "day": pd.date_range("2020-01-01", periods=ROWS, freq="D").strftime("%d.%m.%Y"),
    "gain": np.where(RNG.random(ROWS) < 0.8, 0, RNG.integers(1, 10_000, ROWS)),
    "country": "NL",
    "note": [f"remark number {k}, which is long enough for free text".ljust(61, ".")
             for k in range(ROWS)],
    "empty": None,
})  # fmt: skip
KINDS = {"id": "key", "color": "category", "rooms": "category", "price": "number",
         "sold": "category", "when": "time", "day": "time", "gain": "number",
         "country": "constant", "note": "text", "empty": "constant"}  # fmt: skip


def test_kinds_are_found():
    assert {c.name: c.kind for c in km.Schema.infer(TABLE)} == KINDS


def test_kinds_can_be_said():
    given = {"rooms": "number", "price": "category", "color": "text", "sold": "key"}
    schema = km.Schema.infer(TABLE, kinds=given)
    assert {n: schema[n].kind for n in given} == given
    assert km.Schema.infer(TABLE, category_up_to=3)["rooms"].kind == "number"
    words = pd.DataFrame({"n": ["1.5", "2", "10", None]})
    assert km.Schema.infer(words, kinds={"n": "number"})["n"].high == 10


def test_types_that_are_not_known_are_left_out():
    lists = pa.table({"l": [[1], [2, 3]], "b": [b"x", b"y"], "n": [1.5, 2.5]})
    schema = km.Schema.infer(lists)
    assert [c.kind for c in schema] == ["text", "text", "number"]
    back = schema.decode(schema.encode(lists))
    assert back.column_names == ["l", "b", "n"]
    assert back["l"].null_count == back["b"].null_count == 2


def test_a_file_is_a_table(tmp_path):
    TABLE.to_csv(tmp_path / "t.csv", index=False)
    schema = km.Schema.infer(tmp_path / "t.csv")
    kinds = {c.name: c.kind for c in schema}
    assert kinds == KINDS
    codes = schema.encode(tmp_path / "t.csv").codes
    assert codes.shape == (ROWS, 7)
    assert schema.decode(schema.encode(tmp_path / "t.csv")).num_rows == ROWS


def test_columns_are_chosen():
    assert km.Schema.infer(TABLE, columns=["price", "color"]).names == ("price", "color")
    assert "id" not in km.Schema.infer(TABLE, exclude=["id"]).names


def test_atoms_are_values_of_many_rows():
    column = km.Schema.infer(TABLE)["gain"]
    assert column.atoms.tolist() == [0]
    assert column.continuous == pytest.approx((TABLE["gain"] != 0).mean())
    assert column.code_names == ("(continuous)", "0")
    assert km.Schema.infer(TABLE, atoms_up_to=0, atom_share=1)["gain"].atoms.size == 0


def test_a_date_that_could_be_two_is_the_one_that_fits_all():
    ends = pd.DataFrame({"d": ["01/02/2020", "03/04/2021", "31/12/2020"]})
    assert km.Schema.infer(ends)["d"].text == ("%d/%m/%Y", "s")
    ends = pd.DataFrame({"d": ["01/02/2020", "03/04/2021", "12/31/2020"]})
    assert km.Schema.infer(ends)["d"].text == ("%m/%d/%Y", "s")


@pytest.mark.parametrize("text", ["2020-1-5", "2020-13-01", "20200101", "5 o'clock am"])
def test_what_would_not_be_written_back_alike_is_no_date(text):
    table = pd.DataFrame({"d": ["2020-01-01", text]})
    assert km.Schema.infer(table)["d"].kind != "time"


def test_positions_give_atoms_their_number_and_gaps_none():
    table = pd.DataFrame({"x": [0.0] * 50 + list(np.linspace(1, 5, 50)) + [math.nan]})
    schema = km.Schema.infer(table)
    found = schema.positions(schema.encode(table))[:, 0]
    assert (found[:50] < found[50:100].min()).all()
    assert found[-1] == 0


def test_log_densities_are_in_the_users_units():
    seconds = np.sort(RNG.choice(10**6, 400, replace=False))
    days = pd.DataFrame({"t": pd.to_datetime(seconds, unit="s"), "x": seconds / 7})
    schema = km.Schema.infer(days)
    encoded = schema.encode(days)
    found = schema.log_derivative(encoded)
    inner = slice(100, 300)
    for k, numbers in enumerate((seconds.astype(float), seconds / 7)):
        slopes = np.gradient(encoded.values[:, k], numbers)
        assert np.median(np.exp(found[inner, k]) / slopes[inner]) == pytest.approx(1, abs=0.01)
    log_density = stats.norm.logpdf(encoded.values[:, 1]) + found[:, 1]
    assert log_density.mean() == pytest.approx(-math.log(10**6 / 7), abs=0.1)


def test_a_schema_is_saved_and_loaded(tmp_path):
    schema = km.Schema.infer(TABLE)
    schema.save(tmp_path / "schema.json")
    again = km.Schema.load(tmp_path / "schema.json")
    assert again.to_dict() == schema.to_dict()
    assert (again.encode(TABLE).codes == schema.encode(TABLE).codes).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "not a kermix schema"),
        ({"version": 99}, "version 99"),
        ({"columns": [{"kind": "number"}]}, "damaged"),
        ({"columns": [{"kind": "strange", "name": "a", "type": {"arrow": "int64"}}]}, "damaged"),
    ],
)
def test_a_damaged_schema_is_refused(tmp_path, change, message):
    saved = {**km.Schema.infer(TABLE).to_dict(), **change}
    (tmp_path / "s.json").write_text(json.dumps(saved))
    with pytest.raises(SchemaError, match=message):
        km.Schema.load(tmp_path / "s.json")
    (tmp_path / "s.json").write_text("{")
    with pytest.raises(SchemaError, match=r"s\.json"):
        km.Schema.load(tmp_path / "s.json")


REFUSED = {
    "unseen": (TABLE.assign(color="pink"), "row 0, column color: the schema has no value 'pink'"),
    "missing column": (TABLE.drop(columns="price"), "there is no column price"),
    "extra column": (TABLE.assign(more=1), "the schema has no column more"),
    "text for numbers": (TABLE.assign(price="dear"), "column price: 'dear' is not a number"),
    "numbers for text": (TABLE.assign(color=3), "column color: holds numbers"),
    "times for numbers": (TABLE.assign(price=TABLE["when"]), "column price: holds timestamp"),
    "numbers for times": (TABLE.assign(when=1.5), "column when: holds numbers"),
    "another date format": (TABLE.assign(day="2020-01-01"), "not a time written as %d.%m.%Y"),
    "infinite": (TABLE.assign(price=math.inf), "column price: 200 values are infinite"),
    "new gaps": (TABLE.assign(rooms=[None] + [1] * (ROWS - 1)), "column rooms: 1 values are miss"),
    "half a room": (TABLE.assign(rooms=1.5), "column rooms: the schema has no value 1.5"),
}  # fmt: skip


@pytest.mark.parametrize("fault", REFUSED)
def test_a_table_that_does_not_match_is_refused(fault):
    table, message = REFUSED[fault]
    with pytest.raises(SchemaError, match=message):
        km.Schema.infer(TABLE).encode(table)


def test_unseen_values_and_gaps_may_be_unknown():
    schema = km.Schema.infer(TABLE, fold_below=1)
    other = TABLE.assign(color="pink", rooms=[None] + [1] * (ROWS - 1))
    codes = schema.encode(other, unseen="unknown").codes
    names = [c.name for c in schema.modelled]
    assert (codes[:, names.index("color")] == -1).all()
    assert codes[0, names.index("rooms")] == -1
    folded = schema.encode(TABLE.assign(color="pink"), unseen="other")
    assert schema["color"].code_names[folded.codes[0, names.index("color")]] == "(other)"
    assert schema.decode(folded)["color"].unique().tolist() == ["other"]


def test_columns_may_come_in_another_order_and_type():
    schema = km.Schema.infer(TABLE)
    turned = TABLE[TABLE.columns[::-1]].assign(rooms=TABLE["rooms"].astype(float))
    assert (schema.encode(turned).codes == schema.encode(TABLE).codes).all()
    assert schema.encode(TABLE.assign(more=1), extra=True).codes.shape == (ROWS, 7)


def test_tables_are_pooled_into_a_type_that_holds_both():
    first = pd.DataFrame({"a": [1, 2] * 20, "b": [None] * 40})
    second = pd.DataFrame({"a": [0.5, None] * 20, "b": ["x", "y"] * 20})
    schema = km.Schema.infer(first, second)
    assert schema["a"].low == 0.5
    assert schema["a"].gaps == 0.25
    assert len(schema.encode(first)) == len(schema.encode(second)) == 40
    with pytest.raises(SchemaError, match="Column a holds"):
        km.Schema.infer(first, pd.DataFrame({"a": ["x"], "b": ["x"]}))
    with pytest.raises(SchemaError, match="only table 1 has a, b; only table 2 has c"):
        km.Schema.infer(first, pd.DataFrame({"c": [1]}))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pd.DataFrame(), "no columns"),
        (pd.DataFrame({"a": []}), "no rows"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "appear twice: a"),
        (pd.DataFrame([[1, 2]], columns=[0, "0"]), "appear twice: 0"),
        (pd.DataFrame([[1]], columns=[("a", "b")]), "several levels"),
        (pd.DataFrame({"a": [1j]}), "column a: dtype complex128"),
        (pd.DataFrame({"a": pd.Series([object(), object()])}), "column a: holds objects"),
        ({"a": [1], "b": [1, 2]}, "column a has 1 rows and column b has 2"),
        ({"a": [1, "x"]}, "column a"),
        (np.zeros(3), "shape"),
        (np.array([["a"]]), "real numbers"),
        (3, "is not a table"),
        (pa.table([[1], [2]], names=["a", "a"]), "appear twice"),
    ],
)
def test_what_is_no_table_is_refused(table, message):
    with pytest.raises(SchemaError, match=message):
        km.Schema.infer(table)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"kinds": {"nope": "number"}}, OptionError, "no column nope"),
        ({"kinds": {"price": "integer"}}, OptionError, "integer"),
        ({"kinds": {"note": "number"}}, SchemaError, "is not a number"),
        ({"kinds": {"color": "time"}}, SchemaError, "column color"),
        (
            {"kinds": {"price": "time"}},
            SchemaError,
            "column price: holds double, which is not a time",
        ),
        ({"kinds": {"color": "constant"}}, SchemaError, "not a constant"),
        ({"columns": ["nope"]}, SchemaError, "no column nope"),
        ({"columns": "price"}, OptionError, "list of names"),
        ({"exclude": list(TABLE)}, SchemaError, "no column is left"),
        ({"fold_below": -1}, OptionError, "fold_below"),
    ],
)
def test_options_that_cannot_be_followed_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        km.Schema.infer(TABLE, **options)


def test_what_is_decoded_is_checked():
    schema = km.Schema.infer(TABLE)
    encoded = schema.encode(TABLE)
    wrong = {
        "codes of column": (encoded.codes + 1000, encoded.values),
        "shape": (encoded.codes[:, 1:], encoded.values),
        "NaN": (encoded.codes, encoded.values * np.nan),
    }
    for message, (codes, values) in wrong.items():
        with pytest.raises(SchemaError, match=message):
            schema.decode(km.EncodedTable(codes, values))
    with pytest.raises(OptionError, match="frame"):
        schema.decode(encoded, "excel")


def test_values_that_stand_out_of_their_neighbours_are_atoms():
    rng = np.random.default_rng(0)
    paid = np.concatenate([rng.uniform(0, 9000, 9970).round(2), np.full(30, 4500.0)])
    (column,) = km.Schema.infer({"paid": paid}).numbers
    assert column.atoms.tolist() == [4500.0]
    (plain,) = km.Schema.infer({"paid": paid[:9970]}).numbers
    assert len(plain.atoms) == 0
