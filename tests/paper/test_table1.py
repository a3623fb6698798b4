"""The classification table: cells are recorded, merged and shown."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.table1_page import COLUMNS, GOALS, PAPER, write_classification_page

from benchmarks import table1
from internals import Augmentation, load_labelled
from internals import as_written_module as as_written
from internals import classifier_settings_module as presets
from internals import table_records_module as table_cells
from kermix.errors import OptionError

ROOT = Path(__file__).parents[2]
SMALL = ["--dataset", "digits", "--patch", "3", "--device", "cpu"]
for pair in ("epochs=1", "width=8", "depth=2", "output_width=16", "batch_size=256"):
    SMALL += ["--set", pair]
# What the issue asks of a record.
ASKED = {"dataset", "model", "patch", "seed", "augmentation", "train_accuracy", "test_accuracy",
         "epochs", "seconds", "parameters", "command", "machine", "commit"}  # fmt: skip


def test_cells_are_merged_as_they_are_trained(tmp_path, capsys):
    out = tmp_path / "table1.json"
    table1.main([*SMALL, "--seeds", "0,1", "--augmentation", "both", "--out", str(out)])
    records = json.loads(out.read_text())
    assert len(records) == 4
    assert all(set(record) >= ASKED for record in records)
    assert {(r["seed"], r["augmentation"]) for r in records} == {
        (seed, text) for seed in (0, 1) for text in ("shift 1", "none")
    }
    assert all(r["evaluated_on"] == "test images" for r in records)
    variant = "wider: width=16, anchors_at=0+1"
    table1.main([*SMALL, "--seeds", "0", "--variant", variant, "--with-base", "--out", str(out)])
    after = json.loads(out.read_text())
    assert len(after) == 5
    (wider,) = (r for r in after if r["variant"] == "wider")
    assert wider["settings"]["width"] == 16
    assert wider["settings"]["anchors_at"] == [0, 1]
    other = tmp_path / "merged.json"
    table1.main(["--merge", str(out), str(out), "--out", str(other)])
    assert json.loads(other.read_text()) == after
    assert str(other) in capsys.readouterr().out


def test_held_out_images_are_not_trained_on():
    train = load_labelled("digits", "train")
    rest, held_out = table_cells.hold_out(train, 100)
    together = [image.tobytes() for image in (*rest.images, *held_out.images)]
    assert sorted(together) == sorted(image.tobytes() for image in train.images)


def test_unknown_settings_are_refused(tmp_path):
    with pytest.raises(OptionError, match="no setting 'taste'"):
        table1.main([*SMALL, "--set", "taste=1", "--out", str(tmp_path / "x.json")])


def record(dataset, patch, seed, accuracy, augmentation="shift 2", variant=""):
    settings = presets.preset(dataset, "gaussian-product" if patch else "cnn", patch or 1)
    return {
        "dataset": dataset, "model": settings.model, "patch": patch, "seed": seed,
        "augmentation": augmentation, "variant": variant, "evaluated_on": "test images",
        "train_accuracy": 1.0, "test_accuracy": accuracy, "test_accuracy_one_view": accuracy,
        "epochs": 3, "seconds": 9.0, "seconds_per_epoch": 3.0, "parameters": 12345,
        "machine": {"gpu": "A GPU", "cores": 2, "cpu": "A CPU"}, "commit": "abc", "processes": 1,
        "notes": [], "settings": settings.as_json(),
    }  # fmt: skip


def test_the_page_says_what_was_reached_and_what_was_not(tmp_path):
    results, ablations = tmp_path / "table1.json", tmp_path / "ablations.json"
    records = [record("cifar10", 3, seed, a) for seed, a in enumerate((0.83, 0.84, 0.85))]
    records += [record("cifar10", 5, 0, 0.84), record("cifar10", 3, 0, 0.7, "none")]
    results.write_text(json.dumps(records))
    compared = [record("cifar10", 3, 0, a, "shift 2", v) for a, v in ((0.8, ""), (0.5, "x"))]
    lonely = {**record("cifar10", 7, 0, 0.6, variant="lonely"), "train_images": 100}
    alone = {**record("cifar10", 5, 0, 0.6, variant="alone, plain"), "train_images": 45_000}
    ablations.write_text(json.dumps([*compared, lonely, alone]))
    page = tmp_path / "page.md"
    table1.main(["--out", str(results), "--ablations", str(ablations), "--page", str(page)])
    text = page.read_text()
    assert "0.8400 ± 0.0100" in text
    assert "| goal reached | not measured | yes | no, 0.0100 short | not measured |" in text
    assert "0.7000 (one seed)" in text
    with_changes, without = text.split("**Without augmentation**")
    assert "0.7000" not in with_changes
    assert "| goal reached | not measured | no, 0.1300 short | not measured |" in without
    assert "--dataset cifar10 --model gaussian-product --patch 3 --seeds 0,1,2" in text
    assert "| x | 1.0000 | 0.5000 | 12,345 | 3.00 |" in text
    assert "lonely" not in text  # there is nothing to compare it with
    assert "| CIFAR-10, plain | patch 5 | 4 of 256 | 2048 | 45,000 | 3.00 |" in text
    assert "alone, plain" not in text
    assert "## MNIST" not in text


def test_changes_of_trainings_with_and_without_augmentation_are_compared_apart(tmp_path):
    ablations, page = tmp_path / "ablations.json", tmp_path / "page.md"
    found = [
        record("mnist", 5, 0, a, kind, v)
        for a, kind, v in (
            (0.9, "shift 2", ""),
            (0.8, "shift 2", "x"),
            (0.7, "none", ""),
            (0.6, "none", "y"),
        )
    ]
    ablations.write_text(json.dumps(found))
    write_classification_page(tmp_path / "none.json", ablations, page)
    first, second = page.read_text().split("**MNIST, patch 5, 3 epochs, no augmentation**")
    assert "| x |" in first
    assert "| y |" not in first
    assert "| y |" in second
    assert "| x |" not in second


def test_single_pixels_are_all_looked_at_without_augmentation():
    for dataset in PAPER:
        assert presets.preset(dataset, "gaussian-product", 1, False).positions == 1
        assert presets.preset(dataset, "gaussian-product", 5, False).positions < 1


def test_every_column_has_a_goal_and_the_papers_number():
    for dataset in PAPER:
        assert set(PAPER[dataset]) == set(GOALS[dataset]) == set(COLUMNS)
        for patch in COLUMNS:
            model = "cnn" if patch is None else "gaussian-product"
            settings = presets.preset(dataset, model, patch)
            assert str(Augmentation(settings)) != "none"
            plain = presets.preset(dataset, model, patch, False)
            assert str(Augmentation(plain)) == "none"


def test_the_commands_on_the_page_have_the_settings_of_the_records():
    records = json.loads((ROOT / "results" / "table1.json").read_text())
    assert records
    for found in records:
        words = table_cells.command_of(found).split()
        assert words[:3] == ["python", "-m", "benchmarks.table1"]
        cells = table1._cells(table1._parser().parse_args(words[3:]))
        settings = {s.seed: s for dataset, s, _ in cells if dataset == found["dataset"]}
        recorded = table_cells.settings_of(found)
        given = settings[found["seed"]]
        assert replace(given, learning_rate=given.peak_rate) == recorded


def test_cells_as_they_were_recorded_are_not_trained_again(monkeypatch):
    """`kermix reproduce table-as-written --data-root DATA --cells results` finds all of them."""
    kept = as_written._kept(ROOT / "results")
    monkeypatch.setattr(as_written, "_images", lambda *told: (None, None))
    monkeypatch.setattr(as_written, "train_cell", None)
    rows = as_written._trained(Path("DATA"), None, kept, lambda share: None, 3, (1, 3, 5, 7), {})
    assert len(rows) == 48


@pytest.mark.parametrize("patch", [None, 3])
def test_the_command_of_todays_settings_changes_nothing(patch):
    found = record("cifar10", patch, 0, 0.5)
    model = "cnn" if patch is None else "gaussian-product"
    settings = presets.preset("cifar10", model, patch)
    found |= {
        "model": model,
        "settings": {**settings.as_json(), "learning_rate": settings.peak_rate},
    }
    assert "--set" not in table_cells.command_of(found)
    found["settings"]["epochs"] += 1
    assert f"--set epochs={settings.epochs + 1} " in table_cells.command_of(found)


def test_without_results_the_page_is_empty_but_there(tmp_path):
    page = write_classification_page(tmp_path / "a.json", tmp_path / "b.json", tmp_path / "c.md")
    assert page.read_text().startswith("# Classification")


def test_the_page_shows_the_equations_as_written(tmp_path):
    results, page = tmp_path / "table1.json", tmp_path / "page.md"
    results.write_text(json.dumps([record("mnist", None, 0, 0.97, "none")]))
    written = []
    for reading, accuracy in (("element", 0.91), ("vector", 0.82)):
        one = record("mnist", 3, 0, accuracy, "none", f"as written, {reading}")
        one["settings"] = presets.as_written("mnist", 3, reading).as_json()
        written.append(one)
    (tmp_path / "table1-as-written.json").write_text(json.dumps(written))
    text = write_classification_page(results, tmp_path / "none.json", page).read_text()
    section = text.partition("as written")[2]
    assert "| element-wise, test | - | 0.9100 (one seed) | - | - | 0.9700 (one seed) |" in section
    assert "| vector anchors, test | - | 0.8200 (one seed) | - | - |" in section
    assert "CIFAR" not in section
