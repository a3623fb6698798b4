"""Files are written whole or not at all, and say so where they cannot be."""

import errno
import os

import numpy as np
import pytest

import kermix as km
from cases import normal
from internals import (
    Page,
    save_checkpoint,
    save_png,
    whole_file,
    write_array,
    write_json,
    write_metrics,
)
from kermix.errors import RunError


def _write_half(path, error):
    with whole_file(path) as part:
        part.write_text("half")
        raise error


@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
            r"a\.txt: .* \(No space left on device",
        ),
        (OSError("3 of 5 items written"), r"a\.txt: .* \(3 of 5 items written\)"),  # NumPy's
        (KeyboardInterrupt(), "^$"),
    ],
)
def test_what_fails_leaves_the_old_file_and_nothing_else(error, seen, tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    expected = RunError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected, match=seen):
        _write_half(path, error)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def _sketch(path):
    x = normal(10, 1, seed=0)
    km.Sketch(km.nystrom_features(x, 0.1, rank=3)).update(x).save(path)


WRITERS = {
    "array": lambda path: write_array(path, np.zeros(3)),
    "checkpoint": lambda path: save_checkpoint(path, {}, {}),
    "json": lambda path: write_json(path, {}),
    "metrics.csv": lambda path: write_metrics(path.parent, []),
    "page": Page("base", "a page").save,
    "picture": lambda path: save_png(np.zeros((2, 2), np.uint8), path),
    "sketch": _sketch,
}


@pytest.mark.parametrize("kind", WRITERS)
def test_all_that_write_name_the_file(kind, tmp_path):
    (tmp_path / "file").write_text("mine")
    path = tmp_path / "file" / kind
    with pytest.raises(RunError, match=f"{kind}: cannot be written"):
        WRITERS[kind](path)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
