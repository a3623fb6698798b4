"""A comparison, an evaluation and the report of a fit of the same two tables say the same."""

import json

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
