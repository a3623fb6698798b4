r"""Depths of rows: how far out each lies, and how near to others, as columns of their own.

The maximum mean discrepancy of a kernel is $\overline{k(x, x')} + \overline{k(y, y')} - 2
\overline{k(x, y)}$. In many dimensions two samples of other spread or other correlations differ in
the first two, with opposite signs, and it sees next to nothing (Song and Chen 2023). Their
difference is that of the samples' means of one number of each row, its mean kernel with all rows.
Such numbers are depths: those of the Laplace kernel of distances at several widths, the narrowest
of which sees the nearest row alone; squared norms, whitened by the pooled covariance with several
ridges, which is what the log-likelihood ratio of two Gaussians is to first order; and squared
norms in its metric, the mean squared inner product with other rows. They depend on the pooled rows
alone. Each is looked at as a column is, by scores of its ranks.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kermix.kernels.distances import Layout, numbers_of, squared_distances
from kermix.kernels.subsets import distinct_rows, symmetric_subset
from kermix.two_sample.column_scores import (
    ORDER,
    SMALLEST,
    MiddleRanks,
    legendre,
    nested_sums,
)
from kermix.two_sample.kernel_family import Scaling, scaler
from kermix.two_sample.permutation import (
    ExchangeableUnits,
    StatisticValues,
    evidence,
    mean_evidence,
)

__all__ = ["DEPTHS", "DepthStatistics"]

DEPTHS = "depths"
# Chosen on the development problems of `python -m benchmarks blind-spots`.
ANCHORS, ANCHORS_OF_BLOCKS = 1000, 200  # rows that others are measured from
# Conventions.
SAME = 1e-9  # logarithms of depths that are no further apart differ by rounding alone

Depths = Callable[[Tensor], Tensor]  # (N, d) -> (N, K)


@dataclass(frozen=True)
class DepthStatistics:
    """The evidence of each depth.

    Attributes:
        scaling: How numbers are scaled.
        layout: Which columns are codes.
        widths: Of the Laplace kernel, in standard deviations of distances.
        ridges: Of the covariance, in medians of its eigenvalues.
    """

    scaling: Scaling
    layout: Layout | None = None
    # Chosen as the number of anchors was.
    widths: Sequence[float] = (0.1, 0.3, 1.0, 3.0)
    ridges: Sequence[float] = (0.01, 0.1, 1.0)

    def values(self, units: ExchangeableUnits) -> Iterator[StatisticValues]:
        """One statistic for each depth."""
        scale = scaler(self.scaling, units.reference, units.reference_shares, self.layout)
        kept = distinct_rows(units.reference)[0]
        most = ANCHORS if units.blocks is None else ANCHORS_OF_BLOCKS
        few = kept[symmetric_subset(units.reference[kept], most)]
        anchors = scale(units.reference[few])
        shares = units.reference_shares[few] / units.reference_shares[few].sum()
        kinds = [self._nearness(anchors, shares)]
        if anchors.shape[1] - (0 if self.layout is None else self.layout.codes) > 1:
            kinds.append(self._norms(anchors, shares))

        def depths(rows: Tensor) -> Tensor:
            rows = scale(rows)
            return torch.cat([of(rows) for _, of in kinds], 1)

        known = depths(units.reference)
        ranks = MiddleRanks.of(known, units.reference_shares)

        def scores(rows: Tensor) -> Tensor:
            found = known if rows is units.reference else depths(rows)
            return legendre(2 * ranks(found) - 1, ORDER).flatten(1)

        if units.rows is units.reference:
            means = scores(units.rows)
        else:
            means = units.means(scores, most * len(self.widths))
        squares = (units.signed @ means).square().mT.unflatten(0, (-1, ORDER))  # (K, q, P)
        table = mean_evidence(evidence(nested_sums(squares.transpose(0, 1))))
        names = [name for some, _ in kinds for name in some]
        for name, row in zip(names, table, strict=True):
            yield StatisticValues(name, row, part=DEPTHS)

    def _nearness(self, anchors: Tensor, shares: Tensor) -> tuple[list[str], Depths]:
        """Logarithms of the mean Laplace kernel with other rows, of which copies are none."""
        apart = squared_distances(anchors, anchors, layout=self.layout).sqrt()
        others = apart[apart > 0]
        spread = others.std() if len(others) > 1 else apart.new_ones(())
        spread = spread.clamp(min=SMALLEST * float(apart.amax()) or 1.0)
        logs = shares.log()

        def depths(rows: Tensor) -> Tensor:
            squares = squared_distances(rows, anchors, layout=self.layout)
            away = torch.where(squares > 0, squares.sqrt() / spread, torch.inf)
            nearest = away.amin(1).nan_to_num(posinf=0.0)
            found = [nearest, torch.where(squares > 0, away, 0.0) @ shares]
            for width in self.widths:
                sums = (logs - (away - nearest[:, None]) / width).logsumexp(1)
                found.append((sums - nearest / width).nan_to_num(neginf=0.0))
            return _rounded(found)

        widths = [f"Laplace kernel of {w:g} deviations of distances" for w in self.widths]
        return ["nearest row", "mean distance", *widths], depths

    def _norms(self, anchors: Tensor, shares: Tensor) -> tuple[list[str], Depths]:
        """Logarithms of squared norms: plain, whitened, and in the covariance's metric."""
        numbers = numbers_of(anchors, self.layout)
        center = shares @ numbers
        weighted = (numbers - center) * shares.sqrt()[:, None]
        _, roots, axes = torch.linalg.svd(weighted, full_matrices=False)
        there = roots > SMALLEST * roots[0].clamp(min=SMALLEST)
        variances, axes = roots[there].square(), axes[there]
        middle = variances.median() if len(variances) else roots.new_ones(())
        own = float(shares.square().sum())  # a row's share in the covariance, if it is an anchor

        def depths(rows: Tensor) -> Tensor:
            apart = numbers_of(rows, self.layout) - center
            whole = apart.square().sum(1)
            squares = (apart @ axes.mT).square()
            rest = (whole - squares.sum(1)).clamp(min=0)
            found = [whole, squares @ variances - own * whole.square()]
            for ridge in self.ridges:
                found.append(
                    squares @ (1 / (variances + ridge * middle)) + rest / (ridge * middle)
                )
            return _rounded([d.clamp(min=SMALLEST).log() for d in found])

        ridges = [f"norm whitened with a ridge of {r:g}" for r in self.ridges]
        return ["norm", "mean squared product", *ridges], depths


def _rounded(depths: Sequence[Tensor]) -> Tensor:  # (N,) each -> (N, K)
    return (torch.stack([*depths], 1) / SAME).round() * SAME
