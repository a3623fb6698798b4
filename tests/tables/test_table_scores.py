"""Shape, trend and detection of tables: SDMetrics' formulas, written from its documentation."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from internals import ComparedRows, Reading, read_sources, table_scores


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


def shapes(real, fake):
    found = {}
    for name in real:
        a, b = real[name].dropna(), fake[name].dropna()
        if real[name].dtype.kind in "fi":
            found[name] = 1 - stats.ks_2samp(a, b).statistic
        else:
            p, q = a.value_counts(normalize=True), b.value_counts(normalize=True)
            found[name] = 1 - p.subtract(q, fill_value=0).abs().sum() / 2
    return found


def trend(real, fake, a, b):
    kinds = [real[c].dtype.kind in "fi" for c in (a, b)]
    if all(kinds):
        r, s = (t[[a, b]].dropna().corr().iloc[0, 1] for t in (real, fake))
        return 1 - abs(r - s) / 2
    shares = []
    for t in (real, fake):
        cells = []
        for c, number in zip((a, b), kinds, strict=True):
            values = t[c]
            if number:
                values = np.digitize(values, np.histogram_bin_edges(values.dropna()))
            cells.append(pd.Series(np.asarray(values)).astype(str))
        shares.append((cells[0] + "|" + cells[1]).value_counts(normalize=True))
    return 1 - shares[0].subtract(shares[1], fill_value=0).abs().sum() / 2


def relation(real, a, b):
    """Correlation of numbers, Cramer's V of others."""
    if all(real[c].dtype.kind in "fi" for c in (a, b)):
        return abs(real[[a, b]].dropna().corr().iloc[0, 1])
    cells = [
        np.digitize(real[c], np.histogram_bin_edges(real[c].dropna()))
        if real[c].dtype.kind in "fi" else real[c].to_numpy()
        for c in (a, b)
    ]  # fmt: skip
    return stats.contingency.association(pd.crosstab(*cells).to_numpy(), method="cramer")


@pytest.mark.parametrize("shift", [0.0, 0.6])
def test_shapes_and_trends_are_the_formulas(shift):
    real, fake = table(300, 0), table(260, 1, shift)
    found = table_scores(compared(real, fake))
    exact = shapes(real, fake)
    assert dict(found.columns) == pytest.approx(exact, abs=1e-9)
    assert found.shape == pytest.approx(np.mean(list(exact.values())), abs=1e-9)
    for a, b, score, related in found.pairs:
        assert score == pytest.approx(trend(real, fake, a, b), abs=1e-6), (a, b)
        assert related == (relation(real, a, b) > (0.5 if {a, b} == {"price", "size"} else 0.3))
    assert len(found.pairs) == 6
    related = [s for *_, s, r in found.pairs if r]
    assert 0 < len(related) < 6
    assert found.trend == pytest.approx(np.mean(related), abs=1e-9)


def test_numbers_alone_are_compared_as_they_are():
    rng = np.random.default_rng(0)
    real = pd.DataFrame(rng.normal(size=(200, 3)), columns=list("abc"))
    fake = real.sample(200, random_state=0) * 2
    found = table_scores(compared(real, fake))
    assert dict(found.columns) == pytest.approx(shapes(real, fake), abs=1e-12)
    assert found.trend == pytest.approx(1, abs=1e-9)


def test_detection_is_one_for_equal_tables_and_zero_for_far_ones():
    real = table(600, 0)
    assert table_scores(compared(real, table(600, 1))).detection > 0.85
    far = table(600, 1)
    far["price"] += 100
    assert table_scores(compared(real, far)).detection < 0.01


def test_constant_columns_and_unseen_values_are_no_trouble():
    b = np.random.default_rng(0).normal(size=20)
    real = pd.DataFrame({"a": [1.0] * 20, "b": b, "c": list("xy") * 10})
    fake = pd.DataFrame({"a": [1.0] * 20, "b": b + 3, "c": list("xz") * 10})
    found = table_scores(compared(real, fake))
    assert 0 < found.shape < 1
    assert np.isfinite(found.trend)
    assert dict(found.columns)["c"] == pytest.approx(0.5)
