"""Faults of pages that were seen in a browser, each with what a page shows instead."""

import re

import numpy as np
import pandas as pd
import pytest

from browser import CHROMIUM, console_of
from commands import kermix
from internals import Axis, Bins, Page, Plot, Repeat

LONG = "sensor_03_temperature_degC_10min_average"


def test_steps_and_epochs_are_whole_numbers_on_an_axis():
    assert [text for _, text in Axis.over([1, 2, 3]).ticks(6)] == ["1", "2", "3"]
    assert [text for _, text in Axis.over([1, 2.5, 3]).ticks(6)][1] == "1.5"
    assert [text for _, text in Axis.over([0, 4e6]).ticks(4)][1] == "1,000,000"


def test_a_chart_of_whole_numbers_begins_and_ends_with_a_whole_number():
    numbers = np.tile(np.arange(100.0), 9)[:-1]
    assert [text for _, text in Bins.over(numbers, 1).ticks(str, 1)] == ["0.0", "50.0", "99.0"]


def test_intervals_end_where_numbers_do_and_are_logarithmic_where_these_are_far_from_even():
    whole = Bins.between(0, 100, 1)
    assert [text for _, text in whole.ticks(str, 1)] == ["0.0", "50.0", "100.0"]
    assert whole.shares(np.arange(101.0)).sum() == pytest.approx(1)
    spread = Bins.spanning((1.0, 10.0, 1000.0))
    assert spread.log
    assert spread.place(np.array([0.1, 1.0, 31.6228, 1e9])) == pytest.approx(
        [0, 0, 0.5, 1], abs=1e-6
    )


def test_what_is_written_below_an_axis_is_centered_and_stays_inside():
    drawn = Plot(Axis(0, 150), Axis(0, 1), "about").svg()
    anchors = {t: a for a, t in re.findall(r'<text [^>]*text-anchor="(\w+)"[^>]*>(\d+)<', drawn)}
    assert anchors["50"] == "middle"
    assert anchors["150"] == "end"


def test_settings_are_shown_as_they_are_typed():
    page = Page("base", "title").repeated_by(
        Repeat("kermix fit", settings=[("debias", True), ("factors", [1.0, 10.0])])
    )
    told = re.findall(r'data-head="value">([^<]*)<', page.html())
    assert told == ["on", "1, 10"]


def paper(rows):
    record = {"title": "A title", "paper": "fig-x", "quick": True, "png": b"", "caption": "Lines.",
              "notes": [], "made": "", "settings": [], "claims": [],
              "tables": [("numbers", ["pair of columns", "difference"], rows)]}  # fmt: skip
    shown = {"found": "All of 1 claim is confirmed", "cases": "one case", "missed": [],
             "records": [record]}  # fmt: skip
    return Page("paper", LONG, shown).repeated_by(Repeat("kermix reproduce"))


def test_long_names_go_on_after_an_underscore():
    page = paper([(LONG, 0.5), ("a_b", 0.5)]).html()
    assert page.count(LONG.replace("_", "_<wbr>")) == 2  # in the title and in a cell
    assert "a_b" in page


SEEN = """<script>
window.addEventListener("load", () => {
  const hidden = [...document.querySelectorAll(".scroll")].map(e => e.scrollWidth - e.clientWidth);
  console.log("hidden " + Math.max(...hidden));
});
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_a_number_beside_a_long_name_is_seen_on_a_phone(tmp_path):
    page = (
        paper([(LONG, 0.5), (f"{LONG} and {LONG}", 0.25)])
        .html()
        .replace("<details>", "<details open>")
    )
    (tmp_path / "inner.html").write_text(page.replace("</head>", SEEN + "</head>"))
    (tmp_path / "outer.html").write_text(
        '<iframe width="400" height="900" src="inner.html"></iframe>'
    )
    console, _ = console_of((tmp_path / "outer.html").as_uri(), tmp_path / "profile")
    assert len(console) == 1, console
    assert "hidden 0" in console[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A table of prices by month, and one half of it."""
    made = tmp_path_factory.mktemp("pages")
    rng = np.random.default_rng(0)
    prices = rng.gamma(2, 30, 360)
    table = pd.DataFrame({
        "day": pd.date_range("2024-01-01", periods=360, freq="6h").strftime("%Y-%m-%d"),
        "price": [f"${price:,.2f}" for price in prices],
        "x": rng.normal(size=360),
    })  # fmt: skip
    table.to_csv(made / "all.csv", index=False)
    table[::2].to_csv(made / "copies.csv", index=False)
    table.assign(x=table.x + 2)[1::2].to_csv(made / "moved.csv", index=False)
    table[::2].assign(price=[f"${price:,.2f}" for price in 2 * prices[::2]]).to_csv(
        made / "dear.csv", index=False)  # fmt: skip
    return made


def test_how_prices_are_written_is_said_once_whatever_the_period(folder):
    said = kermix("drift", folder / "all.csv", "--by", "day", "--every", "month",
                  "--permutations", 39).output  # fmt: skip
    assert said.count("Read as numbers, though written as text: price (as in $1.00).") == 1


def test_what_changed_in_prices_is_said_in_prices(folder):
    told = kermix("compare", folder / "all.csv", folder / "dear.csv", "--json",
                  "--permutations", 39).output  # fmt: skip
    assert re.search(r"median \$\d[\d.]* -> \$\d", told), told


def test_copies_are_not_the_best_generator_without_a_but(folder):
    told = kermix("evaluate", folder / "all.csv", folder / "copies.csv", folder / "moved.csv",
                  "--permutations", 39).output  # fmt: skip
    first = " ".join(told.split())
    assert "copies is nearest to real data" in first
    assert "But of copies: 100 % of the samples are exact copies" in first
    assert "1e+02" not in told
