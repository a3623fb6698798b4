"""Losses without the bias of finite samples."""

from torch import Tensor, nn

from kermix.checks import check_pair
from kermix.errors import ShapeError

__all__ = ["DebiasedLoss"]


class DebiasedLoss(nn.Module):
    r"""A loss between samples without the bias towards the centre that finite samples cause.

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
