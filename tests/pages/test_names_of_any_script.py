"""Names that Matplotlib's own font cannot write: no warning, and as text where a font has them."""

import base64
import re

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.text import Text

from commands import kermix
from internals import png_of
from internals import report_module as page


def figure_of(name):
    figure = Figure(layout="constrained")
    axes = figure.subplots()
    axes.barh([name, "b"], [1, 2])
    axes.set_title(name)
    return figure


@pytest.mark.parametrize("name", ["価格", "цена", "🍎 fruit", "가격", "a"])
def test_a_figure_with_any_name_is_drawn_without_a_warning(name, recwarn):
    assert png_of(figure_of(name)).startswith(b"\x89PNG")
    assert not [str(w.message) for w in recwarn]


def test_a_font_that_has_the_characters_is_used_where_it_is_installed(monkeypatch):
    names = font_manager.fontManager.get_font_names()
    other = next(n for n in names if n == "STIXGeneral")
    monkeypatch.setattr(page, "MORE_FONTS", ("No Such Font", other))
    figure, before = figure_of("価格"), matplotlib.rcParams["font.family"]
    png_of(figure)
    for text in figure.findobj(Text):
        assert text.get_fontfamily() == [*before, other]
    assert matplotlib.rcParams["font.family"] == before


def test_a_fit_of_a_table_of_such_names_says_nothing_of_glyphs(tmp_path, recwarn):
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"価格": rng.normal(size=80), "🍎": rng.choice(["赤", "緑"], 80)})
    rows.to_csv(tmp_path / "rows.csv", index=False)
    shown = kermix("fit", tmp_path / "rows.csv", "--model", "table", "--quick", "--steps", 2,
                   "--device", "cpu", "--out", tmp_path / "run")  # fmt: skip
    assert "Glyph" not in shown.output
    assert not [w for w in recwarn if "Glyph" in str(w.message)]
    pictures = re.findall(r"base64,([^\"]+)", (tmp_path / "run" / "report.html").read_text())
    assert all(base64.b64decode(p).startswith(b"\x89PNG") for p in pictures)
