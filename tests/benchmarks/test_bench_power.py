"""The power benchmark runs, counts rejections, and knows its cases."""

import torch
from benchmarks.permutation import four_gaussians, run
from benchmarks.power import CASES, PUBLISHED, blobs, rejection_rates


def test_one_repetition_of_one_case():
    result = rejection_rates(1, ("blobs 10",), ("kermix svd", "kermix energy"))
    (row,) = result["rows"]
    assert row["case"] == "blobs 10"
    assert "n=m=90" in row["sizes"]
    assert set(row["rejected"]) == {"kermix svd", "kermix energy"}
    assert all(0 < p <= 1 for values in row["pvalues"].values() for p in values)


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
