"""The power benchmark runs, counts rejections, and draws what the published code draws."""

import math

import pandas as pd
import torch
from benchmarks.permutation import four_gaussians, run
from benchmarks.power import (
    CASES,
    METHODS,
    begun_rows,
    installed,
    laplace_kernels,
    merged,
    one_hot,
    rejection_rates,
)
from benchmarks.power_development import development_problems
from benchmarks.power_problems import DRIFTS, PUBLISHED, blobs, perturbed_uniform, problems
from benchmarks.power_problems import _periods as periods

from internals import Layout


def test_one_repetition_of_one_case():
    (result,) = rejection_rates(1, ("blobs 10",), ("kermix svd", "kermix energy", "boosted trees"))
    (row,) = result["rows"]
    assert row["case"] == "blobs 10"
    assert "n=m=180" in row["sizes"]
    assert set(row["rejected"]) == {"kermix svd", "kermix energy", "boosted trees"}
    assert all(0 < p <= 1 for values in row["pvalues"].values() for p in values)


def test_categories_reach_every_method():
    (problem,) = (p for p in problems() if p.name == "categories")
    x, y = problem.draw(torch.Generator().manual_seed(0))
    for name in installed(METHODS):
        assert 0 < METHODS[name](x[:40], y[:40], problem.layout, 0) <= 1, name
    wide, _ = one_hot(x, y, Layout(4, 2.7, 4))
    assert wide.shape == (300, 16)
    assert (wide.sum(1) == 4).all()


def test_the_laplace_test_has_the_scales_of_the_gaussian_one():
    x, y = torch.randn(2, 40, 3, generator=torch.Generator().manual_seed(0))
    assert len(laplace_kernels(x, y)) == 6


def test_methods_are_added_to_a_row_of_the_same_samples():
    def row(method, repetitions, commit):
        numbers = {column: {method: 1.0} for column in ("rejected", "seconds", "pvalues")}
        return {"case": "c", "repetitions": repetitions, "commit": commit, **numbers}

    both = merged(row("old", 5, "a"), row("new", 5, "b"))
    assert both["rejected"] == {"old": 1.0, "new": 1.0}
    assert (both["commit"], both["commits"]) == ("b", {"old": "a"})
    again = merged(both, row("newer", 5, "c"))
    assert again["commits"] == {"old": "a", "new": "b"}
    assert set(merged(row("old", 4, "a"), row("new", 5, "b"))["rejected"]) == {"new"}


def test_a_run_is_resumed_where_it_was_cut():
    methods = ("kermix energy", "scipy KS of columns")
    *_, whole = rejection_rates(12, ("blobs 10",), methods)
    cut = next(rejection_rates(12, ("blobs 10",), methods))
    assert cut["rows"][0]["repetitions"] == 10
    rows = [{**row, "commit": "a"} for row in cut["rows"]]
    begun = begun_rows(rows, "a")
    begun["blobs 10"]["kermix energy"][3] = (0.5, 1.0)  # kept, as it was not measured again
    (rest,) = rejection_rates(12, ("blobs 10",), methods, begun=begun)
    (row,), (wanted,) = rest["rows"], whole["rows"]
    assert row["repetitions"] == 12
    columns = "scipy KS of columns"
    assert row["pvalues"][columns] == wanted["pvalues"][columns]
    assert row["pvalues"]["kermix energy"][3] == 0.5
    assert row["pvalues"]["kermix energy"][4:] == wanted["pvalues"]["kermix energy"][4:]
    assert begun_rows(rows, "b") == {}
    older = [{**rows[0], "commits": {"kermix energy": "z"}}]
    assert set(begun_rows(older, "a")["blobs 10"]) == {columns}


def test_settings_are_not_chosen_by_reported_problems():
    chosen_by = list(development_problems())
    assert not {p.name for p in chosen_by} & {p.name for p in problems()}
    assert not any(name.startswith("development") for name in CASES)
    for problem in chosen_by:
        x, y = problem.draw(torch.Generator().manual_seed(0))
        assert problem.sizes == f"n=m={len(x)}"
        assert len(x) == len(y)
        assert torch.isfinite(torch.cat([x, y])).all()


def test_periods_of_a_table(tmp_path):
    table = pd.DataFrame({
        "rownames": range(1400), "month": [3, 4] * 700, "time_hour": pd.Timestamp("2013-03-01"),
        "carrier": ["AA", "UA", "B6", "AA"] * 350, "delay": [float(k % 97) for k in range(1400)],
    })  # fmt: skip
    table.to_parquet(tmp_path / "flights.parquet")
    drift = DRIFTS["flights March v April"]
    before, after, layout = periods(tmp_path, drift)
    assert len(before) == len(after) == 700
    assert layout.columns == 2  # neither the month nor what tells it
    assert (before[:, -1] != after[:, -1]).any()


def test_every_published_number_belongs_to_a_case():
    with_files = {f"mnist Q{k}" for k in range(1, 6)}
    assert set(PUBLISHED) <= set(CASES) | with_files


def test_the_samples_are_what_the_protocol_says():
    generator = torch.Generator().manual_seed(0)
    points = four_gaussians(4000, 0.5, generator)
    fourth = points[(points < 0).all(1)]
    assert abs(fourth.std(0).mean() - 0.5) < 0.03
    tilted = blobs(20_000, True, generator)
    first = tilted[(tilted < 0.5).all(1)]
    matrix = torch.tensor([[0.03, -0.02], [-0.02, 0.03]])
    lower = torch.linalg.cholesky(matrix)
    # Rows are z @ L: the covariance is L'L and not LL'.
    torch.testing.assert_close(torch.cov(first.T), lower.T @ lower, atol=2e-3, rtol=0)


def test_perturbed_uniforms_have_their_bumps():
    rows = perturbed_uniform(100_000, 1, 0.4, torch.Generator().manual_seed(1))[:, 0]
    share = torch.histc(rows, 4, 0, 1) / len(rows)
    # Two bumps, up and down or down and up, on each half; each adds its integral to a quarter.
    places = torch.linspace(-1, 1, 20_003, dtype=torch.float64)[1:-1]
    bump = float(torch.exp(1 - 1 / (1 - places.square())).sum() * (2 / 20_002)) * 0.4 / 8
    assert ((share - 0.25).abs() - bump).abs().max() < 0.005
    assert math.isclose(float(share[:2].sum()), 0.5, abs_tol=0.01)
    flat = perturbed_uniform(4000, 2, 0.0, torch.Generator().manual_seed(1))
    assert flat.shape == (4000, 2)
    assert 0 <= flat.min() <= flat.max() <= 1


def test_speed_compares_each_test_with_a_loop():
    rows = run(quick=True)["permutation_test"]
    assert [row["test"] for row in rows] == ["kermix svd", "kermix svd, exact", "kermix mmd"]
    for row in rows:
        assert row["loop_ratio"] == row["loop_s"] / row["seconds"] > 0
