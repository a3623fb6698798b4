"""SVD, matrix and vector costs of samples with their error bars, from whole Gram matrices."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from kermix.comparison.draws import Halves, error_of_root, standard_error
from kermix.comparison.result import Measure
from kermix.costs import dual
from kermix.kernels.gaussian import GaussianKernel, KernelTerms
from kermix.kernels.gram import ScaledGram, gram_matrix, scaled_gram
from kermix.linalg.cholesky import cholesky

__all__ = ["dense_measures"]

LARGEST_SCATTER = 1.0  # of logarithms
ROUNDING = 64 * torch.finfo(torch.float64).eps


class LogCosts(NamedTuple):
    """Logarithms of the normalised costs."""

    svd: float
    matrix: float
    vector: float


def dense_measures(
    x: Tensor,  # (n, d)
    y: Tensor,  # (m, d)
    v: float,
    ridge: float,
    halves: Halves,
    labels: Tensor,  # (E, n + m), bool
) -> list[Measure]:
    """SVD, matrix and vector costs, and the Bures distance.

    Args:
        x: One sample.
        y: The other.
        v: The variance.
        ridge: Ridge of the matrix and the vector cost.
        halves: Splits behind the error bars.
        labels: Exchanges of labels behind what the measures would be, were both samples one.
    """
    terms = GaussianKernel(v).cross_terms(x.shape[1])
    own_x, own_y = (gram_matrix(p, p, terms, p.dtype) for p in (x, y))
    cross = scaled_gram(y, x, terms, x.dtype)
    given = _log_costs(cross, own_x, own_y, ridge)
    same = _exchanged(torch.cat([x, y]), terms, labels, ridge)
    drawn = torch.tensor([
        [_log_costs(ScaledGram(cross.matrix[j][:, i], cross.log_scale), own_x[i][:, i],
                    own_y[j][:, j], ridge) for i, j in zip(*pair, strict=True)]
        for pair in zip(halves.x, halves.y, strict=True)
    ], dtype=x.dtype)  # fmt: skip
    n, m = rows = len(x), len(y)
    bounds = (math.sqrt(n * m), min(n, m), float(own_x.mean()))
    found = []
    for k, (name, bound) in enumerate(zip(LogCosts._fields, bounds, strict=True)):
        value = math.exp(given[k])
        error = _error(name, given[k], drawn[..., k], halves.factor) if len(halves) else None
        alike = _mean([math.exp(costs[k]) for costs in same])
        found.append(Measure(name, v, value * bound, value, error, alike, rows=rows))
    fidelity, error = found[0].normalized, found[0].error
    assert fidelity is not None
    square = max(0.0, 2 - 2 * fidelity)
    error = None if error is None else error_of_root(square, 2 * error)
    alike = _mean([math.sqrt(max(0.0, 2 - 2 * math.exp(costs.svd))) for costs in same])
    found.append(Measure("bures", v, math.sqrt(square), None, error, alike, rows=rows))
    return found


def _error(name: str, log_value: float, drawn: Tensor, factor: float) -> float | None:  # (S, 2)
    """Standard error of a normalised cost from those of halves; None where these cannot tell.

    Halves have half as many points, and costs depend on that. Where points have few neighbours
    costs are proportional to their number, so the relative error carries over; of a matrix cost
    near its bound of 1, which can be nearer to it for halves, also that of what is missing.
    """
    if name == "vector":
        return _error_next_to_one(-math.expm1(log_value), -torch.expm1(drawn), factor)
    shift = float(drawn.max())
    if not math.isfinite(shift):
        return 0.0
    relative = (drawn - shift).exp()
    mean = float(relative.mean())
    error = math.exp(log_value) * standard_error(relative / mean, factor)
    missing, of_halves = -math.expm1(log_value), 1 - mean * math.exp(shift)
    ratio = missing / of_halves if of_halves > 0 else 1.0
    return error * max(1.0, ratio) if name == "matrix" else error


def _error_next_to_one(missing: float, drawn: Tensor, factor: float) -> float | None:  # (S, 2)
    r"""Standard error of one minus a small number that is skewed, as lognormal ones are.

    What a vector cost misses depends on a few points that others do not reach. The scatter
    :math:`s` of its logarithm carries over from halves, and it shrinks with the number of points,
    so its mean is that of halves over two, or what is missing if that is more: the error is that
    mean times :math:`\sqrt{e^{s^2} - 1}`. (An error in proportion to what happens to be missing
    would be smallest where the value is wrong most.) Where halves differ by more than a factor of
    `e`, it depends on points that the samples do not have.
    """
    logs = drawn.clamp(min=ROUNDING).log()
    if float(logs.std()) > LARGEST_SCATTER:
        return None
    typical = max(missing, float(drawn.mean()) / (2 * factor), 0.0)
    return typical * math.sqrt(math.expm1(standard_error(logs, factor) ** 2))


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _exchanged(points: Tensor, terms: KernelTerms, labels: Tensor, ridge: float) -> list[LogCosts]:
    if not len(labels):
        return []
    gram = gram_matrix(points, points, terms, points.dtype)
    zero = gram.new_zeros(())
    return [
        _log_costs(ScaledGram(gram[~of_x][:, of_x], zero), gram[of_x][:, of_x],
               gram[~of_x][:, ~of_x], ridge)
        for of_x in labels
    ]  # fmt: skip


def _log_costs(cross: ScaledGram, own_x: Tensor, own_y: Tensor, ridge: float) -> LogCosts:
    m, n = cross.matrix.shape
    of_x, of_y = (cholesky(own, ridge) for own in (own_x, own_y))
    nuclear = torch.linalg.svdvals(cross.matrix).sum()
    matrix = dual.log_matrix_cost(cross, of_y, of_x)
    vector = dual.log_vector_cost(cross.matrix.mean(1), cross.log_scale, of_y)
    return LogCosts(
        float(cross.log_scale + nuclear.log()) - math.log(n * m) / 2,
        float(matrix) - math.log(min(n, m)),
        float(vector - own_x.mean().log()),
    )
