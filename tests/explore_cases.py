"""What tests of the page share: a run of a table with odd names, and a server of it."""

import contextlib
import json
import os
import shutil
import sys
import threading
import time
from http.client import HTTPConnection

import numpy as np
import pandas as pd

import kermix as km
from internals import Address, application, free_socket, server_of
from internals import watch_module as fitting
from processes import Process

HOSTILE = '<img src=x onerror="alert(1)">'
EVIL = "</script><script>alert(2)</script>"
SHORT = {"steps": 40, "width": 16, "blocks": 1, "device": "cpu"}


def people(rows=400, seed=0):
    """Size depends on sex, pets have gaps, and one column is called like an attack."""
    rng = np.random.default_rng(seed)
    sex = rng.choice(["f", "m"], rows)
    pets = pd.Series(rng.poisson(0.9, rows), dtype="Int64")
    return pd.DataFrame(
        {
            "sex": sex,
            "size": rng.normal(168 + 12 * (sex == "m"), 5).round(1),
            "pets": pets.mask(rng.random(rows) < 0.1),
            HOSTILE: rng.choice(["a", EVIL, "=1+1"], rows),
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, rows), "D"),
            "income": np.exp(rng.normal(10, 0.5, rows)),
            "key": [f"P-{k:04d}" for k in range(rows)],
        }
    )


def people_run(folder, **options):
    """A short fit of the table in a file."""
    folder.mkdir(parents=True, exist_ok=True)
    people().to_csv(folder / "people.csv", index=False)
    return km.fit(folder / "people.csv", out=folder / "run", **{**SHORT, **options})


@contextlib.contextmanager
def served(explored, host="127.0.0.1"):
    """The address of a server of a run, in a thread."""
    listening = free_socket(host, 0)
    address = Address(host, listening.getsockname()[1])
    server = server_of(application(explored, address))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        while not server.started:
            time.sleep(0.005)
        yield address
    finally:
        server.should_exit = True
        thread.join(20)
        listening.close()
        explored.close()
    assert not thread.is_alive()


def asked(address, path, body=None, method=None, **headers):
    """Status, headers and body of an answer."""
    connection = HTTPConnection("127.0.0.1", address.port, timeout=60)
    try:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        way = method or ("GET" if body is None else "POST")
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(way, path, data, given)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def told(address, path, body=None):
    """The JSON of an answer about the run."""
    _, _, data = asked(address, f"/{address.token}/api/{path}", body)
    return json.loads(data)


def settled(address, path, seconds=60):
    """The JSON of an answer that takes a while."""
    end = time.monotonic() + seconds
    while (found := told(address, path))["state"] == "working":
        assert time.monotonic() < end
        time.sleep(0.02)
    assert found["state"] == "done", found
    return found


def copied_run(run, folder, **changes):
    """The folder of a run, with other facts in its configuration."""
    shutil.copytree(run.folder, folder)
    config = {**run.config, **changes}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


# The program that a page starts: hands what it reads to the process below, and ends as that does.
RELAY = """
import shutil, sys, threading
def forward():
    with open(sys.argv[1], "wb", 0) as words:
        shutil.copyfileobj(sys.stdin.buffer.raw, words)
threading.Thread(target=forward, daemon=True).start()
with open(sys.argv[2]) as status:
    sys.exit(int(status.read()))
"""


@contextlib.contextmanager
def quick_fitting(folder, monkeypatch):
    """A page's fit of a run, by a process that has the modules of tests already."""
    words, status = folder / "words", folder / "status"
    for path in (words, status):
        os.mkfifo(path)
    command = (sys.executable, "-I", "-S", "-c", RELAY, str(words), str(status))
    monkeypatch.setattr(fitting, "COMMAND", command)
    with Process(fit_as_told, folder / "run", words, status):
        yield


def fit_as_told(folder, words, status):
    """Train the run in a folder, as `python -m kermix.explore.watch` does."""
    sys.stdin = open(words)  # noqa: SIM115 (a thread reads it to the end)
    ended = fitting.main(str(folder))
    status.write_text(str(ended))
    os._exit(ended)
