"""`km.fit`: the run that `kermix fit` makes, from Python, also for rows that are in memory."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import kermix as km
from internals import app, load_checkpoint, open_run
from kermix.errors import OptionError, RunError, ShapeError, TableError

SHORT = {
    "steps": 12,
    "refine_steps": 6,
    "components": 4,
    "batch_size": 32,
    "refine_batch_size": 64,
}


def rows(n=120):
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def weights(run):
    return load_checkpoint(run.last)[0]


def test_same_run_as_the_command(tmp_path):
    values = rows().numpy()
    np.save(tmp_path / "rows.npy", values)
    run = km.fit(tmp_path / "rows.npy", out=tmp_path / "python", device="cpu", **SHORT)
    options = [str(part) for name, value in SHORT.items()
               for part in (f"--{name.replace('_', '-')}", value)]  # fmt: skip
    command = ["fit", str(tmp_path / "rows.npy"), "--out", str(tmp_path / "shell")]
    result = CliRunner().invoke(app, [*command, "--device", "cpu", *options])
    assert result.exit_code == 0, result.output
    shell = open_run(tmp_path / "shell")
    for name, tensor in weights(shell).items():
        assert torch.equal(tensor, weights(run)[name]), name
    ignored = {"environment", "command"}
    python, typed = ({k: v for k, v in r.config.items() if k not in ignored} for r in (run, shell))
    assert json.loads(json.dumps(python)) == typed
    assert {p.name for p in run.folder.iterdir()} == {p.name for p in shell.folder.iterdir()}


@pytest.mark.parametrize("kind", ["tensor", "array", "frame"])
def test_rows_in_memory_are_kept_with_the_run(kind, tmp_path):
    values = rows()
    data = {
        "tensor": values,
        "array": values.numpy(),
        "frame": pd.DataFrame(values.numpy(), columns=["a", "b c", "d"]),
    }[kind]
    run = km.fit(data, out=tmp_path / "run", device="cpu", **SHORT)
    assert run.config["columns"] == (["a", "b c", "d"] if kind == "frame" else ["x0", "x1", "x2"])
    assert torch.equal(run.dataset().values, values)
    # Also where the folder was moved to.
    moved = tmp_path / "moved"
    shutil.move(run.folder, moved)
    again = open_run(moved)
    assert torch.equal(again.dataset().values, values)
    assert torch.isfinite(again.score(values)).all()
    assert again.sample(5, 0).shape == (5, 3)


def test_score_takes_what_a_fit_takes(tmp_path):
    values, names = rows(), ["a", "b", "c"]
    frame = pd.DataFrame(values.numpy(), columns=names)
    run = km.fit(frame, out=tmp_path / "run", device="cpu", **SHORT)
    scores = run.score(values)
    for data in (frame, frame[["c", "a", "b"]], values.numpy(), values.tolist()):
        assert torch.equal(run.score(data), scores)
    with pytest.raises(ShapeError, match="names must match"):
        run.score(frame.rename(columns={"a": "z"}))
    frame.loc[3, "b"] = np.nan
    with pytest.raises(TableError, match="1 of 120 rows have missing values"):
        run.score(frame)
    with pytest.raises(ShapeError, match="have 1 column,"):
        run.score(values[:, 0])


def test_interrupted_and_resumed_is_the_same(tmp_path, monkeypatch):
    whole = km.fit(rows(), out=tmp_path / "whole", device="cpu", **SHORT)
    asked = []

    def stop_at_seven():
        asked.append(1)
        return len(asked) == 7

    with monkeypatch.context() as patch:
        from contextlib import contextmanager

        @contextmanager
        def interruptions():
            yield stop_at_seven

        patch.setattr("internals.train_module.interruptions", interruptions)
        with pytest.raises(KeyboardInterrupt, match=r"Stopped at step 7; .*km\.resume\("):
            km.fit(rows(), out=tmp_path / "stopped", device="cpu", **SHORT)
    assert not (tmp_path / "stopped" / "report.html").exists()
    resumed = km.resume(tmp_path / "stopped")
    assert (tmp_path / "stopped" / "report.html").exists()
    for name, tensor in weights(whole).items():
        assert torch.equal(tensor, weights(resumed)[name]), name


def test_a_run_keeps_how_its_data_were_read(tmp_path):
    run = km.fit("moons", rows=60, out=tmp_path / "run", device="cpu", seed=3, **SHORT)
    assert run.options == {"rows": 60}
    assert len(open_run(run.folder).dataset().values) == 60
    assert "--rows 60" in run.command()


def test_images_of_rows_keep_root_and_size(tmp_path):
    from PIL import Image

    for k in range(24):
        values = np.random.default_rng(k).integers(0, 255, (12, 12), dtype=np.uint8)
        (tmp_path / "images").mkdir(exist_ok=True)
        Image.fromarray(values).save(tmp_path / "images" / f"{k}.png")
    short = {k: v for k, v in SHORT.items() if "refine" not in k}
    run = km.fit(tmp_path / "images", size=8, out=tmp_path / "run", device="cpu", **short)
    assert run.kind.name == "fit"
    assert run.options == {"size": 8}
    assert run.dataset().image == (1, 8, 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stepps": 3}, "no setting 'stepps'; did you mean steps"),
        ({"steps": -1}, "steps=-1 must be a whole number"),
        ({"rows": 5}, "rows is only for data read from files"),
        ({"model": "codes"}, "for square images"),
        ({"devices": 2}, "write the data to a file first"),
        ({"cost": "best"}, "cost='best' is not supported"),
    ],
)
def test_refusals_leave_nothing_behind(options, message, tmp_path):
    with pytest.raises(OptionError, match=message):
        km.fit(rows(), out=tmp_path / "run", **options)
    assert not any(tmp_path.iterdir())


def test_a_folder_that_exists_is_refused(tmp_path):
    with pytest.raises(RunError, match="will not be overwritten"):
        km.fit(rows(), out=tmp_path)
