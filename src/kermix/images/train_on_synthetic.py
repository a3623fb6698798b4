"""Training of the classifiers that judge generated images."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from kermix.distributed.processes import Ranks
from kermix.images.augmentation import Augmentation
from kermix.images.image_quality import predict
from kermix.networks.image_networks import (
    ImageClassifier,
    PlainCNN,
    linear_classifier,
    mlp_classifier,
)
from kermix.training.loop import Forward, Task, Trainer, learning_rate

__all__ = ["JudgeTask", "accuracy", "fit_classifier", "train_on_synthetic"]

NO_AUGMENTATION = Augmentation()


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
        augmentation: Augmentation,
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
        return self._augmentation(self._images[rows], self.generator), self._labels[rows]

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
    augmentation: Augmentation = NO_AUGMENTATION,
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
        augmentation: What may happen to a training image.
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
