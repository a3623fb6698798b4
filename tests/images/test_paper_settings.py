"""Settings that the paper needs: absolute variances, forms of the matrix cost, all priors."""

import numpy as np
import pytest
import torch

from internals import (
    FitSettings,
    GaussianPrior,
    HybridPrior,
    ImageTask,
    Split,
    Trainer,
    UniformPrior,
    build_image_model,
    build_model,
    build_trainer,
    sample_loss,
    toy,
)
from kermix import matrix_cost
from kermix.errors import OptionError


def rows(n=300):
    return toy("mixture10").sample(n, torch.Generator().manual_seed(0)).double()


def test_kernel_variance_is_in_the_units_of_the_data():
    """Distances divided by the scheduled variance are those of the data divided by the given."""
    data = rows() * torch.tensor([1.0, 30.0])
    model, variances = build_model(data, FitSettings(kernel_variance=0.2, variance_factors=(1,)))
    scaled = model.scaler.scaled(data).double()
    for share in (0.0, 0.5, 1.0):
        (now,) = variances.at(share)
        ours = torch.pdist(scaled).square() / now
        assert torch.allclose(ours, torch.pdist(data).square() / 0.2, rtol=1e-4, atol=1e-2)


def test_kernel_variance_excludes_a_schedule():
    for other in ({"variance": 0.1}, {"start_variance": 1.0}):
        with pytest.raises(OptionError, match="kernel_variance"):
            FitSettings(kernel_variance=0.1, **other)
    with pytest.raises(OptionError, match="kernel_variance"):
        FitSettings(model="codes", kernel_variance=0.1, variance=2.0)
    with pytest.raises(OptionError, match="above 0"):
        FitSettings(kernel_variance=-1.0)
    with pytest.raises(OptionError, match="batch of sets"):
        build_model(torch.rand(2, 30, 2), FitSettings(kernel_variance=0.1))


@pytest.mark.parametrize("form", ["trace", "data_fixed", "logdet"])
def test_the_form_of_the_matrix_cost_is_what_is_trained(form):
    x, y = torch.rand(2, 20, 2, generator=torch.Generator().manual_seed(1)).double()
    options = {} if form == "logdet" else {"normalized": True}
    expected = -matrix_cost(x, y, [0.1], form=form, log=True, **options)
    assert torch.allclose(sample_loss("matrix", x, y, [0.1], form=form), expected)
    settings = FitSettings(
        cost="matrix", form=form, model="generator", steps=3, components=16, batch_size=16
    )
    trainer = build_trainer(Split(rows(), rows()), settings, device="cpu")
    trainer.run()
    losses = [row["loss"] for row in trainer.history]
    settings = FitSettings(cost="matrix", model="generator", steps=3, components=16, batch_size=16)
    other = build_trainer(Split(rows(), rows()), settings, device="cpu")
    other.run()
    same = np.allclose(losses, [row["loss"] for row in other.history])
    assert same == (form == "trace")


def test_forms_belong_to_the_matrix_cost():
    for model in ("mixture", "codes"):
        with pytest.raises(OptionError, match="cost='matrix'"):
            FitSettings(model=model, cost="svd", form="trace")
        with pytest.raises(OptionError, match="form"):
            FitSettings(model=model, cost="matrix", form="determinant")


@pytest.mark.parametrize(
    ("options", "prior"),
    [
        ({}, GaussianPrior(32)),
        ({"prior": "uniform", "noise": 10}, UniformPrior(10)),
        ({"prior": "hybrid", "noise": 5}, HybridPrior(5, 32)),
        ({"prior": "hybrid", "noise": 5, "states": 7}, HybridPrior(5, 7)),
        ({"states": 7}, HybridPrior(32, 7)),  # only a hybrid prior has states
    ],
)
def test_images_have_all_priors(options, prior):
    settings = FitSettings(model="conv", spaces=("pixels",), width=8, **options)
    model = build_image_model((1, 8, 8), torch.ones(1), settings)
    assert model.prior == prior
    drawn = model.eval().sample(3, torch.Generator().manual_seed(0))
    assert drawn.images.shape == (3, 1, 8, 8)


def test_a_uniform_prior_has_no_states():
    with pytest.raises(OptionError, match="hybrid"):
        FitSettings(model="codes", prior="uniform", states=3)


def test_kernel_variance_of_images_is_that_of_pixels():
    images = np.random.default_rng(0).integers(0, 255, (40, 1, 8, 8), dtype=np.uint8)
    settings = FitSettings(
        model="conv", spaces=("pixels",), width=8, steps=2, batch_size=10, debias=False,
        kernel_variance=0.03, variance_factors=(1.0,), cost="matrix", form="data_fixed",
    )  # fmt: skip
    trainer = Trainer(ImageTask(images, None, 1, settings), device="cpu")
    trainer.run()
    (view,) = trainer.task._prepared()
    x, y = torch.rand(2, 1, 6, 64, generator=torch.Generator().manual_seed(0)).double()
    for share in (0.0, 1.0):
        expected = -matrix_cost(x, y, 0.03, form="data_fixed", normalized=True, log=True)
        assert torch.allclose(view.loss("matrix", x, y, None, share), expected)
