"""Sketches and bad input: a named error that says what to do, and the sketch unchanged."""

import json
import random

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import kermix as km
from cases import COSTS, LOSSES, normal, ridged, uniform
from internals import NystromFeatures, write_checksummed
from kermix import errors
from sketch_cases import assert_same, sums

X, Y = normal(40, 2, seed=1), normal(30, 2, seed=2)
FEATURES = km.nystrom_features(X, 0.1, rank=8)
MAPS = {
    "nystrom": FEATURES,
    "median": km.nystrom_features(X.float(), "median", rank=4),
    "several": km.nystrom_features(X, [0.1, 1 / 3], rank=4),
    "undivided": km.nystrom_features(X, km.GaussianKernel(0.1, per_dimension=False), rank=4),
    "fourier": km.fourier_features(2, 0.1, rank=6),
}
OTHERS = {
    "landmarks": km.nystrom_features(Y, 0.1, rank=8),
    "rank": km.nystrom_features(X, 0.1, rank=7),
    "kernel": NystromFeatures(FEATURES.landmarks, km.GaussianKernel(0.2)),
    "scaling": NystromFeatures(FEATURES.landmarks, km.GaussianKernel(0.1, per_dimension=False)),
    "kind": km.fourier_features(2, 0.1, rank=8),
}
every_cost = pytest.mark.parametrize("name", COSTS)


def sketch():
    return km.Sketch(FEATURES).update(X)


def with_nan(tensor):
    tensor = tensor.clone()
    tensor[3, 1] = torch.nan
    return tensor


BATCHES = {
    "NaN": (with_nan(Y), None, errors.SampleError),
    "infinite": (Y / 0, None, errors.SampleError),
    "empty": (Y[:0], None, errors.SampleError),
    "integers": (Y.long(), None, errors.SampleError),
    "array": (Y.numpy(), None, errors.SampleError),
    "other dimension": (normal(5, 3), None, errors.ShapeError),
    "a point": (Y[0], None, errors.ShapeError),
    "batches": (Y[None], None, errors.ShapeError),
    "other device": (Y.to("meta"), None, errors.DeviceError),
    "negative weight": (Y, -uniform(30), errors.WeightError),
    "NaN weight": (Y, uniform(30) * torch.nan, errors.WeightError),
    "too few weights": (Y, uniform(29), errors.WeightError),
    "integer weights": (Y, uniform(30).long(), errors.WeightError),
    "weights elsewhere": (Y, uniform(30).to("meta"), errors.DeviceError),
}


@pytest.mark.parametrize("case", BATCHES)
def test_a_bad_batch_leaves_the_sketch_unchanged(case):
    batch, weights, error = BATCHES[case]
    updated = sketch()
    with pytest.raises(error, match="weights" if weights is not None else "batch"):
        updated.update(batch, weights)
    assert all(a.equal(b) for a, b in zip(sums(updated), sums(sketch()), strict=True))


@pytest.mark.parametrize("shape", [(1, 30), (3, 30)])
def test_batches_of_weights(shape):
    updated = sketch()
    with pytest.raises(errors.WeightError, match="weights"):
        updated.update(Y, uniform(*shape))


def test_a_bad_row_far_down_leaves_the_sketch_unchanged(monkeypatch):
    monkeypatch.setattr("internals.accumulation_module.ROWS_AT_A_TIME", 5)
    updated = sketch()
    with pytest.raises(errors.SampleError, match="batch"):
        updated.update(torch.cat([Y, with_nan(Y)]))
    assert_same(updated, sketch())


@pytest.mark.parametrize("other", OTHERS)
def test_different_maps_are_refused(other):
    a, b = sketch(), km.Sketch(OTHERS[other]).update(X)
    for combine in (lambda: a + b, lambda: a.merge(b), lambda: b + a):
        with pytest.raises(errors.SketchError, match="feature map"):
            combine()
    for cost in COSTS.values():
        with pytest.raises(errors.SketchError, match="feature map"):
            cost(a, b)
    assert_same(a, sketch())


def test_equal_maps_are_accepted():
    same = NystromFeatures(FEATURES.landmarks.clone(), km.GaussianKernel(0.1))
    assert_same(sketch() + km.Sketch(same).update(Y), sketch().update(Y))


@pytest.mark.parametrize("other", [3, None, "sketch", X])
def test_only_sketches_are_added(other):
    with pytest.raises(errors.SketchError):
        sketch().merge(other)


@every_cost
def test_arguments_of_costs(name):
    cost = COSTS[name]
    with pytest.raises(errors.OptionError, match=r"\bv\b"):
        cost(sketch(), Y, 0.1)
    with pytest.raises(errors.OptionError, match=r"\bv\b"):
        cost(X, Y)
    with pytest.raises(errors.OptionError, match="weights_x"):
        cost(sketch(), Y, weights_x=uniform(40))
    with pytest.raises(errors.SketchError, match="empty"):
        cost(km.Sketch(FEATURES), sketch())
    bad = {
        errors.ShapeError: [normal(5, 3), Y[None], Y[0]],
        errors.SampleError: [with_nan(Y), Y.long(), Y[:0]],
        errors.DeviceError: [Y.to("meta")],
    }
    for error, values in bad.items():
        for value in values:
            with pytest.raises(error, match=r"\by\b"):
                cost(sketch(), value)
            with pytest.raises(error, match=r"\bx\b"):
                cost(value, sketch())
    with pytest.raises(errors.WeightError, match="weights_y"):
        cost(sketch(), Y, weights_y=uniform(29))


@pytest.mark.parametrize("bad", [-1e-6, torch.nan, torch.inf])
@pytest.mark.parametrize("name", ["vector", "trace"])
def test_ridge_beside_a_sketch(name, bad):
    with pytest.raises(errors.OptionError, match="ridge"):
        COSTS[name](sketch(), Y, ridge=bad)


@pytest.mark.parametrize("bad", [{"rank": 0}, {"rank": -1}, {"tolerance": -1.0}])
def test_options_of_the_sketch(bad):
    with pytest.raises(errors.OptionError, match=next(iter(bad))):
        km.svd_cost(X, Y, 0.1, method="sketch", **bad)


def test_an_empty_sketch():
    empty = km.Sketch(FEATURES)
    assert empty.count == 0
    with pytest.raises(errors.SketchError, match="empty"):
        _ = empty.moments
    with pytest.raises(errors.SketchError, match="empty"):
        _ = empty.mean_residual
    assert_same(empty + sketch(), sketch())


@pytest.mark.parametrize("name", LOSSES)
def test_losses_take_sketches(name):
    loss = LOSSES[name](**ridged(name, 1e-3))
    found = loss(sketch(), Y.clone().requires_grad_())
    found.backward()
    both = loss(sketch(), km.Sketch(FEATURES).update(Y))
    torch.testing.assert_close(found.detach(), both, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", MAPS)
def test_save_and_load(kind, tmp_path):
    saved = km.Sketch(MAPS[kind]).update(X, uniform(40, seed=3))
    path = saved.save(tmp_path / "data.sketch")
    assert [p.name for p in tmp_path.iterdir()] == ["data.sketch"], "no temporary file is left"
    loaded = km.Sketch.load(str(path))
    assert all(a.equal(b) for a, b in zip(sums(loaded), sums(saved), strict=True))
    assert repr(loaded) == repr(saved)
    assert_same(loaded + saved, saved + saved)
    assert km.scalar_cost(loaded, Y).equal(km.scalar_cost(saved, Y))
    saved.update(Y).save(path)
    assert km.Sketch.load(path).count == 70, "the older file is replaced"


def header_of(path):
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["kermix"])["content"]


def rewritten(path, change):
    """The file with what a function makes of it, and a checksum of that."""
    header, tensors = header_of(path), load_file(path)
    change(header, tensors)
    write_checksummed(path, tensors, json.dumps(header), "")


def cut(share):
    def write(path):
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * share)])

    return write


def changed(change):
    return lambda path: rewritten(path, change)


def with_metadata(metadata):
    return lambda path: save_file({"a": torch.ones(2)}, path, metadata=metadata)


DAMAGE = {
    "missing": lambda path: path.unlink(),
    "folder": lambda path: (path.unlink(), path.mkdir()),
    "empty": cut(0),
    "cut in the header": cut(0.05),
    "cut": cut(0.6),
    "one byte short": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "random": lambda path: path.write_bytes(bytes(range(256)) * 8),
    "foreign": with_metadata(None),
    "foreign header": with_metadata({"kermix": "{}"}),
    "not JSON": with_metadata({"kermix": "{"}),
    "version": changed(lambda h, t: h.update(version=4)),
    "without a checksum": lambda path: save_file(
        load_file(path), path, metadata={"kermix": json.dumps(header_of(path))}
    ),
    "no version": changed(lambda h, t: h.pop("version")),
    "spread": changed(lambda h, t: t.update(center=torch.ones(2), spread=torch.ones(2))),
    "other apart": changed(lambda h, t: t.update(apart_first=torch.ones(3).double())),
    "features": changed(lambda h, t: h.update(features="wavelets")),
    "variance": changed(lambda h, t: h.update(variances=[0.2])),
    "negative variance": changed(lambda h, t: h.update(variances=[-0.2])),
    "scaling": changed(lambda h, t: h.update(per_dimension=False)),
    "count": changed(lambda h, t: h.update(count="many")),
    "fingerprint": changed(lambda h, t: h.pop("fingerprint")),
    "no count": changed(lambda h, t: h.pop("count")),
    "parameters": changed(lambda h, t: t["parameters"].add_(1e-6)),
    "NaN parameters": changed(lambda h, t: t["parameters"].mul_(torch.nan)),
    "no parameters": changed(lambda h, t: t.pop("parameters")),
    "other shape": changed(lambda h, t: t.update(_first=torch.ones(3).double())),
    "no moments": changed(lambda h, t: t.pop("_second")),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files(damage, tmp_path):
    path = sketch().save(tmp_path / "data.sketch")
    DAMAGE[damage](path)
    with pytest.raises(errors.SketchError, match=r"data\.sketch") as refused:
        km.Sketch.load(path)
    assert str(refused.value).removeprefix(str(path)).count("damaged") <= 1


@pytest.mark.parametrize("header", ["[]", "3", "null"])
def test_a_header_that_is_no_object(header, tmp_path):
    save_file({"a": torch.ones(2)}, tmp_path / "data.sketch", metadata={"kermix": header})
    with pytest.raises(errors.SketchError, match=r"data\.sketch"):
        km.Sketch.load(tmp_path / "data.sketch")


def flipped(path, bit):
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_any_flipped_bit_is_refused_in_one_sentence(tmp_path):
    path = sketch().save(tmp_path / "data.sketch")
    bits = range(8 * path.stat().st_size)
    for bit in [*bits[:64], *random.Random(0).sample(bits, 500), *bits[-64:]]:
        flipped(path, bit)
        with pytest.raises(errors.SketchError, match=r"data\.sketch: damaged") as refused:
            km.Sketch.load(path)
        assert str(refused.value).removeprefix(str(path)).count("damaged") == 1
        flipped(path, bit)
    assert_same(km.Sketch.load(path), sketch())
