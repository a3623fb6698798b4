"""The test of sketches: at its level for all sizes, and wherever landmarks come from."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import kermix as km
from cases import normal
from internals import FEWEST_ROWS, NystromFeatures, drift, mean_test, recognized, row_keys
from sketch_cases import assert_same

D, V = 10, 0.2
FEATURES = km.nystrom_features(normal(3000, D, seed=99), V, rank=60)


def sketch(points, features=FEATURES):
    return km.Sketch(features).update(points)


def heavy(n, d, generator):
    """A t distribution of two degrees of freedom: some rows have features of their own."""
    chi = torch.randn(n, 2, generator=generator, dtype=torch.float64).square().sum(1, True)
    return torch.randn(n, d, generator=generator, dtype=torch.float64) / (chi / 2).sqrt()


def level(pvalues):
    return sum(p <= 0.05 for p in pvalues) / len(pvalues)


@pytest.mark.parametrize(
    ("kind", "n", "m"),
    [("normal", 10, 10), ("normal", 10, 400), ("heavy", 10, 400), ("heavy", 25, 25),
     ("normal", 25, 1000), ("heavy", 25, 1000), ("heavy", 100, 100)],
)  # fmt: skip
def test_level(kind, n, m):
    """Ratios up to 40, more features than rows; 5 % within three standard errors."""
    generator = torch.Generator().manual_seed(n + m)
    draw = heavy if kind == "heavy" else (
        lambda n, d, g: torch.randn(n, d, generator=g, dtype=torch.float64))  # fmt: skip
    features = km.nystrom_features(draw(2000, 3, generator), 0.2, rank=50)
    pvalues = [
        mean_test(*(sketch(draw(k, 3, generator), features) for k in (n, m))).pvalue
        for _ in range(120)
    ]
    assert level(pvalues) <= 0.05 + 3 * (0.05 * 0.95 / 120) ** 0.5


def test_landmarks_of_a_small_file(tmp_path):
    """Seen before: p <= 0.05 in 77 % for these sizes."""
    pvalues, shifted = [], []
    for seed in range(60):
        rows = normal(1350, D, seed=seed)
        np.save(tmp_path / "a.npy", rows[:150].numpy())
        np.save(tmp_path / "b.npy", rows[150:].numpy())
        np.save(tmp_path / "c.npy", (rows[150:] + 0.4).numpy())
        first = km.sketch_files(tmp_path / "a.npy", variance=V, rank=48)
        b, c = (km.sketch_files(tmp_path / f"{k}.npy", landmarks_from=first) for k in "bc")
        assert first.apart.total == 75
        assert b.apart.total == c.apart.total == 0
        pvalues.append(mean_test(first, b).pvalue)
        shifted.append(mean_test(first, c).pvalue)
    assert level(pvalues) <= 0.05 + 3 * (0.05 * 0.95 / 60) ** 0.5
    assert level(shifted) > 0.5


def test_rows_that_chose_the_landmarks_are_left_out():
    rows = normal(200, D, seed=1)
    features = km.nystrom_features(rows[:80], V, rank=40)
    a, b = sketch(rows, features), sketch(normal(150, D, seed=2), features)
    found, truth = mean_test(a, b), mean_test(sketch(rows[80:], features), b)
    assert found.pvalue == pytest.approx(truth.pvalue, rel=1e-6)
    assert "80 and 0 rows" in found.note
    assert truth.note is None
    for part in (a, a + b, km.Sketch(features).update(rows[:50]).update(rows[50:])):
        assert part.apart.total == 80
    notes = drift([a, b], ["a", "b"]).notes
    assert any("80" in note for note in notes)
    assert any("80 and 0 rows" in note for note in km.compare(a, b).notes)


def test_no_pvalue_but_a_reason():
    rows = normal(60, D, seed=1)
    features = km.nystrom_features(rows, V, rank=40)
    other = sketch(normal(60, D, seed=2), features)
    for left in (0, FEWEST_ROWS - 1, FEWEST_ROWS):
        mine = sketch(torch.cat([rows, normal(left, D, seed=3)]) if left else rows, features)
        found = mean_test(mine, other)
        assert (found.pvalue is None) == (left < FEWEST_ROWS)
        assert found.mmd > 0
        if left < FEWEST_ROWS:
            assert f"only {left} rows" in found.note
            assert "--landmarks-from" in found.note
            assert found.note in " ".join(km.compare(mine, other).notes)
            assert drift([mine, other], ["a", "b"]).to_first[0].pvalue is None
    few = mean_test(sketch(rows[:9], FEATURES), sketch(rows, FEATURES))
    assert few.pvalue is None
    assert "9 rows" in few.note
    hand_made = NystromFeatures(features.landmarks, features.kernel)
    unknown = mean_test(sketch(rows, hand_made), sketch(rows, hand_made))
    assert unknown.pvalue is None
    assert "not known" in unknown.note
    mixed = sketch(rows, hand_made) + other
    assert mixed.apart is None
    assert mean_test(mixed, other).pvalue is None
    fixed = replace(hand_made, chosen_from=row_keys(rows[:0]))
    assert mean_test(sketch(rows, fixed), sketch(rows, fixed)).pvalue is not None


def test_landmarks_that_leave_nothing_out_may_come_from_anywhere():
    """Discrete rows: all are equal to candidates, and the features hold the whole kernel."""
    generator = torch.Generator().manual_seed(0)
    pvalues = []
    for _ in range(100):
        x, y = torch.randint(3, (2, 100, 2), generator=generator).double()
        features = km.nystrom_features(x, 0.5, rank=64)
        found = mean_test(sketch(x, features), sketch(y, features))
        assert found.note is None
        pvalues.append(found.pvalue)
    assert level(pvalues) <= 0.05 + 3 * (0.05 * 0.95 / 100) ** 0.5


def test_a_rule_for_the_variance_looks_at_all_points():
    x = normal(500, 2, seed=1)
    few = km.nystrom_features(x, 0.1, rank=4, candidates=50)
    assert sketch(x, few).apart.total == 50
    assert sketch(x, km.nystrom_features(x, "median", rank=4, candidates=50)).apart.total == 500
    assert sketch(x, km.fourier_features(2, 0.1, 8)).apart.total == 0


def test_what_is_apart_is_saved(tmp_path):
    rows = normal(100, D, seed=1)
    saved = sketch(rows, km.nystrom_features(rows[:30], V, rank=20))
    loaded = km.Sketch.load(saved.save(tmp_path / "a.sketch"))
    for a, b in zip(loaded.apart, saved.apart, strict=True):
        assert a.equal(b)
    assert loaded.update(rows[:30]).apart.total == 60
    assert_same(loaded, saved.update(rows[:30]))


@pytest.mark.parametrize("n", [1, 8191, 8192, 8193, 20_000])
@pytest.mark.parametrize("d", [1, 3, 40])
def test_rows_are_recognized_by_their_content(n, d):
    rows = normal(n, d, seed=n + d)
    keys = row_keys(rows[::7]).unique()
    found = recognized(keys, rows)
    assert set(range(0, n, 7)) <= set(found.tolist())
    assert len(found) <= -(-n // 7) + 2
    assert row_keys(rows[::7].flip(0).contiguous()).flip(0).equal(row_keys(rows)[::7])
    assert row_keys(rows.float()).equal(row_keys(rows.float().double()))
    assert not len(recognized(keys, rows[:0]))
    assert not len(recognized(keys[:0], rows))


def test_keys_of_discrete_rows_differ():
    """Whole numbers have few bits, and those at one end."""
    grid = torch.cartesian_prod(*[torch.arange(-20.0, 20.0)] * 3)
    keys = row_keys(grid)
    assert len(keys.unique()) >= len(grid) - 5
    assert row_keys(torch.tensor([[0.0], [-0.0]])).unique().numel() == 1
    assert (
        row_keys(torch.tensor([[1.0, 2.0]])).tolist()
        == row_keys(torch.tensor([[1.0, 2.0]], dtype=torch.float64)).tolist()
    )
