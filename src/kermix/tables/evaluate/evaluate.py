"""Judge a generator by its samples, or by two sketches: one answer, and scores.

Scores of samples have error bars; those that the moments of sketches know have certificates.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, Unpack

import numpy as np
import torch
from torch import Tensor

from kermix.checks import check_count, check_level, check_option, check_seed, with_options
from kermix.data.dataset import column_names
from kermix.data.readers.common import AS_FOUND, ReadingOptions, reading_of
from kermix.data.sources import are_sketches
from kermix.errors import SampleError
from kermix.evaluation.spectra import (
    RESIDUAL,
    RULES,
    check_eta,
    chosen_kernel,
    feature_map_of,
    refuse_beside_sketch,
)
from kermix.kernels.gaussian import (
    GaussianKernel,
    Kernel,
    choose_variance,
)
from kermix.kernels.others import AnyKernel
from kermix.sketches.features import FeatureMap
from kermix.sketches.sketch import Sketch, check_comparable
from kermix.tables.compare.coincidence import (
    equal_pairs_by_columns,
    repeats_beyond_coincidence,
)
from kermix.tables.compare.column_changes import ComparedRows
from kermix.tables.compare.verdict import JudgementTask, Progress, Verdict, judge_sketches, silent
from kermix.tables.evaluate.copies import (
    Memorizing,
    Panel,
    Within,
    looked_at,
    memorizing,
    panel_of,
    within_entities,
)
from kermix.tables.evaluate.evaluation_result import Evaluation, answer_of, copies_in_words
from kermix.tables.evaluate.judged_data import (
    Embedding,
    JudgedData,
    euclidean,
    needed_rows,
    read_judged,
)
from kermix.tables.evaluate.scores import (
    SPECTRAL_READINGS,
    WANTED,
    Score,
    Spaces,
    TableScores,
    distance_scores,
    kernel_in_words,
    neighbor_scores_of,
    number_of,
    ratio_bound,
    sdmetrics_scores,
    spectral_scores,
    table_scores,
)
from kermix.two_sample.classifier_test import CONFIDENCE
from kermix.two_sample.column_scores import FEWEST_ROWS
from kermix.two_sample.mean_test import mean_test
from kermix.two_sample.permutation import permutations_for

__all__ = ["evaluate", "evaluate_sketches"]


def evaluate_sketches(real: Any, fake: Any, eta: float, level: float) -> Evaluation:
    """Fidelity, diversity and novelty; sketches hold no rows for the other scores.

    Args:
        real: A sketch, or the name of its file.
        fake: The other, made with the same feature map.
        eta: How many times as frequent a novel mode is.
        level: At which p-values sets are called different.
    """
    from kermix.costs.functions import svd_cost
    from kermix.evaluation.diversity import ken
    from kermix.tables.compare.sketch_comparison import open_sketches

    names, (x, y) = open_sketches(real, fake, ("real", "fake"))
    check_comparable(x, y)
    verdict = judge_sketches(mean_test(x, y), names, (x.count, y.count), level).verdict
    rows = min(x.count, y.count)
    value, info = svd_cost(x, y, normalized=True, return_info=True)
    fidelity = Score("fidelity", "fidelity", "fidelity", float(value), None,
                     _finite(info.error_bound), None, verdict.pvalue, rows, None,
                     SPECTRAL_READINGS["fidelity"])  # fmt: skip
    scores = [fidelity, *_numbers_of_sketches(x, y, rows)]
    for name, sides in (("invented", (y, x)), ("missed", (x, y))):
        score, told = ken(*sides, eta=eta, return_info=True)
        scores.append(
            Score(name, f"{name} (KEN)", "novelty", float(score), None, _finite(told.error_bound),
                  None, None, rows, None, SPECTRAL_READINGS[name])
        )  # fmt: skip
    answer, good = answer_of(verdict, {s.name: s for s in scores}, None, None, None)
    notes = (
        "Sketches hold no rows: no exemplars, neighbour scores, memorization, classifier or "
        "columns. Certified errors are bounds, not standard errors.",
    )
    return Evaluation(
        answer, good, tuple(scores), (), (), None, None, verdict,
        kernel_in_words(x.feature_map.kernel, x.feature_map.rank), names, (x.count, y.count),
        notes,
    )  # fmt: skip


def _numbers_of_sketches(x: Sketch, y: Sketch, rows: int) -> Iterator[Score]:
    """Vendi score and RKE of two sketches, and their ratio."""
    for name, title, order in (("vendi", "Vendi score", 1.0), ("rke", "RKE", 2.0)):
        one, two = (number_of(s.moments, order) for s in (x, y))
        for side, (number, sure) in (("real", one), ("fake", two)):
            yield Score(f"{name}_{side}", f"{title}, {side}", "diversity", number, None, sure,
                        None, None, rows, None, SPECTRAL_READINGS[name])  # fmt: skip
        ratio = f"{name}_ratio"
        yield Score(ratio, f"{title}, fake / real", "diversity", two[0] / one[0], None,
                    ratio_bound(*two, *one), 1.0, None, rows, None,
                    SPECTRAL_READINGS[ratio])  # fmt: skip


def _finite(bound: Tensor | None) -> float | None:
    return None if bound is None or not bound.isfinite() else float(bound)


COPIES = 0.2  # share of the level at which samples are called copies: convention
NEAREST_ROWS, AMONG = 5000, 50_000  # convention


class EvaluateOptions(ReadingOptions, total=False):
    """What rarely needs to be said of an evaluation."""

    kernel: AnyKernel | None
    embed: Embedding | None
    images: tuple[Any, Any] | None
    standardize: bool | None
    eta: float
    neighbors: int
    rank: int
    modes: int
    exemplars: int
    strict: bool
    progress: Progress | None


@torch.no_grad()
@with_options(EvaluateOptions, **AS_FOUND, kernel=None, embed=None, images=None, standardize=None,
              eta=1.0, neighbors=5, rank=512, modes=10, exemplars=5, strict=False,
              progress=None)  # fmt: skip
def evaluate(
    real: Any,
    fake: Any,
    v: Kernel | Literal["auto"] = "auto",
    *,
    held_out: Any = None,
    level: float = 0.05,
    permutations: int | None = None,
    seed: int = 0,
    **options: Unpack[EvaluateOptions],
) -> Evaluation:
    """Whether the samples of a generator are as good as real data, and if not, what is wrong.

    Computes fidelity with a p-value, diversity (Vendi score and RKE of both), what the generator
    invents and misses, with samples of each (KEN), precision, recall, density and coverage, kernel
    and Frechet distance, memorization, a classifier's verdict and, for tables, the differences of
    columns and of pairs of them. Each score has an error bar or a certificate, the number of rows
    it needs, and a line on how to read it; the text of the result begins with the answer.

    Args:
        real: Real samples, the training data of the generator: a tensor, an array, a table, a file
            (tables, .npy, .npz, .safetensors), a folder of images, or a sketch.
        fake: Samples of the generator, in the same format. For two sketches, only the scores
            available from sketches are computed.
        v: Variance of the Gaussian kernel; "auto" is `kermix.metrics.stable_variance` of the real
            samples for fidelity and diversity, and for novelty at least a tenth of the median
            rule.
        kernel: Kernel to use instead of the Gaussian, such as `kermix.CosineKernel`; then omit
            `v`.
        held_out: Real samples that the generator has not seen, to find near copies.
        embed: Function from a batch of rows, or of images of shape (B, C, H, W) with values from 0
            to 1, to embeddings of shape (B, d), such as a network.
        images: Folders with the images whose embeddings are the rows of real and fake, in the
            order of their names, to show exemplars.
        columns: Columns of tables to use; by default all.
        exclude: Columns of tables to ignore.
        kinds: Kinds of columns by name, to override the detected ones; see `kermix.Schema.infer`.
        delimiter: Field delimiter of text files; detected by default.
        decimal: Decimal mark of text files, "." or ","; detected by default.
        encoding: Encoding of text files; by default UTF-8, else Windows-1252 or Latin-1.
        header: Whether the first line of text files holds column names; detected by default.
        missing: Cells that stand for a missing value, beside empty ones, NA and the like.
        sheet: Sheet of Excel files; by default that with most cells.
        standardize: Whether to standardize columns; by default those of tables, if standard
            deviations differ more than tenfold, but not embeddings.
        eta: How many times more frequent than in the other set a mode must be to count as novel.
        neighbors: The k of precision, recall, density and coverage.
        rank: Maximum number of kernel features.
        modes: Maximum number of novel modes in each set.
        exemplars: Number of samples of each mode.
        level: Maximum probability of rejecting samples that are as good as real data: four fifths
            of it for the p-value of a difference, one fifth for that of copies.
        permutations: Number of permutations for the p-value; None means 500, more for small
            levels.
        seed: Of all that is drawn.
        strict: Whether tables whose columns or types differ are an error. By default they are
            judged by what both have, and the result says what is left out.
        progress: Called with the name of the next step and the share done so far.

    Example:
        >>> x = torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
        >>> found = evaluate(x[:200], 0.5 * x[200:], permutations=50)
        >>> found.good, found["vendi_ratio"] < 0.9, found["recall"] < found["precision"]
        (False, True, True)
    """
    _check(v, options, level, seed)
    sketched = are_sketches(real, fake)
    of_difference = level if sketched else (1 - COPIES) * level
    if permutations is None:
        permutations = permutations_for(of_difference)
    check_count("permutations", permutations)
    if sketched:
        refuse_beside_sketch(v=None if _is_auto(v) else v, kernel=options["kernel"])
        return evaluate_sketches(real, fake, options["eta"], level)
    say = options["progress"] or silent
    say("reading", 0.0)
    data = read_judged(
        real, fake, held_out, reading_of(options), options["embed"], options["standardize"],
        options["images"], options["strict"],
    )  # fmt: skip
    if min(data.n, len(data.fake)) < FEWEST_ROWS:
        raise SampleError(
            f"{data.n} real and {len(data.fake)} fake samples: judging a generator needs at "
            f"least {FEWEST_ROWS} of each."
        )
    say("test and classifier", 0.05)
    verdict, counted = _verdict(data, of_difference, permutations, seed)
    verdict = replace(verdict, level_of_copies=COPIES * level)
    say("features", 0.35)
    spaces = _spaces(data, v, options["kernel"], options["rank"], seed)
    say("diversity and novelty", 0.4)
    spectral = spectral_scores(
        data, spaces, options["eta"], options["modes"], options["exemplars"], verdict, seed
    )
    say("neighbors", 0.7)
    near = neighbor_scores_of(data, options["neighbors"], seed)
    say("distances", 0.8)
    distances = distance_scores(data, seed)
    say("memorizing", 0.85)
    memory = _memorizing(data, seed)
    say("columns", 0.9)
    tables, of_table = _table(counted, seed) if data.table else (None, [])
    say("done", 1.0)
    scores = (
        *spectral.fidelity, *_classifier(verdict), *spectral.diversity, *spectral.novelty, *near,
        *distances, *memory.scores, *of_table,
    )  # fmt: skip
    answer, good = answer_of(
        verdict, {s.name: s for s in scores}, spectral.invented, spectral.missed, memory.found,
        data.table,
    )  # fmt: skip
    return Evaluation(
        answer, good, scores, spectral.invented, spectral.missed, memory.found, tables, verdict,
        spaces.words, data.names, (data.n, len(data.fake)), (*memory.words, *data.notes), data,
    )  # fmt: skip


def _check(v: Kernel | Literal["auto"], options: EvaluateOptions, level: float, seed: int) -> None:
    check_seed(seed)
    counts = {n: options[n] for n in ("neighbors", "rank", "modes", "exemplars")}
    for name, value in counts.items():
        check_count(name, value)
    check_level(level)
    check_eta(options["eta"])
    if isinstance(v, str):
        check_option("v", v, ("auto", *RULES))


def _is_auto(v: Kernel | Literal["auto"]) -> bool:
    return isinstance(v, str) and v == "auto"


def _spaces(
    data: JudgedData,
    v: Kernel | Literal["auto"],
    kernel: AnyKernel | None,
    rank: int,
    seed: int,
) -> Spaces:
    """The features of all scores: if nobody says otherwise, novelty has a broader kernel.

    The finest kernel that rows can tell, which diversity is of, cuts a group into many parts.
    That of modes is at least exp(-5) for the median pair, which parts groups: it has a tenth of
    the variance of the median rule.
    """
    given: Any = v if not _is_auto(v) else "stable" if kernel is None else None
    chosen, sides = chosen_kernel(given, kernel, data.real), [data.real, data.fake]

    def features(of: Sequence[Tensor], kernel: Any) -> FeatureMap:
        return feature_map_of(of, kernel, rank, RESIDUAL, seed)

    of_both, of_real, of_modes = features(sides, chosen), features(sides[:1], chosen), None
    words = kernel_in_words(chosen, of_both.rank)
    if given == "stable" and isinstance(chosen, GaussianKernel):
        broad = GaussianKernel(float(choose_variance(data.real)) / 10)
        if float(broad.v_p[0]) > float(chosen.v_p[0]):
            of_modes = features(sides, broad)
            words += f"; of novelty v = {float(broad.v_p[0]):.4g}, {of_modes.rank} features"
    return Spaces(of_both, of_real, of_modes, words)


def _verdict(
    data: JudgedData, level: float, permutations: int, seed: int
) -> tuple[Verdict, ComparedRows]:
    """The test and its rows, which are those of `km.compare`."""
    if data.counted is None:
        rows, repeated = _principal(data)
    else:
        rows, repeated = ComparedRows.of(data.counted.read), data.counted.repeated
    task = JudgementTask(rows, data.names, level, permutations, seed, repeated)
    return task.find().verdict, rows


def _principal(data: JudgedData, components: int = 64) -> tuple[ComparedRows, tuple[int, int]]:
    """Principal components of rows, and how many were left out because they repeat others."""
    # A function of the pooled rows, whatever their order: labels can still be exchanged.
    centered = data.points - data.points.mean(0)
    _, vectors = torch.linalg.eigh(centered.mT @ centered)
    turned = centered @ vectors[:, -components:]
    rows = ComparedRows(turned, data.n, tuple(column_names(components)))
    again = repeats_beyond_coincidence(rows)
    repeated = int(again[: data.n].sum()), int(again[data.n :].sum())
    return rows.some((~again).nonzero()[:, 0], data.n - repeated[0]), repeated


def _classifier(verdict: Verdict) -> Iterator[Score]:
    if verdict.effect is None or verdict.interval is None:
        return
    low, high = verdict.interval
    error = (high - low) / 2 / CONFIDENCE
    rows = min(verdict.rows)
    yield Score(
        "classifier", "classifier (AUC)", "fidelity", verdict.effect, error, None, 0.5, None, rows,
        needed_rows(rows, WANTED, error),
        "how often a classifier scores a fake row above a real one, both unseen: 0.5 if it cannot "
        "tell them apart, 1 if it always can",
    )  # fmt: skip


class _Memory(NamedTuple):
    """What was found about copies, its scores, and what the words mean."""

    found: Memorizing
    scores: list[Score]
    words: list[str]


def _memorizing(data: JudgedData, seed: int) -> _Memory:

    def some(rows: int, most: int = NEAREST_ROWS) -> Tensor:
        order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
        return order[:most].sort().values

    at_real, at_fake = some(data.n, AMONG), some(len(data.fake))
    panel = None
    if data.table:
        few = at_real[looked_at(len(at_real))]
        panel = panel_of({n: data.every.column(n, few) for n in data.every.names})
    held = within = None
    if data.held_out is not None:
        at_held = some(len(data.held_out))
        held = data.held_out[at_held]
        if panel is not None:
            both = len(data.points)
            within = _within(data, panel, [at_real, data.n + at_fake, both + at_held])
    found = memorizing(
        data.real[at_real], data.fake[at_fake], held, _own_units(data)[at_real], within,
        _equal_by_chance(data, at_real, at_fake),
    )  # fmt: skip
    rows = tuple((int(at_fake[i]), int(at_real[k])) for i, k in found.rows)
    found = replace(found, rows=rows, entity=() if panel is None else panel.entity)
    words = copies_in_words(found, panel, held is not None)
    return _Memory(found, list(_scores_of_copies(found, len(at_fake), held is not None)), words)


def _scores_of_copies(found: Memorizing, m: int, held_out: bool) -> Iterator[Score]:
    """Scores of m samples: exact copies, and with held-out rows near ones."""
    needed = round(10 / WANTED)  # ten copies among as many held-out rows
    than = "held-out rows" if held_out else "real rows that equal another one"
    yield Score(
        "copies", "exact copies", "memorizing", found.copies, _error(found.copies, m), None,
        found.copies_held_out, found.copies_pvalue, m, needed,
        f"share of fake rows that equal a training row in all columns; if same: of {than}",
    )  # fmt: skip
    if found.memorized is None or found.nearer is None or found.error is None:
        return
    yield Score(
        "memorized", "near copies", "memorizing", found.memorized, _error(found.memorized, m),
        None, 0.0, found.near_pvalue, m, needed,
        "share of fake rows, exact copies among them, that are closer to a training row than "
        "held-out rows are; there may be more that are not",
    )  # fmt: skip
    yield Score(
        "nearer", "nearer to training rows", "memorizing", found.nearer, found.error, None,
        0.5, None, m, needed_rows(m, WANTED, found.error),
        "how often a fake row is closer to a training row than a held-out row is: 0.5 for new "
        "rows, 1 for copies",
    )  # fmt: skip


def _equal_by_chance(data: JudgedData, at_real: Tensor, at_fake: Tensor) -> float:
    """How many pairs of equal rows all columns of a table together explain."""
    if not data.table:
        return math.inf
    at = torch.cat([at_real, data.n + at_fake])
    return equal_pairs_by_columns(data.every.some(at, len(at_real)))


def _error(share: float, rows: int) -> float:
    share = min(max(share, 1 / rows), 1 - 1 / rows)
    return (share * (1 - share) / rows) ** 0.5


def _within(data: JudgedData, panel: Panel, at: Sequence[Tensor]) -> Within:
    """Training rows, samples and held-out rows by entity, as points."""
    rows = data.every.some(torch.cat(list(at)), len(at[0]))
    found = within_entities(rows, panel, len(at[0]))
    points, layout = found.rows, data.every.layout
    if layout is not None:
        points = euclidean(points, layout._replace(codes=found.codes), len(at[0]))
    sizes = [len(part) for part in at]
    parts, entities = points.split(sizes), found.entities.split(sizes)
    return Within((parts[0], parts[1], parts[2]), (entities[0], entities[1], entities[2]))


def _own_units(data: JudgedData) -> Tensor:  # (N, c)
    """Numbers of real rows as the user gave them; of a table without any, the points."""
    rows = data.rows
    if rows.mixed is None:
        return rows.pooled[: data.n]
    every = torch.arange(data.n)
    numbers = [c.numbers for c in (rows.column(n, every) for n in rows.names) if c.codes is None]
    found = [torch.from_numpy(np.nan_to_num(n)) for n in numbers if n is not None]
    return torch.stack(found, 1) if found else data.real


def _table(compared: ComparedRows, seed: int) -> tuple[TableScores, list[Score]]:
    """Differences of the rows that count, each once."""
    found = table_scores(compared, seed)
    rows = min(compared.n, len(compared.pooled) - compared.n)
    scores = [
        Score(name, name, "table", part.score, if_same=1 - part.if_same, rows=rows,
              needed=round(WANTED**-2),
              reading=f"1 minus the mean difference of {what}, real from fake (total variation "
              "of groups of values, as in kermix compare); 1 is equal",
              scatter=part.scatter)
        for name, part, what in (("shape", found.shape, "columns"),
                                 ("pairs", found.pairs, "pairs of columns"))
        if part.each
    ]  # fmt: skip
    scores += [
        Score(name, title, "table", value, rows=rows, reading="as SDMetrics computes it")
        for name, title, value in sdmetrics_scores(compared)
    ]
    return found, scores
