"""What a user can choose about a classifier: one frozen object, the same in Python and JSON."""

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeAlias

import torch

from kermix.checks import check_option
from kermix.errors import OptionError
from kermix.models.images.classifier import ImageClassifier, ImageShape
from kermix.models.images.cnn import PlainCNN
from kermix.models.product.classifier import GaussianProductClassifier
from kermix.models.product.functions import Path
from kermix.training.augmentation import Augmentation

__all__ = ["ClassifierModel", "ClassifierSettings", "build_classifier"]

ClassifierModel: TypeAlias = Literal["gaussian-product", "cnn"]
PEAK_RATES = {"gaussian-product": 0.02, "cnn": 0.005}


@dataclass(frozen=True)
class ClassifierSettings:
    """Settings of a classifier of images.

    Attributes:
        model: `"gaussian-product"`, or `"cnn"`, the plain baseline.
        patch: Side of the patches, odd; the CNN has none.
        stride: Pixels from one patch to the next.
        width: Features of the Gaussian layers.
        depth: Number of Gaussian layers before the output.
        output_width: Number of Gaussians of the output.
        anchors_at: Layers with anchors for each position.
        anchor_grid: Rows and columns of the grid of the output's anchors; None: every position.
        alpha: What scales the output's exponent: `"one"`, `"each"` or `"norm"`.
        whitening: Regularization of the whitening of patches; None for none.
        data_anchors: Whether the first layer starts from patches of the data.
        image_anchors: Whether the output starts from the features of training images.
        residual: Whether layers add to their input.
        raw_pixels: Whether patches are read as they are, from 0 to 1.
        reading: Of the norms of (26) and (27): `"element"` or `"vector"`.
        score_bias: Whether a constant is added to the scores.
        path: How the Gaussian layers are computed: `"auto"`, `"plain"`, `"lean"` or `"fused"`.
        epochs: Times that every image is seen.
        batch_size: Images in each step.
        positions: Share of the positions, drawn anew, that a training step looks at.
        learning_rate: Peak learning rate; None takes one that fits the model.
        score_rate: Learning rate of the output's A_F relative to that of the rest. A step of
            Adam changes each weight alike, and a score is the sum of as many as there are
            Gaussians.
        warmup: Share of the training in which the rate rises.
        optimizer: `"adamw"`, `"muon"` for the matrices between layers with AdamW for the rest, or
            `"muon-anchors"`: the output's anchors are a matrix too.
        weight_decay: Of the matrices and of the anchors of positions.
        smoothing: Of the labels.
        average: Epochs over which the weights are averaged (a running mean); 0 for none.
        flip: Whether images are mirrored in training.
        shift: Largest shift in pixels.
        cutout: Side of the square that is cut out.
        rotation: Largest rotation in degrees.
        zoom: Largest relative change of size.
        colour: Largest relative change of brightness and of contrast.
        mix: Share of the images that get a rectangle of another image, and of its label.
        flip_at_test: Whether scores are averaged over the image and its mirror image.
        evaluate_every: Epochs between two looks at the held-out images; 0: only at the end.
        seed: All randomness comes from it.
    """

    model: ClassifierModel = "gaussian-product"
    patch: int = 3
    stride: int = 1
    width: int = 256
    depth: int = 4
    output_width: int = 512
    anchors_at: tuple[int, ...] = ()
    anchor_grid: int | None = None
    alpha: str = "norm"
    whitening: float | None = 1e-3
    data_anchors: bool = True
    image_anchors: bool = False
    residual: bool = False
    raw_pixels: bool = False
    reading: str = "element"
    score_bias: bool = True
    path: Path = "auto"
    epochs: int = 20
    batch_size: int = 512
    positions: float = 1.0
    learning_rate: float | None = None
    score_rate: float = 1.0
    warmup: float = 0.2
    optimizer: Literal["adamw", "muon", "muon-anchors"] = "adamw"
    weight_decay: float = 0.5
    smoothing: float = 0.1
    average: float = 1.0
    flip: bool = False
    shift: int = 2
    cutout: int = 0
    rotation: float = 0.0
    zoom: float = 0.0
    colour: float = 0.0
    mix: float = 0.0
    flip_at_test: bool = False
    evaluate_every: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        check_option("model", self.model, ("gaussian-product", "cnn"))
        check_option("optimizer", self.optimizer, ("adamw", "muon", "muon-anchors"))
        for name, least in (("epochs", 1), ("batch_size", 2), ("evaluate_every", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise OptionError(f"{name}={value!r} must be a whole number, at least {least}.")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed >> 32:
            raise OptionError(f"seed={self.seed!r} must be a whole number from 0 to 2^32 - 1.")
        if self.learning_rate is not None and not 0 < self.learning_rate < float("inf"):
            raise OptionError(f"learning_rate={self.learning_rate} must be a positive number.")
        if not 0 < self.score_rate < float("inf"):
            raise OptionError(f"score_rate={self.score_rate} must be a positive number.")
        for name, most in (("weight_decay", float("inf")), ("smoothing", 1), ("average", 1e9)):
            if not 0 <= getattr(self, name) < most:
                raise OptionError(f"{name}={getattr(self, name)} must be in [0, {most:g}).")
        if not 0 < self.positions <= 1:
            raise OptionError(f"positions={self.positions} must be above 0 and at most 1.")
        if self.model == "cnn" and self.positions < 1:
            raise OptionError("positions is for the Gaussian-product network; the CNN takes all.")
        if self.model == "cnn" and self.score_rate != 1:
            raise OptionError("score_rate is for the Gaussian-product network, not for the CNN.")
        if not 0 < self.warmup < 1:
            raise OptionError(f"warmup={self.warmup} must be between 0 and 1.")
        _ = self.augmentation  # refuses what it cannot do

    @property
    def augmentation(self) -> Augmentation:
        """What happens to training images."""
        names = (field.name for field in fields(Augmentation))
        return Augmentation(**{name: getattr(self, name) for name in names})

    @property
    def peak_rate(self) -> float:
        """The learning rate that is used."""
        return PEAK_RATES[self.model] if self.learning_rate is None else self.learning_rate

    def as_json(self) -> dict[str, Any]:
        """Plain numbers and text."""
        return {**asdict(self), "anchors_at": list(self.anchors_at)}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "ClassifierSettings":
        """The inverse of `as_json`; unknown names are an error."""
        unknown = sorted(set(content) - {field.name for field in fields(cls)})
        if unknown:
            raise OptionError(f"Unknown settings: {', '.join(unknown)}.")
        return cls(**{**content, "anchors_at": tuple(content.get("anchors_at", ()))})


def build_classifier(
    settings: ClassifierSettings, shape: ImageShape, classes: int
) -> ImageClassifier:
    """The untrained network of some settings, on the CPU.

    Example:
        >>> build_classifier(ClassifierSettings(model="cnn"), (1, 8, 8), 10).parameter_count
        1147722
    """
    generator = torch.Generator().manual_seed(settings.seed)
    if settings.model == "cnn":
        return PlainCNN(shape, classes, generator=generator)
    return GaussianProductClassifier(
        shape,
        classes,
        settings.patch,
        stride=settings.stride,
        width=settings.width,
        depth=settings.depth,
        output_width=settings.output_width,
        anchors_at=settings.anchors_at,
        anchor_grid=settings.anchor_grid,
        alpha=settings.alpha,
        whitening=settings.whitening,
        data_anchors=settings.data_anchors,
        image_anchors=settings.image_anchors,
        residual=settings.residual,
        raw_pixels=settings.raw_pixels,
        reading=settings.reading,
        score_bias=settings.score_bias,
        path=settings.path,
        generator=generator,
    )
