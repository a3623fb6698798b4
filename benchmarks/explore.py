"""How fast the page of `kermix explore` answers about adult, and whether 20 tabs are too many.

`python -m benchmarks.explore --data FOLDER`, with a folder that holds adult-train.csv.gz, or
`python -m benchmarks explore` with the environment variable KERMIX_TABLES; without one, a table of
random numbers and words with as many columns stands in. The network has its full size and is
trained for a few steps only, which changes no time.

questions: seconds from a question over HTTP to its answer, with so many columns set at random to
values of rows; `cpu s` are those of the whole process, in which the server is a thread. tabs: in
each of 20 tabs of a real Chromium another column is set at the same moment; seconds until a tab
shows the answer. tab: memory of the page in one tab after garbage is collected, as questions are
asked and as it is left open.
"""

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import kermix as km
from benchmarks.quality import default_path, write_record
from kermix.explore.query_service import texts
from kermix.explore.server import Address, application, free_socket, server_of
from kermix.explore.session import Explored

__all__ = ["main", "measured", "run"]

Row = dict[str, Any]
SETS = (0, 1, 3, 7, 15)
TABS = 20
CHROMIUM = "/usr/bin/chromium"


def table(folder: Path | None, rows: int) -> pd.DataFrame:
    """Adult, or what stands in for it."""
    if folder is not None and (folder / "adult-train.csv.gz").is_file():
        return pd.read_csv(folder / "adult-train.csv.gz").head(rows)
    rng = np.random.default_rng(0)
    words = {f"word {k}": rng.choice(list("abcdefgh")[: 2 + k], rows) for k in range(6)}
    return pd.DataFrame({**words, **{f"x{k}": rng.normal(size=rows) for k in range(3)}})


@contextmanager
def served(explored: Explored) -> Iterator[Address]:
    """A server of a run, in a thread."""
    listening = free_socket("127.0.0.1", 0)
    address = Address("127.0.0.1", listening.getsockname()[1])
    server = server_of(application(explored, address))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield address
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


def measured(folder: Path | None, quick: bool = False) -> Iterator[dict[str, list[Row]]]:
    """The tables so far, again after each."""
    data = table(folder, 300 if quick else 10**9)
    size = {"width": 16, "blocks": 1} if quick else {}
    with tempfile.TemporaryDirectory(prefix="kermix-bench-") as place:
        data.to_csv(f"{place}/table.csv", index=False)
        run = km.fit(f"{place}/table.csv", out=f"{place}/run", model="table",
                     steps=2 if quick else 40, **size)  # fmt: skip
        explored = Explored.open(run.folder)
        tables: dict[str, list[Row]] = {"questions": []}
        with served(explored) as address:
            for count in SETS:
                tables["questions"].append(_questions(explored, address, count, quick))
                yield tables
            if not Path(CHROMIUM).exists():
                return
            with _browser() as browser:
                tables["tabs"] = [_tabs(browser, address, 2 if quick else TABS)]
                yield tables
                tables["tab"] = _one_tab(browser, address, quick)
                yield tables


def _questions(explored: Explored, address: Address, count: int, quick: bool) -> Row:
    rng, frame = np.random.default_rng(count), explored.data().frame
    names = [c.name for c in explored.questions().schema.modelled]
    cells = {name: texts(frame.columns[name].slice(0, 1000)) for name in names}
    seconds, cpu = [], []
    load = os.getloadavg()[0]
    for k in range(3 if quick else 40):
        row = int(rng.integers(min(1000, frame.rows)))
        given = {n: cells[n][row] for n in rng.permutation(names)[:count].tolist()}
        body = json.dumps({"given": given}).encode()
        start, busy = time.perf_counter(), time.process_time()
        request = urllib.request.Request(f"{address.url}api/ask", body)
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()
        if k:  # the first one loads
            seconds.append(time.perf_counter() - start)
            cpu.append(time.process_time() - busy)
    return {"columns": len(names), "set": min(count, len(names)), "questions": len(seconds),
            "median s": statistics.median(seconds), "95 % s": float(np.quantile(seconds, 0.95)),
            "cpu s": statistics.median(cpu), "load before": load}  # fmt: skip


@contextmanager
def _browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=options)
        yield browser
        browser.close()


ASKED = "() => document.querySelector('#ask')?.dataset.answers"
ASK_AT = """([at, k]) => new Promise((done) => setTimeout(() => {
  const ask = document.querySelector('#ask'), before = ask.dataset.answers;
  const start = performance.now();
  const choices = ask.querySelectorAll('select'), choice = choices[k % choices.length];
  choice.selectedIndex = 1 + (choice.selectedIndex % (choice.options.length - 1));
  choice.dispatchEvent(new Event('change'));
  const look = () => (ask.dataset.answers === before ? setTimeout(look, 5)
    : done([(performance.now() - start) / 1000, document.querySelector('#alert').textContent]));
  look();
}, Math.max(0, at - Date.now())))"""


def _tabs(browser: Any, address: Address, count: int) -> Row:
    load = os.getloadavg()[0]
    pages = []
    for _ in range(count):
        page = browser.new_page()
        page.goto(address.url)
        page.wait_for_function(ASKED)
        pages.append(page)
    at = (time.time() + 2) * 1000
    # Asked of all pages before the first answers: each waits for the same moment by itself.
    for k, page in enumerate(pages):
        page.evaluate(f"told => {{ window.found = ({ASK_AT})(told); }}", [at, k])
    found = [page.evaluate("() => window.found") for page in pages]
    for page in pages:
        page.close()
    seconds = [each[0] for each in found]
    return {"tabs": count, "errors": sum(bool(each[1]) for each in found),
            "median s": statistics.median(seconds), "slowest s": max(seconds),
            "load before": load}  # fmt: skip


def _one_tab(browser: Any, address: Address, quick: bool) -> list[Row]:
    page = browser.new_page()
    page.goto(address.url)
    page.wait_for_function(ASKED)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    rows: list[Row] = []

    def note(what: str, questions: int, minutes: float) -> None:
        session.send("HeapProfiler.collectGarbage")
        told = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
        rows.append({"after": what, "questions": questions, "minutes": minutes,
                     "heap MB": told["JSHeapUsedSize"] / 1e6, "elements": told["Nodes"],
                     "listeners": told["JSEventListeners"]})  # fmt: skip

    asked = 0
    for number in (10, 100, 100, 100):
        for _ in range(2 if quick else number):
            page.evaluate(ASK_AT, [0, asked])
            asked += 1
        note("questions", asked, 0.0)
    waits = 0.01 if quick else 2.0
    page.get_by_role("tab", name="Watch").click()
    for k in range(2):
        page.wait_for_timeout(waits * 60_000)
        note("left open", asked, waits * (k + 1))
    page.close()
    return rows


def run(quick: bool = False) -> Iterator[dict[str, list[Row]]]:
    """All cases; the environment variable KERMIX_TABLES says where the tables are."""
    folder = os.environ.get("KERMIX_TABLES")
    yield from measured(Path(folder) if folder else None, quick)


def main(arguments: Sequence[str] | None = None) -> Path:
    """Run the benchmark and write its result file, table by table."""
    parser = argparse.ArgumentParser("benchmarks.explore", description=__doc__)
    parser.add_argument("--data", type=Path, default=None, help="folder of adult-train.csv.gz")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=default_path("explore"))
    given = parser.parse_args(arguments)
    protocol = {"what": __doc__, "threads": torch.get_num_threads()}
    path: Path = given.out
    for tables in measured(given.data, given.quick):
        path = write_record("explore", given.out, tables, protocol, shown=list(tables)[-1],
                            quick=given.quick)  # fmt: skip
    return path


if __name__ == "__main__":
    main()
