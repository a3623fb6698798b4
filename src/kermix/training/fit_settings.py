"""Settings of a fit of samples: mixtures and generators, of rows, of images or given a context."""

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias, get_args

from kermix.errors import OptionError
from kermix.settings import (
    AVERAGE,
    BATCH_SIZE,
    BUDGET,
    LEARNING_RATE,
    SEED,
    STEPS,
    CovarianceType,
    Family,
    MatrixForm,
    PriorName,
    Setting,
    Settings,
    usual,
)
from kermix.training.budget import DEFAULT, QUICK

__all__ = [
    "CODED",
    "CONTEXTS",
    "IMAGES",
    "ROWS",
    "CostName",
    "FitSettings",
    "ImageModelName",
    "ModelName",
    "RefineName",
    "SampleCost",
    "SpaceName",
]

SampleCost: TypeAlias = Literal["svd", "scalar", "vector", "matrix", "mmd", "energy", "sinkhorn"]
CostName: TypeAlias = Literal[SampleCost, "likelihood"]
RefineName: TypeAlias = Literal["closed form", "likelihood"]
RowModelName: TypeAlias = Literal["mixture", "network", "continuous", "generator", "small-conv"]
ImageModelName: TypeAlias = Literal["codes", "code-mixture", "conv"]
ModelName: TypeAlias = Literal[RowModelName, ImageModelName, "conditional"]
SpaceName: TypeAlias = Literal["pixels", "coarse", "random", "codes", "channels"]
CODED = ("codes", "channels")

ROWS, IMAGES, CONTEXTS = "rows", "images", "contexts"
COSTS = {ROWS: {*get_args(CostName)} - {"sinkhorn"}, IMAGES: {*get_args(SampleCost)},
         CONTEXTS: {"svd", "likelihood"}}  # fmt: skip
# A table of parameters takes larger steps than the weights of a network.
# Reasoned, no record.
PEAK_RATES = {"mixture": 0.02, "code-mixture": 0.02, "network": 0.004, "conditional": 0.003}


@dataclass(frozen=True)
class FitSettings(Settings):
    """Settings of a fit of samples, of rows, of images or given a context, as `model` says."""

    families: ClassVar[tuple[Family, ...]] = (
        Family(ROWS, "Mixtures", get_args(RowModelName)),
        Family(IMAGES, "Images", get_args(ImageModelName)),
        Family(CONTEXTS, "Given a context", ("conditional",)),
    )

    cost: Annotated[
        CostName,
        Setting(
            "Cost to optimize: svd, scalar, vector or matrix (the paper's four costs), or a "
            "baseline: mmd, energy, likelihood (for mixtures) or sinkhorn (for images)."
        ),
    ] = "svd"
    form: Annotated[
        MatrixForm | None,
        Setting(
            "Form of the cost matrix: trace, data_fixed or logdet.",
            unset="trace",
            of=(ROWS, IMAGES),
        ),
    ] = None
    model: Annotated[
        ModelName,
        Setting(
            "Of rows: mixture, a list of components; network, maps fixed noise to components; "
            "continuous, maps new noise to components in each step (the paper's mixture with a "
            "prior); generator, small-conv (of small images), map noise to centers, one for each "
            "noise vector (the paper's experiments). Of images: codes, maps noise to codes that a "
            "trained decoder turns into images; code-mixture, a list of components of codes, for "
            "each class; conv, maps noise to images. Given a context: conditional."
        ),
    ] = "mixture"
    spaces: Annotated[
        tuple[SpaceName, ...],
        Setting(
            "Spaces in which the cost is computed, separated by commas: pixels, coarse (pixels), "
            "random (features), codes, channels (the code of each); of several, the mean of the "
            "losses.",
            of=(IMAGES,),
        ),
    ] = ("codes",)
    components: Annotated[
        int | None,
        Setting(
            "Number of components (of images, of all classes together; given a context, of each; "
            "of a sum of products, in each part), or of centers in each step of a generator.",
            least=1,
            unset="128, or one per 10 rows if there are fewer than 1280",
        ),
    ] = usual(None, images=1000, contexts=24)
    covariance_type: Annotated[
        CovarianceType,
        Setting(
            "Covariance of a component: isotropic (one variance) or diagonal (one for each "
            "coordinate)."
        ),
    ] = usual("isotropic", images="diagonal")
    prior: Annotated[
        PriorName,
        Setting(
            "Noise prior of networks: uniform, gaussian, or hybrid (Gaussian and a one-hot choice "
            "among states).",
            of=(ROWS, IMAGES),
        ),
    ] = usual("hybrid", images="gaussian")
    noise: Annotated[
        int,
        Setting(
            "Number of continuous coordinates of the noise.", least=1, rare=True, of=(IMAGES,)
        ),
    ] = 32
    states: Annotated[
        int,
        Setting(
            "Number of states of a hybrid prior; 0 means 32. With states, the prior gaussian is "
            "hybrid.",
            least=0,
            rare=True,
            of=(IMAGES,),
        ),
    ] = 0
    code: Annotated[int, Setting("Length of the autoencoder's codes.", least=1, of=(IMAGES,))] = 16
    by_channel: Annotated[
        bool,
        Setting(
            "Whether each channel is coded by itself, as suits stacked MNIST.",
            rare=True,
            of=(IMAGES,),
        ),
    ] = False
    width: Annotated[
        int,
        Setting(
            "Width of networks: channels of the smallest feature maps of encoder and decoder, at "
            "least 8; features of the hidden layers given a context.",
            least=1,
            rare=True,
            of=(IMAGES, CONTEXTS),
        ),
    ] = 128
    depth: Annotated[
        int, Setting("Number of hidden layers.", least=0, rare=True, of=(CONTEXTS,))
    ] = 2
    code_noise: Annotated[
        float,
        Setting(
            "Deviation of the noise that codes get before they are decoded in training, in units "
            "of their own deviation: it makes near codes decode to near images.",
            least=0,
            rare=True,
            of=(IMAGES,),
        ),
    ] = 0.2
    hidden: Annotated[
        int,
        Setting("Width of the network from noise to codes.", least=1, rare=True, of=(IMAGES,)),
    ] = 512
    groups: Annotated[
        int,
        Setting(
            "With codes by channel, a mixture is a sum of so many products of mixtures of the "
            "parts (`kermix.networks.ProductMixture`); 0 makes it one of whole codes.",
            least=0,
            rare=True,
            of=(IMAGES,),
        ),
    ] = 0
    encoder_steps: Annotated[
        int,
        Setting(
            "Number of training steps of the autoencoder.",
            least=0,
            of_training=True,
            of=(IMAGES,),
        ),
    ] = 2000
    encoder_batch: Annotated[
        int,
        Setting(
            "Batch size of a training step of the autoencoder.", least=2, rare=True, of=(IMAGES,)
        ),
    ] = 256
    budget: Annotated[str | None, replace(BUDGET, of=(ROWS, IMAGES))] = None
    steps: Annotated[int, STEPS] = usual(800, images=2000, contexts=300)
    refine_steps: Annotated[
        int | None,
        Setting(
            "Number of refinement steps after training, for mixtures only: they use the data as "
            "points, without a kernel that widens them, so that the variances are correct; of "
            "codes of images, passes of expectation-maximization over all.",
            least=0,
            unset="500 where it can be refined",
            of_training=True,
        ),
    ] = usual(None, images=0, contexts=3000)
    refine_with: Annotated[
        RefineName,
        Setting(
            "Objective of the refinement: likelihood, or closed form, the Cauchy-Schwarz cost, "
            "which gives modes more weight than tails and needs more steps.",
            of_training=True,
            of=(ROWS, CONTEXTS),
        ),
    ] = "likelihood"
    batch_size: Annotated[int, BATCH_SIZE] = usual(256, images=2000)
    refine_batch_size: Annotated[
        int,
        Setting(
            "Batch size of a refinement step.", least=1, of_training=True, of=(ROWS, CONTEXTS)
        ),
    ] = usual(2048, contexts=1024)
    contexts: Annotated[
        int,
        Setting(
            "Contexts for each step of the SVD cost; all components of each are drawn.",
            least=1,
            rare=True,
            of=(CONTEXTS,),
        ),
    ] = 16
    context_scale: Annotated[
        float,
        Setting(
            "Weight of a context relative to a target in the joint kernel.",
            least=0,
            rare=True,
            of=(CONTEXTS,),
        ),
    ] = 1.0
    images_at_once: Annotated[
        int | None,
        Setting(
            "Number of images generated at once; fewer need less memory.",
            least=2,
            unset="all",
            of_training=True,
            of=(IMAGES,),
        ),
    ] = None
    variance: Annotated[
        float | None,
        Setting(
            "Final kernel variance, for data scaled to standard deviation 1.",
            above=0,
            unset="estimated from the data",
            of=(ROWS, IMAGES),
        ),
    ] = None
    start_variance: Annotated[
        float | None,
        Setting(
            "Initial kernel variance; equal to `variance`, it keeps the variance fixed.",
            above=0,
            unset="found by the median rule",
            of=(ROWS, IMAGES),
        ),
    ] = None
    kernel_variance: Annotated[
        float | None,
        Setting(
            "Constant kernel variance in the (squared) units of the data (pixels range from 0 to "
            "1), as in the paper, instead of `variance` and a schedule; all columns then share "
            "one scale.",
            above=0,
            of=(ROWS, IMAGES),
        ),
    ] = None
    variance_factors: Annotated[
        tuple[float, ...],
        Setting(
            "Average the kernel over several variances: the kernel variance multiplied by each "
            "of these factors.",
            above=0,
            of=(ROWS, IMAGES),
        ),
    ] = (1.0, 10.0, 100.0)
    debias: Annotated[
        bool,
        Setting(
            "Whether the loss of a network is freed from the bias of a batch "
            "(`kermix.DebiasedLoss`); without, it is the paper's own loss.",
            of=(IMAGES,),
        ),
    ] = True
    learning_rate: Annotated[float | None, LEARNING_RATE] = None
    average: Annotated[int, replace(AVERAGE, of=(ROWS,))] = 0
    seed: Annotated[int, SEED] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.budget not in (None, QUICK, DEFAULT):
            raise OptionError(
                f"budget={self.budget!r} is for the table model (model='table'): a fit of rows or "
                "images is quick or default."
            )
        costs = COSTS[self.family.name]
        if self.cost not in costs:
            raise OptionError(
                f"cost={self.cost!r} is not for model={self.model!r}; choose one of "
                f"{', '.join(sorted(costs))}."
            )
        if self.form is not None and self.cost != "matrix":
            raise OptionError(
                f"form={self.form!r} is for cost='matrix'; the cost is {self.cost!r}."
            )
        if self.kernel_variance is not None and (self.variance or self.start_variance):
            raise OptionError(
                f"kernel_variance={self.kernel_variance} is constant, in the units of the data; "
                "omit variance and start_variance, which define a schedule in units of the "
                "scaled data."
            )
        if self.family.name == IMAGES:
            self._check_images()
        self._check_steps()

    def _check_steps(self) -> None:
        """Refuse a refinement of what has no weights and variances, and a training of no steps."""
        if not self.is_mixture and self.cost == "likelihood":
            raise OptionError("cost='likelihood' needs a density: use model='mixture'.")
        if not self.is_mixture and self.refine_steps:
            mixture = "code-mixture" if self.family.name == IMAGES else "mixture"
            raise OptionError(f"refine_steps needs weights and variances: use model={mixture!r}.")
        before = self.encoder_steps if self.encodes else 0
        if before == self.steps == self.refine_steps == 0:
            raise OptionError("steps and refine_steps are both 0: there is nothing to train.")

    def _check_images(self) -> None:
        """Refuse what a model of images cannot have: sizes that are too small, spaces."""
        for name, least in (("width", 8), ("batch_size", 2)):
            if getattr(self, name) < least:
                raise OptionError(
                    f"{name}={getattr(self, name)} must be a whole number, at least {least}."
                )
        if self.components is None:
            raise OptionError("components=None must be a whole number, at least 1.")
        if self.prior == "uniform" and self.states:
            raise OptionError(f"states={self.states} is for prior='hybrid'; the prior is uniform.")
        self._check_spaces()

    def _check_spaces(self) -> None:
        if not self.spaces:
            raise OptionError("spaces is empty: the cost needs at least one space.")
        if self.model == "code-mixture" and not self.codes_only:
            raise OptionError("model='code-mixture' is a mixture of codes: use spaces=('codes',).")
        if "channels" in self.spaces and not self.by_channel:
            raise OptionError("The space 'channels' needs by_channel: a code for each channel.")

    @property
    def peak_rate(self) -> float:
        """The learning rate that is used."""
        if self.learning_rate is not None:
            return self.learning_rate
        return PEAK_RATES.get(self.model, 0.002)

    @property
    def is_mixture(self) -> bool:
        """Whether the model is a fixed number of components, which refinement can sharpen."""
        return self.model in ("mixture", "network", "code-mixture", "conditional")

    @property
    def encodes(self) -> bool:
        """Whether there is an autoencoder of images."""
        if self.family.name != IMAGES:
            return False
        return self.model != "conv" or any(space in CODED for space in self.spaces)

    @property
    def multiplies(self) -> bool:
        """Whether the mixture is a sum of products over the parts of a code."""
        return self.model == "code-mixture" and self.by_channel and self.groups > 0

    @property
    def codes_only(self) -> bool:
        """Whether the cost needs nothing but codes."""
        return all(space in CODED for space in self.spaces)

    def for_data(self, rows: int) -> Self:
        """The settings with defaults filled in for this many rows."""
        refine_steps, components = self.refine_steps, self.components
        if components is None:
            few = self.is_mixture and rows < 1280
            components = max(1, rows // 10) if few else 128
        if refine_steps is None:
            refine_steps = 500 if self.is_mixture and self.cost != "likelihood" else 0
        return replace(self, refine_steps=refine_steps, components=components)

    @classmethod
    def for_images(
        cls, name: str, image: tuple[int, int, int], model: ImageModelName = "codes"
    ) -> Self:
        """Settings that suit a set: longer codes for colour, codes of channels for stacked MNIST.

        Example:
            >>> FitSettings.for_images("mnist", (1, 28, 28)).code
            16
        """
        suited: dict[str, Any] = {"model": model}
        if name == "stacked-mnist":
            suited |= {"code": 16 * image[0], "by_channel": True, "spaces": ("codes", "channels"),
                       "hidden": 1024, "noise": 64, "groups": 10}  # fmt: skip
        elif image[0] > 1 or image[1] > 32:
            suited |= {"code": 128, "width": 256, "code_noise": 0.1, "hidden": 1024, "noise": 128}
        if model == "code-mixture":
            suited |= {"spaces": ("codes",), "refine_steps": 25}
        return cls(**suited)

    def quick(self) -> Self:
        """A shorter run, for a first look."""
        most = {"steps": 400, "components": 96, "refine_steps": 250, "refine_batch_size": 1024}
        if self.family.name == IMAGES:
            most = {"encoder_steps": 300, "steps": 200, "refine_steps": 200, "batch_size": 500,
                    "width": 32, "components": 200}  # fmt: skip
        now = {name: getattr(self, name) for name in most}
        less = {n: min(now[n], at) for n, at in most.items() if now[n]}
        if now["components"] is None:
            less["components"] = most["components"]
        return replace(self, **less)
