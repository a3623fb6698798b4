"""Settings of a fit of rows: mixtures, and generators of samples."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, TypeAlias

from kermix.errors import OptionError
from kermix.settings import (
    AVERAGE,
    BATCH_SIZE,
    COVARIANCE_TYPE,
    LEARNING_RATE,
    SEED,
    STEPS,
    CovarianceType,
    MatrixForm,
    PriorName,
    Setting,
    Settings,
)

__all__ = [
    "COST",
    "FORM",
    "KERNEL_VARIANCE",
    "PRIOR",
    "REFINE_BATCH_SIZE",
    "REFINE_WITH",
    "VARIANCE_FACTORS",
    "CostName",
    "FitSettings",
    "ModelName",
    "RefineName",
    "SampleCost",
    "check_form",
]

SampleCost: TypeAlias = Literal["svd", "scalar", "vector", "matrix", "mmd", "energy", "sinkhorn"]
CostName: TypeAlias = Literal["svd", "scalar", "vector", "matrix", "mmd", "energy", "likelihood"]
RefineName: TypeAlias = Literal["closed form", "likelihood"]
ModelName: TypeAlias = Literal["mixture", "network", "continuous", "generator", "conv"]

# A table of parameters takes larger steps than the weights of a network.
PEAK_RATES = {
    "mixture": 0.02, "network": 0.004, "continuous": 0.002, "generator": 0.002, "conv": 0.002,
}  # fmt: skip
MOST_COMPONENTS, ROWS_FOR_EACH = 128, 10

COST = Setting(
    "Cost to optimize: svd, scalar, vector or matrix (the paper's four costs), or a baseline: "
    "mmd, energy, likelihood (for mixtures) or sinkhorn (for images)."
)
FORM = Setting("Form of the cost matrix: trace, data_fixed or logdet.", unset="trace")
PRIOR = Setting(
    "Noise prior of networks: uniform, gaussian, or hybrid (Gaussian and a one-hot choice among "
    "states)."
)
REFINE_WITH = Setting(
    "Objective of the refinement: likelihood, or closed form, the Cauchy-Schwarz cost, which "
    "gives modes more weight than tails and needs more steps.",
    of_training=True,
)
REFINE_BATCH_SIZE = Setting("Batch size of a refinement step.", least=1, of_training=True)
KERNEL_VARIANCE = Setting(
    "Constant kernel variance in the (squared) units of the data (pixels range from 0 to 1), as "
    "in the paper, instead of `variance` and a schedule; all columns then share one scale.",
    above=0,
)
VARIANCE_FACTORS = Setting(
    "Average the kernel over several variances: the kernel variance multiplied by each of these "
    "factors.",
    above=0,
)


@dataclass(frozen=True)
class FitSettings(Settings):
    """Settings of a fit of rows."""

    what: ClassVar[str] = "Mixtures"

    cost: Annotated[CostName, COST] = "svd"
    form: Annotated[MatrixForm | None, FORM] = None
    model: Annotated[
        ModelName,
        Setting(
            "mixture: a list of components. network: maps fixed noise to components. continuous: "
            "maps new noise to components in each step (the paper's mixture with a prior). "
            "generator, conv: map noise to centers, one for each noise vector (the paper's "
            "experiments)."
        ),
    ] = "mixture"
    components: Annotated[
        int | None,
        Setting(
            "Number of components, or of centers in each step of a generator.",
            least=1,
            unset="128, or one per 10 rows if there are fewer than 1280",
        ),
    ] = None
    covariance_type: Annotated[CovarianceType, COVARIANCE_TYPE] = "isotropic"
    prior: Annotated[PriorName, PRIOR] = "hybrid"
    steps: Annotated[int, STEPS] = 800
    refine_steps: Annotated[
        int | None,
        Setting(
            "Number of refinement steps after training, for mixtures only: they use the data as "
            "points, without a kernel that widens them, so that the variances are correct.",
            least=0,
            unset="500 for mixtures",
            of_training=True,
        ),
    ] = None
    refine_with: Annotated[RefineName, REFINE_WITH] = "likelihood"
    batch_size: Annotated[int, BATCH_SIZE] = 256
    refine_batch_size: Annotated[int, REFINE_BATCH_SIZE] = 2048
    variance: Annotated[
        float | None,
        Setting(
            "Final kernel variance, for data scaled to standard deviation 1.",
            above=0,
            unset="estimated from the data",
        ),
    ] = None
    start_variance: Annotated[
        float | None,
        Setting(
            "Initial kernel variance; equal to `variance`, it keeps the variance fixed.",
            above=0,
            unset="found by the median rule",
        ),
    ] = None
    kernel_variance: Annotated[float | None, KERNEL_VARIANCE] = None
    variance_factors: Annotated[tuple[float, ...], VARIANCE_FACTORS] = (1.0, 10.0, 100.0)
    learning_rate: Annotated[float | None, LEARNING_RATE] = None
    average: Annotated[int, AVERAGE] = 0
    seed: Annotated[int, SEED] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_form(self.form, self.cost)
        if self.steps == 0 and self.refine_steps == 0:
            raise OptionError("steps and refine_steps are both 0: there is nothing to train.")
        if self.kernel_variance is not None and (self.variance or self.start_variance):
            raise OptionError(
                f"kernel_variance={self.kernel_variance} is constant, in the units of the data; "
                "omit variance and start_variance, which define a schedule in units of the "
                "scaled data."
            )
        if self.is_mixture:
            return
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


def check_form(form: MatrixForm | None, cost: str) -> None:
    """Refuse a form of another cost than the matrix-matrix cost."""
    if form is not None and cost != "matrix":
        raise OptionError(f"form={form!r} is for cost='matrix'; the cost is {cost!r}.")
