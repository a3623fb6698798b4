"""The verdict: one sentence, what changed in each column, and nothing computed in vain."""

import json
import pickle
import re

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import kermix as km
from cases import normal
from internals import (
    ColumnValues,
    DetailsTask,
    app,
    auc_text,
    change_of,
    difference_of,
    new_and_gone,
    number_text,
)
from kermix.errors import OptionError


def orders(rows, seed, later=0, more=0.0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({
        "price": rng.lognormal(3, 1, rows).round(2),
        "cut": rng.choice(["fair", "good", "ideal"], rows, p=[0.2, 0.3, 0.5]),
        "day": pd.to_datetime(rng.integers(0, 30, rows) + later, unit="D", origin="2024-01-01"),
        "weight": rng.normal(size=rows),
    })  # fmt: skip
    frame.loc[rng.random(rows) < 0.02 + more, "weight"] = np.nan
    return frame


def test_columns_say_what_changed_in_the_units_of_the_table():
    first, second = orders(400, 0), orders(300, 1, later=20, more=0.3)
    second["price"] *= 3
    second.loc[second.index[:120], "cut"] = "fair"
    verdict = km.compare(first, second, permutations=99).verdict
    assert verdict.different
    assert verdict.pvalue == 0.01
    told = {c.column: c for c in verdict.columns}
    assert {name: c.short for name, c in told.items()} == {
        "price": "higher",
        "cut": "more fair",
        "day": "later",
        "weight": "more gaps",
    }
    middles = first["price"].median(), second["price"].median()
    before, after = (float(w) for w in told["price"].change.removeprefix("median ").split(" -> "))
    assert before == pytest.approx(middles[0], rel=0.02)
    assert after == pytest.approx(middles[1], rel=0.02)
    shares = [100 * (f["cut"] == "fair").mean() for f in (first, second)]
    assert told["cut"].change == f"{shares[0]:.3g} % -> {shares[1]:.3g} %"
    assert told["day"].change.startswith("median 2024-01-")
    gaps = [100 * f["weight"].isna().mean() for f in (first, second)]
    assert told["weight"].change.startswith(f"{gaps[0]:.3g} % -> {gaps[1]:.3g} %")
    assert [c.pvalue for c in verdict.columns] == sorted(c.pvalue for c in verdict.columns)
    assert verdict.columns[0].column in ("day", "price")
    assert "from data frame (1) to data frame (2)" in verdict.sentence()
    assert json.loads(json.dumps(verdict.to_dict()))["sentence"] == str(verdict)


def test_two_columns_together():
    x = normal(300, 3, seed=0)
    y = normal(300, 3, seed=1)
    y[:, 2] = 0.9 * y[:, 0] + (1 - 0.81) ** 0.5 * y[:, 2]
    verdict = km.compare(x, y, permutations=99).verdict
    assert verdict.pairs[0].columns == ("x0", "x2")
    assert verdict.different_columns == ()
    assert verdict.sentence().endswith("x0 with x2 together.")


def test_no_difference_says_what_would_have_been_found():
    verdict = km.compare(normal(100, 2, seed=0), normal(80, 2, seed=5), permutations=99).verdict
    assert not verdict.different
    assert verdict.sentence() == (
        f"No difference found at level 0.05 (p = {verdict.pvalue:.2g}); shifts of "
        f"{verdict.detectable_shift:.2g} standard deviations or more in one column would have "
        "been found in four of five cases."
    )
    assert verdict.interval[0] < 0.5 < verdict.interval[1]


def test_too_few_rows_are_no_verdict():
    verdict = km.compare(normal(3, 2), normal(3, 2, seed=1) + 100).verdict
    assert verdict.too_few_rows
    assert not verdict.different
    assert verdict.effect is None
    assert verdict.sentence() == (
        "Too few rows to say: with 3 and 3 rows no p-value can fall below 0.1."
    )
    few = km.compare(normal(6, 2), normal(6, 2, seed=1) + 100).verdict
    assert few.different
    assert few.sentence().startswith("They differ (p = ")
    assert "AUC" not in few.sentence()


def test_the_level_decides():
    x, y = normal(60, 2, seed=0), normal(60, 2, seed=1) + 1
    for level, different in ((0.05, True), (0.005, False)):
        verdict = km.compare(x, y, permutations=99, level=level).verdict
        assert verdict.different is different
        assert verdict.level == level
    with pytest.raises(OptionError, match=r"level=1.5 must be between 0 and 1"):
        km.compare(x, y, level=1.5)


def test_a_small_level_has_the_permutations_that_it_needs():
    x, y = normal(60, 2, seed=0), normal(60, 2, seed=1) + 3
    verdict = km.compare(x, y, level=0.001).verdict
    assert verdict.different
    assert verdict.pvalue <= 0.001


def test_too_few_permutations_are_not_too_few_rows():
    x, y = normal(40, 2, seed=0), normal(40, 2, seed=1) + 3
    verdict = km.compare(x, y, permutations=5).verdict
    assert not verdict.different
    assert not verdict.too_few_rows
    assert verdict.too_few_permutations
    assert verdict.sentence() == (
        "Too few permutations to say: permutations=5 cannot show a difference at level 0.05, "
        "because no p-value can fall below 0.17; 19 or more are needed."
    )
    enough = km.compare(x, y, permutations=19).verdict
    assert enough.different
    assert not enough.too_few_permutations


def test_costs_are_computed_only_for_those_who_ask(monkeypatch):
    asked = []
    find = DetailsTask.find
    monkeypatch.setattr(DetailsTask, "find", lambda task: asked.append(1) or find(task))
    result = km.compare(normal(30, 2), normal(30, 2, seed=1), permutations=19, jackknife_groups=0)
    assert "Every cost: .details()" in str(result)
    assert repr(result).endswith("All of it: .summary()")
    result.to_dict(details=False)
    assert not asked
    assert len(result.measures) == len(result.rows()) > 20
    assert result.measure("mmd").pvalue == result.measure("mmd").pvalue
    assert asked == [1]
    again = pickle.loads(pickle.dumps(result))
    assert again.verdict == result.verdict
    assert again.measures == result.measures


def test_without_permutations_there_are_costs_and_no_verdict():
    result = km.compare(normal(30, 2), normal(30, 2, seed=1), permutations=0, jackknife_groups=0)
    assert str(result).startswith("measure")
    with pytest.raises(OptionError, match="without permutations there is no verdict"):
        _ = result.verdict


def test_sketches_have_a_pvalue_and_refuse_numbers_that_tell_nothing():
    x = normal(600, 2, seed=0)
    rough = km.nystrom_features(normal(100, 2, seed=7), 0.001, rank=3)
    result = km.compare(*(km.Sketch(rough).update(p) for p in (x, x + 0.1)))
    assert "vector" not in {m.name for m in result.measures}
    assert any("vector-matrix cost: no number" in note for note in result.notes)
    good = km.nystrom_features(normal(100, 2, seed=7), 1.0, rank=60)
    far = km.compare(*(km.Sketch(good).update(p) for p in (x, x + 1)))
    assert far.verdict.different
    assert str(far).startswith("They differ (p < 1e-06).")
    assert "SVD cost" in str(far)
    assert far.verdict.effect is None
    assert "no result for single columns" in far.verdict.sentence()
    tiny = km.compare(*(km.Sketch(good).update(p) for p in (x[:5], x[5:])))
    assert not tiny.verdict.different
    assert tiny.verdict.sentence().startswith("No verdict: because a sketch has 5 rows")
    assert len(far.measures) == 7


@pytest.mark.parametrize(
    ("first", "second", "short"),
    [
        (np.linspace(-1, 1, 200), np.linspace(-2, 2, 200), "more spread"),
        (np.linspace(0, 1, 200), np.linspace(0, 1, 200) - 0.3, "lower"),
        (np.repeat([0.0, 1.0], [150, 50]), np.repeat([0.0, 1.0], [50, 150]), "more 1"),
        (np.repeat([0.0, 1, 2], [150, 30, 20]), np.repeat([0.0, 1, 2], [20, 90, 90]),
         "0 less often"),
        (np.repeat([np.nan, 1, 2], [0, 90, 110]), np.repeat([np.nan, 1, 2], [90, 45, 65]),
         "more gaps"),
        (np.full(200, np.nan), np.linspace(0, 1, 200), "fewer gaps"),
        (np.ones(200), np.ones(200), "the same"),
    ],
)  # fmt: skip
def test_changes_in_words(first, second, short):
    values = ColumnValues("x", "number", np.concatenate([first, second]))
    assert change_of(values, 200).short == short


@pytest.mark.parametrize(
    ("rows", "shift", "scale", "short"),
    [
        ((400, 20), 3, 1, "higher"),
        ((400, 40), 3, 1, "higher"),
        ((1000, 100), 3, 0.1, "higher"),
        ((40, 400), -3, 1, "lower"),
        ((400, 100), 0.3, 4, "more spread"),
        ((400, 100), 0.05, 0.2, "less spread"),
        ((400, 1), 5, 1, "higher"),
        ((400, 1), -5, 1, "lower"),
    ],
)
def test_a_shift_is_not_a_spread(rows, shift, scale, short):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        numbers = np.concatenate([rng.normal(size=rows[0]),
                                  rng.normal(size=rows[1]) * scale + shift])  # fmt: skip
        assert change_of(ColumnValues("x", "number", numbers), rows[0]).short in (
            short, "another shape" if rows[1] == 1 else short
        )  # fmt: skip


def test_zeros_of_tables_with_gaps_are_zeros():
    rng = np.random.default_rng(1)
    sides = [pd.DataFrame({"d": np.where(rng.random(300) < share, 0, rng.normal(size=300) + 0.3)})
             for share in (0.5, 0.2)]  # fmt: skip
    sides[0].loc[0, "d"] = np.nan
    verdict = km.compare(*sides, permutations=99, jackknife_groups=0).verdict
    assert verdict.columns[0].short == "0 less often"


@pytest.mark.parametrize("far", [1e9, 1e6, 123_456])
def test_far_integers_are_told_apart(far):
    rng = np.random.default_rng(3)
    sides = [far + rng.integers(low, high, 200) for low, high in ((0, 5), (2, 9))]
    found = change_of(ColumnValues("y", "number", np.concatenate(sides)), 200)
    before, after = found.description.removeprefix("mean ").removeprefix("median ").split(" -> ")
    assert found.short == "higher"
    assert float(before.replace(",", "")) < float(after.replace(",", ""))
    common = [np.repeat(far + np.arange(10.0), k) for k in ([40] + [12] * 9, [0] + [16] * 9)]
    found = change_of(ColumnValues("y", "number", np.concatenate(common)), len(common[0]))
    assert found.short.endswith(" less often")
    assert float(found.short.removesuffix(" less often").replace(",", "")) == far


def test_a_common_value_among_many_is_named():
    rng = np.random.default_rng(0)
    sides = [np.where(rng.random(2000) < share, 0.0, rng.lognormal(size=2000))
             for share in (0.6, 0.3)]  # fmt: skip
    found = change_of(ColumnValues("x", "number", np.concatenate(sides)), 2000)
    assert found.short == "0 less often"
    before, after = (float((side == 0).mean()) for side in sides)
    assert found.description == f"{100 * before:.3g} % -> {100 * after:.3g} %"


@pytest.mark.parametrize("seed", [120, 144, 176, 276])
def test_what_is_shown_agrees_with_the_word(seed):
    """Values may be farther from their median while the range of their middle half is narrower."""
    rng = np.random.default_rng(seed)
    sizes = 300, int(rng.integers(150, 400))
    sides = [rng.gamma(rng.uniform(0.3, 1.5), size=k) for k in sizes]
    widths = [float(np.diff(np.quantile(side, [0.25, 0.75]))[0]) for side in sides]
    assert widths[1] < widths[0]
    short, told = change_of(ColumnValues("x", "number", np.concatenate(sides)), sizes[0])
    assert short != "less spread"
    assert not (short == "more spread" and told.startswith("middle half"))


def test_dates_and_counts_are_shown_without_what_they_do_not_say():
    first, second = orders(60, 0), orders(60, 1, later=20)
    result = km.compare(first[["day"]], second[["day"]], permutations=19)
    assert "00:00" not in result.verdict.columns[0].change
    assert "2024-01-" in result.verdict.columns[0].change
    told = " ".join(result.reading_notes)
    assert "1 column of numbers and times" in told
    assert "categor" not in told
    both = km.compare(first[["cut", "price"]], second[["cut", "price"]], permutations=19)
    assert ", and 1 category;" in " ".join(both.reading_notes)


def graded(n, seed, **replaced):
    rng = np.random.default_rng(seed)
    grades = rng.choice(list("ABCDEFG"), n, p=[0.3, 0.2, 0.15, 0.15, 0.1, 0.05, 0.05])
    return pd.DataFrame({
        "grade": pd.Series(grades).replace(replaced), "amount": rng.lognormal(3, 1, n).round(2),
        "age": np.where(rng.random(n) < 0.1, np.nan, rng.integers(18, 90, n)),
    })  # fmt: skip


def grade_change(first, second):
    columns = km.compare(first, second, permutations=99, jackknife_groups=0).verdict.columns
    return next(c for c in columns if c.column == "grade")


def test_a_new_value_of_few_rows_is_found_and_named_first():
    first, second = graded(2000, 0), graded(2000, 1)
    second.loc[::50, "grade"] = "H"
    verdict = km.compare(first, second, permutations=99, jackknife_groups=0).verdict
    assert "grade (new H)" in verdict.where()
    assert (verdict.columns[0].column, verdict.columns[0].change) == ("grade", "0 % -> 2 %")
    # It is named before what moved more.
    second.loc[second["grade"] == "A", "grade"] = np.where(np.arange(2000) % 2, "A", "B")[
        : (second["grade"] == "A").sum()
    ]
    found = grade_change(first, second)
    assert found.short == "new H"
    assert re.match(r"0 % -> 2 %; (more B|A less often), [0-9.]+ % -> [0-9.]+ %$", found.change)
    gone = grade_change(second, first)
    assert gone.short == "no more H"
    assert gone.change.startswith("2 % -> 0 %; ")


def test_a_value_that_may_be_absent_by_chance_is_not_called_new():
    first, second = graded(300, 0), graded(300, 1)
    first["grade"], second["grade"] = "A", "A"
    second.loc[:2, "grade"] = "H"
    found = grade_change(first, second)
    assert (found.short, found.change) == ("more H", "0 -> 3 rows")
    rng, wrong = np.random.default_rng(0), 0
    for _ in range(500):
        shares, sizes = rng.dirichlet(np.full(rng.integers(2, 60), 0.5)), rng.integers(20, 500, 2)
        wrong += any(map(len, new_and_gone(*(rng.multinomial(k, shares) for k in sizes))))
    assert wrong <= 0.03 * 500


def test_a_renamed_value_is_told_from_both_sides():
    first = graded(2000, 0)
    found = grade_change(first, graded(2000, 1, A="A1"))
    assert found.short == "A probably renamed A1"
    assert re.match(r"A [0-9.]+ % -> 0 %, A1 0 % -> [0-9.]+ %$", found.change)
    assert grade_change(first, graded(2000, 1, A="top")).short == "A probably renamed top"
    # Another share, or two values of one share: nobody knows.
    half = graded(2000, 1, A="top")
    half.loc[(half["grade"] == "top") & (half["amount"] < 15), "grade"] = "B"
    assert grade_change(first, half).short == "new top, no more A"
    both = grade_change(first, graded(2000, 1, C="mid", D="low"))
    assert set(both.short.replace(",", "").split()) >= {"new", "mid", "low", "no", "C", "D"}
    assert "renamed" not in both.short


def towns(**counts):
    return pd.DataFrame({"town": [t for t, count in counts.items() for _ in range(count)]})


def test_shares_beside_a_value_that_is_gone_are_of_all_rows():
    first = towns(Bonn=136, Koeln=208, Trier=156)
    second = towns(Koeln=354, Trier=146)
    change = km.compare(first, second, permutations=19).verdict.columns[0].change
    assert change == "27.2 % -> 0 %; more Koeln, 41.6 % -> 70.8 %"
    # What moved among the others must have moved among all in the same direction.
    first, second = towns(A=300, B=200), towns(A=240, B=60, H=200)
    change = km.compare(first, second, permutations=19).verdict.columns[0].change
    assert change == "0 % -> 40 %; B less often, 40 % -> 12 %"


def test_a_value_of_one_set_is_counted_where_no_difference_is_found(tmp_path):
    tables = []
    for seed in (0, 50):
        rng = np.random.default_rng(seed)
        grade = rng.choice(list("ABCDE"), 600)
        if seed:
            grade[:8] = "Z"
        numbers = {f"x{k}": rng.normal(size=600) for k in range(4)}
        tables.append(pd.DataFrame({"grade": grade, **numbers}))
    result = km.compare(*tables, permutations=39)
    assert not result.verdict.different
    column = next(c for c in result.verdict.columns if c.column == "grade")
    assert (column.short, column.change) == ("more Z", "Z: 0 -> 8 rows")
    said = "But only one of them has some values: grade (Z: 0 -> 8 rows)."
    assert result.verdict.sentence().endswith(said)
    files = [tmp_path / f"{name}.csv" for name in "ab"]
    for table, file in zip(tables, files, strict=True):
        table.to_csv(file, index=False)
    page = tmp_path / "page.html"
    shell = CliRunner().invoke(
        app, ["compare", *map(str, files), "--permutations", "39", "--report", str(page)],
        env={"COLUMNS": "200"},
    )  # fmt: skip
    told = " ".join(shell.output.split())
    assert told.startswith("No difference found")
    assert said in told
    assert "no clear difference; Z: 0 -> 8 rows" in told
    assert "grade (Z: 0 -&gt; 8 rows)" in page.read_text()


def test_values_that_one_would_not_see_are_quoted():
    first, second = towns(A=100, B=150), towns(**{" A": 100, "B": 150})
    column = km.compare(first, second, permutations=19).verdict.columns[0]
    assert column.short == 'A probably renamed " A"'
    assert column.change.startswith('A 40 % -> 0 %, " A" 0 % -> 40 %')


def test_of_many_new_values_the_largest_are_named():
    first, second = graded(2000, 0), graded(2000, 1)
    for k in range(6):
        second.loc[k::50, "grade"] = f"H{k}"
    second.loc[6::20, "grade"] = "Z"
    second.loc[7::20, "grade"] = None
    found = grade_change(first, second)
    assert found.short == "new Z, gaps, H0 and 5 others"
    assert found.change.endswith("gaps 0 % -> 5 %, H0 0 % -> 2 %, 5 others 0 % -> 10 %")


def test_differences_are_total_variations():
    codes = np.repeat([0, 1, 2, 0, 1, 2], [50, 30, 20, 20, 30, 50])
    values = ColumnValues("x", "category", codes=codes, names=("a", "b", "c"))
    assert difference_of(values, 100) == pytest.approx(0.3)
    apart = ColumnValues("x", "number", np.concatenate([np.arange(50.0), np.arange(50.0) + 99]))
    assert difference_of(apart, 50) == pytest.approx(1, abs=0.06)
    few = ColumnValues("x", "number", np.repeat([0.0, 1.0, 0.0, 1.0], [80, 20, 30, 70]))
    assert difference_of(few, 100) == pytest.approx(0.5)


def test_numbers_as_text():
    assert [auc_text(a) for a in (0.5, 0.987, 0.9941, 0.99995, 1.0)] == [
        "0.50", "0.99", "0.994", "0.9999", "1"
    ]  # fmt: skip
    assert number_text(-0.00001) == "-1e-05"


def test_categories_alone_have_no_standard_deviations():
    rng = np.random.default_rng(0)
    first, second = (pd.DataFrame({"a": rng.choice(["x", "y"], 200)}) for _ in range(2))
    verdict = km.compare(first, second, permutations=99).verdict
    points = 50 * verdict.detectable_shift
    assert f"gaining or losing {points:.2g} percentage points would" in verdict.sentence()


def test_no_column_differs_where_the_sets_do_not():
    """In a twentieth of equal sets some column's own test would name one."""
    rng = np.random.default_rng(0)
    own = 0
    for seed in range(12):
        x, y = rng.normal(size=(2, 30, 3))
        test = km.two_sample_test(x, y, permutations=99, seed=seed).aggregate
        verdict = km.compare(x, y, permutations=99, seed=seed).verdict
        assert verdict.pvalue == test.pvalue
        parts = [*verdict.columns, *verdict.pairs]
        assert min(part.pvalue for part in parts) >= verdict.pvalue
        own += min(column.corrected for column in test.columns) < test.pvalue
    assert own > 1  # so that it makes a difference


@pytest.mark.parametrize(
    ("second", "told"),
    [
        ([(510, 49.0), (490, 99.0)], "mean 50 -> 73.5"),
        ([(510, 49.0), (489, 99.0), (1, -1e6)], "lower quartile 25 -> 49"),
        ([(250, 24.9), (250, 49.9), (250, 74.9), (249, 100.0), (1, -1e6)],
         "in 62.4 % of pairs of rows"),
    ],
)  # fmt: skip
def test_no_word_contradicts_the_number_beside_it(second, told):
    """More pairs of rows grow than fall while the median, or all that is shown, falls."""
    rng = np.random.default_rng(0)
    first = np.linspace(0, 100, 1001)
    other = np.concatenate([np.full(k, at) + 1e-4 * rng.random(k) for k, at in second])
    found = change_of(ColumnValues("x", "number", np.concatenate([first, other])), len(first))
    assert np.median(other) < 50
    assert found == ("higher" if "->" in told else "mostly higher", told)
    turned = change_of(ColumnValues("x", "number", np.concatenate([-first, -other])), len(first))
    assert turned.short == found.short.replace("higher", "lower")


def test_columns_that_are_named_are_not_counted_again():
    x, y = normal(300, 5, seed=0), normal(300, 5, seed=1)
    y[:, :4] += 0.8
    x[:, 4] = 0.9 * x[:, 3] + (1 - 0.81) ** 0.5 * x[:, 4]
    verdict = km.compare(x, y, permutations=99).verdict
    assert {c.column for c in verdict.different_columns} >= {"x0", "x1", "x2", "x3"}
    assert set(verdict.different_pairs[0].columns) == {"x3", "x4"}
    named = [f"x{k}" for k in range(5) if f"x{k} " in verdict.where()]
    more = len({c.column for c in verdict.different_columns} - set(named))
    assert ("more column" in verdict.where()) is (more > 0)


def test_sets_that_differ_by_little_are_not_left_there():
    """The sentence says whether it matters, and which column is nearest to being clear."""
    for seed in range(30):
        rng = np.random.default_rng(seed)
        x, y = rng.normal(size=(2, 500, 12))
        y += 0.09 * rng.choice([-1, 1], 12)
        verdict = km.compare(x, y, permutations=99).verdict
        alone = verdict.different_columns or verdict.different_pairs
        if verdict.different and not alone and verdict.interval[0] <= 0.5:
            break
    nearest = verdict.columns[0]
    assert verdict.interval[1] <= 0.6
    assert "but by little: a classifier does not tell their rows apart, AUC" in str(verdict)
    assert verdict.where() == (
        "No column or pair of columns is clearly different by itself; nearest is "
        f"{nearest.column} ({nearest.short}, p = {nearest.pvalue:.2g}). To see where they differ, "
        "compare more rows, or a few columns at a time."
    )
    few = km.compare(normal(14, 2, seed=0), normal(14, 2, seed=1) + 0.7, permutations=99)
    assert few.verdict.different
    assert few.verdict.interval[0] <= 0.5
    assert "but rows are too few to say by how much" in few.verdict.headline()
