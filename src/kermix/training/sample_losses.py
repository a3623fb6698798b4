"""The loss of a cost by its name, between data and a draw of a model."""

import math
from typing import Literal, TypeAlias

from torch import Tensor

from kermix.costs.baselines import energy_distance, mmd_squared
from kermix.costs.debiased import DebiasedLoss
from kermix.costs.formulas import MatrixForm
from kermix.costs.losses import SVDLoss
from kermix.errors import MissingExtraError
from kermix.training.objective import loss_of

__all__ = ["SampleCost", "sample_loss"]

TOLERANCE = 1e-3  # of the SVD cost: a step's batch is a sample, whose error is far larger

SampleCost: TypeAlias = Literal["svd", "scalar", "vector", "matrix", "mmd", "energy", "sinkhorn"]


def sample_loss(
    cost: SampleCost,
    x: Tensor,  # (*B, N, d)
    y: Tensor,  # (*B, K, d)
    variances: list[float],
    weights_y: Tensor | None = None,  # (*B, K)
    debias: bool = False,
    form: MatrixForm | None = None,
) -> Tensor:  # (*B,)
    """The loss of one of the paper's costs, or of a baseline.

    Args:
        cost: Which one. `"sinkhorn"` is geomloss's divergence, for points of equal weight; its
            blur is the width of the narrowest kernel.
        x: Data.
        y: Points of a model.
        variances: Of the kernels.
        weights_y: Weights of the points.
        debias: Whether to take the `kermix.DebiasedLoss` of a cost of the paper, for
            points without weights.
        form: Of the matrix-matrix cost; None is its trace.

    Example:
        >>> sample_loss("energy", torch.zeros(3, 1), torch.ones(2, 1), [1.0])
        tensor(2.)
    """
    if cost == "energy":
        return energy_distance(x, y, weights_y=weights_y)
    if cost == "mmd":
        return mmd_squared(x, y, variances, weights_y=weights_y)
    if cost == "sinkhorn":
        return _sinkhorn(x, y, math.sqrt(min(variances) * x.shape[-1]))
    svd = SVDLoss(variances, tolerance=TOLERANCE)
    loss = svd if cost == "svd" else loss_of(cost, variances, form)
    if debias and weights_y is None:
        return DebiasedLoss(loss)(x, y)
    return loss(x, y, weights_y=weights_y)


def _sinkhorn(x: Tensor, y: Tensor, blur: float) -> Tensor:
    try:
        from geomloss import SamplesLoss
    except ImportError:
        raise MissingExtraError("cost='sinkhorn' needs geomloss: 'kermix[bench]'.") from None
    batch = x.shape[:-2]
    flat = [z.reshape(-1, *z.shape[-2:]).contiguous() for z in (y, x)]
    losses = SamplesLoss("sinkhorn", p=2, blur=blur, backend="tensorized")(*flat)
    return losses.reshape(batch) / x.shape[-1]
