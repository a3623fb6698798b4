"""Steps as graphs: the same numbers as steps that are launched one by one."""

import pytest
import torch
from test_loop import TASKS, changing

from kermix.training import loop
from kermix.training.build import build_model
from kermix.training.checkpoints import RunningAverage
from kermix.training.graphs import unchanged
from kermix.training.loop import Trainer
from kermix.training.samples_task import RowTask
from kermix.training.settings import FitSettings

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are of a GPU")
KINDS = ("rows", "conditional", "table", "classifier, ")
REPLAYED = [name for name in TASKS if name.startswith(KINDS)]


class Replayed:
    """What a graph does, without one: a step from tensors, of the numbers that were sent."""

    made = 0

    def __init__(self, compute, numbers, batch, generator, device, state):
        self.compute, self.numbers = compute, numbers
        type(self).made += 1
        with unchanged(state, generator):
            for _ in range(2):
                self.replay(batch, 0)

    def replay(self, batch, step):
        return self.compute(batch, torch.tensor(self.numbers(step), dtype=torch.float64))


def replaying(make, monkeypatch):
    monkeypatch.setattr(loop, "StepGraph", Replayed)
    trainer = Trainer(make(), device="cpu")
    trainer._replays = True
    return trainer


@pytest.mark.parametrize("name", REPLAYED)
def test_a_replayed_training_is_the_training(name, monkeypatch):
    make, _ = TASKS[name]
    eager, replayed = Trainer(make(), device="cpu"), replaying(make, monkeypatch)
    Replayed.made = 0
    expected, found = (
        torch.stack([trainer._one_step() for _ in range(trainer.total)])
        for trainer in (eager, replayed)
    )
    assert Replayed.made >= 1
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    random = (trainer.task.generator.get_state() for trainer in (eager, replayed))
    assert next(random).equal(next(random))


def test_replayed_stopped_and_resumed_is_as_never_stopped(tmp_path, monkeypatch):
    make, stop = TASKS["rows, second stage, average"]
    whole, first, second = (replaying(make, monkeypatch) for _ in range(3))
    for trainer in (whole, first, second):
        trainer.scratch = tmp_path
    whole.run()
    first.run(folder=tmp_path, should_stop=lambda: first.step == stop)
    second.load(tmp_path / "last.safetensors")
    second.run()
    expected, found = changing(whole), changing(second)
    assert expected[1] == found[1]
    assert all(expected[0][key].equal(tensor) for key, tensor in found[0].items())


def test_what_was_tried_leaves_no_trace():
    kept, made = torch.ones(3), {}
    draws = torch.Generator().manual_seed(1)
    with unchanged(lambda: {"kept": kept, **made}, draws):
        kept += torch.rand(3, generator=draws)
        made["new"] = torch.ones(2)
    assert kept.tolist() == [1, 1, 1]
    assert made["new"].tolist() == [0, 0]
    assert draws.get_state().equal(torch.Generator().manual_seed(1).get_state())


def test_an_average_moves_by_a_share_on_the_device():
    model = torch.nn.Linear(3, 2)
    first, second = (RunningAverage(model, 7) for _ in range(2))
    with torch.no_grad():
        model.weight.mul_(2)
    for done in (1, 2, 30):
        first.update(done)
        second.move(torch.tensor(second.share(done), dtype=torch.float64))
    for name, tensor in first.tensors.items():
        torch.testing.assert_close(second.tensors[name], tensor, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "options",
    [{"form": "logdet", "cost": "matrix"}, {"model": "continuous"}, {"batch_size": 1}],
    ids=str,
)
def test_steps_that_a_graph_cannot_hold_are_computed_one_by_one(options):
    data = torch.rand(50, 2, generator=torch.Generator().manual_seed(0))
    settings = FitSettings(**{"components": 4, "steps": 3, "refine_steps": 0, **options})
    model, variances = build_model(data, settings)
    task = RowTask(model, data, None, settings, variances)
    Trainer(task, device="cpu")
    assert task.kind(0) is None


@on_gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
@pytest.mark.parametrize("name", REPLAYED)
def test_graphs_on_a_gpu(name, tmp_path):
    make, stop = TASKS[name]
    eager = Trainer(make(), device="cuda", graphs=False)
    whole, first, second = (Trainer(make(), device="cuda") for _ in range(3))
    for trainer in (eager, whole, first, second):
        trainer.scratch = tmp_path
    assert eager.run()
    assert whole.run()
    assert whole._captured
    first.run(folder=tmp_path, should_stop=lambda: first.step == stop)
    second.load(tmp_path / "last.safetensors")
    second.run()
    expected, found, by_one = (changing(t)[0] for t in (whole, second, eager))
    assert all(expected[key].equal(tensor) for key, tensor in found.items())
    assert expected["generator"].equal(by_one["generator"])
    # Weights drift apart, as they do for any other rounding; what they are worth does not.
    losses = ([row["loss"] for row in trainer.history] for trainer in (eager, whole))
    assert next(losses)[:3] == pytest.approx(next(losses)[:3], rel=0.05, abs=0.02)
