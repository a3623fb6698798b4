"""Golden numbers of tables: the sections of `golden_numbers.py` on models, schemas and commands.

Words are kept with their numbers apart, so that a number may round otherwise on another processor
and a word may not. What only has to be equal bit for bit, as the bytes of a file, is a digest: it
counts with KERMIX_GOLDEN_EXACT=1 alone.
"""

import contextlib
import hashlib
import json
import os
import re
import signal
import threading
import time
import urllib.request
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd

import kermix as km

# ---- Names: what a move may change ------------------------------------------------------------
from internals import app

LOSSES_FILE, CONFIG, RESULT = "metrics.csv", "config.json", "result.json"  # in a run folder
DIGEST = "sha256:"
NUMBER = re.compile(r"(?<![\w.-])-?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?(?!\w)")
# Times and bars of progress: other ones in each run.
PASSES = re.compile(r"^\w+ +[━╸╺─]+ +\d.*$|(?<![\w.])\d+(\.\d+)? ?(ms|s|min|seconds?)\b", re.M)
PASSING = {
    "seconds", "seconds_per_epoch", "time", "versions", "machine", "commit", "command", "kermix",
    "started", "date", "platform", "python", "torch", "host", "environment", "made", "written",
}  # fmt: skip
FIRST = 5  # cells of a column that are shown


class Exact(str):
    """Text that is kept as it is, blanks or none."""

    __slots__ = ()


def digest(content):
    """What tells whether bytes are the same."""
    content = content if isinstance(content, bytes) else content.encode()
    return Exact(DIGEST + hashlib.sha256(content).hexdigest()[:16])


def words(text):
    """Text with its numbers apart, and without what passes."""
    text = PASSES.sub("PASSES", text.replace(os.getcwd(), "FOLDER"))
    numbers = [float(n.replace(",", "")) for n in NUMBER.findall(text)]
    lines = [" ".join(line.split()) for line in NUMBER.sub("#", text).splitlines()]
    # Lines of a table are as long as its longest cell.
    lines = [re.sub(r"[-─━]{3,}", "---", line) for line in lines if line]
    said = Exact(lines[0]) if len(lines) == 1 else [Exact(line) for line in lines]
    return {"said": said, "numbers": numbers} if numbers else said


def told(value):
    """What a dictionary for JSON says, sentences as words."""
    if isinstance(value, dict):
        return {str(k): told(v) for k, v in value.items() if k not in PASSING}
    if isinstance(value, list | tuple):
        if value and all(isinstance(v, float) for v in value):
            return np.array(value)
        return [told(v) for v in value]
    return words(value) if isinstance(value, str) else value


def cells(table):
    """Columns of a table: numbers as an array, all else by its first cells and a digest."""
    found = {}
    for name, column in table.items():
        present = column.dropna()
        kind = {"gaps": int(column.isna().sum()), "dtype": Exact(column.dtype)}
        if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
            found[name] = kind | {"numbers": present.to_numpy(np.float64)}
            continue
        texts = [str(cell) for cell in present]
        shown = [Exact(text) for text in texts[:FIRST]]
        found[name] = kind | {"cells": shown, "all": digest("\n".join(texts))}
    return found


# ---- Inputs -----------------------------------------------------------------------------------


def people(rows, seed=0, shift=0.0):
    """Every kind of column: keys, categories, numbers, gaps, dates, booleans, free text."""
    rng = np.random.default_rng(seed)
    sex = rng.choice(["Female", "Male"], rows, p=[0.6, 0.4])
    days = rng.integers(0, 360, rows)
    return pd.DataFrame(
        {
            "id": [f"p{seed}-{k:04d}" for k in range(rows)],
            "sex": sex,
            "age": rng.integers(18, 90, rows),
            "size": np.round(rng.normal(np.where(sex == "Male", 180, 165) + shift, 6), 1),
            "kids": np.where(rng.random(rows) < 0.2, np.nan, rng.integers(0, 4, rows)),
            "plan": rng.choice(["=A1", "+B", "plain"], rows, p=[0.2, 0.3, 0.5]),
            "member": rng.random(rows) < 0.7,
            "joined": (pd.Timestamp("2024-01-01") + pd.to_timedelta(days, unit="D")).strftime(
                "%Y-%m-%d"
            ),
        }
    )


def six_tables(rows=120):
    """A table for each family of kinds."""
    rng = np.random.default_rng(5)
    start = pd.Timestamp("2023-03-01T00:00:00")
    hours = pd.to_timedelta(rng.integers(0, 9000, rows), unit="h")
    skewed = np.exp(rng.normal(3, 1, rows))
    text = [f"a note about {i} things of {j}" for i, j in rng.integers(0, 11, (rows, 2))]
    few = np.where(np.arange(rows) < rows - 3, "often", "rare")
    return {
        "numbers": pd.DataFrame({
            "normal": rng.normal(size=rows), "skewed": skewed.round(2),
            "whole": rng.integers(0, 400, rows), "huge": rng.normal(size=rows) * 1e12,
            "half zero": np.where(rng.random(rows) < 0.5, 0.0, skewed),
            "single": rng.normal(size=rows).astype(np.float32),
        }),
        "categories": pd.DataFrame({
            "word": rng.choice(["red", "green", "blue, dark"], rows), "few": few,
            "code": rng.choice([1, 2, 7], rows),
            "ordered": pd.Categorical(
                rng.choice(["low", "mid", "top"], rows), ["low", "mid", "top"], ordered=True
            ),
        }),
        "times": pd.DataFrame({
            "day": (start + hours).normalize(), "moment": start + hours,
            "zoned": (start + hours).tz_localize("UTC").tz_convert("Europe/Berlin"),
            "written": (start + hours).strftime("%Y-%m-%d %H:%M"),
        }),
        "booleans": pd.DataFrame({
            "plain": rng.random(rows) < 0.3,
            "gaps": pd.array(rng.choice([True, False, None], rows), dtype="boolean"),
            "words": rng.choice(["yes", "no"], rows), "bits": rng.integers(0, 2, rows),
        }),
        "keys and text": pd.DataFrame({
            "id": [f"k{i:05d}" for i in range(rows)], "row": np.arange(rows), "text": text,
            "value": rng.normal(size=rows).round(3),
        }),
        "gaps and constants": pd.DataFrame({
            "same": ["x"] * rows, "one": np.ones(rows),
            "gaps": np.where(rng.random(rows) < 0.4, np.nan, rng.normal(size=rows)),
            "whole gaps": pd.array(
                [None if g else i % 9 for i, g in enumerate(rng.random(rows) < 0.3)], "Int64"
            ),
            "word gaps": np.where(rng.random(rows) < 0.3, None, rng.choice(["a", "b"], rows)),
        }),
    }  # fmt: skip


# ---- Sections: the library --------------------------------------------------------------------


def schemas(folder):
    found = {}
    for name, table in six_tables().items():
        path = folder / f"{name}.csv"
        table.to_csv(path, index=False)
        for source, given in {"frame": table, "file": path}.items():
            schema = km.Schema.infer(given)
            encoded = schema.encode(given)
            again = schema.decode(encoded, frame="pandas")
            schema.save(folder / "schema.json")
            loaded = km.Schema.load(folder / "schema.json")
            found[f"{name}, {source}"] = {
                "table": [[Exact(cell) for cell in row] for row in schema.table()],
                "notes": [words(note) for note in schema.notes()],
                "codes": encoded.codes, "values": encoded.values,
                "positions": schema.positions(encoded),
                "slopes": schema.log_derivative(encoded),
                "decoded": cells(again), "saved": digest(json.dumps(schema.to_dict())),
                "loaded": loaded.to_dict() == schema.to_dict(),
            }  # fmt: skip
    return found


MODEL = {"width": 16, "blocks": 1, "steps": 20, "batch_size": 64, "learning_rate": 0.01,
         "device": "cpu", "random_state": 0}  # fmt: skip


def table_models(folder):
    data, new = people(240), people(30, seed=1)
    model = km.TableModel("size", **MODEL).fit(data)
    found = {"losses": {name: [float(row[name]) for row in model.history_ if name in row]
                        for name in model.history_[0] if name not in PASSING}}  # fmt: skip
    found["density"] = model.score_samples(new)
    found["score"] = model.score(new)
    found["drawn"] = cells(model.sample(40, random_state=1))
    given = {"sex": "Male", "kids": None}
    found["given"] = cells(model.sample(20, given=given, random_state=2))
    gaps = new.copy()
    gaps.loc[::3, "size"] = np.nan
    gaps.loc[1::4, "plan"] = None
    found["filled"] = cells(model.impute(gaps))
    drawn = model.impute(gaps, draws=2, random_state=3)
    found["filled by draws"] = [cells(table) for table in drawn]
    size = model.conditional("size", given)
    found["a number"] = {
        "mean": size.mean(), "median": size.quantile(0.5), "quantiles": size.quantile(0.9),
        "interval": size.interval(0.8), "cdf": size.cdf([160.0]),
        "likely": np.asarray(size.values()),
    }  # fmt: skip
    plan = model.conditional("plan", new.drop(columns="plan"))
    found["a category"] = {"names": [Exact(n) for n in plan.names], "chances": plan.probabilities}
    found["all"] = {
        name: np.asarray(d.quantile(0.5) if d.is_number else d.probabilities)
        for name, d in model.conditionals({"sex": "Female"}).items()
    }
    found["most likely"] = told({k: str(v) for k, v in model.most_likely(given).items()})
    found["predicted"] = model.predict(new)
    found["chances"] = model.predict_proba(new, "sex")
    model.save(folder / "model")
    found["loaded"] = km.TableModel.load(folder / "model").score_samples(new)
    more = km.TableModel("size", **MODEL, members=2, orders=2).fit(data)
    found["members"] = {
        "density": more.score_samples(new),
        "drawn": cells(more.sample(9, random_state=0)),
    }
    return found


FEW = {"permutations": 99}


def typed_compare(folder):
    found = {}
    for name, (x, y) in {
        "differ": (people(150), people(140, seed=1, shift=6.0)),
        "same": (people(120), people(120, seed=2)),
        "gaps": (people(100), people(100, seed=3).assign(kids=np.nan)),
    }.items():
        result = km.compare(x, y, **FEW)
        found[name] = told(result.to_dict(details=False))
        found[name]["said"] = words(str(result))
        found[name]["rows"] = told(result.column_rows())
    numbers = six_tables()["numbers"]
    other = numbers.sample(frac=1, random_state=0).assign(normal=lambda t: t["normal"] * 2)
    result = km.compare(numbers, other, permutations=40, jackknife_groups=4)
    found["numbers"] = told(result.to_dict())
    return found


def evaluations(folder):
    real, held = people(160), people(140, seed=1)
    fake = people(150, seed=2, shift=4.0)
    fake.iloc[:12] = real.iloc[:12]
    found = {}
    for name, options in {"held out": {"held_out": held}, "plain": {}}.items():
        judged = km.evaluate(real, fake, rank=60, **FEW, **options)
        found[name] = told(judged.to_dict())
        found[name]["table"] = told(judged.table())
        found[name]["said"] = words(str(judged))
    rng = np.random.default_rng(3)
    points = rng.normal(size=(120, 3)), rng.normal(size=(110, 3)) * 0.8
    found["arrays"] = told(km.evaluate(*points, rank=60, **FEW).to_dict())
    return found


def drifts(folder):
    table = pd.concat([people(70, seed=s, shift=4.0 * (s > 1)) for s in range(4)])
    table["month"] = np.repeat(["January", "February", "March", "April"], 70)
    found = {}
    for name, options in {
        "by name": {"by": "month", "exclude": ["joined"]},
        "by date": {"by": "joined", "every": "month", "exclude": ["month"]},
        "reference": {"by": "month", "reference": "March", "columns": ["size", "plan"]},
    }.items():
        drift = km.drift_over_time(table, **options, **FEW)
        found[name] = told(drift.to_dict())
        found[name]["said"] = words(drift.sentence())
        found[name]["table"] = told(drift.table(intervals=True))
    monitor = km.DriftMonitor(people(200), expected_run_length=50, batch_size=25)
    updates = []
    for batch in range(8):
        update = monitor.update(people(25, seed=10 + batch, shift=8.0 * (batch > 3)))
        updates.append(told(update.to_dict()) | {"said": words(update.sentence())})
        if batch == 4:
            monitor.save(folder / "monitor")
            monitor = km.DriftMonitor.load(folder / "monitor")
    found["monitor"] = {"updates": updates, "threshold": monitor.threshold,
                        "columns": [Exact(c) for c in monitor.columns],
                        "report": words(monitor.report())}  # fmt: skip
    return found


# ---- Sections: the shell ----------------------------------------------------------------------

TINY = ["--width", 16, "--blocks", 1, "--steps", 20, "--batch-size", 64, "--learning-rate", 0.01,
        "--device", "cpu"]  # fmt: skip


def said(*arguments, stopped=False):
    """What a command says, that ends by itself or is stopped."""
    from typer.testing import CliRunner

    result = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "200"})
    if bool(result.exit_code) != stopped:
        raise RuntimeError(f"{arguments}: {result.output}") from result.exception
    return result.stdout


def shell(*arguments, files=()):
    """What a command prints, as words or as what JSON says, and the files that it writes."""
    text = said(*arguments)
    printed = told(json.loads(text)) if "--json" in arguments else words(text)
    return {"printed": printed, **{Path(file).name: file_kept(Path(file)) for file in files}}


def file_kept(path):
    """What is kept of a file."""
    kinds = path.suffixes
    if ".csv" in kinds:
        return cells(pd.read_csv(path))
    if ".parquet" in kinds:
        return cells(pd.read_parquet(path))
    if ".json" in kinds:
        return told(json.loads(path.read_text()))
    if ".npy" in kinds:
        return np.load(path)
    if ".html" in kinds:
        return page_kept(path.read_text())
    if ".sketch" in kinds:
        sketch = km.Sketch.load(path)
        return {"count": sketch.count, "bytes": digest(path.read_bytes())}
    raise ValueError(f"{path}: no rule what to keep of it")


def page_kept(text):
    """The headings of a page, and whether all that it says is the same."""
    text = re.sub(r"<(script|style|svg).*?</\1>", "", text, flags=re.S)
    heads = re.findall(r"<h[1-3][^>]*>(.*?)</h[1-3]>", text, flags=re.S)
    text = re.sub(r"<h\d[^>]*>(Machine|How this was computed)<.*", "", text, flags=re.S)
    said = json.dumps(words(re.sub(r"<[^>]+>", " ", text)))
    return {"heads": [words(re.sub(r"<[^>]+>", " ", head)) for head in heads if head.strip()],
            "all": digest(said)}  # fmt: skip


def write_tables():
    people(240).to_csv("people.csv.gz", index=False)
    new = people(40, seed=1)
    new.loc[::3, "size"] = np.nan
    new.loc[1::4, "plan"] = None
    new.to_csv("new.csv", index=False)
    people(150, seed=2, shift=3.0).to_parquet("other.parquet")
    rng = np.random.default_rng(0)
    plain = pd.DataFrame(rng.normal(size=(200, 2)) @ [[1, 0.5], [0, 1]], columns=["a", "b"])
    plain.round(4).to_csv("plain.csv", index=False)


def fitted_by_command(folder):
    with contextlib.chdir(folder):
        write_tables()
        found = {"schema": shell("schema", "people.csv.gz", "-o", "s.json", files=["s.json"])}
        found["schema, JSON"] = shell("schema", "plain.csv", "--json")
        found["fit"] = shell(
            "fit", "people.csv.gz", *TINY, "--target", "size", "--out", "run",
            files=[f"run/{name}" for name in
                   (CONFIG, RESULT, LOSSES_FILE, "samples.csv.gz", "report.html")],
        )  # fmt: skip
        found["sample"] = shell("sample", "run", "-n", 50, "-o", "s.csv", files=["s.csv"])
        found["sample, given"] = shell(
            "sample", "run", "-n", 30, "-o", "s.parquet", "--seed", 3, "--given", "sex=Male",
            "--given", "kids=", "--deduplicate", files=["s.parquet"],
        )  # fmt: skip
        found["impute"] = shell("impute", "run", "new.csv", "-o", "f.csv", files=["f.csv"])
        found["impute, draws"] = shell("impute", "run", "new.csv", "-o", "d.csv", "--draws", 2,
                                       files=["d-1.csv", "d-2.csv"])  # fmt: skip
        found["score"] = shell("score", "run", "new.csv", "-o", "l.npy", files=["l.npy"])
        found["predict"] = shell("predict", "run", "new.csv", "-o", "p.csv", "--id", "id",
                                 files=["p.csv"])  # fmt: skip
        found["predict, printed"] = shell("predict", "run", "new.csv", "--target", "plan")
        found["classify"] = shell(
            "classify", "people.csv.gz", "--target", "sex", "--width", 16, "--set", "steps=20",
            "--set", "blocks=1", "--device", "cpu", "--out", "sex",
            files=[f"sex/{name}" for name in (CONFIG, RESULT, LOSSES_FILE, "report.html")],
        )  # fmt: skip
        found["predict a class"] = shell("predict", "sex", "new.csv", "--all", "-o", "c.csv",
                                         files=["c.csv"])  # fmt: skip
        found["score a class"] = shell("score", "sex", "new.csv", "-o", "k.npy", files=["k.npy"])
        found["fit by contest"] = shell("fit", "plain.csv", *TINY, "--out", "contest",
                                        files=[f"contest/{RESULT}"])  # fmt: skip
        found["fit a mixture"] = shell(
            "fit", "plain.csv", "--model", "mixture", "--device", "cpu", "--steps", 20,
            "--refine-steps", 4, "--out", "plain",
            files=["plain/samples.npy", f"plain/{LOSSES_FILE}"],
        )  # fmt: skip
        found["explore"] = explored()
        found["resume"] = resumed()
    return found


def explored():
    """What a page says when it is opened, and the command that is stopped then."""
    pages = []

    def look(url):
        def fetch():
            end = time.monotonic() + 60
            while not pages and time.monotonic() < end:
                with contextlib.suppress(OSError), urllib.request.urlopen(url) as answer:
                    pages.append(answer.read().decode())
                time.sleep(0.01)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

        threading.Thread(target=fetch, daemon=True).start()

    with mock.patch("webbrowser.open", look):
        text = said("explore", "run", "--port", 0, stopped=True)
    heads = page_kept(pages[0])["heads"]
    return {"printed": words(re.sub(r"http\S+", "ADDRESS", text)), "heads": heads}


def resumed():
    """What a fit has that was interrupted and resumed: all that one has which never was."""
    long = ["people.csv.gz", *TINY[:4], "--steps", 160, *TINY[6:]]
    said("fit", *long, "--out", "whole")
    interrupt_when(Path("halves") / LOSSES_FILE)
    said("fit", *long, "--out", "halves", stopped=True)
    interrupted = not Path("halves", RESULT).exists()
    text = said("resume", "halves")
    whole, halves = (pd.read_csv(Path(run) / LOSSES_FILE) for run in ("whole", "halves"))
    passing = [name for name in whole if name in PASSING]
    samples = [Path(run, "samples.csv.gz") for run in ("whole", "halves")]
    return {
        "interrupted": interrupted, "says": words(text),
        "losses": cells(halves.drop(columns=passing)),
        "equal": halves.drop(columns=passing).equals(whole.drop(columns=passing)),
        "samples": pd.read_csv(samples[0]).equals(pd.read_csv(samples[1])),
    }  # fmt: skip


def interrupt_when(path):
    """Press Ctrl-C as soon as a file is there."""

    def wait():
        end = time.monotonic() + 60
        while not path.exists() and time.monotonic() < end:
            time.sleep(0.001)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    threading.Thread(target=wait, daemon=True).start()


def measured_by_command(folder):
    few = ["--permutations", 99]
    with contextlib.chdir(folder):
        write_tables()
        whole = people(240)
        whole["month"] = np.repeat(["January", "February", "March"], 80)
        whole.loc[160:, "size"] += 8
        whole.drop(columns="joined").to_csv("months.csv", index=False)
        held = people(120, seed=4)
        held.to_csv("held.csv", index=False)
        two = "people.csv.gz", "other.parquet"
        return {
            "compare": shell("compare", *two, *few, "--report", "c.html", files=["c.html"]),
            "compare, JSON": shell("compare", *two, *few, "--json"),
            "compare, details": shell("compare", "plain.csv", "plain.csv", "--details", *few),
            "drift": shell("drift", "months.csv", "--by", "month", *few, "-o", "d.html",
                           files=["d.html"]),
            "evaluate": shell("evaluate", *two, "--held-out", "held.csv", *few, "--rank", 60,
                              "-o", "v.html", files=["v.html"]),
            "sketch": shell("sketch", "people.csv.gz", "-o", "a.sketch", "--rank", 40,
                            files=["a.sketch"]),
            "sketch, other": shell("sketch", "other.parquet", "-o", "b.sketch",
                                   "--landmarks-from", "a.sketch", files=["b.sketch"]),
            "compare sketches": shell("compare", "a.sketch", "b.sketch"),
            "spectrum": shell("spectrum", *two, "--columns", "size,age", "--report", "s.html",
                              files=["s.html"]),
        }  # fmt: skip


SECTIONS = {
    function.__name__: function
    for function in (
        schemas, table_models, typed_compare, evaluations, drifts, fitted_by_command,
        measured_by_command,
    )
}  # fmt: skip
MAGNIFIED = ("table_models", "fitted_by_command")
