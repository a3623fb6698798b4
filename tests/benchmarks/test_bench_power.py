"""The power benchmark runs, counts rejections, and knows its cases."""

import torch
from benchmarks.permutation import four_gaussians, run
from benchmarks.power import CASES, PUBLISHED, blobs, laplace_kernels, merged, rejection_rates


def test_one_repetition_of_one_case():
    result = rejection_rates(1, ("blobs 10",), ("kermix svd", "kermix energy"))
    (row,) = result["rows"]
    assert row["case"] == "blobs 10"
    assert "n=m=90" in row["sizes"]
    assert set(row["rejected"]) == {"kermix svd", "kermix energy"}
    assert all(0 < p <= 1 for values in row["pvalues"].values() for p in values)


def test_the_laplace_test_has_the_scales_of_the_gaussian_one():
    x, y = torch.randn(2, 40, 3, generator=torch.Generator().manual_seed(0))
    kernels = laplace_kernels(x, y)
    assert len(kernels) == 6
    result = rejection_rates(2, ("blobs null",), ("laplace mmd",))
    assert set(result["rows"][0]["rejected"]) == {"laplace mmd"}


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


def test_every_published_number_belongs_to_a_case():
    assert set(PUBLISHED) <= set(CASES)


def test_the_samples_are_what_the_protocol_says():
    generator = torch.Generator().manual_seed(0)
    points = four_gaussians(4000, 0.5, generator)
    fourth = points[(points < 0).all(1)]
    assert abs(fourth.std(0).mean() - 0.5) < 0.03
    tilted = blobs(4000, True, generator)
    first = tilted[(tilted < 0.5).all(1)]
    assert torch.corrcoef(first.T)[0, 1] < -0.4


def test_speed_compares_each_test_with_a_loop():
    rows = run(quick=True)["permutation_test"]
    assert [row["test"] for row in rows] == ["kermix svd", "kermix svd, exact", "kermix mmd"]
    for row in rows:
        assert row["loop_ratio"] == row["loop_s"] / row["seconds"] > 0
