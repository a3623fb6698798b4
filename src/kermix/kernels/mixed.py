r"""The kernel of mixed rows: a Gaussian of numbers times, for each code, 1 or $\rho$.

Rows hold scaled numbers first and codes last (categories, and whether a number is missing), all in
one tensor; codes are only ever compared. The kernel is positive definite because it *is* the
Gaussian of one-hot columns of height $s / \sqrt 2$, so whatever holds for the Gaussian
(bounds, certificates, merging of sketches, losses over processes) holds for it. The squared
distance is divided by the number of the user's columns.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kermix.errors import ShapeError, VarianceError
from kermix.kernels.distances import Layout
from kermix.kernels.gaussian import GaussianKernel, KernelTerms, Scalar, Variance, choose_variance

__all__ = ["MixedKernel", "mismatch_of", "mixed_kernel"]

LEAST_DIFFERENT = 0.02  # share of pairs; a nearly constant column weighs no more than this allows


class MixedKernel(GaussianKernel):
    r"""The kernel of rows of numbers and codes.

    $$K(a, b) = \exp\Big(-\frac{\sum_k (a_k - b_k)^2 + s^2 \, \#\{j: c_j \ne c'_j\}}
        {2 d (v + v)}\Big)$$

    Args:
        v: Variance, or several whose kernels are averaged.
        layout: Which columns are codes, what a difference of codes adds, and `d`.

    Example:
        >>> kernel = MixedKernel(0.5, Layout(codes=1, mismatch=2.0, columns=2))
        >>> rows = torch.tensor([[0.0, 7.0], [1.0, 7.0], [0.0, 8.0]])
        >>> km.gram(rows, rows, kernel)[0]
        tensor([1.0000, 0.7788, 0.6065])
    """

    def __init__(self, v: Variance, layout: Layout) -> None:
        super().__init__(v)
        if not layout.mismatch > 0 or layout.codes < 0 or layout.columns < 1:
            raise VarianceError(
                f"{layout}: the distance between different codes must be positive."
            )
        self._layout = layout

    @property
    def layout(self) -> Layout:
        """Which columns are codes."""
        return self._layout

    def __repr__(self) -> str:
        numbers = super().__repr__().partition("(")[2]
        codes, mismatch, columns = self._layout
        return f"MixedKernel({numbers[:-1]}, {codes} codes, s^2={mismatch:.4g}, {columns} columns)"

    def _terms(
        self,
        scales: Sequence[Scalar],
        dimension: int,
        log_overlaps: Sequence[Scalar] | None = None,
    ) -> KernelTerms:
        if dimension < self._layout.codes:
            raise ShapeError(
                f"Rows have {dimension} columns, but the kernel takes the last "
                f"{self._layout.codes} of them as codes."
            )
        terms = super()._terms(scales, self._layout.columns, log_overlaps)
        return replace(terms, layout=self._layout)


@torch.no_grad()
def mismatch_of(codes: Tensor, columns: Tensor | None = None) -> float:  # (N, c), (c,) bool
    r"""The $s^2$ for which two random rows differ as much by a category as by a number.

    Two numbers of unit variance differ by 2 in the mean square. Codes of two rows differ with
    probability $1 - \sum p^2$; with its mean over the columns, $s^2$ is 2 divided by
    it. There is one $s$ for all columns: were each scaled by itself, rare values would weigh
    most. It does not depend on the order of the rows.

    Args:
        codes: Codes of the rows.
        columns: Which of them are categories; by default all.
    """
    shares = []
    for k, column in enumerate(codes.unbind(-1)):
        if columns is None or bool(columns[k]):
            counts = torch.unique(column, return_counts=True)[1].sort().values.double()
            shares.append(1 - (counts / counts.sum()).square().sum())
    if not shares:
        return 2.0
    return 2 / max(LEAST_DIFFERENT, float(torch.stack(shares).mean()))


def mixed_kernel(
    points: Tensor, layout: Layout | None, v: Variance | None = None
) -> GaussianKernel:
    """The kernel of rows with a layout; without a variance, that of the median rule."""
    variance = choose_variance(points, layout=layout) if v is None else v
    if isinstance(variance, Tensor):
        variance = float(variance)
    return GaussianKernel(variance) if layout is None else MixedKernel(variance, layout)
