"""`kermix drift`: the answer first, periods in order, corrected p-values, errors that help."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import kermix as km
from internals import (
    PeriodDrift,
    PeriodVerdict,
    Reading,
    app,
    between,
    holm,
    period_report,
    read_periods,
)
from kermix.errors import KermixError

FAST = ["--permutations", "99"]
MONTHS = ("January", "February", "March", "April")


def invoke(*arguments, status=0):
    result = CliRunner().invoke(app, ["drift", *map(str, arguments)], env={"COLUMNS": "120"})
    assert result.exit_code == status, result.output
    return result.output


@pytest.fixture(scope="module")
def flights():
    generator = np.random.default_rng(0)
    month = np.repeat(np.arange(4), 80)
    late = generator.exponential(10, 320) * np.where(month >= 2, 4, 1)
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(320) * 120 // 320, unit="D")
    return pd.DataFrame({
        "month": np.array(MONTHS)[month], "day": days.strftime("%Y-%m-%d"), "late": late,
        "dest": generator.choice(["LAX", "SFO"], 320), "number": month + 1,
    }).sample(frac=1, random_state=0)  # fmt: skip


@pytest.fixture(scope="module")
def folder(flights, tmp_path_factory):
    path = tmp_path_factory.mktemp("flights")
    flights.to_csv(path / "flights.csv", index=False)
    return path


def test_the_first_line_is_the_answer_and_periods_are_in_the_order_of_the_calendar(
    folder, tmp_path
):
    page = tmp_path / "page.html"
    output = invoke(folder / "flights.csv", "--by", "month", *FAST, "-o", page)
    assert output.startswith("2 of 3 months differ from January, first in March: most in late.\n")
    places = [output.index(f"\n{name} ") for name in MONTHS]
    assert places == sorted(places)
    assert "Left aside, because they only tell the period again: day, number." in output
    assert output.strip().splitlines()[-1] == f"Report: {page}"
    text = page.read_text()
    assert "<p>2 of 3 months differ from January, first in March: most in late.</p>" in text
    points = re.findall(r'd="([^"]*)" class="dots (\w+)" stroke-width="9"', text)
    assert {kind: path.count("M") for path, kind in points} == {"two": 2, "three": 1}


def test_json_has_every_number(folder):
    found = json.loads(invoke(folder / "flights.csv", "--by", "number", *FAST, "--json"))
    assert found["sentence"].startswith("2 of 3 periods differ from 1, first in 3: most in late")
    assert [p["period"] for p in found["periods"]] == ["2", "3", "4"]
    assert [p["different"] for p in found["periods"]] == [False, True, True]
    own = [p["own_pvalue"] for p in found["periods"]]
    assert [p["pvalue"] for p in found["periods"]] == pytest.approx(holm(own))
    assert own[1] == own[2] == 0.01
    assert found["periods"][1]["pvalue"] == pytest.approx(0.03)
    assert found["periods"][0]["columns"] == []
    assert found["periods"][1]["columns"][0]["column"] == "late"
    assert found["periods"][1]["effect"] > 0.6


def test_a_pipeline_can_fail(folder):
    invoke(folder / "flights.csv", "--by", "month", *FAST, "--fail-if-different", status=3)
    quiet = [*FAST, "--fail-if-different", "--columns", "dest", "--json"]
    found = json.loads(invoke(folder / "flights.csv", "--by", "month", *quiet))
    smallest = min(found["periods"], key=lambda p: p["rows"])
    assert re.fullmatch(
        r"None of 3 months differs from January at level 0.05; in the smallest month, "
        rf"{smallest['period']} \({smallest['rows']} rows\), a common value gaining or losing "
        r"\d\d percentage points would have been found in four of five cases.", found["sentence"]
    )  # fmt: skip


def test_dates_are_cut_and_another_reference_is_taken(folder):
    options = ["--by", "day", *FAST, "--json", "--exclude", "number,month"]
    found = json.loads(
        invoke(folder / "flights.csv", *options, "--reference", "2024-04", "--max-points", 60)
    )
    assert found["reference"] == "2024-04"
    assert [p["period"] for p in found["periods"]] == ["2024-01", "2024-02", "2024-03"]
    assert found["sentence"].startswith("2 of 3 months differ from 2024-04, first in 2024-01")
    assert "Dates of day are grouped by month; change this with --every." in found["notes"]
    assert "Of larger periods 60 rows used, drawn at random." in found["notes"]
    weeks = read_periods(folder / "flights.csv", "day", "week", Reading())
    assert [t.name for t in weeks.tables] == [f"2024-W{k:02}" for k in range(1, 19)]
    assert sum(t.rows for t in weeks.tables) == 320


def test_files_of_a_folder_are_periods(flights, tmp_path):
    for k, name in ((1, "part2"), (2, "part10"), (0, "part1")):
        part = flights[flights["number"] == k + 1][["late", "dest"]]
        part.to_csv(tmp_path / f"{name}.csv", index=False)
    found = json.loads(invoke(tmp_path, *FAST, "--json"))
    assert found["sentence"] == "1 of 2 files differs from part1: part10, most in late."
    both = json.loads(invoke(tmp_path, *FAST, "--json", "--by", "dest"))
    assert re.fullmatch(
        r"SFO does not differ from LAX at level 0.05; shifts of 0.\d+ standard deviations or more "
        r"in one column would have been found in four of five cases.", both["sentence"]
    )  # fmt: skip


def test_gaps_and_small_periods_are_said(flights):
    table = flights.drop(columns=["day", "number"])
    table.iloc[:7, 0] = None
    few = table[table["month"] != "April"]
    few = pd.concat([few, table[table["month"] == "April"].head(1)])
    found = km.drift_over_time(few, "month", level=0.02, permutations=99)
    assert "7 rows without a value in month are ignored." in found.notes
    assert [p.answer for p in found.periods] == ["no difference", "different", "too few rows"]
    assert found.periods[2].pvalue is None
    assert found.sentence().endswith("1 month has too few rows to say.")
    lines = str(found).splitlines()
    assert lines[0] == found.sentence()
    assert lines[3].split()[:3] == ["January", "77", "reference"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--by", "mont"], "did you mean month"),
        (["--by", "late"], "320 different values|320 periods"),
        (["--by", "dest", "--every", "month"], "dest holds no dates"),
        (["--by", "day", "--every", "fortnight"], "one of day, week, month, year"),
        (["--by", "month", "--reference", "Januar"], "did you mean January"),
        (["--by", "month", "--exclude", "month"], "do not exclude it"),
        (["--by", "day", "--every", "year"], "has 1 period .2024.; drift needs at least two"),
        ([], "--by COLUMN"),
        (["--by", "month", "--level", "2"], "between 0 and 1"),
    ],
)
def test_errors_help(folder, options, said, monkeypatch):
    monkeypatch.setattr("internals.periods_module.MOST_PERIODS", 300)
    result = CliRunner().invoke(app, ["drift", str(folder / "flights.csv"), *options])
    assert isinstance(result.exception, KermixError), result.output
    with pytest.raises(KermixError, match=said):
        raise result.exception


def test_a_folder_without_tables_and_a_table_of_one_column(tmp_path):
    with pytest.raises(KermixError, match="there is no table in it"):
        km.drift_over_time(tmp_path)
    with pytest.raises(KermixError, match="only column"):
        km.drift_over_time({"a": ["x", "y"]}, "a")
    with pytest.raises(KermixError, match="reference, x, has 1 row, too few"):
        km.drift_over_time({"a": ["x", "y", "y"], "b": [1, 2, 3]}, "a")


def test_three_rows_can_be_enough(flights):
    table = flights.drop(columns=["day", "number"])
    april = table[table["month"] == "April"].head(3).assign(late=[1e4, 1.1e4, 1.2e4])
    found = km.drift_over_time(pd.concat([table[table["month"] == "January"], april]), "month")
    assert found.sentence().startswith("April differs from January")
    assert found.periods[0].pvalue < 0.01


def test_none_differs_only_where_one_could(tmp_path):
    place = np.repeat(np.arange(12), 5)
    rows = {"by": place, "x": np.arange(60) % 5 + 1000.0 * place, "y": np.arange(60) % 3}
    few = km.drift_over_time(rows, "by")  # 2 / 252 is not below 0.05 / 11
    assert few.sentence() == "Too few rows to say whether any period differs from 0."
    less = {name: values[:20] for name, values in rows.items()}
    assert len(km.drift_over_time(less, "by").different) == 3
    limited = km.drift_over_time(less, "by", permutations=19)
    assert limited.sentence() == (
        "Too few permutations to say whether any period differs from 0: for 3 periods at level "
        "0.05 it takes 59 or more."
    )
    assert {p.answer for p in limited.periods} == {"too few permutations"}
    assert len(km.drift_over_time(less, "by", permutations=59).different) == 3
    page = period_report(limited, "drift").save(tmp_path / "drift.html").read_text()
    assert "<p>Too few permutations to say whether any period differs from 0:" in page


def test_many_periods_have_permutations_enough(monkeypatch):
    asked = []

    def compare(*arguments, permutations, **options):
        asked.append(permutations)
        raise RuntimeError

    monkeypatch.setattr("internals.period_drift_module.compare", compare)
    for periods in (3, 41):
        place = np.repeat(np.arange(periods), 9)
        with pytest.raises(RuntimeError):
            km.drift_over_time({"by": place, "x": np.arange(len(place)) % 5}, "by")
    assert asked == [500, 1600]


def test_sentences_count_periods():
    def period(name, different, few=False):
        p = None if few else 0.01
        return PeriodVerdict(name, 9, different, p, p, None, None, (), few)

    def sentence(*periods):
        return PeriodDrift("a", (("a", 9),), periods, 0.05, "week", ()).sentence()

    assert sentence(period("b", True)) == "b differs from a."
    assert sentence(period("b", False)) == "b does not differ from a at level 0.05."
    assert sentence(period("b", True), period("c", False)) == "1 of 2 weeks differs from a: b."
    assert sentence(period("b", True), period("c", True)) == (
        "2 of 2 weeks differ from a, first in b."
    )
    assert sentence(period("b", False, True)) == (
        "Too few rows to say whether any week differs from a."
    )


def seasonal(sales_grow=True):
    """Warm summers in three years, and sales that grow from October of the last."""
    rng = np.random.default_rng(0)
    days = pd.Series(pd.date_range("2021-01-01", "2023-12-31"))
    warm = 10 - 10 * np.cos(2 * np.pi * days.dt.day_of_year / 365)
    grown = 8 * ((days >= "2023-10-01") & sales_grow)
    return pd.DataFrame({"day": days, "temp": (warm + rng.normal(0, 2, len(days))).round(1),
                         "sales": rng.poisson(20 + grown)})  # fmt: skip


def test_seasons_are_compared_with_the_year_before(tmp_path):
    table = seasonal()
    first = km.drift_over_time(table, "day", permutations=799)
    assert len(first.different) > 20
    assert any("--against year" in note for note in first.notes)
    found = km.drift_over_time(table, "day", against="year", permutations=799)
    assert {p.period for p in found.different} <= {"2023-10", "2023-11", "2023-12"}
    assert len(found.different) >= 2
    assert "differ from the same month of the year before" in found.sentence()
    assert found.moved == ("sales",)
    assert [name for name, _ in found.references] == [f"2021-{m:02}" for m in range(1, 13)]
    assert {p.period: p.reference for p in found.periods}["2023-03"] == "2022-03"
    quiet = km.drift_over_time(seasonal(False), "day", against="year", permutations=799)
    assert quiet.sentence().startswith("None of 24 months differs from the same month of the year")
    table.to_csv(tmp_path / "sales.csv", index=False)
    options = ["--by", "day", "--against", "year", "--permutations", 799, "--fail-if-different"]
    output = invoke(tmp_path / "sales.csv", *options, "-o", tmp_path / "page.html", status=3)
    assert "sales (higher)" in output
    assert "36 months" in (tmp_path / "page.html").read_text()


def test_a_rolling_reference_sees_steps_and_not_what_stays():
    rng = np.random.default_rng(1)
    week = np.repeat(np.arange(1, 9), 60)
    table = {"week": week, "x": rng.normal((week >= 5) * 2.0, 1).round(2)}
    assert [p.period for p in km.drift_over_time(table, "week").different] == [
        f"week {k}" for k in (5, 6, 7, 8)
    ]
    found = km.drift_over_time(table, "week", against="previous")
    assert [(p.period, p.reference) for p in found.different] == [("week 5", "week 4")]
    assert found.sentence() == "1 of 7 weeks differs from the week before: week 5, most in x."
    wide = km.drift_over_time(table, "week", against="previous", window=3)
    assert wide.different[0].reference == "week 2 to week 4"
    assert "the 3 weeks before" in wide.sentence()
    assert len(wide.references) == 3


def test_columns_that_come_and_go_are_said_and_end_nothing(tmp_path):
    rng = np.random.default_rng(2)
    for k in range(5):
        frame = pd.DataFrame({"x": rng.normal(size=80).round(2), "c": rng.choice(["a", "b"], 80),
                              "y": rng.integers(0, 100, 80)})  # fmt: skip
        frame = {1: frame.drop(columns="y"), 2: frame.assign(z=frame["x"].round(1)),
                 4: frame.assign(y=rng.choice(["low", "high"], 80))}.get(k, frame)  # fmt: skip
        frame.to_csv(tmp_path / f"2024-0{k + 1}.csv", index=False)
    output = invoke(tmp_path, "--fail-if-different", status=3)
    assert " ".join(output.split()).startswith(
        "Apart from columns that come and go (no y in 2024-02, z is new in 2024-03, y holds text, "
        "not numbers in 2024-05): none of 4 files differs from 2024-01 at level 0.05"
    )
    found = km.drift_over_time(tmp_path)
    assert found.changed
    assert not found.different
    assert [p.schema_changes for p in found.periods][2] == ()


def test_a_period_between_two_that_differ_is_looked_at_again():
    def period(name, pvalue, own):
        return PeriodVerdict(name, 9, pvalue <= 0.05, pvalue, own, None, None, (), False)

    before, after = period("b", 0.01, 0.002), period("d", 0.01, 0.002)
    for own, perhaps in ((0.03, True), (0.3, False)):
        judged = between((before, period("c", 0.09, own), after, period("e", 0.09, 0.03)),
                         "first", 0.05)  # fmt: skip
        assert [p.between for p in judged] == [False, perhaps, False, False]
    found = PeriodDrift("a", (("a", 9),), judged, 0.05, "week", ())
    assert "c lies between" not in found.sentence()
    sure = between((before, period("c", 0.09, 0.03), after), "first", 0.05)
    found = PeriodDrift("a", (("a", 9),), sure, 0.05, "week", ())
    assert found.sentence() == (
        "2 of 3 weeks differ from a, first in b. c lies between weeks that differ and may differ "
        "too: it does by the p-value that is not corrected."
    )
    assert found.table()[2][2] == "perhaps different"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"against": "last"},
            "choose one of first, previous, year",
        ),
        ({"against": "year", "reference": "2"}, "goes with against='first'"),
        ({"against": "year"}, "no period has one of the year before"),
        ({"against": "previous", "window": 9}, "there are 4 periods"),
        ({"against": "previous", "window": 0}, "window"),
    ],
)
def test_references_that_cannot_be_are_refused(options, said):
    table = {"k": np.repeat(np.arange(4), 20), "x": np.arange(80) % 7}
    with pytest.raises(KermixError, match=said):
        km.drift_over_time(table, "k", **options)


def test_holm_is_never_below_bonferroni_of_the_smallest():
    assert holm([0.5, 0.001, 0.02]) == pytest.approx([0.5, 0.003, 0.04])
    assert holm([0.4, 0.6]) == pytest.approx([0.8, 0.8])
    assert holm([]) == []
