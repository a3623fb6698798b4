"""What the benchmarks of images share: data on the device, trained parts in files, numbers."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kermix.costs.baselines import energy_distance
from kermix.data.images.labelled import LabelledImages, load_labelled
from kermix.evaluation.sample_distances import frechet_distance
from kermix.images.augmentation import augmentation
from kermix.images.generator_training import ImageTask
from kermix.images.image_quality import accuracy, fit_classifier, nearest, neighbourhoods
from kermix.networks.image_networks import Autoencoder, PlainCNN
from kermix.training.checkpoints import load_checkpoint, save_checkpoint
from kermix.training.fit_settings import FitSettings
from kermix.training.loop import Trainer

__all__ = ["Real", "classifier_of", "distances", "encoder_of", "kept", "read", "train"]

COMPARED = 10_000
HELD_OUT = 2_000
LOOKED_FOR_COPIES = 1_000


@dataclass(frozen=True)
class Real:
    """Real images: bytes to train with, and test images on the device."""

    train: LabelledImages
    images: Tensor  # (n, c, h, w), test, in [0, 1]
    labels: Tensor  # (n,)
    held_out: tuple[np.ndarray, np.ndarray]

    @property
    def device(self) -> torch.device:
        """Where it all happens."""
        return self.images.device

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        return (self.images.shape[1], self.images.shape[2], self.images.shape[3])

    def train_tensors(self, n: int | None = None) -> tuple[Tensor, Tensor]:
        """Training images, in [0, 1], and labels, on the device; `n` of them at random."""
        rows = np.random.default_rng(0).permutation(len(self.train))[:n]
        images = torch.from_numpy(self.train.images[rows]).to(self.device).float() / 255
        return images, torch.from_numpy(self.train.labels[rows]).to(self.device)


def read(
    source: str, data_root: Path | None, device: torch.device, most: int | None = None
) -> Real:
    """Read a labelled set; `most` images of each part, for a quick look."""
    parts = []
    for split in ("train", "test"):
        part = load_labelled(source, split, data_root=data_root)
        rows = np.random.default_rng(0).permutation(len(part))[:most]
        parts.append(replace(part, images=part.images[rows], labels=part.labels[rows]))
    train, test = parts
    return Real(
        train,
        torch.from_numpy(test.images).to(device).float() / 255,
        torch.from_numpy(test.labels).to(device),
        (test.images[:HELD_OUT], test.labels[:HELD_OUT]),
    )


def kept(path: Path | None, network: nn.Module, train: Callable[[], dict[str, Any]]) -> Any:
    """Numbers of a network that is trained once: its weights are read if the file is there."""
    if path is not None and path.exists():
        tensors, content = load_checkpoint(path)
        network.load_state_dict(tensors)
        return content
    content = train()
    if path is not None:
        save_checkpoint(path, network.state_dict(), content)
    return content


def encoder_of(
    real: Real, settings: FitSettings, path: Path | None = None
) -> tuple[Autoencoder, dict[str, Any]]:
    """The autoencoder that all methods share."""
    chosen = replace(settings, model="codes", steps=1, refine_steps=0)
    trainer = Trainer(ImageTask(real.train.images, None, 1, chosen), device=real.device.type)
    autoencoder = trainer.model.autoencoder
    assert autoencoder is not None

    def fit() -> dict[str, Any]:
        start = time.perf_counter()
        trainer.run()
        return {"seconds": time.perf_counter() - start, "steps": settings.encoder_steps}

    content = kept(path, autoencoder, fit)
    return autoencoder.eval(), content


def classifier_of(
    real: Real, epochs: int, width: int, flips: bool, path: Path | None = None
) -> tuple[PlainCNN, dict[str, Any]]:
    """A classifier trained on the real images, whose features distances are measured in."""
    start = torch.Generator().manual_seed(7)
    network = PlainCNN(
        real.shape, len(real.train.classes), widths=(width, 2 * width, 4 * width), generator=start
    ).to(real.device)
    changes = augmentation(flip=flips, shift=2 if real.shape[0] == 1 else 4)

    def fit() -> dict[str, Any]:
        begin = time.perf_counter()
        generator = torch.Generator(real.device).manual_seed(7)
        images, labels = real.train_tensors()
        fit_classifier(network, images, labels, epochs, augmentation=changes, generator=generator)
        right = accuracy(network, real.images, real.labels)
        return {"accuracy": right, "epochs": epochs, "seconds": time.perf_counter() - begin}

    content = kept(path, network, fit)
    return network.eval(), content


@torch.no_grad()
def features(classifier: PlainCNN, images: Tensor) -> Tensor:  # (n, f)
    """Features of images, in chunks."""
    return torch.cat([classifier.features(part).float() for part in images.split(2048)])


def distances(real: Real, classifier: PlainCNN, images: Tensor) -> dict[str, float]:
    """Distances of generated images from the test images, in the features of a classifier."""
    x, y = (features(classifier, i[:COMPARED]) for i in (real.images, images))
    scale = x.std(0).mean()
    near, train = images[:LOOKED_FOR_COPIES], real.train_tensors()[0]
    apart = [nearest(i, train)[1].median() for i in (near, real.images[:LOOKED_FOR_COPIES])]
    return {
        "frechet_in_own_features": frechet_distance(x, y),
        **asdict(neighbourhoods(x, y)),
        "energy": float(energy_distance(x / scale, y / scale)),
        # About 1 for new images, near 0 for copies of training images; blur lowers it too.
        "distance_to_training_over_that_of_test": float(apart[0] / apart[1]),
    }


def train(
    real: Real, settings: FitSettings, autoencoder: Autoencoder | None
) -> tuple[Trainer[ImageTask], float]:
    """Train a class-conditional model; returns it and the seconds that the cost took."""
    classes = len(real.train.classes)
    task = ImageTask(
        real.train.images, real.train.labels, classes, settings, real.held_out, autoencoder
    )
    trainer = Trainer(task, device=real.device.type)
    start = time.perf_counter()
    trainer.run()
    return trainer, time.perf_counter() - start
