"""The ablation of what starts a mixture, on a small table."""

import json

import numpy as np
import pandas as pd
import pytest

from benchmarks import mixture_starts
from kermix import errors


def test_a_record_of_two_ways(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(rng.normal(size=(400, 2)), columns=["x0", "x1"]).assign(**{"class": 0})
    rows.to_csv(tmp_path / "phoneme.csv.gz", index=False)
    few = ("k-means, then EM", "KernelMixture()")
    monkeypatch.setattr(mixture_starts, "WAYS", {w: mixture_starts.WAYS[w] for w in few})
    out = tmp_path / "out.json"
    mixture_starts.main(
        ["--data", str(tmp_path), "--tables", "phoneme", "--seeds", "0,1", "--out", str(out)]
    )
    tables = json.loads(out.read_text())["tables"]
    (line,) = tables["summary"]
    assert len(tables["fits"]) == 4
    # 64 components learn 320 rows by heart; the mixture that is chosen does not.
    assert line["KernelMixture()"] == pytest.approx(-np.log(2 * np.pi * np.e), abs=0.3)
    assert line["k-means, then EM"] < line["KernelMixture()"]
    with pytest.raises(errors.OptionError, match="flowers"):
        mixture_starts.main(["--data", str(tmp_path), "--tables", "flowers"])
