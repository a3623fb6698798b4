"""Rows that a file repeats are said first and count once; rows that coincide keep their number."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import kermix as km
from internals import app
from kermix.errors import OptionError


def orders(rows, seed, **grades):
    rng = np.random.default_rng(seed)
    grade = rng.choice(list("ABCDEFG"), rows, p=[0.3, 0.2, 0.15, 0.15, 0.1, 0.05, 0.05])
    return pd.DataFrame({
        "order id": [f"T-{100_000 * (seed + 1) + k}" for k in range(rows)],
        "nr": np.arange(rows) + 10_000 * seed,
        "grade": pd.Series(grade).replace(grades),
        "price €": [f"{x:.2f}".replace(".", ",") for x in rng.lognormal(3, 1, rows)],
        "age": pd.array(np.where(rng.random(rows) < 0.1, -1, rng.integers(18, 90, rows)),
                        dtype="Int64"),
        "paid": rng.choice(["yes", "no", ""], rows, p=[0.7, 0.25, 0.05]),
        "day": (pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 60, rows), "D"))
        .strftime("%Y-%m-%d"),
    }).replace({"age": {-1: pd.NA}})  # fmt: skip


def with_repeats(table, count, times=1, seed=9):
    some = table.sample(count, random_state=seed)
    return pd.concat([table, *[some] * times]).sample(frac=1, random_state=seed)


def left_out(first, second):
    """How many rows of each set count for nothing."""
    found = km.compare(first, second, permutations=0)
    return tuple(a - b for a, b in zip(found.sizes, found.used, strict=True))


def command(*arguments, status=0):
    result = CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "120"})
    assert result.exit_code == status, result.output
    return " ".join(result.output.split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("orders")
    tables = {
        "old": orders(600, 0),
        "repeated": with_repeats(orders(600, 1), 180),
        "both": with_repeats(orders(600, 3, A="A1"), 180),
    }
    for name, table in tables.items():
        table.to_csv(path / f"{name}.csv", index=False, sep=";")
    periods = [t.assign(month=m) for t, m in zip(tables.values(), ["May", "June", "July"],
                                                 strict=True)]  # fmt: skip
    pd.concat(periods).to_csv(path / "months.csv", index=False, sep=";")
    return path


def test_repeats_of_a_messy_file_are_said_first_and_count_once(folder, tmp_path):
    page = tmp_path / "page.html"
    files = folder / "old.csv", folder / "repeated.csv"
    told = command("compare", *files, "--fail-if-different", "--report", page)
    assert told.startswith(
        "Apart from 180 repeated rows in repeated.csv: no difference found at level 0.05 (p = "
    )
    assert (
        "repeated.csv: 180 of 780 rows repeat earlier ones, more than coincidence explains; each "
        "counts once."
    ) in told
    assert "Left out as keys: order id, nr." in told
    answer = told[: told.index("cases.") + 6]
    assert f"<p>{answer}</p>" in page.read_text()
    found = json.loads(CliRunner().invoke(
        app, ["compare", *map(str, files), "--json", "--permutations", "39"]).output)  # fmt: skip
    assert found["verdict"]["repeated"] == [0, 180]
    assert (found["rows"], found["rows_used"]) == ([600, 780], [600, 600])


def test_what_changed_beside_repeats_is_found(folder):
    told = command("compare", folder / "old.csv", folder / "both.csv", "--fail-if-different",
                   "--permutations", 59, status=3)  # fmt: skip
    assert re.match(r"Apart from 180 repeated rows in both.csv: they differ \(p = 0.017\)", told)
    assert "grade (A probably renamed A1)" in told


def test_drift_says_repeats_first(folder, tmp_path):
    page = tmp_path / "page.html"
    told = command("drift", folder / "months.csv", "--by", "month", "--permutations", 99,
                   "--report", page)  # fmt: skip
    assert told.startswith(
        "Apart from repeated rows (180 in June, 180 in July): 1 of 2 months differs from May: "
        "July, most in grade."
    )
    assert "180 repeated rows, grade (A probably renamed A1)" in told
    assert "A probably renamed A1: A " in page.read_text()  # what changed, with its name


KINDS = {
    "numbers": lambda rng, n: rng.normal(size=(n, 3)),
    "one number": lambda rng, n: rng.normal(size=(n, 1)),
    "hundredths": lambda rng, n: rng.normal(size=(n, 2)).round(2),
}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_with_copies_are_at_the_level(kind):
    found, repeats = [], []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        first, second = (pd.DataFrame(KINDS[kind](rng, 160)) for _ in range(2))
        second = second.rename(columns=str)
        copied = with_repeats(second, 80, times=4, seed=seed)
        result = km.compare(first.rename(columns=str), copied, permutations=39)
        repeats.append(result.verdict.repeated)
        found.append(result.verdict.pvalue)
    assert all(first <= 3 and 310 <= second <= 322 for first, second in repeats)
    assert np.mean(np.array(found) <= 0.05) <= 0.25  # nearly all, if each copy counted


def test_arrays_with_copies_on_both_sides_count_them_once():
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(300, 3)), rng.normal(size=(250, 3))
    second[:, 1] += 0.5
    copied = np.concatenate([first, first[:60]]), np.concatenate([second[:40]] * 2 + [second])
    result = km.compare(*copied, permutations=99)
    assert result.verdict.repeated == (60, 80)
    assert result.verdict.different_columns[0].column == "x1"
    assert str(result).startswith("Apart from 60 repeated rows in ndarray (1) and 80 repeated ")
    plain = km.compare(first, second, permutations=99)
    assert result.verdict.rows == plain.verdict.rows
    assert left_out(first, second) == (0, 0)


def binary(rng, n, share):
    return pd.DataFrame({k: rng.choice(["y", "n"], n, p=[p, 1 - p])
                         for k, p in zip("abc", [share, 0.5, 0.8], strict=True)})  # fmt: skip


def test_changed_frequencies_of_few_values_are_found():
    rng = np.random.default_rng(0)
    tables = binary(rng, 500, 0.3), binary(rng, 400, 0.45)
    assert left_out(*tables) == (0, 0)
    assert km.compare(*tables, permutations=59).verdict.columns[0].column == "a"
    # Values that one set alone has; all rows alike; values of the sets apart.
    constant = [pd.DataFrame({"a": [v] * 300, "b": [w] * 300}) for v, w in ("xy", "zw")]
    counts = [pd.DataFrame({"visits": rng.poisson(m, 500), "age": rng.integers(18, 40, 500)})
              for m in (3, 30)]  # fmt: skip
    renamed = [pd.DataFrame({"town": rng.choice([f"{p}{k}" for k in range(30)], 400)})
               for p in "pq"]  # fmt: skip
    codes = [pd.DataFrame({"a": rng.choice(v, 600), "b": rng.choice(v, 600)})
             for v in ([f"u{k}" for k in range(20)], [f"v{k}" for k in range(20)])]  # fmt: skip
    games = [pd.DataFrame({"won": rng.poisson(m, 400), "lost": rng.poisson(m, 400)})
             for m in (2, 6)]  # fmt: skip
    for pair in (constant, counts, renamed, codes, [g.assign(all=g.sum(axis=1)) for g in games]):
        assert left_out(*pair) == (0, 0)
        verdict = km.compare(*pair, permutations=39).verdict
        assert verdict.different is (None if pair is constant else True)
        assert verdict.unexplained == (0, 0)


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_a_row_of_very_many_keeps_its_number(share):
    rng = np.random.default_rng(0)
    tables = [pd.DataFrame({"x": rng.normal(size=400), "y": rng.normal(size=400)})
              for _ in range(2)]  # fmt: skip
    for table, empty in zip(tables, (0.1, share), strict=True):
        table.loc[rng.random(400) < empty] = 0.0
    assert left_out(*tables) == (0, 0)
    assert km.compare(*tables, permutations=59).verdict.different == (
        False if share == 0.1 else None
    )
    # Nor does it hide copies of others.
    assert left_out(tables[0], with_repeats(tables[1][tables[1]["x"] != 0], 50)) == (0, 50)


def test_copies_of_a_row_that_both_have_are_left_out_as_those_of_others_are():
    rng = np.random.default_rng(0)
    tables = [pd.DataFrame({"x": rng.normal(size=900), "y": rng.normal(size=900)})
              for _ in range(2)]  # fmt: skip
    for table in tables:
        table[:300] = 0.0
    found = km.compare(tables[0], with_repeats(tables[1], 450), permutations=39)
    assert found.verdict.repeated[1] == pytest.approx(450, abs=30)
    zeros = (found.compared.pooled[found.compared.n :] == 0).all(1).sum()
    assert int(zeros) == pytest.approx(300, abs=30)
    assert not found.verdict.different


def people(rng, rows):
    return pd.DataFrame({
        "age": rng.integers(18, 70, rows), "sex": rng.choice(["m", "f"], rows),
        "town": rng.choice([f"t{k}" for k in range(12)], rows), "kids": rng.poisson(1, rows),
    })  # fmt: skip


def visits(rng, rows, mean=8):
    return pd.DataFrame({"age": rng.integers(18, 70, rows), "visits": rng.poisson(mean, rows)})


@pytest.mark.parametrize("table", [people, visits])
def test_a_file_written_twice_counts_once_however_many_rows_coincide(table):
    rng = np.random.default_rng(0)
    first, second = table(rng, 1000), table(rng, 500)
    twice = pd.concat([second, second]).sample(frac=1, random_state=0)
    verdict = km.compare(first, twice, permutations=39).verdict
    assert verdict.repeated == (0, 500)
    assert verdict.rows == (1000, 500)
    assert not verdict.different
    assert left_out(first, second) == (0, 0)


def test_copies_among_rows_that_coincide_are_said_before_a_difference():
    found = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        first, second = visits(rng, 900), visits(rng, 600)
        again = second.sample(300, random_state=seed)
        verdict = km.compare(first, pd.concat([second, again]), permutations=39).verdict
        found.append(verdict.different is None)
        if verdict.different is False:
            continue
        assert verdict.unexplained == (0, pytest.approx(300, abs=200))
        told = "Rows repeat more often within data frame (2) (about "
        assert verdict.sentence().startswith(told)
        assert "They may differ (p = " in verdict.headline()
    assert any(found)


def test_rows_without_copies_are_not_said_to_be_repeated():
    for seed in range(3):
        rng = np.random.default_rng(seed)
        verdict = km.compare(visits(rng, 900), visits(rng, 900, 6), permutations=39).verdict
        assert verdict.different
        assert verdict.headline().startswith("They differ")


def dice(rng, rows):
    """A table of 144 possible rows."""
    return pd.DataFrame({
        "sex": rng.choice(["m", "f"], rows), "town": rng.choice(list("ABCDEF"), rows),
        "size": rng.choice(["s", "m", "l"], rows), "kids": rng.choice(list("0123"), rows),
    })  # fmt: skip


def test_copies_that_cannot_be_told_from_equal_rows_are_spoken_of_before_a_difference():
    differ = 0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        first, second = dice(rng, 900), dice(rng, 700)
        again = second.sample(200, random_state=seed)
        verdict = km.compare(first, pd.concat([second, again]), permutations=39).verdict
        assert verdict.different is not True
        differ += verdict.different is None
        if verdict.different is None and not any(verdict.unexplained):
            assert verdict.coinciding == (pytest.approx(756, abs=10), pytest.approx(756, abs=10))
            told = rf"Many rows equal earlier ones \({verdict.coinciding[0]} of 900 rows in data"
            assert re.match(told, verdict.sentence())
            assert "copies cannot be told from them" in verdict.headline()
        assert verdict.different is None or verdict.coinciding == (0, 0)
    assert differ
    # Copies do not make a difference of this size.
    rng = np.random.default_rng(0)
    other = dice(rng, 900).assign(town=rng.choice(list("ABCDEF"), 900, p=[0.95] + [0.01] * 5))
    assert km.compare(dice(rng, 900), other, permutations=39).verdict.coinciding == (0, 0)


@pytest.mark.parametrize("rows", [1, 3])
def test_single_rows_of_very_many_copies_are_spoken_of_first(rows):
    rng = np.random.default_rng(0)
    first, second = (
        pd.DataFrame({"x": rng.normal(size=400), "y": rng.lognormal(size=400).round(2),
                      "c": rng.choice(list("abc"), 400)}) for _ in range(2)
    )  # fmt: skip
    second = pd.concat([second, *[second.iloc[:rows]] * (99 // rows)])
    verdict = km.compare(first, second, permutations=39).verdict
    assert verdict.repeated == (0, 0)
    assert verdict.different is None
    one = "One row stands 100 times in data frame (2) and never in data frame (1), "
    several = "3 rows stand 102 times in data frame (2) and 0 in data frame (1), "
    assert verdict.sentence().startswith(one if rows == 1 else several)
    assert "Many rows equal" not in verdict.sentence()
    # The same from the other side, and without the copies.
    told = km.compare(second, first, permutations=39).verdict.headline()
    assert "times in data frame (1) and" in told
    assert km.compare(first, second[:400], permutations=39).verdict.frequent is None


def test_the_row_that_a_set_repeats_is_spoken_of_and_not_those_that_are_rarer_for_it():
    rng = np.random.default_rng(0)
    first, second = (
        pd.DataFrame({"g": rng.choice(list("abc"), 900), "kids": rng.integers(0, 7, 900)})
        for _ in range(2)
    )
    second = pd.concat([second, *[second.iloc[[5]]] * 150])
    frequent = km.compare(first, second, permutations=39).verdict.frequent
    alike = [int((t == second.iloc[5]).all(axis=1).sum()) for t in (first, second)]
    assert (frequent.distinct, frequent.counts) == (1, tuple(alike))


def test_rows_that_repeat_are_not_blamed_for_what_they_cannot_do():
    """Few rows coincide, or one stands five times, and the AUC is far above what these could."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        first, second = (rng.normal(size=(900, 2)) for _ in range(2))
        second[:, 1] = 0.2 * second[:, 1] + second[:, 0]
        second[:30] = second[0]
        first, second = (pd.DataFrame(x.round(1), columns=["x", "y"]) for x in (first, second))
        verdict = km.compare(first, second, permutations=39).verdict
        assert verdict.interval[0] > 0.6
        assert verdict.headline().startswith("They differ")
        assert verdict.different


def test_sets_of_which_one_is_made_from_the_other_are_said_to_be_pairs():
    rng = np.random.default_rng(0)
    first = pd.DataFrame(rng.normal(size=(300, 3)), columns=list("abc"))
    verdict = km.compare(first, first + 1e-4 * rng.normal(size=(300, 3)), permutations=39).verdict
    assert verdict.paired
    told = f"do worse than chance (AUC {verdict.effect:.2f}; 0.5 is chance)"
    assert verdict.sentence().startswith("No difference found at level 0.05 (p = 1)")
    assert ". Rows of both sets belong together in pairs: a classif" in verdict.sentence()
    assert told.replace("do ", "does ") in verdict.headline()
    other = pd.DataFrame(rng.normal(size=(300, 3)), columns=list("abc"))
    assert not km.compare(first, other, permutations=39).verdict.paired
    assert not km.compare(first, first, permutations=39).verdict.paired


def coarse(rng, rows):
    """Columns that depend on each other so much that rows often coincide."""
    x = rng.normal(size=rows)
    columns = {"x": x, "y": x + 0.1 * rng.normal(size=rows), "z": x - 0.1 * rng.normal(size=rows)}
    return pd.DataFrame(columns).round(1)


def catalogue(rng, rows):
    """Rows of 400 things."""
    things = np.random.default_rng(7).normal(size=(400, 3)).round(3)
    return pd.DataFrame(things[rng.integers(0, 400, rows)], columns=list("abc"))


@pytest.fixture
def doubtful(tmp_path):
    """Files of 144 possible rows, some of the second's copied, and a p-value at the level."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        first, second = dice(rng, 900), dice(rng, 700)
        second = pd.concat([second, second.sample(200, random_state=seed)])
        if km.compare(first, second, permutations=99).verdict.pvalue <= 0.05:
            first.to_csv(tmp_path / "first.csv", index=False)
            second.to_csv(tmp_path / "second.csv", index=False)
            both = [first.assign(month="May"), second.assign(month="June")]
            pd.concat(both).to_csv(tmp_path / "months.csv", index=False)
            return tmp_path
    raise AssertionError("no p-value was below the level")


def test_what_may_be_copies_is_no_difference_for_words_json_and_exit_status(doubtful):
    files, few = (doubtful / "first.csv", doubtful / "second.csv"), ("--permutations", 99)
    told = command("compare", *files, *few)
    assert "They may differ" in told
    assert "Most different if they do, from first.csv to second.csv: " in told
    assert "unless by copies of rows" in told
    run = CliRunner().invoke(app, ["compare", *map(str, files), "--json", "--permutations", "99"])
    assert json.loads(run.output)["verdict"]["different"] is None
    judged = km.evaluate(*map(str, files), permutations=99)
    assert judged.good is None
    assert "The samples may differ from real data" in judged.answer
    drift = km.drift_over_time(str(doubtful / "months.csv"), "month", permutations=99)
    told = drift.sentence()
    assert told.startswith("June does not surely differ from May at level 0.05")
    assert told.endswith(". June may differ, if no row is a copy of another.")
    assert [p.answer for p in drift.periods] == ["may differ"]
    for asked in (["compare", *files], ["evaluate", *files],
                  ["drift", doubtful / "months.csv", "--by", "month"]):  # fmt: skip
        run = CliRunner().invoke(app, [*map(str, asked), "--permutations", "99",
                                       "--fail-if-different"])  # fmt: skip
        assert isinstance(run.exception, OptionError), run.output
        assert "needs a verdict" in str(run.exception)


def test_the_same_rows_are_said_first(folder):
    table = orders(300, 5)
    told = km.compare(table, table.sample(frac=1, random_state=0), permutations=39).verdict
    assert told.sentence() == (
        "Both have the same 300 rows, in all columns that are compared. No difference found at "
        "level 0.05 (p = 1)."
    )
    part = km.compare(table, table[40:], permutations=39).verdict
    assert part.shared.count == 260
    assert part.headline().startswith(
        "All 260 rows of data frame (2) are in data frame (1) too, mo"
    )
    mostly = pd.concat([table[:200], orders(300, 6)])
    assert km.compare(table, mostly, permutations=39).verdict.shared.count == 200
    # Neither few rows, nor those that coincide by chance.
    few = pd.concat([table[:20], orders(300, 6)])
    assert km.compare(table, few, permutations=39).verdict.shared is None
    rng = np.random.default_rng(0)
    kinds = (dice, visits, people, coarse, catalogue)
    for pair in ([kind(rng, 500), kind(rng, 400)] for kind in kinds):
        assert km.compare(*pair, permutations=39).verdict.shared is None
