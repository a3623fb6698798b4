"""What serves known sets of images, as far as it was compared, and what suits others.

A `preset` holds what was found for a known set, MNIST and CIFAR-10 among them.
"""

from dataclasses import replace
from typing import Any, NamedTuple

from kermix.training.product_settings import NO_AUGMENTATION, NormReading, ProductSettings

__all__ = ["as_written", "preset", "suited_settings"]


class Rule(NamedTuple):
    """Settings that serve some classifiers, which names say; what is not named is any."""

    settings: dict[str, Any]
    dataset: str | None = None
    model: str | None = None
    patches: tuple[int, ...] = ()
    augmented: bool | None = None

    def serves(self, dataset: str, model: str, patch: int | None, augmented: bool) -> bool:
        """Whether a classifier is one of these."""
        return (
            self.dataset in (None, dataset)
            and self.model in (None, model)
            and (not self.patches or patch in self.patches)
            and self.augmented in (None, augmented)
        )


PRODUCT, CNN = "gaussian-product", "cnn"
# A pixel is one to three numbers: all depends on the output's anchors.
PIXELS: dict[str, Any] = {
    "stride": 1, "width": 64, "batch_size": 256, "learning_rate": 0.02, "score_rate": 0.03,
    "epochs": 30,
}  # fmt: skip
# What serves each set as far as it was compared (results/table1-ablations.json), a later rule
# more than one before; a record holds the settings that it had.
RULES = (
    Rule({"evaluate_every": 0}),
    Rule({"stride": 2, "optimizer": "muon", "learning_rate": 0.01, "epochs": 25},
         "mnist", PRODUCT),
    Rule({"stride": 2, "optimizer": "muon", "learning_rate": 0.01, "anchor_grid": 8,
          "output_width": 2048, "epochs": 60}, "cifar10", PRODUCT),
    Rule({**PIXELS, "depth": 1, "output_width": 1024, "image_anchors": True,
          "weight_decay": 0.1}, "mnist", PRODUCT, (1,)),
    Rule({**PIXELS, "depth": 2, "anchor_grid": 16, "weight_decay": 0.05},
         "cifar10", PRODUCT, (1,)),
    # As many positions in a step as with stride 2, but all of them count in the end.
    Rule({"stride": 1, "positions": 0.25}, "cifar10", PRODUCT, (3,)),
    Rule({"weight_decay": 0.05, "epochs": 8}, "mnist", CNN),
    Rule({"weight_decay": 0.05, "epochs": 70}, "cifar10", CNN),
    Rule({"shift": 2, "rotation": 10.0, "zoom": 0.1}, "mnist", augmented=True),
    Rule({"shift": 4, "flip": True, "flip_at_test": True, "colour": 0.2}, "cifar10",
         augmented=True),
    Rule({"shift": 1}, "digits", augmented=True),
    # Rotated images have grey pixels where the others have none, which a pixel's features see.
    Rule({"shift": 1, "rotation": 0.0, "zoom": 0.0}, "mnist", PRODUCT, (1,), augmented=True),
    Rule({"shift": 3, "colour": 0.0}, "cifar10", PRODUCT, (1,), augmented=True),
    Rule({"rotation": 10.0, "zoom": 0.15}, "cifar10", PRODUCT, (5, 7), augmented=True),
    Rule({"cutout": 8, "colour": 0.0}, "cifar10", CNN, augmented=True),
    # The same images again and again are soon known by heart.
    Rule(NO_AUGMENTATION, augmented=False),
    Rule({"epochs": 10}, "mnist", augmented=False),
    Rule({"epochs": 15}, "cifar10", augmented=False),
    # Patches of which a part is left out in turn are not; single pixels are needed all.
    Rule({"stride": 1, "positions": 0.25}, "mnist", PRODUCT, (3, 5, 7), augmented=False),
    Rule({"stride": 1, "positions": 0.1, "epochs": 30}, "cifar10", PRODUCT, (3, 5, 7),
         augmented=False),
)  # fmt: skip


def preset(dataset: str, model: str, patch: int | None, augmented: bool = True) -> ProductSettings:
    """The settings that were found for a set: those of the paper's table, with seed 0.

    Example:
        >>> preset("mnist", "gaussian-product", 3).patch
        3
    """
    options: dict[str, Any] = {"model": model}
    if model != CNN:  # which has no patches, whatever was said
        options["patch"] = patch
    for rule in RULES:
        if rule.serves(dataset, model, patch, augmented):
            options |= rule.settings
    return ProductSettings(**options)


# How Eqs. 25 to 27 as written are trained, by sets, readings and patches: reasoned. Then sizes and
# steps at which the training accuracy of the paper's table is reached without them, or (single
# pixels with vectors as anchors) comes nearest: results/table1-as-written.json.
BOTH, ANY = ("element", "vector"), ()
WRITTEN: tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[int, ...], dict[str, Any]], ...] = (
    (("digits",), BOTH, ANY, {"epochs": 15, "batch_size": 64}),
    (("mnist",), BOTH, ANY, {"epochs": 15, "batch_size": 256}),
    (("cifar10",), BOTH, ANY, {"epochs": 20, "batch_size": 256}),
    (("mnist", "cifar10"), ("element",), (1,), {"output_width": 512, "epochs": 30}),
    (("mnist",), ("vector",), (1,), {"output_width": 1024, "epochs": 40, "score_rate": 100.0}),
    (("mnist",), ("vector",), (3,), {"output_width": 512, "epochs": 30}),
    (("cifar10",), ("vector",), (1,), {"output_width": 1024, "epochs": 60}),
    (("cifar10",), ("vector",), (3, 5, 7), {"output_width": 512, "epochs": 40}),
)


def as_written(
    dataset: str, patch: int, reading: NormReading = "element", depth: int = 3
) -> ProductSettings:
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
        "evaluate_every": 0,
        **NO_AUGMENTATION,
    }
    for sets, ways, patches, settings in WRITTEN:
        if dataset in sets and reading in ways and (not patches or patch in patches):
            options |= settings
    return ProductSettings(
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
) -> ProductSettings:
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
        options["shift"] = 2 if side > 16 else 1
        if model == "gaussian-product":
            # From twice 48, patches are further apart than a pixel; A_F sums over all Gaussians.
            options |= {"stride": max(1, side // 48), "score_rate": 0.1}
        if count < 20_000:
            # Steps rather than epochs decide what is learned from few images.
            options |= {"width": 64, "depth": 3, "output_width": 192}
            options["batch_size"] = min(512, max(16, count // 24))
            # For so few positions, torch's own operations are faster on a CPU.
            if options["batch_size"] * side**2 <= 2**16:
                options["path"] = "plain"
        base = ProductSettings(**(options if augment else options | NO_AUGMENTATION))
        if model == "gaussian-product":
            positions = max(1, (side - patch) // base.stride + 1) ** 2
            # So many numbers in a step: convention.
            most = 2**28 // (positions * max(base.width, base.output_width))
            base = replace(base, batch_size=max(2, min(base.batch_size or most, most)))
    return replace(base, evaluate_every=1)
