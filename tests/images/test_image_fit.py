"""Training of models of images: stages, classes, checkpoints, the refinement of mixtures."""

import math

import numpy as np
import pytest
import torch

from internals import (
    FitSettings,
    ImageRows,
    ImageTask,
    MixtureTable,
    Trainer,
    accuracy,
    augmentation,
    em_pass,
    fit_classifier,
    train_on_synthetic,
)
from kermix.errors import OptionError, SampleError, ShapeError, TrainingError

SHORT = {"encoder_steps": 12, "steps": 8, "batch_size": 24, "width": 8, "hidden": 16, "code": 3,
         "noise": 4, "encoder_batch": 16}  # fmt: skip


def pictures(n=60, channels=1, seed=0):
    """Dark pictures with a spot, and bright ones with a dark spot."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    images = np.zeros((n, channels, 16, 16), np.uint8)
    images[labels == 1] = 200
    for image, label in zip(images, labels, strict=True):
        x, y = rng.integers(0, 10, 2)
        image[:, y : y + 6, x : x + 6] = 60 if label else 140
    return images, labels.astype(np.int64)


def trainer_of(**options):
    images, labels = pictures()
    classes = options.pop("classes", 2)
    settings = FitSettings(**{"model": "codes", **SHORT, **options})
    held = (images[:20], labels[:20])
    given = labels[20:] if classes > 1 else None
    return Trainer(ImageTask(images[20:], given, classes, settings, held), device="cpu")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"classes": 1, "states": 3},
        {"model": "code-mixture", "components": 10, "refine_steps": 3},
        {
            "model": "code-mixture",
            "components": 10,
            "covariance_type": "isotropic",
            "refine_steps": 2,
            "steps": 0,
        },
        {"model": "conv", "spaces": ("pixels", "coarse", "random", "codes")},
        {"model": "conv", "spaces": ("random",), "images_at_once": 10, "cost": "mmd"},
        {"spaces": ("codes", "coarse"), "images_at_once": 6, "cost": "matrix"},
    ],
)
def test_every_model_trains_and_samples(options):
    trainer = trainer_of(**options)
    assert trainer.run()
    assert trainer.step == trainer.total
    classes = options.get("classes", 2)
    drawn = trainer.model.sample(11, torch.Generator().manual_seed(0))
    assert drawn.images.shape == (11, 1, 16, 16)
    assert drawn.images.min() >= 0
    assert drawn.images.max() <= 1
    assert set(drawn.labels.tolist()) <= set(range(classes))
    assert math.isfinite(trainer.history[-1]["metric"])


def test_classes_are_told_apart():
    trainer = trainer_of(
        model="code-mixture", components=8, steps=0, refine_steps=5, encoder_steps=60, width=16
    )
    trainer.run()
    generator = torch.Generator().manual_seed(0)
    labels = torch.tensor([0] * 20 + [1] * 20)
    level = trainer.model.sample(40, generator, labels).images.mean((1, 2, 3))
    assert level[20:].mean() > level[:20].mean() + 0.2


def test_channels_are_a_space_of_their_own():
    images, _ = pictures(channels=3)
    spaces = ("codes", "channels")
    chosen = {"model": "codes", **SHORT, "code": 6}
    settings = FitSettings(**chosen, by_channel=True, spaces=spaces)
    trainer = Trainer(ImageTask(images, None, 1, settings), device="cpu")
    assert trainer.run()
    assert trainer.model.sample(2, torch.Generator().manual_seed(0)).images.shape[1] == 3


@pytest.mark.parametrize("model", ["codes", "code-mixture"])
def test_stopped_and_resumed_is_as_never_stopped(model, tmp_path):
    options = {
        "model": model,
        "refine_steps": 3 if model == "code-mixture" else 0,
        "components": 6,
    }
    whole = trainer_of(**options)
    whole.run()
    last = tmp_path / "last.safetensors"
    for stop in (5, 15, 21, whole.total):
        part = trainer_of(**options)
        if last.exists():
            part.load(last)

        def reached(part=part, stop=stop):
            return part.step == stop

        assert part.run(folder=tmp_path, should_stop=reached) is (stop >= whole.total)
    for name, tensor in whole.model.state_dict().items():
        torch.testing.assert_close(part.model.state_dict()[name], tensor, msg=name)
    assert [row["step"] for row in part.history] == [row["step"] for row in whole.history]


def test_looking_leaves_the_autoencoder_alone():
    trainer = trainer_of()
    trainer.run()
    before = {k: v.clone() for k, v in trainer.model.autoencoder.state_dict().items()}
    assert trainer.task.metric() == trainer.task.metric()
    assert not any(m.training for m in trainer.model.autoencoder.modules())
    for name, tensor in trainer.model.autoencoder.state_dict().items():
        assert torch.equal(before[name], tensor), name


def test_images_too_many_for_the_device_stay_in_memory():
    images, labels = pictures()
    images.setflags(write=False)
    there = ImageRows(images, labels, 2, torch.device("cpu"))
    here = ImageRows(images, labels, 2, torch.device("cpu"), on_device=0)
    rows = torch.tensor([5, 3, 3])
    assert torch.equal(there.images(rows), here.images(rows))
    generator = torch.Generator().manual_seed(0)
    each = here.each_class(7, generator)
    assert here.labels[each].tolist() == [[0] * 7, [1] * 7]
    assert sorted(here.some(1, 99, generator).tolist()) == list(range(1, 60, 2))
    with pytest.raises(SampleError, match=r"classes \[2\]"):
        ImageRows(images, labels, 3, torch.device("cpu"))
    with pytest.raises(ShapeError, match="59 labels for 60 images"):
        ImageRows(images, labels[1:], 2, torch.device("cpu"))


def test_a_loss_that_is_not_finite_is_named():
    trainer = trainer_of(learning_rate=1e30)
    with pytest.raises(TrainingError, match="not finite"):
        trainer.run()


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"cost": "likelihood"}, "cost="),
        ({"spaces": ()}, "empty"),
        ({"spaces": ("sky",)}, "spaces="),
        ({"spaces": ("channels",)}, "by_channel"),
        ({"model": "code-mixture", "spaces": ("pixels",)}, "mixture"),
        ({"refine_steps": 3}, "refine_steps"),
        ({"batch_size": 1}, "batch_size=1"),
        ({"variance": 0.0}, "variance"),
        ({"code_noise": -1.0}, "code_noise"),
        ({"model": "conv", "spaces": ("pixels",), "steps": 0}, "nothing to train"),
    ],
)
def test_settings_that_cannot_be(wrong, text):
    with pytest.raises(OptionError, match=text):
        FitSettings(**{"model": "codes", **wrong})


def test_settings_go_through_json():
    settings = FitSettings(spaces=("pixels", "random"), model="conv", images_at_once=5)
    assert FitSettings.from_json(settings.as_json()) == settings
    with pytest.raises(OptionError, match="no setting 'colour'"):
        FitSettings.from_json({"colour": 1})


def plain_em(x, means, weights, variances, isotropic):
    density = np.stack(
        [
            w * np.exp(-0.5 * ((x - m) ** 2 / v + np.log(2 * np.pi * v)).sum(1))
            for m, w, v in zip(means, weights, variances, strict=True)
        ],
        1,
    )
    share = density / density.sum(1, keepdims=True)
    mass = share.sum(0)
    centre = share.T @ x / mass[:, None]
    spread = np.stack(
        [(share[:, [k]] * (x - centre[k]) ** 2).sum(0) / mass[k] for k in range(len(means))]
    )
    if isotropic:
        spread = np.broadcast_to(spread.mean(1, keepdims=True), spread.shape)
    return -np.log(density.sum(1)).mean(), centre, mass / mass.sum(), spread


@pytest.mark.parametrize("kind", ["isotropic", "diagonal"])
def test_em_pass_is_the_textbook_one(kind):
    generator = torch.Generator().manual_seed(0)
    table = MixtureTable(2, 3, kind, (2,), generator=generator)
    data = [torch.randn(n, 2, generator=generator) for n in (40, 25)]
    before = table()
    wide = before.covariances.detach()
    if kind == "isotropic":
        wide = wide.unsqueeze(-1).expand_as(before.means)
    expected = [
        plain_em(x.numpy(), *(t.detach()[i].numpy() for t in (before.means, before.weights)),
                 wide[i].numpy(), kind == "isotropic")
        for i, x in enumerate(data)
    ]  # fmt: skip
    loss = em_pass(table, data)
    after = table()
    mean = (40 * expected[0][0] + 25 * expected[1][0]) / 65
    assert float(loss) == pytest.approx(mean, rel=1e-4)
    for i, (_, centre, weights, spread) in enumerate(expected):
        found = after.covariances.detach()[i]
        found = found.unsqueeze(-1).expand(-1, 2) if kind == "isotropic" else found
        np.testing.assert_allclose(after.means.detach()[i], centre, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(after.weights.detach()[i], weights, rtol=1e-3)
        np.testing.assert_allclose(found, spread, rtol=1e-2, atol=1e-4)


def test_em_goes_up_and_keeps_variances_above_the_floor():
    generator = torch.Generator().manual_seed(0)
    table = MixtureTable(2, 30, "diagonal", generator=generator)
    data = [torch.randn(40, 2, generator=generator)]
    losses = [float(em_pass(table, data, 0.05)) for _ in range(6)]
    assert losses[-1] < losses[0]
    assert float(table().covariances.detach().min()) >= 0.05 * (1 - 1e-6)
    assert torch.isfinite(table().log_prob(data[0])).all()
    with pytest.raises(ShapeError, match="2 sets of points for 1"):
        em_pass(table, data * 2)


def test_classifiers_learn_from_synthetic_images():
    images, labels = pictures(120)
    x, y = torch.from_numpy(images).float() / 255, torch.from_numpy(labels)
    found = train_on_synthetic(x, y, x[:40], y[:40], epochs=12)
    assert set(found) == {"logistic", "mlp", "cnn"}
    assert min(found["mlp"], found["cnn"]) > 0.9
    assert found["logistic"] > 0.6
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(256, 2))
    generator = torch.Generator().manual_seed(0)
    fit_classifier(
        network,
        x,
        y,
        10,
        batch_size=20,
        augmentation=augmentation(flip=True, shift=1),
        generator=generator,
    )
    assert accuracy(network, x, y) > 0.7
