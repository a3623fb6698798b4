"""What `compare` says of pairs of columns, and of times that moved on."""

import numpy as np
import pandas as pd
import pytest

import kermix as km
from internals import area_text

N = 300


def tables(seed=0):
    """Two samples whose columns are alike, but for how two of them go together."""
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(2):
        land = generator.permutation(["DE", "FR", "JP"] * (N // 3))
        cost = pd.Series(land).map({"DE": 4.9, "FR": 9.9, "JP": 25.0}).to_numpy()
        found.append(pd.DataFrame({"land": land, "cost": cost, "size": generator.normal(size=N)}))
    return found


def test_a_pair_that_differs_has_a_line_with_what_changed():
    one, two = tables()
    two["cost"] = np.random.default_rng(1).permutation(two["cost"])
    found = km.compare(one, two, permutations=199)
    assert found.verdict.where().endswith("land with cost together.")
    first, *others = found.column_rows()
    assert first[0] == "land with cost"
    assert first[1] == f"{found.verdict.different_pairs[0].pvalue:.2g}"
    assert first[2].startswith("depend less on each other: Cramer's V of groups of values 1.00 ->")
    assert {told for _, _, told in others} == {"no clear difference"}
    assert found.to_dict()["verdict"]["pairs"][0]["change"]


def test_numbers_that_turn_round_are_told_by_the_correlation_of_their_ranks():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(2, N))
    y = x * np.array([[1.0], [-1.0]]) + 0.1 * generator.normal(size=(2, N))
    one, two = (pd.DataFrame({"x": x[k], "y": y[k]}) for k in (0, 1))
    (pair,) = km.compare(one, two, permutations=199).verdict.different_pairs
    assert pair.short == "the other way"
    assert pair.change in {f"rank correlation {r} -> -{s}" for r in ("0.99", "1.00")
                           for s in ("0.99", "1.00")}  # fmt: skip


@pytest.mark.parametrize("changed", [False, True])
def test_times_of_two_months_are_named_as_what_to_leave_out(changed):
    one, two = tables(3)
    for table, start in ((one, "2024-01-01"), (two, "2024-02-01")):
        table["ordered"] = pd.date_range(start, periods=N, freq="2h")
    two["size"] += 3.0 * changed
    told = km.compare(one, two, permutations=199).verdict.sentence()
    assert "leave them out to compare the rest (--exclude ordered, exclude=)." in told
    assert ("Apart from ordered no column differs by itself." in told) is not changed
    rest = km.compare(one, two, exclude=["ordered"], permutations=199)
    assert rest.different is changed


def test_a_day_later_is_no_other_period():
    one, two = tables(4)
    for table, start in ((one, "2024-01-01"), (two, "2024-01-04")):
        table["ordered"] = pd.date_range(start, periods=N, freq="2h")
    assert "exclude" not in km.compare(one, two, permutations=199).verdict.sentence()


def test_an_auc_below_chance_says_that_it_is_no_better():
    assert area_text(0.47, (0.45, 0.49)) == (
        "AUC 0.47 (0.45 to 0.49; 0.5 is chance, and less is no better)"
    )
    assert area_text(0.49, (0.45, 0.52)) == "AUC 0.49 (0.45 to 0.52; 0.5 is chance)"
