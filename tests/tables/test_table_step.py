"""One step of the table model is the same on every device, and wine is never badly fitted."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_wine

import kermix as km
from internals import (
    MaskBatch,
    TableData,
    TableModelSettings,
    TableModelTask,
    as_frame,
    make_fabric,
)

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def table(rows=600):
    """Categories, atoms, gaps, often and always equal columns: every part of the loss."""
    rng = np.random.default_rng(0)
    bill = rng.lognormal(3, 1, rows).round(2)
    return pd.DataFrame({
        "town": rng.choice(["a", "b", "c"], rows), "bill": bill,
        "paid": np.where(rng.random(rows) < 0.5, bill, rng.lognormal(3, 1, rows).round(2)),
        "gaps": np.where(rng.random(rows) < 0.2, np.nan, rng.poisson(3, rows)), "again": bill,
        "x": rng.normal(size=rows),
    })  # fmt: skip


def stepped(device, steps=1):
    """Loss, gradient and weights after steps whose rows and questions were drawn on a CPU."""
    frame = as_frame(table())
    data = TableData.of(frame, km.Schema.infer(frame))
    assert data.layout.links
    assert data.layout.equal_pairs
    settings = TableModelSettings(width=64, blocks=2, steps=10, batch_size=256, dropout=0.1)
    here, there = (TableModelTask(data.layout, data.to_train(), settings) for _ in range(2))
    here.prepare(make_fabric("cpu", "32-true"), None)
    fabric = make_fabric(device, "32-true")
    (optimizer,) = there.prepare(fabric, None)
    there.model.train()
    for group in optimizer.param_groups:
        group["lr"] = settings.learning_rate
    for step in range(steps):
        rows, asked, masks = here.batch(step)
        moved = MaskBatch(*(part.to(fabric.device) for part in asked))
        masks = tuple(mask.to(fabric.device) for mask in masks)
        loss = there.loss(there.model, (rows.to(fabric.device), moved, masks), step)
        optimizer.zero_grad()
        loss.backward()
        gradient = torch.cat([p.grad.flatten().cpu() for p in there.model.parameters()])
        optimizer.step()
    weights = torch.cat([p.detach().flatten().cpu() for p in there.model.parameters()])
    return float(loss.detach()), gradient, weights


def test_a_step_changes_the_weights_and_repeats_itself():
    loss, gradient, weights = stepped("cpu")
    again = stepped("cpu")
    assert np.isfinite(loss)
    assert loss == again[0]
    assert torch.equal(gradient, again[1])
    assert torch.equal(weights, again[2])
    assert gradient.norm() > 0.1
    assert not torch.equal(weights, stepped("cpu", 2)[2])


@pytest.mark.parametrize(
    ("looks", "weighted"), [(1, True), (2048, False), (2049, True), (4200, False)]
)
def test_held_out_rows_are_looked_at_equally_often_whatever_the_blocks(looks, weighted):
    frame = as_frame(table())
    data = TableData.of(frame, km.Schema.infer(frame))
    rows = data.to_train()
    if weighted:
        rows = rows._replace(weights=torch.arange(600.0))
    settings = TableModelSettings(width=16, blocks=1, steps=10)
    task = TableModelTask(data.layout, rows, settings, looks=looks)
    task.prepare(make_fabric("cpu", "32-true"), None)
    held, asked = task._held, task._judging
    times = max(1, looks // len(held))
    assert len(asked.seen) == times * len(held)
    task.model.eval()
    sums = torch.zeros(len(held), dtype=torch.float64)
    for time in range(times):
        codes, values = rows.take(held)
        part = asked.part(slice(time * len(held), (time + 1) * len(held)))
        known = data.layout.implied(codes, part.seen)
        with torch.no_grad():
            found = task.model.column_log_likelihood(
                task.model(codes, values, known), codes, values, known
            )
        sums -= torch.where(known, 0.0, found * part.factors).double().sum(1)
    weights = rows.weights[held].double() if weighted else torch.ones(len(held)).double()
    expected = float((sums * weights).sum() / weights.sum() / times)
    assert task._held_out_loss() == pytest.approx(expected, rel=1e-5)


@CUDA
def test_a_step_on_a_gpu_is_that_of_a_cpu():
    on_cpu, on_gpu = stepped("cpu"), stepped("cuda")
    assert on_gpu[0] == pytest.approx(on_cpu[0], rel=1e-5)
    scale = on_cpu[1].abs().max()
    assert (on_gpu[1] - on_cpu[1]).abs().max() <= 1e-5 * scale
    # The first step of AdamW is the sign of the gradient: what is near zero may go either way.
    large = on_cpu[1].abs() > 1e-3 * scale
    assert (on_gpu[2] - on_cpu[2])[large].abs().max() <= 1e-5


def test_wine_is_never_worse_than_one_gaussian(tmp_path):
    wine = load_wine(as_frame=True).data
    run = km.fit(wine, out=tmp_path / "run", seed=3, steps=8, device="cpu")
    result = json.loads((run.folder / "result.json").read_text())
    others = {**result["models"], **dict(map(tuple, result["references"]))}
    assert result["log_density"] >= others["one Gaussian"] - 1e-9
    assert np.isfinite(run.score(wine)).all()
    assert np.isfinite(run.sample(50, seed=0).to_numpy()).all()
