"""The costs as modules to minimise: signs live only here."""

from abc import abstractmethod
from typing import ClassVar

from torch import Tensor, nn

from kermix.costs.components import Mixture
from kermix.costs.formulas import (
    MatrixForm,
    Statistics,
    log_matrix_cost,
    log_scalar_cost,
    log_svd_cost,
    log_vector_cost,
)
from kermix.costs.functions import (
    Kernel,
    SVDMethod,
    matrix_cost,
    scalar_cost,
    svd_cost,
    vector_cost,
)
from kermix.costs.graphed import GraphedCalls
from kermix.costs.sketched import SketchPair
from kermix.errors import OptionError
from kermix.info import Info, Informative
from kermix.kernels.gaussian import GaussianKernel
from kermix.kernels.others import AnyKernel, as_point_kernel
from kermix.sketches.sketch import Sketch

__all__ = ["KernelLoss", "MatrixLoss", "SVDLoss", "ScalarLoss", "VectorLoss"]


class KernelLoss(nn.Module):
    """Minus the logarithm of a normalized cost, or one minus the cost."""

    cost: ClassVar[Informative[...]]

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
        self.kernel = None if kernel is None else as_point_kernel(kernel)
        # As an attribute, a learned variance (an nn.Parameter) is found by the optimiser.
        self.v = v
        if isinstance(v, GaussianKernel):
            for name, parameter in v.learned.items():
                self.register_parameter(f"kernel_{name}", parameter)
        self.log = log
        self.options = options

    def extra_repr(self) -> str:
        """What `print` shows."""
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
        """The loss between data `x` and centres `y`, one number for each batch item.

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
    def log_cost(self, pair: Statistics) -> tuple[Tensor, Info]:
        """The logarithm of the cost that the loss is made from, whoever knows the samples."""

    @abstractmethod
    def cost_of_sketches(self, pair: SketchPair) -> tuple[Tensor, Info]:
        """The cost that the loss is made from, or its logarithm, of sets known by moments."""

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
            gradient even if data and centres do not overlap, or one minus the cost.
        chunk: Side of the tiles in which the kernel is evaluated; smaller tiles need less memory.
        kernel: Kernel to use instead of the Gaussian; then omit `v`.

    Example:
        >>> x = torch.tensor([[0.0], [1.0]])
        >>> ScalarLoss(0.1)(x, x + 0.5)
        tensor(0.5924)
    """

    cost = scalar_cost

    def __init__(
        self,
        v: Kernel | None = None,
        log: bool = True,
        chunk: int | None = None,
        kernel: AnyKernel | None = None,
    ) -> None:
        super().__init__(v, log, kernel, chunk=chunk)

    def log_cost(self, pair: Statistics) -> tuple[Tensor, Info]:
        """Logarithm of the normalized scalar cost."""
        return log_scalar_cost(pair, self.normalized), Info("tiles")

    def cost_of_sketches(self, pair: SketchPair) -> tuple[Tensor, Info]:
        """The normalized scalar cost, or its logarithm."""
        return pair.scalar_cost(self.normalized, self.log)


class VectorLoss(KernelLoss):
    r"""Negative logarithm of the normalized vector-matrix cost.

    Args:
        v: Variance, several of them, the name of a rule, or a `kermix.GaussianKernel`; None if the
            data are a sketch, or both arguments are mixtures.
        ridge: Ridge of the centres' Gram matrix, relative to its diagonal.
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

    def log_cost(self, pair: Statistics) -> tuple[Tensor, Info]:
        """Logarithm of the normalized vector-matrix cost."""
        return log_vector_cost(pair, self.normalized)

    def cost_of_sketches(self, pair: SketchPair) -> tuple[Tensor, Info]:
        """The normalized vector-matrix cost, or its logarithm."""
        return pair.vector_cost(self.ridge, self.normalized, self.log)


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

    def log_cost(self, pair: Statistics) -> tuple[Tensor, Info]:
        """Logarithm of the normalized matrix-matrix cost, or of minus the log-determinant."""
        return log_matrix_cost(pair, self.form, self.normalized)

    def cost_of_sketches(self, pair: SketchPair) -> tuple[Tensor, Info]:
        """The matrix-matrix cost, normalized if possible, or its logarithm."""
        return pair.matrix_cost(self.form, self.ridge, self.normalized, self.log)

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

    def __init__(
        self,
        v: Kernel | None = None,
        log: bool = True,
        method: SVDMethod = "auto",
        tolerance: float = 1e-4,
        kernel: AnyKernel | None = None,
    ) -> None:
        super().__init__(v, log, kernel, method=method, tolerance=tolerance)
        self._graphed = GraphedCalls()

    def forward(
        self,
        x: Tensor | Mixture | Sketch,  # (*B, N, d)
        y: Tensor | Mixture | Sketch,  # (*B, K, d)
        weights_x: Tensor | None = None,  # (*B, N)
        weights_y: Tensor | None = None,  # (*B, K)
    ) -> Tensor:  # (*B,)
        """The loss between data and centres, see `KernelLoss.forward`.

        For few points on a GPU it takes a single launch, after some calls with the same shapes.
        """
        given = [x, y, weights_x, weights_y]
        numbers = self.v if isinstance(self.v, list | tuple) else (self.v,)
        captured = (
            isinstance(x, Tensor) and x.is_cuda and isinstance(y, Tensor)
            and self.kernel is None and self.options["method"] != "svd"
            and all(isinstance(number, int | float) for number in numbers)
        )  # fmt: skip
        if not captured:
            return super().forward(*given)  # type: ignore[arg-type]
        how = (tuple(numbers), self.log, *self.options.values())
        return self._graphed.value(super().forward, given, how)  # type: ignore[arg-type]

    def log_cost(self, pair: Statistics) -> tuple[Tensor, Info]:
        """Logarithm of the fidelity."""
        return log_svd_cost(pair, self.normalized)

    def cost_of_sketches(self, pair: SketchPair) -> tuple[Tensor, Info]:
        """The fidelity, or its logarithm."""
        return pair.svd_cost(self.normalized, self.log)
