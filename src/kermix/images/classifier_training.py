"""The training of image classifiers, with the whole data set on the device.

The face of it::

    trainer = Trainer(ClassifierTask(train, held_out, ProductSettings(patch=5)))
    ended = trainer.run(folder=Path("run"), on_step=..., on_report=..., should_stop=...)
    trainer.task.evaluate()             # Evaluation(accuracy, loss, confusion) of the held-out set
    trained = load_classifier(Path("run"))              # .model, .settings, .classes
    trained.probabilities(images)                       # (N, classes) of bytes (N, C, H, W)

`train` and `held_out` are `kermix.data.images.labelled.LabelledImages`. The history has a
row for each epoch: epoch, step, loss and train_accuracy (of the augmented batches), seconds, and
test_accuracy where the held-out images were looked at. They are only looked at: nothing is chosen
by them. When the training ends the folder holds `model.safetensors`, the averaged weights.

The optimizer is AdamW, with Muon for matrices where it is asked for: Keller Jordan's method
(https://kellerjordan.github.io/posts/muon) with the size of steps of "Muon is Scalable for LLM
Training" (arXiv:2502.16982), for which rates and decay of AdamW are right as they are. PyTorch
has it since 2.9, and the numbers here are the same.
"""

import copy
import dataclasses
import functools
import time
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kermix.checks import rows_at_once
from kermix.data.images.labelled import LabelledImages, check_same_shape
from kermix.distributed.processes import Ranks
from kermix.errors import RunError
from kermix.images.augmentation import Augmentation
from kermix.networks.image_networks import ImageClassifier, ImageShape, PlainCNN
from kermix.networks.product_images import GaussianProductClassifier, ProductDesign
from kermix.training.checkpoints import (
    RunningAverage,
    check_declared,
    load_checkpoint,
    load_model,
    rebuilding,
    set_statistics,
)
from kermix.training.loop import Forward, Row, Task, adam, learning_rate
from kermix.training.product_settings import ProductSettings

__all__ = [
    "ClassifierEvaluation",
    "ClassifierTask",
    "Muon",
    "TrainedClassifier",
    "classifier_optimizers",
    "load_classifier",
    "orthogonal_factor",
]

# A quintic as steep at 0 as it can be: singular values come near 1, not to it, in five steps.
A, B, C = 3.4445, -4.7750, 2.0315


def orthogonal_factor(matrix: Tensor, steps: int = 5) -> Tensor:  # (m, n), bfloat16
    """About U V^T of the matrix U S V^T: singular values of 0.7 to 1.2, mostly.

    Example:
        >>> orthogonal_factor(torch.diag(torch.tensor([3.0, 1.0]))).round()
        tensor([[1., 0.],
                [0., 1.]], dtype=torch.bfloat16)
    """
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.bfloat16()
    x = x.T if tall else x
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(steps):
        square = x @ x.T
        x = torch.addmm(x, torch.addmm(square, square, square, beta=B, alpha=C), x, beta=A)
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum of Nesterov's, made orthogonal; for matrices alone.

    Args:
        params: Matrices, or groups of them.
        lr: Learning rate, as for AdamW; a number, or a tensor on the device.
        weight_decay: Decoupled, as for AdamW.
        momentum: Of the running mean of gradients.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
    ) -> None:
        defaults = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum}
        # A step reads no value: a CUDA graph can hold it.
        super().__init__(params, {**defaults, "capturable": True})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take one step."""
        for group in self.param_groups:
            rate, momentum = group["lr"], group["momentum"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(p.grad)
                mean = state["momentum_buffer"].lerp_(p.grad, 1 - momentum)
                update = orthogonal_factor(p.grad.lerp(mean, momentum))
                p.mul_(1 - rate * group["weight_decay"])
                length = rate * (0.2 * max(p.shape) ** 0.5)
                if isinstance(length, Tensor):
                    p.sub_(update.to(p.dtype) * length)
                else:
                    p.add_(update, alpha=-length)


def classifier_optimizers(
    model: nn.Module, settings: ProductSettings, device: torch.device
) -> list[torch.optim.Optimizer]:
    """AdamW for everything, or Muon for the matrices and AdamW for the rest.

    The `share` of a group is its part of the learning rate, which the trainer sets in each step.
    """
    decay = settings.weight_decay
    named = list(model.named_parameters())

    def is_matrix(name: str) -> bool:
        if name == "output.anchors":
            return settings.optimizer == "muon-anchors"
        return name.startswith("layers.") and name.endswith("weight")

    muon = [p for name, p in named if is_matrix(name) and p.ndim == 2]
    muon = muon if settings.optimizer != "adamw" else []
    scores = [p for name, p in named if name == "output.scores.weight"]
    rest = [p for _, p in named if not any(p is m for m in (*muon, *scores))]
    groups = [
        {"params": [p for p in rest if p.ndim >= 2], "weight_decay": decay, "share": 1.0},
        {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0, "share": 1.0},
        {"params": scores, "weight_decay": decay, "share": settings.score_rate},
    ]
    found: list[torch.optim.Optimizer] = [
        adam(groups, device, torch.optim.AdamW, betas=(0.9, 0.99))
    ]
    if muon:
        found.append(
            Muon([{"params": muon, "share": 1.0}], lr=1.0, weight_decay=decay, momentum=0.9)
        )
    return found


@dataclass(frozen=True)
class ClassifierEvaluation:
    """How a classifier does on labelled images.

    Attributes:
        accuracy: Share of images whose class has the largest score.
        loss: Mean cross entropy, in nats.
        confusion: Counts (classes, classes): a row for each true class.
    """

    accuracy: float
    loss: float
    confusion: Tensor


@dataclass(frozen=True)
class TrainedClassifier:
    """A network with what it was trained by."""

    model: ImageClassifier
    settings: ProductSettings
    classes: tuple[str, ...]

    def probabilities(self, images: Tensor) -> Tensor:  # (N, C, H, W) -> (N, classes)
        """Probabilities of the classes of images, bytes or floats from 0 to 1."""
        return _scores(self.model.eval(), images, self.settings.flip_at_test).softmax(1)


class ClassifierTask(Task):
    """A classifier of images.

    Each epoch has an order and random numbers of its own, from the seed and its number. The host
    does not wait for the device within an epoch.

    Args:
        train: Images to learn from.
        held_out: Images to report on, or None.
        settings: What the user chose.
    """

    model: ImageClassifier
    precision = "auto"

    def __init__(
        self, train: LabelledImages, held_out: LabelledImages | None, settings: ProductSettings
    ) -> None:
        if held_out is not None:
            check_same_shape(train, held_out)
        self.train, self.held_out, self.settings = train, held_out, settings
        self._augmentation = Augmentation(settings)
        # Two images in a step, at least: one has no variance to normalise by.
        size = settings.batch_size or len(train)
        self._steps = max(1, min(round(len(train) / size), len(train) // 2))
        self._size = len(train) // self._steps
        self._order: Tensor | None = None
        self._final: ImageClassifier | None = None
        self._began = 0.0

    def prepare(self, fabric: Any, ranks: Ranks | None) -> list[torch.optim.Optimizer]:
        """Build the network, and bring all images to the device."""
        settings, device = self.settings, fabric.device
        self._fabric = fabric
        self._images, self._labels = _on(device, self.train)
        channels, height, width = (int(n) for n in self.train.images.shape[1:])
        model = build_classifier(settings, (channels, height, width), len(self.train.classes))
        self.model = self.module = model.to(device)
        self.model.prepare(self._images, torch.Generator().manual_seed(settings.seed))
        self.average = RunningAverage(self.model, settings.average * self._steps, behind=1)
        self.generator = torch.Generator(device)
        self._totals = torch.zeros(2, device=device)  # loss, images with the right class
        return classifier_optimizers(self.model, settings, device)

    @property
    def total(self) -> int:
        """Steps of all epochs."""
        return self.settings.epochs * self._steps

    @property
    def reports_every(self) -> int:
        """Steps of an epoch: every image once, but for a remainder smaller than a batch."""
        return self._steps

    @property
    def used_device(self) -> torch.device:
        """Where the images lie and the training runs."""
        device: torch.device = self._fabric.device
        return device

    def begin(self) -> None:
        """The time of an epoch counts from here."""
        self._began = time.perf_counter()

    def evaluate(self, data: LabelledImages | None = None) -> ClassifierEvaluation:
        """The averaged network on labelled images, the held-out ones if none are given."""
        data = self.held_out if data is None else data
        if data is None:
            raise RunError("There are no held-out images: give the images to evaluate on.")
        images, labels = (
            (self._images, self._labels) if data is self.train else _on(self.used_device, data)
        )
        with self._fabric.autocast():
            scores = _scores(self.final(), images, self.settings.flip_at_test)
        count = len(data.classes)
        places = labels * count + scores.argmax(1)
        confusion = places.bincount(minlength=count**2).view(count, count).cpu()
        return ClassifierEvaluation(
            accuracy=float(confusion.diagonal().sum() / confusion.sum()),
            loss=float(nn.functional.cross_entropy(scores, labels)),
            confusion=confusion,
        )

    def final(self) -> ImageClassifier:
        """The network with averaged weights and the statistics that belong to them."""
        if self._final is not None:
            return self._final
        model = copy.deepcopy(self.model).eval()
        if self.settings.average > 0:
            assert self.average is not None
            self.average.copy_to(model)
            generator = torch.Generator(self.used_device).manual_seed(self.settings.seed)
            set_statistics(model, self._batches_for_statistics(generator), self._fabric.autocast)
        self._final = model
        return model

    def trained(self) -> TrainedClassifier:
        """The network as it is now, for predictions."""
        return TrainedClassifier(self.final(), self.settings, self.train.classes)

    def _batches_for_statistics(self, generator: torch.Generator) -> list[Tensor]:
        order = torch.randperm(len(self._images), generator=generator, device=self._images.device)
        parts = order.split(self._size)[: min(self._steps, 40)]
        return [self._augmentation(self._images[p], generator) for p in parts]

    def learning_rate(self, step: int) -> float:
        """One rise and fall."""
        share, peak = step / self.total, self.settings.peak_rate
        return learning_rate(share, peak, 0.001, self.settings.warmup)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Augmented images, each once in an epoch, and their labels."""
        epoch, place = divmod(step, self._steps)
        self._final = None
        self.model.train()
        if place == 0:
            self.generator.manual_seed(self._seed(epoch))
            self._order = self._drawn_order(self.generator)
            self._totals.zero_()
        elif self._order is None:  # resumed within an epoch
            again = torch.Generator(self.used_device).manual_seed(self._seed(epoch))
            self._order = self._drawn_order(again)
        rows = self._order[place * self._size : (place + 1) * self._size]
        return self._augmentation(self._images[rows], self.generator), self._labels[rows]

    def _seed(self, epoch: int) -> int:
        return 1_000_003 * self.settings.seed + epoch

    def _drawn_order(self, generator: torch.Generator) -> Tensor:
        count = len(self._images)
        return torch.randperm(count, generator=generator, device=self.used_device)

    def loss(self, forward: Forward | None, batch: tuple[Tensor, Tensor], step: int) -> Tensor:
        """Cross entropy; it is noted with the number of images that are right."""
        assert forward is not None
        loss, scores = self.loss_and_scores(forward, *batch)
        with torch.no_grad():
            right = (scores.argmax(1) == batch[1]).sum()
            self._totals += torch.stack([loss.detach().float() * len(scores), right.float()])
        return loss

    def kind(self, step: int) -> Hashable | None:
        """All steps are of one kind, if all that is random about them is in their images."""
        settings = self.settings
        return None if settings.mix or settings.positions < 1 else "images"

    def loss_and_scores(
        self, forward: Forward, images: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Cross entropy, and the scores that it is of."""
        settings, own = self.settings, None
        if settings.mix:
            images, own = self._augmentation.mixed(images, self.generator)
        if settings.positions < 1:
            assert isinstance(self.model, GaussianProductClassifier)
            count = self.model.positions
            order = torch.randperm(count, generator=self.generator, device=images.device)
            scores = forward(images, order[: max(1, round(settings.positions * count))])
        else:
            scores = forward(images)
        entropy = functools.partial(
            nn.functional.cross_entropy, scores, label_smoothing=settings.smoothing
        )
        if own is None:
            return entropy(labels), scores
        each = own * entropy(labels, reduction="none")
        each = each + (1 - own) * entropy(labels.roll(1), reduction="none")
        return each.mean(), scores

    def report(self, step: int, loss: Tensor) -> Row:
        """Means over an epoch, its time, and the accuracy on held-out images where asked for."""
        mean, right = (self._totals / (self._steps * self._size)).tolist()
        epoch, now = step // self._steps, time.perf_counter()
        row: Row = {"epoch": epoch, "step": step, "loss": mean, "train_accuracy": right}
        row["seconds"] = now - self._began
        every = self.settings.evaluate_every
        if self.held_out is not None and every and epoch % every == 0:
            row["test_accuracy"] = self.evaluate().accuracy
        self._began = time.perf_counter()
        return row

    def failure(self, step: int) -> str:
        """Fast steps are what fails."""
        return (
            f"The loss is not finite in epoch {step // self._steps + 1} (learning rate peak "
            f"{self.settings.peak_rate:g}). Try a learning rate three times lower."
        )

    def content(self) -> dict[str, Any]:
        """What it takes to make the network again."""
        return {
            "settings": self.settings.as_json(),
            "shape": list(self.model.shape),
            "classes": list(self.train.classes),
        }

    def extras(self) -> dict[str, Tensor]:
        """Sums over the epoch so far."""
        return {"totals": self._totals}

    def restore(self, path: Path, tensors: dict[str, Tensor], content: dict[str, Any]) -> None:
        """Take the sums of a checkpoint."""
        self._totals.copy_(tensors["totals"])
        self._order = self._final = None


def build_classifier(
    settings: ProductSettings, shape: ImageShape, classes: int
) -> ImageClassifier:
    """The untrained network of some settings, on the CPU.

    Example:
        >>> build_classifier(ProductSettings(model="cnn"), (1, 8, 8), 10).parameter_count
        1147722
    """
    generator = torch.Generator().manual_seed(settings.seed)
    if settings.model == "cnn":
        return PlainCNN(shape, classes, generator=generator)
    names = [field.name for field in dataclasses.fields(ProductDesign)]
    design = ProductDesign(**{name: getattr(settings, name) for name in names})
    return GaussianProductClassifier(shape, classes, design, generator=generator)


def load_classifier(folder: Path, device: str = "cpu") -> TrainedClassifier:
    """The network that a run left in a folder: `model.safetensors`."""
    path = folder / "model.safetensors"
    tensors, content = load_checkpoint(path)
    with rebuilding(path, tensors):
        settings = ProductSettings.from_json(content["settings"])
        check_declared(settings, tensors)
        classes = tuple(str(name) for name in content["classes"])
        model = build_classifier(settings, tuple(content["shape"]), len(classes))
        load_model(model, tensors)
    return TrainedClassifier(model.to(device).eval(), settings, classes)


@torch.no_grad()
def _scores(model: ImageClassifier, images: Tensor, flip: bool) -> Tensor:  # (N, classes)
    """Scores in pieces, on the model's device."""
    device = next(model.parameters()).device
    together = rows_at_once(model.numbers_per_image, 2**26, most=500)
    found = []
    for part in images.split(together):
        here = part.to(device)
        scores = model(here)
        found.append((scores + model(here.flip(3))) / 2 if flip else scores)
    return torch.cat(found).float()


def _on(device: torch.device, data: LabelledImages) -> tuple[Tensor, Tensor]:
    # Copied: the array may be mapped from a file that cannot be written.
    return torch.tensor(data.images, device=device), torch.tensor(data.labels, device=device)
