"""How two weighted halves of one pooled sample differ, for many weightings at once.

Every function takes weights `a` and `b` of the pooled points, each of shape (P, N) and summing to
1, and returns P numbers that grow with the difference. Permutations of labels are such weights,
and so are the draws of a bootstrap.

Features of the pooled sample, and the quadratic forms by which two halves of it differ.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from kermix.costs.formulas import log_matrix_cost, log_svd_cost, log_vector_cost
from kermix.kernels.distances import Layout, squared_distances
from kermix.kernels.gaussian import GaussianKernel, KernelTerms
from kermix.kernels.others import LaplaceKernel, PointKernel, kernel_matrix
from kermix.kernels.subsets import symmetric_subset
from kermix.mixtures.mixture import log_scalar_cost
from kermix.sketches.features import NystromFeatures
from kermix.sketches.kernel_features import KernelFeatures
from kermix.two_sample.weightings import WeightedInnerProducts, WeightedMoments

__all__ = [
    "PooledFeatures",
    "Ranking",
    "TestForm",
    "Tile",
    "bures_form",
    "bures_witness",
    "energy_ranking",
    "gram_blocks",
    "log_cross_means",
    "matrix_form",
    "mmd_ranking",
    "moment_ranking",
    "pooled_features",
    "quadratic_form",
    "scalar_ranking",
]

RANK = 300
EXACT_UP_TO = 1500
LANDMARKS = 500
TOLERANCE = 1e-5
NODE_SPACING = 1.0

Tile: TypeAlias = tuple[slice, slice, Tensor]


@dataclass(frozen=True)
class PooledFeatures:
    r"""Features with $K \approx \Phi \Phi^\top$, uncorrelated over the pooled sample."""

    features: Tensor  # (N, r)
    moments: Tensor  # (r,), their mean squares, rising
    anchors: Tensor  # (A, d)
    basis: Tensor  # (A, r): features are kernels with the anchors times this
    terms: KernelTerms | PointKernel

    def at(self, points: Tensor) -> Tensor:  # (M, d) -> (M, r)
        """The features of other points."""
        return kernel_matrix(points, self.anchors, self.terms, points.dtype) @ self.basis

    def leading(self, count: int) -> "PooledFeatures":
        """The features of the largest moments alone."""
        return replace(
            self,
            features=self.features[:, -count:],
            moments=self.moments[-count:],
            basis=self.basis[:, -count:],
        )

    def divided(self, unit: float) -> "PooledFeatures":
        """The features of the kernel divided by a number, such as its mean diagonal."""
        root = unit**0.5
        return replace(
            self,
            features=self.features / root,
            moments=self.moments / unit,
            basis=self.basis / root,
        )

    def whitened(self, ridge: float | None) -> "PooledFeatures":
        r"""The same features divided by $\sqrt{\lambda_i + \epsilon}$; None leaves them."""
        if ridge is None:
            return self
        scale = self.moments + ridge
        return replace(
            self,
            features=self.features * scale.rsqrt(),
            moments=self.moments / scale,
            basis=self.basis * scale.rsqrt(),
        )


def pooled_features(
    points: Tensor,  # (N, d)
    kernel: GaussianKernel | PointKernel,
    weights: Tensor | None,  # (N,)
    generator: torch.Generator,
) -> tuple[PooledFeatures, str]:
    """Leading features of the pooled sample, and how they were found.

    Up to 1500 points, eigenvectors of the Gram matrix; beyond, a Nystrom map on 500 of them, as
    good as random and whatever their order. At most 300 features are kept, and none whose moment
    is below 1e-5 of the largest.
    """
    n = len(points)
    terms = kernel.cross_terms(points.shape[-1]) if isinstance(kernel, GaussianKernel) else kernel
    share = (
        points.new_full((n,), 1 / n) if weights is None else (weights / weights.sum()).to(points)
    )
    if n <= EXACT_UP_TO:
        roots = share.sqrt()
        matrix = kernel_matrix(points, points, terms, points.dtype) * roots[:, None] * roots
        moments, vectors = torch.linalg.eigh(matrix)
        keep = _kept(moments)
        moments, vectors = moments[keep], vectors[:, keep]
        inverse = torch.where(roots > 0, 1 / roots, 0.0)
        method = f"{len(moments)} eigenvectors"
        features = vectors * moments.sqrt() * inverse[:, None]
        basis = vectors * moments.rsqrt() * roots[:, None]
        return PooledFeatures(features, moments, points, basis, terms), method
    seed = int(torch.randint(2**62, (), generator=generator))
    landmarks = points[symmetric_subset(points, LANDMARKS, seed)]
    if isinstance(kernel, GaussianKernel):
        found: NystromFeatures | KernelFeatures = NystromFeatures(landmarks, _symmetric(kernel))
    else:
        found = KernelFeatures(landmarks, kernel)
    features = found(points)
    moments, rotation = torch.linalg.eigh(features.T @ (features * share[:, None]))
    keep = _kept(moments)
    method = f"{int(keep.sum())} Nystrom features of {LANDMARKS} landmarks"
    basis = found.whitening @ rotation[:, keep]
    features = features @ rotation[:, keep]
    return PooledFeatures(features, moments[keep], landmarks, basis, terms), method


def _symmetric(kernel: GaussianKernel) -> GaussianKernel:
    """The kernel of equal variances that is the cross kernel of this one."""
    if kernel.symmetric:
        return kernel
    means = [(float(p) + float(q)) / 2 for p, q in zip(kernel.v_p, kernel.v_q, strict=True)]
    return GaussianKernel(means, per_dimension=kernel.per_dimension)


def _kept(moments: Tensor) -> Tensor:
    keep = moments > TOLERANCE * moments[-1]
    keep[:-RANK] = False
    return keep


def matrix_form(pooled: PooledFeatures, rows: slice, columns: slice) -> Tensor:
    r"""Squared entries of $\Phi \Phi^\top$: the Hilbert-Schmidt form of second moments."""
    return (pooled.features[rows] @ pooled.features[columns].T).square()


def bures_form(pooled: PooledFeatures, rows: slice, columns: slice) -> Tensor:
    r"""The Bures metric at the pooled second moment, as a kernel between points.

    $$H_{kl} = \sum_{ij} \frac{\phi_{ki} \phi_{kj} \phi_{li} \phi_{lj}}
        {\lambda_i + \lambda_j} = \int_0^\infty \Big( \sum_i \phi_{ki} e^{-t \lambda_i} \phi_{li}
        \Big)^2 dt,$$

    the integral by the trapezoidal rule in $\log t$: some twenty matrix products instead
    of all pairs of features.
    """
    lowest, highest = (2 * float(m) for m in (pooled.moments[0], pooled.moments[-1]))
    start, stop = -math.log(highest) - 5, -math.log(lowest) + 2
    count = math.ceil((stop - start) / NODE_SPACING) + 1
    step = (stop - start) / (count - 1)
    first, second = pooled.features[rows], pooled.features[columns].T
    total = first.new_zeros(len(first), second.shape[1])
    for k in range(count):
        t = math.exp(start + k * step)
        damped = first * torch.exp(-t * pooled.moments)
        total.addcmul_(product := damped @ second, product, value=step * t)
    return total


def bures_witness(
    pooled: PooledFeatures,
    points: Tensor,  # (M, d)
    difference: Tensor,  # (N,)
) -> Tensor:  # (M,)
    r"""Where two halves of the pooled sample differ: the derivative of the Bures form.

    $$w(z) = \sum_{ij} \phi_i(z) \frac{D_{ij}}{\lambda_i + \lambda_j} \phi_j(z),$$

    with `D` the difference of second moments; positive where the first half has more mass.
    """
    moment = pooled.features.T @ (pooled.features * difference[:, None])
    sums = pooled.moments[:, None] + pooled.moments
    features = pooled.at(points)
    return ((features @ (moment / sums)) * features).sum(1)


def quadratic_form(
    signed: Tensor,  # (P, N)
    tiles: Iterator[Tile],
) -> tuple[Tensor, Tensor]:  # (P,), ()
    """`z^T H z` for each row z of `signed`, from tiles of a symmetric H, and the size of its sum.

    What is within rounding of zero is zero. The size is the sum of all terms without their signs,
    for a typical `z`: rounding errors are relative to it, and not to the result.
    """
    typical = signed.square().mean(0).sqrt()
    total, size = signed.new_zeros(len(signed)), signed.new_zeros(())
    for rows, columns, tile in tiles:
        times = 1 if rows == columns else 2
        total += times * ((signed[:, columns] @ tile.T) * signed[:, rows]).sum(1)
        size += times * (typical[rows] @ (tile.abs() @ typical[columns]))
    return torch.where(total.abs() <= 4 * torch.finfo(total.dtype).eps * size, 0.0, total), size


TestForm: TypeAlias = Literal["local", "exact"]
Tiles: TypeAlias = Iterator[Tile]

TILE = 512  # products with it stay in the cache of a processor
LARGE_TILE = 4096
EXACT_BATCH_NUMBERS = 2**24
ROUNDINGS = 64  # errors of long sums, in units of the last place of their terms
COST_RIDGE = 1e-4
SAFE = 1e-200  # a mean of kernels above this has lost nothing that underflowed


@dataclass(frozen=True)
class Ranking:
    """Statistics of all labellings, and what is needed to rank them.

    Two of them that are closer than `noise` may differ by rounding alone. Where the statistics
    themselves would not keep the digits by which they differ, `order` holds numbers that do: those
    above and below the first are larger and smaller than it, and 0 is a tie.
    """

    values: Tensor  # (P,)
    noise: float
    order: Tensor | None = None  # (P,)


def rounding(like: Tensor, size: Tensor | float = 1.0) -> float:
    """The largest rounding error to be expected of sums whose terms have this size together."""
    return ROUNDINGS * torch.finfo(like.dtype).eps * float(size)


def _tiles(tile: Callable[[slice, slice], Tensor], points: Tensor) -> Tiles:
    """Tiles of a symmetric matrix, those on and above its diagonal."""
    size = TILE if points.device.type == "cpu" else LARGE_TILE
    parts = [slice(start, start + size) for start in range(0, len(points), size)]
    for k, rows in enumerate(parts):
        for columns in parts[k:]:
            yield rows, columns, tile(rows, columns)


def gram_blocks(pooled: Tensor, terms: KernelTerms | PointKernel) -> Tiles:
    """The Gram matrix of the pooled sample, in tiles."""

    def tile(rows: slice, columns: slice) -> Tensor:
        first = pooled[rows]
        second = first if rows == columns else pooled[columns]
        return kernel_matrix(first, second, terms, pooled.dtype)

    return _tiles(tile, pooled)


def energy_ranking(pooled: Tensor, a: Tensor, b: Tensor, layout: Layout | None = None) -> Ranking:
    r"""Energy distances $2 E|x - y| - E|x - x'| - E|y - y'|$, ranked against the first of them.

    A far point adds the same large number to every distance, in which the others are lost. With
    $z$ the difference of the weights, what decides is
    $(z - z_0)^\top H (z + z_0)$, in which it cancels before anything is added.
    """
    signed = a - b
    norms = _norms(_centred(pooled, layout), layout)
    minus, plus = signed - signed[:1], signed + signed[:1]
    given, change, size = (signed.new_zeros(k) for k in (1, len(signed), len(signed)))
    for rows, columns, tile in _energy_tiles(pooled, layout):
        parts = [(rows, columns, tile)]
        if rows != columns:
            parts.append((columns, rows, tile.T))
        for left, right, part in parts:
            given += signed[:1, left] @ (part @ signed[0, right])
            change += ((plus[:, right] @ part.T) * minus[:, left]).sum(1)
            # What H is made of is as large as this, whatever is left of it.
            bound = 2 * torch.minimum(norms[left, None], norms[right])
            size += ((plus[:, right].abs() @ bound.T) * minus[:, left].abs()).sum(1)
    order = torch.where(change.abs() <= rounding(change) * size, 0.0, change)
    return Ranking((given + change).clamp(min=0).abs(), 0.0, order)


def _centred(pooled: Tensor, layout: Layout | None) -> Tensor:
    """From the median; codes so that the commonest is 0."""
    middle = pooled.median(0).values
    if layout is not None and layout.codes:
        middle[-layout.codes :] = pooled[:, -layout.codes :].mode(0).values
    return pooled - middle


def _norms(centred: Tensor, layout: Layout | None) -> Tensor:
    if layout is None:
        return torch.linalg.vector_norm(centred, dim=1)
    return squared_distances(centred, torch.zeros_like(centred[:1]), layout=layout)[:, 0].sqrt()


def _energy_tiles(pooled: Tensor, layout: Layout | None) -> Tiles:
    r"""Tiles of $H_{ij} = |x_i - c| + |x_j - c| - |x_i - x_j|$, with `c` in the middle.

    As the weights `z` sum to zero, $z^\top H z$ is the energy distance. With
    $|x_i| \ge |x_j|$ after centring, $|x_i| - |x_i - x_j| =
    (2 x_i \cdot x_j - |x_j|^2) / (|x_i| + |x_i - x_j|)$ has the digits of the nearer point.
    """
    centred = _centred(pooled, layout)
    norms = _norms(centred, layout)
    tiny = torch.finfo(pooled.dtype).tiny

    def tile(rows: slice, columns: slice) -> Tensor:
        first, second = centred[rows], centred[columns]
        far = torch.maximum(norms[rows, None], norms[columns])
        near = torch.minimum(norms[rows, None], norms[columns])
        squares = squared_distances(first, second, layout=layout)
        distances = squares.sqrt()
        if layout is None:
            products = 2 * (first @ second.T) - near.square()
        else:
            products = far.square() - squares
        found: Tensor = near + products / (far + distances).clamp(min=tiny)
        if rows == columns:
            found.diagonal().copy_(2 * norms[rows])
        return found

    return _tiles(tile, pooled)


def mmd_ranking(gram: Tiles, a: Tensor, b: Tensor) -> Ranking:
    """Squared maximum mean discrepancy, with its rounding error."""
    values, size = quadratic_form(a - b, gram)
    return Ranking(values, rounding(values, size))


def scalar_ranking(
    points: Tensor, terms: KernelTerms | PointKernel, a: Tensor, b: Tensor
) -> Ranking:
    """Cauchy-Schwarz divergence: minus the logarithm of the normalized scalar cost.

    Its rounding error is that of logarithms of sums of positive numbers.
    """
    pp, pq, qq = (a.new_zeros(len(a)) for _ in range(3))
    for rows, columns, tile in gram_blocks(points, terms):
        of_a, of_b = a[:, columns] @ tile.T, b[:, columns] @ tile.T
        twice = rows != columns
        pp += (1 + twice) * (of_a * a[:, rows]).sum(1)
        qq += (1 + twice) * (of_b * b[:, rows]).sum(1)
        pq += (of_a * b[:, rows]).sum(1)
        if twice:
            pq += (of_b * a[:, rows]).sum(1)
    if isinstance(terms, PointKernel):
        pp, pq, qq = (s.abs().clamp(min=torch.finfo(s.dtype).tiny) for s in (pp, pq, qq))
    log_pq, far = pq.log(), pq < SAFE
    if bool(far.any()) and _has_logarithms(terms):
        log_pq[far] = log_cross_means(points, terms, a[far], b[far])
    divergence = -log_scalar_cost(
        WeightedInnerProducts(pp.log(), log_pq, qq.log()), normalized=True
    )
    level = 16 * torch.finfo(divergence.dtype).eps
    values = torch.where(divergence.abs() <= level, 0.0, divergence)
    return Ranking(values, rounding(values, values.max().clamp(min=1)))


def log_cross_means(
    points: Tensor, terms: KernelTerms | PointKernel, a: Tensor, b: Tensor
) -> Tensor:  # (N, d), (P, N), (P, N) -> (P,)
    """Logarithms of the kernel's means across sides that are too far apart for exponentials."""
    found = []
    for weights in zip(a, b, strict=True):
        sides = [(points[w > 0], w[w > 0].log()) for w in weights]
        second, log_b = sides[1]
        parts = []
        for first, log_a in zip(*(t.split(LARGE_TILE) for t in sides[0]), strict=True):
            shares = log_a.unsqueeze(1) + log_b
            parts += [
                (shares + logarithms).logsumexp((0, 1))
                for logarithms in _log_kernels(first, second, terms)
            ]
        found.append(torch.stack(parts).logsumexp(0))
    return torch.stack(found)


def _has_logarithms(terms: KernelTerms | PointKernel) -> bool:
    return isinstance(terms, KernelTerms | LaplaceKernel)


def _log_kernels(
    first: Tensor, second: Tensor, terms: KernelTerms | PointKernel
) -> Iterator[Tensor]:
    """Logarithms of the kernels that are added up."""
    if isinstance(terms, LaplaceKernel):
        yield terms.log_gram(first, second)
        return
    assert isinstance(terms, KernelTerms)
    squares = squared_distances(first, second, layout=terms.layout)
    for rate, log_weight in zip(terms.rates, terms.log_weights, strict=True):
        yield log_weight - rate * squares


def moment_ranking(
    cost: str,
    form: TestForm,
    pooled: PooledFeatures,
    a: Tensor,
    b: Tensor,
    sizes: tuple[int, int],
) -> Ranking:
    """Statistics of first and second moments of features; see `two_sample_test`.

    `sizes` are the numbers of points of both sides.
    """
    if form == "exact":
        values = exact_statistic(cost, pooled, a, b, sizes).nan_to_num(0.0)
        magnitude = 1.0 if cost == "svd" else sum(sizes) / 2 / COST_RIDGE / 16
        if cost == "matrix":  # a sum over the features, divided by something else
            magnitude *= pooled.features.shape[1] / min(sizes)
        return Ranking(values, rounding(values, magnitude))
    if cost == "vector":
        difference = (a - b) @ pooled.features
        largest = pooled.features.square().sum(1).max()
        level = 4 * torch.finfo(difference.dtype).eps * largest.sqrt()
        values = torch.where(difference.abs() <= level, 0.0, difference).square().sum(1)
        return Ranking(values, rounding(values, values.max().sqrt() * largest.sqrt()))
    kernel = bures_form if cost == "svd" else matrix_form
    tiles = _tiles(lambda rows, columns: kernel(pooled, rows, columns), pooled.features)
    values, size = quadratic_form(a - b, tiles)
    return Ranking(values, rounding(values, size))


def exact_statistic(
    cost: str, pooled: PooledFeatures, a: Tensor, b: Tensor, sizes: tuple[int, int]
) -> Tensor:
    """The cost itself, from the moments of features under each weighting.

    Its ridge is `COST_RIDGE` of sides of equal size. Otherwise it is larger for the larger one, so
    that the moments have one: a side must not be smoothed more because it has fewer points.
    """
    share = COST_RIDGE / (sum(sizes) / 2)
    ridges = sizes[0] * share, sizes[1] * share
    features = pooled.features.double()
    batch = max(1, EXACT_BATCH_NUMBERS // features.numel())
    found = []
    for of_x, of_y in zip(a.double().split(batch), b.double().split(batch), strict=True):
        pair = WeightedMoments(features, of_x, of_y, sizes, ridges)
        if cost == "svd":
            found.append(1 - log_svd_cost(pair, normalized=True)[0].exp())
        elif cost == "matrix":
            # Groups that change sides may leave more points to the smaller side: no bound of 1.
            trace = log_matrix_cost(pair, "trace", normalized=False)[0].exp()
            found.append(-trace / min(sizes))
        else:
            found.append(-log_vector_cost(pair, normalized=True)[0].exp())
    return torch.cat(found)
