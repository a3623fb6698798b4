"""Conditional mixtures: a context in, the distribution of a target out.

Two stages, as for a fit without context. First a cost acts on the joint kernel
$k_c(c, c') k_x(x, x')$, which for Gaussian kernels is one Gaussian kernel on contexts and
targets side by side. Then the likelihood, or the closed form for each context, sharpens the
variances.
"""

import math
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kermix.checks import check_samples
from kermix.costs.losses import SVDLoss
from kermix.distributed.processes import Ranks
from kermix.errors import RunError, ShapeError
from kermix.kernels.gaussian import GaussianKernel
from kermix.mixtures.mixture import GaussianMixture
from kermix.networks.mixture_networks import (
    ConditionalMixtureNetwork,
    stratified_draw,
)
from kermix.networks.scaled import Scaler
from kermix.settings import check_name
from kermix.training.checkpoints import check_declared, load_checkpoint, load_model, rebuilding
from kermix.training.fit_settings import CONTEXTS, FitSettings
from kermix.training.loop import Forward, Task, Trainer, adam, gradients_on, learning_rate
from kermix.training.objective import VarianceSchedule

__all__ = [
    "ConditionalModel",
    "ConditionalTask",
    "fit_conditional",
    "load_conditional",
    "spherical_loss",
]

KIND = "conditional mixture"


def spherical_loss(mixture: GaussianMixture, targets: Tensor) -> Tensor:  # (B, d) -> ()
    r"""Minus the logarithm of the mean of $q(x_n | c_n) / \|q(\cdot | c_n)\|$.

    The Cauchy-Schwarz cost of each context: the numerator's mean is its inner product with the
    density of the targets there, the norm is in closed form. Least at the conditional density.
    """
    ratio = mixture.log_prob(targets) - 0.5 * mixture.log_norm2()
    return math.log(len(targets)) - ratio.logsumexp(0)


class ConditionalModel(nn.Module):
    """A conditional mixture with the scales of its data.

    Args:
        network: From scaled contexts to mixtures of scaled targets.
        contexts: Scale of the contexts.
        targets: Scale of the targets.
    """

    def __init__(
        self, network: ConditionalMixtureNetwork, contexts: Scaler, targets: Scaler
    ) -> None:
        super().__init__()
        self.network, self.contexts, self.targets = network, contexts, targets

    def forward(self, context: Tensor) -> GaussianMixture:  # (n, c)
        """The distribution of the target for each context, in the data's units."""
        return self.targets.restored_mixture(self.network(self.contexts.scaled(context)))


class _Step(nn.Module):
    """The loss of one step."""

    def __init__(self, network: ConditionalMixtureNetwork, settings: FitSettings) -> None:
        super().__init__()
        self.network, self.settings = network, settings
        self.variances = VarianceSchedule(0.5, 3e-3)

    def forward(
        self,
        c: Tensor,
        x: Tensor,
        step: int,
        generator: torch.Generator,
        numbers: Tensor | None = None,  # (L,)
    ) -> Tensor:
        s = self.settings
        refining = step >= s.steps
        if s.cost == "likelihood" or (refining and s.refine_with == "likelihood"):
            return -self.network(c).log_prob(x).mean()
        if refining:
            return spherical_loss(self.network(c), x)
        here = c[: s.contexts]
        points, weights = stratified_draw(self.network(here), 1, generator)
        beside = here.unsqueeze(1).expand(-1, points.shape[1], -1)
        model = torch.cat([s.context_scale * beside, points], -1).flatten(0, 1)
        data = torch.cat([s.context_scale * c, x], -1)[s.contexts :]
        variances = self.variances.at(step / s.steps)
        loss = SVDLoss(variances if numbers is None else GaussianKernel(numbers))
        return loss(data, model, weights_y=weights.flatten())


class ConditionalTask(Task):
    """A conditional fit, as `fit_conditional` makes it."""

    model: ConditionalModel
    module: _Step

    def __init__(
        self,
        context: Tensor,  # (n, c)
        target: Tensor,  # (n, d)
        settings: FitSettings,
    ) -> None:
        self.settings = settings
        self.model = _untrained(settings, Scaler(context), Scaler(target))
        self._context, self._target = context, target
        self.first_step = 0 if settings.cost == "svd" else settings.steps

    def prepare(self, fabric: Any, ranks: Ranks | None) -> list[torch.optim.Optimizer]:
        """Scale the data."""
        model, device = self.model.to(fabric.device), fabric.device
        self.module = _Step(model.network, self.settings)
        self._context = model.contexts.scaled(self._context.to(device))
        self._target = model.targets.scaled(self._target.to(device))
        self.generator = torch.Generator(device).manual_seed(self.settings.seed)
        return [adam(model.network.parameters(), device, betas=(0.9, 0.99))]

    @property
    def total(self) -> int:
        """Steps of both stages."""
        return self.settings.steps + (self.settings.refine_steps or 0)

    @property
    def reports_every(self) -> int:
        """A twentieth of the whole."""
        return -(-self.total // 20)

    def learning_rate(self, step: int) -> float:
        """One rise and fall in each stage."""
        s = self.settings
        if step < s.steps:
            return learning_rate(step / s.steps, s.peak_rate, last=0.1)
        refined = (step - s.steps) / (s.refine_steps or 1)
        return learning_rate(refined, s.peak_rate, last=0.01)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Contexts and their targets at random."""
        s = self.settings
        size = s.contexts + s.batch_size if step < s.steps else s.refine_batch_size
        device = self._context.device
        rows = torch.randint(len(self._context), (size,), generator=self.generator, device=device)
        return self._context[rows], self._target[rows]

    def loss(self, forward: Forward | None, batch: tuple[Tensor, Tensor], step: int) -> Tensor:
        """The SVD cost on the joint kernel, or what the second stage optimizes."""
        assert forward is not None
        loss: Tensor = forward(*batch, step, self.generator, self.step_numbers)
        return loss

    def kind(self, step: int) -> Hashable | None:
        """The stage, unless an SVD is what the cost is found by."""
        s = self.settings
        if step >= s.steps:
            return "refining"
        return "cost" if s.batch_size > 1 and s.contexts * (s.components or 1) > 1 else None

    def numbers(self, step: int) -> list[float]:
        """The variances of the kernel."""
        return self.module.variances.at(min(1.0, step / max(1, self.settings.steps)))

    def failure(self, step: int) -> str:
        """Fast steps are what fails."""
        s = self.settings
        return (
            f"The loss of the conditional fit is not finite at step {step} of {s.steps} + "
            f"{s.refine_steps}; try a lower learning_rate than {s.peak_rate:g}."
        )

    def content(self) -> dict[str, Any]:
        """Numbers from which the model is made again."""
        sizes = [s.location.shape[-1] for s in (self.model.contexts, self.model.targets)]
        return {"kind": KIND, "sizes": sizes, "settings": self.settings.as_json()}

    def restore(self, path: Path, tensors: dict[str, Tensor], content: dict[str, Any]) -> None:
        """Refuse the checkpoint of another fit."""
        scalers = {"contexts": self.model.contexts, "targets": self.model.targets}
        same_data = all(
            scaler.scale.cpu().equal(tensors.get(f"model.{name}.scale", torch.empty(0)))
            for name, scaler in scalers.items()
        )
        if content.get("settings") != self.settings.as_json() or not same_data:
            raise RunError(
                f"{path} is the checkpoint of a fit with other settings or data; give another "
                "file, or remove it to start again."
            )


@gradients_on()
def fit_conditional(
    context: Tensor,  # (n, c)
    target: Tensor,  # (n, d)
    *,
    device: str = "auto",
    checkpoint: Path | None = None,
    **settings: Any,
) -> ConditionalModel:
    """Learn the distribution of a target given a context.

    Args:
        context: What is known, one row for each target.
        target: What is to be predicted.
        device: `"auto"`, `"cpu"`, `"cuda"`, ...
        checkpoint: File to write during training and to continue from if it exists: an interrupted
            fit ends with the same weights as an uninterrupted one. `load_conditional` reads the
            model from it.
        settings: How to train: settings of `kermix.training.fit_settings.FitSettings` by name,
            such as `cost` (`"svd"`, on the joint kernel and then refined, or `"likelihood"` alone,
            the usual way to train a mixture density network), `components`, `steps` and
            `refine_steps`.

    Example:
        >>> c = torch.linspace(0, 1, 200)[:, None]
        >>> model = fit_conditional(c, 2 * c, components=2, steps=5, refine_steps=5, device="cpu")
        >>> model(c[:3]).sample().shape
        torch.Size([3, 1])
    """
    for name in settings:
        check_name(name, FitSettings.part(CONTEXTS).names)
    check_samples("context", context)
    check_samples("target", target)
    if len(context) != len(target):
        raise ShapeError(
            f"context has {len(context)} rows but target has {len(target)}; they must match."
        )
    chosen = FitSettings(**{**settings, "model": "conditional"})
    task = ConditionalTask(context, target, chosen)
    if checkpoint is None:
        Trainer(task, device).run()
        return task.model
    trainer = Trainer(task, device, last=checkpoint.name)
    if checkpoint.exists():
        trainer.load(checkpoint)
    trainer.run(folder=checkpoint.parent)
    return task.model


def load_conditional(path: Path) -> ConditionalModel:
    """The model of a checkpoint that `fit_conditional` wrote."""
    tensors, content = load_checkpoint(path)
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise RunError(f"{path}: not the checkpoint of a conditional fit.")
    with rebuilding(path, tensors):
        settings = FitSettings.from_json(content["settings"])
        check_declared(settings, tensors)
        scalers = [Scaler(torch.zeros(2, size)) for size in content["sizes"]]
        model = _untrained(settings, *scalers)
        load_model(model, tensors)
    return model.eval()


def _untrained(settings: FitSettings, contexts: Scaler, targets: Scaler) -> ConditionalModel:
    network = ConditionalMixtureNetwork(
        contexts.location.shape[-1],
        targets.location.shape[-1],
        settings.components or 1,
        settings.covariance_type,
        settings.width,
        settings.depth,
        generator=torch.Generator().manual_seed(settings.seed),
    )
    return ConditionalModel(network, contexts, targets)
