"""Details of the classifiers that a training survives without: rates, averages, starts, draws."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.testing import assert_close

from kermix.data.labelled import LabelledImages
from kermix.models import GaussianProduct
from kermix.models.gaussian_functions import gaussian
from kermix.models.product_classifier import GaussianProductClassifier
from kermix.training.augmentation import Augmentation
from kermix.training.classification import ClassifierTrainer
from kermix.training.classifier_settings import ClassifierSettings

SIDE = 6
TINY = ClassifierSettings(
    width=8, depth=2, output_width=12, epochs=2, batch=8, shift=0, evaluate_every=0
)


def start(seed=0):
    return torch.Generator().manual_seed(seed)


def labelled(count=48, name="random"):
    draw = np.random.default_rng(0)
    images = draw.integers(256, size=(count, 1, SIDE, SIDE), dtype=np.uint8)
    return LabelledImages(name, images, draw.integers(3, size=count), ("a", "b", "c"))


def trainer_of(data=None, **options):
    data = labelled() if data is None else data
    return ClassifierTrainer(data, None, replace(TINY, **options), device="cpu")


def parameters(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("warmup", [0.25, 0.5])
def test_the_rate_rises_for_the_share_that_was_asked_for(warmup):
    rates = []
    hook = register_optimizer_step_pre_hook(
        lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"])
    )
    try:
        trainer_of(warmup=warmup, rate=0.1, epochs=4).run()
    finally:
        hook.remove()
    assert len(rates) == 24
    top = round(24 * warmup)
    assert int(np.argmax(rates)) == top
    assert rates[top] == pytest.approx(0.1)
    assert rates[top // 2] == pytest.approx(0.05)
    middle = (top + 24) // 2
    assert rates[middle] == pytest.approx(0.05, rel=0.01)
    # One step before the end of a cosine that ends at a thousandth of the peak.
    last = 0.1 * (0.001 + 0.999 * 0.5 * (1 + np.cos(np.pi * (1 - 1 / (24 - top)))))
    assert rates[-1] == pytest.approx(last)


def test_weights_are_averaged_over_epochs():
    trainer = trainer_of(labelled(24), average=2.0, epochs=20)
    assert trainer.steps_per_epoch == 3
    own, averaged = [], []

    def look(step):
        if step > 58:
            own.append(parameters(trainer.model))
            averaged.append(parameters(trainer.final()))

    trainer.run(on_step=look)
    for name, before in averaged[0].items():
        # Late in a training the mean reaches back as many steps as two epochs have.
        assert_close(averaged[1][name], before + (own[1][name] - before) / 6)
        assert not torch.equal(averaged[1][name], own[1][name])


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_only_matrices_decay(optimizer):
    options = {"optimizer": optimizer, "rate": 0.1, "score_rate": 0.5}
    after = []
    for decay in (0.0, 4.0):
        trainer = trainer_of(weight_decay=decay, **options)
        first = parameters(trainer.model)
        trainer.run(should_stop=lambda: True)
        after.append(parameters(trainer.model))
    plain, decayed = after
    for name, p in first.items():
        share = 0.5 if name == "output.scores.weight" else 1.0
        decay = 4.0 if p.ndim > 1 else 0.0
        rate = 0.05 * 0.1 * share  # a rise begins at a twentieth
        assert_close(decayed[name], plain[name] - rate * decay * p, msg=f"{name} decays otherwise")


def test_averaged_weights_have_the_statistics_of_augmented_images():
    # The square covers all of the image: what is left is its mean colour, at any place.
    trainer = trainer_of(cutout=4 * SIDE)
    trainer.run()
    model, images = trainer.final(), torch.tensor(trainer.train.images)
    colours = Augmentation(cutout=4 * SIDE)(images, start())
    assert bool((colours == colours[:, :, :1, :1]).all())
    first = model.layers[0]
    with torch.no_grad():
        values = gaussian(model.patches(colours) @ first.weight.T, first.anchors)
    assert_close(first.norm.running_mean, values.mean((0, 1)))


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_the_history_has_the_smoothed_loss_and_the_share_of_right_classes(smoothing):
    trainer = trainer_of(batch=48, epochs=1, smoothing=smoothing)
    assert trainer.steps_per_epoch == 1
    labels = torch.tensor(trainer.train.labels)
    with torch.no_grad():
        scores = trainer.model.train()(torch.tensor(trainer.train.images))
    chances = scores.log_softmax(1)
    right = chances.gather(1, labels.unsqueeze(1)).mean()
    expected = -(1 - smoothing) * right - smoothing * chances.mean()
    trainer.run()
    (row,) = trainer.history
    assert row["loss"] == pytest.approx(float(expected), rel=1e-4)
    assert row["train_accuracy"] == pytest.approx(float((scores.argmax(1) == labels).sum()) / 48)


@pytest.mark.parametrize("residual", [False, True])
def test_layers_of_equal_width_add_to_their_input_if_asked_to(residual):
    network = GaussianProductClassifier(
        (1, SIDE, SIDE), 3, 3, width=8, depth=3, output_width=12, residual=residual,
        generator=start(),
    )  # fmt: skip
    patches = torch.randn(5, 16, 9, generator=start(1))
    network.train().patch_features(patches)  # statistics that are not those of the start
    network.eval()
    first, second, third = network.layers
    y = first(patches)
    y = y + second(y) if residual else second(y)
    assert_close(network.patch_features(patches), third(y))


def prepared(images, **options):
    network = GaussianProductClassifier(
        tuple(images.shape[1:]), 3, 3, width=64, depth=2, generator=start(), **options
    )
    network.prepare(images, start(1))
    return network


def test_the_first_anchors_are_values_of_patches_but_none_far_out():
    # Few bright pixels: many deviations away from the rest, along many directions.
    bright = torch.rand(64, 1, 8, 8, generator=start()) ** 30
    network = prepared(bright)
    first = network.layers[0]
    anchors = first.anchors.detach()
    assert float(anchors.abs().max()) == 2.0
    inside = anchors.abs() < 2
    assert 32 < int(inside.sum()) < 64
    values = (network.patches(bright) @ first.weight.T).detach().flatten(0, 1)
    assert float((values - anchors).abs().amin(0)[inside].max()) < 1e-5
    assert float(anchors.std()) > 0.2


def test_the_share_of_another_image_is_that_of_a_uniform_area():
    images = torch.arange(8000.0).view(-1, 1, 1, 1).expand(-1, 1, 40, 60)
    foreign = 1 - Augmentation(mix=1.0).mixed(images, start())[1].double()
    # A side s = sqrt(area), relative to that of the image, with its middle uniform in the image:
    # s - s^2/4 of it lies inside on average, and s^2 - 5/12 s^3 is the mean of the square.
    mean = 1 / 2 - 1 / 2 * 2 / 5 + 1 / 16 * 1 / 3
    square = 1 / 3 - 5 / 6 * 2 / 7 + 25 / 144 * 1 / 4
    assert float(foreign.mean()) == pytest.approx(mean, abs=0.01)
    assert float(foreign.square().mean()) == pytest.approx(square, abs=0.01)


@pytest.mark.parametrize("members", [None, 2])
def test_a_variable_is_scaled_by_its_own_width(members):
    made = GaussianProduct([1, 4], width=2000, members=members, generator=start())
    weight = made.layers[0].weight.detach()
    assert weight.shape == (2 * (members or 1), 4, 2000)
    for t, width in enumerate([1, 4] * (members or 1)):
        # A unit of variance in each number is one in each feature.
        assert float(weight[t, :width].square().sum(0).mean()) == pytest.approx(1, rel=0.05)
