"""Numbers that are written as text: found, modelled as numbers, and written back to the letter."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kermix as km
from internals import NumberColumn, NumberForm, look_at_numbers, read_frame

SPACE, NARROW = "\u00a0", "\u202f"  # that do not break a line
NUMBERS = {  # cells, and the numbers that they are
    "dollars": (["$53.32", "$5.00", "$1000.50"], [53.32, 5, 1000.5]),
    "euros": (["€125.82", "€1.00"], [125.82, 1]),
    "thousands": (["$1,234.50", "$7.00", "$1,000,000.00"], [1234.5, 7, 1e6]),
    "without a zero": (["$.50", "$1.25"], [0.5, 1.25]),
    "minus before": (["-$5", "$7", "-$1,200"], [-5, 7, -1200]),
    "minus inside": (["$-5", "$7"], [-5, 7]),
    "minus and a space": (["- $5.00", "$7.00"], [-5, 7]),
    "minus after": (["5.00-", "3.25"], [-5, 3.25]),
    "a true minus": (["\u22125 %", "3 %"], [-5, 3]),
    "brackets": (["($5.00)", "$6.10"], [-5, 6.1]),
    "brackets inside": (["$ (5.00)", "$ 6.10"], [-5, 6.1]),
    "brackets around a unit": (["(5 kg)", "6 kg"], [-5, 6]),
    "only negative": (["-$5.25", "-$7.00"], [-5.25, -7]),
    "pluses": (["+5%", "-3%", "+12%"], [5, -3, 12]),
    "currency after": (["1,234.50 USD", "7.00 USD"], [1234.5, 7]),
    "currency before": (["USD 5000", "USD 70"], [5000, 70]),
    "whole currency": (["5000 USD", "70 USD"], [5000, 70]),
    "dollars of a country": (["US$ 5", "US$ 7"], [5, 7]),
    "rupees": (["Rs. 500", "Rs. 1,500"], [500, 1500]),
    "crowns": (["500 kr.", "70 kr."], [500, 70]),
    "German": (["1.234,56 €", "7,00 €"], [1234.56, 7]),
    "German, whole": (["1.234 €", "999 €", "12.500 €"], [1234, 999, 12500]),
    "French": (["1 234,50 €", "7,00 €"], [1234.5, 7]),
    "French, typeset": ([f"1{NARROW}234,50{SPACE}€", f"7,00{SPACE}€"], [1234.5, 7]),
    "Swiss": (["CHF 1'234.50", "CHF 7.00"], [1234.5, 7]),
    "percent": (["45%", "3%", "100%"], [45, 3, 100]),
    "percent, spaced": (["4.5 %", "12.0 %"], [4.5, 12]),
    "kilograms": (["12.5 kg", "3 kg"], [12.5, 3]),
    "attached": (["12.5kg", "3kg"], [12.5, 3]),
    "degrees": (["20 °C", "-3 °C", "21.5 °C"], [20, -3, 21.5]),
    "speeds": (["5 km/h", "110 km/h"], [5, 110]),
    "areas": (["5 m²", "70 m²"], [5, 70]),
    "areas, typed": (["5 m2", "70 m2"], [5, 70]),
    "words": (["5 rooms", "7 rooms"], [5, 7]),
    "nights": (["$5/night", "$70/night"], [5, 70]),
    "millions": (["$5.5M", "$7M"], [5.5, 7]),
    "weight with three decimals": (["1.234 kg", "0.750 kg"], [1.234, 0.75]),
    "weight with up to three": (["1.234 kg", "2.5 kg"], [1.234, 2.5]),
    "cents where there are some": (["$5", "$5.50", "$7.25"], [5, 5.5, 7.25]),
    "as many decimals as needed": (["$5", "$5.5", "$7.25"], [5, 5.5, 7.25]),
    "one decimal at least": (["$5.0", "$5.5", "$7.25"], [5, 5.5, 7.25]),
    "spaces around": ([" $5.00 ", " $7.00 "], [5, 7]),
    "plain with decimals": (["1.5", "2.75", "-3.0"], [1.5, 2.75, -3]),
    "plain with thousands": (["1,234", "5", "1,000,000"], [1234, 5, 1e6]),
    "Indian pairs": (["1,23,456", "1", "-12,34,567"], [123456, 1, -1234567]),
    "Indian money": (["₹1,23,456.50", "₹9,999.00"], [123456.5, 9999]),
    "plain with a decimal comma": (["1,5", "2,25"], [1.5, 2.25]),
    "both marks": (["1.234,5", "2,5", "1.234.567,8"], [1234.5, 2.5, 1234567.8]),
    "zeros": (["$0.00", "$0.10"], [0, 0.1]),
}
NO_NUMBERS = {
    "times of day": ["1:30", "12:45"],
    "durations": ["1:30:00", "12:45:10"],
    "hours": ["5 am", "11 am"],
    "telephone": ["+49 30 123456", "+49 89 654321"],
    "telephone, spaced": ["170 123 456", "171 222 333"],
    "telephone, American": ["(555) 123-4567", "(555) 987-6543"],
    "telephone, dashes": ["555-1234", "555-9876"],
    "versions": ["1.2.3", "1.2.4"],
    "versions of two parts": ["1.10", "1.9"],
    "long versions": ["1.2.3.4", "2.0.0.1"],
    "ids": ["T-104233", "T-104234"],
    "ids of Canada": ["CAD-10423", "CAD-10424"],
    "ids with a hash": ["#5", "#6"],
    "padded": ["007", "012"],
    "padded with a unit": ["007 kg", "012 kg"],
    "padded money": ["$007", "$012"],
    "addresses of computers": ["192.168.1.1", "10.0.0.1"],
    "addresses of three digits": ["192.168.100.101", "192.168.100.102"],
    "dates": ["2020-01-02", "2021-03-04"],
    "German dates": ["12.05.2020", "13.06.2021"],
    "days of a month": ["12 Jan", "13 Jan"],
    "ordinals": ["5th", "6th"],
    "mixed ordinals": ["1st", "2nd"],
    "ranges": ["5-10", "10-20"],
    "sizes": ["5x10", "10x20"],
    "fractions": ["1/2", "3/4"],
    "bounds": ["<5", "<10"],
    "flats": ["12A", "13A"],
    "rooms": ["Room 5", "Room 6"],
    "grades": ["A1", "A2"],
    "quarters": ["Q1", "Q2"],
    "digits": ["12", "13"],
    "long digits": ["12345678901234567890", "7"],
    "either mark": ["1,234", "1.234"],
    "feet": ["5'10", "6'1"],
    "two currencies": ["$5", "€5"],
    "two units": ["5 kg", "5 lb"],
    "thousands and millions": ["$5K", "$7M"],
    "strays": ["$5.00", "ca. 5", "$7.00"],
    "postcodes": ["98102", "98102-5783"],
    "only gaps": ["-", "?"],
    "words": ["red", "green"],
    "sentences": ["5 of these cost 10", "7 of these"],
}
ROWS = 60


def repeated(cells):
    return [cells[k % len(cells)] for k in range(ROWS)]


FRAMES = {
    "pandas": lambda cells: pd.DataFrame({"x": cells}),
    "objects": lambda cells: pd.DataFrame({"x": pd.Series(cells, dtype=object)}),
    "arrow": lambda cells: pa.table({"x": cells}),
    "large": lambda cells: pa.table({"x": pa.array(cells, pa.large_string())}),
    "dict": lambda cells: {"x": cells},
}


@pytest.mark.parametrize("case", NUMBERS)
def test_numbers_are_found_and_written_back_to_the_letter(case):
    cells, expected = NUMBERS[case]
    form = look_at_numbers(pa.array(cells)).form
    assert form is not None
    assert form.read(pa.array(cells)).to_pylist() == pytest.approx(expected)
    assert form.write(np.array(expected)) == cells
    assert NumberForm.from_dict(json.loads(json.dumps(form.to_dict()))) == form


@pytest.mark.parametrize("case", NO_NUMBERS)
def test_what_is_no_number_stays_text(case):
    cells = NO_NUMBERS[case]
    assert look_at_numbers(pa.array(cells)).form is None
    column = km.Schema.infer({"x": repeated(cells)})["x"]
    assert not isinstance(column, NumberColumn) or column.time


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("case", ["thousands", "brackets", "German", "kilograms", "percent"])
def test_they_are_numbers_in_any_frame(frame, case):
    cells, expected = NUMBERS[case]
    table = FRAMES[frame]([*repeated(cells), None])
    schema = km.Schema.infer(table)
    column = schema["x"]
    assert column.kind == "number"
    assert (column.low, column.high) == (min(expected), max(expected))
    assert column.gaps == 1 / (ROWS + 1)
    loaded = km.Schema.from_dict(json.loads(json.dumps(schema.to_dict())))
    back = loaded.decode(loaded.encode(table))
    assert type(back) is type(table)
    if isinstance(table, pd.DataFrame):
        assert back.equals(table)
    else:
        assert back == table


def test_they_are_numbers_in_polars():
    polars = pytest.importorskip("polars")
    table = polars.DataFrame({"x": repeated(["$1,234.50", None, "-$7.00"])})
    schema = km.Schema.infer(table)
    assert schema["x"].kind == "number"
    assert schema.decode(schema.encode(table)).equals(table)


def test_kinds_can_be_said():
    cells = repeated(["$5.00", "$7.50", "$9.25"])
    for kind in ("category", "text"):
        assert km.Schema.infer({"x": cells}, kinds={"x": kind})["x"].kind == kind
    table = {"x": repeated(["12", "13", "107"])}
    assert km.Schema.infer(table)["x"].kind == "category"
    schema = km.Schema.infer(table, kinds={"x": "number"})
    assert schema["x"].kind == "number"
    assert schema.decode(schema.encode(table)) == table
    with pytest.raises(km.errors.SchemaError, match=r"'ca\. 5' is not a number"):
        km.Schema.infer({"x": ["$5", "$7", "ca. 5"]}, kinds={"x": "number"})


def test_marks_among_them_are_gaps():
    table = {"x": repeated(["$5.00", "-", "$7.25", "?", None, "n/a"])}
    schema = km.Schema.infer(table)
    assert schema["x"].gaps == pytest.approx(4 / 6, abs=0.02)
    back = schema.decode(schema.encode(table))
    assert back["x"] == repeated(["$5.00", None, "$7.25", None, None, None])


def test_what_is_not_in_the_form_is_refused_by_its_cell():
    schema = km.Schema.infer({"x": repeated(["$5.00", "$7.25"])})
    assert schema.encode({"x": ["7.25", "$5"]}).codes[:, 0].tolist() == [2, 1]
    assert schema.encode({"x": [7.25, 5.0]}).codes[:, 0].tolist() == [2, 1]
    for cell in ("€7.25", "ca. 7", "7,25"):
        with pytest.raises(km.errors.SchemaError, match=rf"'{cell}' is not a number written as"):
            schema.encode({"x": ["$5.00", cell]})


def test_what_keeps_a_column_from_being_numbers_is_said():
    rng = np.random.default_rng(0)
    prices = [f"${v:.2f}" for v in rng.lognormal(6, 1, 200)]
    schema = km.Schema.infer({"price": [*prices, "ca. 5", "free"], "z": [*range(101)] * 2})
    (note,) = schema.remarks
    assert note.startswith("price: 0.99 % of the cells, such as 'ca. 5' and 'free', are not")
    assert "--kind price=category" in note
    assert note in schema.notes()
    assert schema["price"].kind == "text"  # no key, although most are different
    two = km.Schema.infer({"price": repeated(["$5", "€5", "$7"])})
    assert two["price"].kind == "category"
    assert "such as '€5', are not numbers written as '$5' is" in two.remarks[0]
    assert km.Schema.from_dict(two.to_dict()).remarks == two.remarks
    unclear = km.Schema.infer({"price": repeated(["$1,234", "$1.234"])})
    assert "do not have one decimal mark" in unclear.remarks[0]
    for cells in (["red", "green"], ["12", "14"], ["T-1", "T-2"], ["12 Main St", "5 Oak Rd"] * 9):
        assert not km.Schema.infer({"x": repeated(cells)}).remarks


def test_numbers_in_a_form_are_told():
    schema = km.Schema.infer({"price": repeated(["$5.00", "$7.25", "$1,000.00"])})
    assert "price (as in $1.00)" in schema.notes()[0]
    assert "$5.00 to $1,000.00, 2 decimals" in str(schema)


@pytest.mark.parametrize("saved", [
    {"positive": 5}, {"decimal": "x"}, {"decimals": -1}, {"decimals": "2"}, {"more": 1},
])  # fmt: skip
def test_a_damaged_form_is_refused(saved):
    schema = km.Schema.infer({"x": repeated(["$5.00", "$7.25"])}).to_dict()
    schema["columns"][0]["form"] |= saved
    with pytest.raises(km.errors.SchemaError, match="damaged"):
        km.Schema.from_dict(schema)


# --- Laws.

relaxed = settings(deadline=None, max_examples=100)
AFFIXES = [("$", ""), ("€", ""), ("£ ", ""), ("US$", ""), ("", " €"), ("", "%"), ("", f"{SPACE}%"),
           ("", " kg"), ("", "kg"), ("", " USD"), ("CHF ", ""), ("", " km/h"), ("$", "/night"),
           ("", " m2")]  # fmt: skip
SIGNS = [lambda t: f"-{t}", lambda t: f"({t})", lambda t: f"\u2212{t}"]


@st.composite
def columns_in_one_form(draw):
    before, after = draw(st.sampled_from(AFFIXES))
    decimal, thousands = draw(st.sampled_from([
        (".", ""), (".", ","), (",", "."), (",", ""), (",", " "), (".", "'"), (",", NARROW),
    ]))  # fmt: skip
    places = draw(st.sampled_from([0, 1, 2, 4]))
    sign = draw(st.sampled_from(SIGNS))
    wholes = draw(st.lists(st.integers(-(10**9), 10**9), min_size=2, max_size=40))
    cells = []
    for whole in wholes:
        digits, _, rest = f"{abs(whole) / 10**places:,.{places}f}".partition(".")
        text = before + digits.replace(",", thousands) + (decimal + rest if rest else "") + after
        cells.append(sign(text) if whole < 0 else text)
    gaps = draw(st.lists(st.booleans(), min_size=len(cells), max_size=len(cells)))
    return [None if gap else cell for gap, cell in zip(gaps, cells, strict=True)]


@relaxed
@given(columns_in_one_form())
def test_a_column_in_one_form_comes_back_to_the_letter(cells):
    schema = km.Schema.infer({"x": cells})
    assert schema.decode(schema.encode({"x": cells})) == {"x": cells}
    filled = {cell for cell in cells if cell is not None}
    # Marks before three digits alone may be of either kind, and a column of one value is constant.
    clear = not any(mark in cell for cell in filled for mark in ".,") or any(
        cell.count(".") + cell.count(",") > 1 for cell in filled
    )
    assert schema["x"].kind == "number" or len(filled) < 2 or not clear


PIECES = st.sampled_from(["$", "€", "-", "(", ")", "5", "12", "1,234", "1.5", ".", ",", " ", "kg",
                          "%", "?", "x", "USD", "0", "\u00a0", "'", "\u2212", "+"])  # fmt: skip


@settings(deadline=None, max_examples=200)
@given(st.lists(st.lists(PIECES, max_size=5).map("".join), min_size=1, max_size=30))
def test_any_text_survives(cells):
    """It is encoded, and comes back to the letter, or as the same numbers in their usual form."""
    schema = km.Schema.infer({"x": cells}, kinds=None)
    column = schema["x"]
    encoded = schema.encode({"x": cells})
    back = schema.decode(encoded)["x"]
    if column.kind in ("key", "text"):
        return
    if isinstance(column, NumberColumn) and column.form is not None:
        again = schema.encode({"x": back})
        assert (again.codes == encoded.codes).all()
        assert np.allclose(again.values, encoded.values, atol=1e-9)
    else:
        assert back == cells


@pytest.mark.parametrize(
    "form", ["~{:.0f}", "{:.1f} \u00b1 0.3", "{:.1f}/5", "{:.2f}, 13.4", "{:.1f}-{:.1f}"]
)
def test_numbers_in_an_unknown_form_are_said_and_never_made_up(form):
    cells = [form.format(v, v + 1) for v in np.random.default_rng(0).lognormal(6, 1, 200)]
    schema = km.Schema.infer({"x": cells})
    assert schema["x"].kind == "text"
    assert "in a form that is not known" in schema.notes()[0]


def lakhs(number):
    """A whole number as it is written in India."""
    head, tail = f"{number // 1000}", f"{number % 1000:03d}"
    pairs = [head[max(0, k - 2) : k] for k in range(len(head), 0, -2)]
    return ",".join([*reversed(pairs), tail])


@pytest.mark.parametrize("write", [
    lambda k: f"{lakhs(k)},{k % 100:02d}",
    lambda k: f"{k // 3600}:{k // 60 % 60:02d}:{k % 60:02d}",
    lambda k: f"{k // 60}:{k % 60:02d}",
])  # fmt: skip
def test_numbers_with_other_marks_are_no_keys(write):
    """Commas before two digits, and durations: samples had invented ones of them."""
    numbers = np.random.default_rng(0).integers(10**5, 10**6, 200).tolist()
    schema = km.Schema.infer({"x": [write(k) for k in numbers]})
    assert schema["x"].kind == "text"
    assert "in a form that is not known" in schema.notes()[0]
    few = km.Schema.infer({"x": [write(k) for k in numbers[:5] * 40]})
    assert few["x"].kind == "category"
    assert not few.notes()


@pytest.mark.parametrize("form", ["{}", "\u20b9{}", "Rs. {}.50", "-{}"])
def test_numbers_grouped_as_in_india_are_numbers_and_written_so(form):
    numbers = np.random.default_rng(0).integers(10**3, 10**8, 300).tolist()
    cells = [form.format(lakhs(k)) for k in numbers]
    schema = km.Schema.infer({"x": cells})
    column = schema["x"]
    assert column.kind == "number"
    assert column.high - column.low > 0.9e8
    found = km.Schema.from_dict(json.loads(json.dumps(schema.to_dict())))
    assert found.decode(found.encode({"x": cells}))["x"] == cells
    usual = [form.format(f"{k:,}") for k in numbers]  # in other countries
    assert "pairs" not in km.Schema.infer({"x": usual})["x"].form.to_dict()


@pytest.mark.parametrize(("rows", "kind"), [(60, "a category"), (3000, "text")])
def test_what_a_column_of_several_forms_has_become_is_said(rows, kind):
    """It was called text also where it was a category, which nothing has to be done about."""
    rng = np.random.default_rng(0)
    cells = [
        f"{'$' if k % 2 else 'USD '}{v}.50" for k, v in enumerate(rng.integers(1, rows, rows))
    ]
    cells = cells[:20] * 3 if rows == 60 else cells
    schema = km.Schema.infer({"x": cells})
    assert schema["x"].kind == kind.removeprefix("a ")
    assert f"so it is {kind}. Correct" in schema.notes()[0]


def test_a_zero_with_a_sign_leaves_numbers_numbers():
    """In a file with decimal commas they were taken for keys."""
    cells = [f"{v:.2f}" for v in np.random.default_rng(0).normal(0, 1, 300)]
    assert "-0.00" in cells or cells.append("-0.00") is None
    assert km.Schema.infer({"x": cells})["x"].kind == "number"


@pytest.mark.parametrize("ending", [".csv", ".parquet", "memory"])
def test_marks_of_gaps_among_written_numbers_and_times_are_gaps_for_a_schema(ending, tmp_path):
    money = [f"${k}.50" if k % 5 else "-" for k in range(60)]
    days = [f"{k % 28 + 1:02d}.01.2021" if k % 4 else "?" for k in range(60)]
    table = pa.table({"money": money, "day": days, "word": ["-", "a", "b"] * 20})
    path = tmp_path / f"t{ending}"
    if ending == ".csv":
        pa.csv.write_csv(table, path)
    elif ending == ".parquet":
        pa.parquet.write_table(table, path)
    source = table if ending == "memory" else path
    schema = km.Schema.infer(source)
    frame, _ = read_frame(source, schema.reading())
    assert {n: c.null_count for n, c in frame.columns.items()} == {
        "money": 12,
        "day": 15,
        "word": 0,
    }
