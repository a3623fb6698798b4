"""A comparison, an evaluation and the report of a fit of the same two tables say the same."""

import json
import re
from html import unescape

import numpy as np
import pandas as pd
import pytest

import kermix as km
from kermix.tables.compare.comparison_page import comparison_report
from kermix.tables.evaluate.evaluation_page import evaluation_report


def flowers(rows, seed=0):
    rng = np.random.default_rng(seed)
    kind = rng.choice(["iris", "rose", "tulip"], rows)
    tall = np.round(rng.lognormal(3 + (kind == "rose"), 0.3), 3)
    wide = np.round(tall / 2 + rng.normal(size=rows), 3)
    petals = rng.poisson(5, rows)
    return pd.DataFrame({"kind": kind, "tall": tall, "wide": wide, "petals": petals})


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("same")
    data = folder / "flowers.csv"
    flowers(300).to_csv(data, index=False)
    run = km.fit(
        str(data), steps=30, width=16, blocks=1, validation_fraction=0, out=folder / "run"
    )
    samples = next(run.folder.glob("samples*"))
    found = km.compare(str(data), str(samples), permutations=39)
    judged = km.evaluate(str(data), str(samples), permutations=39, rank=40)
    fitted = json.loads((run.folder / "result.json").read_text())
    pages = {
        "compare": comparison_report(found).save(folder / "compare.html").read_text(),
        "evaluate": evaluation_report(judged).save(folder / "evaluate.html").read_text(),
        "fit": (run.folder / "report.html").read_text(),
    }
    return found, judged, fitted, pages


def test_one_classifier_has_one_number(results):
    found, judged, fitted, pages = results
    assert found.verdict.effect is not None
    assert judged["classifier"] == judged.verdict.effect == found.verdict.effect == fitted["auc"]
    assert judged.verdict.interval == found.verdict.interval == tuple(fitted["interval"])
    low, high = (f"{end:.2f}" for end in fitted["interval"])
    area = f"AUC {fitted['auc']:.2f}"
    assert f"{area} ({low} to {high}; 0.5 is chance)" in pages["fit"]
    assert f"{area} ({low} to {high}; 0.5 is chance)" in found.verdict.sentence()
    assert area in pages["compare"]
    assert area in pages["evaluate"]


def test_a_column_has_one_difference(results):
    found, judged, fitted, pages = results
    told = {c.column: c.difference for c in found.verdict.columns}
    assert len(told) == 4
    assert {c.column: c.difference for c in judged.verdict.columns} == told
    assert {name: value for (name,), value in judged.tables.shape.each} == told
    assert dict(fitted["columns"]) == told
    assert judged["shape"] == pytest.approx(1 - np.mean([*told.values()]))
    for value in told.values():
        assert f"difference {value:.3f}" in pages["fit"]


def test_a_pair_of_columns_has_one_difference_and_copies_one_share(results):
    _, judged, fitted, _ = results
    pairs = {frozenset(names): value for names, value in judged.tables.pairs.each}
    assert len(fitted["pairs"]) == len(pairs) == 6
    for pair in fitted["pairs"]:
        assert pairs[frozenset((pair["first"], pair["second"]))] == pair["difference"]
    assert judged["copies"] == fitted["copies"]


def test_what_chance_makes_of_a_pair_is_one_number(results):
    _, judged, fitted, pages = results
    assert fitted["pair_floor"] == judged.tables.pairs.if_same > 0
    assert f"pairs would differ by {fitted['pair_floor']:.3f} on average" in pages["fit"]
    shown = {s.name: s.if_same for s in judged.scores}["pairs"]
    assert shown == pytest.approx(1 - fitted["pair_floor"])


def numbers(content, path=()):
    """Numbers of JSON, by their path."""
    parts = content.items() if isinstance(content, dict) else enumerate(content)
    for name, value in parts:
        if isinstance(value, dict | list | tuple):
            yield from numbers(value, (*path, str(name)))
        elif isinstance(value, int | float):
            yield "/".join((*path, str(name))), value


def test_the_verdict_of_an_evaluation_is_that_of_the_comparison_number_by_number(results):
    found, judged, _, _ = results
    one, two = (dict(numbers(r.to_dict())) for r in (found, judged))
    # A fifth of an evaluation's level is for copies; what would be found at it is said with it.
    told = ("verdict/level", "verdict/level_of_copies", "verdict/detectable_shift")
    by_level = {name: two[name] for name in told}
    assert judged.verdict.level == pytest.approx(0.8 * found.verdict.level)
    assert judged.verdict.level_of_copies == pytest.approx(0.2 * found.verdict.level)
    verdict = {path: value for path, value in one.items() if path.startswith("verdict/")}
    assert len(verdict) > 20
    assert {path: two[path] for path in verdict} == {**verdict, **by_level}
    assert [one[f"rows/{k}"] for k in (0, 1)] == [two[f"rows/{k}"] for k in (0, 1)]


def test_rows_that_repeat_others_are_left_out_of_both_alike():
    first, second = flowers(120), flowers(120, 1)
    second["tall"] += 10
    second["id"], first["id"] = range(120), range(120)
    twice = pd.concat([second, second[:40]])
    found = km.compare(first, twice, permutations=39).verdict
    judged = km.evaluate(first, twice, permutations=39, rank=20)
    assert found.repeated == judged.verdict.repeated == (0, 40)
    assert judged["classifier"] == found.effect
    assert judged.verdict.interval == found.interval
    assert judged.verdict.columns == found.columns
    assert judged.verdict.pairs == found.pairs
    assert {n: d for (n,), d in judged.tables.shape.each} == {
        c.column: c.difference for c in found.columns
    }


def said(page):
    """Names and values on a page, without its charts."""
    shown = re.sub(r"<(svg|style|script).*?</\1>", "", page, flags=re.DOTALL)
    text = re.sub(r"(\| )+", "| ", " ".join(unescape(re.sub(r"<[^>]+>", " | ", shown)).split()))
    for name, rule in {
        "AUC": r"AUC (0\.\d\d)\b",
        "interval": r"(0\.\d+ to 0\.\d+)(?:; 0\.5 is chance|\. Another)",
        "p of a difference": r"(?:They differ|data, clearly|data, a little) \(p = ([\d.]+)",
        "what differs most": r"Most different, from \S+ to \S+: (.*?)\.(?: |$)",
        "exact copies, %": r"exact copies (?:\| )?(\d[\d.]*)\s?%",
    }.items():
        yield from ((name, value) for value in re.findall(rule, text))
    one = r"(kind|tall|wide|petals)"
    for column, value in re.findall(rf"\| {one} (?:\| )?(?:difference )?(0\.\d+)", text):
        yield column, round(float(value), 3)
    pair = rf"\| {one} (?:and|with) {one} (?:\| )?(?:difference )?(0\.\d+)"
    for first, second, value in re.findall(pair, text):
        yield frozenset((first, second)), round(float(value), 3)


def test_what_pages_say_under_one_name_is_one_number(results):
    *_, pages = results
    found = {}
    for page, text in pages.items():
        for name, value in said(text):
            found.setdefault(name, {}).setdefault(value, set()).add(page)
    assert {name: values for name, values in found.items() if len(values) > 1} == {}
    assert next(iter(found["AUC"].values())) == {"compare", "evaluate", "fit"}
    shared = [name for name, values in found.items() if len(next(iter(values.values()))) > 1]
    assert {"interval", "p of a difference", "what differs most"} <= {*shared}
    assert {"kind", "tall", "wide", "petals"} <= {*shared}
    assert sum(isinstance(name, frozenset) for name in shared) == 6


def test_medians_and_shares_are_those_of_the_frames():
    first, second = flowers(400), flowers(400, 1)
    second["tall"] += 40
    second.loc[second["kind"] == "iris", "kind"] = "rose"
    told = {c.column: c for c in km.compare(first, second, permutations=39).verdict.columns}
    medians = (f"{t['tall'].median():.4g}" for t in (first, second))
    assert told["tall"].change == "median " + " -> ".join(medians)
    assert told["tall"].short == "higher"
    share = f"{100 * (first['kind'] == 'iris').mean():.3g} % -> 0 %"
    assert told["kind"].short == "no more iris"
    assert share in told["kind"].change
