"""`decode(encode(t))` equals `t` for tables of every kind; the exceptions are tested by name."""

import datetime as dt
import json
import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal

from internals import CategoryColumn, LeftOutColumn, NumberColumn
from kermix import Schema

ROWS = st.integers(1, 60)
TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=30)


def gaps(draw, cells, missing):
    if not draw(st.booleans()):
        return cells
    marks = draw(st.lists(st.booleans(), min_size=len(cells), max_size=len(cells)))
    return [missing if m else c for c, m in zip(cells, marks, strict=True)]


def cells(draw, strategy, n):
    return draw(st.lists(strategy, min_size=n, max_size=n))


def of_category(draw, n):
    words = draw(st.lists(TEXT, min_size=1, max_size=5, unique=True))
    chosen = gaps(draw, cells(draw, st.sampled_from(words), n), None)
    way = draw(st.sampled_from(["str", "string", "object", "category", "ordered"]))
    if way in ("category", "ordered"):
        return pd.Series(pd.Categorical(chosen, categories=words, ordered=way == "ordered"))
    return pd.Series(chosen, dtype=way)


def of_truth(draw, n):
    values = cells(draw, st.booleans(), n)
    way = draw(st.sampled_from(["bool", "boolean", "object"]))
    return pd.Series(values if way == "bool" else gaps(draw, values, None), dtype=way)


def of_whole(draw, n):
    size = draw(st.sampled_from([5, 1000, 2**31 - 1, 2**40]))
    values = cells(draw, st.integers(-size, size), n)
    way = draw(st.sampled_from(["int64", "Int64", "object", "float64", "int64[pyarrow]"]))
    if way == "int64":
        return pd.Series(values, dtype=way)
    return pd.Series(gaps(draw, values, None), dtype=way)


def of_huge(draw, n):
    """Integers beyond double precision, close to each other."""
    first = draw(st.integers(2**53, 2**63 - 1001) | st.integers(-(2**63), -(2**53) - 1000))
    values = [first + k for k in cells(draw, st.integers(0, 1000), n)]
    return pd.Series(values, dtype="int64")


def of_decimals(draw, n):
    places = draw(st.integers(0, 4))
    values = [k / 10**places for k in cells(draw, st.integers(-(10**6), 10**6), n)]
    way = draw(st.sampled_from(["float64", "Float64", "float32"]))
    return pd.Series(gaps(draw, values, None), dtype=way)


def of_atoms(draw, n):
    """Mostly one number."""
    rest = cells(draw, st.sampled_from([0.0] * 8 + [1.5, 40.25, 1e5]), n)
    return pd.Series(gaps(draw, rest, math.nan))


def of_time(draw, n):
    days = st.integers(0, 20_000)
    seconds = [86_400 * k for k in cells(draw, days, n)]
    if draw(st.booleans()):
        seconds = [
            s + k for s, k in zip(seconds, cells(draw, st.integers(0, 86_399), n), strict=True)
        ]
    stamps = gaps(draw, [dt.datetime(1990, 1, 1) + dt.timedelta(seconds=s) for s in seconds], None)
    way = draw(st.sampled_from(["naive", "zone", "text", "date", "arrow", "length"]))
    series = pd.Series(stamps, dtype="datetime64[us]")
    if way == "zone":
        zone = draw(st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kolkata"]))
        return series.dt.tz_localize("UTC").dt.tz_convert(zone)
    if way == "text":
        form = draw(
            st.sampled_from(["%Y-%m-%d %H:%M:%S", "%d.%m.%Y %H:%M:%S", "%Y-%m-%dT%H:%M:%SZ"])
        )
        return series.dt.strftime(form).astype("str")
    if way == "date":
        return pd.Series([None if s is None else s.date() for s in stamps], dtype=object)
    if way == "arrow":
        return series.astype(pd.ArrowDtype(pa.timestamp("ns")))
    return series - pd.Timestamp("1990-01-01") if way == "length" else series


MAKERS = {m.__name__[3:]: m for m in
          (of_category, of_truth, of_whole, of_huge, of_decimals, of_atoms, of_time)}  # fmt: skip


@st.composite
def tables(draw):
    n = draw(ROWS)
    kinds = draw(st.lists(st.sampled_from(sorted(MAKERS)), min_size=1, max_size=4))
    names = draw(st.lists(TEXT, min_size=len(kinds), max_size=len(kinds), unique=True))
    return pd.DataFrame({name: MAKERS[k](draw, n) for name, k in zip(names, kinds, strict=True)})


def check(table, schema):
    back = schema.decode(schema.encode(table))
    for column in schema:
        if isinstance(column, LeftOutColumn) and column.kind in ("key", "text"):
            table = table.drop(columns=column.name)
            back = back.drop(columns=column.name, errors="ignore")
    assert_frame_equal(back, table, check_exact=True)


def test_the_schema_is_printed_as_a_table():
    from rich.console import Console

    table = pd.DataFrame({"[red]a": ["x", "y"] * 10, "b": [0.5, 1.25] * 10})
    schema = Schema.infer(table)
    console = Console(width=100)
    with console.capture() as shown:
        console.print(schema)
    for text in (shown.get(), str(schema)):
        assert "[red]a" in text
        assert "0.5 to 1.25, 2 decimals" in text


@relaxed
@given(tables())
def test_any_table_comes_back(table):
    schema = Schema.infer(table)
    check(table, schema)
    again = Schema.from_dict(json.loads(json.dumps(schema.to_dict(), ensure_ascii=False)))
    assert str(again) == str(schema)
    check(table, again)


@relaxed
@given(tables(), st.integers(0, 2**32 - 1))
def test_a_schema_is_a_symmetric_function_of_pooled_rows(table, seed):
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(table))
    cut = int(rng.integers(0, len(table) + 1))
    mixed = table.iloc[order]
    pooled = Schema.infer(mixed[:cut], mixed[cut:])
    turned = Schema.infer(mixed[cut:], mixed[:cut])
    assert pooled.to_dict() == turned.to_dict()
    check(table, pooled)


@relaxed
@given(tables())
def test_encoded_tables_are_sound(table):
    schema = Schema.infer(table)
    encoded = schema.encode(table)
    assert encoded.codes.dtype == np.int64
    assert encoded.codes.shape == (len(table), len(schema.modelled))
    assert (encoded.codes >= 0).all()
    assert (encoded.codes < np.array(schema.code_counts, dtype=np.int64)).all()
    assert np.isfinite(encoded.values).all()
    assert np.isfinite(schema.log_derivative(encoded)).all()
    assert np.isfinite(schema.positions(encoded)).all()
    own = encoded.codes[:, schema.number_columns]
    assert (encoded.values[own != 0] == 0).all()
    for k, column in enumerate(schema.modelled):
        empty = table[column.name].isna().to_numpy()
        assert column.has_missing == empty.any()
        if column.has_missing:
            assert ((encoded.codes[:, k] == column.missing_code) == empty).all()
        assert len(column.code_names) == column.code_count


@relaxed
@given(tables(), st.integers(0, 2**32 - 1))
def test_any_codes_and_scores_decode_to_valid_cells(table, seed):
    """What a model may draw: values of the column, whole numbers whole, inside the range."""
    schema = Schema.infer(table)
    encoded = schema.encode(table)
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, np.array(schema.code_counts, int), size=(40, len(schema.modelled)))
    drawn = type(encoded)(codes, 3 * rng.standard_cauchy((40, len(schema.numbers))), encoded.frame)
    back = schema.decode(drawn)
    for k, column in enumerate(schema.modelled):
        given, found = table[column.name], back[column.name]
        assert found.dtype == given.dtype or not column.has_missing
        assert (found.isna().to_numpy() == (codes[:, k] == column.missing_code)).all()
        if isinstance(column, NumberColumn) and found.notna().any():
            if column.text is None:
                assert found.dropna().min() >= given.dropna().min()
                assert found.dropna().max() <= given.dropna().max()
        elif isinstance(column, CategoryColumn):
            allowed = set(given.cat.categories) if hasattr(given, "cat") else set(given.dropna())
            assert set(found.dropna()) <= allowed


@pytest.mark.parametrize("rows", [1, 2])
def test_one_row_or_two(rows):
    table = pd.DataFrame({"a": [1.5, 2.5], "b": ["x", "y"], "c": [None, "z"], "d": [None, None]})
    table = table.assign(when=pd.to_datetime(["2020-01-01", "2021-05-06"]))[:rows]
    check(table, Schema.infer(table))


def test_a_thousand_columns():
    rng = np.random.default_rng(0)
    kinds = [lambda: rng.normal(size=8).round(2), lambda: rng.choice(["a", "b"], 8)]
    many = pa.table({f"c{k}": kinds[k % 2]() for k in range(1100)})
    schema = Schema.infer(many)
    assert schema.decode(schema.encode(many)).equals(many)


@pytest.mark.slow
@settings(relaxed, max_examples=3)
@given(st.data())
def test_five_thousand_columns_of_every_kind(data):
    n = data.draw(st.integers(1, 12))
    every = [maker(data.draw, n) for maker in MAKERS.values()]
    many = pd.DataFrame({f"c{k}": every[k % len(every)] for k in range(5000)})
    check(many, Schema.infer(many))


@pytest.mark.parametrize("kind", ["arrow", "dict"])
def test_other_frames_come_back_as_they_were(kind):
    zone = pa.timestamp("ms", tz="America/New_York")
    table = pa.table({
        "words": pa.array(["a", "b", None, "a"] * 9).dictionary_encode(),
        "large": pa.array(["x", "y", "x", "y"] * 9, pa.large_string()),
        "small": pa.array([1, 2, None, 3] * 9, pa.int8()),
        "unsigned": pa.array([2**64 - 1, 2**64 - 5] * 18, pa.uint64()),
        "half": pa.array([0.5, 1.5, float("nan"), 2.5] * 9, pa.float32()),
        "money": pa.array([None, "1.25", "3.50", "19.99"] * 9).cast(pa.decimal128(8, 2)),
        "when": pa.array([1_700_000_000_123 + 7 * k for k in range(36)]).cast(zone),
        "day": pa.array(range(36), pa.int32()).cast(pa.date32()),
        "clock": pa.array([60 * k for k in range(36)], pa.int32()).cast(pa.time32("s")),
        "nothing": pa.nulls(36),
    })  # fmt: skip
    given = table if kind == "arrow" else {n: table[n].to_pylist() for n in table.column_names}
    schema = Schema.infer(given, atoms_up_to=0)
    back = schema.decode(schema.encode(given))
    if kind == "arrow":
        assert back.schema == table.schema
        for name in table.column_names:
            found, wanted = back[name].to_pylist(), table[name].to_pylist()
            assert str(found) == str(wanted), name
    else:
        assert str(back) == str(given)
    again = schema.decode(schema.encode(given), "pandas")
    assert list(again) == table.column_names


def test_polars_tables_come_back_as_they_were():
    polars = pytest.importorskip("polars")
    table = polars.DataFrame({
        "a": ["x", "y", None] * 20,
        "n": [None if k % 7 == 0 else 3 * k for k in range(60)],
        "when": [dt.datetime(2020, 1, 1) + dt.timedelta(hours=5 * k) for k in range(60)],
        "b": [True, False, None] * 20,
        "level": polars.Series(["lo", "hi", "mid"] * 20, dtype=polars.Enum(["lo", "mid", "hi"])),
        "c": polars.Series(["u", "v"] * 30, dtype=polars.Categorical),
    })  # fmt: skip
    schema = Schema.infer(table)
    back = schema.decode(schema.encode(table))
    assert back.schema == table.schema
    assert back.equals(table)


def test_arrays_and_tensors_are_tables_of_numbers():
    import torch

    values = torch.arange(60.0).reshape(20, 3)
    schema = Schema.infer(values, kinds=dict.fromkeys(("x0", "x1", "x2"), "number"))
    back = schema.decode(schema.encode(values))
    assert (back == values.numpy()).all()
    codes, scores = schema.encode(values).tensors()
    assert codes.dtype == torch.int64
    assert scores.dtype == torch.float32


def test_objects_of_several_types_keep_their_types():
    table = pd.DataFrame({"m": pd.Series([1, "1", 1.5, True, None] * 5, dtype=object)})
    back = Schema.infer(table).decode(Schema.infer(table).encode(table))
    kinds = [type(c) for c in back["m"]]
    assert kinds == [type(c) for c in table["m"]]
    assert back["m"].tolist() == table["m"].tolist()


# --- The exceptions, each as the guide lists them.


def test_keys_are_made_anew():
    n = 30
    table = pd.DataFrame({
        "row": range(100, 100 + n),
        "customer_id": np.random.default_rng(0).permutation(10_000)[:n],
        "code": [f"AB-{k:05d}" for k in range(7, 7 + n)],
        "word": [f"{'xyz'[k % 3]}{k}q" for k in range(n)],
    })  # fmt: skip
    schema = Schema.infer(table)
    assert [c.kind for c in schema] == ["key"] * 4
    back = schema.decode(schema.encode(table)[: n - 1])
    assert back["row"].tolist() == list(range(100 + n, 99 + 2 * n))
    assert back["code"].iloc[0] == "AB-00037"
    assert back["customer_id"].between(0, 9999).all()
    assert back["word"].str.fullmatch("[xyz][0-9]+q").all()
    for name in table:
        assert back[name].is_unique
        assert not set(back[name]) & set(table[name])
    assert (back.dtypes == table.dtypes).all()


def test_free_text_comes_back_empty():
    rng = np.random.default_rng(0)
    words = [" ".join(rng.choice(["lorem", "ipsum", "dolor"], 15)) for _ in range(50)]
    table = pd.DataFrame({"comment": words, "stars": rng.integers(1, 6, 50)})
    schema = Schema.infer(table)
    assert schema["comment"].kind == "text"
    assert "Left out as free text: comment." in schema.notes()
    back = schema.decode(schema.encode(table))
    assert list(back) == ["comment", "stars"]
    assert back["comment"].isna().all()
    assert back["comment"].dtype == table["comment"].dtype


def test_folded_values_come_back_as_other():
    table = pd.DataFrame({"w": ["a"] * 10 + ["b"] * 10 + ["rare"]})
    schema = Schema.infer(table, fold_below=2)
    back = schema.decode(schema.encode(table, unseen="other"))
    assert back["w"].tolist() == ["a"] * 10 + ["b"] * 10 + ["other"]


def test_numbers_of_more_than_twelve_digits_come_back_to_a_part_in_a_million_million():
    rng = np.random.default_rng(0)
    for x in (rng.normal(size=200), 1e9 + rng.normal(size=200), rng.standard_cauchy(200),
              np.exp(rng.normal(0, 40, 200)), rng.integers(-(2**62), 2**62, 200)):  # fmt: skip
        table = pd.DataFrame({"x": x})
        schema = Schema.infer(table)
        back = schema.decode(schema.encode(table))
        column = schema["x"].map
        spread = np.abs(x.astype(float) - column.middle) + column.scale
        error = np.abs(back["x"].to_numpy().astype(float) - x.astype(float))
        assert (error <= 1e-12 * spread + 2 * np.spacing(np.abs(x).astype(float))).all()
        assert back.dtypes["x"] == table.dtypes["x"]


@pytest.mark.parametrize("unit", ["D", "s", "us"])
@pytest.mark.parametrize("values", [[0, 0], [3, 3, 3], [3, 5] * 20])
def test_durations_come_back_be_they_constant_or_not(values, unit):
    table = pd.DataFrame({"a": pd.to_timedelta(values, unit=unit), "b": range(len(values))})
    schema = Schema.infer(table)
    back = schema.decode(schema.encode(table))
    assert back["a"].equals(table["a"])
