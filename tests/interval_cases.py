"""A target that is easily learned by heart, and how often it lies in its intervals."""

import numpy as np
import pandas as pd


def noise(rows, seed):
    """Inputs that tell nothing about most of the target, which is easily learned by heart."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(rows, 5))
    return pd.DataFrame(inputs, columns=list("abcde")).assign(
        y=inputs[:, 0] + rng.normal(size=rows)
    )


def share_inside(model, rows):
    """How many of the targets lie in the nine tenths in the middle of what a model says."""
    below = model.conditional("y", rows).cdf(rows["y"])
    return float((np.abs(below - 0.5) < 0.45).mean())
