"""Types that few tables have: read, or refused with the name of the column."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pandas.testing import assert_frame_equal

import kermix as km
from kermix.errors import SchemaError

ROWS = 60
RNG = np.random.default_rng(0)
NORMAL = RNG.normal(size=ROWS)
DAYS = pd.Timestamp("2020-01-01") + pd.to_timedelta(RNG.integers(0, 300, ROWS), "D")


def round_trip(table):
    schema = km.Schema.from_dict(json.loads(json.dumps(km.Schema.of(table).to_dict())))
    return schema, schema.decode(schema.encode(table))


INTERVALS = {
    "numbers": pd.cut(NORMAL, 4),
    "with gaps": pd.cut(np.where(NORMAL > 1, np.nan, NORMAL), 4),
    "left closed": pd.cut(NORMAL, 4, right=False),
    "odd ends": pd.cut(NORMAL, [-9, -0.1 - 0.2, 1 / 3, 9]),
    "whole": pd.cut(RNG.integers(0, 90, ROWS), pd.IntervalIndex.from_breaks([-1, 30, 60, 90])),
    "days": pd.cut(DAYS, 3),
    "no category": pd.Series(pd.cut(NORMAL, 4)).astype("interval"),
}


@pytest.mark.parametrize("case", INTERVALS)
def test_intervals_come_back(case):
    table = pd.DataFrame({"c": INTERVALS[case], "z": NORMAL.round(2)})
    schema, back = round_trip(table)
    assert schema["c"].kind == "category"
    assert_frame_equal(back, table)


def test_text_views_are_text():
    table = pa.table({"c": pa.array(["a", None, "b"] * 20, pa.string_view())})
    schema, back = round_trip(table)
    assert schema["c"].values == ("a", "b")
    assert back["c"].to_pylist() == ["a", None, "b"] * 20


@pytest.mark.parametrize("origin", [10**20, -(10**20), 10**50])
@pytest.mark.parametrize("gap", [None, np.nan])
def test_whole_numbers_beyond_64_bits_come_back(origin, gap):
    cells = [origin + int(k) for k in RNG.integers(0, 10**6, ROWS)]
    cells[3] = gap
    table = pd.DataFrame({"c": pd.Series(cells, dtype=object)})
    schema, back = round_trip(table)
    assert schema["c"].kind == "number"
    assert_frame_equal(back, table)
    assert all(isinstance(c, int) for k, c in enumerate(back["c"]) if k != 3)


def test_whole_numbers_beyond_all_are_named():
    with pytest.raises(SchemaError, match="column c: holds whole numbers of more than 76 digits"):
        km.Schema.of(pd.DataFrame({"c": [10**80 + k for k in range(ROWS)]}))
    with pytest.raises(SchemaError, match="column c"):
        km.Schema.of({"c": [10**20 + k for k in range(ROWS)]})


def test_types_of_polars_that_are_not_read_are_named():
    polars = pytest.importorskip("polars")
    table = polars.DataFrame({"z": [1.5, 2.5], "c": polars.Series([1, 2], dtype=polars.Int128)})
    with pytest.raises(SchemaError, match="column c: Int128 is not read; cast it"):
        km.Schema.of(table)
