"""Ours against gradient boosting on tables of a folder, in small."""

import json

import numpy as np
import pandas as pd
import pytest

from benchmarks import tabular
from kermix.errors import OptionError


@pytest.mark.parametrize(("cuts", "more"), [([0.0], [tabular.LONGER]), ([-0.4, 0.4], [])])
def test_tables_of_a_folder(tmp_path, cuts, more):
    draws = np.random.default_rng(0)
    table = pd.DataFrame(draws.normal(size=(240, 3)), columns=list("abc"))
    table["class"] = np.array(["low", "middle", "high"])[np.searchsorted(cuts, table["a"])]
    table.to_csv(tmp_path / "phoneme.csv.gz", index=False)
    options = ["--quick", "--data", "phoneme", "--data-folder", str(tmp_path)]
    path = tabular.main([*options, "--out", str(tmp_path / "found.json")])
    record = json.loads(path.read_text())
    assert record["benchmark"] == "tabular-tables"
    rows = record["tables"]["tables"]
    few = f"{tabular.OURS}, {tabular.FEW_EPOCHS} epochs"
    assert [row["method"] for row in rows] == [tabular.OURS, few, tabular.TREES, *more]
    assert all(row["score"] > 0.4 and (row["rows"], row["columns"]) == (240, 3) for row in rows)
    ratio = rows[0]["fit_cpu_s"] / rows[2]["fit_cpu_s"]
    assert rows[0]["times_of_boosting"] == pytest.approx(ratio)


def test_a_table_that_is_not_there(tmp_path):
    with pytest.raises(OptionError, match=r"phoneme\.csv\.gz"):
        tabular.measure_table(tmp_path, "phoneme")
