"""Judging generators: what is planted is found, and in equal sets nothing; all inputs work."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import kermix as km
from internals import Layout, MixedKernel, answer_of, euclidean, evaluation_report
from kermix.errors import ImageError, OptionError, SampleError, TableError

QUICK = {"permutations": 50, "rank": 60}


def draw(shares, n, seed, spread=0.3):
    generator = torch.Generator().manual_seed(seed)
    mode = torch.multinomial(torch.tensor(shares), n, True, generator=generator)
    centres = 5 * torch.eye(5)[: len(shares)]
    return centres[mode] + spread * torch.randn(n, 5, generator=generator), mode


@pytest.fixture(scope="module")
def dropped():
    real, mode = draw([0.2] * 5, 500, 0)
    fake, _ = draw([0.25] * 4 + [0.0], 400, 1)
    fake[:16] = real[:16]
    held, _ = draw([0.2] * 5, 300, 2)
    return km.evaluate(real, fake, held_out=held, **QUICK), mode


def test_a_dropped_mode_and_copies_are_found(dropped):
    found, mode = dropped
    assert not found.good
    assert str(found).splitlines()[0] == found.answer
    assert "too little of one mode of real data" in found.answer
    assert "4 % of the samples are exact copies of training rows" in found.answer
    assert len(found.missed) == 1
    assert set(mode[list(found.missed[0].exemplars)].tolist()) == {4}
    assert found.missed[0].excess == pytest.approx(0.2, abs=0.06)
    assert found.invented == ()
    assert found["rke_ratio"] < 0.95
    assert found["coverage"] < 0.85 < found["precision"]
    assert list(found.memorizing.rows[:16]) == [(k, k) for k in range(16)]


def test_what_is_left_is_not_called_invented_where_a_mode_is_missing():
    real, mode = draw([0.2] * 5, 600, 4)
    fake, _ = draw([0.25] * 4 + [0.0], 600, 5)
    found = km.evaluate(real, fake, 1.0, **QUICK)
    assert found.invented == ()
    assert [set(mode[list(m.exemplars)].tolist()) for m in found.missed] == [{4}]
    moved, _ = draw([0.35, 0.15, 0.25, 0.25, 0.0], 600, 6)
    other = km.evaluate(real, moved, 1.0, **QUICK)
    assert len(other.invented) == 1


def test_each_score_has_an_error_bar_or_a_certificate_and_a_reading(dropped):
    found, _ = dropped
    names = [s.name for s in found.scores]
    assert names == [
        "fidelity", "classifier", "vendi_real", "vendi_fake", "vendi_ratio", "rke_real",
        "rke_fake", "rke_ratio", "invented", "missed", "precision", "recall", "density",
        "coverage", "kid", "frechet", "copies", "memorized", "nearer",
    ]  # fmt: skip
    for score in found.scores:
        assert score.error is not None or score.certificate is not None, score.name
        assert score.reading
        assert score.needed >= 1
        assert score.rows == (500 if score.name.endswith("_real") else 400)
    json.dumps(found.to_dict(), allow_nan=False)
    with pytest.raises(OptionError, match="vendi_real"):
        found.score("fid")


def test_in_equal_sets_nothing_is_found():
    x, _ = draw([0.2] * 5, 900, 3)
    found = km.evaluate(x[:400], x[400:], **QUICK)
    assert found.good
    assert found.answer.startswith("No difference found at level 0.04 (p = ")
    assert "standard deviations or more in one column would have been found" in found.answer
    assert "cannot be distinguished" not in found.answer
    assert found.invented == found.missed == ()
    for name in ("fidelity", "vendi_ratio", "rke_ratio", "density", "coverage", "kid"):
        score = found.score(name)
        assert score.value == pytest.approx(score.if_same, abs=6 * score.error + 0.02), name
    assert found["missed"] == pytest.approx(found.score("missed").if_same, rel=0.5)


def test_error_bars_of_diversity_are_about_the_scatter():
    values, told = [], []
    for seed in range(12):
        x, _ = draw([0.4, 0.3, 0.2, 0.1], 300, 10 + seed)
        features = km.nystrom_features(x, 0.5, rank=40)
        from internals import PartedPair, number_of

        pair = PartedPair(features, x[:150], x[150:], seed)
        values.append(number_of(pair.whole[0], 1.0)[0])
        told.append(pair.error_of(lambda a, _: number_of(a, 1.0)[0]).error)
    assert 0.5 < np.mean(told) / np.std(values) < 2


def table(n, seed, shift=0.0):
    rng = np.random.default_rng(seed)
    found = pd.DataFrame({
        "price": rng.lognormal(size=n) + shift,
        "kind": rng.choice(["a", "b", "c"], size=n, p=[0.5, 0.3, 0.2]),
        "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 90, n), "D"),
    })  # fmt: skip
    found.loc[rng.random(n) < 0.1, "price"] = np.nan
    return found


def test_tables_with_categories_times_and_gaps(tmp_path):
    real, fake, held = table(200, 0), table(180, 1, 2.0), table(90, 2)
    paths = []
    for name, frame in (("real", real), ("fake", fake), ("held", held)):
        paths.append(tmp_path / f"{name}.parquet")
        frame.to_parquet(paths[-1])
    found = km.evaluate(paths[0], str(paths[1]), held_out=paths[2], **QUICK)
    assert not found.good
    assert found.names == ("real.parquet", "fake.parquet")
    assert {"shape", "pairs", "classifier"} <= {s.name for s in found.scores}
    assert dict(found.tables.shape.each)[("price",)] > 0.4
    assert dict(found.tables.shape.each)[("kind",)] < 0.15
    frames = km.evaluate(real, fake, held_out=held, **QUICK)
    assert frames["shape"] == found["shape"]
    assert frames["vendi_ratio"] == pytest.approx(found["vendi_ratio"], rel=1e-9)


def _of_real(found):
    return {s.name: (s.value, s.error, s.certificate) for s in found.scores if "_real" in s.name}


@pytest.mark.parametrize("kind", ["table", "array", "numbers"])
def test_scores_of_real_rows_are_the_same_beside_every_generator(kind):
    real = table(150, 0)
    others = [table(150, 1), table(90, 2, 5.0), table(200, 3).assign(kind="z"), real[:60]]
    if kind != "table":
        real, *others = (
            frame[["price"]].fillna(1.0).assign(size=np.arange(float(len(frame))) % 7 * 40)
            for frame in (real, *others)
        )
    if kind == "array":
        real, *others = (torch.from_numpy(frame.to_numpy()) for frame in (real, *others))
    few = {"permutations": 10, "rank": 40, "neighbors": 3}
    found = [_of_real(km.evaluate(real, other, **few)) for other in others]
    assert set(found[0]) == {"vendi_real", "rke_real"}
    assert all(other == found[0] for other in found)


def test_mixed_rows_have_the_distances_of_their_kernel():
    generator = torch.Generator().manual_seed(0)
    rows = torch.cat(
        [torch.randn(30, 2, generator=generator), torch.randint(4, (30, 2), generator=generator)],
        1,
    ).double()
    layout = Layout(codes=2, mismatch=2.6, columns=4)
    points = euclidean(rows, layout)
    assert torch.allclose(
        km.gram(points, points, km.GaussianKernel(0.3)),
        km.gram(rows, rows, MixedKernel(0.3, layout)),
        atol=1e-12,
    )


def test_embeddings_in_files(tmp_path):
    real, _ = draw([0.2] * 5, 120, 0)
    fake, _ = draw([0.2] * 5, 100, 1)
    few = {"permutations": 20, "rank": 40}
    expected = km.evaluate(real, fake, 0.5, **few)
    np.save(tmp_path / "real.npy", real.numpy())
    save_file({"embeddings": fake.contiguous()}, tmp_path / "fake.safetensors")
    pd.DataFrame(fake.numpy()).rename(columns=str).to_parquet(tmp_path / "fake.parquet")
    for name in ("fake.safetensors", "fake.safetensors:embeddings", "fake.parquet"):
        found = km.evaluate(tmp_path / "real.npy", tmp_path / name, 0.5, **few)
        assert found["vendi_fake"] == pytest.approx(expected["vendi_fake"], rel=1e-6)
    save_file({"a": fake.contiguous(), "b": fake[:2].clone()}, tmp_path / "two.safetensors")
    with pytest.raises(TableError, match="say which"):
        km.evaluate(real, tmp_path / "two.safetensors")
    with pytest.raises(TableError, match="no such file"):
        km.evaluate(real, tmp_path / "none.safetensors")


def pictures(folder, n, seed, dark=False):
    folder.mkdir()
    rng = np.random.default_rng(seed)
    for k in range(n):
        image = rng.integers(0, 60 if dark else 255, (6, 6), np.uint8)
        Image.fromarray(image).save(folder / f"{k}.png")
    return folder


def test_folders_of_pictures_and_an_embedding(tmp_path):
    real, fake = pictures(tmp_path / "a", 40, 0), pictures(tmp_path / "b", 30, 1, dark=True)
    found = km.evaluate(real, fake, **QUICK)
    assert not found.good
    assert found.data.images[1].shape == (30, 1, 6, 6)
    shapes = []

    def embed(batch):
        shapes.append(tuple(batch.shape))
        assert 0 <= float(batch.min()) <= float(batch.max()) <= 1
        return batch.flatten(1)[:, :3]

    embedded = km.evaluate(real, fake, embed=embed, **QUICK)
    assert shapes == [(40, 1, 6, 6), (30, 1, 6, 6)]
    assert embedded.data.points.shape == (70, 3)
    with pytest.raises(SampleError, match="embed returned"):
        km.evaluate(real, fake, embed=lambda b: b, **QUICK)
    with pytest.raises(ImageError, match="folder of images"):
        km.evaluate(real, torch.zeros(30, 36))


def test_many_nameless_columns_are_judged_by_their_components():
    x = torch.randn(120, 140, generator=torch.Generator().manual_seed(0))
    assert not km.evaluate(x[:60], 1.6 * x[60:], **QUICK).good
    assert km.evaluate(x[:60], x[60:], **QUICK).verdict.rows == (60, 60)


def test_sketches_give_what_sketches_know(tmp_path):
    real, _ = draw([0.2] * 5, 2000, 0)
    fake, _ = draw([0.25] * 4 + [0.0], 2000, 1)
    features = km.nystrom_features(torch.cat([real, fake])[::7], 0.5, rank=100)
    sketches = [km.Sketch(features).update(s) for s in (real, fake)]
    found = km.evaluate(*sketches)
    assert not found.good
    assert found["vendi_real"] == pytest.approx(float(km.metrics.vendi(sketches[0])), rel=1e-9)
    assert found.score("vendi_real").certificate > 0
    paths = [s.save(tmp_path / f"{k}.sketch") for k, s in enumerate(sketches)]
    assert km.evaluate(*paths)["missed"] == pytest.approx(found["missed"], rel=1e-9)
    with pytest.raises(OptionError, match="another sketch"):
        km.evaluate(real, sketches[1])
    with pytest.raises(OptionError, match="v given for a sketch"):
        km.evaluate(*sketches, 0.1)
    json.dumps(found.to_dict(), allow_nan=False)


def test_words_of_sketches_are_supported_by_their_certificates():
    """A Vendi score that may be off by more than it is from 1 says nothing of diversity."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(4000, 5, generator=generator) * scale for scale in (1.0, 1.08))
    features = km.nystrom_features(x[:500], 0.15, rank=30)
    found = km.evaluate(*[km.Sketch(features).update(s) for s in (x, y)])
    off = abs(found["vendi_ratio"] - 1)
    assert off > 0.02
    assert (found.score("vendi_ratio").certificate or np.inf) > off
    assert found.score("vendi_real").certificate > 0
    assert "diverse" not in found.answer
    assert "mode" not in found.answer  # nobody looked for them
    assert "1e-300" not in str(found)


def test_a_level_that_is_shared_is_explained():
    x, _ = draw([0.2] * 5, 240, 0)
    found = km.evaluate(x[:120], x[120:], **QUICK)
    assert found.good
    assert "at level 0.04 (p = " in found.answer
    assert "the rest of 0.05 is for a test of copies)" in found.answer


def test_other_kernels_and_bad_options():
    x, _ = draw([0.2] * 5, 120, 0)
    found = km.evaluate(x[:60], x[60:], kernel=km.CosineKernel(), **QUICK)
    assert "Cosine" in found.kernel
    for options, text in (
        ({"level": 2}, "level"), ({"neighbors": 0}, "neighbors"), ({"rank": 0}, "rank"),
        ({"permutations": 0}, "permutations"), ({"eta": -1}, "eta=-1"),
        ({"v": "foo"}, "median, silverman, stable"), ({"v": "foo"}, "one of auto"),
        ({"v": 0.1, "kernel": km.CosineKernel()}, "v and kernel are both given"),
    ):  # fmt: skip
        with pytest.raises(OptionError, match=text):
            km.evaluate(x[:60], x[60:], **{**QUICK, **options})
    with pytest.raises(SampleError, match="at least 10"):
        km.evaluate(x[:5], x[60:])


@pytest.mark.filterwarnings("ignore::kermix.errors.DegenerateDataWarning")
def test_sets_without_any_spread_and_tables_of_categories_are_no_trouble():
    generator = torch.Generator().manual_seed(0)
    cells = pd.DataFrame({"a": list("xyz") * 20, "b": list("uv") * 30})
    points = torch.randn(60, 2, generator=generator)
    for real, fake in (
        (torch.ones(20, 2), torch.ones(15, 2)),
        (points[:30], torch.zeros(20, 2)),
        (cells, cells[::-1]),
        (1e10 * points[:30], 1e10 * points[30:]),
        (points[:50], points[50:]),
    ):
        found = km.evaluate(real, fake, permutations=20, rank=30)
        json.dumps(found.to_dict(), allow_nan=False)
        assert all(np.isfinite(s.value) for s in found.scores)


def test_both_claims_together_hold_the_level(dropped):
    found, _ = dropped
    scores = {s.name: s for s in found.scores}
    assert found.verdict.level == pytest.approx(0.04)

    def good(pvalue, of_copies, level=0.01):
        different = pvalue <= found.verdict.level
        verdict = replace(found.verdict, pvalue=pvalue, different=different, level_of_copies=level)
        memory = replace(found.memorizing, copies_pvalue=of_copies, near_pvalue=1.0)
        return answer_of(verdict, scores, (), (), memory)[1]

    assert good(0.041, 0.011)
    assert not good(0.04, 0.5)
    assert not good(0.5, 0.01)
    assert good(0.5, 0.01, level=0.002)


def test_five_exact_copies_among_five_hundred_rows_are_told(tmp_path):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1000, 2, generator=generator)
    x[500:505] = x[:5]
    whole = pd.DataFrame(x.numpy(), columns=["a", "b"]).assign(k=["u", "v"] * 500)
    found = km.evaluate(whole[:500], whole[500:], permutations=30, rank=20)
    page = evaluation_report(found).save(tmp_path / "page.html").read_text()
    assert "1 % are exact copies" in page
    assert "near copies" not in page.replace("Near copy", "")
    assert found.good is False
    assert "1 % of the samples are exact copies of training rows" in found.answer


def mixed(rows, seed):
    rng = np.random.default_rng(seed)
    return pd.DataFrame({"town": rng.choice(list("abc"), rows), "kids": rng.poisson(1.2, rows),
                         "x": rng.normal(size=rows).round(2),
                         "price": rng.lognormal(3, 1, rows).round(1)})  # fmt: skip


def test_exact_copies_are_told_although_each_column_is_coarse():
    """No column alone, but all of them together say that rows do not coincide by chance."""
    training, new = mixed(300, 0), mixed(300, 1)
    new.iloc[:30] = training.iloc[:30]
    found = km.evaluate(training, new, permutations=30, rank=20)
    assert found.answer.startswith("10 % of the samples are exact copies of training rows. Apart")
    assert not found.good
    coarse = [mixed(300, k)[["town", "kids", "price"]].round(0) for k in (0, 1)]
    fresh = km.evaluate(*coarse, permutations=30, rank=20)
    assert fresh.memorizing.copies > 0.01
    assert fresh.memorizing.copies_pvalue == 1


def test_samples_that_resemble_real_rows_one_by_one_are_not_called_good():
    rng = np.random.default_rng(0)
    real = rng.normal(size=(300, 3))
    found = km.evaluate(real, real + 1e-4 * rng.normal(size=(300, 3)), permutations=30, rank=20)
    assert "They resemble real rows one by one, as near copies do: a classifier" in found.answer
    assert found.good is False


def test_samples_that_repeat_a_row_are_said_to():
    real, fake = mixed(300, 0), mixed(300, 1)
    fake = pd.concat([fake, *[fake.iloc[[5]]] * 100])
    answer = km.evaluate(real, fake, permutations=30, rank=20).answer
    assert answer.startswith("One row stands 101 times in fake and never in real, which")
    assert "The samples may differ from real data" in answer


def test_everything_missing_is_one_hundred_percent():
    x, _ = draw([1.0], 80, 9)
    found = km.evaluate(x[:40], x[40:] + 50.0, **QUICK)
    assert (
        "They have too little of one mode of real data (by 100 % of the rows) and too much of "
        "another (by 100 % of the rows)"
    ) in found.answer


def test_too_few_permutations_are_no_proof_of_likeness(tmp_path):
    x, _ = draw([0.5, 0.5], 120, 8)
    found = km.evaluate(x[:60], x[60:] + 50.0, **{**QUICK, "permutations": 5})
    assert found.answer.startswith("Too few permutations to say: permutations=5")
    assert "diverse" not in found.answer
    assert found.good is None
    assert found.to_dict()["good"] is None
    page = evaluation_report(found).save(tmp_path / "page.html").read_text()
    assert '<div class="answer">' in page  # in neither color
    small = km.evaluate(x[:60], x[60:] + 50.0, level=0.001, **{**QUICK, "permutations": None})
    assert small.verdict.different


def test_repeated_samples_count_once_and_are_said():
    real, fake = mixed(300, 0), mixed(300, 1)
    fake = pd.concat([fake, fake.sample(100, random_state=0)])
    found = km.evaluate(real, fake, permutations=30, rank=20)
    told = "100 repeated rows in fake count once, as coincidence does not explain them. Apart from"
    assert found.answer.startswith(told)
    assert not found.verdict.different
    assert found.good is False
