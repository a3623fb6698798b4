"""Every kind of page: the answer first, then the evidence, then how to repeat it."""

import re

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from commands import kermix
from internals import Page, Repeat, render

TINY = ("--device", "cpu", "--out", "run")
KINDS = {
    "fit of a table": ("fit", "table.csv", "--quick", "--steps", 2, *TINY),
    "fit of a mixture": ("fit", "numbers.csv", "--quick", "--steps", 2, *TINY),
    "prediction of a class": ("classify", "table.csv", "--target", "g", "--quick",
                              "--set", "steps=2", *TINY),
    "prediction of a number": ("classify", "table.csv", "--target", "x", "--quick",
                               "--set", "steps=2", *TINY),
    "fit of samples": ("fit", "moons", "--rows", 60, "--steps", 2, "--refine-steps", 2,
                       "--components", 2, *TINY),
    "fit of images": ("fit", "shapes", "--size", 16, "--quick", "--steps", 2, "--encoder-steps", 2,
                      "--batch-size", 4, *TINY),
    "classifier of images": ("classify", "digits", "--epochs", 1, "--width", 4, "--depth", 1,
                             "--set", "output_width=4", *TINY),
    "comparison": ("compare", "table.csv", "other.csv", "--permutations", 39),
    "comparison with costs": ("compare", "table.csv", "other.csv", "--permutations", 39,
                              "--details"),
    "drift": ("drift", "table.csv", "--by", "day", "--every", "month", "--permutations", 39),
    "drift of sketches": ("compare", "sketches"),
    "evaluation": ("evaluate", "table.csv", "other.csv", "--permutations", 39),
    "generators": ("evaluate", "table.csv", "other.csv", "third.csv", "--permutations", 39),
    "spectrum": ("spectrum", "numbers.csv", "-k", 2),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("pages")
    rng = np.random.default_rng(0)
    for name in ("table", "other", "third"):
        x = rng.normal(size=120)
        table = {
            "x": x,
            "g": rng.choice(["a", "b"], 120),
            "day": DAYS,
            "y": x + rng.normal(size=120),
        }
        pd.DataFrame(table).to_csv(made / f"{name}.csv", index=False)
    pd.DataFrame(rng.normal(size=(60, 2)), columns=["x", "y"]).to_csv(made / "numbers.csv",
                                                                     index=False)  # fmt: skip
    for k in range(3):
        alike = ["--landmarks-from", made / "sketches" / "0.sketch"] if k else []
        kermix("sketch", made / "numbers.csv", "-o", made / "sketches" / f"{k}.sketch", *alike)
    (made / "shapes").mkdir()
    for k in range(24):
        pixels = rng.integers(0, 255, (20, 20, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(made / "shapes" / f"{k:02}.png")
    return made


DAYS = pd.date_range("2024-01-01", periods=120, freq="D").strftime("%Y-%m-%d")


def text_of(markup):
    return " ".join(re.sub(r"<[^>]*>", " ", markup).split())


@pytest.mark.parametrize("kind", KINDS)
def test_the_answer_comes_first_then_the_evidence_then_how_to_repeat_it(
    kind, folder, tmp_path, monkeypatch
):
    monkeypatch.chdir(folder)
    words = [tmp_path / "run" if word == "run" else word for word in KINDS[kind]]
    if "run" not in KINDS[kind]:
        words += ["--report", tmp_path / "run" / "report.html"]
        (tmp_path / "run").mkdir()
    result = kermix(*words)
    assert result.exit_code == 0, result.output
    page = (tmp_path / "run" / "report.html").read_text()
    check_order(page, " ".join(map(str, words)))


def check_order(page, command):
    """One head, one answer in a sentence, evidence, and last the command."""
    marks = ["<header>", "<h1>", 'class="answer', "<section", '<section id="repeat">']
    places = [page.index(mark) for mark in marks]
    assert places == sorted(places), dict(zip(marks, places, strict=True))
    assert [page.count(mark) for mark in (*marks[:3], marks[4])] == [1, 1, 1, 1]
    answer = page[places[2] : places[3]]
    first = text_of(re.search(r"<p>(.*?)</p>", answer, re.DOTALL)[1])
    assert re.fullmatch(r"[A-Z0-9].{15,}[.!]", first), first
    assert "nan" not in first
    evidence = page[places[3] : places[4]]
    assert evidence.count("<h2>") >= 1
    assert f"<pre>kermix {command}</pre>" in page[places[4] :]
    assert not re.search(r"<h2>[^<]*</h2>\s*</section>", page), "a heading with nothing below it"


def test_the_page_of_the_paper_has_the_same_order():
    record = {"title": "Fig. 1", "paper": "fig-x", "quick": False, "png": b"", "caption": "Lines.",
              "notes": [], "made": "", "settings": [], "tables": [],
              "claims": [("Confirmed", "It falls.", "below 2", "1")]}  # fmt: skip
    shown = {"found": "All of 1 claim is confirmed", "cases": "one case", "missed": [],
             "records": [record]}  # fmt: skip
    page = Page("paper", "The paper", shown).repeated_by(Repeat("kermix reproduce fig-x"))
    check_order(page.html(), "reproduce fig-x")


def test_the_live_page_has_the_same_order():
    page = render("explore.html.j2", title="kermix explore", scripts=())
    marks = ["<header>", "<h1", 'class="answer', 'role="tablist"', '<section id="repeat">']
    places = [page.index(mark) for mark in marks]
    assert places == sorted(places)
