"""The reports of runs in a real browser: shown without a network, without errors."""

import re

import pytest
from typer.testing import CliRunner

from browser import CHROMIUM, console_of
from internals import Page, Repeat, app

CHECK = """
<script>
window.addEventListener("error", e => console.error("failed: " + e.message));
window.addEventListener("load", () => {
  const pictures = [...document.images];
  const shown = pictures.filter(i => i.complete && i.naturalWidth >= 96).length;
  console.log("pictures " + shown + " of " + pictures.length);
  console.log("resources " + performance.getEntriesByType("resource")
    .filter(e => !e.name.startsWith("data:")).length);
  console.log("width " + (document.documentElement.scrollWidth <= window.innerWidth));
});
</script>
"""


CASES = {
    "Fit of moons": (0, ["fit", "moons", "--rows", "200", "--steps", "20", "--refine-steps", "10",
                         "--components", "8", "--batch-size", "32"]),
    "Classes of digits": (26, ["classify", "digits", "--epochs", "1", "--width", "8", "--depth",
                              "1", "--batch-size", "512", "--set", "output_width=8"]),
}  # fmt: skip


FRAME = """<iframe width="{width}" height="900" src="{page}"></iframe>"""
WIDE = """<script>
window.addEventListener("load", () => {
  const whole = document.documentElement;
  console.log("wider by " + (whole.scrollWidth - whole.clientWidth));
  const code = document.querySelector("pre");
  console.log("hidden code " + (code.scrollWidth - code.clientWidth));
});
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("width", [1000, 400])
def test_long_code_and_wide_tables_do_not_make_the_page_wider(width, tmp_path):
    record = {
        "title": "A title " + "a_long_word" * 12, "paper": "fig-x", "quick": True, "png": b"",
        "caption": "/data/" + "a_long_path/" * 30, "notes": [], "made": "", "settings": [],
        "claims": [("Confirmed", "a claim " * 20, "a rule", "1.2345, " * 40)],
        "tables": [("numbers", [f"column_{k}" for k in range(30)], [[k / 7 for k in range(30)]])],
    }  # fmt: skip
    shown = {"found": "All of 1 claim is confirmed", "cases": "one case", "missed": [],
             "records": [record]}  # fmt: skip
    command = "kermix fit /data/" + "a_long_path/" * 20 + "rows.csv --steps 100\nkermix --version"
    page = Page("paper", "a_name_of_a_file_" * 12, shown).repeated_by(Repeat(command))
    inner = page.save(tmp_path / "inner.html")
    opened = inner.read_text().replace("<details>", "<details open>")
    inner.write_text(opened.replace("</head>", WIDE + "</head>"))
    outer = tmp_path / "outer.html"
    outer.write_text(FRAME.format(width=width, page=inner.name))
    console, _ = console_of(outer.as_uri(), tmp_path / "profile")
    assert len(console) == 2, console
    assert "wider by 0" in console[0]
    assert "hidden code 0" in console[1]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("title", CASES)
def test_report_shows_its_pictures_and_asks_for_nothing(title, tmp_path):
    pictures, command = CASES[title]
    run = tmp_path / "run"
    result = CliRunner().invoke(app, [*command, "--out", str(run)])
    assert result.exit_code == 0, result.output
    page = (run / "report.html").read_text()
    assert not re.search(r'(src|href)="(?!data:)', page)
    checked = tmp_path / "checked.html"
    checked.write_text(page.replace("</head>", CHECK + "</head>"))
    console, html = console_of(checked.as_uri(), tmp_path / "profile")
    text = "\n".join(console)
    assert f"pictures {pictures} of {pictures}" in text
    assert "resources 0" in text
    assert "width true" in text
    assert len(console) == 3, text
    assert title in html
