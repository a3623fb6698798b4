"""The page of a comparison: the answer first, what is drawn is what is there, nothing escapes."""

import re

import numpy as np
import pandas as pd
import pytest
import torch

import kermix as km
from browser import CHROMIUM, console_of
from cases import normal
from internals import ColumnValues, column_chart, comparison_report, pair_chart, typical_rows


def page_of(first, second, tmp_path, costs=False, **options):
    result = km.compare(first, second, jackknife_groups=0, **{"permutations": 39} | options)
    return comparison_report(result, costs=costs).save(tmp_path / "page.html").read_text()


@pytest.fixture(scope="module")
def frames():
    rng = np.random.default_rng(0)
    first, second = (
        pd.DataFrame({
            "<b>size</b>": rng.normal(size=300) + 1.5 * k,
            "kind": rng.choice(["<i>", "plain", "other"], 300),
            "day": pd.to_datetime(rng.integers(0, 30, 300), unit="D", origin="2024-01-01"),
        })
        for k in range(2)
    )  # fmt: skip
    second.loc[second.index[:90], "kind"] = None
    return first, second


def test_the_answer_comes_first_and_names_are_escaped(frames, tmp_path):
    text = page_of(*frames, tmp_path)
    assert text.index("They differ") < text.index("Most different") < text.index('class="card"')
    assert "<b>size" not in text
    assert "<i>" not in text
    assert "&lt;b&gt;size&lt;/b&gt;" in text
    assert text.count('class="card dim"') == 1  # day
    assert "2 of the 3 columns differ by" in text
    assert "2024-01-01" in text
    assert "<details" not in text


def test_costs_are_folded_with_what_equal_sets_would_read(tmp_path):
    text = page_of(normal(40, 3), normal(30, 3, seed=1) + 1, tmp_path, costs=True)
    before, _, folded = text.partition("<details>")
    folded = folded.partition("</details>")[0]
    assert "SVD cost" in folded
    assert "SVD cost" not in before
    assert "split into two sets at random" in folded


def test_no_verdict_no_difference_and_too_few_rows_are_said(tmp_path):
    text = page_of(normal(40, 2), normal(30, 2, seed=1), tmp_path)
    assert re.search(r'<div class="answer good">\s*<p>No difference found at level 0.05', text)
    assert "Typical rows" not in text
    (tmp_path / "few").mkdir()
    text = page_of(normal(2, 2), normal(2, 2, seed=1), tmp_path / "few")
    assert "Too few rows to say" in text
    (tmp_path / "none").mkdir()
    text = page_of(normal(9, 2), normal(9, 2, seed=1), tmp_path / "none", permutations=0)
    assert "<details open>" in text


def test_bars_and_histograms_have_the_shares():
    codes = np.repeat([0, 1, 0, 1], [30, 70, 80, 20])
    chart = column_chart(ColumnValues("x", "category", codes=codes, names=("a", "b")), 100)
    widths = [float(w) for w in re.findall(r'class="bar \w+" .*? width="([\d.]+)"', chart)]
    np.testing.assert_allclose(np.array(widths) / max(widths), [3 / 8, 1, 7 / 8, 1 / 4], atol=2e-3)
    assert ">30, 80 %<" in chart
    numbers = np.concatenate([np.linspace(0, 1, 500), np.linspace(5, 6, 500), [np.nan] * 10])
    chart = column_chart(ColumnValues("x", "number", numbers), 500)
    filled, outline = re.findall(r' d="(M0.0,92.0L.*?)"', chart)
    high = [{float(x) for x, y in re.findall(r"L([\d.]+),([\d.]+)", p) if float(y) < 90}
            for p in (filled, outline)]  # fmt: skip
    assert max(high[0]) < 60 < 200 < min(high[1])


def test_maps_of_pairs_are_coloured_by_who_is_there():
    at = np.tile(np.arange(6.0), 50)
    values = [ColumnValues(n, "number", v) for n, v in
              (("x", np.concatenate([at, at])), ("y", np.concatenate([at, 5 - at])))]  # fmt: skip
    chart = pair_chart(*values, 300)
    paths = re.findall(r'd="([^"]+)" class="cell (one|two)" fill-opacity="([\d.]+)"', chart)
    assert [(kind, strength) for _, kind, strength in paths] == [("one", "1"), ("two", "1")]
    # Both diagonals of the six values, and nothing else.
    assert [path.count("M") for path, _, _ in paths] == [6, 6]


def test_typical_rows_are_no_outliers_and_show_the_columns_that_matter():
    x, y = normal(400, 12, seed=0), normal(400, 12, seed=1)
    y[:, 10] += 2
    y[0, 10], y[1, 3] = 1000.0, -500.0
    result = km.compare(x, y, permutations=39)
    apart = result.judgement.apart
    first, second = typical_rows(result.compared, apart)
    for found, side in ((first, x), (second, y)):
        assert found.columns[0] == "x10"
        assert len(set(found.rows)) == 5
        rows = side[list(found.rows)]
        assert float(found.cells[0][0]) == pytest.approx(rows[0, 10].item(), abs=1e-3)
        assert rows.abs().max() < 5
    assert (x[list(first.rows), 10] < 1).all()
    assert (y[list(second.rows), 10] > 1).all()
    assert torch.equal(result.compared.pooled[:400].double(), x.double())


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_the_page_is_no_wider_than_a_telephone(frames, tmp_path):
    long = [f[::3].rename(columns={"day": "a_long_name_" * 12}) for f in frames]
    page_of(*long, tmp_path, costs=True)
    inner = tmp_path / "page.html"
    script = """<script>window.addEventListener("load", () => { const e = document.documentElement;
    console.log("wider by " + (e.scrollWidth - e.clientWidth)); });</script>"""
    inner.write_text(inner.read_text().replace("</head>", script + "</head>"))
    outer = tmp_path / "outer.html"
    outer.write_text('<iframe width="400" height="900" src="page.html"></iframe>')
    console, _ = console_of(outer.as_uri(), tmp_path / "profile")
    assert "wider by 0" in console[0]
