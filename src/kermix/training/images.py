"""The training of a model of images: an autoencoder, where there is one, a cost, then EM.

The kernel of a labelled fit is $k_c(c, c') k_x(x, x')$, where $k_c$ is one for equal
classes and zero for others. Its Gram matrices are block diagonal, so the cost is that of each
class, all classes side by side as one batch.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from kermix.costs.baselines import energy_distance
from kermix.distributed import Ranks
from kermix.models.images.autoencoder import Autoencoder
from kermix.models.images.model import ImageModel
from kermix.models.images.spaces import CODED, make_space
from kermix.models.mixture.networks import Draw, MixtureTable
from kermix.models.mixture.product_mixture import ProductMixture
from kermix.training.cached_gradient import cached_backward
from kermix.training.em import em_pass, product_em_pass
from kermix.training.image_build import build_image_model
from kermix.training.image_rows import ImageRows, encode_all
from kermix.training.image_settings import ImageSettings
from kermix.training.image_view import View
from kermix.training.schedules import learning_rate
from kermix.training.task import Forward, Row, Task

__all__ = ["ImageTask"]

REPORTS = 40  # in a whole run
LOOKED_AT = 512
ENCODER_RATE = 2e-3
HELD_OUT_FOR_ENERGY = 2000
ENCODER, COST, REFINE = range(3)  # the stages


class ImageTask(Task):
    """A fit to images.

    Args:
        images: Bytes, (N, c, h, w); an array in memory, or a memory-mapped one.
        labels: Classes, (N,), or None.
        classes: Number of classes.
        settings: What the user chose.
        held_out: Images and labels that only the reports look at, or None.
        autoencoder: One that is trained already; its stage is then left out.
    """

    model: ImageModel
    rows: ImageRows

    def __init__(
        self,
        images: np.ndarray,
        labels: np.ndarray | None,
        classes: int,
        settings: ImageSettings,
        held_out: tuple[np.ndarray, np.ndarray | None] | None = None,
        autoencoder: Autoencoder | None = None,
    ) -> None:
        self.images, self.labels, self.classes = images, labels, classes
        self.settings, self.held_out, self._trained = settings, held_out, autoencoder
        self._views: list[View] | None = None
        self._codes: Tensor | None = None
        self._starts: Tensor | None = None

    def prepare(self, fabric: Any, ranks: Ranks | None) -> list[torch.optim.Optimizer]:
        """Build the model, and bring as many images as have room to the device."""
        settings, self._fabric = self.settings, fabric
        self.rows = ImageRows(self.images, self.labels, self.classes, fabric.device)
        self.model = build_image_model(self.rows.shape, self.rows.counts.cpu(), settings)
        encoder_steps = settings.encoder_steps if settings.encodes else 0
        if self._trained is not None and self.model.autoencoder is not None:
            self.model.autoencoder.load_state_dict(self._trained.state_dict())
            encoder_steps = 0
        self._stages = (encoder_steps, settings.steps, settings.refine_steps)
        self.model.to(fabric.device)
        betas = (0.9, 0.99) if settings.model == "mixture" else (0.5, 0.9)
        groups = [{"params": list(self.model.network.parameters()), "betas": betas}]
        if self.model.autoencoder is not None:
            groups.append(
                {"params": list(self.model.autoencoder.parameters()), "betas": (0.9, 0.99)}
            )
        self.generator = torch.Generator(fabric.device).manual_seed(settings.seed)
        return [torch.optim.Adam(groups, lr=1.0)]

    @property
    def apart(self) -> bool:
        """Whether the images that reports look at are others than those to train with."""
        return self.held_out is not None and self.held_out[0] is not self.images

    @property
    def total(self) -> int:
        """Steps of all stages."""
        return sum(self._stages)

    @property
    def reports_every(self) -> int:
        """A fortieth of the whole."""
        return max(1, self.total // REPORTS)

    def stage(self, step: int) -> tuple[int, float]:
        """The stage of a step (0 autoencoder, 1 cost, 2 refinement), and its share done."""
        for number, length in enumerate(self._stages):
            if step < length:
                return number, step / length
            step -= length
        return REFINE, 1.0

    @property
    def per_class(self) -> int:
        """Images of each class in a step with the cost."""
        return max(2, self.settings.batch_size // self.classes)

    def learning_rate(self, step: int) -> float:
        """One rise and fall in each stage."""
        stage, share = self.stage(step)
        return learning_rate(share, ENCODER_RATE if stage == ENCODER else self.settings.peak_rate)

    def batch(self, step: int) -> Any:
        """Images for the autoencoder; for the cost, the data in each space, (classes, n, d)."""
        stage, _ = self.stage(step)
        if stage == ENCODER:
            chosen = self.rows.any(self.settings.encoder_batch, self.generator)
            return self.rows.images(chosen)
        views = self._prepared()
        if step == self._stages[ENCODER]:
            self._begin_at_codes()
        if stage == REFINE:
            return None  # all of them
        rows = self.rows.each_class(self.per_class, self.generator)
        if self._codes is not None and self.settings.codes_only:
            return [self._codes[rows]] * len(views)
        with torch.no_grad():
            images = self.rows.images(rows.flatten())
            return [view.space(images).unflatten(0, rows.shape) for view in views]

    def loss(self, forward: Forward | None, batch: Any, step: int) -> Tensor:
        """Of reconstruction, or the cost, or the likelihood before a pass of EM."""
        stage, share = self.stage(step)
        if stage == ENCODER:
            return self._encoder_loss(batch)
        self.model.network.train()
        return self._em_pass() if stage == REFINE else self._model_loss(batch, share)

    def _encoder_loss(self, images: Tensor) -> Tensor:
        autoencoder = self.model.autoencoder
        assert autoencoder is not None
        autoencoder.train()
        codes = autoencoder.encode(images)
        noise = torch.randn(codes.shape, generator=self.generator, device=codes.device)
        logits = autoencoder.logits(codes + self.settings.code_noise * noise)
        return functional.binary_cross_entropy_with_logits(logits.float(), images)

    def _model_loss(self, data: list[Tensor], share: float) -> Tensor:
        chunk = self.settings.chunk
        if chunk is None or self.model.is_mixture:
            return self._cost(data, self.model.draw(self.per_class, self.generator), share)
        labels = self.model.each_class(self.per_class)
        inputs = self.model.inputs(labels, self.generator)

        def cost(points: Tensor) -> Tensor:
            grouped = points.unflatten(0, (self.classes, self.per_class))
            return self._cost(data, Draw(grouped, None), share)

        return cached_backward(self.model.network, inputs, cost, chunk, self._fabric.backward)

    def _em_pass(self) -> Tensor:
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

    def _cost(self, data: list[Tensor], draw: Draw, share: float) -> Tensor:  # ()
        """The mean over spaces of the cost there."""
        points, weights = draw
        views = self._prepared()
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
        if self.model.is_mixture:
            means = self.model.network.means
            assert isinstance(means, Tensor)
            self._starts = self.rows.each_class(means.shape[-2], generator)
        return self._views

    @torch.no_grad()
    def _begin_at_codes(self) -> None:
        """Components begin at codes of their class."""
        if self._starts is None:
            return
        assert self._codes is not None
        means, starts = self.model.network.means, self._codes[self._starts]
        assert isinstance(means, Tensor)
        if isinstance(self.model.network, ProductMixture):
            starts = starts.unflatten(-1, (means.shape[-3], -1)).movedim(-2, -3)
        means.copy_(starts)

    def report(self, step: int, loss: Tensor) -> Row:
        """Step, loss, variance of the kernel (0 without one) and metric (none for codes alone)."""
        stage, share = self.stage(step - 1)
        variance = 0.0
        if stage == COST and self._views is not None:
            variance = self._views[0].variances.at(share)[0]
        return {"step": float(step), "loss": float(loss), "variance": variance,
                "metric": math.nan if stage == ENCODER else self.metric()}  # fmt: skip

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

    def failure(self, step: int) -> str:
        """Costs of narrow kernels and fast steps are what fails."""
        return (
            f"The loss is not finite at step {step} (cost {self.settings.cost}, learning rate "
            f"peak {self.settings.peak_rate:g}). Try a larger variance, or a learning rate three "
            "times lower."
        )

    def restore(self, path: Path, tensors: dict[str, Tensor], content: dict[str, Any]) -> None:
        """Forget what was found with the autoencoder as it was."""
        self._views = self._codes = self._starts = None
        if self.model.autoencoder is not None:
            self.model.autoencoder.requires_grad_(True)
