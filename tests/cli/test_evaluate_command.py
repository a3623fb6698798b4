"""`kermix evaluate`: the answer first, a page that begins with it, JSON, embeddings, pictures."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from typer.testing import CliRunner

import kermix as km
from internals import app
from kermix.errors import KermixError

FAST = ["--permutations", "50", "--rank", "60"]


def invoke(*arguments, status=0):
    result = CliRunner().invoke(app, ["evaluate", *map(str, arguments)], env={"COLUMNS": "140"})
    assert result.exit_code == status, result.output
    return result.stdout


def table(n, seed, kinds):
    rng = np.random.default_rng(seed)
    kind = rng.choice(kinds, n)
    price = np.where(kind == "c", 9, 0) + rng.normal(size=n)
    return pd.DataFrame({"price": price.round(3), "kind": kind, "size": rng.normal(size=n)})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tables")
    real = table(160, 0, ["a", "b", "c"])
    fake = table(140, 1, ["a", "b"])
    fake.iloc[:15] = real.iloc[:15]
    real.to_csv(path / "real.csv", index=False)
    fake.to_csv(path / "fake.csv", index=False)
    table(120, 2, ["a", "b", "c"]).to_csv(path / "held.csv", index=False)
    return path


def test_the_first_line_is_the_answer_and_the_page_begins_with_it(folder, tmp_path):
    page = tmp_path / "page.html"
    files = folder / "real.csv", folder / "fake.csv"
    output = invoke(*files, "--held-out", folder / "held.csv", *FAST, "-o", page)
    assert output.startswith("The samples differ from real data")
    assert "exact copies of training rows" in " ".join(output.split())
    assert output.strip().splitlines()[-1] == f"Report: {page}"
    for title in ("fidelity", "Vendi score, fake / real", "missed (KEN)", "coverage", "shape"):
        assert f"\n{title} " in output
    text = page.read_text()
    body = text.partition("<body>")[2]
    assert body.index("The samples differ from real data") < body.index("<table")
    assert "What the samples miss" in text
    assert "Samples that are too close to training rows" in text
    assert "training row 3" in text
    assert text.count("<details>") == 2


def test_json_is_that_of_the_function_and_a_status_tells_pipelines(folder):
    files = [str(folder / "real.csv"), str(folder / "fake.csv")]
    found = json.loads(invoke(*files, *FAST, "--json", "--fail-if-different", status=3))
    expected = km.evaluate(*files, permutations=50, rank=60)
    assert found["answer"] == expected.answer
    assert found["scores"]["vendi_ratio"]["value"] == expected["vendi_ratio"]
    assert found["scores"]["vendi_ratio"]["reading"]
    same = json.loads(
        invoke(files[0], folder / "held.csv", *FAST, "--json", "--fail-if-different")
    )
    assert same["good"]


def test_embeddings_with_their_pictures(tmp_path):
    rng = np.random.default_rng(0)
    bright = {"real": np.repeat([40, 200], 30), "fake": np.full(40, 40)}
    for name, levels in bright.items():
        (tmp_path / name).mkdir()
        for k, level in enumerate(levels):
            image = np.full((8, 8), level, np.uint8)
            Image.fromarray(image).save(tmp_path / name / f"{k:03}.png")
        points = torch.from_numpy(levels[:, None] / 60 + 0.1 * rng.normal(size=(len(levels), 3)))
        save_file({"e": points.float().contiguous()}, tmp_path / f"{name}.safetensors")
    page = tmp_path / "page.html"
    files = tmp_path / "real.safetensors", tmp_path / "fake.safetensors"
    output = invoke(
        *files, "--images", tmp_path / "real", tmp_path / "fake", *FAST, "--report", page,
    )  # fmt: skip
    assert "They have too little of" in output
    assert page.read_text().count("<img") >= 1
    cosine = json.loads(invoke(*files, "--kernel", "cosine", *FAST, "--json"))
    assert "Cosine" in cosine["kernel"]


def test_folders_of_pictures(tmp_path):
    rng = np.random.default_rng(0)
    for name, most in (("real", 255), ("fake", 90)):
        (tmp_path / name).mkdir()
        for k in range(25):
            image = rng.integers(0, most, (5, 5), np.uint8)
            Image.fromarray(image).save(tmp_path / name / f"{k}.png")
    assert invoke(tmp_path / "real", tmp_path / "fake", *FAST).startswith("The samples differ")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--kernel", "laplace"], "choose one of gaussian"),
        (["--kernel", "cosine", "-v", "0.1"], "for the Gaussian kernel"),
        (["--level", "2"], "between 0 and 1"),
        (["--images", "none", "none"], "give two folders"),
    ],
)
def test_errors_help(folder, arguments, text):
    files = folder / "real.csv", folder / "fake.csv"
    result = CliRunner().invoke(app, ["evaluate", *map(str, files), *FAST, *arguments])
    assert isinstance(result.exception, KermixError)
    assert text in str(result.exception)


def test_several_generators_are_ranked_and_ties_are_said(folder, tmp_path):
    for seed, name in ((3, "good"), (4, "fresh"), (5, "far")):
        far = 2.0 * (name == "far")
        made = table(160, seed, ["a", "b", "c"])
        made.assign(price=made["price"] + far, size=made["size"] - far).to_csv(
            tmp_path / f"{name}.csv", index=False
        )
    page, files = tmp_path / "page.html", sorted(tmp_path.glob("*.csv"))
    output = invoke(folder / "real.csv", *files, *FAST, "-o", page)
    assert output.startswith(("fresh and good are best of 3", "good and fresh are best of 3"))
    text = page.read_text().partition("<body>")[2]
    assert text.index("are best of 3") < text.index("<table")
    found = json.loads(invoke(folder / "real.csv", *files, *FAST, "--json"))
    assert found["ranks"] == {"good": 1, "fresh": 1, "far": 3}
    assert not found["evaluations"]["far"]["good"]
    invoke(folder / "real.csv", *files, *FAST, "--fail-if-different")
    bad = [folder / "fake.csv", tmp_path / "far.csv"]
    invoke(folder / "real.csv", *bad, *FAST, "--fail-if-different", status=3)


def test_copiers_rank_after_good_generators(folder, tmp_path):
    real = table(160, 0, ["a", "b", "c"])
    table(160, 3, ["a", "b", "c"]).to_csv(tmp_path / "good.csv", index=False)
    real.to_csv(tmp_path / "copier.csv", index=False)
    held = tmp_path / "held.txt"
    table(160, 9, ["a", "b", "c"]).to_csv(held, index=False)
    files = tmp_path / "copier.csv", tmp_path / "good.csv"
    output = invoke(folder / "real.csv", *files, *FAST, "--held-out", held)
    first = " ".join(output.split())
    assert first.startswith("good is best of 2:")
    assert (
        "Ranked after good ones: copier: 100 % of the samples are exact copies of training rows"
        in first
    )
    assert km.rank_generators(
        real, files, held_out=held, permutations=50, rank=60
    ).ranks == {"good": 1, "copier": 2}  # fmt: skip


def test_generators_have_names_and_there_are_two(folder):
    real, fake = (pd.read_csv(folder / f"{name}.csv") for name in ("real", "fake"))
    found = km.rank_generators(real, {"mine": fake, "real": real}, permutations=50, rank=60)
    assert set(found.ranks) == {"mine", "real"}
    assert "mine" in repr(found)
    assert "<table>" in found._repr_html_()
    with pytest.raises(KermixError, match="1 generator; to rank them there must be two"):
        km.rank_generators(real, [folder / "fake.csv"])
    with pytest.raises(KermixError, match="a file is named twice"):
        km.rank_generators(real, [folder / "fake.csv"] * 2)
