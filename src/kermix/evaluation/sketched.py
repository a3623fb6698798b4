"""Judge a generator by two sketches: the scores that moments know, with certificates."""

import math
from pathlib import Path
from typing import Any

from kermix.comparison.drift import is_sketch
from kermix.comparison.judging import judge_sketches
from kermix.comparison.mean_test import mean_test
from kermix.costs.functions import svd_cost
from kermix.errors import OptionError
from kermix.evaluation.answers import answer_of
from kermix.evaluation.novelty import ken
from kermix.evaluation.result import Evaluation, Score
from kermix.evaluation.spectral_scores import READINGS, kernel_in_words, number_of, ratio_bound
from kermix.sketches.sketch import Sketch, check_comparable

__all__ = ["evaluate_sketches"]


def evaluate_sketches(real: Any, fake: Any, eta: float, level: float) -> Evaluation:
    """Fidelity, diversity and novelty; sketches hold no rows for the other scores.

    Args:
        real: A sketch, or the name of its file.
        fake: The other, made with the same feature map.
        eta: How many times as frequent a novel mode is.
        level: At which p-values sets are called different.
    """
    if not (is_sketch(real) and is_sketch(fake)):
        raise OptionError(
            "A sketch can only be compared with another sketch: sketch the other set first, "
            "with --landmarks-from (landmarks_from) this one."
        )
    named = [Path(s).name if isinstance(s, str | Path) else k
             for s, k in ((real, "real"), (fake, "fake"))]  # fmt: skip
    x, y = (Sketch.load(s) if isinstance(s, str | Path) else s for s in (real, fake))
    check_comparable(x, y)
    names = (named[0], named[1]) if named[0] != named[1] else ("real", "fake")
    verdict = judge_sketches(mean_test(x, y), names, (x.count, y.count), level).verdict
    rows = min(x.count, y.count)
    value, info = svd_cost.with_info(x, y, normalized=True)
    bound = None if info.error_bound is None else float(info.error_bound)
    scores = [Score("fidelity", "fidelity", "fidelity", float(value), None, bound, None,
                    verdict.pvalue, rows, None, READINGS["fidelity"])]  # fmt: skip
    for name, title, order in (("vendi", "Vendi score", 1.0), ("rke", "RKE", 2.0)):
        one, two = (number_of(s.moments, order) for s in (x, y))
        for side, (number, sure) in (("real", one), ("fake", two)):
            scores.append(
                Score(f"{name}_{side}", f"{title}, {side}", "diversity", number, None, sure, None,
                      None, rows, None, READINGS[name])
            )  # fmt: skip
        scores.append(
            Score(f"{name}_ratio", f"{title}, fake / real", "diversity", two[0] / one[0], None,
                  ratio_bound(*two, *one), 1.0, None, rows, None, READINGS[f"{name}_ratio"])
        )  # fmt: skip
    for name, sides in (("invented", (y, x)), ("missed", (x, y))):
        score, told = ken.with_info(*sides, eta=eta)
        wide = math.inf if told.error_bound is None else float(told.error_bound)
        scores.append(
            Score(name, f"{name} (KEN)", "novelty", float(score), None,
                  wide if math.isfinite(wide) else None, None, None, rows, None, READINGS[name])
        )  # fmt: skip
    answer, good = answer_of(verdict, {s.name: s for s in scores}, (), (), None)
    notes = (
        "Sketches hold no rows: no exemplars, neighbour scores, memorization, classifier or "
        "columns. Certified errors are bounds, not standard errors.",
    )
    return Evaluation(
        answer, good, tuple(scores), (), (), None, None, verdict,
        kernel_in_words(x.feature_map.kernel, x.feature_map.rank), names, (x.count, y.count),
        notes,
    )  # fmt: skip
