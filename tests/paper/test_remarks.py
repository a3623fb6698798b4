"""What the text says: formulas against their definitions, and claims that can fail."""

import copy

import pytest
import torch

from internals import prior_module as prior
from internals import remarks_module as remarks
from kermix import matrix_cost

SUMMARY = {
    **{f"form {form}": {"excess nll": 0.5, "modes": 10} for form in remarks.FORMS},
    **{
        f"v {v:g}": {"good samples": 0.8 - 0.1 * i, "modes": 10 - 2 * i}
        for i, v in enumerate(remarks.VARIANCES)
    },
    "divided": {"energy distance": 0.1},
    "undivided": {"energy distance": 0.3},
}
LARGEST = [{"divided": 0.9, "undivided": 0.9}, {"divided": 0.8, "undivided": 0.0}]


@pytest.fixture(scope="module")
def found():
    return remarks.formulas()


def rows_of(summary, name, seeds=3):
    """Rows of seeds that all have the numbers of the summary."""
    return [{name: key, "seed": seed, **numbers}
            for key, numbers in summary.items() for seed in range(seeds)]  # fmt: skip


def verdicts(summary, largest, found):
    rows = rows_of(summary, "training")
    return [claim.holds for claim in remarks.claims(rows, largest, found)]


@pytest.mark.parametrize(
    ("name", "key", "value", "failing"),
    [
        ("form logdet", "excess nll", 1.1, [0]),
        ("form trace", "modes", 8, [0]),
        ("v 0.1", "good samples", 0.85, [1]),
        ("v 1", "good samples", 0.75, []),  # of large ones no order is claimed
        ("v 1", "modes", 6, [2]),
        ("undivided", "energy distance", 0.15, [4]),
    ],
)
def test_claims_of_trainings_can_fail(found, name, key, value, failing):
    base = verdicts(SUMMARY, LARGEST, found)
    assert all(base[:5])
    changed = copy.deepcopy(SUMMARY)
    changed[name][key] = value
    after = verdicts(changed, LARGEST, found)
    assert [i for i, (a, b) in enumerate(zip(base, after, strict=True)) if a != b] == failing


def test_ratios_of_distances_are_judged_as_ratios(found):
    """Each is far above two: that they differ among themselves makes no tie."""
    rows = rows_of(SUMMARY, "training")
    apart = [row for row in rows if row["training"] == "undivided"]
    for row, distance in zip(apart, (17.0, 39.0, 20.0), strict=True):
        row["energy distance"] = distance
    claim = remarks.claims(rows, LARGEST, found)[4]
    assert claim.holds
    (low, high) = claim.intervals["energy distance without over with"]
    assert 0 < low < claim.numbers["energy distance without over with"] < high
    # The geometric mean: 0.1 is the distance with the division.
    assert claim.numbers["energy distance without over with"] ** 3 == pytest.approx(
        170 * 390 * 200, rel=1e-9
    )


def test_claims_of_gram_matrices_can_fail(found):
    assert not verdicts(SUMMARY, [{"divided": 0.9, "undivided": 0.01}], found)[3]


@pytest.mark.parametrize(
    ("key", "value", "failing"),
    [
        ("whitened", 0.9, 5),
        ("best of perturbed", 1.1, 5),
        ("vector cost", 0.5, 7),
        ("largest vector cost", 9.0, 8),
        ("matrix cost, data fixed, p_n = N/N", 9.0, 9),
        ("nuclear norm, others", 41.0, 10),
        ("root and v/2", 0.1, 12),
    ],
)
def test_claims_of_formulas_can_fail(found, key, value, failing):
    base = verdicts(SUMMARY, LARGEST, found)
    after = verdicts(SUMMARY, LARGEST, {**found, key: value})
    assert [i for i, (a, b) in enumerate(zip(base, after, strict=True)) if a != b] == [failing]


def test_the_least_distance_to_the_identity_is_the_matrix_cost():
    """Against a direct minimization over all matrices C, by the normal equations."""
    x = torch.linspace(-0.4, 0.4, 7, dtype=torch.float64)[:, None]
    y = x + 0.02 * torch.sin(9 * x)
    r_f, r_g, cross = remarks._gram(y, y), remarks._gram(x, x), remarks._gram(y, x)
    system = torch.kron(r_f, r_g)
    best = torch.linalg.solve(system, cross.flatten())
    least = best @ system @ best - 2 * best @ cross.flatten()
    assert float(-least) == pytest.approx(float(matrix_cost(x, y, remarks.V, ridge=0.0)), rel=1e-9)
    assert remarks._optimality(x, y)["whitened"] == pytest.approx(1, abs=1e-9)


PRIOR = {
    cost: {
        "nll": -1.0 + 0.1 * i, "nll with solved weights": -1.0 + 0.1 * i, "modes": 10,
        "nll of one Gaussian": 0.2, "norm": 1.0, "norm of another draw": 1.02, "entropy": -2.0,
        "gradient to w(c)": 1.0 if i < 2 else 1e-5,
    }
    for i, cost in enumerate(("svd", "scalar", "vector", "matrix"))
}  # fmt: skip


@pytest.mark.parametrize(
    ("cost", "key", "value", "failing"),
    [
        ("matrix", "modes", 8, [0]),
        ("vector", "nll", -0.2, [0]),
        ("scalar", "nll", -1.5, [1]),
        ("scalar", "nll with solved weights", -1.5, [2]),
        ("vector", "gradient to w(c)", 0.1, [3]),
        ("svd", "gradient to w(c)", 0.001, [3]),
        ("scalar", "norm", 1.6, [4]),
    ],
)
def test_claims_of_priors_can_fail(cost, key, value, failing):
    assert all(claim.holds for claim in prior.claims(rows_of(PRIOR, "cost")))
    changed = copy.deepcopy(PRIOR)
    changed[cost][key] = value
    found = [claim.holds for claim in prior.claims(rows_of(changed, "cost"))]
    assert [i for i, holds in enumerate(found) if not holds] == failing
