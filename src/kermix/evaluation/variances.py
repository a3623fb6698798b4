"""The variance by the stability of the score: as fine as so many samples can resolve."""

import torch
from torch import Tensor

from kermix.checks import check_number, check_samples
from kermix.errors import OptionError
from kermix.evaluation.spectra import effective_number
from kermix.kernels.gaussian import GaussianKernel, bandwidth
from kermix.kernels.gram import gram_matrix

__all__ = ["stable_variance"]

SEEN = 800
STEPS = 10
FINEST, COARSEST = 1e-4, 4.0  # times the variance of the median rule


@torch.no_grad()
def stable_variance(x: Tensor, change: float = 0.05) -> float:  # (N, d)
    r"""The smallest variance whose Vendi score can be estimated from this many samples.

    With a very small variance all samples are distinct, and the score grows with their number;
    with a very large one all are alike. In between, this chooses the smallest variance for which
    the score of all samples is at most `change` (relative) above that of half of them. At most 800
    samples are used; which ones depends neither on their order nor on their units. Equal samples
    have no scale: the result is then 1, with a `kermix.errors.DegenerateDataWarning`.

    Args:
        x: Samples, shape (N, d); stack several sets that should share one variance.
        change: Relative change of the score that counts as stable.

    Example:
        >>> x = torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
        >>> 0.05 < stable_variance(x) < 2
        True
    """
    check_samples("x", x)
    check_number("change", change)
    if not 0 < change < 1:
        raise OptionError(f"change={change}: a relative change must be between 0 and 1.")
    points = x.reshape(-1, x.shape[-1]).double()
    order = _order_of_values(points)
    drawn = torch.randperm(len(points), generator=torch.Generator().manual_seed(0))[:SEEN]
    points = points[order[drawn.to(order.device)]]
    middle = float(bandwidth(points))
    if len(points) < 4 or bool((points == points[0]).all()):
        return middle
    low, high = FINEST * middle, COARSEST * middle
    for _ in range(STEPS):
        tried = (low * high) ** 0.5
        low, high = (low, tried) if _is_stable(points, tried, change) else (tried, high)
    return high


def _order_of_values(points: Tensor) -> Tensor:  # (N, d) -> (N,)
    """Rows from the smallest to the largest, by the first column in which they differ.

    Neither the order of rows nor the unit of their numbers matters: hashes of numbers would be
    others for grams than for kilograms.
    """
    rank = torch.zeros(len(points), dtype=torch.int64, device=points.device)
    for column in points.mT:
        place = column.unique(return_inverse=True)[1]
        rank = (rank * len(points) + place).unique(return_inverse=True)[1]
        if int(rank.max()) == len(points) - 1:
            break
    return rank.argsort(stable=True)


def _is_stable(points: Tensor, v: float, change: float) -> bool:
    terms = GaussianKernel(v).cross_terms(points.shape[1])
    matrix = gram_matrix(points, points, terms, points.dtype)
    whole, one, other = (
        effective_number(torch.linalg.eigvalsh(part / len(part)))
        for part in (matrix, matrix[::2, ::2], matrix[1::2, 1::2])
    )
    return bool(whole <= (1 + change) * (one * other).sqrt())
