"""Training of the classifiers that judge generated images."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from kermix.image_evaluation import predict
from kermix.models.classifiers import ConvClassifier, linear_classifier, mlp_classifier

from .schedules import learning_rate

__all__ = ["accuracy", "fit_classifier", "train_on_synthetic"]


def fit_classifier(
    network: nn.Module,
    images: Tensor,  # (n, c, h, w), in [0, 1]
    labels: Tensor,  # (n,)
    epochs: int,
    *,
    batch: int = 256,
    rate: float = 2e-3,
    shifts: int = 0,
    flips: bool = False,
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
        shifts: Pixels that a batch is shifted by at most, at random.
        flips: Whether half of the images are mirrored.
        generator: For order, shifts and flips; on the same device.
    """
    network.train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=1e-2)
    mixed = torch.autocast(images.device.type, torch.bfloat16, enabled=images.is_cuda)
    batch = min(batch, len(images))
    steps = len(images) // batch
    for step in range(epochs * steps):
        if step % steps == 0:
            order = torch.randperm(len(images), generator=generator, device=images.device)
        chosen = order[(step % steps) * batch : (step % steps + 1) * batch]
        x = _augmented(images[chosen], shifts, flips, generator)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step / (epochs * steps), rate, warmup=0.1)
        with mixed:
            scores = network(x)
        loss = functional.cross_entropy(scores.float(), labels[chosen], label_smoothing=0.02)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    return network.eval()


def _augmented(x: Tensor, shifts: int, flips: bool, generator: torch.Generator) -> Tensor:
    if flips:
        turned = torch.rand(len(x), generator=generator, device=x.device) < 0.5
        x = torch.where(turned[:, None, None, None], x.flip(-1), x)
    if shifts:
        n, _, height, width = x.shape
        padded = functional.pad(x, [shifts] * 4)
        place = torch.randint(2 * shifts + 1, (2, n), generator=generator, device=x.device)
        rows = place[0, :, None] + torch.arange(height, device=x.device)
        columns = place[1, :, None] + torch.arange(width, device=x.device)
        each = torch.arange(n, device=x.device)[:, None, None]
        x = padded[each, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    return x


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
        width: Channels of the CNN's first layer.
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
        "cnn": ConvClassifier(shape, classes, width, generator=start),
    }
    found = {}
    for name, network in networks.items():
        fit_classifier(
            network.to(device), images, labels, epochs, batch=512,
            rate=1e-2 if name == "logistic" else 3e-3, generator=generator,
        )  # fmt: skip
        found[name] = accuracy(network, test_images, test_labels)
    return found
