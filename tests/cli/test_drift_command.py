"""`kermix drift`: the answer first, periods in order, corrected p-values, errors that help."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import kermix as km
from internals import PeriodDrift, PeriodVerdict, Reading, app, holm, period_report, read_periods
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
    april = table[table["month"] == "April"].head(3).assign(late=1e4)
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
        return PeriodDrift("a", 9, periods, 0.05, "week", ()).sentence()

    assert sentence(period("b", True)) == "b differs from a."
    assert sentence(period("b", False)) == "b does not differ from a at level 0.05."
    assert sentence(period("b", True), period("c", False)) == "1 of 2 weeks differs from a: b."
    assert sentence(period("b", True), period("c", True)) == (
        "2 of 2 weeks differ from a, first in b."
    )
    assert sentence(period("b", False, True)) == (
        "Too few rows to say whether any week differs from a."
    )


def test_holm_is_never_below_bonferroni_of_the_smallest():
    assert holm([0.5, 0.001, 0.02]) == pytest.approx([0.5, 0.003, 0.04])
    assert holm([0.4, 0.6]) == pytest.approx([0.8, 0.8])
    assert holm([]) == []
