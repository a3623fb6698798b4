"""What a user can choose about a fit: one frozen object, the same in Python, JSON and shell."""

import warnings
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, TypeAlias

from kermix.checks import check_option
from kermix.errors import OptionError
from kermix.models.mixture.networks import VarianceKind
from kermix.models.mixture.priors import PriorName

__all__ = ["CostName", "FinishName", "FitSettings", "ModelName"]

CostName: TypeAlias = Literal["svd", "scalar", "vector", "matrix", "mmd", "energy", "likelihood"]
FinishName: TypeAlias = Literal["closed form", "likelihood"]
ModelName: TypeAlias = Literal["mixture", "network", "generator", "conv"]

COSTS = ("svd", "scalar", "vector", "matrix", "mmd", "energy", "likelihood")
MODELS = ("mixture", "network", "generator", "conv")
# A table of parameters takes larger steps than the weights of a network.
PEAK_RATES = {"mixture": 0.02, "network": 0.004, "generator": 0.002, "conv": 0.002}
MOST_COMPONENTS, ROWS_FOR_EACH = 128, 10


@dataclass(frozen=True)
class FitSettings:
    """Settings of a fit.

    Attributes:
        cost: What is optimised: one of the paper's four costs, or a baseline.
        model: `"mixture"`, a table of components; `"network"`, noise to components;
            `"generator"` and `"conv"`, noise to centres (the paper's).
        components: Number of components of a mixture; centres for each step of a generator. None
            takes 128, and one for each 10 rows where there are fewer than 1280.
        variances: Of a component: isotropic, or one for each coordinate.
        prior: Of the noise that goes into a network.
        steps: Training steps with the cost.
        polish: Further steps, for mixtures only, in which data are points: no kernel widens
            them, so variances come out right. None takes 500.
        finish: What these steps optimise: `"likelihood"`, or `"closed form"`, the Cauchy-Schwarz
            cost, which looks at modes more than at tails and needs more steps.
        batch: Data points for each step.
        polish_batch: Data points for each step of polishing.
        variance: Variance of the kernel at the end, in units of the scaled data; None finds it.
        start_variance: Variance at the beginning; None takes the median rule.
        spread: Factors of the variances that are used at once.
        rate: Peak of the learning rate; None chooses by model.
        average: Steps over which weights are averaged; the running mean is then the model that
            reports look at and that is kept. 0 for none.
        seed: All randomness comes from it.
    """

    cost: CostName = "svd"
    model: ModelName = "mixture"
    components: int | None = None
    variances: VarianceKind = "isotropic"
    prior: PriorName = "hybrid"
    steps: int = 800
    polish: int | None = None
    finish: FinishName = "likelihood"
    batch: int = 256
    polish_batch: int = 2048
    variance: float | None = None
    start_variance: float | None = None
    spread: tuple[float, ...] = (1.0, 10.0, 100.0)
    rate: float | None = None
    average: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        check_option("cost", self.cost, COSTS)
        check_option("model", self.model, MODELS)
        check_option("finish", self.finish, ("closed form", "likelihood"))
        check_option("variances", self.variances, ("isotropic", "diagonal"))
        check_option("prior", self.prior, ("uniform", "gaussian", "hybrid"))
        for name, least in (
            ("components", 1), ("steps", 0), ("polish", 0), ("batch", 1), ("polish_batch", 1),
            ("average", 0),
        ):  # fmt: skip
            value = getattr(self, name)
            if name in ("polish", "components") and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise OptionError(f"{name}={value!r} must be a whole number, at least {least}.")
        if self.steps == 0 and self.polish == 0:
            raise OptionError("steps and polish are both 0: there is nothing to train.")
        for name in ("variance", "start_variance", "rate"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise OptionError(f"{name}={value} must be a positive number.")
        if not self.is_mixture:
            if self.cost == "likelihood":
                raise OptionError("cost='likelihood' needs a density: use model='mixture'.")
            if self.polish:
                raise OptionError("polish needs weights and variances: use model='mixture'.")

    @property
    def peak_rate(self) -> float:
        """The learning rate that is used."""
        return PEAK_RATES[self.model] if self.rate is None else self.rate

    @property
    def is_mixture(self) -> bool:
        """Whether the model learns weights and variances."""
        return self.model in ("mixture", "network")

    def for_data(self, rows: int) -> "FitSettings":
        """The settings with what was left open decided for so many rows."""
        polish, components = self.polish, self.components
        if components is None:
            few = self.is_mixture and rows < ROWS_FOR_EACH * MOST_COMPONENTS
            components = max(1, rows // ROWS_FOR_EACH) if few else MOST_COMPONENTS
        if polish is None:
            polish = 500 if self.is_mixture and self.cost != "likelihood" else 0
        return replace(self, polish=polish, components=components)

    def quick(self) -> "FitSettings":
        """A shorter run, for a first look."""
        return replace(
            self,
            steps=min(self.steps, 400),
            components=min(self.components or MOST_COMPONENTS, 96),
            polish=min(self.polish, 250) if self.polish else self.polish,
            polish_batch=min(self.polish_batch, 1024),
        )

    def as_json(self) -> dict[str, Any]:
        """Plain numbers and text."""
        return {**asdict(self), "spread": list(self.spread)}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "FitSettings":
        """The inverse of :meth:`as_json`; names that are not known are an error."""
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(content) - known)
        if unknown:
            raise OptionError(f"Unknown settings: {', '.join(unknown)}.")
        return cls(**{**content, "spread": tuple(content.get("spread", (1.0, 10.0, 100.0)))})


def __getattr__(name: str) -> object:
    if name == "Settings":
        warnings.warn(
            "kermix.training.settings.Settings is called FitSettings now; the old name goes with "
            "the next version.",
            DeprecationWarning,
            stacklevel=2,
        )
        return FitSettings
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
