"""Copies in panels: rows of an entity are alike by nature; the text says what its words mean."""

import re

import numpy as np
import pandas as pd
import pytest
import torch

import kermix as km
from commands import kermix
from internals import judge_samples
from kermix import Schema


def panel(countries=20, years=24, seed=0, level=None):
    """Countries in years: a level and a trend of each country, and noise of 4 percent."""
    rng = np.random.default_rng(seed)
    if level is None:
        level = 1.5 * rng.normal(size=(countries, 3)), 0.02 * rng.random((countries, 3))
    entity, year = np.divmod(np.arange(countries * years), years)
    found = {"country": [f"c{k}" for k in entity], "year": 1990 + year}
    for k, name in enumerate(("income", "life", "people")):
        line = level[0][entity, k] + level[1][entity, k] * year
        found[name] = (1000 * np.exp(line + 0.04 * rng.normal(size=len(line)))).round(2)
    return pd.DataFrame(found), level


def moved(rows, low, high, seed=1):
    rng = np.random.default_rng(seed)
    found = rows.copy()
    for name in ("income", "life", "people"):
        by = rng.uniform(low, high, len(rows)) * rng.choice([-1, 1], len(rows))
        found[name] = (rows[name] * (1 + by)).round(2)
    return found


@pytest.fixture(scope="module")
def split():
    whole, level = panel()
    order = np.random.default_rng(2).permutation(len(whole))
    training, held = whole.iloc[order[:360]], whole.iloc[order[360:]]
    new = panel(seed=3, level=level)[0].sample(360, random_state=0)
    return tuple(rows.reset_index(drop=True) for rows in (training, held, new))


def judged(training, samples, held=None):
    return km.evaluate(training, samples, held_out=held, permutations=30, rank=30)


@pytest.fixture(scope="module")
def files(split, tmp_path_factory):
    folder = tmp_path_factory.mktemp("panel")
    training, held, _ = split
    half = moved(training, 0.01, 0.08)
    half.iloc[:180] = training.iloc[:180]
    sets = {"training": training, "held": held, "moved": moved(training, 0.01, 0.08),
            "far": moved(training, 0.3, 0.3), "near": moved(training, 0.0005, 0.002),
            "half": half}  # fmt: skip
    for name, rows in sets.items():
        rows.to_csv(folder / f"{name}.csv", index=False)
    return folder


FEW = ("--permutations", "30", "--rank", "30")
EXACT = "Exact copy: a sample that equals a training row in all columns."
NEAR = (
    "Near copy: a sample nearer to a training row than real rows that the generator has not seen"
)


def told(files, samples, *options):
    found = kermix("evaluate", files / "training.csv", files / f"{samples}.csv", *FEW, *options)
    return " ".join(found.stdout.split())


@pytest.mark.parametrize("samples", ["moved", "far", "near"])
def test_without_held_out_rows_the_shell_says_nothing_of_near_copies(files, samples):
    text = told(files, samples)
    assert "copies of training rows" not in text
    assert "near copies" not in text
    assert EXACT in text
    assert f"{NEAR}. No share of them without such rows: give --held-out FILE" in text


def test_exact_copies_are_told_without_held_out_rows(files):
    text = told(files, "half")
    assert "50 % of the samples are exact copies of training rows" in text


@pytest.mark.parametrize("samples", ["moved", "far"])
def test_rows_moved_by_more_than_years_differ_are_no_copies(files, samples):
    text = told(files, samples, "--held-out", files / "held.csv")
    assert "copies of training rows" not in text
    assert "only rows of the same country are compared, whatever their year" in text


def test_near_copies_are_told_with_their_interval(files):
    text = told(files, "near", "--held-out", files / "held.csv")
    assert re.search(
        r"t least about 9. % \(\d+ % to \d+ %\) of the samples are near copies of training", text
    )


def test_rows_further_from_their_country_than_new_rows_are_said_first(files, split):
    text = told(files, "far", "--held-out", files / "held.csv")
    far = "ompared with the training rows of the same country they are further off than held-out"
    assert far in text
    assert not judged(split[0], moved(split[0], 0.3, 0.3), split[1]).good
    fresh = judged(split[0], split[2], split[1])
    assert fresh.good
    assert "further off" not in str(fresh)


def test_copies_are_said_before_that_no_difference_was_found(files):
    text = told(files, "near", "--held-out", files / "held.csv")
    assert text.index("near copies of training") < text.index("Apart from that: no difference")


def test_new_rows_of_the_same_entities_and_years_are_no_copies(split):
    training, held, new = split
    for rows, others in ((new, held), (held[:60], held[60:])):
        found = judged(training, rows, others.reset_index(drop=True)).memorizing
        assert found.near_pvalue > 0.05
        assert found.memorized < 0.05
    mixed = pd.concat([new[:300], moved(training[:60], 0.001, 0.002)], ignore_index=True)
    found = judged(training, mixed, held)
    assert found.memorizing.near_pvalue < 1e-6
    assert found.memorizing.interval[0] < 60 / 360 < found.memorizing.interval[1]
    assert dict(found.memorizing.rows)[found.memorizing.rows[0][0]] < 60


def test_held_out_years_at_the_end_accuse_nobody(split):
    training, held, new = split
    early = training[training.year < 2008].reset_index(drop=True)
    late = pd.concat([held, training])
    late = late[late.year >= 2008].reset_index(drop=True)
    samples = new[new.year < 2008].reset_index(drop=True)
    assert judged(early, samples, late).memorizing.near_pvalue > 0.01


def test_held_out_countries_tell_nothing_of_countries_that_were_trained_with(split):
    training, held, _ = split
    other = held.assign(country="new " + held.country)
    found = judged(training, moved(training, 0.01, 0.08), other)
    assert found.memorizing.memorized is None
    assert "held-out rows are of one with two training rows" in str(found)


def test_numbers_may_name_entities_and_words_years(split):
    training, held, new = split

    def renamed(rows):
        return rows.assign(country=rows.country.str[1:].astype(int) + 100,
                           year="y" + rows.year.astype(str))  # fmt: skip

    def numbers(rows):
        return torch.from_numpy(rows.assign(country=rows.country.str[1:]).astype(float).to_numpy())

    near = moved(training, 0.0005, 0.002)
    found = judged(*map(renamed, (training, new, held)))
    assert found.memorizing.near_pvalue > 0.05
    assert "of the same country are compared, whatever their year" in str(found)
    assert judged(*map(renamed, (training, near, held))).memorizing.memorized > 0.9
    frames = [pd.DataFrame(numbers(rows).numpy(), columns=list(training.columns))
              for rows in (training, moved(training, 0.01, 0.08), held)]  # fmt: skip
    assert judged(*frames).memorizing.near_pvalue > 0.05


def test_a_fit_says_the_same_of_panels(split):
    """Samples of the training rows' years are not nearer for it than held-out rows are."""
    training, held, new = split
    schema = Schema.infer(training)
    whole = pd.concat([training, held], ignore_index=True)
    rows = schema.encode(whole, unseen="unknown")
    train, out = np.arange(len(training)), np.arange(len(training), len(whole))

    def distances(samples):
        encoded = schema.encode(samples, unseen="unknown")
        quality = judge_samples(
            (whole, samples),
            schema,
            rows,
            encoded,
            train,
            out,
            np.zeros(len(out)),
        )
        return quality.privacy

    far = distances(new)
    assert 0.75 < far.samples[0] / far.held_out[0] < 1.25
    near = distances(moved(training, 0.0005, 0.002))
    assert near.samples[0] < 0.5 * near.held_out[0]


@pytest.mark.parametrize("seed", [1, 3])
def test_new_rows_of_what_grows_by_shares_are_no_copies(seed):
    """Growth of ten percent a year, noise of one: nothing but logarithms is even."""
    rng = np.random.default_rng(seed)
    start, growth = 1.5 * rng.normal(size=(25, 6)), 0.1 * (0.5 + rng.random((25, 6)))
    entity, year = np.divmod(np.arange(750), 30)

    def drawn():
        line = start[entity] + growth[entity] * year[:, None] + 0.01 * rng.normal(size=(750, 6))
        table = pd.DataFrame((1000 * np.exp(line)).round(2), columns=list("uvwxyz"))
        return table.assign(country=[f"c{k}" for k in entity], year=1990 + year)

    whole = drawn().sample(frac=1, random_state=seed).reset_index(drop=True)
    training, held = whole[:560], whole[560:].reset_index(drop=True)
    found = judged(training, drawn().sample(560, random_state=seed), held).memorizing
    assert found.near_pvalue > 0.05
    assert found.memorized < 0.03
