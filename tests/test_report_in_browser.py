"""The report of a fit in a real browser: shown without a network, without errors."""

import re

import pytest
from typer.testing import CliRunner

from browser import CHROMIUM, console_of
from kermix.cli.app import app

CHECK = """
<script>
window.addEventListener("error", e => console.error("failed: " + e.message));
window.addEventListener("load", () => {
  const pictures = [...document.images];
  const shown = pictures.filter(i => i.complete && i.naturalWidth > 300).length;
  console.log("pictures " + shown + " of " + pictures.length);
  console.log("resources " + performance.getEntriesByType("resource")
    .filter(e => !e.name.startsWith("data:")).length);
  console.log("width " + (document.documentElement.scrollWidth <= window.innerWidth));
});
</script>
"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_report_shows_its_pictures_and_asks_for_nothing(tmp_path):
    run = tmp_path / "run"
    options = ["--steps", "20", "--polish", "10", "--components", "8", "--batch", "32"]
    result = CliRunner().invoke(
        app, ["fit", "moons", "--rows", "200", *options, "--out", str(run)]
    )
    assert result.exit_code == 0, result.output
    page = (run / "report.html").read_text()
    assert not re.search(r'(src|href)="(?!data:)', page)
    checked = tmp_path / "checked.html"
    checked.write_text(page.replace("</head>", CHECK + "</head>"))
    console, html = console_of(checked.as_uri(), tmp_path / "profile")
    text = "\n".join(console)
    assert "pictures 2 of 2" in text
    assert "resources 0" in text
    assert "width true" in text
    assert len(console) == 3, text
    assert "Fit of moons" in html
