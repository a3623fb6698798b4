"""Muon: that of PyTorch, number for number, also where PyTorch has none."""

import pytest
import torch
from typer.testing import CliRunner

from internals import (
    ClassifierTask,
    Muon,
    ProductSettings,
    Trainer,
    app,
    orthogonal_factor,
    suited_settings,
)

SHAPES = [(7, 7), (40, 9), (9, 40), (1, 6), (6, 1)]


@pytest.fixture
def without_muon(monkeypatch):
    """A PyTorch as old as 2.4."""
    monkeypatch.delattr(torch.optim, "Muon", raising=False)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="came with PyTorch 2.9")
def test_steps_are_those_of_torch():
    options = {"lr": 0.02, "weight_decay": 0.3, "momentum": 0.9}
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=generator) for shape in SHAPES]
    mine, theirs = ([torch.nn.Parameter(p.clone()) for p in start] for _ in range(2))
    unused = torch.nn.Parameter(torch.ones(2, 2))  # it has no gradient
    optimizers = (
        Muon([*mine, unused], **options),
        torch.optim.Muon([*theirs, unused], adjust_lr_fn="match_rms_adamw", **options),
    )
    for step in range(4):
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = 0.02 / (step + 1)
        for own, other in zip(mine, theirs, strict=True):
            own.grad = torch.randn(own.shape, generator=generator) * 10.0 ** (2 * step - 4)
            other.grad = own.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
        for own, other in zip(mine, theirs, strict=True):
            assert own.equal(other)
    states = [o.state_dict()["state"] for o in optimizers]
    assert states[0].keys() == states[1].keys()
    for index, values in states[0].items():
        assert values["momentum_buffer"].equal(states[1][index]["momentum_buffer"])


@pytest.mark.parametrize("shape", SHAPES)
def test_singular_values_become_about_one(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    found = orthogonal_factor(1e-3 * matrix).float()
    values = torch.linalg.svdvals(found)
    assert values.shape == torch.linalg.svdvals(matrix).shape
    assert bool((values > 0.2).all())
    assert bool((values < 1.3).all())
    u, _, vh = torch.linalg.svd(matrix, full_matrices=False)
    assert float((found * (u @ vh)).sum()) > 0.6 * min(shape)


def test_no_gradient_no_direction():
    assert not bool(orthogonal_factor(torch.zeros(3, 4)).any())


def test_presets_need_no_newer_torch(without_muon):
    for source in ("mnist", "cifar10"):
        for patch in (1, 3, 5, 7):
            settings = suited_settings(source, "gaussian-product", patch, 60_000, 28)
            assert settings.optimizer == "muon"


def test_training_needs_no_newer_torch(without_muon):
    from internals import load_labelled

    train, test = (load_labelled("digits", part) for part in ("train", "test"))
    settings = ProductSettings(optimizer="muon", width=8, depth=2, output_width=16, batch_size=64)
    trainer = Trainer(ClassifierTask(train, test, settings), device="cpu")
    before = trainer.model.layers[1].weight.detach().clone()
    assert not trainer.run(should_stop=lambda: True)
    assert not before.equal(trainer.model.layers[1].weight)


def test_the_command_reaches_the_data(without_muon, tmp_path):
    result = CliRunner().invoke(app, ["classify", "mnist", "--data-root", str(tmp_path / "no")])
    assert "optimizer" not in str(result.exception)
    assert str(tmp_path / "no") in str(result.exception)
