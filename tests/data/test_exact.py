"""Whole and decimal numbers far from zero lose nothing; the largest of 64 bits are no trap."""

import json
from decimal import Decimal, localcontext

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import kermix as km
from internals import as_floats, from_floats, origin_of

ROWS = 60


def round_trip(column):
    table = pa.table({"c": column})
    schema = km.Schema.from_dict(json.loads(json.dumps(km.Schema.infer(table).to_dict())))
    return schema, schema.decode(schema.encode(table))["c"].to_pylist()


def decimals(origin, scale, spread, kind=pa.decimal128, digits=38, seed=0):
    steps = np.random.default_rng(seed).integers(0, spread, ROWS)
    with localcontext(prec=80):
        cells = [Decimal(origin) + Decimal(int(k)) / 10**scale for k in steps]
    return pa.array(cells, kind(digits, scale))


@pytest.mark.parametrize("scale", [0, 2, 6, 10])
@pytest.mark.parametrize("origin", [0, 10**9, 10**15, 10**20, -(10**20)])
def test_decimals_far_from_zero_come_back(origin, scale):
    column = decimals(origin, scale, 10 ** min(scale + 2, 11))
    schema, found = round_trip(column)
    assert schema["c"].kind == "number"
    assert found == column.to_pylist()


def test_wide_decimals_come_back():
    column = decimals(10**30, 2, 9999, pa.decimal256, 40)
    schema, found = round_trip(column)
    assert schema["c"].kind == "number"
    assert found == column.to_pylist()


def test_decimals_of_a_wide_spread_are_as_near_as_floats_are():
    steps = np.random.default_rng(0).integers(0, 10**18, ROWS)
    column = pa.array([Decimal(10**30 + int(k)) for k in steps], pa.decimal256(40, 0))
    _, found = round_trip(column)
    errors = [abs(a - b) for a, b in zip(found, column.to_pylist(), strict=True)]
    assert max(errors) <= 10**18 * Decimal("1e-12")


def test_decimals_keep_densities_in_their_units():
    near, far = (decimals(origin, 2, 9999) for origin in (0, 10**20))
    log_derivatives = []
    for column in (near, far):
        table = pa.table({"c": column})
        schema = km.Schema.infer(table)
        log_derivatives.append(schema.log_derivative(schema.encode(table)))
    assert log_derivatives[0] == pytest.approx(log_derivatives[1], abs=1e-9)


def test_decimals_of_several_tables_are_pooled():
    first, second = (pa.table({"c": decimals(10**20, 2, 999, seed=k)}) for k in (0, 1))
    schema = km.Schema.infer(first, second)
    for table in (first, second):
        assert schema.decode(schema.encode(table))["c"].to_pylist() == table["c"].to_pylist()


@pytest.mark.parametrize("origin", [2**53 - 3, 2**53, 2**62, -(2**63), 2**64 - 1001])
@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_whole_numbers_near_each_other_come_back(origin, dtype):
    info = np.iinfo(dtype)
    if not info.min <= origin <= info.max - 1000:
        return
    steps = np.random.default_rng(0).permutation(1000)[:ROWS] * (np.arange(ROWS) % 2 + 1)
    column = pa.array([min(origin + int(k), info.max) for k in steps], pa.type_for_alias(dtype))
    assert round_trip(column)[1] == column.to_pylist()


ENDS = {
    "int64": (-(2**63), 2**63 - 1),
    "upper int64": (0, 2**63 - 1),
    "uint64": (0, 2**64 - 1),
}


@pytest.mark.parametrize("case", ENDS)
def test_the_largest_numbers_among_small_ones(case):
    low, high = ENDS[case]
    small = np.random.default_rng(0).integers(0, 900, ROWS - 2).tolist()
    kind = pa.uint64() if case == "uint64" else pa.int64()
    column = pa.array([low, high, *small], kind)
    _, found = round_trip(column)
    assert found[2:] == small
    assert abs(found[0] - low) <= 2**64 * 1e-12
    assert abs(found[1] - high) <= 2**64 * 1e-12


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint64"])
@pytest.mark.parametrize("origin", [2**60, -(2**60), 2**63 + 5])
def test_differences_do_not_overflow(dtype, origin):
    info = np.iinfo(dtype)
    cells = [int(info.min), 0, 7, int(info.max)]
    found = as_floats(pa.array(cells, pa.type_for_alias(dtype)), origin)
    assert found.tolist() == [float(c - origin) for c in cells]
    back = from_floats(found, origin, pa.type_for_alias(dtype), np.zeros(4, bool)).to_pylist()
    assert all(info.min <= b <= info.max for b in back)


def test_numbers_near_zero_have_no_origin():
    assert origin_of(pa.array([-(2**62), 2**62])) == 0
    assert origin_of(pa.array([2**53 - 1, 0])) == 0
    assert origin_of(pa.array([1.5e30, 1.6e30])) == 0
    assert origin_of(pa.array([2**53, 2**53 + 1])) == 2**53


def test_keys_far_from_zero_are_numbered_anew():
    for column in (pa.array([Decimal(10**20 + k) for k in range(ROWS)], pa.decimal128(38, 0)),
                   pa.array([2**64 - ROWS + k for k in range(ROWS)], pa.uint64())):  # fmt: skip
        schema, found = round_trip(column)
        assert schema["c"].kind == "key"
        assert len(set(found)) == len(found) == ROWS
        assert set(found).isdisjoint(column.to_pylist())
        assert all(type(cell) is type(column[0].as_py()) for cell in found)


def test_decimal_objects_come_back():
    cells = [Decimal(f"100000000000000000000.{k % 10:02d}") for k in range(ROWS)]
    table = pd.DataFrame({"c": cells})
    schema = km.Schema.infer(table)
    pd.testing.assert_frame_equal(schema.decode(schema.encode(table)), table)
