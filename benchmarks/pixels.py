"""Seconds of an epoch of the single-pixel classifier of CIFAR-10, for `benchmarks.speed`.

Images are random bytes of CIFAR-10's size, whose values no time depends on; all else is the
preset of `kermix classify cifar10 --patch 1`. "One pass" takes the last layer and the output
together, "layer by layer" each by itself, compiled as well.
"""

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from kermix.data.images.labelled import LabelledImages
from kermix.images.classifier_settings import preset
from kermix.images.classifier_training import ClassifierTask
from kermix.networks.product_layers import GaussianOutput
from kermix.training.loop import Trainer

__all__ = ["pixel_epochs"]

IMAGES, CLASSES, EPOCHS = 50_000, 10, 3


def pixel_epochs(quick: bool = False) -> list[dict[str, Any]]:
    """The last of three epochs in both ways; the first ones compile."""
    rng = np.random.default_rng(0)
    count = 32 if quick else IMAGES
    images = rng.integers(256, size=(count, 3, 32, 32), dtype=np.uint8)
    labels = rng.integers(CLASSES, size=count)
    data = LabelledImages("random", images, labels, tuple(map(str, range(CLASSES))))
    settings = replace(preset("cifar10", "gaussian-product", 1), epochs=1 if quick else EPOCHS)
    rows: list[dict[str, Any]] = []
    for what in ("one pass", "layer by layer"):
        trainer = Trainer(ClassifierTask(data, None, settings), device="auto")
        if what == "one pass":
            trainer.run()
        else:
            with patch.object(GaussianOutput, "follows", lambda *_: False):
                trainer.run()
        rows.append({"what": f"single pixels, {what}", "images": count,
                     "epoch_s": trainer.history[-1]["seconds"],
                     "loss": trainer.history[-1]["loss"]})  # fmt: skip
    rows[0]["times_layer_by_layer"] = rows[1]["epoch_s"] / rows[0]["epoch_s"]
    return rows
