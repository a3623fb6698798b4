"""Model files, sketches and run folders that were changed: one named error, or they are read."""

import contextlib
import copy
import json
import random
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import kermix as km
from cases import normal
from internals import open_run, read_checksummed, write_checksummed
from kermix import errors

HUGE = 10**9
VALUES = (0, -1, 1, 7, HUGE, 2**63, 10**400, 1e300, 0.5, None, True, "x", [], {}, [[1]], "int64")


def places(content, path=()):
    """Where values are in nested dictionaries and lists."""
    if path:
        yield path
    inner = content.items() if isinstance(content, dict) else ()
    inner = enumerate(content[:3]) if isinstance(content, list) else inner
    for key, value in inner:
        yield from places(value, (*path, key))


def altered(tensors, content, seed):
    """One to three things changed: a value or its type, a size, a name, a tensor."""
    draws = random.Random(seed)
    tensors, content = dict(tensors), copy.deepcopy(content)
    for _ in range(draws.choice((1, 1, 2, 3))):
        if draws.random() < 0.7:
            *way, last = draws.choice(list(places(content)))
            inner = content
            for key in way:
                inner = inner[key]
            match draws.randrange(4):
                case 0:
                    inner.pop(last)
                case 1 if isinstance(inner[last], list):
                    inner[last] = 50 * inner[last]
                case _:
                    inner[last] = copy.deepcopy(draws.choice(VALUES))
        else:
            name = draws.choice(sorted(tensors))
            tensor = tensors.pop(name)
            match draws.randrange(5):
                case 0:
                    tensors[name] = tensor.long()
                case 1:
                    tensors[name] = tensor.flatten()[: tensor.numel() // 2]
                case 2:
                    tensors[name] = tensor * torch.nan
                case 3:
                    tensors["other " + name] = tensor
        if not tensors or not content:
            break
    return tensors, content


def table(rows=80):
    rng = np.random.default_rng(0)
    number, letter = rng.normal(size=rows), rng.choice(list("abc"), rows)
    day = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 900, rows), unit="D")
    often = np.where(rng.random(rows) < 0.4, 0.0, rng.lognormal(size=rows))
    return pd.DataFrame({"n": number, "c": letter, "z": often, "day": day, "again": letter,
                         "one": 1, "s": number + often})  # fmt: skip


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    quick = {"width": 8, "blocks": 1, "steps": 2, "members": 2, "random_state": 0}
    km.TableModel(**quick, device="cpu").fit(table()).save(path)
    return path


@pytest.fixture(scope="module")
def sketch_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("sketch") / "a.sketch"
    points = normal(200, 3, seed=1)
    sketch = km.Sketch(km.nystrom_features(points, 1.0, rank=6))
    sketch.update(points)
    return sketch.save(path)


@pytest.mark.parametrize("seed", range(50))
@pytest.mark.parametrize("kind", ["model", "sketch"])
def test_an_altered_file_is_read_or_refused_by_its_name(
    kind, seed, model_file, sketch_file, tmp_path
):
    """Seen before: a raw traceback from a third of model files."""
    whole = model_file if kind == "model" else sketch_file
    read = km.TableModel.load if kind == "model" else km.Sketch.load
    tensors, content = read_checksummed(whole, "")
    tensors, content = altered(tensors, content, seed)
    path = tmp_path / "altered.safetensors"
    write_checksummed(path, tensors, json.dumps(content), "")
    if seed % 10 == 9:
        path.write_bytes(path.read_bytes()[: 40 * seed])
    begun = time.process_time()
    told = str(path)
    try:
        read(path)
    except (errors.RunError, errors.SketchError) as error:
        told = str(error)
    assert str(path) in told
    assert time.process_time() - begun < 5


@pytest.mark.parametrize("seed", [221, 304, 389, 604, 645, 652, 803, 904, 1062])
def test_an_altered_model_that_is_read_answers(seed, model_file, tmp_path):
    """Seen before: such were read, and failed raw when rows were drawn."""
    tensors, content = altered(*read_checksummed(model_file, ""), seed)
    path = tmp_path / "altered.safetensors"
    write_checksummed(path, tensors, json.dumps(content), "")
    with contextlib.suppress(errors.KermixError):  # refused where it is read, or where it answers
        model = km.TableModel.load(path)
        assert len(model.sample(20, random_state=0)) == 20
        assert len(model.score_samples(table())) == 80


@pytest.mark.parametrize(
    "size", [{"blocks": HUGE}, {"width": HUGE}, {"members": HUGE}, {"width": 3000, "blocks": 3000}]
)
def test_sizes_that_a_model_file_declares_are_those_of_its_tensors(size, model_file, tmp_path):
    """Seen before: 4.5 GiB, and a minute, for a file of 10 kB that declares 10^9 blocks."""
    tensors, content = read_checksummed(model_file, "")
    path = tmp_path / "model.safetensors"
    content["parameters"] |= size
    write_checksummed(path, tensors, json.dumps(content), "")
    begun = time.process_time()
    with pytest.raises(errors.RunError, match=r"model\.safetensors: damaged.*Remove it"):
        km.TableModel.load(path)
    assert time.process_time() - begun < 2


@pytest.mark.parametrize(
    ("name", "value"), [("blocks", HUGE), ("width", HUGE), ("members", HUGE), ("width", "wide")]
)
def test_sizes_that_a_run_declares_are_those_of_its_checkpoint(name, value, run, tmp_path):
    """Seen before: a run folder edited so hangs."""
    config = json.loads((run / "config.json").read_text())
    before = json.dumps(config)
    last = (run / "checkpoint" / "model.safetensors").read_bytes()
    config["settings"][name] = value
    (run / "config.json").write_text(json.dumps(config))
    try:
        with pytest.raises(errors.RunError, match=r"damaged"):
            open_run(run).model()
        if value == HUGE:
            (run / "checkpoint" / "last.safetensors").write_bytes(last)
            with pytest.raises(errors.RunError, match=r"last\.safetensors: damaged"):
                open_run(run).trainer(open_run(run).dataset())
    finally:
        (run / "config.json").write_text(before)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    options = {"width": 8, "blocks": 1, "steps": 2, "members": 1}
    km.fit(table(), out=folder, model="table", device="cpu", **options)
    return Path(folder)
