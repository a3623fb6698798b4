"""The order of periods that are named in words."""

import numpy as np
import pytest

import kermix as km
from internals import order_of_names


@pytest.mark.parametrize(
    "names",
    [
        ["Jan 2023", "Apr 2023", "Dec 2023", "Feb 2024"],
        ["January 2023", "dec. 2023", "February, 2024"],
        ["Nov-98", "Dec-99", "Jan-00", "Feb-01"],
        ["2023 Dec", "2024 Jan", "2024 Mar"],
        ["11/2023", "12/2023", "01/2024", "2/2024"],
        ["Q1 2023", "Q4 2023", "Q1 2024", "Q2 2024"],
        ["2023Q1", "2023Q4", "2024Q1"],
        ["KW 50 2023", "KW 2 2024"],
        ["week 1", "week 9", "week 10"],
        ["v1.2", "v1.9", "v1.10"],
        ["Mon", "Tue", "Wed", "Thu"],
        ["Jun", "Jul", "Aug", "Sept", "Oct"],
    ],
)
def test_names_of_periods_are_understood(names):
    mixed = [names[k] for k in np.random.default_rng(0).permutation(len(names))]
    assert order_of_names(mixed) == names


@pytest.mark.parametrize(
    "names",
    [
        ["after", "before"],
        ["Q1 2023", "week 2 2023"],
        ["Januar", "März"],
        ["Ma", "Ju"],
        ["a1", "b2"],
    ],
)
def test_other_names_have_no_order(names):
    assert order_of_names(names) is None


def test_an_unknown_order_is_that_of_the_rows_and_is_said():
    rng = np.random.default_rng(0)
    rows = {"x": rng.normal(size=60), "phase": ["old"] * 20 + ["new"] * 20 + ["later"] * 20}
    found = km.drift_over_time(rows, "phase", permutations=19)
    assert found.reference == "old"
    assert [p.period for p in found.periods] == ["new", "later"]
    assert any("have no recognizable order" in note for note in found.notes)
    rows["phase"] = ["Feb 2024"] * 20 + ["Dec 2023"] * 20 + ["Jan 2024"] * 20
    found = km.drift_over_time(rows, "phase", permutations=19)
    assert [found.reference, *(p.period for p in found.periods)] == [
        "Dec 2023", "Jan 2024", "Feb 2024"
    ]  # fmt: skip
    assert not any("have no recognizable order" in note for note in found.notes)


def test_files_of_months_are_in_their_order(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("Feb 2024", "Dec 2023", "Jan 2024"):
        np.savetxt(tmp_path / f"{name}.csv", rng.normal(size=(20, 1)), header="x", comments="")
    found = km.drift_over_time(tmp_path, permutations=99)
    assert [found.reference, *(p.period for p in found.periods)] == [
        "Dec 2023", "Jan 2024", "Feb 2024"
    ]  # fmt: skip
