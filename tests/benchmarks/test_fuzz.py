"""The fuzz: 1,200 of its cases, its references, and that it sees what is broken."""

import signal
import warnings

import mpmath
import numpy as np
import pytest
import torch
from benchmarks.fuzz import costs, exact, mistakes, runner
from benchmarks.fuzz.case import Case, run_case
from benchmarks.fuzz.inputs import draw_pair
from benchmarks.fuzz.references import cost, gradients

import kermix as km

CASES = 600
PARTS = 2
NAMES = ("scalar", "vector", "trace", "data_fixed", "logdet", "svd")


@pytest.mark.parametrize("part", range(PARTS))
def test_random_calls_are_right(part):
    # A few more than asked for: slow kinds are left out.
    size = CASES * 21 // 20 // PARTS
    results = runner.run_chunk(part * size, (part + 1) * size, seed=0, slow=False)
    assert len(results) >= CASES // PARTS
    findings = [
        f"case {f['case']}: {f['function']}: {f['category']}: {f['what']} ({f['setting']})"
        for r in results
        for f in r["findings"]
    ]
    assert not findings, "\n".join(findings)


def _found(kind, numbers=range(30)):
    """Categories of what is found, one by one: those who look for one stop there."""
    return (f.category for n in numbers for f in run_case(Case(n), kind).findings)


@pytest.fixture
def tame(monkeypatch):
    """Inputs that no program computes wrongly, so that only what a test breaks is found."""

    def draw(case, **options):
        sizes = tuple(int(n) for n in case.rng.integers(2, 7, 2))
        plain = {"tame": True, "dtype": torch.float64, "sizes": sizes, "batches": False}
        pair = draw_pair(case, **{**options, **plain})
        pair.x, pair.y = pair.x[:, :2], pair.y[:, :2]
        return pair

    monkeypatch.setattr(costs, "draw_pair", draw)


@pytest.mark.parametrize("name", ["scalar", "vector", "matrix", "svd"])
def test_a_cost_that_is_right_passes(name, tame):
    assert set(_found(getattr(costs, f"{name}_cost"))) == set()


@pytest.mark.parametrize("name", ["scalar", "vector", "matrix", "svd"])
@pytest.mark.parametrize(
    ("broken", "category"),
    [
        (lambda v: v * 1.001, "wrong value"),
        (lambda v: v + 1e-7, "wrong value"),
        (lambda v: v * torch.nan, "not finite"),
        (lambda v: v.float(), "wrong type"),
        (lambda v: v[None], "wrong shape"),
        (lambda v: 1 + v.abs(), "outside [0, 1]"),
        (lambda v: torch.linalg.cholesky(-v[None, None]), "unnamed error"),
        (lambda v: warnings.warn("odd", RuntimeWarning, stacklevel=1) or v, "unnamed warning"),
        (lambda v: km.choose_variance(v * torch.nan), "refused"),
    ],
)
def test_a_broken_cost_is_found(name, broken, category, tame, monkeypatch):
    right = getattr(km, f"{name}_cost")

    def wrong(*args, **kwargs):
        return broken(right(*args, **kwargs))

    wrong.__name__ = f"{name}_cost"
    monkeypatch.setattr(km, f"{name}_cost", wrong)
    assert category in _found(getattr(costs, f"{name}_cost"))


def test_a_wrong_gradient_is_found(tame, monkeypatch):
    assert set(_found(costs.gradient_and_value, range(40))) == set()
    right = km.svd_cost

    def wrong(x, y, *args, **kwargs):
        value = right(x, y, *args, **kwargs)
        part = 1e-4 * y.sum() / (1 + y.detach().abs().sum())  # as large as what is allowed
        return value + 100 * (part - part.detach())

    wrong.__name__ = "svd_cost"
    monkeypatch.setattr(km, "svd_cost", wrong)
    assert set(_found(costs.gradient_and_value, range(40))) == {"wrong gradient"}


def test_bad_input_that_is_accepted_is_found(monkeypatch):
    monkeypatch.setattr(km, "svd_cost", lambda *args, **kwargs: torch.ones(()))
    assert "no error" in _found(mistakes.mistake, range(60))


@pytest.mark.parametrize("name", NAMES)
def test_both_references_agree(name):
    for number in range(8):
        case = Case(number, seed=1)
        pair = draw_pair(case, sizes=(4, 3), batches=False, dtype=torch.float64)
        normalized = name != "logdet" and case.chance(0.5)
        arguments = (*costs._item(pair, ()), normalized, 1e-3)
        reference = cost(name, *arguments)
        wanted = exact.log_cost(name, *arguments)
        assert reference.log == pytest.approx(
            wanted, rel=1e-11, abs=1e-11 + 1e-14 * reference.rounding()
        )


@pytest.mark.parametrize("name", NAMES)
def test_reference_gradients_are_differences_of_the_exact_cost(name):
    pair = draw_pair(Case(5, seed=2), sizes=(3, 3), batches=False, dtype=torch.float64, tame=True)
    x, y, kernel, a, b = costs._item(pair, ())
    ours = gradients(cost(name, x, y, kernel, a, b, name != "logdet", 1e-3), x, y)
    step = 1e-5 * float(np.sqrt(min(kernel.v_p)))
    for points, (ours_here, *_) in zip((x, y), ours, strict=True):
        there = []
        for sign in (1, -1):
            points[1, 0] += sign * step
            there.append(exact.log_cost(name, x, y, kernel, a, b, name != "logdet", 1e-3))
            points[1, 0] -= sign * step
        slope = (there[0] - there[1]) / (2 * step)
        assert ours_here[1, 0] == pytest.approx(slope, rel=1e-5, abs=1e-5)


def test_exact_densities_integrate_to_one():
    weights, means = np.array([1.0, 3.0]), np.array([[0.0], [2.0]])
    covariances = np.array([[[0.5]], [[0.1]]])

    def density(t):
        at = np.array([[float(t)]])
        return mpmath.exp(exact.log_density(weights, means, covariances, at)[0])

    assert float(mpmath.quad(density, [-6, 0, 1, 2, 3, 8])) == pytest.approx(1, abs=1e-6)


def test_a_case_can_be_replayed_alone():
    [chunk] = [r for r in runner.run_chunk(0, 60, seed=3, slow=False) if r["case"] == 57]
    twice = [runner.replay(57, seed=3) for _ in range(2)]
    assert twice[0].setting == twice[1].setting
    assert twice[0].report() == twice[1].report() == chunk["findings"]
    assert twice[0].setting != runner.replay(57, seed=4).setting


def test_the_tables_count_what_was_done():
    tables = runner.fuzz(100, processes=1, slow=False)
    [summary] = tables["fuzz"]
    assert 90 <= summary["cases"] <= 100 == summary["asked_for"]
    assert sum(row["calls"] for row in tables["functions"]) == summary["cases"]
    assert sum(row["findings"] for row in tables["functions"]) == summary["findings"]
    made = {row["check"]: row["made"] for row in tables["checks"]}
    assert min(made["wrong value"], made["not finite"], made["outside [0, 1]"]) > 10
    nothing = runner.fuzz(100, processes=1, limit_s=-1.0)
    assert nothing["fuzz"][0]["cases"] == 0


def test_an_alarm_of_someone_else_is_kept():
    before = signal.getitimer(signal.ITIMER_REAL)[0]
    handler = signal.getsignal(signal.SIGALRM)
    with runner._alarm(0.5):
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 0.5
    assert signal.getsignal(signal.SIGALRM) == handler
    assert signal.getitimer(signal.ITIMER_REAL)[0] == pytest.approx(before, abs=1)


def test_a_call_that_hangs_is_found(monkeypatch):
    def hang(case):
        case.function = "hang"
        while True:
            torch.zeros(1)

    kind = runner.Kind(hang, 1.0)
    monkeypatch.setattr(runner, "KINDS", {"hang": kind})
    monkeypatch.setattr(runner, "CASE_SECONDS", 1)
    [result] = runner.run_chunk(0, 1, seed=0, slow=True)
    assert [f["category"] for f in result["findings"]] == ["too slow"]
