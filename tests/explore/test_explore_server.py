"""The server of the page: who may ask, what may be asked, and how it ends."""

import io
import json
import re
import shutil
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from urllib.parse import urlsplit

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import kermix as km
from explore_cases import (
    HOSTILE,
    SHORT,
    asked,
    copied_run,
    people,
    served,
    settled,
    told,
)
from internals import (
    Address,
    Explored,
    Server,
    app,
    begin_fit,
    explorable,
    free_socket,
    model_so_far,
    open_run,
)
from internals import sampling_module as drawing
from internals import watch_module as fitting
from kermix.errors import KermixError, OptionError, RunError
from processes import command


@pytest.fixture(scope="module")
def address(run):
    with served(Explored.open(run.folder)) as found:
        yield found


def test_the_page_needs_its_token_and_has_a_policy(address):
    status, headers, body = asked(address, f"/{address.token}/")
    assert status == 200
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert b"<script>" not in body, "no script in the page itself"
    for path in ("/", "/api/state", "/x/api/state", f"/{address.token}", f"/{address.token}x/"):
        status, headers, body = asked(address, path)
        assert status == 404, path
        assert b"people" not in body
    assert len(address.token) >= 16
    assert Address("127.0.0.1", 1).token != Address("127.0.0.1", 1).token


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:{port}"},
        {"Host": "127.0.0.1:1"},
        {"Host": "127.0.0.1.evil.example:{port}"},
        {"Host": "evil@127.0.0.1:{port}"},
        {"Host": ""},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "https://127.0.0.1:{port}"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
def test_other_pages_cannot_ask(address, headers):
    given = {name: value.format(port=address.port) for name, value in headers.items()}
    path = f"/{address.token}/api/ask"
    status, _, body = asked(address, path, {"given": {}}, **given)
    assert status == 403
    assert b"shares" not in body


def test_the_page_itself_and_links_to_it_are_answered(address):
    own = {"Host": f"localhost:{address.port}", "Origin": f"http://localhost:{address.port}",
           "Sec_Fetch_Site": "same-origin"}  # fmt: skip
    assert asked(address, f"/{address.token}/api/ask", {"given": {}}, **own)[0] == 200
    link = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}
    assert asked(address, f"/{address.token}/", **link)[0] == 200


@pytest.mark.parametrize(
    ("host", "header", "good"),
    [
        ("127.0.0.1", "localhost:80", True),
        ("127.0.0.1", "[::1]:80", True),
        ("127.0.0.1", "192.168.0.7:80", False),
        ("0.0.0.0", "192.168.0.7:80", True),
        ("0.0.0.0", "laptop:80", False),
        ("laptop", "laptop:80", True),
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "127.0.0.1:80/x", False),
        ("127.0.0.1", "[::1", False),
    ],
)
def test_hosts_that_may_be_named(host, header, good):
    assert Address(host, 80).allows_host(header) is good


@pytest.mark.parametrize(
    "path",
    ["../../etc/passwd", "%2e%2e/%2e%2e/etc/passwd", "..%2f..%2fserver.py", "page/index.html",
     "index.html", "api", "api/none", "/etc/passwd"],
)  # fmt: skip
def test_no_file_is_read_that_was_not_named(address, path):
    status, _, body = asked(address, f"/{address.token}/{path}")
    assert status == 404
    assert b"root:" not in body


@pytest.mark.parametrize(
    ("path", "body", "error"),
    [
        ("ask", b"{", "not JSON"),
        ("ask", b"\xff\xfe", "not JSON"),
        ("ask", b"[" * 100_000, "JSON|nested"),
        ("ask", b"[]", "an object with given"),
        ("ask", b'{"given": {"sex": "\\ud800"}}', "half a character"),
        ("likely", b'{"given": {"\\udfff": "x"}}', "half a character"),
        ("draws", b'{"given": {"sex": "\\ud800"}, "n": 3, "seed": 0}', "half a character"),
        ("ask", {"given": {}, "file": "/etc/passwd"}, "nothing else"),
        ("ask", {"given": 3}, "an object of values"),
        ("ask", {"given": {"size": "x"}}, "is not a number"),
        ("ask", b" " * (1 << 20) + b"{}", "more than 1,048,576 bytes"),
        ("draws", {"given": {}, "n": 101, "seed": 0}, "from 1 to 100"),
        ("draws.csv", {"given": {}, "n": 10**9, "seed": 0, "safe": False}, "from 1 to 100,000"),
        (
            "draws.csv",
            {"given": {"size": "x"}, "n": 1, "seed": 0, "safe": True},
            "is not a number",
        ),
        ("draws.csv", {"given": {}, "n": 1, "seed": 0, "safe": "no"}, "true or false"),
    ],
)
def test_questions_are_looked_at_before_they_are_answered(address, path, body, error):
    status, _, data = asked(address, f"/{address.token}/api/{path}", body)
    assert status == 400
    assert re.search(error, json.loads(data)["error"])


@pytest.mark.parametrize("path", ["api/ask", "api/keep"])
def test_questions_are_posted(address, path):
    assert asked(address, f"/{address.token}/{path}")[0] == 405


def test_what_the_run_tells(address, run):
    state = told(address, "state")
    assert (state["name"], state["state"], state["rows"]) == ("people.csv", "ready", 400)
    described = told(address, "model")
    assert [c["name"] for c in described["columns"]][3] == HOSTILE
    assert described["left_out"] == [{"name": "key", "kind": "key"}]
    watched = told(address, "watch")
    assert [row["step"] for row in watched["history"]][-1] == 40
    assert "no fit to stop" in told(address, "keep", {})["error"]


def test_checks_and_odd_rows_come_when_they_are_done(address, run):
    found = settled(address, "check")
    saved = json.loads((run.folder / "result.json").read_text())
    assert found["scores"]["auc"] == saved["auc"]
    assert {c["name"]: c["difference"] for c in found["columns"]} == dict(saved["columns"])
    odd = settled(address, "outliers")
    scores = run.score(people())
    assert odd["rows"][0]["row"] == int(scores.argmin()) + 2, "the line of the file"
    assert odd["rows"][0]["log_density"] == pytest.approx(scores.min(), rel=1e-5)


@pytest.mark.parametrize("safe", [False, True])
@pytest.mark.parametrize("block", [8192, 16])
def test_a_file_of_draws_is_that_of_kermix_sample(
    safe, block, address, run, tmp_path, monkeypatch
):
    monkeypatch.setattr(drawing, "network_rows_at_once", lambda network: block)
    given = {"sex": "m", HOSTILE: "=1+1"}
    body = {"given": given, "n": 50, "seed": 3, "safe": safe}
    status, headers, data = asked(address, f"/{address.token}/api/draws.csv", body)
    assert (status, headers["content-type"]) == (200, "text/csv; charset=utf-8")
    assert "attachment" in headers["content-disposition"]
    out = tmp_path / "sample.csv"
    texts = [f"--given={name}={value}" for name, value in given.items()]
    arguments = ["sample", str(run.folder), "-n", "50", "--seed", "3", "-o", str(out), *texts]
    arguments += ["--spreadsheet-safe"] * safe
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert data == out.read_bytes()
    assert (b",'=1+1," in data) == safe


class Parts:
    """Draws without end, a part each time that somebody lets it."""

    def __init__(self, run):
        self.table = run.model().sample(2000, frame="arrow")
        self.drawn, self.stopped, self.free = 0, 0, threading.Event()

    def __call__(self, given, count, seed, most=0, on_rows=None):
        while True:
            try:
                while not self.free.wait(0.01):
                    on_rows(0)
            except BaseException:
                self.stopped += 1
                raise
            self.drawn += 1
            yield self.table


@pytest.fixture
def parts(run, monkeypatch):
    """A server whose files of draws do not end, and what draws them."""
    explored, found = Explored.open(run.folder), Parts(run)
    monkeypatch.setattr(explored.questions(), "draw_parts", found)
    with served(explored) as address:
        yield address, found


def download(address):
    """A client that has asked for a file, and has read nothing of it."""
    body = json.dumps({"given": {}, "n": 1000, "seed": 0, "safe": False}).encode()
    client = socket.create_connection(("127.0.0.1", address.port))
    head = f"POST /{address.token}/api/draws.csv HTTP/1.1\r\nHost: 127.0.0.1:{address.port}\r\n"
    client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return client


def test_files_of_draws_do_not_keep_others_from_asking(parts):
    address, _ = parts
    clients = [download(address) for _ in range(4)]
    begun = time.monotonic()
    assert "size" in told(address, "ask", {"given": {"sex": "m"}})
    assert time.monotonic() - begun < 5
    for client in clients:
        client.close()


def test_a_file_is_drawn_as_long_as_somebody_reads_it(parts):
    address, found = parts
    found.free.set()
    client = download(address)
    assert client.recv(100).startswith(b"HTTP/1.1 200")
    client.close()
    seen = -1
    while seen != found.drawn:  # until nobody draws any more
        seen = found.drawn
        time.sleep(0.3)
    with download(address) as slow:
        assert slow.recv(100).startswith(b"HTTP/1.1 200")
        time.sleep(0.5)
        held, _ = found.drawn, time.sleep(0.5)
        assert found.drawn - held <= 1, "what is not read is not drawn"


def test_the_server_ends_while_files_are_drawn(run, monkeypatch, capfd):
    explored, found = Explored.open(run.folder), Parts(run)
    monkeypatch.setattr(explored.questions(), "draw_parts", found)
    with served(explored) as address:
        clients = [download(address) for _ in range(3)]
        told(address, "state")
        time.sleep(0.1)
        begun = time.monotonic()
    assert time.monotonic() - begun < 4
    assert found.stopped >= 1
    for client in clients:
        client.close()
    assert "Traceback" not in capfd.readouterr().err


def test_an_address_with_a_slash_too_many_is_not_there(address):
    status, headers, _ = asked(address, f"/{address.token}/api/state/")
    assert status == 404
    assert "location" not in headers


def test_many_ask_at_once_and_nobody_gets_the_answer_of_another(address):
    given = [{"sex": "f"}, {"sex": "m"}, {"size": "180"}, {}]
    alone = [told(address, "ask", {"given": g}) for g in given]
    with ThreadPoolExecutor(20) as pool:
        found = list(pool.map(lambda k: told(address, "ask", {"given": given[k % 4]}), range(20)))
    for k, answer in enumerate(found):
        for name, column in answer.items():
            expected = alone[k % 4][name]["shares"]
            assert column["shares"] == pytest.approx(expected, abs=1e-5)


def test_a_busy_port_picks_the_next():
    first = free_socket("127.0.0.1", 0)
    port = first.getsockname()[1]
    second = free_socket("127.0.0.1", port)
    assert port < second.getsockname()[1] < port + 50
    first.close()
    second.close()
    with pytest.raises(OptionError, match="not an address of this machine"):
        free_socket("no such host", 0)
    with pytest.raises(OptionError, match="from 0 to 65535"):
        free_socket("127.0.0.1", 70_000)


def test_ctrl_c_ends_the_command(run):
    """In a process of its own, as a user has it; another host is warned of."""
    options = ("--no-browser", "--host", "0.0.0.0", "--port", "0")
    with command("explore", run.folder, *options) as process:
        _stopped_by_ctrl_c(process)


def _stopped_by_ctrl_c(process):
    process.wait_for(lambda: "Press Ctrl-C to stop." in process.output)
    parts = urlsplit(re.search(r"http://\S+", process.output)[0])
    found = Address("0.0.0.0", parts.port, parts.path.strip("/"))
    process.wait_for(lambda: _answers(parts.port))
    assert told(found, "state")["state"] == "ready"
    process.send(signal.SIGINT)
    assert process.wait() == 130, process.output
    assert "Warning: the page can be opened from other machines" in process.output
    assert "Stopped." in process.output
    assert "Traceback" not in process.output
    assert not _answers(parts.port)


def _answers(port):
    with socket.socket() as other:
        return other.connect_ex(("127.0.0.1", port)) == 0


class Asking(io.StringIO):
    """Input that says something once a training has reported."""

    def __init__(self, text, folder):
        super().__init__(text)
        self.folder = folder

    def __iter__(self):
        wait = threading.Event()
        metrics = self.folder / "metrics.csv"
        while not metrics.exists() or metrics.read_text().count("\n") < 2:
            wait.wait(0.01)
        yield from self.getvalue().splitlines()


@pytest.mark.parametrize(("text", "state"), [("keep\n", "ready"), ("", "stopped")])
def test_a_fit_is_stopped_and_kept_or_saved(text, state, tmp_path, monkeypatch):
    people().to_csv(tmp_path / "people.csv", index=False)
    options = {**SHORT, "steps": 4000}
    run, _ = begin_fit(tmp_path / "people.csv", out=tmp_path / "run", **options)
    monkeypatch.setattr(sys, "stdin", Asking(text, run.folder))
    assert fitting.main(str(run.folder)) == 0
    assert Explored(explorable(run)).state == state
    assert not (run.folder / "lock").exists()
    if state == "ready":
        model = open_run(run.folder).model()
        assert 0 < model.n_iter_ < 4000
        assert model.sample(3).shape == (3, 7)
    else:
        with pytest.raises(RunError, match="kermix resume"):
            Explored.open(run.folder)
    # What was seen so far can be looked at, and a training can go on, either way.
    so_far = model_so_far(run)
    assert so_far.n_iter_ < 4000
    assert len(so_far.sample(3)) == 3


def test_a_fit_that_fails_says_why(tmp_path, capsys):
    assert fitting.main(str(tmp_path / "none")) == 2
    assert "there is no such folder" in capsys.readouterr().err


def test_a_fit_whose_process_is_killed_has_failed(tmp_path, monkeypatch):
    """As where memory runs out; the lock that is left behind does not look like a training."""
    waits = "import sys, time; open(sys.argv[1] + '/lock', 'w').close(); time.sleep(60)"
    monkeypatch.setattr(fitting, "COMMAND", (sys.executable, "-c", waits))
    people().to_csv(tmp_path / "people.csv", index=False)
    run, data = begin_fit(tmp_path / "people.csv", out=tmp_path / "run", **SHORT)
    explored = Explored(explorable(run), data, fit=True)
    with served(explored) as address:
        assert told(address, "state")["state"] == "training"
        while not (run.folder / "lock").exists():
            pass
        explored.fitting._process.kill()
        explored.fitting._process.wait()
        state = told(address, "state")
        assert state["state"] == "failed"
        assert "killed by signal SIGKILL" in state["error"]
        error = told(address, "ask", {"given": {}})["error"]
        assert re.search("Training failed: .*SIGKILL.* kermix resume", error)
    assert explored.state == "failed", "also when it is closed"
    assert "SIGKILL" in explored.fitting.failed
    with pytest.raises(RunError, match="training is not finished"):
        Explored.open(run.folder)


def test_a_fit_of_rows_is_asked_in_closed_form(tmp_path):
    table = pd.DataFrame(people()[["size", "income"]]).round({"size": 0})  # values are shared
    run = km.fit(table, out=tmp_path / "run", model="mixture", steps=20, refine_steps=20,
                 components=4, device="cpu")  # fmt: skip
    explored = Explored.open(run.folder)
    answer = explored.questions().ask({"size": "180"})
    mixture = run.model().mixture()
    seen = mixture.log_prob(mixture.means.new_tensor([[180.0, 20_000.0], [180.0, 30_000.0]]))
    found = explored.questions().model.conditional("income", {"size": 180.0})
    places = found.column.map(np.array([20_000.0, 30_000.0]))
    logs = [found.log_density(np.zeros(1, np.int64), places[k : k + 1])[0] for k in range(2)]
    assert float(logs[1] - logs[0]) == pytest.approx(float(seen[1] - seen[0]), rel=1e-4)
    assert 10_000 < float(answer["income"]["middle"]) < 50_000
    with served(explored) as address:
        assert settled(address, "check")["scores"]["density_name"] == "held-out log-density"
        odd = settled(address, "outliers")["rows"][0]
        assert odd["log_density"] == pytest.approx(float(run.score(table).min()), rel=1e-5)
        body = {"given": {"size": "180"}, "n": 5, "seed": 0, "safe": False}
        _, _, data = asked(address, f"/{address.token}/api/draws.csv", body)
        assert pd.read_csv(io.BytesIO(data))["size"].tolist() == [180.0] * 5
    # Runs that cannot be asked are refused with what to do.
    other = {**run.config["settings"], "model": "generator", "refine_steps": 0}
    for change, error in (
        ({"settings": other}, "no density to query"),
        ({"image": [1, 1, 2]}, "images"),
        ({"columns": ["x"] * 201}, "201 columns, but a page can show at most 200"),
    ):
        with pytest.raises(OptionError, match=error):
            explorable(replace(run, config={**run.config, **change}))
    with pytest.raises(KermixError, match=r"no config\.json"):
        Explored.open(tmp_path)


def test_odd_rows_of_a_mixture_are_lines_of_the_file(tmp_path):
    table = pd.DataFrame(people(120)[["size", "income"]])
    table.loc[40, "size"] = np.nan  # left out, and counted
    table.loc[77, "size"] = 400.0
    table.to_csv(tmp_path / "people.csv", index=False)
    run = km.fit(tmp_path / "people.csv", out=tmp_path / "run", model="mixture", steps=10,
                 refine_steps=5, components=2, device="cpu")  # fmt: skip
    lines = (tmp_path / "people.csv").read_text().splitlines()
    with served(Explored.open(run.folder)) as address:
        odd = settled(address, "outliers")["rows"]
        assert odd[0]["row"] == 79
        for row in odd[:5]:
            assert lines[row["row"] - 1].startswith(f"{float(row['values']['size'])},")


def test_a_table_that_is_gone_leaves_the_questions(run, tmp_path):
    gone = copied_run(run, tmp_path / "run", data=str(tmp_path / "gone.csv"))
    with served(Explored.open(gone)) as address:
        assert "size" in told(address, "ask", {"given": {}})
        assert "size" in told(address, "likely", {"given": {}})
        told(address, "outliers")
        while (found := told(address, "outliers"))["state"] == "working":
            pass
        assert "cannot be read" in found["error"]


@pytest.mark.parametrize("damage", ["no model", "half a model", "no schema", "no such schema"])
def test_a_run_that_cannot_be_read_is_refused_before_there_is_a_page(
    damage, run, tmp_path, monkeypatch
):
    monkeypatch.setattr(Server, "run", lambda *_, **__: pytest.fail("a page"))
    folder = copied_run(run, tmp_path / "run")
    shutil.copy(run.folder / "config.json", folder)  # without what this process has added
    path = folder / ("schema.json" if "schema" in damage else "checkpoint/model.safetensors")
    if damage.startswith("no "):
        path.unlink()
    if damage == "no such schema":
        path.write_text('{"columns": 3}')
    elif damage == "half a model":
        path.write_bytes(path.read_bytes()[:300])
    arguments = ["explore", str(folder), "--no-browser", "--port", "0"]
    found = CliRunner().invoke(app, arguments)
    assert isinstance(found.exception, KermixError)
    assert "http" not in found.output


def test_the_command_refuses_what_is_not_there(tmp_path):
    def said(*arguments):
        return CliRunner().invoke(app, ["explore", *map(str, arguments)]).exception

    assert "no such file" in str(said("none.csv"))
    assert "no such run folder or table" in str(said("runs/none"))


@pytest.mark.parametrize("path", ["ask", "draws.csv"])
def test_who_leaves_in_the_middle_of_a_question_is_no_error(path, run, capfd):
    with served(Explored.open(run.folder)) as address:
        with socket.create_connection(("127.0.0.1", address.port), timeout=30) as leaving:
            head = (
                f"POST /{address.token}/api/{path} HTTP/1.1\r\nHost: {address.url.split('/')[2]}"
            )
            leaving.sendall(f"{head}\r\nContent-Length: 100\r\n\r\n{{".encode())
            time.sleep(0.3)
        time.sleep(0.3)
        assert told(address, "state")["state"] == "ready"
    error = capfd.readouterr().err
    assert "Traceback" not in error
    assert "ClientDisconnect" not in error
