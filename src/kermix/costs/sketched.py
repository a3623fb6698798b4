"""The four costs by moments, where a side is a sketch or is to be sketched."""

import math

import torch
from torch import Tensor

from kermix.checks import check_samples, finite_in, normalized_weights
from kermix.costs import formulas
from kermix.costs import moments as primal
from kermix.costs.moments import Interval, MomentStatistics
from kermix.costs.pairs import SamplePair
from kermix.errors import DeviceError, OptionError, ShapeError
from kermix.info import Info
from kermix.linalg.cholesky import checked_ridge, default_ridge
from kermix.settings import MatrixForm
from kermix.sketches.features import FeatureMap, nystrom_features
from kermix.sketches.sketch import (
    Moments,
    Sketch,
    check_batch_weights,
    check_comparable,
    sample_moments,
)

__all__ = ["SketchPair"]

CANDIDATES = 20_000


class SketchPair:
    """Two sets of samples, known by their moments.

    Args:
        x: Data, as a sketch or as samples.
        y: Centres, as a sketch or as samples; at least one side is a sketch.
        v: Must be None: the sketch has its kernel.
        weights_x: Weights of the data, if these are samples.
        weights_y: Weights of the centres, if these are samples.
    """

    def __init__(
        self,
        x: Tensor | Sketch,
        y: Tensor | Sketch,
        v: object = None,
        weights_x: Tensor | None = None,
        weights_y: Tensor | None = None,
    ) -> None:
        if v is not None:
            raise OptionError(
                "v is given for a sketch, which has the kernel it was made with; omit v."
            )
        if isinstance(x, Sketch) and isinstance(y, Sketch):
            check_comparable(x, y)
        known = x if isinstance(x, Sketch) else y
        assert isinstance(known, Sketch)
        self.feature_map: FeatureMap = known.feature_map
        samples = [side.dtype for side in (x, y) if isinstance(side, Tensor)]
        self.dtype = samples[0] if samples else self.feature_map.parameters.dtype
        self.weighted = weights_x is not None or weights_y is not None
        self.weighted |= any(side.weighted for side in (x, y) if isinstance(side, Sketch))
        self.x = self._side("x", x, weights_x)
        self.y = self._side("y", y, weights_y)

    @classmethod
    def of_samples(cls, pair: SamplePair, tolerance: float | None, rank: int) -> "SketchPair":
        """Sketch both sets with Nystrom features chosen for them.

        Args:
            pair: The samples.
            tolerance: Wanted mean residual, if no rank is given.
            rank: Number of features at most.
        """
        x, y = pair.data, pair.centres
        if x.points.ndim != 2 or y.points.ndim != 2:
            raise ShapeError(
                "method='sketch' takes one set of points per argument, not batches of shape "
                f"{tuple(x.points.shape[:-2])} and {tuple(y.points.shape[:-2])}."
            )
        # Half of the candidates from each set, so that neither is forgotten.
        pooled = torch.cat([_subsample(side.points, CANDIDATES // 2) for side in (x, y)])
        feature_map = nystrom_features(
            pooled,
            pair.kernel,
            rank=rank,
            tolerance=tolerance,
            candidates=len(pooled),
        )
        moments_x = sample_moments(feature_map, x.points, x.weights)
        moments_y = sample_moments(feature_map, y.points, y.weights)
        return cls.of_moments(feature_map, moments_x, moments_y, pair.dtype, pair.weighted)

    @classmethod
    def of_moments(
        cls, feature_map: FeatureMap, x: Moments, y: Moments, dtype: torch.dtype, weighted: bool
    ) -> "SketchPair":
        """Two sets whose moments are known already.

        Args:
            feature_map: The features that these are moments of.
            x: Moments of the data.
            y: Moments of the centres.
            dtype: The dtype of the costs.
            weighted: Whether any weights were given.
        """
        pair = cls.__new__(cls)
        pair.feature_map, pair.x, pair.y = feature_map, x, y
        pair.dtype, pair.weighted = dtype, weighted
        return pair

    def scalar_cost(self, normalized: bool, log: bool) -> tuple[Tensor, Info]:
        """The scalar cost and its bound."""
        log_cost = formulas.log_scalar_cost(self._statistics(), normalized)
        with torch.no_grad():
            interval = primal.scalar_interval(self.x, self.y)
            interval = primal.relative_interval(interval, self.x) if normalized else interval
        return self._answer(log_cost, log, interval)

    def vector_cost(self, ridge: float | None, normalized: bool, log: bool) -> tuple[Tensor, Info]:
        """The vector-matrix cost and its bound, which is for the ridge that was used."""
        log_cost, info = formulas.log_vector_cost(self._statistics(ridge), normalized)
        assert info.ridge is not None
        with torch.no_grad():
            interval = primal.vector_interval(self.x, self.y, info.ridge)
            interval = primal.relative_interval(interval, self.x) if normalized else interval
        return self._answer(log_cost, log, interval, ridge=info.ridge)

    def matrix_cost(
        self, form: MatrixForm, ridge: float | None, normalized: bool, log: bool
    ) -> tuple[Tensor, Info]:
        """The matrix-matrix cost in one of its forms; no error bound is known for it."""
        log_cost, info = formulas.log_matrix_cost(self._statistics(ridge), form, normalized)
        value, found = self._answer(log_cost, log, None, ridge=info.ridge)
        return -value if form == "logdet" and not log else value, found

    def svd_cost(self, normalized: bool, log: bool) -> tuple[Tensor, Info]:
        """The SVD cost and its bound."""
        log_cost, _ = formulas.log_svd_cost(self._statistics(), normalized)
        measures = normalized or self.weighted
        factor = 1.0 if measures else math.sqrt(self.x.size * self.y.size)
        with torch.no_grad():
            interval = primal.svd_interval(self.x, self.y, log_cost.exp() / factor)
        return self._answer(log_cost, log, interval, factor)

    def svd_error(self) -> float:
        """The bound of the SVD cost's relative error."""
        with torch.no_grad():
            value, info = self.svd_cost(normalized=True, log=False)
            return math.inf if info.error_bound is None else float(info.error_bound / value)

    def _side(self, name: str, side: Tensor | Sketch, weights: Tensor | None) -> Moments:
        if isinstance(side, Sketch):
            if weights is not None:
                raise OptionError(
                    f"weights_{name} is given for a sketch, which has its own weights."
                )
            return side.moments
        check_samples(name, side)
        if side.ndim != 2 or side.shape[1] != self.feature_map.dimension:
            raise ShapeError(
                f"{name} has shape {tuple(side.shape)}; with this sketch it must have shape (N, "
                f"{self.feature_map.dimension})."
            )
        if side.device != self.feature_map.parameters.device:
            raise DeviceError(
                f"{name} is on {side.device}, the sketch on {self.feature_map.parameters.device}."
            )
        if weights is not None:
            check_batch_weights(f"weights_{name}", weights, side)
            weights = normalized_weights(f"weights_{name}", weights, side)
        return sample_moments(self.feature_map, side, weights)

    def _statistics(self, ridge: float | None = None) -> MomentStatistics:
        ridge = default_ridge(torch.float64) if ridge is None else checked_ridge(ridge)
        return MomentStatistics(self.x, self.y, self.weighted, ridge)

    def _answer(
        self,
        log_cost: Tensor,
        log: bool,
        interval: Interval | None,
        factor: float = 1.0,
        ridge: Tensor | None = None,
    ) -> tuple[Tensor, Info]:
        """What a cost returns; `factor` is what the interval is to be multiplied by."""
        value = finite_in(log_cost if log else log_cost.exp(), self.dtype)
        bound = None
        if interval is not None:
            with torch.no_grad():
                # As far as the value is from the ends, rounded to the dtype that is returned.
                shown = log_cost.exp() if log else value.to(log_cost)
                above, below = factor * interval.highest - shown, shown - factor * interval.lowest
                bound = torch.maximum(above, below).clamp(min=0)
        return value, Info("sketch", ridge, bound, self.feature_map.rank)


def _subsample(points: Tensor, size: int) -> Tensor:
    points = points.detach().double()
    if len(points) <= size:
        return points
    generator = torch.Generator().manual_seed(0)
    return points[torch.randperm(len(points), generator=generator)[:size].to(points.device)]
