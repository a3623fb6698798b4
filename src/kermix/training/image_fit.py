"""Fit to images: an autoencoder first, where there is one, then the cost, then a finish.

The kernel of a labelled fit is :math:`k_c(c, c') k_x(x, x')`, where :math:`k_c` is one for equal
classes and zero for others. Its Gram matrices are block diagonal, so the cost is that of each
class, all classes side by side as one batch.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from kermix.costs.baselines import energy_distance
from kermix.errors import TrainingError
from kermix.models.images.autoencoder import Autoencoder
from kermix.models.images.spaces import CODED, make_space
from kermix.models.mixture.networks import Draw, MixtureTable
from kermix.models.mixture.product_mixture import ProductMixture
from kermix.training.cached_gradient import cached_backward
from kermix.training.checkpoints import (
    last_good,
    load_checkpoint,
    optimizer_tensors,
    restore_optimizer,
    save_checkpoint,
)
from kermix.training.em import em_pass, product_em_pass
from kermix.training.image_build import build_image_model, load_image_model
from kermix.training.image_rows import ImageRows, encode_all
from kermix.training.image_settings import ImageSettings
from kermix.training.image_view import View
from kermix.training.loop import NOT_FINITE, Row, make_fabric
from kermix.training.schedules import learning_rate

__all__ = ["ImageTrainer"]

REPORTS = 40
LOOKED_AT = 512
ENCODER_RATE = 2e-3
HELD_OUT_FOR_ENERGY = 2000


@dataclass
class ImageTrainer:
    """A fit to images in progress.

    All randomness comes from the seed of the settings and everything that changes is in a
    checkpoint, so a run that was stopped and resumed ends with the same weights as one that was
    not (on the same machine).

    Args:
        images: Bytes, (N, c, h, w); an array in memory, or a memory-mapped one.
        labels: Classes, (N,), or None.
        classes: Number of classes.
        settings: What the user chose.
        held_out: Images and labels that only the reports look at, or None.
        autoencoder: One that is trained already; its stage is then left out.
        device: `"auto"`, `"cpu"`, `"cuda"`, ...
        precision: A precision of Fabric's. The costs are computed in float32 in any case.
    """

    images: np.ndarray
    labels: np.ndarray | None
    classes: int
    settings: ImageSettings
    held_out: tuple[np.ndarray, np.ndarray | None] | None = None
    autoencoder: Autoencoder | None = None
    device: str = "auto"
    precision: str = "32-true"
    step: int = field(default=0, init=False)
    history: list[Row] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        fabric = make_fabric(self.device, self.precision)
        self.rows = ImageRows(self.images, self.labels, self.classes, fabric.device)
        self.model = build_image_model(self.rows.shape, self.rows.counts.cpu(), self.settings)
        encoder_steps = self.settings.encoder_steps if self.settings.encodes else 0
        if self.autoencoder is not None and self.model.autoencoder is not None:
            self.model.autoencoder.load_state_dict(self.autoencoder.state_dict())
            encoder_steps = 0
        self._stages = (encoder_steps, self.settings.steps, self.settings.polish)
        self.model.to(fabric.device)
        groups = [{"params": list(self.model.network.parameters()), "betas": self._betas()}]
        if self.model.autoencoder is not None:
            groups.append(
                {"params": list(self.model.autoencoder.parameters()), "betas": (0.9, 0.99)}
            )
        self._optimizer = torch.optim.Adam(groups, lr=1.0)
        self._fabric = fabric
        self._generator = torch.Generator(fabric.device).manual_seed(self.settings.seed)
        self._views: list[View] | None = None
        self._codes: Tensor | None = None

    def _betas(self) -> tuple[float, float]:
        return (0.9, 0.99) if self.settings.model == "mixture" else (0.5, 0.9)

    @property
    def apart(self) -> bool:
        """Whether the images that reports look at are others than those to train with."""
        return self.held_out is not None and self.held_out[0] is not self.images

    @property
    def total(self) -> int:
        """Steps of the whole run."""
        return sum(self._stages)

    @property
    def reports_every(self) -> int:
        """Steps between two looks at the model."""
        return max(1, self.total // REPORTS)

    def stage(self, step: int) -> tuple[int, float]:
        """Which stage a step belongs to (0 autoencoder, 1 cost, 2 finish), and its share done."""
        for number, length in enumerate(self._stages):
            if step < length:
                return number, step / length
            step -= length
        return 2, 1.0

    @property
    def per_class(self) -> int:
        """Images of each class in a step with the cost."""
        return max(2, self.settings.batch // self.classes)

    def run(
        self,
        *,
        folder: Path | None = None,
        on_step: Callable[[int], None] | None = None,
        on_report: Callable[[Row], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> bool:
        """Train to the end, or until `should_stop` says so; returns whether the end was reached.

        The arguments are those of :meth:`kermix.training.loop.Trainer.run`.
        """
        losses: list[Tensor] = []
        while self.step < self.total:
            try:
                losses.append(self._one_step())
            except NOT_FINITE as error:
                raise self._failure(folder) from error
            if on_step is not None:
                on_step(self.step)
            stopping = should_stop is not None and self.step < self.total and should_stop()
            reporting = self.step % self.reports_every == 0 or self.step == self.total
            if reporting or stopping:
                # The only place where the host waits for the device.
                if not bool(torch.isfinite(torch.stack(losses)).all()):
                    raise self._failure(folder)
                try:
                    row = self._report(losses[-1]) if reporting else None
                except NOT_FINITE as error:
                    raise self._failure(folder) from error
                # First of all the checkpoint: what looks at the report may fail for want of disk.
                if folder is not None:
                    self.save(folder / "last.safetensors")
                if row is not None and on_report is not None:
                    on_report(row)
                losses = []
            if stopping:
                return False
        return True

    def _one_step(self) -> Tensor:
        stage, share = self.stage(self.step)
        peak = (ENCODER_RATE, self.settings.peak_rate, self.settings.peak_rate)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(share, peak[stage])
        self._optimizer.zero_grad(set_to_none=True)
        with self._fabric.autocast():
            loss = self._encoder_loss() if stage == 0 else self._model_loss(stage, share)
        self._optimizer.step()
        self.step += 1
        return loss.detach()

    def _encoder_loss(self) -> Tensor:
        autoencoder = self.model.autoencoder
        assert autoencoder is not None
        autoencoder.train()
        images = self.rows.images(self.rows.any(self.settings.encoder_batch, self._generator))
        codes = autoencoder.encode(images)
        noise = torch.randn(codes.shape, generator=self._generator, device=codes.device)
        logits = autoencoder.logits(codes + self.settings.code_noise * noise)
        loss = functional.binary_cross_entropy_with_logits(logits.float(), images)
        self._fabric.backward(loss)
        return loss

    def _model_loss(self, stage: int, share: float) -> Tensor:
        views = self._prepared()
        self.model.network.train()
        if stage == 2:
            return self._finishing_pass()
        rows = self.rows.each_class(self.per_class, self._generator)
        data = self._data(rows, views)
        chunk = self.settings.chunk
        if chunk is None or self.model.is_mixture:
            draw = self.model.draw(self.per_class, self._generator)
            loss = self._cost(views, data, draw, share)
            self._fabric.backward(loss)
            return loss
        labels = self.model.each_class(self.per_class)
        inputs = self.model.inputs(labels, self._generator)

        def cost(points: Tensor) -> Tensor:
            grouped = points.unflatten(0, (self.classes, self.per_class))
            return self._cost(views, data, Draw(grouped, None), share)

        def backward(points: Tensor, gradient: Tensor) -> None:
            self._fabric.backward(points, gradient=gradient)

        return cached_backward(self.model.network, inputs, cost, chunk, backward)

    def _finishing_pass(self) -> Tensor:
        assert self._codes is not None
        labels = self.rows.labels.to(self._codes.device)
        classes = [self._codes[labels == c] for c in range(self.classes)]
        # The decoder was trained not to see differences smaller than this.
        floor = self.settings.code_noise**2
        network = self.model.network
        if isinstance(network, ProductMixture):
            return product_em_pass(network, classes, floor)
        assert isinstance(network, MixtureTable)
        return em_pass(network, classes, floor)

    def _data(self, rows: Tensor, views: list[View]) -> list[Tensor]:
        """The data of a step in each space, (classes, n, d)."""
        if self._codes is not None and self.settings.codes_only:
            return [self._codes[rows]] * len(views)
        with torch.no_grad():
            images = self.rows.images(rows.flatten())
            return [view.space(images).unflatten(0, rows.shape) for view in views]

    def _cost(
        self, views: list[View], data: list[Tensor], draw: Draw, share: float
    ) -> Tensor:  # ()
        """The mean over spaces of the cost there."""
        points, weights = draw
        images: Tensor | None = None
        losses = []
        for name, view, x in zip(self.settings.spaces, views, data, strict=True):
            if name in CODED and self.model.decodes:
                y = points
            else:
                if images is None:
                    images = self.model.to_images(points.flatten(0, 1))
                y = view.space(images).unflatten(0, points.shape[:2])
            losses.append(view.loss(self.settings.cost, x, y.float(), weights, share))
        return torch.stack(losses).mean()

    def _prepared(self) -> list[View]:
        """Spaces and variances, found once the autoencoder is trained; no state of its own."""
        if self._views is not None:
            return self._views
        generator = torch.Generator(self.rows.device).manual_seed(self.settings.seed + 1)
        autoencoder = self.model.autoencoder
        if autoencoder is not None:
            autoencoder.eval().requires_grad_(False)
            if self.model.decodes:
                self._codes = encode_all(autoencoder, self.rows)
        rows = [self.rows.some(c, LOOKED_AT, generator) for c in range(self.classes)]
        images = self.rows.images(torch.cat(rows))
        weights = torch.Generator().manual_seed(self.settings.seed + 2)
        self._views = []
        for name in self.settings.spaces:
            some = images[torch.randperm(len(images), generator=generator, device=images.device)]
            space = make_space(name, some[:LOOKED_AT], autoencoder, weights)
            with torch.no_grad():
                found = space(images).float().split([len(own) for own in rows])
            parts = autoencoder.parts if autoencoder and name == "channels" else 1
            self._views.append(View(space, list(found), self.settings, parts))
        network = self.model.network
        if self.model.is_mixture and self.step == self._stages[0]:
            assert self._codes is not None
            means = network.means
            assert isinstance(means, Tensor)
            # Components begin at codes of their class.
            starts = self._codes[self.rows.each_class(means.shape[-2], generator)]
            if isinstance(network, ProductMixture):
                starts = starts.unflatten(-1, (means.shape[-3], -1)).movedim(-2, -3)
            with torch.no_grad():
                means.copy_(starts)
        return self._views

    def _report(self, loss: Tensor) -> Row:
        stage, share = self.stage(self.step - 1)
        variance = 0.0
        if stage == 1 and self._views is not None:
            variance = self._views[0].variances.at(share)[0]
        row = {"step": float(self.step), "loss": float(loss), "variance": variance,
               "metric": self.metric() if stage else math.nan}  # fmt: skip
        self.history.append(row)
        return row

    @torch.no_grad()
    def metric(self) -> float:
        """Energy distance of held-out images in the first space; the mean over classes."""
        if self.held_out is None:
            return math.nan
        views = self._prepared()
        images, labels = (None if z is None else z[:HELD_OUT_FOR_ENERGY] for z in self.held_out)
        assert images is not None
        seen = torch.from_numpy(np.array(images)).to(self.rows.device).float() / 255
        chosen = torch.zeros(len(seen), dtype=torch.long, device=seen.device)
        if labels is not None and self.classes > 1:
            chosen = torch.from_numpy(np.array(labels)).long().to(seen.device)
        generator = torch.Generator(self.rows.device).manual_seed(self.settings.seed)
        drawn = self.model.sample(len(seen), generator, chosen).images
        x, y = (views[0].space(part).float() / views[0].scale for part in (seen, drawn))
        distances = [energy_distance(x[chosen == c], y[chosen == c]) for c in chosen.unique()]
        return float(torch.stack(distances).mean())

    def _failure(self, folder: Path | None) -> TrainingError:
        return TrainingError(
            f"The loss is not finite near step {self.step} (cost {self.settings.cost}, learning "
            f"rate peak {self.settings.peak_rate:g}). Try a larger variance, or a learning rate "
            f"three times lower. {last_good(folder)}"
        )

    def save(self, path: Path) -> None:
        """Write everything that changes during training."""
        tensors = {f"model.{name}": t for name, t in self.model.state_dict().items()}
        tensors.update(optimizer_tensors(self._optimizer))
        tensors["generator"] = self._generator.get_state()
        history = [{k: (None if v != v else v) for k, v in row.items()} for row in self.history]
        save_checkpoint(path, tensors, {"step": self.step, "history": history})

    def load(self, path: Path) -> None:
        """Go on from a checkpoint."""
        tensors, content = load_checkpoint(path)
        load_image_model(self.model, tensors)
        restore_optimizer(self._optimizer, tensors)
        self._generator.set_state(tensors["generator"])
        self.step = content["step"]
        self.history = [
            {k: (math.nan if v is None else v) for k, v in row.items()}
            for row in content["history"]
        ]
        self._views = self._codes = None
