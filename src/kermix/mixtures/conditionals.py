r"""Mixtures of Gaussians given some coordinates: mixtures again, in closed form.

With the Cholesky factor of a component's covariance, coordinates that are seen first,

$$S = \begin{pmatrix} L & 0 \\ M & R \end{pmatrix} \begin{pmatrix} L & 0 \\ M & R \end{pmatrix}^T,
\quad z = L^{-1}(x - m),$$

the others have the mean $m' + M z$ and the covariance $R R^T$, and the component's weight is
multiplied by $\mathcal{N}(x; m, L L^T)$. No difference of matrices is taken, so that covariances
stay positive where the coordinates nearly determine each other.
"""

import torch
from torch import Tensor

from kermix.errors import ShapeError
from kermix.mixtures.covariance import cholesky_or_nan
from kermix.mixtures.marginals import marginal_mixture
from kermix.mixtures.mixture import GaussianMixture

__all__ = ["conditional_mixture"]


def conditional_mixture(
    mixture: GaussianMixture,
    seen: Tensor,  # (d,), bool
    values: Tensor,  # (N, number of seen coordinates)
) -> GaussianMixture:
    """The mixtures of the coordinates that are not seen, a batch of N.

    Args:
        mixture: One mixture, without batch axes.
        seen: Which coordinates are given; at least one must be left.
        values: Theirs, in their order, a line for each condition.

    Example:
        >>> import torch
        >>> covariance = torch.tensor([[[1.0, 0.5], [0.5, 1.0]]])
        >>> one = GaussianMixture(torch.ones(1), torch.zeros(1, 2), covariance)
        >>> given = conditional_mixture(one, torch.tensor([True, False]), torch.tensor([[2.0]]))
        >>> given.mean, given.variance
        (tensor([[1.]]), tensor([[0.7500]]))
    """
    count, dim = mixture.means.shape[-2:]
    if mixture.means.ndim != 2 or seen.shape != (dim,) or bool(seen.all()):
        raise ShapeError(
            f"seen has shape {tuple(seen.shape)}, {int(seen.sum())} of them true, for means of "
            f"shape {tuple(mixture.means.shape)}; expected one mixture, with at least one "
            "coordinate left."
        )
    if values.ndim != 2 or values.shape[1] != int(seen.sum()):
        raise ShapeError(
            f"values has shape {tuple(values.shape)}; {int(seen.sum())} coordinates are given."
        )
    rest, known = ~seen, int(seen.sum())
    values = values.to(mixture.means.dtype)
    if not known:
        return mixture.expand(torch.Size([len(values)]))
    gaps = values[:, None] - mixture.means[:, seen]  # (N, K, s)
    if mixture.covariance_kind == "full":
        order = torch.cat([seen.nonzero()[:, 0], rest.nonzero()[:, 0]])
        factor = cholesky_or_nan(mixture.covariances[:, order][:, :, order])
        scales = factor[:, :known, :known]
        z = torch.linalg.solve_triangular(scales, gaps.permute(1, 2, 0), upper=False)  # (K, s, N)
        moved = (factor[:, known:, :known] @ z).permute(2, 0, 1)
        left = factor[:, known:, known:]
        covariances = (left @ left.mT).expand(len(values), -1, -1, -1)
        squares = z.square().sum(1).mT
        widths = scales.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    else:
        moved = gaps.new_zeros(len(values), count, dim - known)
        own = marginal_mixture(mixture, seen)
        variances = own.covariances
        if own.covariance_kind == "isotropic":
            variances = variances.unsqueeze(-1).expand(-1, known)
        covariances = marginal_mixture(mixture, rest).covariances
        covariances = covariances.expand(len(values), *covariances.shape)
        squares = (gaps.square() / variances).sum(-1)
        widths = variances.log().sum(-1) / 2
    logs = mixture.weights.log() - widths - squares / 2  # (N, K)
    means = mixture.means[:, rest] + moved
    return GaussianMixture(logs.softmax(-1), means, covariances, validate_args=False)
