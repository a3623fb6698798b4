"""The leading singular triplets of a large matrix, by subspace iteration."""

import torch
from torch import Tensor

__all__ = ["leading_svd"]

MOST_ITERATIONS = 100


def leading_svd(matrix: Tensor, rank: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    r"""Leading `rank` singular triplets of an (N, K) matrix: (N, k), (k,), (K, k).

    Subspace iteration with $k + \max(10, k)$ vectors, each step the best approximation in
    the subspace, until the singular values stand still. The start is random but always the same.

    Example:
        >>> u, s, w = leading_svd(torch.diag(torch.arange(1.0, 31.0)), 2)
        >>> [round(value, 3) for value in s.tolist()]
        [30.0, 29.0]
    """
    n, k = matrix.shape
    width = min(n, k, rank + max(10, rank))
    generator = torch.Generator().manual_seed(seed)
    block = torch.randn(k, width, generator=generator, dtype=matrix.dtype).to(matrix.device)
    settled = 100 * torch.finfo(matrix.dtype).eps
    before = matrix.new_zeros(rank)
    for _ in range(MOST_ITERATIONS):
        left = torch.linalg.qr(matrix @ block).Q
        u, s, wh = torch.linalg.svd(left.T @ matrix, full_matrices=False)
        block = wh.T
        if bool(((s[:rank] - before).abs() <= settled * s[0]).all()):
            break
        before = s[:rank]
    return (left @ u)[:, :rank], s[:rank], block[:, :rank]
