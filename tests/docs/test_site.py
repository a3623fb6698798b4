"""The documentation site is built without warnings, and its pages open without errors."""

import functools
import http.server
import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
from typing import ClassVar

import pytest
from scripts.site_sources import FILE, SOURCES, digest, is_built

from browser import CHROMIUM, console_of
from pages import ROOT

MISSING = [n for n in ("mkdocs", "material", "mkdocstrings", "ziamath", "latex2mathml")
           if importlib.util.find_spec(n) is None]  # fmt: skip
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")

CHECK = """
<script>
const pages = PAGES;
async function look(page) {
  const frame = document.createElement("iframe");
  frame.width = 1200; frame.height = 900;
  const loaded = new Promise(done => frame.onload = done);
  frame.src = page;
  document.body.append(frame);
  await loaded;
  const inside = frame.contentDocument, view = frame.contentWindow;
  await inside.fonts.ready;
  const bad = [...inside.images].filter(i => !(i.complete && i.naturalWidth > 0)).map(i => i.src);
  const strange = view.performance.getEntriesByType("resource")
    .map(e => e.name).filter(n => !n.startsWith(location.origin) && !n.startsWith("data:"));
  const result = {
    page, bad, strange, title: inside.title, wide: inside.documentElement.scrollWidth - 1200,
    formulas: [...inside.querySelectorAll("math")].filter(m => m.clientWidth > 0).length,
    fonts: [...inside.fonts].filter(f => f.status == "error").length,
  };
  frame.width = 390;
  result.wider = inside.documentElement.scrollWidth - 390;
  frame.remove();
  return result;
}
window.addEventListener("load", async () => {
  const found = [];
  for (const page of pages) found.push(await look(page));
  document.getElementById("found").textContent = JSON.stringify(found);
});
</script>
<pre id="found"></pre>
"""


class Server(http.server.SimpleHTTPRequestHandler):
    """A site, and files of a test that stand beside its pages or in place of them."""

    failed: ClassVar[list[str]] = []

    def __init__(self, *arguments, beside, **options):
        self.beside = beside
        super().__init__(*arguments, **options)

    def translate_path(self, path):
        own = self.beside / path.rpartition("/")[2]
        return str(own) if own.is_file() else super().translate_path(path)

    def log_message(self, *_):
        pass

    def send_error(self, code, *args):
        self.failed.append(self.path)
        super().send_error(code, *args)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site of `make docs` where it is that of the sources as they are, or a new one."""
    if is_built(ROOT / "site"):
        return ROOT / "site"
    folder = tmp_path_factory.mktemp("site") / "site"
    build = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True,
        timeout=200, check=False,
    )  # fmt: skip
    assert build.returncode == 0, build.stdout + build.stderr
    return folder


def test_a_site_of_other_sources_is_not_taken(tmp_path):
    for name in SOURCES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "page.md").write_text(name)
    site = tmp_path / "site"
    site.mkdir()
    assert not is_built(site, tmp_path)
    for name in SOURCES:
        (site / FILE).write_text(digest(tmp_path))
        assert is_built(site, tmp_path)
        (tmp_path / name / "page.md").write_text("changed")
        assert not is_built(site, tmp_path), name
        (site / FILE).write_text(digest(tmp_path))
        (tmp_path / name / "page.md").rename(tmp_path / name / "other.md")
        assert not is_built(site, tmp_path), name


def test_pages_ask_nothing_of_other_machines(site):
    for page in site.rglob("*.html"):
        text = page.read_text()
        loaded = re.findall(r'<(?:script|img|iframe|source)[^>]*\ssrc="?([^">\s]*)', text)
        loaded += re.findall(
            r'<link[^>]*rel="?(?:stylesheet|preconnect)[^>]*href="?([^">\s]*)', text
        )
        assert not [address for address in loaded if "//" in address], page


def test_reference_has_every_public_name(site):
    import kermix

    page = "".join(p.read_text() for p in [site / "api.html", *(site / "guides").iterdir()])
    for name in set(kermix.__all__) - {"errors", "__version__"}:
        assert re.search(rf'id="kermix[\w.]*\.{name}"', page), (
            f"{name} is neither in docs/api.md nor in a guide"
        )


def test_result_files_are_on_the_site(site):
    assert (site / "results" / "bench" / "svd-h200.json").is_file()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_pages_open_without_errors(site, tmp_path):
    pages = sorted(p.relative_to(site).as_posix() for p in site.rglob("*.html"))
    pages.remove("404.html")  # its links begin at the root of a server
    beside = tmp_path / "beside"
    beside.mkdir()
    (beside / "check.html").write_text(CHECK.replace("PAGES", json.dumps(pages)))
    # Every page would read all words of the site before it is searched, which has a test.
    words = json.loads((site / "search" / "search_index.json").read_text())
    few = json.dumps({**words, "docs": words["docs"][:1]})
    (beside / "search_index.json").write_text(few)
    handler = functools.partial(Server, directory=str(site), beside=beside)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/check.html"
        console, html = console_of(address, tmp_path / "profile", 60_000)
        server.shutdown()
    assert console == []
    assert set(Server.failed) <= {"/favicon.ico"}
    found = json.loads(re.search(r'<pre id="found">(.+?)</pre>', html, re.S)[1])
    assert len(found) == len(pages)
    for look in found:
        assert look["bad"] == [], look
        assert look["strange"] == [], look
        assert look["fonts"] == 0, look
        assert max(look["wide"], look["wider"]) <= 0, look
    formulas = {look["page"]: look["formulas"] for look in found}
    assert formulas["mathematics.html"] > 50
    assert formulas["api.html"] > 30


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_pages_opened_from_a_disk_are_searched(site, tmp_path):
    address = f"{(site / 'index.html').as_uri()}?q=nuclear%20norm"
    _, html = console_of(address, tmp_path / "profile", 6000)
    assert re.search(r"\d+ matching documents", html)
    assert "api.html#kermix.nuclear_norm" in html
