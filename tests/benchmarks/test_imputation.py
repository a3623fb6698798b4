"""The benchmark of imputation, on small tables."""

import json

import numpy as np
import pandas as pd
import pytest
from benchmarks.imputation import OneHot, coverage, errors_of, main, pooled, with_gaps

from kermix import errors

TEXTS = ["class"]


def table(rows=300):
    rng = np.random.default_rng(0)
    size = rng.normal(size=rows)
    return pd.DataFrame({"size": size, "wide": 2 * size + rng.normal(size=rows),
                         "class": np.where(size > 0, "g", "h")})  # fmt: skip


def test_gaps_are_a_share_of_the_cells_and_the_same_again():
    whole, gaps, removed = with_gaps(table(2000), TEXTS, 1, 1500)
    assert whole.shape == (1500, 3)
    assert not whole.isna().any().any()
    assert (gaps.isna().to_numpy() == removed).all()
    assert removed.mean() == pytest.approx(0.3, abs=0.03)
    assert with_gaps(table(2000), TEXTS, 1, 1500)[1].equals(gaps)


def test_errors_are_of_removed_cells_alone():
    whole = pd.DataFrame({"x": [0.0, 2.0, 4.0, 6.0], "class": ["a", "b", "a", "b"]})
    filled = pd.DataFrame({"x": [9.0, 2.0, 5.0, 7.0], "class": ["a", "a", "b", "b"]})
    removed = np.array([[False, False], [False, True], [True, False], [True, True]])
    found = errors_of(whole, filled, removed, TEXTS)
    assert found["number_error"] == pytest.approx(1 / whole["x"].std())
    assert found["wrong_categories"] == 0.5


@pytest.mark.parametrize("less", [False, True])
def test_one_hot_columns_come_back(less):
    rows = table().assign(**{"class": np.random.default_rng(1).choice(list("abc"), 300)})
    form = OneHot(rows, TEXTS, less)
    coded = form.encode(rows)
    assert coded.shape[1] == 5 - less
    back = form.decode(coded)
    assert (back["class"] == rows["class"]).all()
    assert back["wide"].to_numpy() == pytest.approx(rows["wide"].to_numpy())
    rows.loc[3, "class"] = None
    assert np.isnan(form.encode(rows)[3, 2:]).all()


def test_draws_from_the_true_distribution_cover_as_often_as_they_should():
    rng = np.random.default_rng(0)
    whole = pd.DataFrame({"x": rng.normal(size=20_000), "k": rng.integers(0, 3, 20_000) * 1.0})
    draws = [
        pd.DataFrame({"x": rng.normal(size=20_000), "k": rng.integers(0, 3, 20_000) * 1.0})
        for _ in range(20)
    ]
    removed = np.ones((20_000, 2), dtype=bool)
    found = coverage(whole, draws, removed, [], 0)
    assert found["coverage_52"] == pytest.approx(11 / 21, abs=0.01)
    assert found["coverage_90"] == pytest.approx(19 / 21, abs=0.01)
    narrow = coverage(whole, [d / 2 for d in draws], removed[:, :1] & [[True, False]], [], 0)
    assert narrow["coverage_90"] < 0.7


def test_draws_are_pooled_by_mean_and_vote():
    draws = [
        pd.DataFrame({"x": [k], "class": [c]}) for k, c in ((1.0, "a"), (2.0, "b"), (6.0, "b"))
    ]
    found = pooled(draws, TEXTS)
    assert found["x"][0] == 3.0
    assert found["class"][0] == "b"


def test_the_command_writes_a_record(tmp_path):
    table().to_csv(tmp_path / "magic.csv.gz", index=False)
    out = tmp_path / "out.json"
    main(["--data", str(tmp_path), "--tables", "magic", "--steps", "3", "--rows", "200",
          "--out", str(out)])  # fmt: skip
    record = json.loads(out.read_text())
    found = {r["method"]: r for r in record["tables"]["imputation"]}
    assert len(found) == 6
    assert found["mean or mode"]["number_error"] == pytest.approx(1, abs=0.15)
    assert found["IterativeImputer"]["number_error"] < 0.9
    assert all(r["rows"] == 200 for r in found.values())
    with pytest.raises(errors.OptionError, match="flowers"):
        main(["--data", str(tmp_path), "--tables", "flowers"])
