"""The training of a model of images: an autoencoder, where there is one, a cost, then EM.

The kernel of a labelled fit is $k_c(c, c') k_x(x, x')$, where $k_c$ is one for equal
classes and zero for others. Its Gram matrices are block diagonal, so the cost is that of each
class, all classes side by side as one batch.

A cost couples all points of a batch, but the network that makes them can be taken in parts: first
all points are made without a graph and the cost gives its gradient with respect to each of them;
then the network runs again in chunks, each of which sends its part of that gradient back. Memory
is that of the cost and of one chunk, however large the batch.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from kermix.costs.baselines import energy_distance
from kermix.distributed.processes import Ranks
from kermix.errors import OptionError, SampleError, ShapeError
from kermix.images.image_generator import ImageModel, PixelGenerator, code_network
from kermix.images.spaces import Space, make_space
from kermix.networks.generators import make_prior
from kermix.networks.image_networks import Autoencoder
from kermix.networks.mixture_networks import MixtureTable, ProductMixture, WeightedPoints
from kermix.networks.scaled import evaluating
from kermix.training.fit_settings import CODED, FitSettings, SampleCost
from kermix.training.loop import Forward, Row, Task, learning_rate
from kermix.training.mixture_em import em_pass, product_em_pass
from kermix.training.objective import VarianceSchedule, automatic_variance, sample_loss

__all__ = ["ImageRows", "ImageTask", "View", "build_image_model", "cached_backward", "encode_all"]


def build_image_model(
    shape: tuple[int, int, int], frequencies: Tensor, settings: FitSettings
) -> ImageModel:
    """The untrained model."""
    generator = torch.Generator().manual_seed(settings.seed)
    autoencoder = None
    if settings.encodes:
        autoencoder = Autoencoder(
            shape, settings.code, settings.width, settings.by_channel, generator=generator
        )
    classes = len(frequencies)
    prior = make_prior(settings.prior, settings.noise, settings.states)
    network: nn.Module
    each = max(1, (settings.components or 1) // classes)
    if settings.multiplies:
        assert autoencoder is not None
        network = ProductMixture(
            autoencoder.parts, settings.code // autoencoder.parts, each, settings.groups,
            (classes,), generator=generator,
        )  # fmt: skip
    elif settings.model == "code-mixture":
        network = MixtureTable(
            settings.code, each, settings.covariance_type, (classes,), generator=generator
        )
    elif settings.model == "codes":
        network = code_network(settings.code, classes, prior, settings.hidden, generator)
    else:
        inputs = prior.dimension + (classes if classes > 1 else 0)
        network = PixelGenerator(inputs, shape, settings.width, generator=generator)
    return ImageModel(
        network,
        shape,
        frequencies.float(),
        None if settings.model == "code-mixture" else prior,
        autoencoder,
        encodes_only=settings.model == "conv",
    )


class ImageRows:
    """Images and classes, from which batches of each class are drawn.

    Args:
        images: Bytes, (N, c, h, w).
        labels: (N,), or None.
        classes: Number of classes; 1 without labels.
        device: Where batches go.
        on_device: Bytes; more images than this stay in the host's memory.
    """

    def __init__(
        self,
        images: np.ndarray,
        labels: np.ndarray | None,
        classes: int,
        device: torch.device,
        on_device: int = 8 * 2**30,
    ) -> None:
        self.labels = torch.zeros(len(images), dtype=torch.long)
        if labels is not None and classes > 1:
            if len(labels) != len(images):
                raise ShapeError(
                    f"{len(labels)} labels for {len(images)} images; the numbers must match."
                )
            self.labels = torch.from_numpy(np.array(labels)).long()
        self.classes, self.device = classes, device
        counts = torch.bincount(self.labels, minlength=classes)
        if bool((counts == 0).any()):
            empty = (counts == 0).nonzero().flatten().tolist()
            raise SampleError(f"There are no images of the classes {empty}: leave them out.")
        self._order = self.labels.argsort(stable=True).to(device)
        self.counts = counts.to(device)
        self._first = (counts.cumsum(0) - counts).to(device)
        self._host, self._there = images, None
        if images.nbytes <= on_device:  # copied, as a memory-mapped file may be read-only
            self._there = torch.from_numpy(np.array(images)).to(device)
        self.shape = (images.shape[1], images.shape[2], images.shape[3])

    def __len__(self) -> int:
        return len(self._host)

    def images(self, rows: Tensor) -> Tensor:  # (n,) -> (n, c, h, w)
        """Some images, with values in [0, 1], on the device."""
        if self._there is not None:
            return self._there[rows].float() / 255
        some = np.ascontiguousarray(self._host[rows.cpu().numpy()])
        return torch.from_numpy(some).to(self.device).float() / 255

    def each_class(self, per_class: int, generator: torch.Generator) -> Tensor:  # (classes, n)
        """Rows of so many images of each class, drawn with replacement."""
        shape = (self.classes, per_class)
        place = torch.rand(shape, generator=generator, device=self.device)
        inside = (place * self.counts[:, None]).long().clamp(max=self.counts[:, None] - 1)
        return self._order[self._first[:, None] + inside]

    def some(self, label: int, n: int, generator: torch.Generator) -> Tensor:  # (n,)
        """Different rows of a class, as many as there are up to `n`."""
        first, count = int(self._first[label]), int(self.counts[label])
        order = torch.randperm(count, generator=generator, device=self.device)
        return self._order[first + order[:n]]

    def any(self, n: int, generator: torch.Generator) -> Tensor:  # (n,)
        """Rows drawn at random from all."""
        return torch.randint(len(self), (n,), generator=generator, device=self.device)


@torch.no_grad()
def encode_all(autoencoder: Autoencoder, rows: ImageRows, chunk: int = 4096) -> Tensor:  # (N, d)
    """Codes of all images."""
    every = torch.arange(len(rows), device=rows.device)
    with evaluating(autoencoder):
        parts = [autoencoder.encode(rows.images(part)) for part in every.split(chunk)]
    return torch.cat(parts)


class View(nn.Module):
    """A space together with the scale of the data in it and the schedule of its variance.

    Args:
        space: From images to vectors.
        classes: Of each class some rows (n, d) of the data in this space.
        settings: What the user chose.
        parts: Pieces of equal length that a vector falls into, each compared by itself.
    """

    def __init__(
        self, space: Space, classes: list[Tensor], settings: FitSettings, parts: int = 1
    ) -> None:
        super().__init__()
        self.space, self.parts = space, parts
        self.debias, self.form = settings.debias, settings.form
        centred = torch.cat([own - own.mean(0) for own in classes])
        self.scale = float(centred.square().mean().sqrt().clamp(min=1e-6))
        generator = torch.Generator(centred.device).manual_seed(settings.seed)
        found = [
            automatic_variance(part / self.scale, generator)
            for own in classes
            for part in own.chunk(parts, 1)
        ]
        start, end = (math.exp(sum(math.log(f[i]) for f in found) / len(found)) for i in (0, 1))
        end = settings.variance or end
        start = settings.start_variance or max(start, end)
        if settings.kernel_variance is not None:
            start = end = settings.kernel_variance / self.scale**2
        self.variances = VarianceSchedule(start, end, settings.variance_factors)

    def loss(
        self, cost: SampleCost, x: Tensor, y: Tensor, weights: Tensor | None, share: float
    ) -> Tensor:  # (classes, n, d) -> ()
        """The mean over classes of the loss of a cost when a share of training is done."""
        x, y = x / self.scale, y / self.scale
        if self.parts > 1:  # each part is a batch item of its own
            x, y = (z.unflatten(-1, (self.parts, -1)).movedim(-2, 1) for z in (x, y))
            weights = None if weights is None else weights.unsqueeze(1)
        variances = self.variances.at(share)
        return sample_loss(cost, x, y, variances, weights, self.debias, self.form).mean()


def cached_backward(
    network: nn.Module,
    inputs: Tensor,  # (n, k)
    loss: Callable[[Tensor], Tensor],  # (n, d) -> ()
    images_at_once: int,
    backward: Callable[[Tensor, Tensor], None] = torch.autograd.backward,
) -> Tensor:  # ()
    """Add the gradient of `loss(network(inputs))` to the network's parameters.

    The network must give the same outputs in both passes: its randomness is part of the inputs.
    A normalization over the batch is one over `images_at_once` rows here, and its running means
    are updated once.

    Args:
        network: From inputs to points, row by row.
        inputs: Such as noise.
        loss: The cost of all points together; called once.
        images_at_once: Rows for each run of the network.
        backward: Called with points and the gradient with respect to them; a Fabric's, for
            instance.

    Returns:
        The value of the loss, without a graph.

    Example:
        >>> network = torch.nn.Linear(2, 1)
        >>> cached_backward(network, torch.ones(5, 2), lambda y: y.square().mean(), 2).shape
        torch.Size([])
    """
    if images_at_once < 1:
        raise OptionError(f"images_at_once={images_at_once}: must be at least 1.")
    parts = inputs.split(images_at_once)
    with torch.no_grad(), _running_means_kept(network):
        points = torch.cat([network(part) for part in parts])
    points.requires_grad_()
    value = loss(points)
    (gradient,) = torch.autograd.grad(value, points)
    for part, own in zip(parts, gradient.split(images_at_once), strict=True):
        backward(network(part), own)
    return value.detach()


@contextmanager
def _running_means_kept(network: nn.Module) -> Iterator[None]:
    norms = [m for m in network.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    tracked = [m for m in norms if m.training and m.track_running_stats]
    for norm in tracked:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in tracked:
            norm.track_running_stats = True


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
        settings: FitSettings,
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
        self._stages = (encoder_steps, settings.steps, settings.refine_steps or 0)
        self.model.to(fabric.device)
        betas = (0.9, 0.99) if settings.model == "code-mixture" else (0.5, 0.9)
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
        return learning_rate(share, 2e-3 if stage == ENCODER else self.settings.peak_rate)

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
        images_at_once = self.settings.images_at_once
        if images_at_once is None or self.model.is_mixture:
            return self._cost(data, self.model.draw(self.per_class, self.generator), share)
        labels = self.model.each_class(self.per_class)
        inputs = self.model.inputs(labels, self.generator)

        def cost(points: Tensor) -> Tensor:
            grouped = points.unflatten(0, (self.classes, self.per_class))
            return self._cost(data, WeightedPoints(grouped, None), share)

        return cached_backward(
            self.model.network, inputs, cost, images_at_once, self._fabric.backward
        )

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

    def _cost(self, data: list[Tensor], draw: WeightedPoints, share: float) -> Tensor:  # ()
        """The mean over spaces of the cost there."""
        points, weights = draw
        views = self._prepared()
        images: Tensor | None = None
        losses, cost = [], cast(SampleCost, self.settings.cost)
        for name, view, x in zip(self.settings.spaces, views, data, strict=True):
            if name in CODED and self.model.decodes:
                y = points
            else:
                if images is None:
                    images = self.model.to_images(points.flatten(0, 1))
                y = view.space(images).unflatten(0, points.shape[:2])
            losses.append(view.loss(cost, x, y.float(), weights, share))
        return torch.stack(losses).mean()

    def _prepared(self) -> list[View]:
        """Spaces and variances, found once the autoencoder is trained; no state of its own."""
        if self._views is None:
            self._views = self._found_views()
        return self._views

    def _found_views(self, looked_at: int = 512) -> list[View]:
        """Spaces and variances, by so many images of each class; codes, and where to begin."""
        generator = torch.Generator(self.rows.device).manual_seed(self.settings.seed + 1)
        autoencoder = self.model.autoencoder
        if autoencoder is not None:
            autoencoder.eval().requires_grad_(False)
            if self.model.decodes:
                self._codes = encode_all(autoencoder, self.rows)
        rows = [self.rows.some(c, looked_at, generator) for c in range(self.classes)]
        images = self.rows.images(torch.cat(rows))
        weights = torch.Generator().manual_seed(self.settings.seed + 2)
        views = []
        for name in self.settings.spaces:
            some = images[torch.randperm(len(images), generator=generator, device=images.device)]
            space = make_space(name, some[:looked_at], autoencoder, weights)
            with torch.no_grad():
                found = space(images).float().split([len(own) for own in rows])
            parts = autoencoder.parts if autoencoder and name == "channels" else 1
            views.append(View(space, list(found), self.settings, parts))
        if self.model.is_mixture:
            means = self.model.network.means
            assert isinstance(means, Tensor)
            self._starts = self.rows.each_class(means.shape[-2], generator)
        return views

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
    def metric(self, most: int = 2000) -> float:
        """Energy distance of held-out images in the first space; the mean over classes.

        Of so many images, at most.
        """
        if self.held_out is None:
            return math.nan
        views = self._prepared()
        images, labels = (None if z is None else z[:most] for z in self.held_out)
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
