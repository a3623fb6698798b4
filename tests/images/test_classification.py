"""Training of classifiers: it learns, resumes exactly, augments as it says."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from internals import (
    Augmentation,
    ClassifierTask,
    LabelledImages,
    Muon,
    ProductSettings,
    RunningAverage,
    Trainer,
    augmentation,
    load_classifier,
    load_labelled,
)
from kermix.errors import OptionError, RunError, SampleError, ShapeError, TrainingError

SMALL = ProductSettings(
    width=16, depth=2, output_width=32, epochs=2, batch_size=256, shift=1, evaluate_every=0
)


@pytest.fixture(scope="module")
def digits():
    return load_labelled("digits", "train"), load_labelled("digits", "test")


def weights(trainer):
    return {name: t.clone() for name, t in trainer.task.final().state_dict().items()}


def test_it_learns_the_digits(digits):
    settings = replace(SMALL, width=32, output_width=64, epochs=6, batch_size=128)
    trainer = Trainer(ClassifierTask(*digits, settings), device="cpu")
    assert trainer.run()
    found = trainer.task.evaluate()
    assert found.accuracy >= 0.95
    assert found.confusion.sum() == len(digits[1])
    assert [row["epoch"] for row in trainer.history] == list(range(1, 7))
    assert trainer.history[-1]["loss"] < trainer.history[0]["loss"]


def test_the_baseline_learns_too(digits):
    train = LabelledImages(
        "few", digits[0].images[:400], digits[0].labels[:400], digits[0].classes
    )
    settings = ProductSettings(model="cnn", epochs=2, batch_size=40, shift=0, evaluate_every=2)
    trainer = Trainer(ClassifierTask(train, digits[1], settings), device="cpu")
    trainer.run()
    assert trainer.history[-1]["test_accuracy"] > 0.7
    assert "test_accuracy" not in trainer.history[0]


@pytest.mark.parametrize(
    ("optimizer", "stop"),  # within the first epoch, and at its end
    [("adamw", 3), ("adamw", 6), ("muon", 3), ("muon-anchors", 6)],
)
def test_a_resumed_run_ends_like_one_that_was_not_stopped(digits, tmp_path, optimizer, stop):
    settings = replace(
        SMALL, optimizer=optimizer, cutout=2, rotation=5.0, flip=True, mix=0.5, positions=0.5,
        score_rate=0.3,
    )  # fmt: skip
    whole = Trainer(ClassifierTask(*digits, settings), device="cpu")
    assert whole.reports_every == 6
    assert whole.run()
    first = Trainer(ClassifierTask(*digits, settings), device="cpu")
    assert not first.run(folder=tmp_path, should_stop=lambda: first.step == stop)
    second = Trainer(ClassifierTask(*digits, settings), device="cpu")
    second.load(tmp_path / "last.safetensors")
    assert second.step == stop
    assert second.run(folder=tmp_path)
    expected, found = weights(whole), weights(second)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert [r["loss"] for r in second.history] == [r["loss"] for r in whole.history]
    # What was written is what was trained.
    trained = load_classifier(tmp_path)
    assert trained.settings == settings
    assert trained.classes == digits[0].classes
    images = torch.tensor(digits[1].images)
    with torch.no_grad():
        assert_close(trained.probabilities(images), whole.task.final()(images).softmax(1))


def test_a_part_of_the_positions_is_enough_to_learn(digits):
    settings = replace(SMALL, width=32, output_width=96, epochs=6, batch_size=128, positions=0.5)
    trainer = Trainer(ClassifierTask(*digits, settings), device="cpu")
    seen = []
    trainer.model.layers[0].register_forward_hook(lambda _, y, k: seen.append(k.shape[1]))
    trainer.run()
    assert trainer.model.positions == 36
    assert set(seen) == {18}
    assert trainer.task.evaluate().accuracy > 0.9
    assert seen[-1] == 36
    with pytest.raises(OptionError, match="positions=0"):
        replace(settings, positions=0.0)
    with pytest.raises(OptionError, match="the CNN takes all"):
        replace(settings, model="cnn")


def test_seeds_decide_everything(digits):
    runs = []
    for seed in (0, 0, 1):
        trainer = Trainer(
            ClassifierTask(*digits, replace(SMALL, epochs=1, seed=seed)), device="cpu"
        )
        trainer.run()
        runs.append(trainer.history[0]["loss"])
    assert runs[0] == runs[1] != runs[2]


def test_scores_of_mirror_images_can_be_averaged(digits):
    settings = replace(SMALL, epochs=1, flip_at_test=True)
    trainer = Trainer(ClassifierTask(*digits, settings), device="cpu")
    trainer.run()
    images = torch.tensor(digits[1].images[:20])
    found = trainer.task.trained()
    assert_close(found.probabilities(images), found.probabilities(images.flip(3)))


def test_settings_survive_json_and_refuse_nonsense():
    settings = ProductSettings(patch=5, anchors_at=(1, 2), whitening=None)
    assert ProductSettings.from_json(settings.as_json()) == settings
    with pytest.raises(OptionError, match="taste"):
        ProductSettings.from_json({"taste": 1})
    for options in ({"epochs": 0}, {"learning_rate": -1.0}, {"smoothing": 1.0}, {"warmup": 0.0},
                    {"shift": -1}, {"zoom": 1.0}, {"model": "resnet"}):  # fmt: skip
        with pytest.raises(OptionError, match=next(iter(options))):
            ProductSettings(**options)


def test_troubles_have_named_errors(digits, tmp_path):
    train, test = digits
    smaller = replace(test, images=test.images[:, :, :7])
    with pytest.raises(ShapeError, match="held-out"):
        Trainer(ClassifierTask(train, smaller, SMALL), device="cpu")
    trainer = Trainer(ClassifierTask(train, None, SMALL), device="cpu")
    with pytest.raises(RunError, match="no held-out"):
        trainer.task.evaluate()
    with torch.no_grad():
        trainer.model.output.anchors[0] = torch.nan
    with pytest.raises(TrainingError, match="not finite in epoch 1"):
        trainer.run(folder=tmp_path)
    with pytest.raises(RunError, match="no such checkpoint"):
        load_classifier(tmp_path)


def test_augmentation_moves_whole_pixels():
    images = torch.arange(2 * 3 * 5 * 6, dtype=torch.uint8).view(2, 3, 5, 6)
    generator = torch.Generator().manual_seed(0)
    assert torch.equal(augmentation()(images, generator), images)
    padded = torch.nn.functional.pad(images.float(), (2, 2, 2, 2), mode="reflect").byte()
    crops = {
        tuple(padded[i, :, y : y + 5, x : x + 6].flatten().tolist())
        for i in range(2) for y in range(5) for x in range(5)
    }  # fmt: skip
    for _ in range(10):
        moved = augmentation(shift=2)(images, generator)
        assert all(tuple(image.flatten().tolist()) in crops for image in moved)
    flips = [augmentation(flip=True)(images, generator) for _ in range(20)]
    kept = [bool((f[0] == images[0]).all()) for f in flips]
    turned = [bool((f[0] == images[0].flip(2)).all()) for f in flips]
    assert all(a != b for a, b in zip(kept, turned, strict=True))
    assert any(kept)
    assert any(turned)


def test_cutout_and_rotation():
    generator = torch.Generator().manual_seed(0)
    images = torch.zeros(50, 1, 8, 8, dtype=torch.uint8)
    images[:, :, ::2] = 100
    cut = (augmentation(cutout=4)(images, generator) == 50).sum((1, 2, 3))
    assert cut.max() == 16
    assert (cut >= 4).all()
    turned = augmentation(rotation=20.0, zoom=0.1)(images, generator)
    assert turned.dtype == torch.uint8
    assert not torch.equal(turned, images)
    same = augmentation(rotation=1e-9)(images, generator)
    assert torch.equal(same, images)
    assert str(augmentation(flip=True, shift=2, cutout=4)) == "flip, shift 2, cutout 4"


def test_colour_changes_brightness_and_contrast_only():
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(20, 3, 4, 4, generator=generator) / 4 + 0.375
    changed = augmentation(colour=0.2)(images, generator)
    # A line in each image: one slope and one constant for all of its pixels.
    flat, new = images.flatten(1), changed.flatten(1)
    slope = (new[:, 1] - new[:, 0]) / (flat[:, 1] - flat[:, 0])
    assert_close(new - new[:, :1], slope[:, None] * (flat - flat[:, :1]), atol=1e-5, rtol=1e-3)
    assert slope.min() < 0.95
    assert slope.max() > 1.05
    brighter = (changed.mean((1, 2, 3)) / images.mean((1, 2, 3)) - 1).abs()
    assert (brighter < 0.21).all()
    assert brighter.max() > 0.1
    bright = torch.full((50, 1, 2, 2), 250, dtype=torch.uint8)
    assert (augmentation(colour=0.2)(bright, generator) > 190).all()  # no byte runs over


def test_rectangles_of_other_images_count_by_their_area():
    generator = torch.Generator().manual_seed(0)
    images = torch.arange(100.0).view(-1, 1, 1, 1).expand(-1, 1, 8, 8)
    mixed, own = augmentation(mix=0.5).mixed(images, generator)
    is_own = (mixed == images).flatten(1).float().mean(1)
    is_next = (mixed == images.roll(1, 0)).flatten(1).float().mean(1)
    assert_close(own, is_own)
    assert_close(is_own + is_next, torch.ones(100))
    assert 20 < int((own < 1).sum()) < 60
    with pytest.raises(OptionError, match="at least 0 and at most 1"):
        augmentation(mix=1.5)


def test_labels_are_mixed_with_the_images(digits):
    settings = replace(SMALL, mix=1.0, shift=0, smoothing=0.0)
    trainer = Trainer(ClassifierTask(*digits, settings), device="cpu")
    images, labels = torch.tensor(digits[0].images[:64]), torch.tensor(digits[0].labels[:64])
    loss, scores = trainer.task.loss_and_scores(trainer.model, images, labels)
    again = torch.Generator().manual_seed(trainer.task.generator.initial_seed())
    _, own = Augmentation(settings).mixed(images, again)
    chances = scores.log_softmax(1)
    rows = torch.arange(64)
    expected = own * chances[rows, labels] + (1 - own) * chances[rows, labels.roll(1)]
    assert_close(loss, -expected.mean())


def test_a_running_average():
    layer = torch.nn.Linear(2, 2)
    average = RunningAverage(layer, steps=4)
    start = {n: p.detach().clone() for n, p in layer.named_parameters()}
    with torch.no_grad():
        for p in layer.parameters():
            p += 1
    average.update(10_000)
    for name, tensor in average.tensors.items():
        assert_close(tensor, start[name] + 0.25)
    other = torch.nn.Linear(2, 2)
    average.copy_to(other)
    assert_close(other.weight.detach(), start["weight"] + 0.25)


@pytest.mark.parametrize(
    ("optimizer", "expected"), [("adamw", 0), ("muon", 2), ("muon-anchors", 3)]
)
def test_muon_takes_the_matrices_it_is_given(digits, optimizer, expected):
    trainer = Trainer(ClassifierTask(*digits, replace(SMALL, optimizer=optimizer)), device="cpu")
    found = [o for o in trainer._optimizers if isinstance(o, Muon)]
    matrices = [p for o in found for group in o.param_groups for p in group["params"]]
    assert len(matrices) == expected
    anchors = trainer.model.output.anchors
    assert any(p is anchors for p in matrices) == (optimizer == "muon-anchors")


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_only_the_scores_learn_at_the_rate_of_scores(digits, optimizer):
    settings = replace(SMALL, optimizer=optimizer, learning_rate=0.1, score_rate=0.25, warmup=0.99)
    trainer = Trainer(ClassifierTask(*digits, settings), device="cpu")
    assert not trainer.run(should_stop=lambda: True)
    rates = {p: g["lr"] for o in trainer._optimizers for g in o.param_groups for p in g["params"]}
    scores = trainer.model.output.scores.weight
    others = {rates[p] for p in trainer.model.parameters() if p is not scores}
    assert len(others) == 1
    assert rates[scores] == pytest.approx(0.25 * others.pop())
    for wrong in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(OptionError, match="score_rate"):
            replace(settings, score_rate=wrong)
    with pytest.raises(OptionError, match="not for the CNN"):
        ProductSettings(model="cnn", score_rate=0.5)


def test_three_images_in_steps_of_two(digits):
    few = LabelledImages("few", digits[0].images[:3], digits[0].labels[:3], digits[0].classes)
    trainer = Trainer(ClassifierTask(few, digits[1], replace(SMALL, batch_size=2)), device="cpu")
    assert trainer.run()
    assert trainer.reports_every == 1


def test_a_run_that_diverged_keeps_its_last_good_checkpoint(digits, tmp_path):
    trainer = Trainer(ClassifierTask(*digits, SMALL), device="cpu")
    stop = iter([False] * 7 + [True])

    def spoil(step):
        if step == 7:
            with torch.no_grad():
                trainer.model.output.scores.weight.fill_(float("nan"))

    with pytest.raises(TrainingError, match=r"not finite in epoch 2 .*last good checkpoint"):
        trainer.run(folder=tmp_path, on_step=spoil, should_stop=lambda: next(stop))
    again = Trainer(ClassifierTask(*digits, SMALL), device="cpu")
    again.load(tmp_path / "last.safetensors")
    assert again.step == again.reports_every
    assert all(bool(p.isfinite().all()) for p in again.model.parameters())


def test_evaluation_in_pieces_of_any_size(digits, monkeypatch):
    trainer = Trainer(ClassifierTask(*digits, replace(SMALL, epochs=1)), device="cpu")
    trainer.run()
    expected = trainer.task.evaluate()
    monkeypatch.setattr("internals.classifier_training_module.rows_at_once", lambda *_, **__: 7)
    sizes = []
    trainer.task.final().register_forward_hook(lambda _, given, __: sizes.append(len(given[0])))
    found = trainer.task.evaluate()
    assert max(sizes) == 7
    assert found.loss == pytest.approx(expected.loss, rel=1e-5)


def test_pixels_of_other_kinds(digits):
    trainer = Trainer(ClassifierTask(*digits, replace(SMALL, epochs=1)), device="cpu")
    trainer.run()
    images = torch.tensor(digits[1].images[:20])
    trained = trainer.task.trained()
    expected = trained.probabilities(images)
    assert_close(trained.probabilities(images.double() / 255), expected)
    with pytest.raises(SampleError, match=r"torch.int64; pixels are bytes"):
        trained.probabilities(images.long())
