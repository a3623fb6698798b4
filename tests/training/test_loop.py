"""The one loop: every task goes on exactly, reports before it saves, and says why it failed."""

import ast
import functools
import logging
import math
import warnings
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning import fabric
from torch import nn

import kermix
from internals import (
    METHODS,
    ClassifierTask,
    ColumnBins,
    ConditionalTask,
    FitSettings,
    GenerationTraining,
    ImageTask,
    JudgeTask,
    LabelledImages,
    ProductSettings,
    RowTask,
    SampleTask,
    TableTask,
    Task,
    Trainer,
    augmentation,
    build_model,
    load_checkpoint,
    make_fabric,
    mlp_classifier,
    toy,
    train_on_synthetic,
)
from kermix import GaussianMixture
from kermix.errors import OptionError, PoorFitWarning, TrainingError


def start(seed=0):
    return torch.Generator().manual_seed(seed)


def row_task(held_out=True, **options):
    data = toy("moons").sample(200, start())
    settings = FitSettings(
        **{"components": 6, "steps": 11, "refine_steps": 6, "batch_size": 20, **options}
    )
    model, variances = build_model(data, settings)
    return RowTask(model, data, data[:50] if held_out else None, settings, variances)


def conditional_task():
    c = torch.rand(60, 1, generator=start())
    options = {
        "components": 2,
        "width": 8,
        "steps": 7,
        "refine_steps": 8,
        "batch_size": 16,
        "contexts": 4,
    }
    return ConditionalTask(
        c, 2 * c, FitSettings(model="conditional", **options, refine_batch_size=16)
    )


def image_task(**options):
    images = np.random.default_rng(0).integers(0, 256, (40, 1, 8, 8), dtype=np.uint8)
    settings = FitSettings(
        **{"model": "codes", **options}, encoder_steps=6, steps=5, batch_size=12, width=8,
        hidden=8, code=3, noise=4, encoder_batch=8, components=4,
    )  # fmt: skip
    return ImageTask(images, np.arange(40) % 2, 2, settings, (images[:10], np.arange(10) % 2))


def classifier_task(**options):
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (40, 1, 8, 8)).astype(np.uint8)
    data = LabelledImages("random", images, draw.integers(0, 3, 40), ("a", "b", "c"))
    settings = ProductSettings(
        width=8, depth=1, output_width=8, epochs=4, batch_size=10, shift=1, **options
    )
    return ClassifierTask(data, data, settings)


def table_task(**options):
    x = torch.randn(45, 2, generator=start())
    splits = [tuple(torch.randperm(45, generator=start(s)).split([33, 12])) for s in (1, 2)]
    settings = ProductSettings(
        model="rows",
        **{"terms": 4, "width": 4, "epochs": 5, "batch_size": 8, "learning_rate": 0.03, **options},
    )
    return TableTask(x, x.square(), 2, splits, settings)


def binned_task():
    x = torch.randn(45, 2, generator=start()).double().round()  # fewer values than rows in a batch
    everything = torch.arange(45)
    settings = ProductSettings(
        model="rows", terms=4, width=4, epochs=5, batch_size=8, learning_rate=0.03
    )
    splits = [(everything, everything[:0])] * 2
    labels = (x[:, 0] > 0).long()
    return TableTask(x, labels, 2, splits, settings, ColumnBins(x.numpy()))


def judge_task():
    images, labels = torch.rand(40, 1, 6, 6, generator=start()), torch.arange(40) % 2
    network = mlp_classifier((1, 6, 6), 2, start(), width=8)  # with dropout
    changes = augmentation(flip=True, shift=1)
    return JudgeTask(network, images, labels, 4, 9, 1e-2, changes, start(3))


def sample_task():
    generator = start(1)
    means = torch.rand(3, 2, generator=generator)
    mixture = GaussianMixture(torch.ones(3) / 3, means, torch.full((3,), 0.01))
    network = nn.Sequential(nn.Linear(10, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    with torch.no_grad():
        for p in network.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    training = GenerationTraining(steps=13, batch_size=20)
    return SampleTask(network, mixture, METHODS["svd"], training, generator)


TASKS = {
    "rows": (row_task, 9),
    "rows, second stage, average": (lambda: row_task(average=4, model="network"), 13),
    "rows, no held-out": (lambda: row_task(held_out=False, model="generator", refine_steps=0), 5),
    "conditional": (conditional_task, 5),
    "conditional, second stage": (conditional_task, 11),
    "images, autoencoder": (image_task, 3),
    "images, cost": (lambda: image_task(images_at_once=5, spaces=("codes", "coarse")), 9),
    "images, at the cost's start": (lambda: image_task(model="code-mixture", refine_steps=3), 6),
    "images, EM": (lambda: image_task(model="code-mixture", refine_steps=4), 13),
    "classifier": (lambda: classifier_task(mix=0.5, cutout=2, positions=0.5), 7),
    "classifier, end of an epoch": (lambda: classifier_task(optimizer="muon"), 8),
    "table": (table_task, 13),
    "table, end of an epoch": (table_task, 5),
    "table, bins": (binned_task, 13),
    "judge": (judge_task, 7),
    "samples": (sample_task, 7),
}


def changing(trainer):
    """Everything that training changes, and the rows of the history but for their times."""
    trainer.save(path := Path(trainer.scratch) / "state.safetensors")
    tensors, content = load_checkpoint(path)
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in content["history"]]
    return tensors, rows


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory):
    """A trainer of a task after its run, its folder, and the steps before and at each report."""

    @functools.cache
    def run_of(name):
        trainer, folder = Trainer(TASKS[name][0](), device="cpu"), tmp_path_factory.mktemp("run")
        path, seen = folder / "last.safetensors", []

        def look(row):
            before = load_checkpoint(path)[1]["step"] if path.exists() else 0
            seen.append((before, row["step"]))

        assert trainer.run(folder=folder, on_report=look)
        return trainer, path, seen

    return run_of


@pytest.mark.parametrize("name", TASKS)
def test_stopped_at_any_step_and_resumed_is_as_never_stopped(name, never_stopped, tmp_path):
    make, stop = TASKS[name]
    whole, first, second = never_stopped(name)[0], *(Trainer(make(), device="cpu") for _ in "12")
    for trainer in (whole, first, second):
        trainer.scratch = tmp_path
    assert not first.run(folder=tmp_path, should_stop=lambda: first.step == stop)
    second.load(tmp_path / "last.safetensors")
    assert second.step == stop < whole.total
    assert second.run()
    assert first.run()  # the same object goes on, too
    expected, rows = changing(whole)
    for trainer in (first, second):
        tensors, history = changing(trainer)
        assert history == rows
        assert tensors.keys() == expected.keys()
        differing = [n for n, t in tensors.items() if not t.equal(expected[n])]
        assert not differing


@pytest.mark.parametrize("name", TASKS)
def test_a_report_comes_before_its_checkpoint(name, never_stopped):
    trainer, path, seen = never_stopped(name)
    steps = [step for _, step in seen]
    assert [before for before, _ in seen] == [0, *steps[:-1]]
    content = load_checkpoint(path)[1]
    assert [row["step"] for row in content["history"]] == steps
    assert content["step"] == trainer.step == steps[-1] == trainer.total


def test_a_table_that_ended_early_stays_ended(tmp_path):
    options = {"patience": 1, "learning_rate": 0.5, "epochs": 60}
    first = Trainer(table_task(**options), device="cpu")
    assert first.run(folder=tmp_path)
    assert first.step < first.total
    again = Trainer(table_task(**options), device="cpu")
    again.load(tmp_path / "last.safetensors")
    assert again.run()
    assert again.step == first.step
    assert again.task.best_epochs(9) == first.task.best_epochs(9)
    expected = first.model.state_dict()
    assert all(t.equal(expected[n]) for n, t in again.model.state_dict().items())


class LineTask(Task):
    """A number that goes down a line, as the smallest task."""

    total, reports_every = 20, 8

    def __init__(self, spoiled=None, alone=()):
        self.model = self.module = nn.Linear(1, 1, bias=False)
        nn.init.ones_(self.model.weight)
        self.generator, self.spoiled, self.alone = start(), spoiled, alone

    def prepare(self, fabric, ranks):
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0, momentum=0.5)
        return [self.optimizer]

    def learning_rate(self, step):
        return 0.125

    def batch(self, step):
        return torch.full((1, 1), math.nan if step == self.spoiled else 1.0)

    def loss(self, forward, batch, step):
        if step in self.alone:
            with torch.no_grad():
                self.model.weight += 10
            return torch.zeros(())
        return forward(batch).sum()

    def failure(self, step):
        return f"Not finite at {step}."


def test_the_loop_takes_the_steps_of_its_optimizer():
    trainer = Trainer(LineTask(), device="cpu")
    seen = []
    trainer.run(on_step=lambda _: seen.append(trainer.model.weight.item()))
    assert seen[:3] == [1 - 0.125, 1 - 0.3125, 1 - 0.53125]  # the momentum is 1, 1.5, 1.75
    assert [row["step"] for row in trainer.history] == [8, 16, 20]


def test_a_step_in_closed_form_leaves_the_optimizer_alone():
    trainer = Trainer(LineTask(alone=(1,)), device="cpu")
    seen = []
    trainer.run(on_step=lambda _: seen.append(trainer.model.weight.item()))
    assert seen[:3] == [1 - 0.125, 11 - 0.125, 11 - 0.3125]


@pytest.mark.parametrize(("spoiled", "left"), [(3, "no checkpoint yet"), (11, "last good")])
def test_a_failure_names_its_step_and_what_is_left(spoiled, left, tmp_path):
    with pytest.raises(TrainingError, match=rf"^Not finite at {spoiled}\. .*{left}"):
        Trainer(LineTask(spoiled), device="cpu").run(folder=tmp_path)
    assert (tmp_path / "last.safetensors").exists() == (spoiled > 8)
    with pytest.raises(TrainingError, match="No checkpoint was asked for"):
        Trainer(LineTask(spoiled), device="cpu").run()


def test_a_failure_between_reports_is_not_saved_by_a_stop(tmp_path):
    trainer = Trainer(LineTask(3), device="cpu")
    with pytest.raises(TrainingError, match="at 3"):
        trainer.run(folder=tmp_path, should_stop=lambda: trainer.step == 5)
    assert not list(tmp_path.iterdir())


def test_judges_draw_from_their_seed_alone():
    images, labels = torch.rand(60, 1, 8, 8, generator=start()), torch.arange(60) % 2
    torch.manual_seed(1)
    first = train_on_synthetic(images, labels, images, labels, epochs=2, width=8)
    torch.manual_seed(2)
    assert train_on_synthetic(images, labels, images, labels, epochs=2, width=8) == first
    trainer, before = Trainer(judge_task(), device="cpu"), torch.get_rng_state()
    trainer.run()
    assert torch.get_rng_state().equal(before)


@pytest.mark.parametrize("device", ["cuda:x", "cpu:1", "toaster:0"])
def test_numbers_of_devices_that_make_no_sense(device):
    with pytest.raises(OptionError, match="cannot be used here"):
        make_fabric(device, "32-true")


def test_automatic_precision_of_a_cpu_is_float32():
    assert make_fabric("cpu", "auto")._precision.precision == "32-true"


def calls_of(names):
    """Where in kermix a method with one of these names is called."""
    root = Path(kermix.__file__).parent
    found = set()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Attribute) and called.attr in names:
                found.add((path.relative_to(root).as_posix(), called.attr))
    return found


def test_one_module_calls_an_optimizer():
    found = calls_of({"step", "backward", "zero_grad"})
    found -= {("linalg/polar.py", "step")}  # of an interval of singular values
    names = ("step", "backward", "zero_grad")
    assert found == {("training/loop.py", name) for name in names}


def fitted_means(rows):
    options = {"cost": "svd", "steps": 5, "refine_steps": 2, "device": "cpu", "random_state": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PoorFitWarning)  # after so few steps
        return kermix.KernelMixture(2, **options).fit(rows).means_


def regressor_answers(rows):
    options = {"n_terms": 4, "max_epochs": 2, "n_members": 1, "random_state": 0}
    return kermix.ProductRegressor(**options).fit(rows, rows[:, 0]).predict(rows)


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("fitted", [fitted_means, regressor_answers])
def test_a_fit_learns_where_gradients_are_off(off, fitted):
    """Seen before: weights that stayed at their start, without a word."""
    rows = torch.randn(80, 2, generator=start()).numpy()
    wanted = fitted(rows)
    with off():
        found = fitted(rows)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", ["rows", "classifier", "table"])
def test_the_loop_turns_gradients_on(name):
    def weights(context):
        trainer = Trainer(TASKS[name][0](), device="cpu")
        with context:
            trainer.run()
        return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])

    torch.testing.assert_close(weights(torch.no_grad()), weights(nullcontext()), rtol=0, atol=0)


def test_warnings_of_a_fit_name_the_line_that_called_it():
    """Seen before: a line of the loop, whose wrapper was a frame between the two."""
    rows = torch.randn(80, 2, generator=start()).numpy()
    options = {"cost": "svd", "steps": 2, "refine_steps": 1, "device": "cpu", "random_state": 0}
    with pytest.warns(PoorFitWarning) as seen:
        kermix.KernelMixture(3, **options).fit(rows)
    assert seen[0].filename == __file__
    with pytest.warns(PoorFitWarning) as seen:
        kermix.TableModel(steps=2, width=8, blocks=1, members=1).fit(rows[:12])
    assert seen[0].filename == __file__


def test_what_lightning_logs_when_it_starts_is_not_shown(monkeypatch):
    """On a GPU with tensor cores it advises to change a setting of the whole process."""
    logger = logging.getLogger("lightning.fabric.utilities.rank_zero")
    start = fabric.Fabric.__init__

    def advise(self, *arguments, **options):
        logger.info("You are using a CUDA device that has Tensor Cores.")
        logger.warning("Something is wrong.")
        start(self, *arguments, **options)

    monkeypatch.setattr(fabric.Fabric, "__init__", advise)
    monkeypatch.setattr(logger, "level", logging.INFO)
    shown = []
    monkeypatch.setattr(logger, "handle", lambda record: shown.append(record.getMessage()))
    logging.root.manager._clear_cache()
    precision = torch.get_float32_matmul_precision()
    make_fabric("cpu", "32-true")
    assert shown == ["Something is wrong."]
    assert torch.get_float32_matmul_precision() == precision
    assert logging.root.manager.disable == logging.NOTSET
