"""Numbers that straight lines through others foretell: found, solved for, and kept in samples."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.integrate import trapezoid
from scipy.stats import multivariate_normal

import kermix as km
from internals import (
    FINEST,
    RIDGE,
    WIDEST,
    MonotoneMap,
    StraightLines,
    TableLayout,
    TableNetwork,
    find_lines,
    lines_of_all,
)
from internals import lines_of as of_rows
from kermix import Schema


def invoices(rows=600, seed=0):
    """Two amounts, their total, and a number apart."""
    rng = np.random.default_rng(seed)
    net, tax = rng.lognormal(4, 0.8, rows).round(2), rng.gamma(2, 20, rows).round(2)
    return pd.DataFrame(
        {"net": net, "tax": tax, "total": (net + tax).round(2), "apart": rng.normal(size=rows)}
    )


def lines_of(table, **options):
    schema = Schema.infer(table)
    return schema, find_lines(schema, schema.encode(table), **options)


def test_sums_are_found():
    _, found = lines_of(invoices())
    assert found.names == ("net", "tax", "total", "apart")
    assert found.followed.tolist() == [True, True, True, False]


@pytest.mark.parametrize(("noise", "told"), [(0.01, True), (0.05, False), (0.6, False)])
def test_a_line_must_tell_much(noise, told):
    rng = np.random.default_rng(1)
    a = rng.normal(size=800)
    _, found = lines_of({"a": a, "b": a + noise * rng.normal(size=800)})
    assert (found is not None) == told


def two_regimes(rows=2000, seed=0):
    """A number that rises with another in half of the rows, and falls with it in the others."""
    rng = np.random.default_rng(seed)
    kind = rng.random(rows) < 0.5
    x = rng.normal(size=(rows, 2)) + np.where(kind, 4.0, -4.0)[:, None]
    return pd.DataFrame({
        "x": x[:, 0], "y": x[:, 1],
        "z": np.where(kind, 1, -1) * x.sum(1) + 0.01 * rng.normal(size=rows),
    })  # fmt: skip


def test_regimes_are_found_where_each_has_lines_of_its_own():
    _, found = lines_of(two_regimes())
    assert len(found.shares) == 2
    assert found.followed[2]
    assert np.sort(found.shares) == pytest.approx([0.5, 0.5], abs=0.05)
    _, alone = lines_of(invoices())
    assert len(alone.shares) == 1


@pytest.mark.parametrize(("numbers", "found"), [(64, True), (65, False)])
def test_tables_of_many_numbers_have_no_lines(numbers, found):
    """Solving takes longer than the network there."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(200, numbers))
    table[:, 0] = table[:, 1] + table[:, 2]
    _, lines = lines_of({f"x{k}": column for k, column in enumerate(table.T)}, rows_of_each=1)
    assert (lines is not None) == found


def test_regimes_expect_what_their_mixture_does():
    """Means and deviations of a Gaussian mixture given some columns, by numerical integration."""
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(500, 3)) @ rng.normal(size=(3, 3))
    lines, maps = lines_of_all(tuple("abc"), rows), normal_maps(rows)
    covariances = np.stack([np.cov(rng.normal(size=(3, 9))) for _ in range(2)])
    lines = replace(
        lines, shares=np.array([0.3, 0.7]), correlation=covariances,
        centre=lines.centre[0] + rng.normal(size=(2, 3)) * lines.size,
    )  # fmt: skip
    solver = StraightLines(lines, maps)
    for n, seen in enumerate([[True, False, True], [False, False, True], [False] * 3]):
        own, j = np.array(seen), 1
        scores = np.array([maps[k](rows[n, k]) for k in range(3)])
        mean, variance = solver._solved(torch.from_numpy(rows[n : n + 1]), torch.tensor([seen]))
        x = (rows[n] - lines.centre) / lines.size
        grid = np.linspace(-12, 12, 20_001)
        density = np.zeros_like(grid)
        for r in range(2):
            shift = (lines.centre[r, j] - lines.centre[0, j]) / lines.size[j]
            points = np.tile(x[r, own], (len(grid), 1))
            points = np.column_stack([points, grid - shift])
            part = np.ix_([*np.flatnonzero(own), j], [*np.flatnonzero(own), j])
            normal = multivariate_normal(cov=covariances[r][part])
            density += lines.shares[r] * normal.pdf(points)
        density /= density.sum()
        wanted = (density * grid).sum()
        assert mean[0, j] == pytest.approx(wanted, abs=1e-6)
        assert variance[0, j] == pytest.approx((density * (grid - wanted) ** 2).sum(), rel=1e-5)
        assert (
            solver(torch.from_numpy(scores[None]), torch.tensor([seen])).centres.isfinite().all()
        )


def test_a_slip_is_improbable_and_not_impossible():
    table = invoices(400)
    table.loc[7, "total"] += 500
    model = km.TableModel(width=16, blocks=1, steps=30, device="cpu", random_state=0).fit(table)
    logs = model.score_samples(table)
    assert np.isfinite(logs).all()
    assert logs[7] > logs.mean() - 60


def test_sums_stay_within_the_range_and_are_kept():
    a, b = np.random.default_rng(0).normal(size=(2, 400))
    table = pd.DataFrame({"a": a, "b": b, "c": a + b})
    model = km.TableModel(width=16, blocks=1, steps=60, device="cpu", random_state=0).fit(table)
    drawn = model.sample(2000, random_state=1)
    assert (drawn >= table.min()).all(axis=None)
    assert (drawn <= table.max()).all(axis=None)
    assert np.abs(drawn["a"] + drawn["b"] - drawn["c"]).max() < 0.1


@pytest.mark.parametrize(
    "table",
    [
        invoices(60),  # too few rows
        {"a": [1.5, 2.5, 3.25] * 40, "b": ["x", "y", "z"] * 40},  # one number
        pd.DataFrame(np.random.default_rng(0).normal(size=(300, 4)), columns=list("abcd")),
        pd.DataFrame(np.random.default_rng(0).normal(size=(40, 65)).repeat(60, 0)),
    ],
)
def test_tables_without_lines(table):
    assert lines_of(table)[1] is None


def odd_column(kind, rows):
    rng = np.random.default_rng(1)
    if kind == "nearly constant":
        return np.where(np.arange(rows) % 400 == 3, rng.normal(size=rows), 0.0)
    if kind == "constant in every other row":
        return np.where(np.arange(rows) % 2 == 1, rng.normal(size=rows), 0.0)
    if kind == "mostly gaps":
        return np.where(np.arange(rows) % 100 == 3, rng.normal(size=rows), np.nan)
    return rng.choice([-1e308, 1e308], rows) * rng.random(rows)


@pytest.mark.parametrize(
    "kind", ["nearly constant", "constant in every other row", "mostly gaps", "very wide"]
)
def test_one_odd_column_does_not_hide_a_sum(kind):
    _, found = lines_of(invoices(1200).assign(odd=odd_column(kind, 1200)))
    assert found is not None
    assert found.followed[:4].tolist() == [True, True, True, False]
    assert np.isfinite(found.correlation).all()


@pytest.mark.parametrize("far", [30.0, 1e3, 1e6])
@pytest.mark.parametrize("regimes", [1, 2])
def test_scores_far_away_have_finite_answers(regimes, far):
    """Seen before: NaN where a value is infinite, or its square in every regime."""
    table = invoices(300)
    table.loc[5, "net"] = 1e30
    rows = table.to_numpy()
    solver = StraightLines(of_rows(tuple("abcd"), rows, regimes), normal_maps(rows))
    assert len(solver.shares) == regimes
    scores = torch.zeros(4, 4, dtype=torch.float64)
    scores[:, 0] = torch.tensor([far, -far, far, 0.0])
    seen = torch.tensor([[True, False, True, False], [True] * 4, [False] * 4, [True] * 4])
    for part in solver(scores, seen):
        assert part.isfinite().all()


def test_rows_with_gaps_are_left_out():
    table = invoices(2000)
    table.loc[::3, "net"] = np.nan
    schema, found = lines_of(table)
    whole = find_lines(schema, schema.encode(table.dropna()))
    assert np.allclose(found.correlation, whole.correlation, atol=1e-12)
    assert found.followed.tolist() == [True, True, True, False]


def normal_maps(rows):
    return tuple(MonotoneMap.of(column) for column in rows.T)


def test_expected_values_are_those_of_least_squares():
    rng = np.random.default_rng(2)
    rows = np.exp(rng.normal(size=(3000, 5)) @ rng.normal(size=(5, 5)) / 3)
    names = tuple("abcde")
    lines, maps = lines_of_all(names, rows), normal_maps(rows)
    scores = np.stack([own(rows[:, k]) for k, own in enumerate(maps)], 1)
    seen = rng.random(rows.shape) < 0.5
    solver = StraightLines(lines, maps)
    centres, scales = solver(torch.from_numpy(scores), torch.from_numpy(seen))
    for n in range(40):
        own = seen[n]
        for j in range(5):
            columns = np.column_stack([np.ones(len(rows)), rows[:, own]])
            target = rows[:, j]
            factors, *_ = np.linalg.lstsq(columns, target, rcond=None)
            m = np.r_[1.0, rows[n, own]] @ factors
            s = np.std(target - columns @ factors)
            s = max(s, np.sqrt(RIDGE / 10) * target.std())
            assert centres[n, j] == pytest.approx(np.clip(maps[j](m), -10, 10), abs=2e-3)
            ends = maps[j](np.array([m - s, m + s]))
            width = np.clip((ends[1] - ends[0]) / 2, FINEST, WIDEST)
            if not own[j]:
                assert scales[n, j] == pytest.approx(width, rel=5e-3)


def test_rows_that_see_the_same_are_solved_at_once():
    rows = invoices().to_numpy()
    lines, maps = of_rows(tuple("abcd"), rows), normal_maps(rows)
    solver = StraightLines(lines, maps)
    scores = torch.randn(300, 4, dtype=torch.float64)
    seen = torch.tensor([[True, False, True, False]]).expand(300, 4)
    one_by_one = solver(scores, seen)
    solver.eval()
    for a, b in zip(solver(scores, seen), one_by_one, strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    assert [part.shape for part in solver(scores[:0], seen[:0])] == [(0, 4), (0, 4)]


@pytest.mark.parametrize("rows", [1, 2, 15, 17, 16 * 16, 16 * 17 + 1])
def test_rows_of_as_many_numbers_are_solved_together(rows):
    """In any order, with none or all numbers seen, each row has the answer it has alone."""
    generator = torch.Generator().manual_seed(rows)
    table = invoices(300).to_numpy()
    solver = StraightLines(of_rows(tuple("abcd"), table), normal_maps(table))
    scores = torch.randn(rows, 4, dtype=torch.float64, generator=generator)
    seen = torch.rand(rows, 4, generator=generator) < torch.rand(rows, 1, generator=generator)
    seen[0], seen[-1] = True, False
    together = solver(scores, seen)
    for n in range(0, rows, 7):
        for a, b in zip(together, solver(scores[n : n + 1], seen[n : n + 1]), strict=True):
            torch.testing.assert_close(a[n : n + 1], b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("block", [16, 2 * 16, 10**6])
def test_blocks_of_rows_change_nothing(block):
    rows = invoices().to_numpy()
    lines, maps = of_rows(tuple("abcd"), rows), normal_maps(rows)
    solver = StraightLines(lines, maps)
    scores, seen = torch.randn(7, 4, dtype=torch.float64), torch.rand(7, 4) < 0.5
    expected = solver(scores, seen)
    in_blocks = StraightLines(lines, maps, solved_at_once=block)
    for a, b in zip(in_blocks(scores, seen), expected, strict=True):
        assert torch.allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e9])
def test_maps_are_those_of_columns(scale):
    rng = np.random.default_rng(3)
    rows = np.stack([rng.lognormal(0, 2, 900), rng.normal(5, 1, 900), rng.integers(0, 9, 900)], 1)
    rows = rows * scale
    maps = normal_maps(rows)
    several = StraightLines(lines_of_all(tuple("abc"), rows), maps).maps
    asked = np.concatenate([rows, rows.min(0)[None] - 3 * scale, rows.max(0)[None] + 9 * scale])
    scores = np.stack([own(asked[:, k]) for k, own in enumerate(maps)], 1)
    assert np.allclose(several(torch.from_numpy(asked)).numpy(), scores, rtol=1e-9, atol=1e-9)
    back = several.inverse(torch.from_numpy(scores)).numpy()
    own = np.stack([one.inverse(scores[:, k]) for k, one in enumerate(maps)], 1)
    assert np.allclose(back, own, rtol=1e-8, atol=1e-9 * scale)


@torch.no_grad()
def test_missing_and_unseen_numbers_tell_nothing():
    table = invoices()
    table.loc[::5, "net"] = np.nan
    schema = Schema.infer(table)
    encoded = schema.encode(table)
    lines = find_lines(schema, encoded)
    network = TableNetwork(TableLayout.of(schema, lines=lines), width=8, blocks=1).eval()
    codes, values = encoded.tensors()
    seen = torch.zeros(codes.shape, dtype=torch.bool)
    seen[:, 0] = True
    gone = torch.tensor(table["net"].isna().tolist())
    nothing = network._expected(codes, values, torch.zeros_like(seen))
    some = network._expected(codes, values, seen)
    assert torch.equal(some.centres[gone], nothing.centres[gone])
    assert not torch.allclose(some.centres[~gone, 2], nothing.centres[~gone, 2])
    assert torch.equal(nothing.centres[:, 3], torch.zeros(len(table)))
    assert torch.equal(nothing.scales[:, 3], torch.ones(len(table)))


@pytest.fixture(scope="module")
def model():
    return km.TableModel(width=16, blocks=1, steps=100, random_state=0).fit(invoices(800))


def test_samples_keep_a_sum(model):
    drawn = model.sample(500, random_state=1)
    off = (drawn["net"] + drawn["tax"] - drawn["total"]).abs()
    assert off.median() < 0.05
    assert (off < 0.5).mean() > 0.95


def test_a_sum_is_foretold(model):
    given = invoices(30, seed=5).drop(columns="total")
    found = model.conditional("total", given)
    total = given["net"] + given["tax"]
    assert np.median(np.abs(found.quantile(0.5) - total)) < 0.05
    assert (found.cdf(total + 2) - found.cdf(total - 2)).min() > 0.9


def test_a_density_relative_to_lines_is_one_in_all(model):
    given = invoices(1, seed=6).drop(columns="total")
    middle = float(given["net"].iloc[0] + given["tax"].iloc[0])
    totals = np.linspace(middle - 1, middle + 1, 4001) + 1e-4  # none is half a step away
    rows = pd.DataFrame({name: given[name].iloc[0] for name in given}, index=range(len(totals)))
    rows = rows.assign(total=totals)[["net", "tax", "total", "apart"]]
    encoded = model.schema_.encode(rows, extra=True)
    found = model.conditional("total", rows.drop(columns="total"))
    log_density = found.log_density(encoded.codes[:, 2], encoded.values[:, 2])
    inside = found.cdf(np.full(len(totals), totals[-1]))[0] - found.cdf(
        np.full(len(totals), totals[0])
    )[0]  # fmt: skip
    assert trapezoid(np.exp(log_density), totals) == pytest.approx(inside, abs=0.02)


def test_lines_are_saved(model, tmp_path):
    model.save(tmp_path / "model")
    again = km.TableModel.load(tmp_path / "model")
    rows = invoices(50, seed=3)
    assert np.array_equal(again.score_samples(rows), model.score_samples(rows))
