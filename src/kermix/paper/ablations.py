"""The paper's two ablations: numbers like the costs, but without what makes the costs work."""

import torch
from torch import Tensor

from kermix.checks import check_pair, working_dtype
from kermix.costs.functions import Kernel
from kermix.costs.samples import SamplePair
from kermix.kernels.distances import squared_distances
from kermix.linalg.nuclear import NuclearMethod, nuclear_norm

__all__ = ["distance_nuclear_cost", "frobenius_cost"]


def frobenius_cost(x: Tensor, y: Tensor, v: Kernel) -> Tensor:  # (*B,)
    r"""Ablation: $\mathrm{tr}(P P^\top)$, which the paper reports as ineffective.

    Example:
        >>> frobenius_cost(torch.zeros(2, 1), torch.zeros(3, 1), 1.0)
        tensor(6.)
    """
    pair = SamplePair(x, y, v)
    with pair.full_precision():
        cross = pair.cross_gram(pair.dtype)
        log_cost = 2 * cross.log_scale + cross.matrix.square().sum((-2, -1)).log()
        return pair.in_callers_dtype(log_cost.exp())


def distance_nuclear_cost(
    x: Tensor, y: Tensor, method: NuclearMethod = "auto", per_dimension: bool = True
) -> Tensor:  # (*B,)
    r"""Ablation: nuclear norm of the squared distances, which the paper reports as ineffective.

    Example:
        >>> distance_nuclear_cost(torch.zeros(1, 2), torch.ones(1, 2))
        tensor(1.)
    """
    check_pair(x, y)
    with torch.autocast(x.device.type, enabled=False):
        dtype = working_dtype(x, y)
        distances = squared_distances(y.to(dtype), x.to(dtype), same=y is x)
        # Scaled first: the sum of singular values of the largest distances must not overflow.
        largest = distances.detach().amax((-2, -1)).clamp(min=torch.finfo(dtype).tiny)
        norm = largest * nuclear_norm(distances / largest[..., None, None], method=method)
        norm = norm / x.shape[-1] if per_dimension else norm
        limits = torch.finfo(torch.promote_types(x.dtype, y.dtype))
        return norm.clamp(max=limits.max).to(torch.promote_types(x.dtype, y.dtype))
