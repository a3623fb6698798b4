"""How two weighted halves of one pooled sample differ, for many weightings at once.

Every function takes weights `a` and `b` of the pooled points, each of shape (P, N) and summing to
1, and returns P numbers that grow with the difference. Permutations of labels are such weights,
and so are the draws of a bootstrap.
"""

from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from kermix.comparison.pooled import PooledFeatures, bures_form, matrix_form, quadratic_form
from kermix.kernels.gaussian import KernelTerms
from kermix.kernels.gram import gram_matrix, squared_distances

__all__ = [
    "TestForm",
    "cost_values",
    "energy_statistic",
    "exact_statistics",
    "gram_blocks",
    "mmd_statistic",
    "moment_statistic",
    "scalar_statistic",
]

TestForm: TypeAlias = Literal["local", "exact"]

BLOCK = 2048
EXACT_BATCH_NUMBERS = 2**24


def _blocks(rows_of: Callable[[slice], Tensor], points: Tensor) -> Iterator[tuple[slice, Tensor]]:
    for start in range(0, len(points), BLOCK):
        rows = slice(start, start + BLOCK)
        yield rows, rows_of(rows)


def gram_blocks(pooled: Tensor, terms: KernelTerms) -> Iterator[tuple[slice, Tensor]]:
    """The Gram matrix of the pooled sample in blocks of rows."""
    return _blocks(lambda rows: gram_matrix(pooled[rows], pooled, terms, pooled.dtype), pooled)


def energy_statistic(pooled: Tensor, a: Tensor, b: Tensor) -> Tensor:
    r"""Energy distance :math:`2 E|x - y| - E|x - x'| - E|y - y'|`."""
    blocks = _blocks(lambda rows: squared_distances(pooled[rows], pooled).sqrt(), pooled)
    # Rounding may leave less than nothing of two equal sets, or minus nothing.
    return (-quadratic_form(a - b, blocks)).clamp(min=0).abs()


def mmd_statistic(gram: Iterator[tuple[slice, Tensor]], a: Tensor, b: Tensor) -> Tensor:
    """Squared maximum mean discrepancy."""
    return quadratic_form(a - b, gram)


def scalar_statistic(gram: Iterator[tuple[slice, Tensor]], a: Tensor, b: Tensor) -> Tensor:
    """Cauchy-Schwarz divergence: minus the logarithm of the normalised scalar cost."""
    pp, pq, qq = (a.new_zeros(len(a)) for _ in range(3))
    for rows, block in gram:
        of_a, of_b = a @ block.T, b @ block.T
        pp += (of_a * a[:, rows]).sum(1)
        pq += (of_a * b[:, rows]).sum(1)
        qq += (of_b * b[:, rows]).sum(1)
    divergence = pp.log() + qq.log() - 2 * pq.log()
    level = 16 * torch.finfo(divergence.dtype).eps
    # Without any overlap the divergence is infinite: the largest number stands for it.
    return torch.where(divergence.abs() <= level, 0.0, divergence).nan_to_num()


def moment_statistic(
    cost: str, form: TestForm, pooled: PooledFeatures, a: Tensor, b: Tensor
) -> Tensor:
    """Statistics of first and second moments of features; see :func:`two_sample_test`."""
    if form == "exact":
        return exact_statistics((cost,), pooled, a, b)[cost]
    if cost == "vector":
        difference = (a - b) @ pooled.features
        level = 4 * torch.finfo(difference.dtype).eps * pooled.features.abs().max()
        return torch.where(difference.abs() <= level, 0.0, difference).square().sum(1)
    kernel = bures_form if cost == "svd" else matrix_form
    blocks = _blocks(lambda rows: kernel(pooled, rows), pooled.features)
    return quadratic_form(a - b, blocks)


def exact_statistics(
    costs: tuple[str, ...], pooled: PooledFeatures, a: Tensor, b: Tensor
) -> dict[str, Tensor]:
    """The costs themselves, from the moments of features under each weighting."""
    features = pooled.features.double()
    size = max(1, EXACT_BATCH_NUMBERS // features.numel())
    found: dict[str, list[Tensor]] = {cost: [] for cost in costs}
    for of_x, of_y in zip(a.double().split(size), b.double().split(size), strict=True):
        moments = [(features * w.unsqueeze(-1)).mT @ features for w in (of_x, of_y)]
        for cost, values in cost_values(
            costs, of_x @ features, moments[0], moments[1], len(features) / 2
        ).items():
            found[cost].append(values)
    return {cost: torch.cat(parts) for cost, parts in found.items()}


def cost_values(
    costs: tuple[str, ...], mean: Tensor, of_a: Tensor, of_b: Tensor, count: float
) -> dict[str, Tensor]:
    """The costs of moments, each turned so that it grows with the difference.

    Args:
        costs: Which of `"svd"`, `"matrix"`, `"vector"`.
        mean: Mean features of the first side, (P, r).
        of_a: Mean products of features of the first side, (P, r, r).
        of_b: The same of the second side.
        count: Points of a side, for the ridge.
    """
    formulas = {"svd": _svd, "matrix": _matrix, "vector": _vector}
    return {cost: formulas[cost](mean, of_a, of_b, count) for cost in costs}


def _svd(mean: Tensor, of_a: Tensor, of_b: Tensor, count: float) -> Tensor:
    values, vectors = torch.linalg.eigh(of_a)
    root = vectors * values.clamp(min=0).sqrt().unsqueeze(-2)
    fidelity = torch.linalg.eigvalsh(root.mT @ of_b @ root).clamp(min=0).sqrt().sum(-1)
    traces = [m.diagonal(dim1=-2, dim2=-1).sum(-1) for m in (of_a, of_b)]
    return 1 - fidelity / (traces[0] * traces[1]).sqrt()


def _matrix(mean: Tensor, of_a: Tensor, of_b: Tensor, count: float) -> Tensor:
    smoothed = [_smoothed(m, count) for m in (of_a, of_b)]
    return -(smoothed[0] * smoothed[1].mT).sum((-2, -1)) / mean.shape[-1]


def _vector(mean: Tensor, of_a: Tensor, of_b: Tensor, count: float) -> Tensor:
    projected = (_smoothed(of_b, count) @ mean.unsqueeze(-1))[..., 0]
    return -(mean * projected).sum(-1) / mean.square().sum(-1)


def _smoothed(moment: Tensor, count: float) -> Tensor:
    r""":math:`C (C + \epsilon)^{-1}` of unnormalised moments, with the costs' default ridge."""
    ridge = 1e-4 / count
    eye = torch.eye(moment.shape[-1], dtype=moment.dtype, device=moment.device)
    return torch.linalg.solve(moment + ridge * eye, moment)
