r"""Gaussian mixtures: densities, samples, conditionals, marginals, and inner products.

Inner products are exact (Properties 1 and 2, corollary), and so is the scalar cost, which is made
of them. Densities of rows with missing cells are those of the cells that are there. Mixtures given
some coordinates are mixtures again: with the Cholesky factor of a component's covariance,
coordinates that are seen first,

$$S = \begin{pmatrix} L & 0 \\ M & R \end{pmatrix} \begin{pmatrix} L & 0 \\ M & R \end{pmatrix}^T,
\quad z = L^{-1}(x - m),$$

the others have the mean $m' + M z$ and the covariance $R R^T$, and the component's weight is
multiplied by $\mathcal{N}(x; m, L L^T)$. No difference of matrices is taken, so that covariances
stay positive where the coordinates nearly determine each other.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple, Protocol, Self

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.types import _size

from kermix.checks import (
    broadcast_shape,
    check_count,
    check_pair,
    check_samples,
    full_precision,
    normalized_weights,
    working_dtype,
)
from kermix.errors import DeviceError, OptionError, ReparametrizationError, ShapeError
from kermix.mixtures.closed_forms import (
    check_power,
    log_density,
    log_pair_sum,
    log_power_sum,
    log_single_powers,
)
from kermix.mixtures.covariance import Components, CovarianceKind, cholesky_or_nan

__all__ = [
    "ClosedForms",
    "Densities",
    "GaussianMixture",
    "InnerProducts",
    "at_most_one",
    "conditional_mixture",
    "gap_patterns",
    "log_scalar_cost",
    "marginal_log_prob",
    "marginal_mixture",
]


class Densities(Protocol):
    """Inner products of the densities of data and centers, by their logarithms, (*B,)."""

    def log_cross(self) -> Tensor:
        r"""$\log \langle p, q\rangle$."""

    def log_norm_x(self) -> Tensor:
        r"""$\log \langle p, p\rangle$."""

    def log_norm_y(self) -> Tensor:
        r"""$\log \langle q, q\rangle$."""


class InnerProducts(NamedTuple):
    """Densities whose inner products are known; that of the data only where it is asked for."""

    cross: Tensor  # (*B,)
    norm_y: Tensor  # (*B,)
    norm_x: Tensor | None = None  # (*B,)

    def log_cross(self) -> Tensor:
        r"""$\log \langle p, q\rangle$."""
        return self.cross

    def log_norm_x(self) -> Tensor:
        r"""$\log \langle p, p\rangle$."""
        assert self.norm_x is not None, "asked for, and not known"
        return self.norm_x

    def log_norm_y(self) -> Tensor:
        r"""$\log \langle q, q\rangle$."""
        return self.norm_y


def log_scalar_cost(pair: Densities, normalized: bool) -> Tensor:  # (*B,)
    r"""Proposition 4: $\log(\langle p, q\rangle^2 / \langle q, q\rangle)$.

    Normalized, it is minus the Cauchy-Schwarz divergence.
    """
    log_cost = 2 * pair.log_cross() - pair.log_norm_y()
    return at_most_one(log_cost - pair.log_norm_x()) if normalized else log_cost


def at_most_one(log_cost: Tensor) -> Tensor:
    """Logarithms that rounding made positive, as zero; with the gradient that they had."""
    return log_cost - log_cost.detach().clamp(min=0)


class ClosedForms:
    """The exact computations of every Gaussian mixture, whatever its prior."""

    _components: Components
    _dtype: torch.dtype

    @property
    def covariance_kind(self) -> CovarianceKind:
        """Which kind of covariance the components have: "isotropic", "diagonal" or "full"."""
        return self._components.kind

    def _log_power(self, n: float, unbiased: bool) -> Tensor:
        raise NotImplementedError

    def log_prob(self, value: Tensor) -> Tensor:
        r"""The log-density $\log \sum_k w_k \mathcal{N}(x; m_k, S_k)$.

        Args:
            value: Points, (*sample, *B, d), broadcast to the batch shape B.

        Returns:
            Shape (*sample, *B).
        """
        components = self._components
        batch, dim = components.batch_shape, components.means.shape[-1]
        check_samples("value", value.unsqueeze(0) if getattr(value, "ndim", 0) else value)
        try:
            shape = broadcast_shape(value.shape[:-1], batch)
        except RuntimeError:
            shape = None
        if shape is None or value.shape[-1] != dim:
            raise ShapeError(
                f"value has shape {tuple(value.shape)}; a mixture of batch shape {tuple(batch)} "
                f"in {dim} dimensions takes points of shape {('*sample', *batch, dim)}."
            )
        if value.device != components.means.device:
            raise DeviceError(
                f"value is on {value.device} and the mixture on {components.means.device}; "
                "move one of them with .to(device)."
            )
        dtype = working_dtype(value, components.means)
        points = value.to(dtype).expand(*shape, dim)
        points = points.reshape(-1, *batch, dim).movedim(0, -2)
        result = log_density(components.to(dtype), points).movedim(-1, 0).reshape(shape)
        return result.to(torch.promote_types(self._dtype, value.dtype))

    def _log_inner(self, q: "ClosedForms") -> Tensor:
        if not isinstance(q, ClosedForms):
            raise OptionError(
                f"q is a {type(q).__name__}; give a GaussianMixture or a SampledMixture. "
                "For samples, use the costs, for example scalar_cost."
            )
        check_pair(self._components.means, q._components.means, ("p.means", "q.means"))
        return log_pair_sum(self._components, q._components)

    def log_inner(self, q: "ClosedForms") -> Tensor:
        r"""$\log \langle p, q \rangle$, finite where the inner product itself underflows.

        Args:
            q: Another mixture, with any kind of covariance, whose batch shape can be broadcast.

        Returns:
            The broadcast batch shape.
        """
        return self._log_inner(q).to(torch.promote_types(self._dtype, q._dtype))

    def inner(self, q: "ClosedForms") -> Tensor:
        r"""The inner product, Property 2 (and 3, with expectations for sums).

        $$\langle p, q \rangle = \sum_{ij} w_i w'_j \mathcal{N}(m_i - m'_j; 0, S_i + S'_j)$$
        """
        return self._log_inner(q).exp().to(torch.promote_types(self._dtype, q._dtype))

    def log_norm2(self) -> Tensor:
        r"""$\log \langle p, p \rangle$."""
        return self._log_power(2, False).to(self._dtype)

    def norm2(self) -> Tensor:
        r"""The squared $L_2$ norm $\langle p, p \rangle$, Property 2."""
        return self._log_power(2, False).exp().to(self._dtype)

    def _root_power(self, n: float, unbiased: bool = False) -> Tensor:
        n = check_power(n, self._components.means.shape[-2])
        return self._log_power(n, unbiased) / n

    def log_lp_norm(self, n: float) -> Tensor:
        r"""$\log \|p\|_n$; see `lp_norm`."""
        return self._root_power(n).to(self._dtype)

    def lp_norm(self, n: float) -> Tensor:
        r"""The norm $\|p\|_n = (\int p(x)^n dx)^{1/n}$, from the corollary to Property 3.

        The power of the sum is a sum over multisets of n components, each the integral of a
        product of n Gaussians times the number of its orders. (The paper says any exponent; the
        closed form of a sum exists for positive integers.)

        Args:
            n: A positive integer; of one Gaussian, any positive number. `SizeError` if more than
                two million multisets are needed.

        Returns:
            The batch shape.
        """
        return self._root_power(n).exp().to(self._dtype)

    def cauchy_schwarz(self, q: "ClosedForms") -> Tensor:
        r"""The divergence $-\log(\langle p,q\rangle^2 / (\langle p,p\rangle \langle q,q\rangle))$.

        It is zero if and only if the mixtures are proportional. A value that rounding made
        negative is returned as zero, with the gradient it had.
        """
        # A difference, and not a sign, which would make -0 of 0.
        divergence = 0 - log_scalar_cost(self._inner_products(q, False), normalized=True)
        return divergence.to(torch.promote_types(self._dtype, q._dtype))

    def _inner_products(self, q: "ClosedForms", unbiased: bool) -> InnerProducts:
        cross = self._log_inner(q)  # refuses what is no mixture
        return InnerProducts(cross, q._log_power(2, unbiased), self._log_power(2, unbiased))


class GaussianMixture(ClosedForms, Distribution):
    r"""A mixture of Gaussians with exact inner products and norms (Properties 1 and 2).

    $$p(x) = \sum_{k=1}^K w_k \mathcal{N}(x; m_k, S_k)$$

    Half precision is computed in float32, and results have the dtype of the input. Weights may be
    zero and still have the correct gradient.

    Args:
        weights: Non-negative, (*B, K); divided by their sum.
        means: (*B, K, d).
        covariances: Isotropic (*B, K), diagonal (*B, K, d) or full (*B, K, d, d). The kind is
            determined by the number of axes compared with the means: one fewer, equally many, or
            one more. So covariances need as many batch axes as the means, of size 1 where shared.
            Batch shapes of the three arguments are broadcast.
        validate_args: False skips the checks of the covariances' values (a Cholesky factorization
            where they are full), which are otherwise made on the CPU, outside torch.func and
            torch.compile, whatever torch's default for distributions.

    Example:
        >>> import torch
        >>> weights, means = torch.tensor([1.0, 3.0]), torch.tensor([[-1.0], [1.0]])
        >>> p = GaussianMixture(weights, means, torch.tensor([0.5, 0.5]))
        >>> p.batch_shape, p.event_shape, p.mean
        (torch.Size([]), torch.Size([1]), tensor([0.5000]))
        >>> q = GaussianMixture(torch.ones(1), torch.zeros(1, 1), torch.ones(1))
        >>> round(float(p.inner(q)), 4)
        0.2334
        >>> round(float(p.cauchy_schwarz(q)), 4), round(float(p.lp_norm(3)), 4)
        (0.3336, 0.4441)
    """

    arg_constraints = {  # noqa: RUF012 (torch's own way of stating them)
        "weights": constraints.simplex,
        "means": constraints.independent(constraints.real, 2),
        "covariances": constraints.dependent(is_discrete=False),
    }
    support = constraints.real_vector

    def __init__(
        self,
        weights: Tensor,
        means: Tensor,
        covariances: Tensor,
        validate_args: bool | None = None,
    ) -> None:
        check_samples("means", means)
        normalized = normalized_weights("weights", weights, means)
        # torch.compile sets torch's own default to False for good, so None does not ask for it.
        check_values = validate_args is not False
        components = Components.checked(normalized, means, covariances, check_values)
        given = torch.promote_types(weights.dtype, means.dtype)
        self._set(components, torch.promote_types(given, covariances.dtype))

    def _set(self, components: Components, dtype: torch.dtype) -> None:
        self._components, self._dtype = components, dtype
        given = components.to(dtype)
        self.weights, self.means, self.covariances = given.weights, given.means, given.covariances
        count, dim = components.means.shape[-2:]
        self.has_rsample = count == 1
        # The arguments are checked above: torch's own checks would wait for the device.
        super().__init__(components.batch_shape, torch.Size([dim]), validate_args=False)

    def _log_power(self, n: float, unbiased: bool) -> Tensor:
        return log_power_sum(self._components, n)  # exact: there is no bias to remove

    def lp_norm_estimate(
        self, n: float, draws: int = 100_000, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        r"""The norm $\|p\|_n$ for any positive n, estimated, and the standard error of that.

        Points are drawn from the mixture that has the powers $(w_k \mathcal{N}_k)^n$ as its
        components: their sum times $p^n$ over itself is bounded, and exact for one Gaussian.

        Returns:
            Both of the batch shape, without gradient.
        """
        check_count("draws", draws)
        with torch.no_grad():
            c = self._components
            logs = log_single_powers(c, check_power(float(n), 1))
            drawn = GaussianMixture(logs.softmax(-1), c.means, c.covariances / n)
            points = drawn.sample((draws,), generator=generator)
            exact = GaussianMixture(c.weights, c.means, c.covariances)
            ratios = (n * exact.log_prob(points) - drawn.log_prob(points)).exp()
            power = ratios.mean(0)
            norm = power ** (1 / n)
            error = norm * ratios.std(0) / power / n / math.sqrt(draws)
            return norm.to(self._dtype), error.to(self._dtype)

    def expand(self, batch_shape: _size, _instance: Distribution | None = None) -> Self:
        """The same mixture repeated, without copying, to a larger batch shape."""
        new = self._get_checked_instance(GaussianMixture, _instance)
        new._set(self._components.expand(torch.Size(batch_shape)), self._dtype)
        return new

    @property
    def mean(self) -> Tensor:
        """The mean of the mixture, (*B, d)."""
        heaviest, _, middle = self._gaps()
        return (heaviest + middle).squeeze(-2).to(self._dtype)

    def _gaps(self) -> tuple[Tensor, Tensor, Tensor]:  # (*B, 1, d), (*B, K, d), (*B, 1, d)
        """The heaviest component's mean, all means from there, and the mixture's from there.

        From there they keep their digits, however far from zero the mixture is.
        """
        c = self._components
        index = (
            c.weights.detach()
            .argmax(-1)[..., None, None]
            .expand(*c.batch_shape, 1, c.means.shape[-1])
        )
        heaviest = c.means.gather(-2, index)
        gaps = c.means - heaviest
        return heaviest, gaps, (c.weights.unsqueeze(-1) * gaps).sum(-2, keepdim=True)

    @property
    def variance(self) -> Tensor:
        """The variance of each coordinate, (*B, d)."""
        c = self._components
        if c.kind == "full":
            within = c.covariances.diagonal(dim1=-2, dim2=-1)
        else:
            within = c.covariances_as("diagonal")
        _, gaps, middle = self._gaps()
        between = (gaps - middle).square()
        return (c.weights.unsqueeze(-1) * (within + between)).sum(-2).to(self._dtype)

    @property
    def covariance_matrix(self) -> Tensor:
        """The covariance of the mixture, (*B, d, d)."""
        c = self._components
        with full_precision(c.means.device):
            _, gaps, middle = self._gaps()
            gaps = gaps - middle
            between = (c.weights.unsqueeze(-1) * gaps).mT @ gaps
            if c.kind == "full":
                within = (c.weights[..., None, None] * c.covariances).sum(-3)
            else:
                diagonal = c.covariances_as("diagonal")
                within = torch.diag_embed((c.weights.unsqueeze(-1) * diagonal).sum(-2))
            return (within + between).to(self._dtype)

    def sample(
        self, sample_shape: _size = (), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Independent samples, (*sample_shape, *B, d), without gradient."""
        with torch.no_grad():
            return self._draw(torch.Size(sample_shape), generator)

    def rsample(
        self, sample_shape: _size = (), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Samples that are differentiable in mean and covariance, for K = 1 only."""
        if not self.has_rsample:
            raise ReparametrizationError(
                f"rsample of {self.means.shape[-2]} components: which component a sample comes "
                "from is a discrete choice, through which no gradient flows. Use sample() with "
                "log_prob (score function), the closed forms (inner, norm2, cauchy_schwarz), or "
                "one component."
            )
        return self._draw(torch.Size(sample_shape), generator)

    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        c = self._components
        batch, (count, dim) = c.batch_shape, c.means.shape[-2:]
        copies, draws = batch.numel(), shape.numel()
        if not copies * draws:
            return c.means.new_empty(shape + batch + (dim,)).to(self._dtype)
        weights, device = c.weights.detach().reshape(copies, count), c.means.device
        labels = torch.multinomial(weights, draws, replacement=True, generator=generator)
        labels = (labels + count * torch.arange(copies, device=device).unsqueeze(-1)).flatten()
        noise = torch.randn(
            copies * draws, dim, dtype=c.means.dtype, device=device, generator=generator
        )
        with full_precision(c.means.device):
            if c.kind == "full":
                noise = _grouped_products(
                    cholesky_or_nan(c.covariances).flatten(0, -3), noise, labels
                )
            else:
                scales = c.covariances.reshape(copies * count, -1).sqrt()
                noise = scales[labels] * noise
        points = c.means.reshape(-1, dim)[labels] + noise
        points = points.reshape(copies, draws, dim).movedim(0, 1)
        return points.reshape(shape + batch + (dim,)).to(self._dtype)


def _grouped_products(matrices: Tensor, vectors: Tensor, labels: Tensor) -> Tensor:
    """matrices[labels] @ vectors, without a copy of a matrix for each vector."""
    order = labels.argsort()
    sizes = torch.bincount(labels, minlength=len(matrices)).tolist()
    groups = vectors[order].split(sizes)
    products = [group @ matrix.mT for group, matrix in zip(groups, matrices, strict=True)]
    return torch.cat(products)[order.argsort()]


def gap_patterns(rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """For each pattern of missing cells (NaN): which columns are there, and its rows.

    Example:
        >>> import torch
        >>> rows = torch.tensor([[1.0, 2.0], [3.0, float("nan")], [5.0, 6.0]])
        >>> [(seen.tolist(), places.tolist()) for seen, places in gap_patterns(rows)]
        [([True, False], [1]), ([True, True], [0, 2])]
    """
    patterns, group = (~rows.isnan()).unique(dim=0, return_inverse=True)
    places = group.argsort(stable=True).split(group.bincount(minlength=len(patterns)).tolist())
    yield from zip(patterns, places, strict=True)


def marginal_log_prob(mixture: GaussianMixture, rows: Tensor) -> Tensor:  # (N, d) -> (N,)
    r"""Log-densities with missing cells (NaN) integrated out: exact, as marginals are mixtures.

    A row without any cell has the density 1.

    Example:
        >>> import torch
        >>> mixture = GaussianMixture(torch.ones(1), torch.zeros(1, 2), torch.ones(1))
        >>> nan = float("nan")
        >>> marginal_log_prob(mixture, torch.tensor([[0.0, 0.0], [0.0, nan], [nan, nan]]))
        tensor([-1.8379, -0.9189,  0.0000])
    """
    found = rows.new_zeros(len(rows))
    for seen, places in gap_patterns(rows):
        if bool(seen.any()):
            part = mixture if bool(seen.all()) else marginal_mixture(mixture, seen)
            found[places] = part.log_prob(rows[places][:, seen]).to(found.dtype)
    return found


def marginal_mixture(mixture: GaussianMixture, seen: Tensor) -> GaussianMixture:  # (d,)
    """The mixture of some coordinates, those that are true in `seen`."""
    covariances = mixture.covariances
    if covariances.ndim == 2:
        covariances = covariances[:, seen]
    elif covariances.ndim == 3:
        covariances = covariances[:, seen][:, :, seen]
    means = mixture.means[:, seen]
    return GaussianMixture(mixture.weights, means, covariances, validate_args=False)


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
