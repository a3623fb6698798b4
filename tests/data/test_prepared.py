"""The cache of prepared images: whole or not at all, whoever writes and whatever fails."""

import errno
import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import time

import numpy as np
import pytest

from internals import Decoded, Plan, cache_folder, prepare_files, prepared
from internals import image_cache_module as module
from pictures import encoded
from processes import PRELOADED, Process

SHAPE = (6, 1, 2, 2)
IMAGES = np.arange(24, dtype=np.uint8).reshape(SHAPE)


def blocks():
    yield Decoded(IMAGES[:3], [0, 1, 2], [])
    yield Decoded(IMAGES[4:], [4, 5], ["d.png (truncated)"])


def plan(make=blocks):
    return Plan(SHAPE, 10 * np.arange(6), make, ("a note",))


def never():
    raise AssertionError("prepared again")


def check(found, notes=1):
    np.testing.assert_array_equal(found.images, IMAGES[[0, 1, 2, 4, 5]])
    assert found.labels.tolist() == [0, 10, 20, 40, 50]
    assert found.damaged == ("d.png (truncated)",)
    assert found.notes[0] == "a note"
    assert len(found.notes) == notes


def test_what_was_kept_is_mapped_the_next_time(tmp_path):
    check(prepared("x", plan, tmp_path))
    found = prepared("x", never, tmp_path)
    check(found)
    assert isinstance(found.images, np.memmap)
    found.images[0] = 99
    check(prepared("x", never, tmp_path))  # the file has not changed
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("name", ["images.npy", "labels.npy", "entry.json"])
@pytest.mark.parametrize("how", ["shorter", "changed", "gone"])
def test_damaged_entries_are_prepared_again(name, how, tmp_path):
    prepared("x", plan, tmp_path)
    path = tmp_path / "x" / name
    data = path.read_bytes()
    path.unlink()
    if how == "shorter":
        path.write_bytes(data[:-1])
    elif how == "changed":
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    check(prepared("x", plan, tmp_path))
    check(prepared("x", never, tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_changed_pictures_make_a_new_entry(tmp_path):
    folder, cache = tmp_path / "pictures", tmp_path / "cache"
    folder.mkdir()
    file = folder / "a.png"
    for colour in ("red", "blue"):
        file.write_bytes(encoded(colour, kind="PNG"))
        os.utime(file, ns=(0, len(colour)))
        found = prepare_files("x", folder, [file], cache=cache)
        assert found.images[0, :, 0, 0].tolist() == (
            [255, 0, 0] if colour == "red" else [0, 0, 255]
        )
    assert len(list(cache.iterdir())) == 2


def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    found = prepared("x", plan, tmp_path / "file" / "cache")
    check(found, notes=2)
    assert "Not cached in" in found.notes[1]


def test_too_little_space(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=5)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: usage)
    found = prepared("x", plan, tmp_path)
    check(found, notes=2)
    assert "are free" in found.notes[1]
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not hasattr(os, "posix_spawn"), reason="limits of file sizes are POSIX")
def prepare_on_a_full_disk(folder):
    # The limit on a file's size stands in for a full disk: write() fails half-way in both.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (135, resource.RLIM_INFINITY))
    found = prepared("x", plan, folder)
    check(found, notes=2)
    assert "File too large" in found.notes[1], found.notes


def test_a_disk_that_runs_full_while_writing(tmp_path):
    with Process(prepare_on_a_full_disk, tmp_path) as process:
        assert process.wait() == 0, process.output
    assert not list(tmp_path.iterdir()), "nothing half-written is left"


def test_an_interruption_leaves_nothing(tmp_path):
    def interrupted():
        yield Decoded(IMAGES[:3], [0, 1, 2], [])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepared("x", lambda: plan(interrupted), tmp_path)
    assert not list(tmp_path.iterdir())
    check(prepared("x", plan, tmp_path))


def test_what_a_killed_process_left_is_removed_after_a_day(tmp_path):
    for name, age in (("x.1.part", 2 * 86400), ("x.2.part", 60), ("y.1.part", 2 * 86400)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "images.npy").write_bytes(b"half")
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    check(prepared("x", plan, tmp_path))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x", "x.2.part", "y.1.part"]


def test_another_process_was_first(tmp_path):
    def slow():
        yield Decoded(IMAGES[:3], [0, 1, 2], [])
        check(prepared("x", plan, tmp_path))
        yield Decoded(IMAGES[4:], [4, 5], ["d.png (truncated)"])

    check(prepared("x", lambda: plan(slow), tmp_path))
    check(prepared("x", never, tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def prepare_in_process(folder, barrier, results):
    barrier.wait()
    try:
        for i in range(20):
            check(prepared(f"x{i}", plan, folder))
    except BaseException as error:
        results.put(repr(error))
        raise
    results.put("fine")


def test_processes_at_the_same_time(tmp_path):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    barrier, results = context.Barrier(2), context.Queue()
    processes = [
        context.Process(target=prepare_in_process, args=(tmp_path, barrier, results))
        for _ in range(2)
    ]
    for process in processes:
        process.start()
    assert [results.get(timeout=100) for _ in processes] == ["fine", "fine"]
    for process in processes:
        process.join()
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(f"x{i}" for i in range(20))


def test_small_sets_are_not_kept_unless_a_cache_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("KERMIX_CACHE", str(tmp_path / "cache"))
    check(prepared("x", plan, None))
    assert not (tmp_path / "cache").exists()
    monkeypatch.setattr(prepared, "__defaults__", (0,))
    check(prepared("x", plan, None))
    assert (tmp_path / "cache" / "x" / "entry.json").exists()
    assert "sha256" in json.loads((tmp_path / "cache" / "x" / "entry.json").read_text())


def test_where_the_cache_is(tmp_path, monkeypatch):
    monkeypatch.setenv("KERMIX_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("KERMIX_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    if sys.platform == "linux":
        assert cache_folder() == tmp_path / "user" / "kermix"
    assert cache_folder().name.lower() in ("kermix", "cache")


def test_errors_of_decoding_are_not_taken_for_a_full_disk(tmp_path):
    def failing():
        yield Decoded(IMAGES[:3], [0, 1, 2], [])
        raise OSError(errno.EIO, "the archive's disk")

    with pytest.raises(OSError, match="the archive's disk"):
        prepared("x", lambda: plan(failing), tmp_path)
