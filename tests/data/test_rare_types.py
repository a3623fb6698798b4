"""Types that few tables have: read, or refused with the name of the column."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import kermix as km
from kermix.errors import SchemaError

ROWS = 60
RNG = np.random.default_rng(0)
NORMAL = RNG.normal(size=ROWS)


def round_trip(table):
    schema = km.Schema.from_dict(json.loads(json.dumps(km.Schema.infer(table).to_dict())))
    return schema, schema.decode(schema.encode(table))


@pytest.mark.parametrize("dtype", ["category", "interval"])
def test_intervals_are_refused_by_the_name_of_their_column(dtype):
    table = pd.DataFrame({"z": NORMAL, "c": pd.Series(pd.cut(NORMAL, 4)).astype(dtype)})
    with pytest.raises(SchemaError, match=r"column c: holds pandas intervals; .*astype\(str\)"):
        km.Schema.infer(table)
    schema, back = round_trip(table.assign(c=table["c"].astype(str)))
    assert schema["c"].kind == "category"
    assert back["c"].tolist() == table["c"].astype(str).tolist()


def test_text_views_are_text():
    table = pa.table({"c": pa.array(["a", None, "b"] * 20, pa.string_view())})
    schema, back = round_trip(table)
    assert schema["c"].values == ("a", "b")
    assert back["c"].to_pylist() == ["a", None, "b"] * 20


@pytest.mark.parametrize("gap", [10**20, None])
def test_whole_numbers_beyond_64_bits_are_refused_by_the_name_of_their_column(gap):
    cells = [gap, *(10**20 + int(k) for k in RNG.integers(0, 10**6, ROWS))]
    with pytest.raises(SchemaError, match="column c: holds whole numbers beyond 64 bits; convert"):
        km.Schema.infer(pd.DataFrame({"c": pd.Series(cells, dtype=object)}))
    with pytest.raises(SchemaError, match="column c"):
        km.Schema.infer({"c": cells})


def test_types_of_polars_that_are_not_read_are_named():
    polars = pytest.importorskip("polars")
    table = polars.DataFrame({"z": [1.5, 2.5], "c": polars.Series([1, 2], dtype=polars.Int128)})
    with pytest.raises(SchemaError, match="column c: Int128 is not read; cast it"):
        km.Schema.infer(table)
