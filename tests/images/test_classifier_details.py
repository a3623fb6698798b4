"""Details of the classifiers that a training survives without: rates, averages, starts, draws."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.testing import assert_close

from internals import (
    Augmentation,
    ClassifierTask,
    GaussianLayer,
    GaussianOutput,
    GaussianProduct,
    GaussianProductClassifier,
    LabelledImages,
    ProductDesign,
    ProductSettings,
    Trainer,
    augmentation,
    gaussian,
    gaussian_norm,
    load_checkpoint,
    mean_square,
    whitening_map,
)
from internals import classifier_settings_module as presets
from internals import table_records_module as table_cells

SIDE = 6
TINY = ProductSettings(
    width=8, depth=2, output_width=12, epochs=2, batch_size=8, shift=0, evaluate_every=0
)


def start(seed=0):
    return torch.Generator().manual_seed(seed)


def labelled(count=48, name="random"):
    draw = np.random.default_rng(0)
    images = draw.integers(256, size=(count, 1, SIDE, SIDE)) * draw.uniform(
        0.2, 1, (count, 1, 1, 1)
    )
    images = images.astype(np.uint8)
    return LabelledImages(name, images, draw.integers(3, size=count), ("a", "b", "c"))


def trainer_of(data=None, **options):
    data = labelled() if data is None else data
    return Trainer(ClassifierTask(data, None, replace(TINY, **options)), device="cpu")


def parameters(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("warmup", [0.25, 0.5])
def test_the_rate_rises_for_the_share_that_was_asked_for(warmup):
    rates = []
    hook = register_optimizer_step_pre_hook(
        lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"])
    )
    try:
        trainer_of(warmup=warmup, learning_rate=0.1, epochs=4).run()
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
    assert trainer.reports_every == 3
    own, averaged = [], []

    def look(step):
        if step > 58:
            own.append(parameters(trainer.model))
            averaged.append(parameters(trainer.task.final()))

    trainer.run(on_step=look)
    for name, before in averaged[0].items():
        # Late in a training the mean reaches back as many steps as two epochs have.
        assert_close(averaged[1][name], before + (own[1][name] - before) / 6)
        assert not torch.equal(averaged[1][name], own[1][name])


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_only_matrices_decay(optimizer):
    options = {"optimizer": optimizer, "learning_rate": 0.1, "score_rate": 0.5}
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
    model, images = trainer.task.final(), torch.tensor(trainer.task.train.images)
    colours = augmentation(cutout=4 * SIDE)(images, start())
    assert bool((colours == colours[:, :, :1, :1]).all())
    first = model.layers[0]
    with torch.no_grad():
        values = gaussian(model.patches(colours) @ first.weight.T, first.anchors)
    assert_close(first.norm.running_mean, values.mean((0, 1)))


@pytest.mark.parametrize(("smoothing", "cutout"), [(0.0, 0), (0.3, 0), (0.0, 4 * SIDE)])
def test_the_history_has_the_loss_of_what_is_trained_on(smoothing, cutout):
    trainer = trainer_of(batch_size=48, epochs=1, smoothing=smoothing, cutout=cutout)
    assert trainer.reports_every == 1
    labels = torch.tensor(trainer.task.train.labels)
    images = Augmentation(trainer.task.settings)(torch.tensor(trainer.task.train.images), start())
    with torch.no_grad():
        scores = trainer.model.train()(images)
    chances = scores.log_softmax(1)
    right = chances.gather(1, labels.unsqueeze(1)).mean()
    expected = -(1 - smoothing) * right - smoothing * chances.mean()
    trainer.run()
    (row,) = trainer.history
    assert row["loss"] == pytest.approx(float(expected), rel=1e-4)
    assert row["train_accuracy"] == pytest.approx(float((scores.argmax(1) == labels).sum()) / 48)


def test_every_epoch_has_all_images_in_an_order_of_its_own():
    trainer, seen = trainer_of(), []
    hook = trainer.model.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    trainer.run()
    hook.remove()
    first, second = (torch.cat(seen[6 * e : 6 * e + 6]).flatten(1).tolist() for e in range(2))
    assert (
        sorted(first)
        == sorted(second)
        == sorted(trainer.task.train.images.reshape(48, -1).tolist())
    )
    assert first != second


def test_at_least_one_position_is_looked_at():
    trainer, seen = trainer_of(positions=0.01), []
    trainer.model.layers[0].register_forward_hook(lambda _, y, k: seen.append(k.shape[1]))
    trainer.run()
    assert set(seen) == {1}


def test_a_checkpoint_is_written_after_every_epoch(tmp_path):
    trainer, path, found = trainer_of(epochs=3), tmp_path / "last.safetensors", {}

    def look(step):
        found[step] = load_checkpoint(path)[1]["step"] if path.exists() else 0

    trainer.run(folder=tmp_path, on_step=look)
    # What is there after a step was written after the one before.
    assert [found[step] for step in (1, 6, 7, 12, 13, 18)] == [0, 0, 6, 6, 12, 12]
    assert load_checkpoint(path)[1]["step"] == 18


def test_an_evaluation_has_plain_losses_and_a_row_for_each_true_class():
    data = labelled()
    trainer = trainer_of(data, smoothing=0.3)
    trainer.run()
    found = trainer.task.evaluate(replace(data, name="again"))
    chances = trainer.task.trained().probabilities(torch.tensor(data.images))
    guesses = chances.argmax(1).numpy()
    table = [
        [int(((data.labels == i) & (guesses == j)).sum()) for j in range(3)] for i in range(3)
    ]
    assert found.confusion.tolist() == table != np.transpose(table).tolist()
    assert found.accuracy == pytest.approx(float((guesses == data.labels).mean()))
    expected = -chances[np.arange(48), data.labels].log().mean()
    assert found.loss == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize("residual", [False, True])
def test_layers_of_equal_width_add_to_their_input_if_asked_to(residual):
    network = GaussianProductClassifier(
        (1, SIDE, SIDE), 3,
        ProductDesign(width=8, depth=3, output_width=12, residual=residual), generator=start(),
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
        tuple(images.shape[1:]), 3, ProductDesign(width=64, depth=2, **options), generator=start()
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
    foreign = 1 - augmentation(mix=1.0).mixed(images, start())[1].double()
    # A side s = sqrt(area), relative to that of the image, with its middle uniform in the image:
    # s - s^2/4 of it lies inside on average, and s^2 - 5/12 s^3 is the mean of the square.
    mean = 1 / 2 - 1 / 2 * 2 / 5 + 1 / 16 * 1 / 3
    square = 1 / 3 - 5 / 6 * 2 / 7 + 25 / 144 * 1 / 4
    assert float(foreign.mean()) == pytest.approx(mean, abs=0.01)
    assert float(foreign.square().mean()) == pytest.approx(square, abs=0.01)


@pytest.mark.parametrize("members", [None, 2])
def test_a_variable_is_scaled_by_its_own_width(members):
    made = GaussianProduct([1, 4], sizes=(2000, 64), members=members, generator=start())
    weight = made.layers[0].weight.detach()
    assert weight.shape == (2 * (members or 1), 4, 2000)
    for t, width in enumerate([1, 4] * (members or 1)):
        # A unit of variance in each number is one in each feature.
        assert float(weight[t, :width].square().sum(0).mean()) == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize("form", ["product", "signed"])
def test_products_of_many_start_at_the_order_of_one(form):
    made = GaussianProduct(100, sizes=(32, 50), form=form, generator=start())
    size, sign = made.log_terms(torch.randn(40, 100, generator=start()))
    assert bool((sign > 0).all())
    assert -3 < float(size.detach().mean()) < 1
    assert float(size.detach().min()) > -8


def test_the_value_starts_as_the_mean_of_moderate_terms():
    made = GaussianProduct(20, sizes=(32, 50), precision="norm", generator=start())
    x = torch.randn(40, 20, generator=start())
    size, _ = made.log_terms(x)
    assert_close(size.std(0, correction=0).mean(), torch.tensor(0.5), rtol=1e-3, atol=0)
    assert_close(made(x), size.exp().mean(1))


def test_directions_have_the_spread_that_anchors_are_made_for():
    images = torch.rand(64, 1, 8, 8, generator=start())
    network = prepared(images)
    values = (network.patches(images) @ network.layers[0].weight.T).detach().flatten(0, 1)
    assert float(values.std(0).mean()) == pytest.approx(0.75, rel=0.05)


def test_a_patch_of_no_contrast_is_no_direction():
    network = GaussianProductClassifier(
        (1, 8, 8), 3, ProductDesign(width=64, depth=1), generator=start()
    )
    white = torch.randn(2000, 9, generator=start())
    white[::2] *= 1e-6
    with torch.no_grad():
        network._start_from(white, start(1))
    length = network.layers[0].weight.detach().norm(dim=1)
    assert 16 < int((length < 0.01).sum()) < 48
    assert bool(((length < 0.01) | (length > 0.5)).all())


def test_without_data_anchors_the_first_layer_starts_anywhere():
    images = torch.rand(64, 1, 8, 8, generator=start())
    network = prepared(images, data_anchors=False)
    as_made = GaussianLayer(9, 64, generator=start())
    assert torch.equal(network.layers[0].weight, as_made.weight)
    assert torch.equal(network.layers[0].anchors, as_made.anchors)


def test_whitening_does_not_depend_on_the_unit():
    rows = torch.randn(200, 4, generator=start()).double() * torch.tensor([1.0, 0.5, 0.1, 0.01])
    mean, whitener = whitening_map(rows, 0.1)
    assert_close(whitening_map(100 * rows, 0.1), (100 * mean, whitener / 100))


def test_anchors_between_those_of_a_grid_lie_between():
    network = GaussianProductClassifier(
        (1, 9, 9), 3, ProductDesign(patch=1, width=4, depth=1, anchor_grid=3), generator=start()
    )
    with torch.no_grad():
        network.output.anchors.copy_(torch.arange(3.0).repeat(3).unsqueeze(1).expand(9, 4))
    across = torch.tensor([0, 0, 1, 2, 3, 4, 5, 6, 6]) / 3
    assert_close(network.anchor_maps(), across.expand(4, 9, 9))


def test_a_grid_of_anchors_comes_as_close_to_an_image_as_it_can():
    images = torch.rand(10, 1, 8, 8, generator=start())
    network = GaussianProductClassifier(
        (1, 8, 8),
        3,
        ProductDesign(patch=1, width=8, depth=1, anchor_grid=3, image_anchors=True),
        generator=start(),
    ).eval()
    network.prepare(images, start(1))
    assert not network.training
    sharing, anchors = network.output.sharing, network.output.position_anchors()
    away = (network.train().features(images) - anchors).detach()
    # What is left is at right angles to all that a grid can be, for one of the images.
    along = torch.einsum("tg,btk->bgk", sharing, away).abs().amax(1)
    assert float(along.amin(0).max()) < 1e-3
    assert float(along.amax(0).min()) > 0.1


def moments(images):
    """Of the brightness of each image, in pixels squared: across, down, and both together."""
    weight = images[:, 0].double() / images[:, 0].double().sum((1, 2), keepdim=True)
    place = torch.arange(images.shape[3]) - (images.shape[3] - 1) / 2
    down, across = torch.meshgrid(place, place, indexing="ij")
    return [(weight * m).sum((1, 2)) for m in (across**2, down**2, across * down)]


def test_every_second_image_is_turned_and_by_no_more_than_was_said():
    line = torch.zeros(300, 1, 41, 41)
    line[:, :, 19:22, 10:31] = 1.0
    turned = augmentation(rotation=15.0)(line, start())
    same = (turned == line).flatten(1).all(1)
    assert 120 < int(same.sum()) < 180
    across, down, both = moments(turned[~same])
    angle = torch.rad2deg(0.5 * torch.atan2(2 * both, across - down))
    assert 14 < float(angle.max()) < 15.3
    assert -15.3 < float(angle.min()) < -14
    white = torch.ones(50, 1, 9, 9)
    assert_close(augmentation(rotation=45.0, zoom=0.2)(white, start()), white)  # nothing black


def test_zoom_changes_both_sides_apart():
    place = torch.arange(41) - 20
    spot = torch.exp(-(place**2 + place[:, None] ** 2) / 50).expand(300, 1, 41, 41)
    zoomed = augmentation(zoom=0.2)(spot, start())
    zoomed = zoomed[(zoomed != spot).flatten(1).any(1)]
    sides = torch.stack(moments(zoomed)[:2]).sqrt() / 5
    assert float(sides.min()) == pytest.approx(1 / 1.2, abs=0.02)
    assert float(sides.max()) == pytest.approx(1 / 0.8, abs=0.02)
    assert abs(float(sides.corrcoef()[0, 1])) < 0.25


def test_colours_of_floats_stay_between_0_and_1():
    images = torch.rand(50, 1, 4, 4, generator=start()).round()
    changed = augmentation(colour=0.5)(images, start())
    assert float(changed.min()) == 0.0
    assert float(changed.max()) == 1.0


def test_layers_start_with_features_of_unit_variance_and_anchors_alike():
    layer = GaussianLayer(9, 500, 4, generator=start())
    assert float(layer.weight.detach().square().sum(1).mean()) == pytest.approx(1, rel=0.05)
    assert torch.equal(layer.anchors, layer.anchors[:1].expand(4, 500))


def test_the_output_starts_with_a_mean_of_its_own_and_moderate_exponents():
    states = []
    for seed in (1, 2):  # torch's own, which is not to matter
        torch.manual_seed(seed)
        output = GaussianOutput(500, 64, 3, generator=start())
        states.append(output.state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    anchors = output.anchors.detach()
    assert float(anchors.mean(0).std()) == pytest.approx(1, rel=0.1)
    assert float(anchors.std(0).mean()) == pytest.approx(0.5, rel=0.05)
    exponent = output.exponent(torch.randn(40, 64, 500, generator=start())).detach()
    assert_close(exponent.std(0, correction=0).mean(), torch.tensor(0.5), rtol=1e-3, atol=0)


def test_paths_agree_on_a_plain_mean_of_statistics():
    found = []
    for path in ("plain", "fast"):
        layer = GaussianLayer(3, 5, path=path, generator=start())
        layer.norm.momentum = None
        for seed in range(4):
            layer(torch.randn(6, 4, 3, generator=start(seed)) + seed)
        found.append((layer.norm.running_mean, layer.norm.running_var))
    assert_close(*found)


def test_half_precision_is_of_what_comes_in_only():
    u, anchors = torch.randn(8, 30, 40, generator=start()), torch.randn(40, generator=start(1))
    half = u.bfloat16()
    exact = (half.double() - anchors.double()).square()
    assert_close(gaussian(half, anchors), torch.exp(-exact).float())
    assert_close(mean_square(half, anchors), exact.mean(1).float())


def test_the_variance_of_what_is_constant_is_not_negative():
    u = torch.linspace(0, 2, 200).expand(7, 11, 200)
    one, zero = torch.ones(200), torch.zeros(200)
    _, _, variance = gaussian_norm(u, zero, one, zero)
    assert bool((variance >= 0).all())


def record(**changes):
    found = dict.fromkeys(table_cells.KEY, "x")
    return {**found, "evaluated_on": "test images", "epochs": 1, **changes}


def test_a_cell_has_one_record_and_compared_settings_one_for_each_extent(tmp_path):
    path = tmp_path / "records.json"
    table_cells.merge(path, [record(epochs=1), record(epochs=2)])
    assert [r["epochs"] for r in table_cells.merge(path, [record(epochs=3)])] == [3]
    held = [
        record(evaluated_on="held out", epochs=e, train_images=n) for e in (1, 2) for n in (5, 6)
    ]
    assert len(table_cells.merge(path, [*held, *held])) == 5


def test_the_baseline_has_no_patch_whatever_was_said():
    settings = presets.preset("cifar10", "cnn", None)
    assert presets.preset("cifar10", "cnn", 5) == settings


@pytest.mark.parametrize("dataset", ["mnist", "cifar10"])
def test_images_that_stay_the_same_are_seen_less_often(dataset):
    for patch in table_cells.PATCHES:
        often, seldom = (
            presets.preset(dataset, "gaussian-product", patch, augmented).epochs
            for augmented in (True, False)
        )
        assert seldom < often


def test_images_are_held_out_at_random_and_always_the_same():
    data = replace(labelled(), labels=np.arange(48))
    rest, held_out = table_cells.hold_out(data, 12)
    assert held_out.labels.max() > 24
    assert rest.labels.min() < 12
    for part, again in zip((rest, held_out), table_cells.hold_out(data, 12), strict=True):
        assert np.array_equal(part.labels, again.labels)
        assert (np.diff(part.labels) > 0).all()
        assert np.array_equal(part.images, data.images[part.labels])


def test_a_record_says_what_was_evaluated_and_how():
    # Classes that differ by the side which is bright: their mirror images are each other.
    data = labelled(96)
    images = data.images // 4
    labels = np.arange(96) % 2
    images[labels == 0, :, :, :3] += 128
    images[labels == 1, :, :, 3:] += 128
    data = replace(data, images=images, labels=labels)
    train, held_out = table_cells.hold_out(data, 32)
    wrong = replace(held_out, labels=1 - held_out.labels)
    settings = replace(TINY, epochs=5, flip_at_test=True)
    found = table_cells.train_cell(train, wrong, settings, device="cpu")
    assert found["evaluated_on"] == held_out.name
    assert found["settings"]["learning_rate"] == settings.peak_rate
    # Two views of these tell nothing; one view tells all, here the opposite of the labels.
    assert found["test_accuracy_one_view"] < 0.1
    assert 0.1 < found["test_accuracy"] < 0.9
    assert found["seconds_per_epoch"] < found["seconds"] / 2
    once = replace(settings, flip_at_test=False)
    found = table_cells.train_cell(train, wrong, once, device="cpu")
    assert found["train_accuracy"] > 0.9
    assert found["test_accuracy"] == found["test_accuracy_one_view"] < 0.1
