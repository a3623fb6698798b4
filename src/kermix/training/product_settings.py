"""Settings of networks of Gaussian products: classifiers of images, and of rows of numbers."""

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from kermix.errors import OptionError
from kermix.settings import (
    BATCH_SIZE,
    LEARNING_RATE,
    SEED,
    WEIGHT_DECAY,
    Family,
    ProductForm,
    ProductPath,
    Setting,
    Settings,
    usual,
)

__all__ = [
    "IMAGES",
    "NO_AUGMENTATION",
    "ROWS",
    "ClassifierModel",
    "NormReading",
    "ProductSettings",
]

NormReading: TypeAlias = Literal["element", "vector"]
ClassifierModel: TypeAlias = Literal["gaussian-product", "cnn"]
IMAGES, ROWS = "images", "rows"
# Compared in results/table1-ablations.json.
PEAK_RATES = {"gaussian-product": 0.02, "cnn": 0.005, "rows": 0.02}
# What may happen to a training image: nothing of it.
NO_AUGMENTATION: dict[str, Any] = {
    "flip": False, "shift": 0, "cutout": 0, "rotation": 0.0, "zoom": 0.0, "colour": 0.0,
    "mix": 0.0,
}  # fmt: skip


@dataclass(frozen=True)
class ProductSettings(Settings):
    """Settings of a network of Gaussian products, or of what stands beside it, as `model` says."""

    families: ClassVar[tuple[Family, ...]] = (
        Family(IMAGES, "Images", ("gaussian-product", "cnn")),
        Family(ROWS, "Rows", ("rows",)),
    )

    model: Annotated[
        Literal[ClassifierModel, "rows"],
        Setting(
            "gaussian-product, or cnn: a plain network for comparison; rows: of numbers, not of "
            "images."
        ),
    ] = "gaussian-product"
    patch: Annotated[
        int,
        Setting(
            "Side length of the patches in pixels, odd; 1 means single pixels.",
            least=1,
            of=(IMAGES,),
        ),
    ] = 3
    stride: Annotated[
        int,
        Setting("Number of pixels from one patch to the next.", least=1, rare=True, of=(IMAGES,)),
    ] = 1
    width: Annotated[
        int,
        Setting(
            "Number of features of a position of an image (64 suit few images), or of a column.",
            least=1,
        ),
    ] = usual(256, rows=8)
    depth: Annotated[
        int,
        Setting(
            "Number of Gaussian layers; of images, before the output (3 suit few images).", least=1
        ),
    ] = usual(4, rows=2)
    output_width: Annotated[
        int, Setting("Number of Gaussians of the output.", least=1, rare=True, of=(IMAGES,))
    ] = 512
    anchors_at: Annotated[
        tuple[int, ...],
        Setting("Layers with anchors for each position.", least=0, rare=True, of=(IMAGES,)),
    ] = ()
    anchor_grid: Annotated[
        int | None,
        Setting(
            "Number of rows and columns of the grid of the output's anchors.",
            least=1,
            unset="every position",
            rare=True,
            of=(IMAGES,),
        ),
    ] = None
    alpha: Annotated[
        Literal["one", "each", "norm"],
        Setting("What scales the output's exponent: one, each or norm.", rare=True, of=(IMAGES,)),
    ] = "norm"
    whitening: Annotated[
        float | None,
        Setting(
            "Regularization of the whitening of patches; none for no whitening.",
            least=0,
            rare=True,
            of=(IMAGES,),
        ),
    ] = 1e-3
    data_anchors: Annotated[
        bool,
        Setting(
            "Whether the first layer starts from patches of the data.", rare=True, of=(IMAGES,)
        ),
    ] = True
    image_anchors: Annotated[
        bool,
        Setting(
            "Whether the output starts from the features of training images.",
            rare=True,
            of=(IMAGES,),
        ),
    ] = False
    residual: Annotated[
        bool, Setting("Whether layers add to their input.", rare=True, of=(IMAGES,))
    ] = False
    raw_pixels: Annotated[
        bool,
        Setting("Whether patches are read as they are, from 0 to 1.", rare=True, of=(IMAGES,)),
    ] = False
    reading: Annotated[
        NormReading,
        Setting(
            "How the norms of (26) and (27) are read: element or vector.", rare=True, of=(IMAGES,)
        ),
    ] = "element"
    score_bias: Annotated[
        bool, Setting("Whether a constant is added to the scores.", rare=True, of=(IMAGES,))
    ] = True
    path: Annotated[
        ProductPath,
        Setting("How the Gaussian layers are computed: plain or fast.", rare=True, of=(IMAGES,)),
    ] = "fast"
    epochs: Annotated[
        int,
        Setting(
            "Number of times that every image is seen, or at most every row.",
            least=1,
            of_training=True,
        ),
    ] = usual(20, rows=40)
    batch_size: Annotated[
        int | None,
        replace(
            BATCH_SIZE,
            least=2,  # a row is compared with the others of its batch
            unset="a sixteenth of the rows, from 16 to 256; with bins a tenth for two classes, up "
            "to 2048, and a twelfth for more, up to 1024",
        ),
    ] = usual(512, rows=None)
    positions: Annotated[
        float,
        Setting(
            "Share of the positions, drawn anew, that a training step looks at.",
            above=0,
            most=1,
            rare=True,
            of=(IMAGES,),
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
            of=(IMAGES,),
        ),
    ] = 1.0
    warmup: Annotated[
        float,
        Setting(
            "Share of the training in which the rate rises.",
            above=0,
            below=1,
            rare=True,
            of=(IMAGES,),
        ),
    ] = 0.2
    optimizer: Annotated[
        Literal["adamw", "muon", "muon-anchors"],
        Setting(
            "adamw; muon for the matrices between layers, with AdamW for the rest; or "
            "muon-anchors: the output's anchors are a matrix too.",
            rare=True,
            of=(IMAGES,),
        ),
    ] = "adamw"
    weight_decay: Annotated[float, replace(WEIGHT_DECAY, rare=True)] = usual(0.5, rows=0.1)
    smoothing: Annotated[
        float, Setting("Smoothing of the labels.", least=0, below=1, rare=True, of=(IMAGES,))
    ] = 0.1
    average: Annotated[
        float,
        Setting(
            "Number of epochs over which the weights are averaged (a running mean); 0 for none.",
            least=0,
            rare=True,
            of=(IMAGES,),
        ),
    ] = 1.0
    flip_at_test: Annotated[
        bool,
        Setting(
            "Whether scores are averaged over the image and its mirror image.",
            rare=True,
            of=(IMAGES,),
        ),
    ] = False
    evaluate_every: Annotated[
        int,
        Setting(
            "Number of epochs between two looks at the held-out images; 0: only at the end.",
            least=0,
            rare=True,
            of=(IMAGES,),
        ),
    ] = 1
    flip: Annotated[
        bool,
        Setting("Whether every second image is mirrored left to right.", rare=True, of=(IMAGES,)),
    ] = False
    shift: Annotated[
        int,
        Setting(
            "Largest shift in pixels, in both directions; what comes in is a reflection.",
            least=0,
            rare=True,
            of=(IMAGES,),
        ),
    ] = 2
    cutout: Annotated[
        int,
        Setting(
            "Side of a square that is replaced by the mean colour of its image; 0 for none.",
            least=0,
            rare=True,
            of=(IMAGES,),
        ),
    ] = 0
    rotation: Annotated[
        float,
        Setting(
            "Largest rotation in degrees, of every second image: the others stay sharp.",
            least=0,
            rare=True,
            of=(IMAGES,),
        ),
    ] = 0.0
    zoom: Annotated[
        float,
        Setting(
            "Largest relative change of size of these images, such as 0.1.",
            least=0,
            below=1,
            rare=True,
            of=(IMAGES,),
        ),
    ] = 0.0
    colour: Annotated[
        float,
        Setting(
            "Largest relative change of brightness, and of contrast, such as 0.2.",
            least=0,
            below=1,
            rare=True,
            of=(IMAGES,),
        ),
    ] = 0.0
    mix: Annotated[
        float,
        Setting(
            "Share of the images that get a rectangle of another image, and of its label.",
            least=0,
            most=1,
            rare=True,
            of=(IMAGES,),
        ),
    ] = 0.0
    terms: Annotated[int, Setting("Number of products in the sum.", least=1, of=(ROWS,))] = 32
    form: Annotated[
        ProductForm,
        Setting(
            "How the columns meet: variational, product or signed, see "
            "`kermix.networks.product_rows.GaussianProduct`.",
            of=(ROWS,),
        ),
    ] = "variational"
    patience: Annotated[
        int,
        Setting(
            "Number of epochs without progress on held-out rows after which a member stops.",
            least=1,
            of_training=True,
            of=(ROWS,),
        ),
    ] = 20
    seed: Annotated[int, SEED] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.family.name == IMAGES and self.batch_size is None:
            raise OptionError("batch_size=None must be a whole number, at least 2.")
        if self.model == "cnn" and self.positions < 1:
            raise OptionError("positions is for the Gaussian-product network; the CNN takes all.")
        if self.model == "cnn" and self.score_rate != 1:
            raise OptionError("score_rate is for the Gaussian-product network, not for the CNN.")

    @property
    def peak_rate(self) -> float:
        """The learning rate that is used."""
        return PEAK_RATES[self.model] if self.learning_rate is None else self.learning_rate
