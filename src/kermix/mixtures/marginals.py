"""Densities of rows with missing cells: those of the cells that are there."""

from collections.abc import Iterator

from torch import Tensor

from kermix.mixtures.mixture import GaussianMixture

__all__ = ["gap_patterns", "marginal_log_prob", "marginal_mixture"]


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
