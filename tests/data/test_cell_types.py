"""What the cells of a column of text are is decided in one place, whole or some at a time."""

import itertools

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from internals import ColumnLook, arrow_type, cell_notes, typed_column

CASES = {
    "whole": (["1", "-2", " 3 ", ""], "int64", [1, -2, 3, None]),
    "fractions": (["1", "2.5", "+1e3", ".5"], "double", [1, 2.5, 1000, 0.5]),
    "gaps": (["1", "-", "?", "NA", "n/a"], "int64", [1, None, None, None, None]),
    "one too long": (["12345678901234567890", "7"], "double", [12345678901234567890.0, 7]),
    "truth": (["true", "FALSE", "NA"], "bool", [True, False, None]),
    "truth and numbers": (["true", "1"], "string", None),
    "truth and marks": (["true", "-"], "string", None),
    "days": (["2024-01-31", "NA"], "date32[day]", None),
    "moments": (["2024-01-31", "2024-01-31 10:00"], "timestamp[s]", None),
    "parts of seconds": (["2024-01-31 10:00", "2024-01-31 10:00:00.5"], "timestamp[ns]", None),
    "zones": (["2024-01-31T10:00:00Z", "2024-01-31T10:00:00+02:00"], "timestamp[s, tz=UTC]", None),
    "with and without zones": (["2024-01-31T10:00:00Z", "2024-01-31T10:00:00"], "string", None),
    "times of day": (["10:30", "23:59:59"], "time32[s]", None),
    "no times of day": (["10:30", "25:00"], "string", None),
    "numbers and days": (["2024", "2024-01-31"], "string", None),
    "padded": (["01067", "50667"], "string", ["01067", "50667"]),
    "telephone": (["+4930123456", "+4989123456"], "string", None),
    "padded fractions": (["00.50", "01.25"], "double", [0.5, 1.25]),
    "hexadecimal": (["0x1F", "0x2A"], "string", None),
    "words": (["red", "NA", "-", "1"], "string", ["red", None, "-", "1"]),
    "a stray": (["1.5", "oops"], "string", ["1.5", "oops"]),
    "countries": (["DE", "NA", "FR", "US"], "string", ["DE", "NA", "FR", "US"]),
    "few pairs": (["DE", "NA", "DE"], "string", ["DE", None, "DE"]),
    "three letters": (["DEU", "NA", "FRA", "USA"], "string", ["DEU", None, "FRA", "USA"]),
    "money": (["$5", "-", "$7"], "string", ["$5", None, "$7"]),
    "thousands": (["1,234", "?", "5"], "string", ["1,234", None, "5"]),
    "nothing": (["", "NA"], "null", [None, None]),
    "only marks": (["-", "?"], "string", ["-", "?"]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_cells_have_a_type(case):
    cells, name, expected = CASES[case]
    found, kind = typed_column(pa.array(cells))
    assert (str(found.type), kind.name) == (str(arrow_type(name)), name)
    if expected is not None:
        assert found.to_pylist() == expected
    turned, _ = typed_column(pa.array(cells[::-1]))
    assert turned.to_pylist() == found.to_pylist()[::-1]


def test_what_the_user_said_counts():
    cells = pa.array(["1", "unknown", "-", "2"])
    assert typed_column(cells)[0].type == "string"
    assert typed_column(cells, missing=["unknown"])[0].to_pylist() == [1, None, None, 2]
    assert typed_column(cells, missing=["unknown"], kind="category")[0].to_pylist() == [
        "1", None, "-", "2"]  # fmt: skip
    assert typed_column(pa.array(["1", "2"]), text=True)[0].type == "string"
    assert typed_column(pa.array(["007", "7"]), kind="number")[0].to_pylist() == [7, 7]
    countries = pa.array(["DE", "NA", "FR", "US"])
    assert typed_column(countries, missing=["NA"])[0].null_count == 1


@pytest.mark.parametrize(("cells", "expected"), [
    (["1,5", "2", "-"], [1.5, 2, None]), (["1.5", "2"], None), (["1,5", "2.5"], None),
])  # fmt: skip
def test_decimal_commas(cells, expected):
    found, _ = typed_column(pa.array(cells), decimal=",")
    assert (found.to_pylist() if found.type != "string" else None) == expected


def test_what_may_be_meant_otherwise_is_said():
    columns = {"a": ["1", "-"], "b": ["007", "7"], "c": ["DE", "NA", "FR", "US"], "d": ["x", "-"]}
    types = {name: typed_column(pa.array(cells))[1] for name, cells in columns.items()}
    marks, digits, letters = cell_notes("t.csv", types)
    assert marks == "t.csv: '-' in a means missing; if it is a value, use --kind a=category."
    assert "digits of b are text" in digits
    assert "--missing NA" in letters


WORDS = st.sampled_from(["1", "2.5", "-", "NA", "", "07", "x", "true", "DE", "FR", "US", "$5",
                         "2024-01-31", "2024-01-31 10:00", "10:30"])  # fmt: skip


@settings(deadline=None, max_examples=200)
@given(st.lists(WORDS, min_size=1, max_size=8), st.lists(st.integers(0, 8), max_size=3))
def test_batches_make_no_difference(cells, cuts):
    whole, kind = typed_column(pa.array(cells))
    look = ColumnLook()
    edges = [0, *sorted(cuts), len(cells)]
    parts = [pa.array(cells[a:b], "string") for a, b in itertools.pairwise(edges)]
    for part in parts:
        look.add(part)
    assert look.found() == kind
    assert [c for part in parts for c in look.found().read(part).to_pylist()] == whole.to_pylist()
