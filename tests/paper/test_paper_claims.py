"""Claims of the paper: each one is seen in numbers where it holds, and not where it fails."""

import copy
import json

import pytest
import torch

from internals import Claim
from internals import as_written_module as as_written
from internals import generation_module as generation
from internals import identity_module as identity
from internals import measure_module as measure
from internals import singular_functions_module as singular_functions
from internals import table_records_module as table_records

GENERATION = {
    "svd": {"nll": 0.1, "good samples": 0.9, "energy distance": 0.001, "modes": 10},
    "scalar": {"nll": 0.21, "good samples": 0.8, "energy distance": 0.002, "modes": 10},
    "vector": {"nll": 0.3, "good samples": 0.7, "energy distance": 0.003, "modes": 9.5},
    "matrix": {"nll": 0.4, "good samples": 0.7, "energy distance": 0.004, "modes": 9},
    "Frobenius": {"nll": 20, "good samples": 1, "energy distance": 0.2, "modes": 1},
    "L2 large": {"nll": 20, "good samples": 0, "energy distance": 0.5, "modes": 2},
    "L2 small": {"nll": 20, "good samples": 0, "energy distance": 0.2, "modes": 1},
}
OF_DATA = {"nll of data": 0.0, "energy distance of data": 0.0}


def generation_rows(summary, seeds=4):
    return [{"method": method, "seed": seed, **OF_DATA, **numbers}
            for method, numbers in summary.items() for seed in range(seeds)]  # fmt: skip


def verdicts(claims):
    return [claim.holds for claim in claims]


def changed(numbers, *path, to):
    """A copy of nested numbers with one of them changed."""
    copied = copy.deepcopy(numbers)
    place = copied
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = to
    return copied


def only_fails(claims, index):
    """That one claim fails, and no other."""
    return verdicts(claims) == [i != index for i in range(len(claims))]


@pytest.mark.parametrize(
    ("method", "key", "value", "index"),
    [
        ("matrix", "modes", 8.9, 0),
        ("svd", "nll", 0.25, 1),
        ("svd", "good samples", 0.8, 2),
        ("scalar", "energy distance", 0.001, 3),
        ("matrix", "nll", 0.43, 4),
        ("Frobenius", "energy distance", 0.019, 5),
        ("Frobenius", "modes", 6, 5),
        ("L2 small", "energy distance", 0.001, 6),
    ],
)
def test_generation_claims_can_fail(method, key, value, index):
    claims = generation.claims(generation_rows(GENERATION))
    assert all(verdicts(claims))
    worse = generation_rows(changed(GENERATION, method, key, to=value))
    assert only_fails(generation.claims(worse), index)


def test_what_varies_over_seeds_is_a_tie():
    rows = generation_rows(GENERATION)
    for row, nll in zip((r for r in rows if r["method"] == "scalar"), (0, 0, 0.4, 0.4),
                        strict=True):  # fmt: skip
        row["nll"] = nll
    likelihood = generation.claims(rows)[1]
    assert likelihood.state == "tie"
    assert not likelihood.holds
    assert likelihood.verdict == "Tie"
    assert likelihood.seeds == 4
    low, high = likelihood.intervals["svd against scalar"]
    assert low < 0 < high
    assert "svd against scalar 0.1 (-0.267 to 0.467)" in likelihood.evidence
    assert "4 seeds" in likelihood.evidence


def description(asymmetry, width, correlation, affinity):
    return {
        "peak at": 0.0, "asymmetry": asymmetry, "width above 0.05": width, "steps uphill": 1.0,
        "correlation": correlation, "from affinity": affinity,
    }  # fmt: skip


MEASURE = {
    "svd": description(0.0, 2.0, 0.98, 0.1),
    "scalar": description(0.0, 1.4, 0.91, 0.3),
    "vector": description(0.1, 2.0, 0.95, 0.2),
    "matrix": description(0.05, 2.0, 0.96, 0.2),
}
BOUNDS = {"matrix cost": 0.2, "norm of p": 0.25, "min(N, K)": 200.0}


def measure_rows(same, independent=None, seeds=3):
    sets = {measure.SAME: same, measure.INDEPENDENT: independent or same}
    return [{"samples": kind, "cost": cost, "seed": seed, **numbers}
            for kind, found in sets.items()
            for cost, numbers in found.items() for seed in range(seeds)]  # fmt: skip


@pytest.mark.parametrize(
    ("cost", "key", "value", "index"),
    [
        ("vector", "peak at", 0.05, 0),
        ("matrix", "steps uphill", 0.9, 0),
        ("vector", "asymmetry", 0.001, 1),
        ("svd", "asymmetry", 0.001, 1),
        ("scalar", "width above 0.05", 2.0, 2),
        ("matrix", "correlation", 0.99, 3),
        ("scalar", "from affinity", 0.05, 4),
    ],
)
def test_measure_claims_can_fail(cost, key, value, index):
    assert all(verdicts(measure.claims(measure_rows(MEASURE), BOUNDS)))
    worse = changed(MEASURE, cost, key, to=value)
    assert only_fails(measure.claims(measure_rows(worse, MEASURE), BOUNDS), index)


def test_descriptor_claim_needs_independent_samples_too():
    worse = changed(MEASURE, "matrix", "correlation", to=0.99)
    assert only_fails(measure.claims(measure_rows(MEASURE, worse), BOUNDS), 3)


def test_bound_claims_can_fail():
    too_large = {**BOUNDS, "matrix cost": 70.0}
    assert only_fails(measure.claims(measure_rows(MEASURE), too_large), 5)
    impossible = {**BOUNDS, "matrix cost": 201.0}
    found = measure.claims(measure_rows(MEASURE), impossible)
    assert verdicts(found)[5:] == [False, False]


IDENTITY = {
    (form, v, shift): {
        "diagonal": {0.0: 10.0, 0.5: 4.0, 1.0: 0.1}[shift],
        "spread": 0.02 if v == 0.001 else 0.06,
        "near the diagonal": 0.98 if v == 0.001 else 0.8,
    }
    for form in identity.FORMS
    for v in identity.VARIANCES
    for shift in identity.SHIFTS
}


@pytest.mark.parametrize(
    ("place", "key", "value", "index"),
    [
        (("smoothed", 0.001, 0.0), "near the diagonal", 0.9, 0),
        (("smoothed", 0.001, 1.0), "diagonal", 1.1, 1),
        (("projection", 0.001, 0.5), "diagonal", 12.0, 4),
        (("projection", 0.01, 0.0), "spread", 0.01, 5),
        (("whitened", 0.01, 0.0), "near the diagonal", 0.4, 8),
    ],
)
def test_identity_claims_can_fail(place, key, value, index):
    assert all(verdicts(identity.claims(IDENTITY)))
    assert only_fails(identity.claims(changed(IDENTITY, place, key, to=value)), index)


FUNCTIONS = {
    "same index": 0.95, "least": 0.9, "best match is itself": 1.0, "swapped values": 1e-14,
    "swapped functions": 1e-14, "root's vectors": 1e-7, "fidelity of two": 0.8,
    "fidelity with itself": 1.0, "samples' values": 0.03, "samples' functions": 0.95,
}  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value", "index"),
    [
        ("same index", 0.8, 0),
        ("best match is itself", 0.83, 0),
        ("swapped functions", 0.1, 1),
        ("root's vectors", 0.1, 2),
        ("fidelity of two", 1.0, 3),
        ("fidelity with itself", 0.9, 3),
        ("samples' values", 0.2, 4),
        ("samples' functions", 0.5, 4),
    ],
)
def test_singular_function_claims_can_fail(key, value, index):
    assert all(verdicts(singular_functions.claims(FUNCTIONS)))
    assert only_fails(singular_functions.claims({**FUNCTIONS, key: value}), index)


TABLE = {"1": 0.98, "3": 0.985, "5": 0.99, "7": 0.99, "CNN": 0.992}
TRAIN = {"1": 0.985, "3": 0.999, "5": 0.999, "7": 1.0, "CNN": 1.0}


def table_claims(dataset, accuracy, kind="", train=None, seeds=3):
    """Of networks that are as accurate with every seed."""
    every = [None if part is None else {c: [a] * seeds for c, a in part.items()}
             for part in (accuracy, train)]  # fmt: skip
    return table_records.claims(dataset, every[0], kind, every[1])


@pytest.mark.parametrize(
    ("column", "value", "failing"),
    [
        ("1", 0.88, [0, 3]),
        ("1", 0.9, [3]),
        ("3", 0.98, [1]),
        ("CNN", 0.999, [2]),
        ("3", 0.9, [1, 3]),
        ("CNN", 0.95, [5, 6]),
        ("7", 0.985, []),
        ("7", 0.9805, [3, 6]),
    ],
)
def test_table_claims_can_fail(column, value, failing):
    assert all(verdicts(table_claims("mnist", TABLE, train=TRAIN)))
    found = verdicts(table_claims("mnist", {**TABLE, column: value}, train=TRAIN))
    assert [i for i, holds in enumerate(found) if not holds] == failing


@pytest.mark.parametrize(("column", "failing"), [("5", [4]), ("CNN", [5])])
def test_training_accuracies_are_judged(column, failing):
    found = verdicts(table_claims("mnist", TABLE, train={**TRAIN, column: 0.98}))
    assert [i for i, holds in enumerate(found) if not holds] == failing
    # The equations as written have no CNN.
    without = {c: a for c, a in TABLE.items() if c != "CNN"}
    kinds = table_claims("mnist", without, "as written", TRAIN)
    assert len(kinds) == 4
    assert not any("CNN" in claim.text for claim in kinds)
    # More than the paper's training accuracy is no failure.
    more = table_claims("cifar10", TABLE, train=dict.fromkeys(TRAIN, 1.0))
    assert more[4].holds
    # Without them there is nothing to judge.
    assert len(table_claims("mnist", TABLE)) == 5


def test_digits_are_judged_without_the_papers_numbers():
    claims = table_claims("digits", {**TABLE, "1": 0.85})
    assert verdicts(claims) == [True, True, True]
    assert not any("paper" in claim.numbers for claim in claims)
    assert all(claim.ours for claim in claims)  # the paper says nothing of digits
    assert [c.ours for c in table_claims("mnist", TABLE)[:3]] == [False, False, True]


def test_training_accuracies_with_augmentation_say_nothing():
    for train in (TRAIN, {**TRAIN, "1": 0.7}):
        claim = table_claims("mnist", TABLE, "tuned, with augmentation", train)[4]
        assert (claim.state, claim.holds) == ("not counted", False)
        assert "augmentation" in claim.why
    assert table_claims("mnist", TABLE, "tuned, no augmentation", TRAIN)[4].holds


def test_what_was_missed_is_said():
    rows = [
        {"dataset": "cifar10", "reading": reading, "patch": 1, "seed": seed, "output width": 9,
         "train_accuracy": train + 0.01 * seed, "test_accuracy": 0.5, "width": 8, "epochs": 3}
        for reading, train in (("element", 0.89), ("vector", 0.68)) for seed in range(3)
    ]  # fmt: skip
    first = as_written.noted({"cells": rows})[0]
    assert "vectors as anchors, patch 1: training accuracy 0.690, the paper's 0.899" in first
    assert "each element" not in first
    reached = [row for row in rows if row["reading"] == "element"]
    assert not any("Missed" in note for note in as_written.noted({"cells": reached}))


def test_claim_survives_its_file():
    claim = Claim("It is so.", "rule", {"a": torch.tensor(2.0)}, holds=False, ours=True)
    again = Claim.from_json(json.loads(json.dumps(claim.as_json())))
    assert again == Claim("It is so.", "rule", {"a": 2.0}, holds=False, ours=True)
    assert again.sentence().startswith("NOT confirmed: It is so.")


def test_measure_sees_a_lopsided_curve():
    shifts = torch.linspace(-1, 1, 21, dtype=torch.float64)
    tent = 1 - shifts.abs() / 2
    found = measure.describe(tent, shifts, tent)
    assert found["correlation"] == pytest.approx(1)
    assert found["steps uphill"] == 1
    assert found["from affinity"] == found["asymmetry"] == found["peak at"] == 0
    leaning = tent + 0.1 * shifts * (1 - shifts.abs())
    assert measure.describe(leaning, shifts, tent)["asymmetry"] > 0.04


def test_identity_description_of_an_identity_and_of_noise():
    grid = torch.linspace(-1, 1, 81, dtype=torch.float64)
    inside = grid.abs() < 0.9
    exact = identity.describe(torch.eye(81, dtype=torch.float64), grid, inside)
    assert exact == {"diagonal": 1.0, "spread": 0.0, "near the diagonal": 1.0}
    flat = identity.describe(torch.ones(81, 81, dtype=torch.float64), grid, inside)
    assert flat["near the diagonal"] < 0.2
    assert flat["spread"] > 0.5


def test_recorded_table_takes_the_best_supported_cells(tmp_path):
    def cell(patch, seed, accuracy, augmentation="shift 2", variant=""):
        return {
            "dataset": "mnist", "model": "cnn" if patch is None else "gaussian-product",
            "patch": patch, "seed": seed, "augmentation": augmentation, "variant": variant,
            "test_accuracy": accuracy, "train_accuracy": 1.0,
        }  # fmt: skip

    files = [tmp_path / "table1.json", tmp_path / "table1-as-written.json"]
    cells = [
        cell(3, 0, 0.98), cell(3, 1, 0.99), cell(3, 0, 0.999, "shift 3"),
        cell(3, 0, 0.5, variant="no whitening"), cell(None, 0, 0.991),
        cell(None, 0, 0.97, "none"),
    ]  # fmt: skip
    files[0].write_text(json.dumps(cells))
    # Of networks of several sizes the largest count.
    small = cell(3, 1, 0.7, "none", "as written, element")
    large = {**cell(3, 0, 0.9, "none", "as written, element"), "parameters": 9}
    files[1].write_text(json.dumps([small, large]))
    found, sources = table_records.recorded(files)
    assert found == {
        "tuned, with augmentation": {
            "mnist": {"3": ([1.0, 1.0], [0.98, 0.99]), "CNN": ([1.0], [0.991])}
        },
        "tuned, no augmentation": {"mnist": {"CNN": ([1.0], [0.97])}},
        "as written, element-wise": {"mnist": {"3": ([1.0], [0.9]), "CNN": ([1.0], [0.97])}},
    }
    assert sources == ["results/table1.json", "results/table1-as-written.json"]
    assert table_records.recorded(files[1:])[1] == ["results/table1-as-written.json"]
