"""Every measured number in the README and on the pages is the one in a result file.

A measurement is a link whose text is the number and whose fragment is a JSON pointer (RFC 6901) to
it: `[160](results/bench/svd-h200.json#/tables/value_and_gradient/0/ratio)`.
"""

import json
import re
import runpy
from decimal import Decimal
from pathlib import Path
from urllib.parse import unquote

import pytest
from benchmarks.page import write_page

from pages import ROOT, name_of, prose, written_pages

LINK = re.compile(r"\[([^\[\]]*)\]\(([^()\s]*results/[^()\s#]*\.json)(?:#([^()\s]*))?\)")
NUMBER = re.compile(r"^([<>]?) ?(-?[\d,]+(?:\.\d+)?(?:e[-+]?\d+)?) ?(%?)$")
# What a measurement looks like in running text: a number with a unit.
MEASURED = re.compile(
    r"(?<![\w.=-])\d[\d,]*(?:\.\d+)?(?:e-?\d+)? ?(?:%|times (?:as |faster|slower|less|more)|"
    r"(?:seconds|s|ms|nats|MB|GB|kB)\b)"
)
PAGES = written_pages()


def at(content, pointer):
    for part in unquote(pointer).lstrip("/").split("/"):
        part = part.replace("~1", "/").replace("~0", "~")
        content = content[int(part)] if isinstance(content, list) else content[part]
    return content


def agrees(shown, value):
    """Whether a number as it is shown is `value`, rounded to the digits shown."""
    found = NUMBER.match(shown)
    if found is None:
        return False
    sign, digits, percent = found.groups()
    number = Decimal(digits.replace(",", ""))
    value = Decimal(repr(value)) * (100 if percent else 1)
    if sign:
        return value < number if sign == "<" else value > number
    unit = Decimal(1).scaleb(number.as_tuple().exponent)
    return abs(value - number) <= unit / 2


def links(page):
    return [(m[1], m[2], m[3]) for m in LINK.finditer(page.read_text())]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_numbers_are_those_of_the_files(page):
    for text, path, pointer in links(page):
        file = (page.parent / path).resolve()
        assert file.is_file(), f"{name_of(page)}: {path} does not exist"
        assert file.is_relative_to(ROOT / "results"), path
        if pointer:
            value = at(json.loads(file.read_text()), pointer)
            assert agrees(text, value), f"{name_of(page)}: {text} is shown, {pointer} is {value}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_measurement_without_its_file(page):
    text = LINK.sub("", prose(page))
    for number, line in enumerate(text.splitlines(), 1):
        found = MEASURED.search(line)
        assert found is None, f"{name_of(page)}:{number}: where does {found[0]!r} come from?"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_tables_of_measurements_hold_linked_numbers_only(page):
    assert unlinked_cells(page.read_text()) == []


def unlinked_cells(text):
    """Numbers in a column called `measured` that are not links to a file."""
    missing = []
    for table in re.findall(r"<!-- measured -->\n\n((?:\|.*\n)+)", text):
        head, _, *rows = (
            [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()
        )
        column = head.index("measured")
        for row in rows:
            assert LINK.search(row[column]), f"no number: {row[0]}"
            # "10 of 10 runs": what follows "of" is the design of the experiment.
            rest = re.sub(r"of \d+", "", LINK.sub("", row[column]))
            missing += re.findall(r"\d[\d.,e-]*", rest)
    return missing


@pytest.mark.parametrize("name", ["README.md", "docs/measured.md"])
def test_there_are_measurements(name):
    assert len([p for _, _, p in links(ROOT / name) if p]) >= 8


def test_one_ratio_to_the_papers_method_is_told_and_it_is_the_less_flattering():
    bench = ROOT / "results" / "bench"
    svd, speed = (
        json.loads((bench / f"{name}-h200.json").read_text())["tables"]
        for name in ("svd", "speed")
    )
    ratios = [row["ratio"] for row in svd["value_and_gradient"] if row["N"] == 4000]
    ratios += [row.get("times_paper", 1e9) for row in speed["svd_cost"] if "4000" in row["what"]]
    place = re.compile(r"h200.json#/tables/(value_and_gradient/\d/ratio|svd_cost/2/times_paper)$")
    for name in ("README.md", "docs/measured.md"):
        shown = [t for t, path, at in links(ROOT / name) if place.search(f"{path}#{at}")]
        assert shown == [f"{min(ratios):.0f}"], name


def test_a_wrong_number_is_noticed():
    assert agrees("160", 160.4)
    assert agrees("99.3 %", 0.9933)
    assert agrees("4.9e-06", 4.931e-06)
    assert agrees("< 2e-5", 1.9e-5)
    assert not agrees("161", 160.4)
    assert not agrees("99.4 %", 0.9933)
    assert not agrees("4.8e-06", 4.931e-06)
    assert not agrees("< 1e-5", 1.9e-5)
    assert not agrees("fast", 1.0)
    table = (
        "<!-- measured -->\n\n| what | measured |\n|---|---|\n| a | [1](results/a.json#/b), 7 |\n"
    )
    assert unlinked_cells(table) == ["7"]
    assert MEASURED.search("it is 12 times faster")
    assert MEASURED.search("99.3 % good")


def test_page_of_benchmarks_is_made_from_the_files(tmp_path):
    """Written again from `results/`, it is the page that is committed."""
    written = write_page(ROOT / "results" / "bench", tmp_path / "benchmarks.md")
    assert written.read_text() == (ROOT / "docs" / "benchmarks.md").read_text(), (
        "run: python -m benchmarks --page docs/benchmarks.md"
    )


def test_page_of_commands_is_made_from_the_program():
    script = runpy.run_path(str(ROOT / "scripts" / "commands_page.py"))
    assert script["page"]() == (ROOT / "docs" / "commands.md").read_text(), (
        "run: python scripts/commands_page.py"
    )


def test_comparison_with_others_is_the_one_that_was_checked():
    features = json.loads((ROOT / "results" / "comparison.json").read_text())["features"]
    assert comparison_table(features) in (ROOT / "docs" / "measured.md").read_text(), (
        "run: python scripts/check_comparison.py, which prints the table"
    )


def comparison_table(features):
    libraries = list(next(iter(features.values())))
    lines = ["| | " + " | ".join(libraries) + " |", "|---|" + ":-:|" * len(libraries)]
    for feature, row in features.items():
        cells = ["yes" if row[name]["has"] else "" for name in libraries]
        lines.append(f"| {feature} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def test_result_files_say_where_they_come_from():
    for path in sorted(Path(ROOT / "results").rglob("*.json")):
        content = json.loads(path.read_text())
        for record in content if isinstance(content, list) else [content]:
            where = record.get("environment", record)
            assert {"machine", "versions", "commit"} <= set(where), path


def test_page_of_the_paper_is_made_from_the_files():
    script = runpy.run_path(str(ROOT / "scripts" / "paper_page.py"))
    assert script["page"]() == (ROOT / "docs" / "paper.md").read_text(), (
        "run: python scripts/paper_page.py"
    )
