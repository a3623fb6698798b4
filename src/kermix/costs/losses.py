"""The costs as modules to minimize: signs live only here.

`DebiasedLoss` takes out the bias of finite samples.
"""

from abc import abstractmethod
from typing import ClassVar, get_args

import torch
from torch import Tensor, nn

from kermix.checks import check_option, check_pair
from kermix.costs.formulas import (
    FormulaName,
    Statistics,
    log_matrix_cost,
    log_svd_cost,
    log_vector_cost,
)
from kermix.costs.functions import (
    SVDMethod,
    matrix_cost,
    scalar_cost,
    svd_cost,
    vector_cost,
)
from kermix.errors import OptionError, ShapeError
from kermix.info import Info, Informative
from kermix.kernels.gaussian import (
    GaussianKernel,
    Kernel,
    VarianceRule,
    as_kernel,
)
from kermix.kernels.others import AnyKernel, as_point_kernel
from kermix.mixtures.mixture import log_scalar_cost
from kermix.mixtures.sampled_mixture import Mixture
from kermix.settings import MatrixForm
from kermix.sketches.sketch import Sketch

__all__ = [
    "DebiasedLoss",
    "KernelLoss",
    "MatrixLoss",
    "SVDLoss",
    "ScalarLoss",
    "VectorLoss",
]


class KernelLoss(nn.Module):
    """Minus the logarithm of a normalized cost, or one minus the cost."""

    cost: ClassVar[Informative[...]]
    cost_name: ClassVar[FormulaName]
    ridge: float | None = None

    def __init__(
        self,
        v: Kernel | None,
        log: bool,
        kernel: AnyKernel | None,
        **options: object,
    ) -> None:
        super().__init__()
        if isinstance(kernel, GaussianKernel) and v is None:
            v, kernel = kernel, None
        if v is not None and kernel is not None:
            raise OptionError("v and kernel are both given; give only one.")
        # What is no variance is refused now, and not in a step.
        if isinstance(v, str):
            check_option("v", v, get_args(VarianceRule))
        elif v is not None:
            as_kernel(v, torch.empty(0))
        self.kernel = None if kernel is None else as_point_kernel(kernel)
        # As an attribute, a learned variance (an nn.Parameter) is found by the optimiser.
        self.v = v
        if isinstance(v, GaussianKernel):
            for name, parameter in v.learned.items():
                self.register_parameter(f"kernel_{name}", parameter)
        self.log = log
        self.options = options

    def extra_repr(self) -> str:
        """The settings that `print` shows."""
        v = self.v.tolist() if isinstance(self.v, Tensor) else self.v
        given = {"v": v, "kernel": self.kernel, "log": self.log, **self.options}
        return ", ".join(f"{name}={value}" for name, value in given.items() if value is not None)

    def forward(
        self,
        x: Tensor | Mixture | Sketch,  # (*B, N, d)
        y: Tensor | Mixture | Sketch,  # (*B, K, d)
        weights_x: Tensor | None = None,  # (*B, N)
        weights_y: Tensor | None = None,  # (*B, K)
    ) -> Tensor:  # (*B,)
        """The loss between data `x` and centers `y`, one number for each batch item.

        Either can be a mixture, whose Gaussians have variances of their own; with gradients to
        means, weights and variances.
        """
        value = type(self).cost(
            x,
            y,
            self.v,
            kernel=self.kernel,
            weights_x=weights_x,
            weights_y=weights_y,
            normalized=self.normalized,
            log=self.log,
            **self.options,
        )
        return self.minimized(value, min(_size(x), _size(y)))

    @property
    def normalized(self) -> bool:
        """Whether the loss uses the form of the cost in [0, 1]."""
        return True

    @abstractmethod
    def log_cost(self, sides: Statistics) -> tuple[Tensor, Info]:
        """The logarithm of the cost that the loss is made from, whoever knows the samples."""

    def minimized(self, value: Tensor, smaller: int) -> Tensor:
        """Turns the cost, or its logarithm, into the loss to minimize.

        Args:
            value: The cost, normalized if `normalized`; its logarithm if `log`.
            smaller: The number of points in the smaller set.
        """
        return -value if self.log else 1 - value


def _size(samples: Tensor | Mixture | Sketch) -> int:
    if isinstance(samples, Sketch):
        return samples.count
    points: Tensor = samples if isinstance(samples, Tensor) else samples.means
    return points.shape[-2]


class ScalarLoss(KernelLoss):
    r"""Negative logarithm of the normalized scalar cost: the Cauchy-Schwarz divergence.

    Args:
        v: Variance, several of them, the name of a rule, or a `kermix.GaussianKernel`; None if the
            data are a sketch, or both arguments are mixtures.
        log: Whether to use the negative logarithm of the normalized cost, which has a useful
            gradient even if data and centers do not overlap, or one minus the cost.
        chunk: Side of the tiles in which the kernel is evaluated; smaller tiles need less memory.
        kernel: Kernel to use instead of the Gaussian; then omit `v`.

    Example:
        >>> x = torch.tensor([[0.0], [1.0]])
        >>> ScalarLoss(0.1)(x, x + 0.5)
        tensor(0.5924)
    """

    cost = scalar_cost
    cost_name = "scalar"

    def __init__(
        self,
        v: Kernel | None = None,
        log: bool = True,
        chunk: int | None = None,
        kernel: AnyKernel | None = None,
    ) -> None:
        super().__init__(v, log, kernel, chunk=chunk)

    def log_cost(self, sides: Statistics) -> tuple[Tensor, Info]:
        """Logarithm of the normalized scalar cost."""
        return log_scalar_cost(sides, self.normalized), Info("tiles")


class VectorLoss(KernelLoss):
    r"""Negative logarithm of the normalized vector-matrix cost.

    Args:
        v: Variance, several of them, the name of a rule, or a `kermix.GaussianKernel`; None if the
            data are a sketch, or both arguments are mixtures.
        ridge: Ridge of the centers' Gram matrix, relative to its diagonal.
        log: Whether to use the negative logarithm of the normalized cost, or one minus the cost.
        chunk: Side of the tiles in which the cross kernel is evaluated; smaller tiles need less
            memory.
        kernel: Kernel to use instead of the Gaussian; then omit `v`.

    Example:
        >>> x = torch.tensor([[0.0], [1.0]])
        >>> VectorLoss(0.1)(x, x + 0.5)
        tensor(0.4714)
    """

    cost = vector_cost
    cost_name = "vector"

    def __init__(
        self,
        v: Kernel | None = None,
        ridge: float | None = None,
        log: bool = True,
        chunk: int | None = None,
        kernel: AnyKernel | None = None,
    ) -> None:
        super().__init__(v, log, kernel, ridge=ridge, chunk=chunk)
        self.ridge = ridge

    def log_cost(self, sides: Statistics) -> tuple[Tensor, Info]:
        """Logarithm of the normalized vector-matrix cost."""
        return log_vector_cost(sides, self.normalized)


class MatrixLoss(KernelLoss):
    r"""Negative logarithm of the normalized matrix-matrix cost.

    Args:
        v: Variance, several of them, the name of a rule, or a `kermix.GaussianKernel`; None if the
            data are a sketch, or both arguments are mixtures.
        form: Which matrix-matrix cost. The log-determinant has no [0, 1] form: its loss is
            $-\log(-\log\det)$, or, with `log=False`, the log-determinant divided by
            `min(N, K)`.
        ridge: Ridge of both Gram matrices, relative to their diagonals.
        log: Whether to use the negative logarithm of the normalized cost, or one minus the cost.
        kernel: Kernel to use instead of the Gaussian; then omit `v`.

    Example:
        >>> x = torch.tensor([[0.0], [1.0]])
        >>> MatrixLoss(0.1)(x, x + 0.5)
        tensor(0.9429)
    """

    cost = matrix_cost
    cost_name = "matrix"

    def __init__(
        self,
        v: Kernel | None = None,
        form: MatrixForm = "trace",
        ridge: float | None = None,
        log: bool = True,
        kernel: AnyKernel | None = None,
    ) -> None:
        super().__init__(v, log, kernel, form=form, ridge=ridge)
        self.form, self.ridge = form, ridge

    @property
    def normalized(self) -> bool:
        """Whether the loss uses the form of the cost in [0, 1]."""
        return self.form != "logdet"

    def log_cost(self, sides: Statistics) -> tuple[Tensor, Info]:
        """Logarithm of the normalized matrix-matrix cost, or of minus the log-determinant."""
        return log_matrix_cost(sides, self.form, self.normalized)

    def minimized(self, value: Tensor, smaller: int) -> Tensor:
        """Turns the cost, or its logarithm, into the loss to minimize."""
        if self.normalized:
            return super().minimized(value, smaller)
        return -value if self.log else value / smaller


class SVDLoss(KernelLoss):
    r"""Negative logarithm of the fidelity $\|P\|_* / \sqrt{N K}$.

    Args:
        v: Variance, several of them, the name of a rule, or a `kermix.GaussianKernel`; None if the
            data are a sketch, or both arguments are mixtures.
        log: Whether to use the negative logarithm of the fidelity, or one minus the fidelity,
            which is half the squared Bures distance.
        method: How the cost is computed, see `kermix.svd_cost`.
        tolerance: Relative error allowed for the faster methods.
        kernel: Kernel to use instead of the Gaussian; then omit `v`.

    Example:
        >>> x = torch.tensor([[0.0], [1.0]])
        >>> SVDLoss(0.1)(x, x + 0.5)
        tensor(0.5148)
    """

    cost = svd_cost
    cost_name = "svd"

    def __init__(
        self,
        v: Kernel | None = None,
        log: bool = True,
        method: SVDMethod = "auto",
        tolerance: float = 1e-4,
        kernel: AnyKernel | None = None,
    ) -> None:
        super().__init__(v, log, kernel, method=method, tolerance=tolerance)

    def log_cost(self, sides: Statistics) -> tuple[Tensor, Info]:
        """Logarithm of the fidelity."""
        return log_svd_cost(sides, self.normalized)


class DebiasedLoss(nn.Module):
    r"""A loss between samples without the bias towards the center that finite samples cause.

    The loss of a finite sample is not smallest where the model is right: a point drawn without
    knowing the next data does best where data are dense, so models come out too narrow: with the
    SVD loss in many dimensions, and far more so with the matrix loss. Two samples of the same
    distribution have this loss too, and subtracting it,

    $$D = \tfrac12 [L(x_1, y_1) + L(y_2, x_2)] - \tfrac12 L(x_1, x_2)
        - \tfrac12 L(y_1, y_2)$$

    on the halves of both samples, leaves a loss whose expectation is stationary where the
    distributions are equal, for any number of points: each half of y is then distributed like a
    half of x, so the gradients of the first and the last term cancel. Four matrices of half the
    size are also less work than one. The expectation need not be positive elsewhere.

    Args:
        loss: Any loss of two samples, such as `kermix.SVDLoss`.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> x, y = torch.randn(2, 100, 16, generator=generator)
        >>> plain, loss = km.SVDLoss(0.3), km.DebiasedLoss(km.SVDLoss(0.3))
        >>> bool(plain(x, 0.8 * y) < plain(x, y)), bool(loss(x, 0.8 * y) < loss(x, y))
        (True, False)
    """

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, x: Tensor, y: Tensor) -> Tensor:  # (*B, N, d), (*B, N, d) -> (*B,)
        """The loss between samples of the same size, whose rows are in random order.

        With an odd number of points the last ones are left out.
        """
        check_pair(x, y)
        half = x.shape[-2] // 2
        if x.shape[-2] != y.shape[-2] or half == 0:
            raise ShapeError(
                f"x has {x.shape[-2]} points and y has {y.shape[-2]}: the debiased loss needs "
                "equally many of each, and at least 2. Draw as many points as there are data."
            )
        (x1, x2), (y1, y2) = ((z[..., :half, :], z[..., half : 2 * half, :]) for z in (x, y))
        across = self.loss(x1, y1) + self.loss(y2, x2)
        return (across - self.loss(x1, x2) - self.loss(y1, y2)) / 2
