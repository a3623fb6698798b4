"""What a user can choose about a fit: one frozen object, the same in Python, JSON and shell."""

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, TypeAlias

from kermix.checks import check_option
from kermix.costs.formulas import MatrixForm
from kermix.errors import OptionError
from kermix.networks.generators import PriorName
from kermix.networks.mixture_networks import CovarianceType

__all__ = ["CostName", "FitSettings", "ModelName", "RefineName", "check_form"]

CostName: TypeAlias = Literal["svd", "scalar", "vector", "matrix", "mmd", "energy", "likelihood"]
RefineName: TypeAlias = Literal["closed form", "likelihood"]
ModelName: TypeAlias = Literal["mixture", "network", "continuous", "generator", "conv"]

COSTS = ("svd", "scalar", "vector", "matrix", "mmd", "energy", "likelihood")
MODELS = ("mixture", "network", "continuous", "generator", "conv")
# A table of parameters takes larger steps than the weights of a network.
PEAK_RATES = {
    "mixture": 0.02, "network": 0.004, "continuous": 0.002, "generator": 0.002, "conv": 0.002,
}  # fmt: skip
MOST_COMPONENTS, ROWS_FOR_EACH = 128, 10


@dataclass(frozen=True)
class FitSettings:
    """Settings of a fit.

    Attributes:
        cost: Cost to optimize: one of the paper's four costs, or a baseline.
        form: Form of the matrix-matrix cost: `"trace"` (None means this), `"data_fixed"` or
            `"logdet"`, see `kermix.matrix_cost`.
        model: `"mixture"`, a table of components; `"network"`, which maps noise to components;
            `"continuous"`, which maps noise redrawn in each step to components (the paper's
            mixture with a prior); `"generator"` and `"conv"`, which map noise to centres (the
            paper's experiments).
        components: Number of components of a mixture; centres for each step of a generator. None
            means 128, or one per 10 rows if there are fewer than 1280.
        covariance_type: Of each component: `"isotropic"` (one variance) or `"diagonal"` (one for
            each coordinate).
        prior: Prior of the noise that goes into a network.
        steps: Training steps with the cost.
        refine_steps: Refinement steps after training, for mixtures only. They use the data as
            points, without a kernel that widens them, so that the variances are correct. None
            means 500.
        refine_with: What refinement optimizes: `"likelihood"`, or `"closed form"`, the
            Cauchy-Schwarz cost, which gives modes more weight than tails and needs more steps.
        batch_size: Data points in each training step.
        refine_batch_size: Data points in each refinement step.
        variance: Final variance of the kernel, in units of the scaled data; None estimates it.
        start_variance: Initial variance; None uses the median rule.
        kernel_variance: Variance of the kernel in the (squared) units of the data, the same in all
            steps, as in the paper. All columns then share one scale. Replaces `variance` and
            `start_variance`.
        variance_factors: The kernel is an average over several variances: the scheduled variance
            times each of these factors.
        learning_rate: Peak learning rate; None depends on the model.
        average: Number of steps over which to average the weights; reports and the saved model
            then use the running mean. 0 for no averaging.
        seed: All randomness comes from it.
    """

    cost: CostName = "svd"
    form: MatrixForm | None = None
    model: ModelName = "mixture"
    components: int | None = None
    covariance_type: CovarianceType = "isotropic"
    prior: PriorName = "hybrid"
    steps: int = 800
    refine_steps: int | None = None
    refine_with: RefineName = "likelihood"
    batch_size: int = 256
    refine_batch_size: int = 2048
    variance: float | None = None
    start_variance: float | None = None
    kernel_variance: float | None = None
    variance_factors: tuple[float, ...] = (1.0, 10.0, 100.0)
    learning_rate: float | None = None
    average: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        check_option("cost", self.cost, COSTS)
        check_form(self.form, self.cost)
        check_option("model", self.model, MODELS)
        check_option("refine_with", self.refine_with, ("closed form", "likelihood"))
        check_option("covariance_type", self.covariance_type, ("isotropic", "diagonal"))
        check_option("prior", self.prior, ("uniform", "gaussian", "hybrid"))
        for name, least in (
            ("components", 1), ("steps", 0), ("refine_steps", 0), ("batch_size", 1),
            ("refine_batch_size", 1), ("average", 0),
        ):  # fmt: skip
            value = getattr(self, name)
            if name in ("refine_steps", "components") and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise OptionError(f"{name}={value!r} must be a whole number, at least {least}.")
        if self.steps == 0 and self.refine_steps == 0:
            raise OptionError("steps and refine_steps are both 0: there is nothing to train.")
        for name in ("variance", "start_variance", "kernel_variance", "learning_rate"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise OptionError(f"{name}={value} must be a positive number.")
        if self.kernel_variance is not None and (self.variance or self.start_variance):
            raise OptionError(
                f"kernel_variance={self.kernel_variance} is constant, in the units of the data; "
                "omit variance and start_variance, which define a schedule in units of the "
                "scaled data."
            )
        if not self.is_mixture:
            if self.cost == "likelihood":
                raise OptionError("cost='likelihood' needs a density: use model='mixture'.")
            if self.refine_steps:
                raise OptionError("refine_steps needs weights and variances: use model='mixture'.")

    @property
    def peak_rate(self) -> float:
        """The learning rate that is used."""
        return PEAK_RATES[self.model] if self.learning_rate is None else self.learning_rate

    @property
    def is_mixture(self) -> bool:
        """Whether the model is a fixed number of components, which refinement can sharpen."""
        return self.model in ("mixture", "network")

    def for_data(self, rows: int) -> "FitSettings":
        """The settings with defaults filled in for this many rows."""
        refine_steps, components = self.refine_steps, self.components
        if components is None:
            few = self.is_mixture and rows < ROWS_FOR_EACH * MOST_COMPONENTS
            components = max(1, rows // ROWS_FOR_EACH) if few else MOST_COMPONENTS
        if refine_steps is None:
            refine_steps = 500 if self.is_mixture and self.cost != "likelihood" else 0
        return replace(self, refine_steps=refine_steps, components=components)

    def quick(self) -> "FitSettings":
        """A shorter run, for a first look."""
        return replace(
            self,
            steps=min(self.steps, 400),
            components=min(self.components or MOST_COMPONENTS, 96),
            refine_steps=min(self.refine_steps, 250) if self.refine_steps else self.refine_steps,
            refine_batch_size=min(self.refine_batch_size, 1024),
        )

    def as_json(self) -> dict[str, Any]:
        """Plain numbers and text."""
        return {**asdict(self), "variance_factors": list(self.variance_factors)}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "FitSettings":
        """The inverse of `as_json`; unknown names are an error."""
        unknown = sorted(set(content) - {field.name for field in fields(cls)})
        if unknown:
            raise OptionError(f"Unknown settings: {', '.join(unknown)}.")
        factors = tuple(content.get("variance_factors", cls.variance_factors))
        return cls(**{**content, "variance_factors": factors})


def check_form(form: MatrixForm | None, cost: str) -> None:
    """Refuse a form that there is not, or one of another cost than the matrix-matrix cost."""
    if form is None:
        return
    check_option("form", form, ("trace", "data_fixed", "logdet"))
    if cost != "matrix":
        raise OptionError(f"form={form!r} is for cost='matrix'; the cost is {cost!r}.")
