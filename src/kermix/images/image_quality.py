"""How good generated images are, by a classifier that is trained here and by distances.

Train-on-synthetic-test-on-real, modes and their balance, precision / recall / density / coverage,
and the Frechet distance in the features of a classifier of our own. The last is not the FID, which
is defined by the weights of one particular network: numbers of the two cannot be compared.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kermix.errors import SampleError
from kermix.evaluation import neighbours
from kermix.kernels.distances import squared_distances
from kermix.networks.scaled import evaluating

__all__ = [
    "ClassBalance",
    "Neighbourhoods",
    "class_balance",
    "nearest",
    "neighbourhoods",
    "parzen",
    "predict",
    "stacked_modes",
]

ROWS_AT_ONCE = 2048


@dataclass(frozen=True)
class ClassBalance:
    """How samples spread over classes.

    Attributes:
        modes: Classes with at least one sample.
        total: Classes that there are.
        kl: Kullback-Leibler divergence, in nats, of the samples' classes from uniform.
        kl_expected: The same from the frequencies that were expected.
    """

    modes: int
    total: int
    kl: float
    kl_expected: float


@dataclass(frozen=True)
class Neighbourhoods:
    """Overlap of two samples, from balls around points that reach their k-th neighbour.

    Attributes:
        precision: Share of generated points in the ball of some real point.
        recall: Share of real points in the ball of some generated point.
        density: Mean number of real balls that a generated point is in, divided by k.
        coverage: Share of real balls with a generated point inside.
    """

    precision: float
    recall: float
    density: float
    coverage: float


def class_balance(
    labels: Tensor,  # (n,)
    total: int,
    expected: Tensor | None = None,  # (total,)
) -> ClassBalance:
    """Count the classes, and compare their frequencies with equal and with expected ones.

    Example:
        >>> class_balance(torch.tensor([0, 0, 1, 1]), 2)
        ClassBalance(modes=2, total=2, kl=0.0, kl_expected=0.0)
    """
    if labels.numel() == 0:
        raise SampleError("labels is empty: there is nothing to count.")
    counts = torch.bincount(labels.flatten(), minlength=total).double()
    share = counts / counts.sum()
    kl = torch.special.xlogy(share, share * total).sum()
    other = kl
    if expected is not None:
        target = expected.to(share) / expected.sum().to(share)
        other = (torch.special.xlogy(share, share) - torch.special.xlogy(share, target)).sum()
    return ClassBalance(int((counts > 0).sum()), total, float(kl), float(other))


@torch.no_grad()
def predict(classifier: nn.Module, images: Tensor) -> Tensor:  # (n, c, h, w) -> (n, classes)
    """Scores of all images, in chunks, by a classifier in evaluation mode."""
    with evaluating(classifier):
        return torch.cat([classifier(part) for part in images.split(ROWS_AT_ONCE)])


def stacked_modes(
    classifier: nn.Module,
    images: Tensor,  # (n, channels, h, w)
    frequencies: Tensor | None = None,  # (10,)
) -> ClassBalance:
    """Modes of stacked MNIST: each channel is a digit, so three have a thousand classes.

    Args:
        classifier: Of single digits.
        images: Stacked digits.
        frequencies: Of the digits in the data; the channels are independent.
    """
    channels = images.shape[1]
    label = torch.zeros(len(images), dtype=torch.long, device=images.device)
    expected = None if frequencies is None else torch.ones(1, dtype=torch.double)
    for i in range(channels):
        label = 10 * label + predict(classifier, images[:, i : i + 1]).argmax(1)
        if expected is not None and frequencies is not None:
            expected = torch.outer(expected, frequencies.double().cpu()).flatten()
    return class_balance(label, 10**channels, expected)


def neighbourhoods(
    real: Tensor,  # (N, d)
    generated: Tensor,  # (M, d)
    k: int = 5,
) -> Neighbourhoods:
    """Precision, recall, density and coverage; see `kermix.evaluation.neighbours`.

    Example:
        >>> x = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
        >>> neighbourhoods(x, x[:2], k=1)
        Neighbourhoods(precision=1.0, recall=0.5, density=1.0, coverage=0.5)
    """
    return Neighbourhoods(*neighbours.neighbour_values(real, generated, k)[0].tolist())


def nearest(images: Tensor, among: Tensor) -> tuple[Tensor, Tensor]:  # (n,), (n,)
    """The nearest of other images, by pixels: its row, and the root mean square difference."""
    flat = images.flatten(1)
    distances, rows = neighbours.nearest(flat, among.flatten(1))
    return rows[:, 0], distances[:, 0] / math.sqrt(flat.shape[1])


def parzen(
    samples: Tensor,  # (n, d)
    validation: Tensor,  # (m, d)
    test: Tensor,  # (t, d)
    deviations: tuple[float, ...] = (0.1, 0.13, 0.16, 0.2, 0.25),
) -> tuple[float, float]:
    """Mean log-likelihood of test rows under Gaussians on samples, for reference only.

    Training images themselves score less than k-means centres do: the number says little about the
    quality of samples. The deviation is the best one of the validation rows; it is returned too.
    """

    def mean_log_likelihood(rows: Tensor, deviation: float) -> float:
        d = samples.shape[1]
        constant = math.log(len(samples)) + d * math.log(deviation * math.sqrt(2 * math.pi))
        logs = [
            (-squared_distances(part, samples) / (2 * deviation**2)).logsumexp(1) - constant
            for part in rows.split(ROWS_AT_ONCE)
        ]
        return float(torch.cat(logs).double().mean())

    best = max(deviations, key=lambda deviation: mean_log_likelihood(validation, deviation))
    return mean_log_likelihood(test, best), best
