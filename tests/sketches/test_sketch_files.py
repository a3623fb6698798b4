"""Sketches of files: the same as of all rows at once, by one process or a cluster that breaks."""

import math
import os
import signal
import subprocess
import sys
from multiprocessing import forkserver, get_context

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import kermix as km
from internals import NystromSums, app, feature_sums
from internals import delimited_module as csv_parts
from internals import parts_module as parts
from kermix.errors import ClusterError, KermixError, OptionError, RunError, SketchError, TableError
from processes import PRELOADED
from sketch_cases import assert_same

VALUES = np.random.default_rng(0).normal(size=(3000, 3))


@pytest.fixture
def folder(tmp_path):
    for k in range(3):
        frame = pd.DataFrame(VALUES[1000 * k : 1000 * (k + 1)], columns=["a", "b", "c"])
        frame.to_parquet(tmp_path / f"{k}.parquet", row_group_size=300)
    return tmp_path


@pytest.mark.parametrize("v", [0.5, [0.1, 1.0]])
@pytest.mark.parametrize("d", [2, 10])
@pytest.mark.parametrize("weighted", [False, True])
def test_fast_sums_are_the_sums(v, d, weighted):
    """On 10,000 points, some far away, against the plain way."""
    generator = torch.Generator().manual_seed(d)
    x = torch.randn(10_000, d, generator=generator, dtype=torch.float64) + 3
    x[:3] = torch.tensor([1e3, -1e30, 1e200], dtype=torch.float64)[:, None]
    weights = torch.rand(10_000, generator=generator, dtype=torch.float64) if weighted else None
    features = km.nystrom_features(x[3:2000], v, rank=60)
    fast = NystromSums(features)(x, weights)
    # Far points have no features and are residual as a whole.
    near = feature_sums(features, x[3:], None if weights is None else weights[3:])
    far = 3.0 if weights is None else weights[:3].sum()
    plain = near._replace(total=near.total + far, residual=near.residual + far)
    for a, b in zip(fast, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11 * float(b.abs().max()))


def test_the_sketch_is_that_of_all_rows(folder):
    sketch = km.sketch_files([folder], rank=40)
    whole = km.Sketch(sketch.feature_map).update(torch.from_numpy(VALUES))
    assert_same(sketch, whole)
    assert [(f.rows, f.dropped) for f in sketch.origin.files] == [(1000, 0)] * 3
    assert sketch.origin.columns == ("a", "b", "c")
    path = sketch.save(folder / "all.sketch")
    loaded = km.Sketch.load(path)
    assert loaded.origin == sketch.origin
    assert path.stat().st_mode & 0o777 == 0o644
    assert_same(km.sketch_files([folder], rank=40), sketch)
    other = km.sketch_files([folder], rank=40, seed=1)
    assert not torch.equal(other.feature_map.parameters, sketch.feature_map.parameters)


def test_landmarks_and_scales_of_another_sketch(folder):
    wide = VALUES * [1.0, 100.0, 1.0] + [0.0, 1000.0, 0.0]
    np.save(folder / "wide.npy", wide[:1500])
    pd.DataFrame(wide[1500:, ::-1], columns=["x2", "x1", "x0"]).to_csv(folder / "wide.csv")
    first = km.sketch_files(folder / "wide.npy", rank=30)
    second = km.sketch_files(str(folder / "wide.csv"), columns=["x0", "x1", "x2"],
                             landmarks_from=first)  # fmt: skip
    spread = first.feature_map.scale.spread
    torch.testing.assert_close(spread, torch.from_numpy(wide[:1500].std(0)), rtol=0.05, atol=0)
    merged = first + second
    assert_same(merged, km.Sketch(first.feature_map).update(torch.from_numpy(wide)))
    assert merged.origin.files == first.origin.files + second.origin.files
    with pytest.raises(SketchError, match=r"wide\.npy: they would be counted twice"):
        _ = first + first
    plain = km.sketch_files(folder / "wide.npy", rank=30, standardize=False)
    with pytest.raises(SketchError, match="scaled differently"):
        _ = first + plain
    again = km.sketch_files(folder / "wide.npy", rank=30, seed=1)
    with pytest.raises(SketchError, match=r"scaled differently \(column x0\)"):
        _ = first + again


def test_a_wrong_keyword_is_answered_by_the_nearest(tmp_path):
    np.save(tmp_path / "a.npy", np.random.default_rng(0).normal(size=(200, 2)))
    with pytest.raises(OptionError, match="has no option 'delimeter'; did you mean delimiter"):
        km.sketch_files(tmp_path / "a.npy", delimeter=",")


def test_a_sample_of_pieces_finds_landmarks_everywhere(monkeypatch, tmp_path):
    """Large files are not read for the sample; a sorted one is still seen from end to end."""
    monkeypatch.setattr("internals.sketch_sampling_module.READ_WHOLE_BELOW", 0)
    monkeypatch.setattr(parts, "ROWS", 50)
    monkeypatch.setattr(parts, "PART_BYTES", 20_000)
    monkeypatch.setattr(csv_parts, "PART_BYTES", 20_000)
    monkeypatch.setattr(csv_parts.CsvPart.piece, "__defaults__", (500,))
    line = np.sort(np.random.default_rng(0).uniform(size=20_000))
    np.save(tmp_path / "line.npy", line)
    frame = pd.DataFrame({"x": line})
    frame.to_parquet(tmp_path / "line.parquet", row_group_size=100)
    frame.to_csv(tmp_path / "line.csv", index=False)
    for suffix in ("npy", "parquet", "csv"):
        sketch = km.sketch_files(tmp_path / f"line.{suffix}", variance=1e-3, rank=20)
        landmarks = sketch.feature_map.landmarks
        assert sketch.count == 20_000
        assert landmarks.min() < 0.1
        assert landmarks.max() > 0.9


def test_wrong_options_and_files(folder, tmp_path):
    sketch = km.sketch_files(folder / "0.parquet", rank=5)
    for options in ({"rank": 3}, {"variance": 1.0}, {"tolerance": 0.1}, {"standardize": True}):
        with pytest.raises(OptionError, match="landmarks_from"):
            km.sketch_files(folder, landmarks_from=sketch, **options)
    with pytest.raises(OptionError, match="dask"):
        km.sketch_files(folder, workers=2)
    with pytest.raises(OptionError, match="engine"):
        km.sketch_files(folder, engine="spark")
    np.save(tmp_path / "two.npy", VALUES[:, :2])
    with pytest.raises(KermixError, match=r"two\.npy"):
        km.sketch_files(tmp_path / "two.npy", landmarks_from=sketch)
    fourier = km.Sketch(km.fourier_features(3, 1.0, 8)).update(torch.from_numpy(VALUES))
    with pytest.raises(SketchError, match="FourierFeatures"):
        km.sketch_files(folder, landmarks_from=fourier)
    (tmp_path / "empty.csv").write_text("a,b\n,\n,\n")
    with pytest.raises(KermixError, match=r"empty\.csv"):
        km.sketch_files(tmp_path / "empty.csv")
    for function in (lambda s: km.decompose(s, s, 1.0), lambda s: km.two_sample_test(s, s)):
        with pytest.raises(KermixError, match="is a sketch"):
            function(sketch)


def invoke(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_command(folder):
    out = folder / "a.sketch"
    result = invoke("sketch", folder / "0.parquet", folder / "1.parquet", "-o", out, "--quick")
    assert result.exit_code == 0, result.output
    assert "2,000 rows of 2 files" in result.output
    assert result.output.strip().splitlines()[-1].startswith("Sketch: ")
    assert 50 < km.Sketch.load(out).feature_map.rank <= 64
    other = invoke("sketch", folder / "2.parquet", "-o", folder / "b.sketch",
                   "--landmarks-from", out)  # fmt: skip
    assert other.exit_code == 0, other.output
    assert km.compare(str(out), folder / "b.sketch").measure("svd").normalized > 0.9


def test_a_bad_file_leaves_no_sketch_and_an_older_one_as_it_was(folder):
    out, older = folder / "a.sketch", folder / "older.sketch"
    km.sketch_files(folder / "0.parquet", rank=5).save(older)
    before = older.read_bytes()
    (folder / "1.parquet").write_bytes((folder / "1.parquet").read_bytes()[:-50])
    result = invoke("sketch", folder, "-o", out)
    assert isinstance(result.exception, TableError)
    assert "1.parquet" in str(result.exception)
    assert not out.exists()
    assert not list(folder.glob("*.part"))
    for bad in (older, folder, older / "a.sketch", folder / "a.csv"):
        assert isinstance(invoke("sketch", folder, "-o", bad).exception, OptionError | RunError)
    assert older.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "there is no such file"), (b"\xff\xfa\x00\r\x00a", "not a text file in UTF-8")],
)
def test_files_that_cannot_be_sketched(content, message, tmp_path):
    if content is not None:
        (tmp_path / "x.csv").write_bytes(content)
    with pytest.raises(TableError, match=message):
        km.sketch_files(tmp_path / "x.csv")
    (tmp_path / "empty").mkdir()
    with pytest.raises(TableError, match=r"no file in this folder ends in \.parquet"):
        km.sketch_files(tmp_path / "empty")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tolerance": -1.0}, "tolerance=-1"),
        ({"tolerance": math.nan}, "tolerance=nan"),
        ({"engine": "dask", "workers": 0}, "workers=0: must be at least 1"),
    ],
)
def test_options_out_of_range(options, message, folder):
    with pytest.raises(OptionError, match=message):
        km.sketch_files(folder / "0.parquet", **options)


def test_the_bar_is_gone_before_an_error_is_shown(folder, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, as far as rich can see
    (folder / "1.parquet").write_bytes((folder / "1.parquet").read_bytes()[:-50])
    result = invoke("sketch", folder, "-o", folder / "a.sketch")
    assert isinstance(result.exception, TableError)
    bar = result.output.rindex("choosing landmarks")
    assert "\x1b[2K" in result.output[bar:]  # the line is erased


@pytest.fixture(scope="module")
def cluster():
    dask, distributed = pytest.importorskip("dask"), pytest.importorskip("distributed")
    # Workers are copies of the server that tests have: new interpreters would read torch anew.
    get_context("forkserver").set_forkserver_preload(PRELOADED)
    forkserver.ensure_running()
    with (
        dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as running,
    ):
        yield running


def test_a_killed_worker_changes_nothing(cluster, tmp_path):
    """Killed when the first part is done: its parts are done again, none is counted twice."""
    from distributed import Client

    rng = np.random.default_rng(1)
    for k in range(24):
        np.save(tmp_path / f"{k:02}.npy", rng.normal(size=(2000, 2)))
    killed = []

    def kill(size):
        if not killed:
            with Client(cluster) as client:
                killed.append(min(client.run(os.getpid).values()))
            os.kill(killed[0], signal.SIGKILL)

    alone = km.sketch_files(tmp_path, rank=60)
    sketch = km.sketch_files(
        tmp_path, rank=60, engine="dask", scheduler=cluster.scheduler_address, tick=kill
    )
    assert killed
    with Client(cluster) as client:
        client.wait_for_workers(2, timeout=60)
        assert killed[0] not in client.run(os.getpid).values(), "the worker was really gone"
    assert sketch.count == 48_000
    assert_same(sketch, alone)
    assert sketch.origin == alone.origin


def test_errors_on_workers_name_the_file_and_the_worker(cluster, monkeypatch, tmp_path):
    for k in range(5):
        (tmp_path / f"{k}.csv").write_text("a,b\n" + "1.0,2.5\n2.0,3.5\n" * 50)
    sketch = km.sketch_files(tmp_path / "0.csv", rank=2, variance=1.0)
    (tmp_path / "3.csv").write_text("a,b\n" + "1.0,2.5\n" * 50 + "1.0,inf\n")
    with pytest.raises(TableError, match=r"3\.csv, line 52, column b: .*on worker tcp://"):
        km.sketch_files(
            tmp_path, landmarks_from=sketch, engine="dask", scheduler=cluster.scheduler_address
        )
    options = {"landmarks_from": sketch, "engine": "dask", "scheduler": cluster.scheduler_address}
    assert_same(km.sketch_files(tmp_path / "0.csv", **options), sketch)
    monkeypatch.setattr("internals.sketch_files_module.SECONDS_TO_CONNECT", 1)
    with pytest.raises(ClusterError, match=r"tcp://127\.0\.0\.1:9 does not answer"):
        km.sketch_files(tmp_path / "0.csv", scheduler="tcp://127.0.0.1:9", engine="dask")


FOREIGN = {
    "missing": ("raise ImportError('not installed here')", "cannot import kermix"),
    "other version": ("__version__ = '0.0.1'", "has kermix 0.0.1"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_a_worker_without_the_package_is_named(case, tmp_path):
    distributed = pytest.importorskip("distributed")
    content, message = FOREIGN[case]
    (tmp_path / "kermix").mkdir()
    (tmp_path / "kermix" / "__init__.py").write_text(content + "\n")
    np.save(tmp_path / "x.npy", VALUES)
    with distributed.LocalCluster(n_workers=0, dashboard_address=":0") as running:
        address = running.scheduler_address
        command = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "1",
                   "--no-nanny", "--no-dashboard", "--name", "odd-one"]  # fmt: skip
        worker = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            cwd=tmp_path,
            stderr=subprocess.DEVNULL,
        )
        try:
            with pytest.raises(ClusterError, match=rf"worker tcp://\S+ {message}"):
                km.sketch_files(tmp_path / "x.npy", engine="dask", scheduler=address)
        finally:
            worker.kill()
            worker.wait()
