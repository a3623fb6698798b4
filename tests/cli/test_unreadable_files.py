"""Files that no command can read: one sentence each, before anything waits."""

import os
import threading
import time

import pandas as pd
import pytest

from commands import kermix
from kermix.errors import KermixError, MissingExtraError, TableError

COMMANDS = {
    "fit": lambda path, out: ("fit", path, "--steps", 2, "--out", out / "run"),
    "compare": lambda path, out: ("compare", path, path),
    "evaluate": lambda path, out: ("evaluate", path, path),
    "sketch": lambda path, out: ("sketch", path, "-o", out / "a.sketch"),
    "drift": lambda path, out: ("drift", path, "--by", "a"),
    "schema": lambda path, out: ("schema", path),
}


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    """Parquet files: half of one, one of altered bytes, one whose footer is altered, and none."""
    folder = tmp_path_factory.mktemp("damaged")
    whole = folder / "whole.parquet"
    pd.DataFrame({"a": range(300), "b": ["x", "y", "z"] * 100}).to_parquet(whole)
    content = whole.read_bytes()
    pages, footer = bytearray(content), bytearray(content)
    pages[4:60] = bytes(b ^ 255 for b in pages[4:60])
    footer[-200:-20] = bytes(b ^ 255 for b in footer[-200:-20])
    parts = {"half": content[: len(content) // 2], "pages": pages, "footer": footer, "none": b""}
    for name, part in parts.items():
        (folder / f"{name}.parquet").write_bytes(part)
    return folder


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", ["half", "pages", "footer", "none"])
def test_a_damaged_parquet_file_is_named(command, name, damaged, tmp_path):
    path = damaged / f"{name}.parquet"
    with pytest.raises(TableError, match=rf"^{path}: not a readable Parquet file \([^\n]*\)\.$"):
        kermix(*COMMANDS[command](path, tmp_path))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("end", ["csv", "parquet", "npy"])
def test_a_pipe_is_refused_and_not_waited_for(command, end, tmp_path):
    path = tmp_path / f"pipe.{end}"
    os.mkfifo(path)
    threading.Thread(target=_let_go, args=(path,), daemon=True).start()
    start = time.monotonic()
    with pytest.raises(TableError, match=rf"^{path}: a pipe or device, .* to a file first\.$"):
        kermix(*COMMANDS[command](path, tmp_path))
    assert time.monotonic() - start < 5


def _let_go(path):
    """End a command that waits for somebody to write, so that a test fails and does not hang."""
    time.sleep(8)
    if path.exists():
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))


@pytest.mark.parametrize("command", [c for c in COMMANDS if c != "sketch"])
@pytest.mark.parametrize("address", ["http://nowhere.invalid/t.csv", "s3://bucket/t.parquet"])
def test_a_file_of_another_machine_is_called_that(command, address, tmp_path, monkeypatch):
    def nowhere(*_):
        raise MissingExtraError(f"{address}: Install a thing.")

    monkeypatch.setattr("internals.common_module._filesystem", nowhere)
    with pytest.raises(KermixError) as raised:
        kermix(*COMMANDS[command](address, tmp_path))
    said = str(raised.value)
    assert said.startswith(f"{address}: ")
    assert "copy it to this one" in said or "Install" in said
    assert "no such file" not in said
