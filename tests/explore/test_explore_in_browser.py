"""The page in a real browser: each of its parts shows what the library computes."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

import kermix as km
from browser import CHROMIUM
from explore_cases import EVIL, HOSTILE, SHORT, copied_run, people, quick_fitting, served
from internals import Explored, TableMixture, begin_fit, explorable
from kermix import Schema

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
SECONDS = 60_000


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
        )
        yield found
        found.close()


@pytest.fixture(scope="module")
def explored(run):
    return Explored.open(run.folder)


@pytest.fixture(scope="module")
def address(explored):
    with served(explored) as found:
        yield found


@pytest.fixture
def opened(browser):
    """Opens pages, and fails if one of them complains, asks elsewhere or lets a script in."""
    pages, wrong = [], []

    def open_page(url, **options):
        page = browser.new_page(**{"viewport": {"width": 1200, "height": 900}, **options})
        page.set_default_timeout(SECONDS)
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: (wrong.append("a dialog"), dialog.dismiss()))
        own = url.partition("//")[2].partition("/")[0]
        page.on("request", lambda request: wrong.extend(elsewhere(request.url, own)))
        page.goto(url)
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.close()
    assert not wrong


def elsewhere(url, own):
    return [] if own in url or url.startswith(("blob:", "data:")) else [url]


def wait_for_answer(page, given, what="asked"):
    """Until the page has the answer to these values, or the most likely row with them."""
    page.wait_for_function(
        """([asked, what]) => { const own = document.querySelector('#ask')?.dataset[what];
        const sorted = (text) => JSON.stringify(Object.entries(JSON.parse(text)).sort());
        return own && sorted(own) === sorted(asked); }""",
        arg=[json.dumps(given), what],
    )


def card(page, name):
    cards = page.locator("#ask .card")
    names = cards.evaluate_all("cards => cards.map((card) => card.dataset.column)")
    return cards.nth(names.index(name))


def test_three_columns_are_set_and_the_others_change(opened, address, explored):
    page = opened(address.url)
    wait_for_answer(page, {})
    before = card(page, "size").get_attribute("data-shares")
    page.get_by_label("Set sex").select_option(label="m")
    page.get_by_label("Set pets").select_option(label="(missing)")
    number = page.get_by_label("Set income", exact=True)
    number.fill("30000")
    number.press("Enter")
    given = {"sex": "m", "pets": None, "income": "30000"}
    wait_for_answer(page, given)
    answer = explored.questions().ask(given)
    assert card(page, "size").get_attribute("data-shares") != before
    for name, column in answer.items():
        shown = json.loads(card(page, name).get_attribute("data-shares"))
        assert shown == pytest.approx(column["shares"], abs=2e-6), name
        assert card(page, name).get_attribute("data-middle") == (column["middle"] or "")
    size = answer["size"]
    words = f"about {size['middle']}; nine in ten between {size['low']} and {size['high']}"
    assert words in card(page, "size").inner_text()
    label = card(page, "size").get_by_role("img").get_attribute("aria-label")
    assert label == f"size: {words}"
    wait_for_answer(page, given, "filled")
    cells = page.locator("#likely td").all_inner_texts()
    assert cells[0] == "m"
    assert cells[2] == "(missing)"
    assert "3 of 6 columns" in page.locator("#count").inner_text()
    page.get_by_role("button", name="Clear all").click()
    wait_for_answer(page, {})
    assert json.loads(card(page, "size").get_attribute("data-shares")) == json.loads(before)


def test_a_slider_sets_a_number_by_keys(opened, address):
    page = opened(address.url)
    wait_for_answer(page, {})
    slider = page.get_by_label("Set size, by position")
    slider.focus()
    page.keyboard.press("End")
    highest = f"{people()['size'].max():g}"
    wait_for_answer(page, {"size": highest})
    assert slider.get_attribute("aria-valuetext") == highest
    page.get_by_label("size: do not set").click()
    wait_for_answer(page, {})


def test_a_bad_value_is_told_and_the_page_goes_on(browser, address):
    page = browser.new_page()  # the console notes a refused question, as it should
    page.goto(address.url)
    wait_for_answer(page, {})
    number = page.get_by_label("Set size", exact=True)
    number.fill("tall")
    number.press("Enter")
    alert = page.get_by_role("alert")
    alert.filter(has_text="'tall' is not a number").wait_for()
    shown = page.locator("#ask .card p").all_inner_texts()
    assert shown == ["no answer"] * 6, "nothing of the question before is left"
    assert page.locator("#likely td").count() == 0
    number.fill("172")
    number.press("Enter")
    wait_for_answer(page, {"size": "172"})
    alert.wait_for(state="hidden")
    page.close()


def test_draws_are_downloaded_and_read_back(opened, address, run):
    page = opened(address.url)
    wait_for_answer(page, {})
    page.get_by_label("Set sex").select_option(label="f")
    wait_for_answer(page, {"sex": "f"})
    page.get_by_role("button", name="Show ten").click()
    page.locator("#drawn tbody tr").nth(9).wait_for()
    assert page.locator("#drawn tbody tr").count() == 10
    page.get_by_label("rows", exact=True).fill("200")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download as CSV").click()
    table = pd.read_csv(download.value.path())
    expected = pd.concat([part.to_pandas() for part in run.sample_parts(200, 0, {"sex": "f"})])
    assert list(table) == list(expected)
    assert set(table["sex"]) == {"f"}
    np.testing.assert_allclose(table["size"], expected["size"])
    np.testing.assert_allclose(table["income"], expected["income"])
    assert table[HOSTILE].tolist() == expected[HOSTILE].tolist()


def test_checks_odd_rows_and_a_row_that_is_loaded(opened, address, run):
    page = opened(address.url)
    page.get_by_role("tab", name="Check").click()
    page.locator("#check[data-done]").wait_for()
    saved = json.loads((run.folder / "result.json").read_text())
    shown = page.locator("#check .cards").first.locator(".card")
    names = shown.evaluate_all("cards => cards.map((card) => card.dataset.column)")
    assert names == [name for name, _ in sorted(saved["columns"], key=lambda c: -c[1])]
    assert "told apart from data" in page.locator("#check table").inner_text()
    page.get_by_role("tab", name="Odd rows").click()
    page.locator("#outliers[data-done]").wait_for()
    table, scores = people(), run.score(people())
    worst = int(scores.argmin())
    first = page.locator("#outliers tbody tr").first
    assert first.locator("td").nth(1).inner_text() == f"{scores.min():.2f}"
    first.get_by_role("button", name=f"Row {worst + 2}: load into Ask").click()
    assert page.get_by_role("tab", name="Ask").get_attribute("aria-selected") == "true"
    assert page.get_by_label("Set size", exact=True).input_value() == f"{table['size'][worst]:g}"
    page.wait_for_function("() => JSON.parse(document.querySelector('#ask').dataset.asked).sex")
    assert page.locator("#ask .card.set").count() == 6


def test_hostile_names_and_values_are_text(opened, address):
    page = opened(address.url)
    wait_for_answer(page, {})
    assert page.get_by_role("heading", name=HOSTILE).inner_text() == HOSTILE
    options = page.get_by_label(f"Set {HOSTILE}").locator("option").all_inner_texts()
    assert EVIL in options
    page.get_by_label(f"Set {HOSTILE}").select_option(label=EVIL)
    wait_for_answer(page, {HOSTILE: EVIL}, "filled")
    assert EVIL in page.locator("#likely td").all_inner_texts()
    for tab in ("Check", "Odd rows"):
        page.get_by_role("tab", name=tab).click()
        page.locator(f"#{'check' if tab == 'Check' else 'outliers'}[data-done]").wait_for()
    assert page.locator("main img").count() == 0
    assert page.locator("main script").count() == 0


def test_it_is_readable_on_a_phone_and_by_keyboard(opened, address):
    page = opened(address.url, viewport={"width": 400, "height": 800})
    wait_for_answer(page, {})
    wide = "document.documentElement.scrollWidth"
    assert page.evaluate(wide) == 400
    for scheme, colour in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(23, 24, 26)")):
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == colour
    page.get_by_role("tab", name="Ask").focus()
    for name, part in (("Check", "check"), ("Odd rows", "outliers"), ("Watch", "watch")):
        page.keyboard.press("ArrowRight")
        chosen = page.get_by_role("tab", name=name)
        assert chosen.get_attribute("aria-selected") == "true"
        assert page.evaluate("document.activeElement.textContent") == name
        page.locator(f"#{part}:not([hidden])").wait_for()
        if part != "watch":
            page.locator(f"#{part}[data-done]").wait_for()
        assert page.evaluate(wide) == 400
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("tab", name="Ask").get_attribute("aria-selected") == "true"
    nameless = page.evaluate(
        """[...document.querySelectorAll('input, select, button, [role=img], [role=region]')]
        .filter((e) => !(e.ariaLabel || e.textContent || (e.labels || []).length)).length"""
    )
    assert nameless == 0


def test_a_running_fit_is_watched_stopped_and_kept(opened, tmp_path, monkeypatch):
    people().to_csv(tmp_path / "people.csv", index=False)
    long = {**SHORT, "steps": 400_000, "patience": 400_000}
    run, data = begin_fit(tmp_path / "people.csv", out=tmp_path / "run", **long)
    with (
        quick_fitting(tmp_path, monkeypatch),
        served(Explored(explorable(run), data, fit=True)) as address,
    ):
        page = opened(address.url)
        assert page.get_by_role("tab", name="Ask").is_disabled()
        page.wait_for_function(
            "() => Number(document.querySelector('#watch').dataset.reports) >= 1"
        )
        page.get_by_text("Samples of the best model so far").wait_for()
        first = int(page.locator("#watch").get_attribute("data-reports"))
        page.wait_for_function(
            "n => Number(document.querySelector('#watch').dataset.reports) > n", arg=first
        )
        assert page.locator("#watch .card").count() == 6
        page.get_by_role("button", name="Stop and keep").click()
        page.get_by_role("tab", name="Ask").and_(page.locator(":enabled")).click()
        wait_for_answer(page, {})
        assert page.locator("#watch [role=status]").text_content().startswith("Done")
    assert 0 < run.model().n_iter_ < 400_000
    assert (run.folder / "report.html").exists()


@pytest.fixture(scope="module")
def odd_names(run, tmp_path_factory):
    """A mixture whose columns are called like parts of an object, or like a formula."""
    rng = np.random.default_rng(3)
    names = ["__proto__", "constructor", "=1+1"]
    table = pd.DataFrame(rng.normal(size=(300, 3)), columns=names)
    table["text"] = "@SUM(1)"
    table["toString"] = 2**60 + 1 + 2 * rng.permutation(10**4)[:300]
    schema = Schema.infer(table, kinds={"toString": "number"})
    assert schema["toString"].origin % 2 == 1, "no float"
    config = {"compare_models": True, "data": "odd.csv", "schema": schema.to_dict()}
    folder = copied_run(run, tmp_path_factory.mktemp("odd") / "run", **config)
    parts = torch.ones(1), torch.tensor([[0, 0, 0, 1e4]]), torch.tensor([[1, 1, 1, 9e6]])
    own = km.GaussianMixture(*(part.double() for part in parts))
    model = TableMixture(schema, own, "pandas", "closed-form mixture")
    model.save(folder / "checkpoint" / "mixture.safetensors")
    return Explored.open(folder)


def test_columns_may_have_any_name_and_many_digits(opened, odd_names):
    every = ["__proto__", "constructor", "=1+1", "text", "toString"]
    many = str(2**60 + 4321)
    with served(odd_names) as address:
        page = opened(address.url)
        wait_for_answer(page, {})
        for name, text in (("__proto__", "0.25"), ("toString", many)):
            box = page.get_by_label(f"Set {name}", exact=True)
            box.fill(text)
            box.press("Enter")
        page.wait_for_function(
            "n => (document.querySelector('#ask').dataset.filled || '').includes(n)", arg=many
        )
        assert page.locator("#likely th").all_inner_texts() == every
        cells = page.locator("#likely td").all_inner_texts()
        assert (cells[0], cells[3], cells[4]) == ("0.25", "@SUM(1)", many)
        page.get_by_label("rows", exact=True).fill("20")
        for safe in (False, True):
            page.get_by_label("escape formulas, for spreadsheets").set_checked(safe)
            with page.expect_download() as download:
                page.get_by_role("button", name="Download as CSV").click()
            drawn = pd.read_csv(download.value.path(), dtype={"toString": str})
            mark = "'" if safe else ""
            assert list(drawn) == [*every[:2], f"{mark}=1+1", "text", "toString"]
            assert set(drawn["__proto__"]) == {0.25}
            assert set(drawn["text"]) == {f"{mark}@SUM(1)"}
            assert set(drawn["toString"]) == {many}
            assert drawn["constructor"].std() > 0.3
