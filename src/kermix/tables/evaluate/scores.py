"""Scores of two sets of samples, and of two tables by their columns and pairs of columns.

Those of samples are fidelity, diversity, novelty, neighbours and distances, with error bars from
sums over parts of the sets. The differences of columns are those that `km.compare` tells; where
SDMetrics is installed, it computes its own scores.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import combinations
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from kermix.costs.moments import fidelity, svd_interval
from kermix.evaluation.sample_distances import (
    frechet_of_moments,
    kernel_distance,
    neighbor_scores,
)
from kermix.evaluation.spectra import (
    NovelMode,
    diversity_of,
    modes_of,
    novelty_of,
    novelty_score,
    spectrum_of_moments,
)
from kermix.kernels.gaussian import GaussianKernel
from kermix.kernels.others import PointKernel
from kermix.sketches.accumulation import Moments
from kermix.sketches.features import FeatureMap
from kermix.tables.compare.column_changes import (
    ColumnValues,
    ComparedRows,
    groups_of,
    pair_groups,
    sides_of,
    variation,
    variation_by_chance,
)
from kermix.tables.compare.verdict import Verdict, p_text
from kermix.tables.evaluate.judged_data import (
    PARTS,
    JudgedData,
    PartedPair,
    jackknife,
    moments_of_parts,
    needed_rows,
)

__all__ = [
    "SPECTRAL_READINGS",
    "Score",
    "Spaces",
    "SpectralScores",
    "TableDifferences",
    "TableScores",
    "distance_scores",
    "kernel_in_words",
    "neighbor_scores_of",
    "number_of",
    "ratio_bound",
    "sdmetrics_scores",
    "spectral_scores",
    "table_scores",
]


@dataclass(frozen=True)
class Score:
    """One number on the samples of a generator.

    Attributes:
        name: Its name for `Evaluation.score`.
        title: Its title in tables.
        group: "fidelity", "diversity", "novelty", "neighbors", "distances", "memorizing" or
            "table".
        value: The number.
        error: One standard error, from samples left out; None if there is none.
        certificate: Bound on the distance to the value without a sketch; None if nothing was
            sketched.
        if_same: Approximate value if both sets had the same distribution.
        pvalue: P-value of the hypothesis that both sets have the same distribution.
        rows: Number of samples of each set that were used.
        needed: Number of samples needed for an accuracy of one percent.
        reading: How to read it, in one line.
        scatter: Of a mean over columns, or pairs of them, their standard deviation.
    """

    name: str
    title: str
    group: str
    value: float
    error: float | None = None
    certificate: float | None = None
    if_same: float | None = None
    pvalue: float | None = None
    rows: int | None = None
    needed: int | None = None
    reading: str = ""
    scatter: float | None = None

    def cells(self) -> list[str]:
        """A line of a table."""
        numbers = (self.value, self.error, self.certificate, self.if_same)
        shown = ["" if n is None else f"{n:.3g}" for n in numbers]
        shown.append("" if self.pvalue is None else p_text(self.pvalue, 3))
        counts = ["" if n is None else f"{n:,}" for n in (self.rows, self.needed)]
        return [self.title, *shown, *counts]


# Reasoned, no record.
WANTED = 0.01  # accuracy that rows are needed for: convention

READINGS = {
    "precision": "share of fake rows that lie among real ones: quality; near 1 its error bar is "
    "rough",
    "recall": "share of real rows that lie among fake ones: variety; near 1 its error bar is "
    "rough",
    "density": "how densely real rows surround a fake one; 1 if equal, less if fake rows lie "
    "outside the data",
    "coverage": "share of real rows with a fake neighbour; low if modes are missing",
    "kid": "squared distance of means with the cubic kernel, 0 if equal; unbiased, so it may be "
    "negative",
    "frechet": "distance of the Gaussians of both sets, 0 if equal; grows as rows become fewer",
}


def neighbor_scores_of(
    data: JudgedData, neighbors: int, seed: int, most: int = 5000
) -> list[Score]:
    """Precision, recall, density and coverage of as many rows of each set, at most so many."""
    rows = min(data.n, len(data.fake), most)
    if rows <= neighbors:
        return []
    real, fake = (_some(s, rows, seed) for s in (data.real, data.fake))
    found = neighbor_scores(real, fake, neighbors, seed)
    if_same = {"density": 1.0, "coverage": _coverage_if_same(rows, neighbors)}
    return [
        Score(name, name, "neighbors", value, error, None, if_same.get(name), None, rows,
              max(1000, needed_rows(rows, WANTED, error)), READINGS[name])
        for name, value, error in zip(found._fields[:4], found[:4], found.errors, strict=True)
    ]  # fmt: skip


def _coverage_if_same(rows: int, neighbors: int) -> float:
    """The probability that not all k nearest of 2 n - 1 other rows are real (Naeem et al.)."""
    none = 1.0
    for i in range(neighbors):
        none *= (rows - 1 - i) / (2 * rows - 1 - i)
    return 1 - none


def distance_scores(data: JudgedData, seed: int, most_dimensions: int = 2048) -> list[Score]:
    """Kernel distance, and the Frechet distance where there are not too many dimensions."""
    rows = min(data.n, len(data.fake))
    kid = kernel_distance(data.real, data.fake, seed=seed)
    scale = max(abs(kid.value), kid.error, 1e-300)
    found = [
        Score("kid", "KID (cubic kernel)", "distances", kid.value, kid.error, None, 0.0, None,
              rows, needed_rows(rows, 0.1 * scale, kid.error), READINGS["kid"])
    ]  # fmt: skip
    if data.points.shape[1] <= most_dimensions and rows >= 2 * PARTS:
        found.append(_frechet(data, rows, seed))
    return found


def _frechet(data: JudgedData, rows: int, seed: int, few_dimensions: int = 256) -> Score:
    """With an error bar of ten parts, or of two where there are not few dimensions."""
    parts = PARTS if data.points.shape[1] <= few_dimensions else 2
    center = data.real.mean(0)
    sums = [_sums(_some(s, rows, seed) - center, parts) for s in (data.real, data.fake)]

    def value_of(left_out: int | None) -> float:
        sides = [_moments([p for k, p in enumerate(s) if k != left_out]) for s in sums]
        return frechet_of_moments(*sides[0], *sides[1])

    value = value_of(None)
    told = jackknife(value, [value_of(k) for k in range(parts)])
    return Score(
        "frechet", "Frechet distance", "distances", value, told.error, None,
        max(0.0, -told.bias), None, rows,
        needed_rows(rows, 0.1 * max(value, 1e-300), told.error, told.bias), READINGS["frechet"],
    )  # fmt: skip


def _sums(points: Tensor, parts: int) -> list[tuple[int, Tensor, Tensor]]:
    return [(len(p), p.sum(0), p.mT @ p) for p in points.tensor_split(parts)]


def _moments(sums: list[tuple[int, Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    count = sum(n for n, *_ in sums)
    mean = torch.stack([first for _, first, _ in sums]).sum(0) / count
    second = torch.stack([second for *_, second in sums]).sum(0)
    return mean, (second - count * torch.outer(mean, mean)) / (count - 1)


def _some(points: Tensor, rows: int, seed: int) -> Tensor:
    order = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))
    return points[order[:rows].to(points.device)]


# Reasoned, no record.
STRICT = 2.0  # times as frequent: modes that the other set hardly has

SPECTRAL_READINGS = {
    "fidelity": "overlap of both distributions in the kernel's feature space, from 0 to 1",
    "vendi": "effective number of distinct samples, from 1 to the number of rows",
    "rke": "effective number of modes, frequent ones counting more",
    "vendi_ratio": "diversity of fake over real, of as many rows of each: below 1 modes are "
    "missing or narrow, above 1 there is too much noise",
    "rke_ratio": "number of modes, fake over real, of as many rows of each",
    "invented": "mass and variety of what fake samples have more often than real ones; read it "
    "against 'if same'",
    "missed": "mass and variety of what real samples have more often than fake ones",
}


@dataclass(frozen=True)
class SpectralScores:
    """What was found."""

    fidelity: list[Score]
    diversity: list[Score]
    novelty: list[Score]
    invented: tuple[NovelMode, ...]
    missed: tuple[NovelMode, ...]


class Spaces(NamedTuple):
    """The features that scores are of.

    Attributes:
        of_both: With landmarks from both sets.
        of_real: Those of the diversity of real data, whose landmarks are real rows.
        of_modes: Those of novelty, if it has another kernel.
        words: The kernels, written out.
    """

    of_both: FeatureMap
    of_real: FeatureMap
    of_modes: FeatureMap | None
    words: str


def spectral_scores(
    data: JudgedData,
    spaces: Spaces,
    eta: float,
    modes: int,
    exemplars: int,
    verdict: Verdict,
    seed: int,
) -> SpectralScores:
    """Scores of as many rows of each set as the smaller one has.

    They depend on how many rows they are of, so those of sets of different sizes would differ
    though the distributions do not. The diversity of real data is of all real rows and of nothing
    else, so that it is the same number beside every generator.

    Args:
        data: Both sets.
        spaces: The features.
        eta: How many times as frequent a novel mode is.
        modes: How many of them at most.
        exemplars: Samples of each.
        verdict: Of the test.
        seed: Of the parts.
    """
    rows = min(data.n, len(data.fake))
    generator = torch.Generator().manual_seed(seed)
    chosen = [
        torch.randperm(len(s), generator=generator)[:rows].sort().values
        for s in (data.real, data.fake)
    ]
    real, fake = data.real[chosen[0]], data.fake[chosen[1]]
    features, pair = spaces.of_both, PartedPair(spaces.of_both, real, fake, seed)
    x, y = pair.whole
    fidelity_ = _fidelity(pair, x, y, pair.mixed(), verdict, rows)
    diversity = _diversity(
        pair, x, y, moments_of_parts(spaces.of_real, data.real, seed), rows, data.n
    )
    if spaces.of_modes is not None:
        features, pair = spaces.of_modes, PartedPair(spaces.of_modes, real, fake, seed)
        x, y = pair.whole
    mixed = pair.mixed()
    etas = {e: _least_mass(mixed, e, rows) for e in sorted({eta, max(eta, STRICT)}, reverse=True)}
    more = _modes(y, x, features, fake, etas, exemplars)
    less = _modes(x, y, features, real, etas, exemplars)
    invented, missed = (
        _unexplained(*sides, etas[eta])[:modes] for sides in ((more, less), (less, more))
    )
    return SpectralScores(
        [fidelity_],
        diversity,
        [_novelty("invented", pair, mixed, eta, rows, True),
         _novelty("missed", pair, mixed, eta, rows, False)],
        tuple(_renumbered(m, chosen[1]) for m in invented),
        tuple(_renumbered(m, chosen[0]) for m in missed),
    )  # fmt: skip


def _least_mass(
    mixed: list[tuple[Moments, Moments]],
    eta: float,
    rows: int,
    margin: float = 1.15,
    fewest: int = 5,
) -> float:
    """The largest mass that sets which are one have had, and a little more; of a few rows.

    Both sets are looked through, each twice; with this margin one pair of equal sets in twenty or
    so shows a mode.
    """
    largest = max(
        float(torch.linalg.eigvalsh(novelty_of(*sides, eta))[-1])
        for one, two in mixed
        for sides in ((one, two), (two, one))
    )
    return max(margin * largest, fewest / rows)


def _modes(
    x: Moments,
    y: Moments,
    features: FeatureMap,
    rows: torch.Tensor,
    etas: dict[float, float],
    exemplars: int,
    searched: int = 20,
) -> list[NovelMode]:
    """Modes above chance: first those that the other set hardly has, then what is more frequent.

    Chance differences of common modes hide rare ones, unless a mode must be twice as frequent.
    """
    found: list[NovelMode] = []
    seen = torch.zeros(len(rows), dtype=torch.bool)
    for eta, least in etas.items():
        for mode, members in modes_of(x, y, features, rows, eta, searched, exemplars, least):
            if not bool(seen[list(mode.exemplars)].any()):
                found.append(mode)
            seen |= members
    return sorted(found, key=lambda m: -m.mass)


def _unexplained(modes: list[NovelMode], others: list[NovelMode], least: float) -> list[NovelMode]:
    """Modes that are more frequent by more than follows from what the other set alone has.

    Where a tenth of real data is missing, all that is left is more frequent among samples. What
    is beyond that must be above chance, `least`, again.
    """
    alone = sum(m.excess for m in others if m.share > STRICT * m.share_elsewhere)
    times = 1 / max(0.05, 1 - alone)
    return [
        m
        for m in modes
        if m.share > STRICT * m.share_elsewhere or m.share - times * m.share_elsewhere > least
    ]


def _renumbered(mode: NovelMode, places: torch.Tensor) -> NovelMode:
    """A mode with the rows of the whole set."""
    return replace(mode, exemplars=tuple(int(places[k]) for k in mode.exemplars))


def _fidelity(
    pair: PartedPair,
    x: Moments,
    y: Moments,
    mixed: list[tuple[Moments, Moments]],
    verdict: Verdict,
    rows: int,
) -> Score:
    def value_of(a: Moments, b: Moments) -> float:
        return float(fidelity(a.plain_second, b.plain_second))

    value = torch.tensor(value_of(x, y), dtype=torch.float64)
    interval = svd_interval(x, y, value)
    bound = None if interval is None else float(
        max(interval.highest - value, value - interval.lowest)
    )  # fmt: skip
    found = pair.error_of(value_of)
    if_same = sum(value_of(*sides) for sides in mixed) / len(mixed)
    return Score(
        "fidelity", "fidelity", "fidelity", float(value), found.error, bound, if_same,
        verdict.pvalue, rows, needed_rows(rows, WANTED, found.error, 1 - if_same),
        SPECTRAL_READINGS["fidelity"],
    )  # fmt: skip


def _diversity(
    pair: PartedPair,
    x: Moments,
    y: Moments,
    of_real: tuple[Moments, list[Moments]],
    rows: int,
    real_rows: int,
) -> list[Score]:
    without = pair.without_each()
    found = []
    for name, title, order in (("vendi", "Vendi score", 1.0), ("rke", "RKE", 2.0)):
        (real, real_bound), (fake, fake_bound) = (number_of(m, order) for m in (x, y))
        left = [[number_of(sides[k], order)[0] for sides in without] for k in (0, 1)]
        whole, some = of_real
        for side, (value, bound), values, count in (
            ("real", number_of(whole, order), [number_of(m, order)[0] for m in some], real_rows),
            ("fake", (fake, fake_bound), left[1], rows),
        ):
            told = jackknife(value, values)
            found.append(
                Score(f"{name}_{side}", f"{title}, {side}", "diversity", value, told.error, bound,
                      None, None, count, needed_rows(count, WANTED * value, *told),
                      SPECTRAL_READINGS[name])
            )  # fmt: skip
        told = jackknife(fake / real, [b / a for a, b in zip(*left, strict=True)])
        sure = ratio_bound(fake, fake_bound, real, real_bound)
        found.append(
            Score(f"{name}_ratio", f"{title}, fake / real", "diversity", fake / real, told.error,
                  sure, 1.0, None, rows, needed_rows(rows, WANTED, *told),
                  SPECTRAL_READINGS[f"{name}_ratio"])
        )  # fmt: skip
    return found


def number_of(moments: Moments, order: float) -> tuple[float, float | None]:
    """An effective number and its certificate."""
    value, bound = diversity_of(spectrum_of_moments(moments), order)
    return float(value), None if bound is None else float(bound)


def ratio_bound(a: float, a_bound: float | None, b: float, b_bound: float | None) -> float | None:
    """How far `a / b` can be off; None where certificates do not tell."""
    if a_bound is None or b_bound is None or b_bound >= b:
        return None
    return max((a + a_bound) / (b - b_bound) - a / b, a / b - (a - a_bound) / (b + b_bound))


def _novelty(
    name: str,
    pair: PartedPair,
    mixed: list[tuple[Moments, Moments]],
    eta: float,
    rows: int,
    of_fake: bool,
) -> Score:
    def value_of(x: Moments, y: Moments) -> float:
        difference = novelty_of(y, x, eta) if of_fake else novelty_of(x, y, eta)
        return float(novelty_score(torch.linalg.eigvalsh(difference)))

    value, told = value_of(*pair.whole), pair.error_of(value_of)
    same = [value_of(*sides) for sides in mixed]
    above = (1 + sum(s >= value for s in same)) / (1 + len(same))
    return Score(
        name, f"{name} (KEN)", "novelty", value, told.error, None, sum(same) / len(same), above,
        rows, needed_rows(rows, 0.1, told.error, sum(same) / len(same)), SPECTRAL_READINGS[name],
    )  # fmt: skip


def kernel_in_words(kernel: GaussianKernel | PointKernel, rank: int) -> str:
    """The kernel that scores are of, written out."""
    if isinstance(kernel, GaussianKernel) and len(kernel.v_p) == 1:
        v = float(kernel.v_p[0])
        told = f"k(a, b) = exp(-|a - b|^2 / (4 v d)) with v = {v:.4g} in d dimensions"
    else:
        told = f"{kernel}, normalized to k(x, x) = 1"
    return f"{told}; {rank} features"


@dataclass(frozen=True)
class TableDifferences:
    """Differences of columns, or of pairs of them, as `ColumnVerdict.difference` is.

    Attributes:
        each: Names of columns, and the total variation of their groups of values.
        if_same: The mean if both tables had the same distribution: what chance makes.
    """

    each: tuple[tuple[tuple[str, ...], float], ...]
    if_same: float

    @property
    def score(self) -> float:
        """1 minus their mean: 1 if nothing differs."""
        return 1 - float(np.mean([d for _, d in self.each])) if self.each else 1.0

    @property
    def scatter(self) -> float:
        """Their standard deviation: it says how unlike they are, not how surely they are known."""
        return float(np.std([d for _, d in self.each], ddof=1)) if len(self.each) > 1 else 0.0


@dataclass(frozen=True)
class TableScores:
    """Differences of single columns (shape), and of two together (pairs)."""

    shape: TableDifferences
    pairs: TableDifferences


def table_scores(rows: ComparedRows, seed: int = 0, most_pairs: int = 2000) -> TableScores:
    """Differences of two tables, real rows first; of very many pairs of columns some are drawn.

    Args:
        rows: Of both.
        seed: Of the pairs.
        most_pairs: Others are left out, at random (convention).
    """
    columns = {name: rows.column(name) for name in rows.names}
    pairs = list(combinations(rows.names, 2))
    if len(pairs) > most_pairs:
        chosen = np.random.default_rng(seed).permutation(len(pairs))[:most_pairs]
        pairs = [pairs[k] for k in np.sort(chosen)]
    return TableScores(
        _differences([((name,), groups_of(c)[0]) for name, c in columns.items()], rows.n),
        _differences([(p, pair_groups(columns[p[0]], columns[p[1]])) for p in pairs], rows.n),
    )


def _differences(
    grouped: Sequence[tuple[tuple[str, ...], np.ndarray]], n: int
) -> TableDifferences:
    each = tuple((names, variation(groups, n)) for names, groups in grouped)
    by_chance = [variation_by_chance(groups, n) for _, groups in grouped]
    return TableDifferences(each, float(np.mean(by_chance)) if by_chance else 0.0)


def sdmetrics_scores(rows: ComparedRows) -> list[tuple[str, str, float]]:
    """SDMetrics' own scores by its own code: names, titles and values; none if it is missing."""
    try:
        reports = import_module("sdmetrics.reports.single_table")
        metrics = import_module("sdmetrics.single_table")
    except ImportError:
        return []
    import pandas as pd

    columns = [rows.column(name) for name in rows.names]
    real, fake = (pd.DataFrame({c.name: _cells(c, rows.n)[side] for c in columns})
                  for side in (0, 1))  # fmt: skip
    kinds = {c.name: {"sdtype": "numerical" if c.codes is None else "categorical"}
             for c in columns}  # fmt: skip
    report = reports.QualityReport()
    report.generate(real, fake, {"columns": kinds}, verbose=False)
    detection = metrics.LogisticDetection.compute(real, fake, metadata={"columns": kinds})
    return [
        ("sdmetrics_quality", "SDMetrics quality", float(report.get_score())),
        ("sdmetrics_detection", "SDMetrics logistic detection", float(detection)),
    ]


def _cells(column: ColumnValues, n: int) -> tuple[np.ndarray, np.ndarray]:
    if column.codes is None:
        assert column.numbers is not None
        return sides_of(column.numbers, n)
    return sides_of(np.array(column.names, dtype=object)[column.codes], n)
