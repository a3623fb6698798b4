"""A run has one process that trains it, and only as long as that process lives."""

import os
import signal
import sys
import threading
import time

import pytest
from filelock import FileLock
from typer.testing import CliRunner

from internals import Run, app, is_held, locked_run
from kermix.errors import KermixError, RunError
from processes import Process, command


def hold(folder):
    """Hold the lock of a folder for a minute."""
    with locked_run(folder):
        sys.stdout.write("held\n")
        sys.stdout.flush()
        time.sleep(60)


def kermix(*arguments):
    """Run a command; its error, if it raises one of ours, is raised here."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if isinstance(result.exception, KermixError):
        raise result.exception
    return result


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock of a folder."""
    with Process(hold, tmp_path) as process:
        process.wait_for(lambda: process.output == "held\n")
        yield process


def test_a_second_process_is_told_which_one_has_the_run(holder, tmp_path):
    seen = rf"process {holder.pid} on .* since 20\d\d-"
    with pytest.raises(RunError, match=seen), locked_run(tmp_path):
        pass


def test_a_killed_process_holds_nothing(holder, tmp_path):
    holder.send(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / "lock").exists(), "left behind, and of no effect"
    assert not is_held(tmp_path)
    with locked_run(tmp_path):
        assert str(os.getpid()) in (tmp_path / "lock").read_text()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, SystemExit])
def test_the_lock_is_released_however_a_process_leaves(error, tmp_path):
    try:
        with locked_run(tmp_path):
            with pytest.raises(RunError, match=f"process {os.getpid()} "), locked_run(tmp_path):
                pass
            if error is not None:
                raise error
    except (KeyboardInterrupt, SystemExit):
        assert error is not None
    with locked_run(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_look_neither_takes_the_lock_nor_gives_it_back(holder, tmp_path):
    assert not is_held(tmp_path / "none")
    for _ in range(3):
        assert is_held(tmp_path)
    assert (tmp_path / "lock").exists()
    with pytest.raises(RunError, match="already being trained"), locked_run(tmp_path):
        pass


def test_a_look_of_another_process_does_not_refuse_a_training(tmp_path):
    (tmp_path / "lock").touch()
    looking = FileLock(tmp_path / "lock", thread_local=False)
    looking.acquire()
    threading.Timer(0.06, looking.release).start()
    with locked_run(tmp_path):
        assert is_held(tmp_path)


def test_one_that_is_half_written_is_still_a_lock(holder, tmp_path):
    (tmp_path / "lock").write_text("")
    with pytest.raises(RunError, match="another process"), locked_run(tmp_path):
        pass


def test_where_files_cannot_be_locked_runs_go_on(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", refuse)
    with locked_run(tmp_path):
        pass


def test_a_run_in_training_cannot_be_resumed(tmp_path):
    run = tmp_path / "run"
    options = ["--steps", "3000", "--components", "8", "--rows", "300", "--out", str(run)]
    lock = run / "lock"
    with command("fit", "moons", *options) as process:
        process.wait_for(lambda: lock.exists() and lock.read_text())
        with pytest.raises(RunError, match=f"process {process.pid} "):
            kermix("resume", run)


@pytest.mark.parametrize("kind", ["images", "classify"])
def test_other_kinds_of_run_are_held_too(kind, tmp_path, monkeypatch):
    run, refused = tmp_path / "run", []

    def train(self, trainer, **callbacks):
        with pytest.raises(RunError, match=f"{run} is already being trained"):
            kermix("resume", run)
        refused.append(kind)
        return False

    monkeypatch.setattr(Run, "train", train)
    command = ["fit", squares(tmp_path)] if kind == "images" else ["classify", "digits"]
    assert kermix(*command, "--quick", "--out", run).exit_code == 130
    assert refused == [kind]
    assert not (run / "lock").exists()


def squares(folder):
    """A folder of small pictures."""
    import numpy as np

    from internals import save_png

    pixels = np.random.default_rng(0).integers(0, 255, (24, 16, 16), np.uint8)
    for i, picture in enumerate(pixels):
        save_png(picture, folder / "pictures" / f"{i}.png")
    return str(folder / "pictures")
