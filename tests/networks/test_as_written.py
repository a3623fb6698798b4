"""Eqs. 25 to 27 as written, in both readings of their norm."""

import pytest
import torch

from benchmarks import table1
from internals import (
    Augmentation,
    GaussianLayer,
    GaussianOutput,
    ProductSettings,
    as_written,
    build_classifier,
)
from kermix.errors import OptionError, ShapeError

SHAPE = (1, 6, 6)


def network(reading, patch=3):
    return build_classifier(as_written("digits", patch, reading), SHAPE, 10).double()


def images(count=7):
    return torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(0)).double()


def normalized(values, norm):
    mean, variance = values.mean((0, 1)), values.var((0, 1), unbiased=False)
    return (values - mean) / (variance + norm.eps).sqrt() * norm.weight + norm.bias


@pytest.mark.parametrize("reading", ["element", "vector"])
def test_scores_are_the_equations_written_out(reading):
    """By loops over positions and Gaussians, from pixels to scores."""
    model = network(reading).train()
    x = images()
    model.prepare((x * 255).byte(), torch.Generator().manual_seed(0))
    size = 4  # positions of a side
    y = torch.stack(
        [x[:, 0, i : i + 3, j : j + 3].flatten(1) for i in range(size) for j in range(size)], 1
    )
    for layer in model.layers:
        assert len(layer.anchors) == size**2  # W(t)
        rows = []
        for t in range(size**2):
            u = y[:, t] @ layer.weight.T
            if reading == "element":
                rows.append((-((u - layer.anchors[t]) ** 2)).exp())
            else:
                gaps = u[:, None] - layer.anchors[t][None]
                rows.append((-(gaps**2).sum(-1)).exp())
        y = normalized(torch.stack(rows, 1), layer.norm)
    total = torch.zeros(len(x), len(model.output.scores.weight[0])).double()
    for t in range(size**2):
        anchors = model.output.anchors[t]
        if reading == "element":
            total += (y[:, t] - anchors) ** 2
        else:
            total += ((y[:, t][:, None] - anchors[None]) ** 2).sum(-1)
    expected = (-total / size**2).exp() @ model.output.scores.weight.T
    assert torch.allclose(model(x), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("reading", ["element", "vector"])
def test_nothing_is_added_to_the_equations(reading):
    model = network(reading)
    assert model.output.norm is None
    assert model.output.log_alpha is None
    assert model.output.scores.bias is None
    model.prepare((images() * 255).byte(), torch.Generator().manual_seed(0))
    assert model.patch_map.equal(torch.eye(9).double())
    assert not model.patch_mean.any()
    settings = as_written("mnist", 3, reading)
    assert str(Augmentation(settings)) == "none"
    assert settings.positions == 1


@pytest.mark.parametrize("reading", ["element", "vector"])
def test_positions_do_not_meet_before_the_output(reading):
    model = network(reading).eval()
    x = images()
    changed = x.clone()
    changed[:, :, 0, 0] += 0.3  # in the first patch alone
    one, two = model.features(x), model.features(changed)
    assert one[:, 1:].equal(two[:, 1:])
    assert not one[:, 0].equal(two[:, 0])


def test_gradients_reach_vectors():
    torch.manual_seed(0)
    layer = GaussianLayer(3, 4, 5, inner=2).double()
    output = GaussianOutput(3, 5, 2, alpha="one", inputs=4).double()
    x = torch.randn(6, 5, 3, dtype=torch.float64)
    parameters = [layer.weight, layer.anchors, output.anchors]

    def scores(*_):
        return output(layer(x))

    assert torch.autograd.gradcheck(scores, parameters)


def test_some_positions_have_their_own_vectors():
    torch.manual_seed(0)
    layer = GaussianLayer(3, 4, 5, inner=2).eval()
    x = torch.randn(6, 5, 3)
    at = torch.tensor([4, 1])
    assert torch.allclose(layer(x[:, at], at), layer(x)[:, at])
    with pytest.raises(ShapeError, match="5"):
        layer(x[:, :3])


def test_readings_that_cannot_be_are_refused():
    with pytest.raises(OptionError, match="reading"):
        build_classifier(ProductSettings(reading="row"), SHAPE, 10)
    with pytest.raises(OptionError, match="data_anchors"):
        build_classifier(ProductSettings(reading="vector"), SHAPE, 10)
    with pytest.raises(OptionError, match="whitening"):
        build_classifier(ProductSettings(raw_pixels=True), SHAPE, 10)


def test_cells_are_trained_as_written(tmp_path):
    import json

    out = tmp_path / "written.json"
    table1.main([
        "--dataset", "digits", "--patch", "3", "--seeds", "1", "--device", "cpu",
        "--out", str(out), "--as-written", "element,vector", "--set", "epochs=1",
        "--set", "width=8", "--set", "output_width=8", "--set", "batch_size=256",
    ])  # fmt: skip
    records = json.loads(out.read_text())
    assert {r["variant"] for r in records} == {"as written, element", "as written, vector"}
    for record in records:
        assert record["augmentation"] == "none"
        assert record["settings"]["reading"] == record["variant"].rpartition(" ")[2]
        assert record["settings"]["width"] == 8
