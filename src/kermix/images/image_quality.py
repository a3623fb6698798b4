"""How good generated images are, by a classifier that is trained here and by distances.

Train-on-synthetic-test-on-real, modes and their balance, precision / recall / density / coverage,
and the Frechet distance in the features of a classifier of our own. The last is not the FID, which
is defined by the weights of one particular network: numbers of the two cannot be compared.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from kermix.checks import rows_at_once
from kermix.distributed.processes import Ranks
from kermix.errors import SampleError
from kermix.evaluation import sample_distances
from kermix.images.augmentation import Augmentation
from kermix.kernels.distances import squared_distances
from kermix.networks.image_networks import (
    ImageClassifier,
    PlainCNN,
    linear_classifier,
    mlp_classifier,
)
from kermix.networks.scaled import evaluating
from kermix.training.loop import Forward, Task, Trainer, learning_rate

__all__ = [
    "ClassBalance",
    "JudgeTask",
    "Neighbourhoods",
    "accuracy",
    "class_balance",
    "fit_classifier",
    "nearest",
    "neighbourhoods",
    "parzen",
    "predict",
    "stacked_modes",
    "train_on_synthetic",
]


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
        return torch.cat([classifier(part) for part in images.split(2048)])


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
    """Precision, recall, density and coverage; see `kermix.evaluation.sample_distances`.

    Example:
        >>> x = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
        >>> neighbourhoods(x, x[:2], k=1)
        Neighbourhoods(precision=1.0, recall=0.5, density=1.0, coverage=0.5)
    """
    return Neighbourhoods(*sample_distances.neighbor_values(real, generated, k)[0].tolist())


def nearest(images: Tensor, among: Tensor) -> tuple[Tensor, Tensor]:  # (n,), (n,)
    """The nearest of other images, by pixels: its row, and the root mean square difference."""
    flat = images.flatten(1)
    distances, rows = sample_distances.nearest(flat, among.flatten(1))
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
            for part in rows.split(rows_at_once(len(samples)))
        ]
        return float(torch.cat(logs).double().mean())

    best = max(deviations, key=lambda deviation: mean_log_likelihood(validation, deviation))
    return mean_log_likelihood(test, best), best


class JudgeTask(Task):
    """The training of a classifier, as `fit_classifier` makes it."""

    precision = "auto"

    def __init__(
        self,
        network: nn.Module,
        images: Tensor,
        labels: Tensor,
        epochs: int,
        batch_size: int,
        learning_rate: float,
        augmentation: Augmentation | None,
        generator: torch.Generator,
    ) -> None:
        self.model = self.module = network
        self.generator, self._augmentation, self._rate = generator, augmentation, learning_rate
        self._images, self._labels = images, labels
        self._size = min(batch_size, len(images))
        self._steps = len(images) // self._size
        self._total = epochs * self._steps
        self._order = torch.arange(0)

    def prepare(self, fabric: Any, ranks: Ranks | None) -> list[torch.optim.Optimizer]:
        """Network and images are on the device already."""
        self.model.train()
        return [torch.optim.AdamW(self.model.parameters(), lr=self._rate, weight_decay=1e-2)]

    @property
    def total(self) -> int:
        """Steps of all epochs."""
        return self._total

    @property
    def reports_every(self) -> int:
        """Nobody looks before the end."""
        return max(1, self._total)

    def learning_rate(self, step: int) -> float:
        """One rise and fall."""
        return learning_rate(step / self._total, self._rate, warmup=0.1)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Augmented images, each once in an epoch, and their classes."""
        place, count = step % self._steps, len(self._images)
        if place == 0:
            device = self._images.device
            self._order = torch.randperm(count, generator=self.generator, device=device)
        rows = self._order[place * self._size : (place + 1) * self._size]
        images = self._images[rows]
        if self._augmentation is not None:
            images = self._augmentation(images, self.generator)
        return images, self._labels[rows]

    def loss(self, forward: Forward | None, batch: tuple[Tensor, Tensor], step: int) -> Tensor:
        """Cross entropy with labels that are smoothed a little."""
        assert forward is not None
        images, labels = batch
        device = self._images.device
        # Dropout draws from torch's own generator: from a seed here, and left as it was.
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(self.generator.initial_seed() + step)
            scores = forward(images).float()
        return functional.cross_entropy(scores, labels, label_smoothing=0.02)

    def failure(self, step: int) -> str:
        """Fast steps are what fails."""
        return (
            f"The loss of a classifier is not finite at step {step}; try a lower learning "
            f"rate than {self._rate:g}."
        )

    def extras(self) -> dict[str, Tensor]:
        """The order of the epoch."""
        return {"order": self._order}

    def restore(self, path: Path, tensors: dict[str, Tensor], content: dict[str, Any]) -> None:
        """Take the order from a checkpoint."""
        self._order = tensors["order"].to(self._images.device)


def fit_classifier(
    network: nn.Module,
    images: Tensor,  # (n, c, h, w), in [0, 1]
    labels: Tensor,  # (n,)
    epochs: int,
    *,
    batch_size: int = 256,
    learning_rate: float = 2e-3,
    augmentation: Augmentation | None = None,
    generator: torch.Generator,
) -> nn.Module:
    """Train a classifier with AdamW, on the device of the images.

    Args:
        network: From images to scores.
        images: Training images.
        labels: Their classes.
        epochs: How often each is seen.
        batch_size: Images in each step.
        learning_rate: Peak learning rate.
        augmentation: What may happen to a training image; nothing by default.
        generator: For order and augmentation; on the same device.
    """
    if isinstance(network, ImageClassifier):
        network.prepare(images, torch.Generator().manual_seed(0))
    task = JudgeTask(
        network, images, labels, epochs, batch_size, learning_rate, augmentation, generator
    )
    Trainer(task, device=str(images.device)).run()
    return network.eval()


def accuracy(network: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Share of images that a classifier gets right."""
    return float((predict(network, images).argmax(1) == labels).float().mean())


def train_on_synthetic(
    images: Tensor,  # (n, c, h, w)
    labels: Tensor,  # (n,)
    test_images: Tensor,  # (m, c, h, w)
    test_labels: Tensor,  # (m,)
    *,
    epochs: int = 10,
    width: int = 32,
    seed: int = 0,
) -> dict[str, float]:
    """Accuracy on real images of three classifiers trained with generated ones.

    Args:
        images: Generated images.
        labels: Their classes.
        test_images: Real images, which are only looked at when all is done.
        test_labels: Their classes.
        epochs: How often each generated image is seen.
        width: Channels of the CNN's first stage, of three.
        seed: Of initial weights and of the order of images.

    Returns:
        For `"logistic"`, `"mlp"` and `"cnn"` the share of test images that is right.
    """
    device = images.device
    shape = (images.shape[1], images.shape[2], images.shape[3])
    classes = int(max(labels.max(), test_labels.max())) + 1
    start = torch.Generator().manual_seed(seed)
    generator = torch.Generator(device).manual_seed(seed)
    networks = {
        "logistic": linear_classifier(shape, classes, start),
        "mlp": mlp_classifier(shape, classes, start),
        "cnn": PlainCNN(shape, classes, widths=(width, 2 * width, 4 * width), generator=start),
    }
    found = {}
    for name, network in networks.items():
        fit_classifier(
            network.to(device), images, labels, epochs, batch_size=512,
            learning_rate=1e-2 if name == "logistic" else 3e-3, generator=generator,
        )  # fmt: skip
        found[name] = accuracy(network, test_images, test_labels)
    return found
