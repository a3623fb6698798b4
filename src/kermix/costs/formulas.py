r"""The four costs, each formula once: what each asks of data and centers, and what it makes of it.

With densities `p` of the data and `q` of the centers, their Gram matrices $R_G$ and
$R_F$, the cross Gram matrix `P` and $P_1 = P a$:

| cost       | value                                         | bound                 |
| ---------- | --------------------------------------------- | --------------------- |
| scalar     | $\langle p, q\rangle^2 / \langle q, q\rangle$ | $\langle p, p\rangle$ |
| vector     | $P_1^\top R_F^{-1} P_1$                       | $\langle p, p\rangle$ |
| trace      | $\sum_k s_k^2$, of canonical correlations     | `min(N, K)`           |
| data_fixed | $\mathrm{tr}(P^\top R_F^{-1} P)$              | `N`                   |
| logdet     | $-\sum_k \log(1 - s_k^2)$                     | none                  |
| svd        | $\sum_k \sigma_k(P)$                          | $\sqrt{N K}$          |

The scalar cost's is in `kermix.mixtures.mixture`, because mixtures need it too. Each source
of samples has a class of statistics: `kermix.costs.points` for points under any kernel,
`kermix.costs.components` for mixtures, `kermix.costs.moments` for moments of features,
`kermix.distributed.sharded` for rows spread over processes, and for many weightings of one
pooled sample `kermix.two_sample.cost_statistics`. All are logarithms, or come with the logarithm
of their scale, so that a cost has a logarithm, and that a gradient, where the cost underflows.
"""

import math
from typing import Literal, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from kermix.info import Info
from kermix.mixtures.mixture import Densities, at_most_one, log_scalar_cost
from kermix.settings import MatrixForm

__all__ = [
    "Correlations",
    "FormulaName",
    "Scaled",
    "Statistics",
    "Weights",
    "log_matrix_cost",
    "log_scalar_cost",
    "log_svd_cost",
    "log_vector_cost",
]

Weights: TypeAlias = tuple[Tensor | None, Tensor | None]  # of the data, of the centers
FormulaName: TypeAlias = Literal["scalar", "vector", "matrix", "svd"]


class Scaled(NamedTuple):
    """The number `exp(log_scale) * value`, and how it was found."""

    value: Tensor  # (*B,)
    log_scale: Tensor  # (*B,)
    info: Info

    @property
    def log(self) -> Tensor:  # (*B,)
        """Logarithm of the number."""
        return self.log_scale + self.value.log()


class Correlations(NamedTuple):
    """Squares of canonical correlations: eigenvalues of `exp(log_scale) * squares`.

    A symmetric matrix, or the product of two whose eigenvalues lie in [0, 1).
    """

    squares: Tensor  # (*B, r, r)
    log_scale: Tensor  # (*B,)
    info: Info
    symmetric: bool = True


class Statistics(Densities, Protocol):
    """All that the costs ask of data and centers, for the ridge of who provides it."""

    @property
    def sizes(self) -> tuple[float, float]:
        """`N` and `K`: numbers of points, or of features that stand for them."""

    @property
    def weighted(self) -> bool:
        """Whether the sets are measures, of mass 1, and not points that count 1 each."""

    @property
    def log_traces(self) -> tuple[float | Tensor, float | Tensor]:
        """Logarithms of the masses with which the two sets enter `nuclear`."""

    def predicted(self) -> Scaled:
        r"""$P_1^\top R_F^{-1} P_1$."""

    def total_correlation(self, data_fixed: bool) -> Scaled:
        r"""$\mathrm{tr}(R_G^{-1} P^\top R_F^{-1} P)$; with `data_fixed` without `R_G`."""

    def correlations(self) -> Correlations:
        """The squared canonical correlations themselves."""

    def nuclear(self) -> Scaled:
        r"""$\sum_k \sigma_k(P)$; an error bound is that of the value without its scale."""


def log_vector_cost(pair: Statistics, normalized: bool) -> tuple[Tensor, Info]:  # (*B,)
    """Proposition 5."""
    found = pair.predicted()
    log_cost = found.log
    if normalized:
        log_cost = at_most_one(log_cost - pair.log_norm_x())
    return log_cost, found.info


def log_matrix_cost(
    pair: Statistics, form: MatrixForm, normalized: bool
) -> tuple[Tensor, Info]:  # (*B,)
    """Proposition 6. Of the log-determinant, which is not positive, minus the value is taken."""
    if form == "logdet":
        correlations = pair.correlations()
        return _log_determinant(correlations), correlations.info
    found = pair.total_correlation(form == "data_fixed")
    log_cost = found.log
    if normalized:
        bound = pair.sizes[0] if form == "data_fixed" else min(pair.sizes)
        log_cost = at_most_one(log_cost - math.log(bound))
    return log_cost, found.info


def log_svd_cost(pair: Statistics, normalized: bool) -> tuple[Tensor, Info]:  # (*B,)
    """Proposition 7."""
    found = pair.nuclear()
    log_factor = found.log_scale
    for size, log_trace in zip(pair.sizes, pair.log_traces, strict=True):
        wanted = 0.0 if normalized or pair.weighted else math.log(size)
        if isinstance(log_trace, Tensor) or log_trace != wanted:
            log_factor = log_factor + (wanted - log_trace) / 2
    log_cost = log_factor + found.value.log()
    info = found.info
    if info.error_bound is not None:
        info = info._replace(error_bound=info.error_bound * log_factor.exp())
    return at_most_one(log_cost) if normalized else log_cost, info


def _log_determinant(found: Correlations) -> Tensor:  # (*B,)
    r"""$\log(-\sum_k \log(1 - s_k^2))$."""
    if not found.symmetric:
        return _log_determinant_of_product(found)
    log_scale = found.log_scale
    scaled = torch.linalg.eigvalsh(found.squares).clamp(min=0)
    below_one = 1 - torch.finfo(scaled.dtype).eps
    squares = (scaled * log_scale.exp().unsqueeze(-1)).clamp(max=below_one)
    # -log(1 - u) / u tends to 1, and must not be formed where u vanishes.
    tiny = squares < 1e-8
    safe = torch.where(tiny, 0.5, squares)
    growth = torch.where(tiny, 1 + squares / 2, -torch.log1p(-safe) / safe)
    return log_scale + (scaled * growth).sum(-1).log()


def _log_determinant_of_product(found: Correlations, small_trace: float = 1e-5) -> Tensor:  # (*B,)
    """The same as a determinant, for a matrix whose eigenvalues have no stable gradient."""
    product, log_scale = found.squares, found.log_scale
    tiny = torch.finfo(product.dtype).tiny
    eye = torch.eye(product.shape[-1], dtype=product.dtype, device=product.device)
    # -log det(1 - M) is tr M + tr M^2 / 2 + ..., which must be formed without the scale.
    trace = product.diagonal(dim1=-2, dim2=-1).sum(-1)
    second = log_scale.exp() * (product * product.mT).sum((-2, -1)) / 2
    few = log_scale.exp() * trace < small_trace
    series = log_scale + (trace + second).clamp(min=tiny).log()
    of_few = few[..., None, None]
    scale = torch.where(few, 0.5, log_scale.exp())[..., None, None]
    inside = scale * torch.where(of_few, eye, product)
    full = (-torch.linalg.slogdet(eye - inside).logabsdet).clamp(min=tiny).log()
    return torch.where(few, series, full)
