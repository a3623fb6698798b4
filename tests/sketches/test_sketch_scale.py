"""The map from raw columns travels in the sketch: every use takes raw rows and scales them."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.autograd import grad
from torch.testing import assert_close

import kermix as km
from cases import BOUNDED, COSTS, LOSSES, normal, ridged
from internals import ColumnScale, DistributedLoss, NystromFeatures, fingerprint
from kermix import errors
from sketch_cases import assert_same

UNITS = torch.tensor([1.0, 1000.0, 1e-3], dtype=torch.float64)
OFFSETS = torch.tensor([0.0, 1e5, -1.0], dtype=torch.float64)
every_loss = pytest.mark.parametrize("name", LOSSES)


def raw(n, seed):
    return normal(n, 3, seed=seed) * UNITS + OFFSETS


def maps(seed=0):
    """A map that scales columns, and the same one for points that are scaled already."""
    scale = ColumnScale(OFFSETS, UNITS)
    plain = km.nystrom_features(normal(300, 3, seed=seed), 0.5, rank=40)
    return replace(plain, scale=scale), plain


@pytest.fixture
def files(tmp_path):
    for k in range(2):
        np.save(tmp_path / f"{k}.npy", raw(400, seed=k).numpy())
    return tmp_path


def test_raw_rows_beside_a_sketch_of_files(files):
    """Seen before: 0.0, with a certificate."""
    first = km.sketch_files(files / "0.npy", rank=60)
    rows = raw(400, seed=0)
    for pair in ((first, rows), (rows, first), (first, km.Sketch(first.feature_map).update(rows))):
        value, info = km.svd_cost(*pair, normalized=True, return_info=True)
        assert value > 1 - first.mean_residual - 1e-6
        assert (value - 1).abs() <= info.error_bound
    other = km.sketch_files(files / "1.npy", landmarks_from=first)
    updated = km.sketch_files(files / "0.npy", rank=60).update(raw(400, seed=1))
    assert_same(updated, first + other)
    assert_same(km.Sketch.load(first.save(files / "a.sketch")).update(raw(400, seed=1)), updated)


@pytest.mark.parametrize("name", COSTS)
def test_costs_are_those_of_scaled_points(name):
    scaling, plain = maps()
    x, y = raw(60, seed=1), raw(50, seed=2)
    a, b = scaling.scale(x), scaling.scale(y)
    truth = COSTS[name](km.Sketch(plain).update(a), b, **ridged(name, 1e-3))
    for pair in ((km.Sketch(scaling).update(x), y), (x, km.Sketch(scaling).update(y))):
        assert_close(COSTS[name](*pair, **ridged(name, 1e-3)), truth, rtol=1e-9, atol=1e-12)


@every_loss
def test_gradients_go_through_the_scale(name):
    scaling, plain = maps()
    x, y = raw(60, seed=1), raw(20, seed=2)
    leaf, scaled = y.requires_grad_(), scaling.scale(y).detach().requires_grad_()
    loss = LOSSES[name](**ridged(name, 1e-3))
    found = grad(loss(km.Sketch(scaling).update(x), leaf), leaf)[0]
    truth = grad(loss(km.Sketch(plain).update(scaling.scale(x)), scaled), scaled)[0] / UNITS
    assert truth.abs().max() > 0
    assert_close(found, truth, rtol=1e-8, atol=1e-14)
    mild = replace(plain, scale=ColumnScale(OFFSETS.clamp(-1, 1), torch.full_like(UNITS, 3.0)))
    assert torch.autograd.gradcheck(mild, normal(3, 3).requires_grad_())


@every_loss
def test_distributed_losses_scale_too(name):
    scaling, _ = maps()
    sketch, y = km.Sketch(scaling).update(raw(60, seed=1)), raw(20, seed=2)
    loss = LOSSES[name](**ridged(name, 1e-3))
    spread = DistributedLoss(loss)
    assert_close(spread(sketch, y), loss(sketch, y))
    given = DistributedLoss(loss, strategy="moments", features=scaling)
    assert_close(given(raw(60, seed=1), y), loss(sketch, y), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rows", [1, 255, 256, 257, 4095, 4096, 4097, 16383, 16384, 16385, 32769])
def test_blocks_of_rows(rows):
    """Over the edges of pieces (256 to 4096 rows) and blocks (16384), against all at once."""
    scaling, plain = maps()
    x = raw(rows, seed=rows)
    features = plain(scaling.scale(x))
    sketch = km.Sketch(scaling).update(x)
    assert_close(sketch.moments.second, features.mT @ features / rows, rtol=0, atol=1e-9)
    assert_close(sketch.moments.mean, features.mean(0), rtol=0, atol=1e-9)


def test_fourier_features_scale_too(tmp_path):
    scale = ColumnScale(OFFSETS, UNITS)
    plain = km.fourier_features(3, 0.5, 20)
    sketch = km.Sketch(replace(plain, scale=scale)).update(raw(50, seed=1))
    assert_same(sketch, km.Sketch(plain).update(scale(raw(50, seed=1))))
    loaded = km.Sketch.load(sketch.save(tmp_path / "a.sketch"))
    assert_same(loaded + sketch, sketch + sketch)
    assert_close(km.scalar_cost(loaded, raw(9, seed=2)), km.scalar_cost(sketch, raw(9, seed=2)))


def test_different_scales_are_refused_by_name():
    scaling, plain = maps()
    others = {
        "one of them not at all": plain,
        "column 1": replace(scaling, scale=ColumnScale(OFFSETS + torch.eye(3)[1], UNITS)),
        "column 2": replace(scaling, scale=ColumnScale(OFFSETS, UNITS * (1 + torch.eye(3)[2]))),
    }
    a = km.Sketch(scaling).update(raw(20, seed=1))
    assert len({fingerprint(m) for m in (scaling, *others.values())}) == 4
    for text, other in others.items():
        b = km.Sketch(other).update(raw(20, seed=1))
        for combine in (lambda b=b: a + b, lambda b=b: b + a, lambda b=b: km.svd_cost(a, b),
                        lambda b=b: km.compare(a, b)):  # fmt: skip
            with pytest.raises(errors.SketchError, match=f"scaled differently .*{text}"):
                combine()
    same = replace(plain, scale=ColumnScale(OFFSETS.clone(), UNITS.clone()))
    assert (a + km.Sketch(same).update(raw(9, seed=2))).count == 29


def test_bad_scales():
    one = torch.ones(3)
    with pytest.raises(errors.ShapeError, match="spread"):
        ColumnScale(one, one[:2])
    for bad in (0 * one, -one, one * torch.inf, one * torch.nan):
        with pytest.raises(errors.VarianceError, match="spread"):
            ColumnScale(one, bad)
    with pytest.raises(errors.ShapeError, match="3 columns"):
        NystromFeatures(normal(4, 2), km.GaussianKernel(0.1), ColumnScale(one, one))


def test_far_rows_in_small_units_stay_finite():
    scaling, _ = maps()
    tiny = replace(scaling, scale=ColumnScale(OFFSETS, UNITS * 1e-200))
    sketch = km.Sketch(tiny).update(torch.full((3, 3), 1e200, dtype=torch.float64))
    assert sketch.moments.residual == 1
    assert tiny(torch.full((3, 3), -1e250, dtype=torch.float64)).isfinite().all()


def test_a_map_is_pickled_with_its_scale():
    scaling, _ = maps()
    again = pickle.loads(pickle.dumps(scaling))
    assert fingerprint(again) == fingerprint(scaling)
    assert again(raw(5, seed=1)).equal(scaling(raw(5, seed=1)))
    assert again.chosen_from.equal(scaling.chosen_from)


def test_a_changed_scale_in_a_file_is_refused(tmp_path):
    from test_sketch_errors import rewritten

    scaling, _ = maps()
    path = km.Sketch(scaling).update(raw(9, seed=1)).save(tmp_path / "a.sketch")
    rewritten(path, lambda header, tensors: tensors["spread"].mul_(2))
    with pytest.raises(errors.SketchError, match=r"a\.sketch: damaged \(its feature map"):
        km.Sketch.load(path)


def test_bounded_costs_stay_in_range():
    scaling, _ = maps()
    sketch = km.Sketch(scaling).update(raw(60, seed=1))
    for name in BOUNDED:
        assert 0 <= COSTS[name](sketch, raw(20, seed=2), normalized=True) <= 1
