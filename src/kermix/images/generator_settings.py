"""What a user can choose about a fit to images."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, TypeAlias

from kermix.errors import OptionError
from kermix.settings import (
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
from kermix.training.fit_settings import (
    COST,
    FORM,
    KERNEL_VARIANCE,
    PRIOR,
    VARIANCE_FACTORS,
    SampleCost,
    check_form,
)

__all__ = ["CODED", "ImageModelName", "ImageSettings", "SpaceName"]

ImageModelName: TypeAlias = Literal["codes", "code-mixture", "conv"]
SpaceName: TypeAlias = Literal["pixels", "coarse", "random", "codes", "channels"]
CODED = ("codes", "channels")

# A table of parameters takes larger steps than the weights of a network.
# Reasoned, no record.
PEAK_RATES = {"code-mixture": 0.02, "codes": 0.002, "conv": 0.002}


@dataclass(frozen=True)
class ImageSettings(Settings):
    """Settings of a fit to images."""

    what: ClassVar[str] = "Images"

    cost: Annotated[SampleCost, COST] = "svd"
    form: Annotated[MatrixForm | None, FORM] = None
    model: Annotated[
        ImageModelName,
        Setting(
            "codes: maps noise to codes that a trained decoder turns into images. code-mixture: a "
            "list of components of codes, for each class. conv: maps noise to images."
        ),
    ] = "codes"
    spaces: Annotated[
        tuple[SpaceName, ...],
        Setting(
            "Spaces in which the cost is computed, separated by commas: pixels, coarse (pixels), "
            "random (features), codes, channels (the code of each); of several, the mean of the "
            "losses."
        ),
    ] = ("codes",)
    code: Annotated[int, Setting("Length of the autoencoder's codes.", least=1)] = 16
    by_channel: Annotated[
        bool,
        Setting("Whether each channel is coded by itself, as suits stacked MNIST.", rare=True),
    ] = False
    width: Annotated[
        int,
        Setting(
            "Channels of the smallest feature maps of encoder and decoder.", least=8, rare=True
        ),
    ] = 128
    code_noise: Annotated[
        float,
        Setting(
            "Deviation of the noise that codes get before they are decoded in training, in units "
            "of their own deviation: it makes near codes decode to near images.",
            least=0,
            rare=True,
        ),
    ] = 0.2
    hidden: Annotated[
        int, Setting("Width of the network from noise to codes.", least=1, rare=True)
    ] = 512
    prior: Annotated[PriorName, PRIOR] = "gaussian"
    noise: Annotated[
        int, Setting("Number of continuous coordinates of the noise.", least=1, rare=True)
    ] = 32
    states: Annotated[
        int,
        Setting(
            "Number of states of a hybrid prior; 0 means 32. With states, the prior gaussian is "
            "hybrid.",
            least=0,
            rare=True,
        ),
    ] = 0
    encoder_steps: Annotated[
        int,
        Setting("Number of training steps of the autoencoder.", least=0, of_training=True),
    ] = 2000
    encoder_batch: Annotated[
        int, Setting("Batch size of a training step of the autoencoder.", least=2, rare=True)
    ] = 256
    steps: Annotated[int, STEPS] = 2000
    refine_steps: Annotated[
        int,
        Setting(
            "Number of passes of expectation-maximization over all images after training, for "
            "mixtures only.",
            least=0,
            of_training=True,
        ),
    ] = 0
    batch_size: Annotated[int, replace(BATCH_SIZE, least=2)] = 2000
    components: Annotated[
        int,
        Setting(
            "Number of components of a mixture, of all classes together; of a sum of products, in "
            "each part.",
            least=1,
        ),
    ] = 1000
    groups: Annotated[
        int,
        Setting(
            "With codes by channel, a mixture is a sum of so many products of mixtures of the "
            "parts (`kermix.networks.ProductMixture`); 0 makes it one of whole codes.",
            least=0,
            rare=True,
        ),
    ] = 0
    covariance_type: Annotated[CovarianceType, COVARIANCE_TYPE] = "diagonal"
    images_at_once: Annotated[
        int | None,
        Setting(
            "Number of images generated at once; fewer need less memory.",
            least=2,
            unset="all",
            of_training=True,
        ),
    ] = None
    variance: Annotated[
        float,
        Setting("Final kernel variance, as a multiple of what is found from the data.", above=0),
    ] = 1.0
    kernel_variance: Annotated[float | None, KERNEL_VARIANCE] = None
    variance_factors: Annotated[tuple[float, ...], VARIANCE_FACTORS] = (1.0, 10.0, 100.0)
    debias: Annotated[
        bool,
        Setting(
            "Whether the loss of a network is freed from the bias of a batch "
            "(`kermix.DebiasedLoss`); without, it is the paper's own loss."
        ),
    ] = True
    learning_rate: Annotated[float | None, LEARNING_RATE] = None
    seed: Annotated[int, SEED] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_form(self.form, self.cost)
        if self.prior == "uniform" and self.states:
            raise OptionError(f"states={self.states} is for prior='hybrid'; the prior is uniform.")
        if self.kernel_variance is not None and self.variance != 1:
            raise OptionError(
                f"kernel_variance={self.kernel_variance} is absolute; omit variance, which is a "
                "multiple of the estimate from the data."
            )
        self._check_spaces()
        if self.refine_steps and self.model != "code-mixture":
            raise OptionError(
                "refine_steps needs weights and variances: use model='code-mixture'."
            )
        if self.total == 0:
            raise OptionError("steps and refine_steps are both 0: there is nothing to train.")

    def _check_spaces(self) -> None:
        if not self.spaces:
            raise OptionError("spaces is empty: the cost needs at least one space.")
        if self.model == "code-mixture" and not self.codes_only:
            raise OptionError("model='code-mixture' is a mixture of codes: use spaces=('codes',).")
        if "channels" in self.spaces and not self.by_channel:
            raise OptionError("The space 'channels' needs by_channel: a code for each channel.")

    @property
    def refine_with(self) -> str:
        """What refinement, after the steps with the cost, optimizes."""
        return "likelihood"

    @property
    def encodes(self) -> bool:
        """Whether there is an autoencoder."""
        return self.model != "conv" or any(space in CODED for space in self.spaces)

    @property
    def multiplies(self) -> bool:
        """Whether the mixture is a sum of products over the parts of a code."""
        return self.model == "code-mixture" and self.by_channel and self.groups > 0

    @property
    def codes_only(self) -> bool:
        """Whether the cost needs nothing but codes."""
        return all(space in CODED for space in self.spaces)

    @property
    def total(self) -> int:
        """Steps of the whole run."""
        return (self.encoder_steps if self.encodes else 0) + self.steps + self.refine_steps

    @property
    def peak_rate(self) -> float:
        """The learning rate that is used with the cost."""
        return PEAK_RATES[self.model] if self.learning_rate is None else self.learning_rate

    @classmethod
    def for_images(cls, name: str, image: tuple[int, int, int]) -> "ImageSettings":
        """Settings that suit a set: longer codes for colour, codes of channels for stacked MNIST.

        Example:
            >>> ImageSettings.for_images("mnist", (1, 28, 28)).code
            16
        """
        if name == "stacked-mnist":
            return cls(
                code=16 * image[0], by_channel=True, spaces=("codes", "channels"), hidden=1024,
                noise=64, groups=10,
            )  # fmt: skip
        if image[0] == 1 and image[1] <= 32:
            return cls()
        return cls(code=128, width=256, code_noise=0.1, hidden=1024, noise=128)

    def quick(self) -> "ImageSettings":
        """A shorter run, for a first look."""
        return replace(
            self,
            encoder_steps=min(self.encoder_steps, 300),
            steps=min(self.steps, 200),
            refine_steps=min(self.refine_steps, 200),
            batch_size=min(self.batch_size, 500),
            width=min(self.width, 32),
            components=min(self.components, 200),
        )
