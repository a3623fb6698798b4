"""`kermix reproduce`: what it writes, what it says, what it refuses, how it stops."""

import csv
import html
import io
import json
import struct
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from typer.testing import CliRunner

from internals import ARTEFACTS, app, chosen, read_record, records_in, write_page
from internals import artefact_module as artefact
from internals import as_written_module as as_written
from internals import classification_module as classification
from internals import generation_module as generation
from internals import identity_module as identity
from internals import image_cells_module as image_cells
from internals import images_module as images
from internals import labelled_module as labelled
from internals import measure_module as measure
from internals import prior_module as prior
from internals import remarks_module as remarks
from internals import singular_functions_module as functions
from internals import toy_module as toy
from kermix.errors import DownloadError, ImageError, KermixError, OptionError, RunError

SMALL = {
    "fig-toy": (
        toy,
        {
            "training": toy.ToyTraining(
                seeds=2, steps=3, batch_size=16, width=8, samples=100, compared=60
            )
        },
    ),
    "fig-generation": (
        generation,
        {
            "training": generation.GenerationTraining(
                seeds=2, steps=5, batch_size=32, width=16, compared=200
            )
        },
    ),
    "fig-prior": (
        prior,
        {"training": prior.PriorTraining(seeds=1, steps=2, components=16, batch_size=16)},
    ),
    "fig-remarks": (
        remarks,
        {
            "training": generation.GenerationTraining(
                seeds=1, steps=2, batch_size=16, width=8, compared=60
            )
        },
    ),
    "fig-images": (
        images,
        {
            "training": image_cells.CellTraining(
                steps=2, batch_size=20, width=8, compared=40, judge_epochs=1, judge_width=8
            ),
            "seeds": 1,
            "variances": (0.01,),
            "device": "cpu",
        },
    ),
    "fig-measure": (measure, {"samples": 40, "steps": 11, "seeds": 1}),
    "fig-identity": (identity, {"samples": 60, "points": 41}),
    "fig-singular-functions": (functions, {"across": 30, "samples": 200}),
    "table-classification": (
        classification,
        {
            "quick": True,
            "seeds": 1,
            "epochs": 1,
            "width": 8,
            "depth": 1,
            "output_width": 8,
            "images": 300,
        },
    ),
    "table-as-written": (
        as_written,
        {"quick": True, "seeds": 1, "epochs": 1, "width": 8, "output_width": 8, "images": 300},
    ),
}
CLAIMS = {
    "fig-generation": 7, "fig-measure": 7, "fig-identity": 9, "fig-singular-functions": 5,
}  # fmt: skip
FILES = {".png", ".svg", ".json", ".csv"}


@pytest.fixture(scope="module")
def artefacts():
    """Each one computed at a size that takes a moment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("internals.scaled_module.CENTERS_OF_A_DENSITY", 200)
        return {name: module.run(**options) for name, (module, options) in SMALL.items()}


@pytest.fixture
def ready(artefacts, monkeypatch, undrawn):
    """The command finds the small ones, whose pictures are drawn in a test of their own."""
    for name, (module, _) in SMALL.items():
        monkeypatch.setattr(module, "run", lambda *_, made=artefacts[name], **__: made)


def reproduce(*arguments):
    result = CliRunner().invoke(app, ["reproduce", *map(str, arguments)], env={"COLUMNS": "200"})
    if isinstance(result.exception, KermixError):
        raise result.exception
    return result


@pytest.mark.parametrize("name", list(ARTEFACTS))
def test_each_writes_picture_numbers_and_claims(name, artefacts, tmp_path):
    artefact = artefacts[name]
    assert artefact.name == name
    record = artefact.save(tmp_path, quick=True, seconds=1.0)
    assert {p.suffix for p in tmp_path.iterdir()} == FILES
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / f"{name}.svg").read_text()
    assert read_record(tmp_path / f"{name}.json") == json.loads(json.dumps(record))
    assert record["machine"]["cores"] >= 1
    assert len(record["claims"]) >= CLAIMS.get(name, 3)
    for table, rows in artefact.tables.items():
        with (tmp_path / f"{name}.{table}.csv").open() as file:
            read = list(csv.DictReader(file))
        assert len(read) == len(rows)
        assert list(read[0]) == list(rows[0])


def test_same_numbers_give_the_same_files(tmp_path):
    for folder in ("a", "b"):
        made = identity.run(samples=30, points=21)
        made.save(tmp_path / folder, quick=True, seconds=1.0)
    for kind in ("svg", "png", "matrices.csv"):
        files = [tmp_path / folder / f"fig-identity.{kind}" for folder in "ab"]
        assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize(("large", "mode"), [(0, "P"), (10**9, "RGBA")])
def test_large_pictures_have_fewer_colours(large, mode):
    drawn = artefact.picture_png(Figure(), large)
    assert Image.open(io.BytesIO(drawn)).mode == mode


def test_ablations_collapse_even_in_a_short_training():
    training = generation.GenerationTraining(
        seeds=1, steps=60, batch_size=64, width=32, compared=500
    )
    distances = {
        method: generation.train(method, 0, training)[0]["energy distance"]
        for method in ("svd", "Frobenius", "L2 large")
    }
    assert distances["svd"] < min(distances["Frobenius"], distances["L2 large"]) / 3


def test_costs_of_a_seed_share_data_and_noise():
    training = generation.GenerationTraining(seeds=1, steps=1, batch_size=16, width=8, compared=50)
    one, two = (generation.train(method, 3, training) for method in ("svd", "scalar"))
    assert one[2].equal(two[2])
    assert one[0]["nll of data"] == two[0]["nll of data"]


@pytest.mark.usefixtures("ready")
def test_all_end_with_claims_and_page(tmp_path):
    out = tmp_path / "paper"
    result = reproduce("all", "--quick", "--out", out)
    assert result.exit_code == 0, result.output
    assert result.output.strip().endswith("index.html")
    page = (out / "index.html").read_text()
    assert page.count("<img") == len(ARTEFACTS)
    for record in records_in(out):
        for claim in record["claims"]:
            assert claim["text"] in html.unescape(page)
    # Of a training of five steps hardly anything is claimed rightly; it must be said.
    assert "NOT confirmed" in result.output
    assert "NOT confirmed" in page
    assert "scikit-learn's digits" in result.output


@pytest.mark.usefixtures("ready")
def test_figures_of_several_runs_share_a_page(tmp_path):
    reproduce("fig-identity", "--out", tmp_path)
    reproduce("fig-measure", "--out", tmp_path)
    assert [r["paper"] for r in records_in(tmp_path)] == ["fig-measure", "fig-identity"]
    assert (tmp_path / "index.html").read_text().count("<img") == 2


@pytest.mark.usefixtures("ready")
def test_nothing_is_replaced_unless_asked(tmp_path):
    reproduce("fig-identity", "--out", tmp_path)
    before = (tmp_path / "fig-identity.json").stat().st_mtime_ns
    with pytest.raises(RunError, match=r"fig-identity.*--overwrite"):
        reproduce("fig-identity", "--out", tmp_path)
    assert (tmp_path / "fig-identity.json").stat().st_mtime_ns == before
    assert reproduce("fig-identity", "--out", tmp_path, "--overwrite").exit_code == 0
    assert (tmp_path / "fig-identity.json").stat().st_mtime_ns > before


def test_a_page_of_somebody_else_is_kept(tmp_path):
    (tmp_path / "index.html").write_text("mine")
    with pytest.raises(RunError, match=r"index\.html"):
        reproduce("fig-identity", "--out", tmp_path)
    assert (tmp_path / "index.html").read_text() == "mine"


@pytest.mark.usefixtures("ready")
def test_without_out_a_fresh_folder_is_taken(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert reproduce("fig-identity").exit_code == 0
    assert {p.name for p in (tmp_path / "runs").iterdir()} == {"paper", "paper-2"}


@pytest.mark.usefixtures("ready")
def test_interruption_keeps_what_is_done(tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(identity, "run", interrupted)
    result = reproduce("fig-measure", "fig-identity", "--quick", "--out", tmp_path)
    assert result.exit_code == 130
    assert (tmp_path / "fig-measure.json").exists()
    assert "kermix reproduce fig-identity --out" in result.output
    assert (tmp_path / "index.html").read_text().count("<img") == 1


def test_unknown_names_and_files_are_refused(tmp_path):
    with pytest.raises(OptionError, match="fig-nothing"):
        reproduce("fig-nothing", "--out", tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="is a file"):
        reproduce("fig-identity", "--out", tmp_path / "file")
    (tmp_path / "fig-measure.json").write_text("{}")
    with pytest.raises(RunError, match="not a result"):
        records_in(tmp_path)


@pytest.fixture
def offline(monkeypatch):
    """No network: what is not in the folder cannot be fetched."""

    def failing(name, cache):
        raise DownloadError("no connection")

    monkeypatch.setattr(labelled, "fetch_all", failing)


@pytest.fixture
def mnist(tmp_path):
    """A folder with a small MNIST and no CIFAR-10."""
    rows = np.random.default_rng(0)
    for part, count in (("train", 60), ("t10k", 30)):
        pixels = rows.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(
            struct.pack(">IIII", 2051, *pixels.shape) + pixels.tobytes()
        )
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(
            struct.pack(">II", 2049, count) + labels.tobytes()
        )
    return tmp_path


@pytest.mark.usefixtures("offline")
def test_table_of_mnist_where_it_is_given(mnist):
    made = classification.run(
        True, data_root=mnist, columns=("1", "3", "CNN"), epochs=1, width=8, output_width=8
    )
    assert {row["dataset"] for row in made.tables["cells"]} == {"mnist"}
    assert all("MNIST" in claim.text for claim in made.claims if "; " not in claim.text)
    # Of noise nothing can be learnt: the paper's accuracies are not reached.
    assert not made.claims[0].holds
    assert made.notes[0].startswith("CIFAR-10 is left out")
    assert not any("digits" in note for note in made.notes)


@pytest.mark.usefixtures("offline")
def test_table_without_data_in_the_folder(tmp_path):
    with pytest.raises(ImageError, match=r"MNIST is left out.*CIFAR-10 is left out"):
        classification.run(True, data_root=tmp_path)
    with pytest.raises(OptionError, match="no such folder"):
        reproduce("table-classification", "--data-root", tmp_path / "nowhere")


@pytest.mark.usefixtures("ready")
def test_an_error_still_shows_what_is_done(tmp_path, monkeypatch):
    def failing(*_, **__):
        raise ImageError("no images")

    monkeypatch.setattr(identity, "run", failing)
    arguments = ["reproduce", "fig-measure", "fig-identity", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, ImageError)
    assert "The scalar cost" in result.output
    assert (tmp_path / "fig-measure.json").exists()


def test_names_are_in_the_papers_order_once():
    assert chosen(["fig-identity", "fig-measure", "fig-identity"]) == [
        "fig-measure", "fig-identity",
    ]  # fmt: skip
    assert chosen([]) == chosen(["all"]) == list(ARTEFACTS)


@pytest.mark.usefixtures("undrawn")
def test_a_claim_that_fails_is_counted_on_the_page(artefacts, tmp_path):
    artefact = artefacts["fig-identity"]
    failed = [replace(c, holds=False) for c in artefact.claims[:2]]
    replace(artefact, claims=failed + artefact.claims[2:3]).save(tmp_path, quick=True, seconds=1.0)
    page = write_page(tmp_path, records_in(tmp_path)).read_text()
    held = int(artefact.claims[2].holds)
    assert f"Of 3 readings and cases, {held} confirmed, 0 tied, {3 - held} refuted; 0" in page
    assert "Of 3 statements of the paper, " in page


@pytest.mark.usefixtures("offline", "undrawn")
def test_cells_of_an_earlier_table_are_taken(tmp_path, artefacts, monkeypatch):
    made = artefacts["table-classification"]
    made.save(tmp_path, quick=True, seconds=1.0)
    monkeypatch.setattr(classification, "train_cell", None)
    again = classification.run(True, cells=tmp_path)
    assert again.tables == made.tables
    assert [c.text for c in again.claims] == [c.text for c in made.claims]
