"""Training of the classifiers that judge generated images."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from kermix.models.images.classifier import ImageClassifier
from kermix.models.images.cnn import PlainCNN
from kermix.models.images.evaluation import predict
from kermix.models.images.judges import linear_classifier, mlp_classifier
from kermix.training.augmentation import Augmentation
from kermix.training.schedules import learning_rate

__all__ = ["accuracy", "fit_classifier", "train_on_synthetic"]

NO_AUGMENTATION = Augmentation()


def fit_classifier(
    network: nn.Module,
    images: Tensor,  # (n, c, h, w), in [0, 1]
    labels: Tensor,  # (n,)
    epochs: int,
    *,
    batch: int = 256,
    rate: float = 2e-3,
    augmentation: Augmentation = NO_AUGMENTATION,
    generator: torch.Generator,
) -> nn.Module:
    """Train a classifier with AdamW, on the device of the images.

    Args:
        network: From images to scores.
        images: Training images.
        labels: Their classes.
        epochs: How often each is seen.
        batch: Images for each step.
        rate: Peak of the learning rate.
        augmentation: What may happen to a training image.
        generator: For order and augmentation; on the same device.
    """
    network.train()
    if isinstance(network, ImageClassifier):
        network.prepare(images, torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=1e-2)
    mixed = torch.autocast(images.device.type, torch.bfloat16, enabled=images.is_cuda)
    batch = min(batch, len(images))
    steps = len(images) // batch
    for step in range(epochs * steps):
        if step % steps == 0:
            order = torch.randperm(len(images), generator=generator, device=images.device)
        chosen = order[(step % steps) * batch : (step % steps + 1) * batch]
        x = augmentation(images[chosen], generator)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step / (epochs * steps), rate, warmup=0.1)
        with mixed:
            scores = network(x)
        loss = functional.cross_entropy(scores.float(), labels[chosen], label_smoothing=0.02)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
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
            network.to(device), images, labels, epochs, batch=512,
            rate=1e-2 if name == "logistic" else 3e-3, generator=generator,
        )  # fmt: skip
        found[name] = accuracy(network, test_images, test_labels)
    return found
