"""Metrics of samples: functions of all of them, and modules that are fed batch by batch.

`vendi`, `rke`, `ken` and `novel_modes` are functions. `Vendi`, `RKE`, `KEN`, `Fidelity` and
`FrechetDistance` have `update`, `compute` and `reset`: each is a module that adds up sums of
features, so that memory does not grow with the number of samples, and sums of all processes are
added when the value is computed. `log_samples` makes Lightning log them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from kermix.checks import check_count
from kermix.costs.functions import svd_cost
from kermix.errors import MissingExtraError, OptionError, RankError, SampleError, SketchError
from kermix.evaluation.diversity import ken, novel_modes, rke, vendi
from kermix.evaluation.sample_distances import frechet_of_moments
from kermix.evaluation.spectra import (
    RESIDUAL,
    StableRule,
    checked_points,
    chosen_kernel,
    feature_map_of,
    stable_variance,
)
from kermix.kernels.gaussian import Kernel
from kermix.kernels.others import AnyKernel
from kermix.sketches.accumulation import FeatureSums
from kermix.sketches.features import FeatureMap, fingerprint
from kermix.sketches.sketch import Sketch

__all__ = [
    "KEN",
    "RKE",
    "Fidelity",
    "FrechetDistance",
    "SampleMetric",
    "Vendi",
    "ken",
    "log_samples",
    "novel_modes",
    "rke",
    "stable_variance",
    "vendi",
]


class SampleMetric(nn.Module, ABC):
    """A metric of samples that come in batches.

    Args:
        sync: Whether `compute` adds up the sums of all processes, if there are several; all of
            them must then call it.
    """

    def __init__(self, sync: bool = True) -> None:
        super().__init__()
        self.sync = sync

    @abstractmethod
    def update(self, samples: Tensor) -> None:
        """Add a batch, of shape (N, d)."""

    @abstractmethod
    def compute(self) -> Tensor:
        """The value for all batches so far, of all processes."""

    @abstractmethod
    def reset(self) -> None:
        """Forget all batches."""

    def forward(self, samples: Tensor) -> Tensor:
        """Add a batch, and return the value for all batches so far."""
        self.update(samples)
        return self.compute()

    @property
    def _over_processes(self) -> bool:
        return self.sync and dist.is_available() and dist.is_initialized()


class _Sketched(SampleMetric):
    """A metric on the moments of features of one kernel.

    Args:
        real: Real samples, which landmarks are chosen from, or a feature map.
        v: As in `kermix.metrics.vendi`; not beside a feature map.
        kernel: As in `kermix.metrics.vendi`.
        rank: Maximum number of features.
        seed: Of the landmarks: the same on all processes.
        sync: As in `SampleMetric`.
    """

    def __init__(
        self,
        real: Tensor | FeatureMap,
        v: Kernel | StableRule | None = None,
        *,
        kernel: AnyKernel | None = None,
        rank: int = 256,
        seed: int = 0,
        sync: bool = True,
    ) -> None:
        super().__init__(sync)
        check_count("rank", rank)
        if isinstance(real, Tensor):
            points = checked_points("real", real)
            chosen = chosen_kernel("stable" if v is None and kernel is None else v, kernel, points)
            self.feature_map = feature_map_of([points], chosen, rank, 0.1 * RESIDUAL, seed)
        else:
            if v is not None or kernel is not None:
                raise OptionError(
                    "v or kernel is given for a feature map, which has its own kernel."
                )
            self.feature_map = real
        self.sketch = Sketch(self.feature_map)

    def update(self, samples: Tensor) -> None:
        """Add a batch, of shape (N, d)."""
        self.sketch.update(checked_points("samples", samples).to(self.feature_map.parameters))

    def reset(self) -> None:
        """Forget all batches."""
        self.sketch = Sketch(self.feature_map)

    def merge(self, other: "_Sketched") -> None:
        """Add all batches that another metric of the same features was fed."""
        self.sketch = self.sketch.merge(other.sketch)

    def compute(self) -> Tensor:
        """The value for all batches so far, of all processes."""
        sketch = self._summed() if self._over_processes else self.sketch
        if sketch.count == 0:
            raise SampleError(f"{type(self).__name__} has no samples yet; call update first.")
        return self._value(sketch)

    @abstractmethod
    def _value(self, sketch: Sketch) -> Tensor:
        """The value for a sketch of all samples."""

    def _summed(self) -> Sketch:
        names: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(names, fingerprint(self.feature_map))
        if len(set(names)) > 1:
            raise RankError(
                "Processes have metrics of different features: give all of them the same real "
                "samples, variance and seed, or one feature map."
            )
        sums = self.sketch.sums
        flat = torch.cat([
            self.feature_map.parameters.new_tensor([float(self.sketch.count)]),
            *(part.reshape(-1) for part in sums),
        ])  # fmt: skip
        dist.all_reduce(flat)
        count, *rest = flat.split([1, *(part.numel() for part in sums)])
        shaped = [t.reshape(part.shape) for t, part in zip(rest, sums, strict=True)]
        return Sketch(self.feature_map).add_sums(FeatureSums(*shaped), int(count))


class Vendi(_Sketched):
    """Vendi score of the samples (`kermix.metrics.vendi`), with the certificate `error_bound`.

    Args:
        real: Real samples, which landmarks are chosen from, or a feature map.
        v: As in `kermix.metrics.vendi`; by default "stable".
        kernel: As in `kermix.metrics.vendi`.
        rank: Maximum number of features.
        seed: Of the landmarks: the same on all processes.
        sync: Whether sums of all processes are added.
        order: Of the entropy.

    Example:
        >>> metric = Vendi(torch.tensor([[0.0], [5.0], [9.0]]), 0.01)
        >>> metric.update(torch.tensor([[0.0], [0.0], [9.0], [9.0]]))
        >>> round(metric.compute().item(), 4)
        2.0
    """

    def __init__(self, *arguments: Any, order: float = 1.0, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.order = order
        self.error_bound: Tensor | None = None

    def _value(self, sketch: Sketch) -> Tensor:
        value, info = vendi(sketch, order=self.order, return_info=True)
        self.error_bound = info.error_bound
        return value


class RKE(Vendi):
    """Renyi kernel entropy of the samples (`kermix.metrics.rke`); arguments of `Vendi`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, order=2.0, **options)


class _BesideReal(_Sketched):
    """A metric of samples beside real ones, which are sketched at once."""

    def __init__(self, real: Tensor | Sketch, *arguments: Any, **options: Any) -> None:
        known = isinstance(real, Sketch)
        super().__init__(real.feature_map if known else real, *arguments, **options)  # type: ignore[union-attr, arg-type]
        if isinstance(real, Sketch):
            self.real = real
        else:
            self.real = Sketch(self.feature_map).update(real.to(self.feature_map.parameters))


class Fidelity(_BesideReal):
    """Fidelity between samples and real data: the normalized SVD cost, 1 if they are equal.

    Args:
        real: Real samples, or a sketch of them, which has the kernel.
        v: As in `Vendi`.
        kernel: As in `Vendi`.
        rank: As in `Vendi`.
        seed: As in `Vendi`.
        sync: As in `Vendi`.

    Example:
        >>> x = torch.randn(300, 2, generator=torch.Generator().manual_seed(0))
        >>> metric = Fidelity(x, 0.5)
        >>> metric.update(x[:150]), metric.update(x[150:])
        (None, None)
        >>> round(metric.compute().item(), 4)
        1.0
    """

    def _value(self, sketch: Sketch) -> Tensor:
        return svd_cost(sketch, self.real, normalized=True)


class KEN(_BesideReal):
    """Kernel entropic novelty (`kermix.metrics.ken`) of the samples, or of what they miss.

    Args:
        real: As in `Fidelity`.
        v: As in `Vendi`.
        of: "samples": what they have more often than real ones; "real": what they miss.
        eta: As in `kermix.metrics.ken`.
        kernel: As in `Vendi`.
        rank: As in `Vendi`.
        seed: As in `Vendi`.
        sync: As in `Vendi`.
    """

    def __init__(
        self,
        *arguments: Any,
        of: Literal["samples", "real"] = "samples",
        eta: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        if of not in ("samples", "real"):
            raise OptionError(f"of={of!r}: choose 'samples' or 'real'.")
        self.of, self.eta = of, eta

    def _value(self, sketch: Sketch) -> Tensor:
        sides = (sketch, self.real) if self.of == "samples" else (self.real, sketch)
        return ken(*sides, eta=self.eta)


class FrechetDistance(SampleMetric):
    """Frechet distance between embeddings of samples and real data; with Inception's, the FID.

    Args:
        real: Real embeddings, shape (N, d).
        sync: As in `SampleMetric`.

    Example:
        >>> metric = FrechetDistance(torch.tensor([[-1.0], [1.0]]))
        >>> metric.update(torch.tensor([[1.0], [5.0]]))
        >>> round(metric.compute().item(), 6)
        11.0
    """

    def __init__(self, real: Tensor, sync: bool = True) -> None:
        super().__init__(sync)
        points = checked_points("real", real).double()
        self._center = points.mean(0)
        self._real = self._added(points)
        self._sums = torch.zeros_like(self._real)

    def update(self, samples: Tensor) -> None:
        """Add a batch, of shape (N, d)."""
        points = checked_points("samples", samples).to(self._center)
        if points.shape[1] != len(self._center):
            raise SampleError(
                f"samples have dimension {points.shape[1]}, real ones {len(self._center)}."
            )
        self._sums = self._sums + self._added(points)

    def reset(self) -> None:
        """Forget all batches."""
        self._sums = torch.zeros_like(self._real)

    def merge(self, other: "FrechetDistance") -> None:
        """Add all batches of another metric with the same real samples."""
        if not torch.equal(self._center, other._center):
            raise SketchError("The other metric has other real samples.")
        self._sums = self._sums + other._sums

    def compute(self) -> Tensor:
        """The value for all batches so far, of all processes."""
        sums = self._sums.clone()
        if self._over_processes:
            dist.all_reduce(sums)
        if sums[0] < 2:
            raise SampleError("FrechetDistance needs at least two samples; call update first.")
        value = frechet_of_moments(*self._moments(self._real), *self._moments(sums))
        return torch.tensor(value, dtype=torch.float64, device=sums.device)

    def _added(self, points: Tensor) -> Tensor:
        """Number, sum and sum of products around the real mean, one after the other."""
        centered = points - self._center
        count = centered.new_tensor([float(len(points))])
        return torch.cat([count, centered.sum(0), (centered.mT @ centered).reshape(-1)])

    def _moments(self, sums: Tensor) -> tuple[Tensor, Tensor]:
        d, count = len(self._center), sums[0]
        mean = sums[1 : d + 1] / count
        second = sums[d + 1 :].reshape(d, d)
        return mean, (second - count * torch.outer(mean, mean)) / (count - 1)


def log_samples(
    metrics: Mapping[str, SampleMetric],
    samples: str | Callable[[Any], Tensor] = "sample",
    count: int = 1000,
    every: int = 1,
) -> Any:
    """A callback for Lightning's Trainer: metrics of fresh samples, logged after each validation.

    `Trainer(callbacks=[log_samples({"vendi": Vendi(real)})])` is all that a module with a method
    `sample(count)` needs.

    Args:
        metrics: The metrics, by the names under which they are logged.
        samples: The name of the module's method that draws a number of samples, or a function of
            the module that returns samples or embeddings of them.
        count: Number of samples on each process.
        every: Number of validations between logs.
    """
    try:
        from lightning.pytorch import Callback
    except ImportError:
        raise MissingExtraError("Logging needs Lightning: pip install 'kermix[fit]'.") from None
    check_count("count", count)
    check_count("every", every)
    wrong = [n for n, m in metrics.items() if not isinstance(m, SampleMetric)]
    if wrong:
        raise OptionError(f"metrics[{wrong[0]!r}] is not a metric of kermix.metrics.")

    class LogSamples(Callback):
        """Draws samples and logs metrics of them."""

        def __init__(self) -> None:
            self.seen = 0

        def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            """Draw, compute and log."""
            if trainer.sanity_checking:
                return
            self.seen += 1
            if self.seen % every:
                return
            with torch.no_grad():
                drawn = (
                    getattr(pl_module, samples)(count)
                    if isinstance(samples, str)
                    else samples(pl_module)
                )
            points = drawn.detach().reshape(len(drawn), -1)
            for name, metric in metrics.items():
                metric.reset()
                metric.update(points)
                pl_module.log(name, metric.compute().float(), rank_zero_only=False)

    return LogSamples()
