"""`kermix fit` and its companions: what they write, how they stop, what they refuse."""

import json
import os
import pty
import re
import signal
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from typer.testing import CliRunner

from internals import (
    BUILT_IN,
    Run,
    app,
    begin_folder,
    lasting_source,
    load_checkpoint,
    main,
    next_free_folder,
    open_run,
)
from internals import build_split_rows as split_rows
from kermix.errors import KermixError, RunError, TrainingError
from processes import command

SHORT = ["--steps", "10", "--refine-steps", "4", "--components", "8", "--batch-size", "32"]


def kermix(*arguments):
    """Run a command; its error, if it raises one of ours, is raised here."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if isinstance(result.exception, KermixError):
        raise result.exception
    return result


@pytest.fixture(scope="module")
def moons(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "moons"
    result = kermix("fit", "moons", *SHORT, "--rows", 500, "--out", folder)
    assert result.exit_code == 0, result.output
    return folder


def test_run_folder_holds_everything(moons):
    names = {p.name for p in moons.iterdir()}
    assert names == {
        "config.json", "metrics.csv", "checkpoint", "samples.npy", "figure.svg", "report.html",
    }  # fmt: skip
    assert np.load(moons / "samples.npy").shape == (2500, 2)
    lines = (moons / "metrics.csv").read_text().splitlines()
    assert lines[0] == "step,loss,variance,metric"
    assert lines[-1].startswith("14,")
    config = json.loads((moons / "config.json").read_text())
    assert config["settings"]["steps"] == 10
    page = (moons / "report.html").read_text()
    assert f"<pre>{' '.join(config['command'])}</pre>" in page


def test_existing_folder_is_never_overwritten(moons):
    before = (moons / "config.json").read_bytes()
    with pytest.raises(RunError, match=r"will not be overwritten.*kermix resume"):
        kermix("fit", "moons", "--out", moons)
    assert (moons / "config.json").read_bytes() == before
    with pytest.raises(RunError, match=r"will not be overwritten; choose another --out\.$"):
        kermix("fit", "moons", "--out", moons.parent)  # no run, so nothing to go on with
    for name in ("fit", "classify"):  # before data are read, which may take minutes
        with pytest.raises(RunError, match="will not be overwritten"):
            kermix(name, "nowhere", "--out", moons)


def test_a_run_begins_in_a_folder_of_its_own(tmp_path):
    with pytest.raises(RunError, match="will not be overwritten"):
        begin_folder(tmp_path)
    begin_folder(tmp_path / "new" / "run")
    assert (tmp_path / "new" / "run").is_dir()


def test_a_name_is_a_set_even_where_a_folder_is_called_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "moons").mkdir()
    (tmp_path / "my.csv").touch()
    assert lasting_source("moons", BUILT_IN) == "moons"
    assert lasting_source("celeba:Smiling", BUILT_IN) == "celeba:Smiling"
    assert lasting_source("my.csv", BUILT_IN) == str(tmp_path / "my.csv")
    result = kermix("fit", "moons", *SHORT, "--rows", 100, "--out", "run")
    assert result.exit_code == 0, result.output
    assert json.loads(Path("run/config.json").read_text())["data"] == "moons"
    assert kermix("resume", "run").exit_code == 0


def test_default_folders_are_numbered(tmp_path):
    assert next_free_folder("a", tmp_path) == tmp_path / "a"
    (tmp_path / "a").mkdir()
    assert next_free_folder("a", tmp_path) == tmp_path / "a-2"


def test_columns_are_scored_by_name(tmp_path):
    rows = np.random.default_rng(0).normal(size=(200, 2)) * [1, 5]
    for name, header, values in (("ab", "a,b", rows), ("ba", "b,a", rows[:, ::-1])):
        np.savetxt(tmp_path / f"{name}.csv", values, delimiter=",", header=header, comments="")
    for name, header, values in (("01", "x0,x1", rows), ("10", "x1,x0", rows[:, ::-1])):
        np.savetxt(tmp_path / f"{name}.csv", values, delimiter=",", header=header, comments="")
    np.savetxt(tmp_path / "ac.csv", rows, delimiter=",", header="a,c", comments="")
    run = tmp_path / "run"
    options = ("--steps", 5, "--refine-steps", 5, "--components", 3)
    assert kermix("fit", tmp_path / "ab.csv", *options, "--out", run).exit_code == 0
    for name in ("ab", "ba"):
        kermix("score", run, tmp_path / f"{name}.csv", "-o", tmp_path / f"{name}.npy")
    np.testing.assert_allclose(np.load(tmp_path / "ab.npy"), np.load(tmp_path / "ba.npy"))
    with pytest.raises(KermixError, match="the names must match"):
        kermix("score", run, tmp_path / "ac.csv")
    plain = tmp_path / "plain"
    assert kermix("fit", tmp_path / "01.csv", *options, "--out", plain).exit_code == 0
    for name in ("01", "10"):
        kermix("score", plain, tmp_path / f"{name}.csv", "-o", tmp_path / f"{name}.npy")
    np.testing.assert_allclose(np.load(tmp_path / "01.npy"), np.load(tmp_path / "10.npy"))


def test_sample_and_score(moons, tmp_path):
    for name in ("s.npy", "s.csv"):
        assert kermix("sample", moons, "-n", 7, "-o", tmp_path / name).exit_code == 0
    written = np.loadtxt(tmp_path / "s.csv", delimiter=",", skiprows=1)
    np.testing.assert_allclose(written, np.load(tmp_path / "s.npy"))
    result = kermix("score", moons, tmp_path / "s.csv", "-o", tmp_path / "log.npy")
    assert result.exit_code == 0
    from_file = np.load(tmp_path / "log.npy")[:, 0]
    direct = open_run(moons).model().log_prob(open_run(moons).sample(7, 0))
    np.testing.assert_allclose(from_file, direct.numpy())
    with pytest.raises(RunError, match="exists"):
        kermix("sample", moons, "-o", tmp_path / "s.npy")
    np.save(tmp_path / "wide.npy", np.zeros((2, 3)))
    with pytest.raises(KermixError, match="3 columns"):
        kermix("score", moons, tmp_path / "wide.npy")


def _on_a_terminal(monkeypatch, *arguments):
    """What a command prints for a person."""
    reader, writer = pty.openpty()
    with open(reader, "rb", buffering=0) as seen:
        with os.fdopen(writer, "w") as terminal, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", terminal)
            app([str(a) for a in arguments], standalone_mode=False)
        return seen.read(2**16).decode().replace("\r\n", "\n")


def test_scores_are_printed_whole_to_programs_and_in_short_to_people(moons, tmp_path, monkeypatch):
    rows = _save(tmp_path / "rows.npy", np.zeros((100, 2)))
    piped = kermix("score", moons, rows).stdout.splitlines()
    assert len(piped) == 100
    seen = _on_a_terminal(monkeypatch, "score", moons, rows).splitlines()
    assert seen[:-1] == piped[:10]
    assert seen[-1] == "... and 90 more; write all of them with -o FILE"
    few = _save(tmp_path / "few.npy", np.zeros((3, 2)))
    assert len(_on_a_terminal(monkeypatch, "score", moons, few).splitlines()) == 3


def test_same_seed_same_samples(tmp_path):
    runs = [tmp_path / name for name in "abc"]
    for run, seed in zip(runs, (5, 5, 6), strict=True):
        kermix("fit", "moons", *SHORT, "--rows", 300, "--seed", seed, "--out", run)
    a, b, c = (np.load(run / "samples.npy") for run in runs)
    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(a, c)


@pytest.mark.parametrize("model", ["network", "generator", "conv"])
def test_other_models(model, tmp_path):
    data = "digits" if model == "conv" else "ring8"
    extra = [] if model == "network" else ["--refine-steps", 0]
    result = kermix(
        "fit", data, *SHORT, *extra, "--model", model, "--rows", 400, "--out", tmp_path / "run"
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert kermix("sample", tmp_path / "run", "-o", tmp_path / "s.npy").exit_code == 0


@pytest.mark.parametrize("cost", ["scalar", "vector", "matrix", "mmd", "energy", "likelihood"])
def test_other_costs(cost, tmp_path):
    result = kermix(
        "fit", "moons", *SHORT, "--cost", cost, "--rows", 200, "--out", tmp_path / "run"
    )
    assert result.exit_code == 0, result.output


def saved(folder):
    """Whether there is a checkpoint."""
    return (folder / "checkpoint" / "last.safetensors").exists()


LONG = ["ring8", "--steps", "100", "--refine-steps", "40", "--components", "16", "--batch-size",
        "32", "--rows", "300"]  # fmt: skip


def test_killed_and_resumed_ends_with_the_same_weights(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    with command("fit", *LONG, "--out", killed) as process:
        process.wait_for(lambda: saved(killed))
        process.send(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    _, content = load_checkpoint(killed / "checkpoint" / "last.safetensors")
    assert content["step"] < 140
    assert not (killed / "samples.npy").exists()
    kermix("fit", *LONG, "--out", whole)
    assert kermix("resume", killed).exit_code == 0
    for name in ("last", "best"):
        first, _ = load_checkpoint(whole / "checkpoint" / f"{name}.safetensors")
        second, _ = load_checkpoint(killed / "checkpoint" / f"{name}.safetensors")
        assert set(first) == set(second)
        for key, value in first.items():
            assert value.equal(second[key]), key
    assert (whole / "metrics.csv").read_text() == (killed / "metrics.csv").read_text()


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path):
    with command("fit", *LONG, "--out", tmp_path / "run") as process:
        process.wait_for(lambda: saved(tmp_path / "run"))
        process.send(signal.SIGINT)
        assert process.wait() == 130, process.output
        assert "kermix resume" in process.output
    _, content = load_checkpoint(tmp_path / "run" / "checkpoint" / "last.safetensors")
    assert 0 < content["step"] < 140
    assert kermix("resume", tmp_path / "run").exit_code == 0
    assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.parametrize("moment", ["trainer", "finish"])
def test_ctrl_c_around_the_steps_says_how_to_go_on(moment, tmp_path, monkeypatch):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Run, moment, lambda *a: signal.raise_signal(signal.SIGINT))
        result = kermix("fit", "moons", *SHORT, "--rows", 100, "--out", run)
    assert result.exit_code == 130
    assert f"Stopped. To continue:\n  kermix resume {run}" in result.output
    assert kermix("resume", run).exit_code == 0


def test_a_run_that_has_not_begun_cannot_be_sampled(moons, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text((moons / "config.json").read_text())
    with pytest.raises(
        RunError, match="training is not finished; continue it with: kermix resume"
    ):
        kermix("sample", tmp_path / "run", "-o", tmp_path / "s.npy")


def test_too_many_samples_are_refused_in_one_line(moons, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # main sets its own
    command = ["kermix", "sample", str(moons), "-n", str(10**15), "-o", str(tmp_path / "s.npy")]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert "Not enough memory" in capsys.readouterr().err


def test_ctrl_c_elsewhere_says_that_it_was_heard(moons, tmp_path, monkeypatch):
    monkeypatch.setattr(Run, "sample", lambda *a: signal.raise_signal(signal.SIGINT))
    result = kermix("sample", moons, "-o", tmp_path / "s.npy")
    assert result.exit_code == 130
    assert result.stderr == "Stopped.\n"
    assert not list(tmp_path.iterdir())


def _save(path, array):
    np.save(path, array)
    return path


def _text(path, text):
    path.write_text(text)
    return path


BAD = {
    "missing": (lambda d: d / "none.csv", "none.csv: there is no such file"),
    "nothing": (lambda d: "", "data name is empty"),
    "no such set": (lambda d: "monkeys", "built in are mixture10"),
    "infinite": (lambda d: _save(d / "x.npy", np.array([[1.0], [np.inf]])), "row 1, column x0"),
    "all NaN": (lambda d: _save(d / "x.npy", np.full((3, 1), np.nan)), "no row is complete"),
    "damaged": (lambda d: _text(d / "x.npy", "hello"), "x.npy: not a readable"),
    "text": (lambda d: _text(d / "x.csv", "a\nhello\nhello\n"), "no column can be modelled"),
    "text in numbers": (lambda d: _text(d / "x.csv", "a\n1\n2\nx\n"), "line 4, column a"),
    "empty folder": (lambda d: d, "no images in this folder"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_data_is_named_in_one_line(case, tmp_path):
    make, expected = BAD[case]
    with pytest.raises(KermixError, match=expected) as caught:
        kermix("fit", make(tmp_path), "--out", tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "options",
    [["--set", "cost=nothing"], ["--steps", -1], ["--model", "generator", "--refine-steps", 5],
     ["--variance", -1], ["--variance-factors", "a"], ["--variance-factors", "1,-1"],
     ["--rows", 0], ["--device", "toaster"], ["--precision", "half"], ["--size", 12],
     ["--data-root", "."]],
)  # fmt: skip
def test_bad_options_are_refused_before_anything_is_written(options, tmp_path):
    with pytest.raises(KermixError):
        kermix("fit", "moons", *options, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("n", [1, 3, 25])
def test_few_rows_and_odd_columns(n, tmp_path):
    rows = np.random.default_rng(0).normal(size=(n, 3)) * [1e6, 1e-6, 0.0] + [0, 0, 5.0]
    path = _save(tmp_path / "x.npy", rows)
    result = kermix("fit", path, *SHORT, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    samples = np.load(tmp_path / "run" / "samples.npy")
    assert np.isfinite(samples).all()
    page = (tmp_path / "run" / "report.html").read_text()
    for shown in (" ".join(result.output.split()), page):
        assert ("held-out NLL" in shown) == (n > 20)
        assert ("NLL of the rows fitted" in shown) == (n < 20)
        assert ("too few to hold some out" in shown) == (n < 20)
        assert ("two sets of data" in shown) == (n > 20)
        assert ("x: constant column: x2. Samples vary around its value" in shown) == (n > 1)
        assert "nan" not in shown.lower().split()


@pytest.mark.parametrize(("gap", "better"), [(0.0, False), (8.0, True)])
def test_one_gaussian_is_beside_the_fit(gap, better, tmp_path):
    """Its number is that of SciPy on the same rows; the model is not better on normal ones."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(400, 2)) + gap * rng.integers(0, 2, (400, 1))
    path = _save(tmp_path / "x.npy", rows)
    options = ("--steps", 30, "--refine-steps", 80, "--components", 4, "--model", "mixture")
    result = kermix("fit", path, *options, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    split = split_rows(torch.tensor(rows), open_run(tmp_path / "run").settings.seed)
    train, held = split.train.numpy(), split.held_out.numpy()
    law = multivariate_normal(train.mean(0), np.cov(train.T))
    page = (tmp_path / "run" / "report.html").read_text()
    for shown in (" ".join(result.output.split()), page):
        assert ("not clearly better than one Gaussian" in shown) != better
        number = re.search(r"NLL of one Gaussian\D+(\d+\.\d+) nats", shown)
        assert float(number[1]) == pytest.approx(-law.logpdf(held).mean(), abs=0.05)


def test_some_rows_of_a_file_on_request(tmp_path):
    rows = np.random.default_rng(0).normal(size=(300, 2))
    path = _save(tmp_path / "x.npy", rows)
    result = kermix("fit", path, *SHORT, "--rows", 50, "--out", tmp_path / "run")
    assert "x, 50 x 2" in result.output
    assert "--rows 50" in (tmp_path / "run" / "report.html").read_text()
    assert kermix("resume", tmp_path / "run").exit_code == 0  # the same rows are drawn again


def test_a_rate_that_is_far_too_high_is_named(tmp_path):
    options = ("--learning-rate", "1e30", "--steps", 30, "--refine-steps", 0, "--rows", 200)
    with pytest.raises(TrainingError, match=r"learning rate peak 1e\+30"):
        kermix("fit", "moons", *options, "--out", tmp_path / "run")


def test_unwritable_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be created"):
        kermix("fit", "moons", "--out", tmp_path / "file" / "run")


def test_rows_with_missing_values_are_left_out_and_counted(tmp_path):
    path = _text(tmp_path / "x.csv", "a,b\n" + "1,2\n3,4\n,5\n" * 10)
    result = kermix("fit", path, *SHORT, "--out", tmp_path / "run")
    assert "10 of 30 rows have missing values" in result.output


def test_changed_data_cannot_be_resumed(tmp_path):
    path = _save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(30, 2)))
    kermix("fit", path, *SHORT, "--out", tmp_path / "run")
    _save(path, np.zeros((30, 2)))
    with pytest.raises(RunError, match="has changed"):
        kermix("resume", tmp_path / "run")


def test_folders_that_are_no_runs(tmp_path):
    with pytest.raises(RunError, match="there is no such folder"):
        kermix("resume", tmp_path / "nowhere")
    with pytest.raises(RunError, match="not a run folder"):
        kermix("resume", tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(RunError, match="damaged"):
        kermix("resume", tmp_path)
