"""The table of everything that the paper states: names resolve, and statements count once."""

import importlib
import json
import re
import runpy
from pathlib import Path

import pytest

from internals import ARTEFACTS, judge_again
from internals import artefact_module as statements
from internals import prior_module as prior
from internals import remarks_module as remarks
from internals import table_records_module as table_records

ROOT = Path(__file__).parents[2]
PAGE = runpy.run_path(str(ROOT / "scripts" / "paper_page.py"))
CONTENTS = PAGE["CONTENTS"]


def resolved(name):
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            place = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        for part in parts[cut:]:
            place = getattr(place, part)
        return place
    raise AssertionError(name)


@pytest.mark.parametrize("entry", CONTENTS, ids=lambda e: f"{e.item}: {e.says[:30]}")
def test_code_and_tests_are_where_it_is_said(entry):
    for name in entry.code:
        assert resolved(name) is not None
    for file in entry.tests:
        assert (ROOT / "tests" / file).is_file(), file
    assert entry.code or entry.statements or entry.found


def test_every_equation_property_figure_and_table_is_there():
    text = " ".join(entry.item for entry in CONTENTS)
    numbers = set()
    for entry in CONTENTS:
        if "Eq" in entry.item:
            shown = entry.item.partition("Eq")[2].strip("s. ").split(", ")
            numbers |= {int(number) for number in shown}
    assert numbers == set(range(1, 28))
    for kind, count in (("Property", {1, 2, 3, 8, 9, 10}), ("Proposition", {4, 5, 6, 7}),
                        ("Figure", {1, 2, 3, 4}), ("Table", {1})):  # fmt: skip
        assert all(f"{kind} {number}" in text for number in count), kind


def test_every_erratum_is_named_where_the_paper_has_it():
    mathematics = (ROOT / "docs" / "mathematics.md").read_text()
    listed = mathematics.partition("## Errata")[2]
    numbers = {int(number) for number in re.findall(r"^(\d+)\. ", listed, re.MULTILINE)}
    assert numbers == set(range(1, 20))
    named = re.findall(r"errat(?:um|a) (\d+)(?: and (\d+))?", " ".join(e.found for e in CONTENTS))
    assert {int(number) for pair in named for number in pair if number} == numbers


def test_every_statement_that_is_judged_is_in_the_table():
    named = {statement for entry in CONTENTS for statement in entry.statements}
    upper = [getattr(statements, name) for name in statements.__all__ if name.isupper()]
    known = {text for text in upper if isinstance(text, str) and text.endswith(".")}  # no colors
    known |= {prior.FITS, prior.PROPERTY_3, remarks.BOUNDED, remarks.OPTIMAL, remarks.SMALL}
    known |= {table_records.GAP, table_records.TRAIN, table_records.CNN}
    assert known <= named


def claim(text, holds, statement="", ours=False, state="judged"):
    plain = {"text": text, "holds": holds, "statement": statement, "ours": ours, "state": state}
    return {**plain, "figure": ""}


def test_a_statement_counts_once():
    claims = [
        claim("a, one way", True, "A"), claim("a, another", False, "A"), claim("b", True, "B"),
        claim("c", False, "C"), claim("mine", True, "B", ours=True), claim("old", True),
        claim("even", False, "D", state="tie"), claim("odd", False, "D"),
        claim("blind", False, "B", state="not counted"), claim("only", False, "E", state="tie"),
        claim("nothing", False, "F", state="not counted"),
    ]  # fmt: skip
    (line, _) = PAGE["_counts"](claims)
    assert "Of 6 statements" in line
    assert "2 were confirmed in every reading and case, 1 was confirmed in some, 2 ended" in line
    assert "2 ended in ties, 1 was refuted in all**" in line
    assert "of 8 readings and cases, 3 confirmed, 2 tied, 3 refuted; 2 more" in line


def test_the_page_is_what_its_script_writes():
    """And its counts are those of the files, counted here by hand."""
    text = (ROOT / "docs" / "paper.md").read_text()
    assert text == PAGE["page"]()
    states = {}
    for file in (ROOT / "results" / "paper").glob("*.json"):
        for found in json.loads(file.read_text())["claims"]:
            if not found["ours"] and found["state"] != "not counted":
                verdict = "yes" if found["holds"] else found["state"]
                states.setdefault(found["statement"], []).append(verdict)
    whole = sum(set(own) == {"yes"} for own in states.values())
    refuted = sum(set(own) == {"judged"} for own in states.values())
    every = [verdict for own in states.values() for verdict in own]
    assert f"**Of {len(states)} statements of the paper, {whole} were confirmed in every" in text
    assert f"{refuted} were refuted in all**" in text
    assert f"of {len(every)} readings and cases, {every.count('yes')} confirmed, " in text
    assert f"{every.count('tie')} tied, {every.count('judged')} refuted" in text


def test_rows_say_what_was_found():
    entry = next(e for e in CONTENTS if e.statements == (remarks.SMALL,))
    row = PAGE["_row"]
    assert "not judged yet" in row(entry, [])
    assert "| confirmed |" in row(entry, [claim("x", True, remarks.SMALL)])
    both = [claim("x", True, remarks.SMALL), claim("y", False, remarks.SMALL)]
    assert "confirmed in 1 of 2" in row(entry, both)
    assert "**not confirmed**" in row(entry, both[1:])
    tie = claim("z", False, remarks.SMALL, state="tie")
    assert "| a tie |" in row(entry, [tie])
    assert "confirmed in 1 of 2, 1 tie" in row(entry, [both[0], tie])
    blind = claim("b", False, remarks.SMALL, state="not counted")
    assert "| not counted |" in row(entry, [blind])
    assert "| confirmed |" in row(entry, [both[0], blind])


def test_figures_count_their_own_claims():
    entry = next(e for e in CONTENTS if e.figure == "fig-images")
    first, *_ = entry.statements
    own = {**claim("x", False, first), "figure": "fig-images"}
    other = {**claim("y", True, first), "figure": "fig-generation"}
    assert f"{first.rstrip('.')}: **not confirmed**" in PAGE["_row"](entry, [own, other])


def test_recorded_claims_belong_to_statements_of_the_table():
    named = {statement for entry in CONTENTS for statement in entry.statements}
    for file in (ROOT / "results" / "paper").glob("*.json"):
        for found in json.loads(file.read_text())["claims"]:
            assert found["ours"] or found.get("statement", "") in named, (file.name, found["text"])


@pytest.mark.parametrize("name", ARTEFACTS)
def test_recorded_numbers_can_be_judged_again(tmp_path, name):
    file = ROOT / "results" / "paper" / f"{name}.json"
    if not file.exists():
        pytest.skip("not recorded")
    record = json.loads(file.read_text())
    spoiled = {**record, "claims": []}
    (tmp_path / file.name).write_text(json.dumps(spoiled))
    again = judge_again(name, tmp_path)
    assert again["claims"] == record["claims"]
    assert json.loads((tmp_path / file.name).read_text()) == again
