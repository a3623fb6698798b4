"""Differences of columns and pairs: one number everywhere, from the cells of the user's tables."""

import sys
from types import ModuleType

import numpy as np
import pandas as pd
import pytest

import kermix as km
from internals import ComparedRows, Reading, read_sources, sdmetrics_scores, table_scores


def compared(real, fake):
    return ComparedRows.of(read_sources([real, fake], Reading()))


def table(n, seed, shift=0.0):
    rng = np.random.default_rng(seed)
    price = np.round(rng.lognormal(size=n) + shift, 3)
    size = price * 0.5 + rng.normal(size=n)
    kind = np.where(rng.random(n) < 0.3 + shift / 4, "a", np.where(price > 1, "b", "c"))
    place = rng.choice(["x", "y"], size=n)
    found = pd.DataFrame({"price": price, "size": size, "kind": kind, "place": place})
    found.loc[rng.random(n) < 0.1, "size"] = np.nan
    return found


def difference(real, fake, most=20):
    """Total variation of groups, from the frames: values, or ranges with equally many rows."""
    both = pd.concat([real, fake], ignore_index=True)
    if both.dtype.kind in "fi" and both.nunique() >= most:
        edges = np.unique(both.dropna().quantile(np.linspace(0, 1, most)[1:-1]))
        groups = pd.Series(np.searchsorted(edges, both, side="right")).where(both.notna(), -1)
    else:
        groups = both.fillna(-1)
    shares = [part.value_counts(normalize=True)
              for part in (groups[: len(real)], groups[len(real) :])]  # fmt: skip
    return shares[0].subtract(shares[1], fill_value=0).abs().sum() / 2


@pytest.mark.parametrize("shift", [0.0, 0.6])
def test_differences_are_those_of_compare_and_of_the_frames(shift):
    real, fake = table(300, 0), table(260, 1, shift)
    found = table_scores(compared(real, fake))
    told = {
        c.column: c.difference for c in km.compare(real, fake, permutations=19).verdict.columns
    }
    assert {name: d for (name,), d in found.shape.each} == told
    for name, value in told.items():
        assert value == pytest.approx(difference(real[name], fake[name]), abs=1e-12), name
    assert found.shape.score == pytest.approx(1 - np.mean([*told.values()]))
    assert found.shape.scatter == pytest.approx(np.std([*told.values()], ddof=1))
    assert len(found.pairs.each) == 6
    assert (found.shape.score > 1 - 1.5 * found.shape.if_same) == (shift == 0)


def test_what_chance_makes_is_what_equal_tables_show():
    rng = np.random.default_rng(0)
    found = []
    for _ in range(40):
        pooled = pd.DataFrame({"a": rng.normal(size=500), "b": rng.choice(list("xyz"), 500)})
        found.append(table_scores(compared(pooled[:200], pooled[200:])))
    for of in ("shape", "pairs"):
        seen = [1 - getattr(f, of).score for f in found]
        error = np.std(seen) / np.sqrt(len(seen))
        assert np.mean(seen) == pytest.approx(getattr(found[0], of).if_same, abs=4 * error + 0.005)


def test_sdmetrics_computes_its_own_scores_if_it_is_there(monkeypatch):
    rows = compared(table(40, 0), table(30, 1))
    monkeypatch.setitem(sys.modules, "sdmetrics", None)
    assert sdmetrics_scores(rows) == []

    class Report:
        def generate(self, real, fake, metadata, verbose):
            assert len(real), len(fake) == (40, 30)
            assert metadata["columns"]["kind"] == {"sdtype": "categorical"}
            assert set(real["kind"]) <= set("abc")

        def get_score(self):
            return 0.75

    class Detection:
        compute = staticmethod(lambda real, fake, metadata: 0.25)

    for name in ("sdmetrics", "sdmetrics.reports"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for name, holds in (("sdmetrics.reports.single_table", {"QualityReport": Report}),
                        ("sdmetrics.single_table", {"LogisticDetection": Detection})):  # fmt: skip
        module = ModuleType(name)
        vars(module).update(holds)
        monkeypatch.setitem(sys.modules, name, module)
    assert [value for *_, value in sdmetrics_scores(rows)] == [0.75, 0.25]


def test_constant_columns_and_unseen_values_are_no_trouble():
    b = np.random.default_rng(0).normal(size=20)
    real = pd.DataFrame({"a": [1.0] * 20, "b": b, "c": list("xy") * 10})
    fake = pd.DataFrame({"a": [1.0] * 20, "b": b + 3, "c": list("xz") * 10})
    found = dict(table_scores(compared(real, fake)).shape.each)
    assert found[("c",)] == pytest.approx(0.5)
    assert 0.5 < found[("b",)] <= 1


def test_cells_are_those_of_the_frames_to_the_last_digit():
    real, fake = table(300, 0), table(260, 1)
    for frame in (real, fake):
        frame["when"] = pd.Timestamp("2020-02-29 12:00:01") + pd.to_timedelta(
            frame["price"], "D"
        ).dt.round("s")
    rows = compared(real, fake)
    for name in ("price", "size"):
        found = rows.column(name).numbers
        assert np.array_equal(found, pd.concat([real[name], fake[name]]), equal_nan=True)
        for share in (0.05, 0.25, 0.5, 0.75):
            assert np.nanquantile(found[:300], share) == real[name].quantile(share)
        assert np.nanmedian(found[300:]) == fake[name].median()
    when = rows.column("when")
    assert when.cell(0) == str(real["when"][0])
    kind = rows.column("kind")
    assert [kind.cell(k) for k in range(300)] == real["kind"].tolist()
