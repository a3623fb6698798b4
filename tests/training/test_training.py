"""Schedules, settings, objectives, checkpoints and the loop."""

import math
from itertools import pairwise

import pytest
import torch

from internals import (
    FitSettings,
    RowTask,
    Split,
    Trainer,
    VarianceSchedule,
    automatic_variance,
    build_model,
    build_trainer,
    cauchy_schwarz_to_points,
    learning_rate,
    load_checkpoint,
    mode_coverage,
    save_checkpoint,
    toy,
)
from internals import build_split_rows as split_rows
from kermix import GaussianMixture
from kermix.errors import OptionError, RunError, TrainingError, VarianceError


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def small(**options):
    return FitSettings(
        **{"components": 8, "steps": 20, "refine_steps": 10, "batch_size": 32, **options}
    )


def trainer_of(data, **options):
    return build_trainer(split_rows(data, 0), small(**options))


def moons(n=300):
    return toy("moons").sample(n, generator())


def test_variance_falls_evenly_in_the_logarithm():
    schedule = VarianceSchedule(1.0, 1e-4, (1, 10), until=0.5)
    values = [schedule.at(share) for share in (0.0, 0.25, 0.5, 1.0)]
    expected = [[1.0, 10.0], [1e-2, 0.1], [1e-4, 1e-3], [1e-4, 1e-3]]
    torch.testing.assert_close(torch.tensor(values), torch.tensor(expected))
    with pytest.raises(VarianceError):
        VarianceSchedule(1.0, 0.0)


def test_learning_rate_rises_and_falls():
    rates = [learning_rate(i / 100, 1.0) for i in range(101)]
    assert rates[0] < rates[1] < rates[2] == 1.0
    assert all(a > b for a, b in pairwise(rates[2:]))


@pytest.mark.parametrize("dimension", [1, 2, 64])
def test_automatic_variance_sees_neighbours_in_any_dimension(dimension):
    points = torch.randn(1000, dimension, generator=generator())
    start, end = automatic_variance(points, generator())
    assert start >= end
    from kermix import gram

    near = gram(points[:512], points[:512], end).fill_diagonal_(0).amax(1)
    assert near.median() > math.exp(-1)


def test_automatic_variance_of_points_without_spread():
    assert automatic_variance(torch.zeros(5, 2), generator()) == (0.5, 1e-3)
    assert automatic_variance(torch.zeros(1, 2), generator()) == (0.5, 1e-3)


def test_settings_go_to_json_and_back():
    settings = small(cost="vector", variance_factors=(1.0, 2.0))
    assert FitSettings.from_json(settings.as_json()) == settings
    with pytest.raises(OptionError, match="stepz"):
        FitSettings.from_json({"stepz": 3})


def test_refine_steps_are_decided_by_model():
    assert FitSettings().for_data(2000).refine_steps == 500
    assert FitSettings(cost="likelihood").for_data(2000).refine_steps == 0
    assert FitSettings(model="generator").for_data(2000).refine_steps == 0
    assert FitSettings().for_data(2000).components == 128
    assert FitSettings().for_data(200).components == 20
    assert FitSettings().for_data(3).components == 1
    assert FitSettings(model="generator").for_data(3).components == 128
    assert FitSettings(refine_steps=7).for_data(2000).refine_steps == 7


def test_closed_form_is_the_cauchy_schwarz_divergence_to_narrow_data():
    weights, means = torch.tensor([0.3, 0.7]), torch.tensor([[0.0], [1.0]])
    q = GaussianMixture(weights.double(), means.double(), torch.tensor([0.2, 0.5]).double())
    points = torch.tensor([[0.1], [0.9], [1.4]], dtype=torch.float64)
    narrow = torch.full((3,), 1e-10, dtype=torch.float64)
    p = GaussianMixture(torch.ones(3, dtype=torch.float64), points, narrow)
    expected = (q.cauchy_schwarz(p) - p.log_norm2()) / 2
    torch.testing.assert_close(cauchy_schwarz_to_points(q, points), expected, rtol=1e-6, atol=0)


def test_closed_form_is_least_at_the_density_itself():
    points = torch.randn(20_000, 1, generator=generator(), dtype=torch.float64)

    def loss(mean, variance):
        numbers = [torch.tensor(v, dtype=torch.float64) for v in ([1.0], [[mean]], [variance])]
        return float(cauchy_schwarz_to_points(GaussianMixture(*numbers), points))

    best = loss(0.0, 1.0)
    assert best < min(loss(0.1, 1.0), loss(-0.1, 1.0), loss(0.0, 0.85), loss(0.0, 1.18))


def test_closed_form_takes_batches():
    table = torch.randn(3, 4, 2, generator=generator())
    q = GaussianMixture(torch.ones(3, 4), table, torch.ones(3, 4))
    points = torch.randn(3, 7, 2, generator=generator())
    alone = GaussianMixture(torch.ones(4), table[1], torch.ones(4))
    torch.testing.assert_close(
        cauchy_schwarz_to_points(q, points)[1], cauchy_schwarz_to_points(alone, points[1])
    )


def test_a_run_covers_all_modes_and_knows_its_density():
    chosen = toy("mixture10")
    split = split_rows(chosen.sample(3000, generator()), 0)
    settings = FitSettings(
        components=48, steps=200, refine_steps=100, refine_batch_size=512, seed=1
    )
    trainer = build_trainer(split, settings)
    assert trainer.run()
    samples = trainer.model.sample(2500, generator())
    found = mode_coverage(samples, chosen.modes.centres.double(), chosen.modes.deviation)
    assert found.modes == 10
    assert found.high_quality > 0.9
    assert trainer.task.metric() < chosen.entropy + 0.1


def test_the_average_of_the_weights_is_the_model():
    data, seen = moons(), []
    trainer = trainer_of(data, average=4)
    network = trainer.model.network
    trainer.run(on_step=lambda step: seen.append(network.means.detach().clone()))
    expected = seen[0]
    for step, means in enumerate(seen, start=1):
        # From the tenth of 30 steps on, a quarter of the way.
        share = max(0.25, 10 / (step + 10))
        expected = expected + share * (means - expected)
    torch.testing.assert_close(network.means.detach(), expected)
    assert not network.means.equal(seen[-1])


@pytest.mark.parametrize("average", [0, 5])
def test_interrupted_and_resumed_is_the_same_trajectory(tmp_path, average):
    data = moons()
    options = {"model": "network", "learning_rate": 0.01, "average": average}
    whole, first, second = (trainer_of(data, **options) for _ in range(3))
    whole.run()
    assert not first.run(folder=tmp_path, should_stop=lambda: first.step == 13)
    second.load(tmp_path / "last.safetensors")
    assert second.step == 13
    assert second.run(folder=tmp_path)
    for a, b in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert a.equal(b)
    assert whole.history[-1] == second.history[-1]


def test_a_stop_at_the_step_of_a_report_loses_no_report(tmp_path):
    whole, first, second = (trainer_of(moons(), steps=100, refine_steps=0) for _ in range(3))
    whole.run()
    at = 2 * whole.reports_every
    assert not first.run(folder=tmp_path, should_stop=lambda: first.step == at)
    second.load(tmp_path / "last.safetensors")
    second.run()
    assert second.history == whole.history


def test_best_checkpoint_is_the_best(tmp_path):
    trainer = trainer_of(moons())
    trainer.run(folder=tmp_path)
    _, content = load_checkpoint(tmp_path / "best.safetensors")
    best = min(trainer.history, key=lambda row: row["metric"])
    assert content["step"] == best["step"]


@pytest.mark.parametrize("seen", [True, False], ids=["values seen", "values unseen"])
def test_non_finite_loss_stops_with_the_last_good_checkpoint(seen, tmp_path, monkeypatch):
    # On an accelerator nobody looks at values, and NaN gets as far as the loss.
    if not seen:
        monkeypatch.setattr("internals.checks_module.is_concrete", lambda *_: False)
    trainer = trainer_of(moons(), steps=60, cost="energy")
    original = trainer.task.batch
    trainer.task.batch = lambda step: original(step) * (math.nan if step >= 40 else 1.0)
    with pytest.raises(TrainingError, match=r"step 40 .*variance .*last good checkpoint"):
        trainer.run(folder=tmp_path)
    tensors, content = load_checkpoint(tmp_path / "last.safetensors")
    assert content["step"] <= 40
    assert all(torch.isfinite(t).all() for n, t in tensors.items() if n.startswith("model"))


def test_batches_of_models_match_models_alone():
    data = torch.stack([moons(), moons() * 3 + 1])
    settings = small(refine_steps=0, steps=5)
    model, variances = build_model(data, settings)
    trainer = Trainer(RowTask(model, data, None, settings, variances), device="cpu")
    trainer.run()
    mixture = model.mixture()
    assert mixture.batch_shape == (2,)
    assert mixture.sample((7,)).shape == (7, 2, 2)
    assert math.isnan(trainer.history[-1]["metric"])


def test_checkpoints_are_whole_or_refused(tmp_path):
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, {"a": torch.arange(3)}, {"step": 1})
    tensors, content = load_checkpoint(path)
    assert tensors["a"].tolist() == [0, 1, 2]
    assert content == {"step": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["c.safetensors"]
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(RunError, match="damaged"):
        load_checkpoint(path)
    with pytest.raises(RunError, match="no such checkpoint"):
        load_checkpoint(tmp_path / "none")


@pytest.mark.parametrize("rows", [15, 60])
def test_few_rows_are_fitted_as_well_as_by_one_gaussian(rows):
    x = torch.randn(rows, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    trainer = build_trainer(Split(x, x), FitSettings(steps=200, refine_steps=100), device="cpu")
    trainer.run()
    entropy = 0.5 * x.var(0, correction=0).mul(2 * math.pi * math.e).log().sum()
    assert -trainer.model.log_prob(x).mean() < entropy + 0.3


def test_small_sets_are_not_split():
    few = torch.arange(6.0).view(3, 2)
    assert split_rows(few, 0) == Split(few, few) or split_rows(few, 0).train is few
    split = split_rows(torch.arange(200.0).view(100, 2), 0)
    assert len(split.train) == 90
    assert len(split.held_out) == 10


@pytest.mark.parametrize(
    "options",
    [{"model": "generator", "cost": "likelihood"}, {"components": 0},
     {"steps": 0, "refine_steps": 0}, {"learning_rate": -1.0}, {"prior": "cauchy"},
     {"batch_size": 2.5}],
)  # fmt: skip
def test_settings_that_make_no_sense(options):
    with pytest.raises(OptionError):
        FitSettings(**options)


def test_conv_needs_square_images():
    with pytest.raises(OptionError, match="square"):
        build_model(torch.zeros(3, 2), FitSettings(model="small-conv"))


@pytest.mark.parametrize(("device", "precision"), [("toaster", "32-true"), ("cpu", "3-true")])
def test_devices_that_do_not_exist(device, precision):
    with pytest.raises(OptionError, match="cannot be used here") as caught:
        build_trainer(split_rows(moons(), 0), small(), device=device, precision=precision)
    assert "\n" not in str(caught.value)


def test_mixed_precision_trains():
    trainer = build_trainer(split_rows(moons(), 0), small(), device="cpu", precision="bf16-mixed")
    assert trainer.run()
    assert math.isfinite(trainer.task.metric())
