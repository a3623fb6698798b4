"""Fits over many processes: the trajectory of one, one run folder, an orderly end."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from ast import literal_eval
from multiprocessing import get_context

import numpy as np
import pytest
import torch
from test_fit_command import kermix, saved
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

import rank_checks
from internals import (
    FitSettings,
    Start,
    begin_samples,
    build_trainer,
    launch,
    load,
    load_checkpoint,
    open_run,
)
from internals import build_split_rows as split_rows
from internals import train_train as train
from kermix.errors import OptionError
from processes import PRELOADED, Process, run_command


def assert_same_fits(found, expected):
    for name, (drawn, history) in found.items():
        points, weights = expected[name][0]
        torch.testing.assert_close(drawn.points, points, rtol=1e-3, atol=1e-3, msg=name)
        if weights is not None:
            torch.testing.assert_close(drawn.weights, weights, rtol=1e-3, atol=1e-4, msg=name)
        rows = {row["step"]: row for row in expected[name][1]}
        assert history[-1]["step"] == max(rows)
        assert len(history) >= len(rows) - 1  # there is no report of the step of a stop
        for row in history:
            assert row == pytest.approx(rows[row["step"]], rel=1e-3, abs=1e-4), name


def test_trajectory_does_not_depend_on_the_number_of_processes(tmp_path):
    expected = rank_checks.fits(tmp_path / "one", 1)
    stopped = rank_checks.STOPPED
    rank_checks.fits(tmp_path / "stopped by one", 1, stopped, rank_checks.STOP_AT)
    whole, resumed = launch(rank_checks.all_fits, tmp_path, devices=2)
    assert set(whole) == set(expected)
    assert set(resumed) == set(stopped)
    assert_same_fits(whole, expected)
    assert_same_fits(resumed, expected)
    # By a rank that was not the main one, and resumed alone.
    assert_same_fits(rank_checks.fits(tmp_path / "stopped by two", 1, stopped), expected)


def test_a_rank_that_leaves_its_group_holds_nothing_of_it():
    assert launch(rank_checks.what_holds_a_group, devices=2) == (1, 0, False)


def test_batch_normalization_is_not_shared_among_processes_of_a_cpu():
    with pytest.raises(OptionError, match=r"Rank .: model='generator' has batch normalization"):
        launch(rank_checks.trains_a_generator, devices=2)


SMALL = ["moons", "--steps", "150", "--refine-steps", "30", "--components", "8", "--batch-size",
         "32", "--rows", "300"]  # fmt: skip


TORCHRUN = [*SMALL, "--steps", "10", "--strategy", "shard"]


def interrupt_when_saved(folder):
    """Send this process Ctrl-C as soon as there is a checkpoint."""
    end = time.monotonic() + 120
    while not saved(folder) and time.monotonic() < end:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)


def test_command_with_devices_is_interrupted_and_resumed_alone(tmp_path):
    # Here, because ranks are copies of a server that this process has already.
    watcher = threading.Thread(target=interrupt_when_saved, args=(tmp_path / "run",))
    watcher.start()
    result = kermix("fit", *SMALL, "--devices", 2, "--out", tmp_path / "run")
    watcher.join()
    assert result.exit_code == 130, result.output
    assert "kermix resume" in result.output
    _, content = load_checkpoint(tmp_path / "run" / "checkpoint" / "last.safetensors")
    assert 0 < content["step"] < 180
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["ranks"] == {"devices": 2, "nodes": 1, "strategy": "auto"}
    assert kermix("resume", tmp_path / "run", "--devices", 1).exit_code == 0
    names = {p.name for p in (tmp_path / "run").iterdir()}
    assert names == {
        "config.json", "metrics.csv", "checkpoint", "samples.npy", "figure.svg", "report.html",
    }  # fmt: skip
    kermix("fit", *SMALL, "--out", tmp_path / "alone")
    metrics = [np.loadtxt(tmp_path / n / "metrics.csv", delimiter=",", skiprows=1)
               for n in ("run", "alone")]  # fmt: skip
    np.testing.assert_allclose(metrics[0][:5], metrics[1][:5], rtol=1e-3)
    np.testing.assert_allclose(metrics[0][-1], metrics[1][-1], rtol=0.05)


@pytest.fixture
def _signals_as_before():
    """The agent takes signals for itself, and keeps them."""
    before = [(s, signal.getsignal(s)) for s in signal.valid_signals()]
    yield
    for number, handler in before:
        if handler is not signal.getsignal(number):
            signal.signal(number, handler)


@pytest.mark.usefixtures("_signals_as_before")
def test_ranks_of_torchs_own_agent(tmp_path):
    # What torchrun does, but with copies of the server as processes.
    get_context("forkserver").set_forkserver_preload(PRELOADED)
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=2, run_id=tmp_path.name, monitor_interval=0.05,
        rdzv_backend="c10d", rdzv_endpoint="localhost:0", start_method="forkserver",
        logs_specs=DefaultLogsSpecs(str(tmp_path / "logs"), redirects=Std.ALL),
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own
        elastic_launch(config, run_command)("fit", *TORCHRUN, "--out", str(tmp_path / "run"))
    printed = [path.read_text() for path in (tmp_path / "logs").rglob("stdout.log")]
    assert sorted(text.count("report:") for text in printed) == [0, 1]
    assert open_run(tmp_path / "run").ranks == (2, 1, "shard")


@pytest.mark.slow
def test_torchrun(tmp_path):
    command = [
        "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "kermix", "fit",
        *TORCHRUN, "--out", str(tmp_path / "run"),
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=250,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("report:") == 1
    assert open_run(tmp_path / "run").ranks == (2, 1, "shard")


def test_nodes_meet(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = [tmp_path / f"node{n}" for n in range(2)]
    with (
        Process(rank_checks.start_node, 0, port, paths[0]) as first,
        Process(rank_checks.start_node, 1, port, paths[1]) as second,
    ):
        for process in (first, second):
            assert process.wait(250) == 0, process.output
    assert literal_eval(paths[0].read_text()) == (3.0, "0", "0", "0")
    assert paths[1].read_text() == "None"


def test_a_run_from_python(tmp_path):
    dataset = load("moons", 0, rows=200)
    settings = FitSettings(components=4, steps=4, refine_steps=0, batch_size=8)
    options = {"rows": 200}
    start = Start(["kermix", "fit", "moons"], devices=2)
    run = begin_samples(tmp_path / "run", "moons", dataset, settings, start, options)
    outcome = train(run, dataset)
    assert outcome.finished
    assert outcome.step == 4
    assert run.finish(dataset, outcome)


def test_ranks_that_cannot_be(tmp_path):
    split = split_rows(torch.randn(50, 2), 0)
    with pytest.raises(OptionError, match="started alone"):
        build_trainer(split, FitSettings(components=4, batch_size=8), devices=2)
    for options, text in (
        (["--devices", 0], "devices=0"),
        (["--nodes", 2], "MASTER_ADDR"),
        (["--strategy", "magic"], "strategy='magic'"),
        (["--devices", 2, "--batch-size", 1], "batch_size=1 is shared among 2 processes"),
    ):
        folder = tmp_path / text[:6]
        with pytest.raises(OptionError, match=text):
            kermix("fit", *SMALL, *options, "--out", folder)
        assert not folder.exists()
