"""What a user can choose about a fit to images."""

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, TypeAlias

from kermix.checks import check_option
from kermix.costs.formulas import MatrixForm
from kermix.errors import OptionError
from kermix.images.spaces import CODED, SPACES, SpaceName
from kermix.networks.generators import PriorName
from kermix.networks.mixture_networks import CovarianceType
from kermix.training.objective import SampleCost
from kermix.training.settings import check_form

__all__ = ["ImageModelName", "ImageSettings"]

ImageModelName: TypeAlias = Literal["codes", "mixture", "conv"]

MODELS = ("codes", "mixture", "conv")
COSTS = ("svd", "scalar", "vector", "matrix", "mmd", "energy", "sinkhorn")
# A table of parameters takes larger steps than the weights of a network.
PEAK_RATES = {"mixture": 0.02, "codes": 0.002, "conv": 0.002}


@dataclass(frozen=True)
class ImageSettings:
    """Settings of a fit to images.

    Attributes:
        cost: What is optimized: one of the paper's four costs, or a baseline.
        form: Of the matrix-matrix cost: `"trace"` (None is this), `"data_fixed"` or `"logdet"`.
        model: `"codes"`, noise to codes that a trained decoder turns into images; `"mixture"`, a
            table of components of codes, for each class; `"conv"`, noise to images at once.
        spaces: Where the cost acts; of several, the mean of the losses.
        code: Length of a code of the autoencoder.
        by_channel: Whether each channel is coded by itself, as suits stacked MNIST.
        width: Channels of the smallest feature maps of encoder and decoder.
        code_noise: Deviation of the noise that codes get before they are decoded in training, in
            units of their own deviation: it makes near codes decode to near images.
        hidden: Width of the network from noise to codes.
        prior: Of the noise: `"uniform"` in [-1, 1], `"gaussian"`, or `"hybrid"`, Gaussian beside
            a choice among states, given as a one-hot vector.
        noise: Continuous coordinates of the noise.
        states: States of a hybrid prior; 0 takes 32. With states, `"gaussian"` is `"hybrid"`.
        encoder_steps: Training steps of the autoencoder.
        encoder_batch: Images for each of them.
        steps: Training steps with the cost.
        refine_steps: For mixtures: passes of expectation-maximization over all images, after
            training with the cost.
        batch_size: Images in each step, of all classes together; the model draws as many.
        components: Components of a mixture, of all classes together; of a sum of products, in each
            part.
        groups: With codes by channel, a mixture is a sum of so many products of mixtures of the
            parts (`kermix.networks.mixture_networks.ProductMixture`); 0 makes it one of whole codes.
        covariance_type: Of each component of a mixture: `"isotropic"` (one variance) or
            `"diagonal"` (one for each coordinate).
        chunk: Rows for each run of a network; None runs all at once.
        variance: Kernel variance at the end, as a multiple of what is found from the data.
        kernel_variance: Kernel variance in the units of the space (pixels go from 0 to 1), the
            same in all steps, as the paper has it; instead of `variance`.
        variance_factors: The kernel is an average over several variances: the scheduled variance
            times each of these factors.
        debias: Whether a network is trained by the `kermix.DebiasedLoss` of a cost of the
            paper; mixtures, whose points have weights, never are.
        learning_rate: Peak learning rate; None chooses by model.
        seed: All randomness comes from it.
    """

    cost: SampleCost = "svd"
    form: MatrixForm | None = None
    model: ImageModelName = "codes"
    spaces: tuple[SpaceName, ...] = ("codes",)
    code: int = 16
    by_channel: bool = False
    width: int = 128
    code_noise: float = 0.2
    hidden: int = 512
    prior: PriorName = "gaussian"
    noise: int = 32
    states: int = 0
    encoder_steps: int = 2000
    encoder_batch: int = 256
    steps: int = 2000
    refine_steps: int = 0
    batch_size: int = 2000
    components: int = 1000
    groups: int = 0
    covariance_type: CovarianceType = "diagonal"
    chunk: int | None = None
    variance: float = 1.0
    kernel_variance: float | None = None
    variance_factors: tuple[float, ...] = (1.0, 10.0, 100.0)
    debias: bool = True
    learning_rate: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_option("cost", self.cost, COSTS)
        check_form(self.form, self.cost)
        check_option("model", self.model, MODELS)
        check_option("prior", self.prior, ("uniform", "gaussian", "hybrid"))
        if self.prior == "uniform" and self.states:
            raise OptionError(f"states={self.states} is for prior='hybrid'; the prior is uniform.")
        if self.kernel_variance is not None and self.variance != 1:
            raise OptionError(
                f"kernel_variance={self.kernel_variance} is absolute; omit variance, which is a "
                "multiple of the estimate from the data."
            )
        check_option("covariance_type", self.covariance_type, ("isotropic", "diagonal"))
        if not self.spaces:
            raise OptionError("spaces is empty: the cost needs at least one space.")
        for space in self.spaces:
            check_option("space", space, SPACES)
        if self.model == "mixture" and not self.codes_only:
            raise OptionError("model='mixture' is a mixture of codes: use spaces=('codes',).")
        if "channels" in self.spaces and not self.by_channel:
            raise OptionError("The space 'channels' needs by_channel: a code for each channel.")
        if self.refine_steps and self.model != "mixture":
            raise OptionError("refine_steps needs weights and variances: use model='mixture'.")
        for name, least in (
            ("code", 1), ("width", 8), ("hidden", 1), ("noise", 1), ("states", 0),
            ("encoder_steps", 0), ("encoder_batch", 2), ("steps", 0), ("refine_steps", 0),
            ("batch_size", 2), ("components", 1), ("groups", 0), ("chunk", 2),
        ):  # fmt: skip
            value = getattr(self, name)
            if name == "chunk" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise OptionError(f"{name}={value!r} must be a whole number, at least {least}.")
        for name in ("variance", "kernel_variance", "learning_rate"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise OptionError(f"{name}={value} must be a positive number.")
        if not 0 <= self.code_noise < float("inf"):
            raise OptionError(f"code_noise={self.code_noise} must be 0 or a positive number.")
        if self.total == 0:
            raise OptionError("steps and refine_steps are both 0: there is nothing to train.")

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
        return self.model == "mixture" and self.by_channel and self.groups > 0

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

    def as_json(self) -> dict[str, Any]:
        """Plain numbers and text."""
        lists = {name: list(getattr(self, name)) for name in ("variance_factors", "spaces")}
        return {**asdict(self), **lists}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "ImageSettings":
        """The inverse of `as_json`; unknown names are an error."""
        unknown = sorted(set(content) - {field.name for field in fields(cls)})
        if unknown:
            raise OptionError(f"Unknown settings: {', '.join(unknown)}.")
        lists: dict[str, Any] = {
            name: tuple(content[name])
            for name in ("variance_factors", "spaces")
            if name in content
        }
        return cls(**{**content, **lists})
