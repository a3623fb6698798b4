"""What a user can choose about a classifier: one frozen object, the same in Python and JSON.

A `preset` holds what was found for a known set, MNIST and CIFAR-10 among them.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from kermix.errors import OptionError
from kermix.settings import (
    BATCH_SIZE,
    LEARNING_RATE,
    SEED,
    WEIGHT_DECAY,
    ProductPath,
    Setting,
    Settings,
)

__all__ = [
    "NO_AUGMENTATION",
    "AugmentationSettings",
    "ClassifierModel",
    "ClassifierSettings",
    "NormReading",
    "as_written",
    "preset",
    "suited_settings",
]

NormReading: TypeAlias = Literal["element", "vector"]
ClassifierModel: TypeAlias = Literal["gaussian-product", "cnn"]
# Compared in results/table1-ablations.json.
PEAK_RATES = {"gaussian-product": 0.02, "cnn": 0.005}


SHIFT = Setting(
    "Largest shift in pixels, in both directions; what comes in is a reflection.",
    least=0,
    rare=True,
)


@dataclass(frozen=True)
class AugmentationSettings(Settings):
    """What may happen to a training image. All zeros: nothing."""

    flip: Annotated[
        bool, Setting("Whether every second image is mirrored left to right.", rare=True)
    ] = False
    shift: Annotated[int, SHIFT] = 0
    cutout: Annotated[
        int,
        Setting(
            "Side of a square that is replaced by the mean colour of its image; 0 for none.",
            least=0,
            rare=True,
        ),
    ] = 0
    rotation: Annotated[
        float,
        Setting(
            "Largest rotation in degrees, of every second image: the others stay sharp.",
            least=0,
            rare=True,
        ),
    ] = 0.0
    zoom: Annotated[
        float,
        Setting(
            "Largest relative change of size of these images, such as 0.1.",
            least=0,
            below=1,
            rare=True,
        ),
    ] = 0.0
    colour: Annotated[
        float,
        Setting(
            "Largest relative change of brightness, and of contrast, such as 0.2.",
            least=0,
            below=1,
            rare=True,
        ),
    ] = 0.0
    mix: Annotated[
        float,
        Setting(
            "Share of the images that get a rectangle of another image, and of its label.",
            least=0,
            most=1,
            rare=True,
        ),
    ] = 0.0


@dataclass(frozen=True)
class ClassifierSettings(AugmentationSettings):
    """Settings of a classifier of images."""

    what: ClassVar[str] = "Images"

    model: Annotated[
        ClassifierModel, Setting("gaussian-product, or cnn: a plain network for comparison.")
    ] = "gaussian-product"
    patch: Annotated[
        int,
        Setting("Side length of the patches in pixels, odd; 1 means single pixels.", least=1),
    ] = 3
    stride: Annotated[
        int, Setting("Number of pixels from one patch to the next.", least=1, rare=True)
    ] = 1
    width: Annotated[
        int, Setting("Number of features per position; 64 suit few images.", least=1)
    ] = 256
    depth: Annotated[
        int, Setting("Number of Gaussian layers before the output; 3 suit few images.", least=1)
    ] = 4
    output_width: Annotated[
        int, Setting("Number of Gaussians of the output.", least=1, rare=True)
    ] = 512
    anchors_at: Annotated[
        tuple[int, ...], Setting("Layers with anchors for each position.", least=0, rare=True)
    ] = ()
    anchor_grid: Annotated[
        int | None,
        Setting(
            "Number of rows and columns of the grid of the output's anchors.",
            least=1,
            unset="every position",
            rare=True,
        ),
    ] = None
    alpha: Annotated[
        Literal["one", "each", "norm"],
        Setting("What scales the output's exponent: one, each or norm.", rare=True),
    ] = "norm"
    whitening: Annotated[
        float | None,
        Setting(
            "Regularization of the whitening of patches; none for no whitening.",
            least=0,
            rare=True,
        ),
    ] = 1e-3
    data_anchors: Annotated[
        bool, Setting("Whether the first layer starts from patches of the data.", rare=True)
    ] = True
    image_anchors: Annotated[
        bool,
        Setting("Whether the output starts from the features of training images.", rare=True),
    ] = False
    residual: Annotated[bool, Setting("Whether layers add to their input.", rare=True)] = False
    raw_pixels: Annotated[
        bool, Setting("Whether patches are read as they are, from 0 to 1.", rare=True)
    ] = False
    reading: Annotated[
        NormReading,
        Setting("How the norms of (26) and (27) are read: element or vector.", rare=True),
    ] = "element"
    score_bias: Annotated[
        bool, Setting("Whether a constant is added to the scores.", rare=True)
    ] = True
    path: Annotated[
        ProductPath,
        Setting("How the Gaussian layers are computed: plain or fast.", rare=True),
    ] = "fast"
    epochs: Annotated[
        int, Setting("Number of times that every image is seen.", least=1, of_training=True)
    ] = 20
    batch_size: Annotated[int, replace(BATCH_SIZE, least=2)] = 512
    positions: Annotated[
        float,
        Setting(
            "Share of the positions, drawn anew, that a training step looks at.",
            above=0,
            most=1,
            rare=True,
        ),
    ] = 1.0
    learning_rate: Annotated[float | None, LEARNING_RATE] = None
    score_rate: Annotated[
        float,
        Setting(
            "Learning rate of the output's A_F relative to that of the rest: a step of Adam "
            "changes each weight alike, and a score is the sum of as many as there are Gaussians.",
            above=0,
            rare=True,
        ),
    ] = 1.0
    warmup: Annotated[
        float,
        Setting("Share of the training in which the rate rises.", above=0, below=1, rare=True),
    ] = 0.2
    optimizer: Annotated[
        Literal["adamw", "muon", "muon-anchors"],
        Setting(
            "adamw; muon for the matrices between layers, with AdamW for the rest; or "
            "muon-anchors: the output's anchors are a matrix too.",
            rare=True,
        ),
    ] = "adamw"
    weight_decay: Annotated[float, replace(WEIGHT_DECAY, rare=True)] = 0.5
    smoothing: Annotated[
        float, Setting("Smoothing of the labels.", least=0, below=1, rare=True)
    ] = 0.1
    average: Annotated[
        float,
        Setting(
            "Number of epochs over which the weights are averaged (a running mean); 0 for none.",
            least=0,
            rare=True,
        ),
    ] = 1.0
    shift: Annotated[int, SHIFT] = 2
    flip_at_test: Annotated[
        bool,
        Setting("Whether scores are averaged over the image and its mirror image.", rare=True),
    ] = False
    evaluate_every: Annotated[
        int,
        Setting(
            "Number of epochs between two looks at the held-out images; 0: only at the end.",
            least=0,
            rare=True,
        ),
    ] = 1
    seed: Annotated[int, SEED] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model == "cnn" and self.positions < 1:
            raise OptionError("positions is for the Gaussian-product network; the CNN takes all.")
        if self.model == "cnn" and self.score_rate != 1:
            raise OptionError("score_rate is for the Gaussian-product network, not for the CNN.")

    @property
    def peak_rate(self) -> float:
        """The learning rate that is used."""
        return PEAK_RATES[self.model] if self.learning_rate is None else self.learning_rate


# What serves each set as far as it was compared (results/table1-ablations.json); a record holds
# the settings that it had.
COMMON: dict[str, Any] = {"evaluate_every": 0}
PRODUCT: dict[str, dict[str, Any]] = {
    "mnist": {"stride": 2, "optimizer": "muon", "learning_rate": 0.01, "epochs": 25},
    "cifar10": {
        "stride": 2,
        "optimizer": "muon",
        "learning_rate": 0.01,
        "anchor_grid": 8,
        "output_width": 2048,
        "epochs": 60,
    },
}
# A pixel is one to three numbers: all depends on the output's anchors.
PIXELS: dict[str, Any] = {
    "stride": 1, "width": 64, "batch_size": 256, "learning_rate": 0.02, "score_rate": 0.03,
    "epochs": 30,
}  # fmt: skip
BY_PATCH: dict[tuple[str, int], dict[str, Any]] = {
    ("mnist", 1): {
        **PIXELS,
        "depth": 1,
        "output_width": 1024,
        "image_anchors": True,
        "weight_decay": 0.1,
    },
    ("cifar10", 1): {**PIXELS, "depth": 2, "anchor_grid": 16, "weight_decay": 0.05},
    # As many positions in a step as with stride 2, but all of them count in the end.
    ("cifar10", 3): {"stride": 1, "positions": 0.25},
}
CNN: dict[str, dict[str, Any]] = {
    "mnist": {"weight_decay": 0.05, "epochs": 8},
    "cifar10": {"weight_decay": 0.05, "epochs": 70},
}
AUGMENTATION: dict[str, dict[str, Any]] = {
    "mnist": {"shift": 2, "rotation": 10.0, "zoom": 0.1},
    "cifar10": {"shift": 4, "flip": True, "flip_at_test": True, "colour": 0.2},
    "digits": {"shift": 1},
}
OTHER_AUGMENTATION: dict[tuple[str, int | None], dict[str, Any]] = {
    # Rotated images have grey pixels where the others have none, which a pixel's features see.
    ("mnist", 1): {"shift": 1, "rotation": 0.0, "zoom": 0.0},
    ("cifar10", 1): {"shift": 3, "colour": 0.0},
    ("cifar10", 5): {"rotation": 10.0, "zoom": 0.15},
    ("cifar10", 7): {"rotation": 10.0, "zoom": 0.15},
    ("cifar10", None): {"cutout": 8, "colour": 0.0},
}
# The same images again and again are soon known by heart.
PLAIN: dict[str, dict[str, Any]] = {"mnist": {"epochs": 10}, "cifar10": {"epochs": 15}}
# Patches of which a part is left out in turn are not; single pixels are needed all.
PLAIN_PATCHES: dict[str, dict[str, Any]] = {
    "mnist": {"stride": 1, "positions": 0.25},
    "cifar10": {"stride": 1, "positions": 0.1, "epochs": 30},
}
# How Eqs. 25 to 27 as written are trained.
# Reasoned, no record; what they give is results/table1-as-written.json.
WRITTEN: dict[str, dict[str, Any]] = {
    "digits": {"epochs": 15, "batch_size": 64},
    "mnist": {"epochs": 15, "batch_size": 256},
    "cifar10": {"epochs": 20, "batch_size": 256},
}
# Sizes and steps at which the training accuracy of the paper's table is reached without them, or
# (single pixels with vectors as anchors) comes nearest: results/table1-as-written.json.
WRITTEN_CELLS: dict[tuple[str, str, int], dict[str, Any]] = {
    ("cifar10", "element", 1): {"output_width": 512, "epochs": 30},
    ("mnist", "element", 1): {"output_width": 512, "epochs": 30},
    ("mnist", "vector", 1): {"output_width": 1024, "epochs": 40, "score_rate": 100.0},
    ("mnist", "vector", 3): {"output_width": 512, "epochs": 30},
    ("cifar10", "vector", 1): {"output_width": 1024, "epochs": 60},
    **{("cifar10", "vector", p): {"output_width": 512, "epochs": 40} for p in (3, 5, 7)},
}
FEW_IMAGES, SMALL_SIDE = 20_000, 16
PLAIN_POSITIONS = 2**16  # in a step: for so few, torch's own operations are faster on a CPU
LARGE_SIDE = 48  # from twice this, patches are further apart than a pixel
NUMBERS_IN_A_STEP = 2**28
SLOWER_SCORES = 0.1  # of the rate of the rest: A_F sums over all Gaussians
NO_AUGMENTATION = AugmentationSettings().as_json()


def preset(
    dataset: str, model: str, patch: int | None, augmented: bool = True
) -> ClassifierSettings:
    """The settings that were found for a set: those of the paper's table, with seed 0.

    Example:
        >>> preset("mnist", "gaussian-product", 3).patch
        3
    """
    options: dict[str, Any] = {**COMMON, "model": model}
    if model == "cnn":
        patch = None  # it has none, whatever was said
        options |= CNN.get(dataset, {})
    else:
        assert patch is not None
        options |= PRODUCT.get(dataset, {}) | {"patch": patch}
        options |= BY_PATCH.get((dataset, patch), {})
    if augmented:
        options |= AUGMENTATION.get(dataset, {}) | OTHER_AUGMENTATION.get((dataset, patch), {})
    else:
        options |= PLAIN.get(dataset, {}) | NO_AUGMENTATION
        options |= PLAIN_PATCHES.get(dataset, {}) if patch not in (None, 1) else {}
    return ClassifierSettings(**options)


def as_written(
    dataset: str, patch: int, reading: NormReading = "element", depth: int = 3
) -> ClassifierSettings:
    """The classifier of Eqs. 25 to 27 as they are written, without augmentation.

    No batch normalization after positions meet, no whitening (pixels go from 0 to 1), anchors that
    start at random and belong to a position each in every layer, W(t), and no constant in the
    scores. The paper gives neither sizes nor training; what is here is small, so that a position
    can have anchors of its own, and as large as its training accuracy asks for.

    Args:
        dataset: Name of the set, for the number of epochs.
        patch: Side of the patches, one around every pixel that has room for it.
        reading: How the norms are read: `"element"` or `"vector"`.
        depth: Number of layers M.

    Example:
        >>> as_written("mnist", 3).alpha, as_written("mnist", 3, "vector").anchors_at
        ('one', (0, 1, 2))
    """
    vectors = reading == "vector"
    options: dict[str, Any] = {
        "width": 32 if vectors else 128,
        "output_width": 64 if vectors else 256,
        # Distances to vectors differ little between images at the start.
        "score_rate": 10.0 if vectors else 1.0,
        **WRITTEN.get(dataset, {}),
        **WRITTEN_CELLS.get((dataset, reading, patch), {}),
        **COMMON,
        **NO_AUGMENTATION,
    }
    return ClassifierSettings(
        patch=patch,
        reading=reading,
        depth=depth,
        anchors_at=tuple(range(depth)),
        alpha="one",
        whitening=None,
        raw_pixels=True,
        data_anchors=False,
        score_bias=False,
        learning_rate=0.01,
        weight_decay=0.05,
        **options,
    )


def suited_settings(
    source: str, model: str, patch: int, count: int, side: int, *, augment: bool = True
) -> ClassifierSettings:
    """What is used where nothing is said: the table's settings for its sets, else by size.

    Args:
        source: Name of a set, or a folder.
        model: `"gaussian-product"` or `"cnn"`.
        patch: Side of the patches.
        count: Number of training images.
        side: The shorter side of an image.
        augment: Whether training images are shifted, and what else suits the set.

    Example:
        >>> suited_settings("digits", "gaussian-product", 3, 1437, 8).width
        64
    """
    if source in ("mnist", "cifar10"):
        base = preset(source, model, patch, augment)
    else:
        options: dict[str, Any] = {"model": model, "patch": patch}
        options["shift"] = 2 if side > SMALL_SIDE else 1
        if model == "gaussian-product":
            options |= {"stride": max(1, side // LARGE_SIDE), "score_rate": SLOWER_SCORES}
        if count < FEW_IMAGES:
            # Steps rather than epochs decide what is learned from few images.
            options |= {"width": 64, "depth": 3, "output_width": 192}
            options["batch_size"] = min(512, max(16, count // 24))
            if options["batch_size"] * side**2 <= PLAIN_POSITIONS:
                options["path"] = "plain"
        base = ClassifierSettings(**(options if augment else options | NO_AUGMENTATION))
        if model == "gaussian-product":
            positions = max(1, (side - patch) // base.stride + 1) ** 2
            most = NUMBERS_IN_A_STEP // (positions * max(base.width, base.output_width))
            base = replace(base, batch_size=max(2, min(base.batch_size, most)))
    return replace(base, evaluate_every=1)
