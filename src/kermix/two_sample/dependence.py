r"""Are two sets of columns, observed together, independent?

The matrix-matrix cost between features of x and of y, over the rows they share, measures how well
each predicts the other: the trace is the sum of squared kernel canonical correlations, and the
log-determinant is that of kernel independent component analysis (Bach and Jordan), twice the
mutual information of Gaussians with these correlations. Without whitening the trace is HSIC. The
p-value is exact: labellings are orders of the rows of y, of which the given one is among the
others.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from kermix.checks import check_count, check_option, check_samples
from kermix.errors import OptionError, ShapeError
from kermix.kernels.gaussian import choose_variance
from kermix.kernels.gram import gram
from kermix.two_sample.cost_test import as_numbers
from kermix.two_sample.permutation import orders, own_generator, pvalues, tied

__all__ = ["Dependence", "DependenceForm", "dependence"]

DependenceForm: TypeAlias = Literal["trace", "logdet", "hsic"]

FORMS = ("trace", "logdet", "hsic")
RIDGE = 0.01  # of the eigenvalues' sum over N; as in kernel ICA, a few hundredths serve
KEPT = 1e-10  # of the largest eigenvalue: below is rounding
ROUNDING = 1e-10  # of a statistic
ROWS_UP_TO = 5000  # for which the eigenvectors of N x N are found
NUMBERS_AT_ONCE = 2**24


@dataclass(frozen=True)
class Dependence:
    """What was found; `pvalue` is the number to look at.

    Attributes:
        statistic: The measure of the given pairs; 0 for features that are uncorrelated.
        pvalue: Share of all orders of y with a statistic at least as large.
        form: Which measure.
        variances: Of the kernels of x and of y.
        permutations: How many orders were drawn besides the given one.
    """

    statistic: float
    pvalue: float
    form: str
    variances: tuple[float, float]
    permutations: int


def dependence(
    x: Tensor | np.ndarray,  # (N, d)
    y: Tensor | np.ndarray,  # (N, e)
    *,
    form: DependenceForm = "trace",
    v: tuple[float, float] | None = None,
    ridge: float = RIDGE,
    permutations: int = 499,
    seed: int | torch.Generator = 0,
) -> Dependence:
    r"""Measure and test the dependence of columns x and columns y of the same rows.

    With centred Gram matrices $K$ and $L$, $K_\epsilon = K (K + N \epsilon I)^{-1}$:

    | form       | measure                                                              |
    | ---------- | -------------------------------------------------------------------- |
    | `"trace"`  | $\mathrm{tr}(K_\epsilon L_\epsilon) = \sum_k s_k^2$                  |
    | `"logdet"` | $-\log\det(I - K_\epsilon L_\epsilon) = -\sum_k \log(1 - s_k^2)$     |
    | `"hsic"`   | $\mathrm{tr}(K L) / N^2$                                             |

    Args:
        x: Rows, up to 5000.
        y: As many rows.
        form: Which measure.
        v: Kernel variances of x and of y; None takes half the median squared distance of each.
        ridge: The $\epsilon$ of the first two.
        permutations: Orders of y to compare with, drawn at random.
        seed: Of the permutations, or a generator.

    Example:
        >>> x = torch.linspace(-1, 1, 60, dtype=torch.float64)[:, None]
        >>> dependence(x, x.square(), permutations=99).pvalue
        0.01
    """
    check_option("form", form, FORMS)
    check_count("permutations", permutations)
    if not 0 < ridge < float("inf"):
        raise OptionError(f"ridge={ridge} must be a positive number.")
    sides = [as_numbers(side) for side in (x, y)]
    for name, side in zip("xy", sides, strict=True):
        check_samples(name, side)
    if any(side.ndim != 2 for side in sides) or len(sides[0]) != len(sides[1]):
        raise ShapeError(
            f"x and y have shapes {tuple(sides[0].shape)} and {tuple(sides[1].shape)}; dependence "
            "is between columns of the same rows: (rows, columns) each, with equally many rows."
        )
    count = len(sides[0])
    if not 3 <= count <= ROWS_UP_TO:
        raise OptionError(
            f"{count} rows: dependence takes 3 to {ROWS_UP_TO}; of more, take a random subset."
        )
    chosen = [float(choose_variance(side)) for side in sides] if v is None else [*v]
    if len(chosen) != 2 or not all(0 < one < float("inf") for one in chosen):
        raise OptionError(f"v={v!r} must be two positive numbers: the variances of x and of y.")
    left, right = (
        _features(side.double(), variance, None if form == "hsic" else ridge)
        for side, variance in zip(sides, chosen, strict=True)
    )
    found = []
    together = max(1, NUMBERS_AT_ONCE // (count * max(1, right.shape[1])))
    for part in orders(count, permutations, own_generator(seed)).split(together):
        cross = left.mT @ right[part.to(right.device)]  # (P, r, s)
        found.append(_measures(cross, form))
    statistics = torch.cat(found).cpu() / (count**2 if form == "hsic" else 1)
    even = tied(statistics, ROUNDING * float(statistics.abs().max()))
    return Dependence(
        float(statistics[0]), float(pvalues(even)[0]), form, (chosen[0], chosen[1]), permutations
    )


def _features(points: Tensor, variance: float, ridge: float | None) -> Tensor:  # (N, r)
    """Centred features whose products are the Gram matrix, or the whitened one."""
    matrix = gram(points, points, variance)
    matrix = matrix - matrix.mean(0) - matrix.mean(1, keepdim=True) + matrix.mean()
    values, vectors = torch.linalg.eigh(matrix)
    kept = values > KEPT * values[-1].clamp(min=torch.finfo(values.dtype).tiny)
    values, vectors = values[kept], vectors[:, kept]
    if ridge is not None:
        values = values / (values + len(points) * ridge)
    return vectors * values.sqrt()


def _measures(cross: Tensor, form: DependenceForm) -> Tensor:  # (P, r, s) -> (P,)
    if form != "logdet":
        return cross.square().sum((-2, -1))
    products = cross @ cross.mT if cross.shape[-2] <= cross.shape[-1] else cross.mT @ cross
    eye = torch.eye(products.shape[-1], dtype=products.dtype, device=products.device)
    return -torch.linalg.slogdet(eye - products).logabsdet
