"""Training of image classifiers, on Lightning Fabric, with the whole data set on the device.

The face of it::

    trainer = ClassifierTrainer(train, held_out, ClassifierSettings(patch=5), device="auto")
    ended = trainer.run(folder=Path("run"), on_step=..., on_report=..., should_stop=...)
    trainer.evaluate()                  # Evaluation(accuracy, loss, confusion) of the held-out set
    trainer.load(Path("run") / "last.safetensors")      # goes on where it stopped
    trained = load_classifier(Path("run"))              # .model, .settings, .classes
    trained.probabilities(images)                       # (N, classes) of bytes (N, C, H, W)

`train` and `held_out` are :class:`kermix.data.images.labelled.LabelledImages`. The history has a
row for each epoch: epoch, step, loss and train_accuracy (of the augmented batches), seconds, and
test_accuracy where the held-out images were looked at. They are only looked at: nothing is chosen
by them. When the training ends the folder holds `model.safetensors`, the averaged weights.
"""

import copy
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from kermix.data.images.labelled import LabelledImages, check_same_shape
from kermix.errors import RunError, TrainingError
from kermix.models.images.classifier import ImageClassifier
from kermix.models.product.classifier import GaussianProductClassifier
from kermix.training.averaging import RunningAverage, set_statistics
from kermix.training.checkpoints import (
    last_good,
    load_checkpoint,
    optimizer_tensors,
    restore_optimizer,
    save_checkpoint,
    tensors_of,
)
from kermix.training.classifier_optimizers import classifier_optimizers
from kermix.training.classifier_settings import ClassifierSettings, build_classifier
from kermix.training.loop import make_fabric
from kermix.training.schedules import learning_rate

__all__ = ["ClassifierTrainer", "Evaluation", "Row", "TrainedClassifier", "load_classifier"]

Row: TypeAlias = dict[str, float]

EVALUATED_TOGETHER = 500
NUMBERS_AT_ONCE = 2**26
BATCHES_FOR_STATISTICS = 40


@dataclass(frozen=True)
class Evaluation:
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
    settings: ClassifierSettings
    classes: tuple[str, ...]

    def probabilities(self, images: Tensor) -> Tensor:  # (N, C, H, W) -> (N, classes)
        """Probabilities of the classes of images, bytes or floats from 0 to 1."""
        return _scores(self.model.eval(), images, self.settings.flip_at_test).softmax(1)


@dataclass
class ClassifierTrainer:
    """A classifier in training.

    All randomness comes from the seed of the settings and everything that changes is in a
    checkpoint, so a run that was stopped and resumed ends with the weights of one that was not (on
    the same machine). The host does not wait for the device within an epoch.

    Args:
        train: Images to learn from.
        held_out: Images to report on, or None.
        settings: What the user chose.
        device: `"auto"`, `"cpu"`, `"cuda"`, ...
        precision: A precision of Fabric's; `"auto"` is bfloat16 with float32 weights on a GPU
            and float32 elsewhere. Exponentials are in float32 in any case.
    """

    train: LabelledImages
    held_out: LabelledImages | None
    settings: ClassifierSettings
    device: str = "auto"
    precision: str = "auto"
    step: int = field(default=0, init=False)
    history: list[Row] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        settings, shape = self.settings, self.train.images.shape[1:]
        if self.held_out is not None:
            check_same_shape(self.train, self.held_out)
        precision = self.precision
        fabric = make_fabric(self.device, "32-true" if precision == "auto" else precision)
        if precision == "auto" and fabric.device.type == "cuda":
            fabric = make_fabric(self.device, "bf16-mixed")
        self._fabric, device = fabric, fabric.device
        self._images, self._labels = _on(device, self.train)
        # Two images in a step, at least: one has no variance to normalise by.
        self._steps = max(1, min(round(len(self.train) / settings.batch), len(self.train) // 2))
        self._size = len(self.train) // self._steps
        channels, height, width = (int(n) for n in shape)
        model = build_classifier(settings, (channels, height, width), len(self.train.classes))
        self.model = model.to(device)
        self.model.prepare(self._images, torch.Generator().manual_seed(settings.seed))
        optimizers = classifier_optimizers(self.model, settings, device)
        self._network, *self._optimizers = fabric.setup(self.model, *optimizers)
        self._average = RunningAverage(self.model, settings.average * self._steps)
        self._generator = torch.Generator(device)
        self._totals = torch.zeros(2, device=device)  # loss, images with the right class
        self._order = torch.empty(0, device=device)
        self._final: ImageClassifier | None = None

    @property
    def total(self) -> int:
        """Steps of the whole run."""
        return self.settings.epochs * self._steps

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which every image is seen once, but for a remainder smaller than a batch."""
        return self._steps

    @property
    def used_device(self) -> torch.device:
        """Where the images lie and the training runs."""
        device: torch.device = self._fabric.device
        return device

    def run(
        self,
        *,
        folder: Path | None = None,
        on_step: Callable[[int], None] | None = None,
        on_report: Callable[[Row], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
        checkpoint_every: int = 1,
    ) -> bool:
        """Train to the end, or until `should_stop` says so; returns whether the end was reached.

        Args:
            folder: Where `last.safetensors` goes, and `model.safetensors` at the end.
            on_step: Called with the number of each step that was handed to the device.
            on_report: Called with each new row of the history, after every epoch.
            should_stop: Asked after each step; a checkpoint is then written first.
            checkpoint_every: Epochs between two checkpoints.
        """
        self._begin_epoch(resumed=self.step % self._steps != 0)
        self._final, start = None, time.perf_counter()
        while self.step < self.total:
            self._one_step()
            if on_step is not None:
                on_step(self.step)
            stopping = should_stop is not None and self.step < self.total and should_stop()
            epoch, place = divmod(self.step, self._steps)
            if place == 0:
                row = self._report(time.perf_counter() - start, folder)
                if on_report is not None:
                    on_report(row)
                self._begin_epoch()
                start = time.perf_counter()
            due = place == 0 and (epoch % checkpoint_every == 0 or self.step == self.total)
            if stopping:
                self._check(float(self._totals[0]), folder)
            if folder is not None and (stopping or due):
                self.save(folder / "last.safetensors")
            if stopping:
                return False
        if folder is not None:
            self._save_model(folder / "model.safetensors")
        return True

    def evaluate(self, data: LabelledImages | None = None) -> Evaluation:
        """The averaged network on labelled images, the held-out ones if none are given."""
        data = self.held_out if data is None else data
        if data is None:
            raise RunError("There are no held-out images: give the images to evaluate on.")
        images, labels = (
            (self._images, self._labels) if data is self.train else _on(self._fabric.device, data)
        )
        with self._fabric.autocast():
            scores = _scores(self.final(), images, self.settings.flip_at_test)
        count = len(data.classes)
        places = labels * count + scores.argmax(1)
        confusion = places.bincount(minlength=count**2).view(count, count).cpu()
        return Evaluation(
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
            self._average.copy_to(model)
            generator = torch.Generator(self._fabric.device).manual_seed(self.settings.seed)
            set_statistics(model, self._batches_for_statistics(generator), self._fabric.autocast)
        if self.step == self.total:
            self._final = model
        return model

    def trained(self) -> TrainedClassifier:
        """The network as it is now, for predictions."""
        return TrainedClassifier(self.final(), self.settings, self.train.classes)

    def _batches_for_statistics(self, generator: torch.Generator) -> list[Tensor]:
        order = torch.randperm(len(self._images), generator=generator, device=self._images.device)
        parts = order.split(self._size)[: min(self._steps, BATCHES_FOR_STATISTICS)]
        return [self.settings.augmentation(self._images[p], generator) for p in parts]

    def _begin_epoch(self, resumed: bool = False) -> None:
        """Draw the order of an epoch from a seed of its own, so that a resumed one has it too."""
        state = self._generator.get_state()
        epoch = self.step // self._steps
        self._generator.manual_seed(1_000_003 * self.settings.seed + epoch)
        device = self._images.device
        self._order = torch.randperm(len(self._images), generator=self._generator, device=device)
        if resumed:
            self._generator.set_state(state)
        else:
            self._totals.zero_()

    def _one_step(self) -> None:
        place = self.step % self._steps
        rate = learning_rate(
            self.step / self.total, self.settings.peak_rate, 0.001, self.settings.warmup
        )
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * group["share"]
        rows = self._order[place * self._size : (place + 1) * self._size]
        images = self.settings.augmentation(self._images[rows], self._generator)
        labels = self._labels[rows]
        self.model.train()
        loss, scores = self._loss(images, labels)
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)
        self._fabric.backward(loss)
        for optimizer in self._optimizers:
            optimizer.step()
        self._average.update(self.model, self.step)
        with torch.no_grad():
            right = (scores.argmax(1) == labels).sum()
            self._totals += torch.stack([loss.detach().float() * len(rows), right.float()])
        self.step += 1

    def _loss(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Cross entropy, and the scores that it is of."""
        settings, own = self.settings, None
        if settings.mix:
            images, own = settings.augmentation.mixed(images, self._generator)
        if settings.positions < 1:
            assert isinstance(self.model, GaussianProductClassifier)
            count = self.model.positions
            order = torch.randperm(count, generator=self._generator, device=images.device)
            scores = self._network(images, order[: max(1, round(settings.positions * count))])
        else:
            scores = self._network(images)
        entropy = functools.partial(
            nn.functional.cross_entropy, scores, label_smoothing=settings.smoothing
        )
        if own is None:
            return entropy(labels), scores
        each = own * entropy(labels, reduction="none")
        each = each + (1 - own) * entropy(labels.roll(1), reduction="none")
        return each.mean(), scores

    def _report(self, seconds: float, folder: Path | None) -> Row:
        # The only place where the host waits for the device.
        loss, right = (self._totals / (self._steps * self._size)).tolist()
        self._check(loss, folder)
        epoch = self.step // self._steps
        row: Row = {"epoch": epoch, "step": self.step, "loss": loss, "train_accuracy": right}
        row["seconds"] = seconds
        every = self.settings.evaluate_every
        if self.held_out is not None and every and epoch % every == 0:
            row["test_accuracy"] = self.evaluate().accuracy
        self.history.append(row)
        return row

    def _check(self, loss: float, folder: Path | None) -> None:
        if not loss < float("inf"):
            raise TrainingError(
                f"The loss is not finite in epoch {-(-self.step // self._steps)} (learning rate "
                f"peak {self.settings.peak_rate:g}). Try one three times lower. "
                f"{last_good(folder)}"
            )

    def save(self, path: Path) -> None:
        """Write everything that changes during training."""
        tensors = {f"model.{name}": t for name, t in self.model.state_dict().items()}
        tensors |= {f"average.{name}": t for name, t in self._average.tensors.items()}
        for i, optimizer in enumerate(self._optimizers):
            tensors |= {f"{i}.{name}": t for name, t in optimizer_tensors(optimizer).items()}
        tensors |= {"generator": self._generator.get_state(), "totals": self._totals}
        save_checkpoint(path, tensors, self._content())

    def load(self, path: Path) -> None:
        """Go on from a checkpoint."""
        tensors, content = load_checkpoint(path)
        self.model.load_state_dict(tensors_of("model.", tensors))
        self._average.load(tensors_of("average.", tensors))
        for i, optimizer in enumerate(self._optimizers):
            restore_optimizer(optimizer, tensors_of(f"{i}.", tensors))
        self._generator.set_state(tensors["generator"])
        self._totals.copy_(tensors["totals"])
        self.step, self.history = content["step"], content["history"]

    def _save_model(self, path: Path) -> None:
        tensors = {f"model.{name}": t for name, t in self.final().state_dict().items()}
        save_checkpoint(path, tensors, self._content())

    def _content(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "history": self.history,
            "settings": self.settings.as_json(),
            "shape": list(self.model.shape),
            "classes": list(self.train.classes),
        }


def load_classifier(folder: Path, device: str = "cpu") -> TrainedClassifier:
    """The network that a run left in a folder: `model.safetensors`."""
    tensors, content = load_checkpoint(folder / "model.safetensors")
    try:
        settings = ClassifierSettings.from_json(content["settings"])
        classes = tuple(str(name) for name in content["classes"])
        model = build_classifier(settings, tuple(content["shape"]), len(classes))
        model.load_state_dict(tensors_of("model.", tensors))
    except (KeyError, RuntimeError) as error:
        raise RunError(f"{folder}: model.safetensors holds no classifier ({error}).") from None
    return TrainedClassifier(model.to(device).eval(), settings, classes)


@torch.no_grad()
def _scores(model: ImageClassifier, images: Tensor, flip: bool) -> Tensor:  # (N, classes)
    """Scores in pieces, on the model's device."""
    device = next(model.parameters()).device
    together = max(1, min(EVALUATED_TOGETHER, NUMBERS_AT_ONCE // model.numbers_per_image))
    found = []
    for part in images.split(together):
        here = part.to(device)
        scores = model(here)
        found.append((scores + model(here.flip(3))) / 2 if flip else scores)
    return torch.cat(found).float()


def _on(device: torch.device, data: LabelledImages) -> tuple[Tensor, Tensor]:
    # Copied: the array may be mapped from a file that cannot be written.
    return torch.tensor(data.images, device=device), torch.tensor(data.labels, device=device)
