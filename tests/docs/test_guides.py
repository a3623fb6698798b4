"""What guides say about numbers of the library is so."""

import re
import shlex

import pytest

from kermix.data.loading import load
from kermix.networks.generators import UniformPrior
from kermix.training.build import build_model
from kermix.training.settings import FitSettings
from pages import ROOT


def test_the_papers_setting_has_the_papers_variance():
    page = (ROOT / "docs" / "guides" / "fit.md").read_text()
    words = shlex.split(re.search(r"the paper's setting[^|]*\| `(.*?)`", page)[1])
    options = dict(zip(words[::2], words[1::2], strict=True))
    assert set(options) == {"--model", "--prior", "--variance-factors", "--kernel-variance"}
    settings = FitSettings(
        model=options["--model"],
        prior=options["--prior"],
        variance_factors=(float(options["--variance-factors"]),),
        kernel_variance=float(options["--kernel-variance"]),
    )
    values = load("mixture10", 0).values
    model, variances = build_model(values, settings)
    # The variance of a kernel of scaled data, in units of the data: the paper's 0.001, fixed.
    for share in (0.0, 1.0):
        (now,) = variances.at(share)
        assert now * model.scaler.scale[0, 0].square() == pytest.approx(0.001)
    assert model.prior == UniformPrior(10)


def test_what_refines_is_the_default():
    page = (ROOT / "docs" / "guides" / "fit.md").read_text()
    refined_with = re.search(r"come out right: by the (.+?), in\s+any dimension", page)[1]
    assert refined_with == FitSettings().refine_with
