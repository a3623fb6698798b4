"""Times that are written as text, in one way or in several."""

import datetime as dt

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import kermix as km
from internals import as_frame, read_frame, text_format, with_same_times
from kermix.errors import SchemaError

ROWS = 200
RNG = np.random.default_rng(0)
DAYS = [dt.date(2019, 12, 20) + dt.timedelta(int(k)) for k in RNG.integers(0, 500, ROWS)]
UNPADDED = {
    "points": ("%-d.%-m.%Y", [f"{d.day}.{d.month}.{d.year}" for d in DAYS]),
    "days first": ("%-d/%-m/%Y", [f"{d.day}/{d.month}/{d.year}" for d in DAYS]),
    "months first": ("%-m/%-d/%Y", [f"{d.month}/{d.day}/{d.year}" for d in DAYS]),
    "with times": (
        "%-d.%-m.%Y %H:%M",
        [f"{d.day}.{d.month}.{d.year} 0{d.day % 7}:05" for d in DAYS],
    ),
    "months": ("%Y-%m", [f"{d.year}-{d.month:02d}" for d in DAYS]),
}


@pytest.mark.parametrize("case", UNPADDED)
def test_dates_without_zeros_and_months_are_times(case, tmp_path):
    form, cells = UNPADDED[case]
    assert text_format(pa.array(sorted(set(cells)))) == (form, "s")
    table = pd.DataFrame({"c": cells})
    schema = km.Schema.infer(table)
    assert schema["c"].kind == "time"
    assert schema.decode(schema.encode(table))["c"].tolist() == cells
    table.to_csv(tmp_path / "t.csv", index=False)
    assert km.Schema.infer(tmp_path / "t.csv")["c"].kind == "time"


SLASHED = {
    "short years": ("%d.%m.%y", [f"{d:%d.%m.%y}" for d in DAYS]),
    "twelve hours": ("%m/%d/%Y %I:%M %p", [f"{d:%m/%d/%Y} 0{d.day % 9 + 1}:05 PM" for d in DAYS]),
    "as spreadsheets": ("%-m/%-d/%Y %-H:%M", [f"{d.month}/{d.day}/{d.year} 9:05" for d in DAYS]),
    "names of months": ("%B %-d, %Y", [f"{d:%B} {d.day}, {d.year}" for d in DAYS]),
    "months before days": ("%m-%d-%Y", [f"{d:%m-%d-%Y}" for d in DAYS]),
    "universal time": ("%Y-%m-%d %H:%M:%S UTC", [f"{d} 12:30:0{d.day % 9} UTC" for d in DAYS]),
    "days of a week": ("%a, %d %b %Y", [f"{d:%a, %d %b %Y}" for d in DAYS]),
}


@pytest.mark.parametrize("case", SLASHED)
def test_dates_as_people_write_them_are_times_and_gaps_among_them_are_gaps(case, tmp_path):
    form, cells = SLASHED[case]
    assert text_format(pa.array(sorted(set(cells)))) == (form, "s")
    cells = [cell if k % 7 else "-" for k, cell in enumerate(cells)]
    path = tmp_path / "t.csv"
    pd.DataFrame({"c": cells, "k": 1.5}).to_csv(path, index=False)
    schema = km.Schema.infer(path)
    gaps = cells.count("-") / ROWS
    assert (schema["c"].kind, schema["c"].gaps, schema.notes()[1:]) == ("time", gaps, [])
    back = schema.decode(schema.encode(path), "dict")["c"]
    assert back == [None if cell == "-" else cell for cell in cells]


def test_dates_that_may_be_turned_around_are_said_to_be_so():
    both = [f"{d:%m/%d/%Y}" for d in DAYS if d.day <= 12]
    (note,) = km.Schema.infer({"c": both}).notes()
    assert "may begin with the day or with the month" in note
    assert "taken for the month first" in note
    firsts = [f"1/{k % 12 + 1}/20{k // 12 + 10}" for k in range(60)]
    assert text_format(pa.array(firsts)) == ("%-d/%-m/%Y", "s")  # the first of each month


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ("2021-02-30", "but '2021-02-30' is not written so"),
        ("0000-00-00", "but '0000-00-00' is not written so"),
        ("31.12.2020", "but '31.12.2020' is not written so"),
        ("soon", "but 'soon' is not written so"),
    ],
)
def test_dates_with_one_that_is_none_are_said_and_never_made_up(odd, said):
    cells = [odd, *map(str, DAYS)]
    schema = km.Schema.infer({"c": cells})
    assert schema["c"].kind == "text"
    assert any(said in note for note in schema.notes())
    weeks = [f"{d:%G-W%V} {k}:00" for k, d in enumerate(DAYS)]
    schema = km.Schema.infer({"c": weeks})
    assert (schema["c"].kind, "not in a way that is known" in schema.notes()[0]) == ("text", True)


def test_months_are_the_nearest():
    cells = [f"20{k // 12 + 10}-{k % 12 + 1:02d}" for k in range(120)]
    table = pd.DataFrame({"c": cells})
    schema = km.Schema.infer(table, atoms_up_to=0, atom_share=1)
    encoded = schema.encode(table)
    column = schema["c"]
    steps = column.map.inverse(encoded.values[:, 0])
    for shift, sign in ((13, 1), (-13, -1)):
        moved = np.clip(steps + shift, column.low, column.high)
        back = column.decode(encoded.codes[:, 0], column.map(moved)).to_pylist()
        assert back == cells, sign


@pytest.mark.parametrize(
    "cells",
    [
        ("1.2.2020", "03.4.2020"),
        ("1001-12", "1002-11"),
        ("2020-13", "2020-12"),
        ("2020-1", "2020-12"),
        ("1.2.20", "3.4.20"),
        ("32.1.2020", "1.1.2020"),
    ],
)
def test_what_is_no_date_for_sure_is_text(cells):
    assert text_format(pa.array(cells)) is None


FORMS = ("%d.%m.%Y", "%Y-%m-%d", "%m/%d/%Y %H:%M", None)


@pytest.mark.parametrize(
    ("first", "second", "files"),
    [(a, b, (i + k) % 2 == 0) for i, a in enumerate(FORMS) for k, b in enumerate(FORMS[i:])],
)
def test_times_are_compared_however_they_are_written(first, second, files, tmp_path):
    """Equal days: no difference at all, and no alarm. In files and in tables, by turns."""
    tables = []
    for k, form in enumerate((first, second)):
        days = pd.Series(pd.to_datetime(DAYS))
        table = pd.DataFrame({"day": days if form is None else days.dt.strftime(form)})
        if files:
            table.to_csv(tmp_path / f"{k}.csv", index=False)
            table = tmp_path / f"{k}.csv"
        tables.append(table)
    found = km.compare(*tables, permutations=20, jackknife_groups=0)
    column = found.verdict.columns[0]
    assert column.pvalue == 1
    kinds = {str(read_frame(t)[0].columns["day"].type) for t in tables}
    told = [n for n in found.notes if "Column day is written as" in n]
    assert len(told) == int(first != second and any("string" in kind for kind in kinds))


def test_one_way_that_fits_both_tables_is_taken():
    first = pd.DataFrame({"day": ["01/02/2020", "03/04/2020"] * 20})
    second = pd.DataFrame({"day": ["31/01/2020", "03/04/2020"] * 20})
    frames, notes = with_same_times([as_frame(first), as_frame(second)])
    assert not notes
    assert frames[0].columns["day"].to_pylist() == first["day"].tolist()
    assert km.Schema.infer(first, second)["day"].text == ("%d/%m/%Y", "s")


def test_instants_and_times_without_a_zone_stay_apart_as_text_too():
    first = pd.DataFrame({"day": [f"2020-01-{k % 28 + 1:02d}T00:00:00Z" for k in range(40)]})
    second = pd.DataFrame({"day": [f"{k % 28 + 1:02d}.01.2020" for k in range(40)]})
    with pytest.raises(SchemaError, match="times have a zone"):
        km.compare(first, second, permutations=20, jackknife_groups=0)


def test_kinds_that_are_said_are_kept():
    first = pd.DataFrame({"day": [f"2020-01-{k % 28 + 1:02d}" for k in range(40)]})
    second = pd.DataFrame({"day": [f"{k % 28 + 1:02d}.01.2020" for k in range(40)]})
    found = km.compare(
        first, second, kinds={"day": "category"}, permutations=20, jackknife_groups=0
    )
    assert found.verdict.columns[0].pvalue < 0.1


# --- Times that are given as text, or as a gap of pandas.

TIMES = pd.DataFrame({
    "t": pd.date_range("2020-01-01", periods=60, freq="D"),
    "z": pd.date_range("2020-01-01", periods=60, freq="D", tz="Asia/Tokyo"),
    "d": [d.date() for d in pd.date_range("2020-01-01", periods=60, freq="D")],
})  # fmt: skip
GIVEN = {"t": ["2020-01-05"], "z": ["2020-01-05T00:00:00+09:00"], "d": ["2020-01-05"]}


def test_text_is_read_where_times_are_needed():
    schema = km.Schema.infer(TIMES)
    assert (schema.encode(GIVEN).values == schema.encode(TIMES[4:5]).values).all()


@pytest.mark.parametrize(("name", "text"), [("t", "x"), ("z", "2020-01-05"), ("d", "5.1.2020")])
def test_text_that_is_no_time_is_named(name, text):
    with pytest.raises(SchemaError, match=rf"column {name}: '{text}' .* 2024-01-31"):
        km.Schema.infer(TIMES).encode({**GIVEN, name: [text]})


def test_gaps_of_pandas_are_gaps():
    given = {**GIVEN, "t": [pd.NaT]}
    assert km.Schema.infer(TIMES).encode(given, unseen="unknown").codes.tolist() == [[-1, 0, 0]]
    with pytest.raises(SchemaError, match="column t: 1 values are missing"):
        km.Schema.infer(TIMES).encode(given)
