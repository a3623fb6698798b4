import numpy as np
import pandas as pd
from benchmarks.unseen_tables import training_rows


def test_rows_are_split_as_published_and_gaps_are_a_value(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(400, 5)), columns=[f"x{k}" for k in range(5)])
    table["class"] = np.where(rng.random(400) < 0.25, "a", "b")
    table.loc[:9, "class"] = None
    table.to_csv(tmp_path / "phoneme.csv.gz", index=False)
    rows = training_rows("phoneme", tmp_path)
    assert len(rows) == 320
    counts = rows["class"].value_counts()
    assert counts["missing"] == 8
    whole = table["class"].fillna("missing").value_counts()
    assert (abs(counts - 0.8 * whole) <= 1).all()
    assert training_rows("phoneme", tmp_path).equals(rows)
