"""What guides say about numbers of the library is so."""

import re
import shlex

import pytest

from kermix.data.loading import load
from kermix.training.settings import FitSettings
from pages import ROOT


def test_the_papers_setting_has_the_papers_variance():
    page = (ROOT / "docs" / "guides" / "fit.md").read_text()
    words = shlex.split(re.search(r"the paper's setting[^|]*\| `(.*?)`", page)[1])
    options = dict(zip(words[::2], words[1::2], strict=True))
    assert options["--variance"] == options["--start-variance"], "it is fixed"
    assert options["--variance-factors"] == "1"
    deviation = load("mixture10", 0).values.std(0)
    # The variance of a kernel of scaled data, in units of the data: the paper's 0.001.
    assert float(options["--variance"]) * deviation.square().mean() == pytest.approx(
        0.001, rel=0.05
    )


def test_what_refines_is_the_default():
    page = (ROOT / "docs" / "guides" / "fit.md").read_text()
    refined_with = re.search(r"come out right: by the (.+?), in\s+any dimension", page)[1]
    assert refined_with == FitSettings().refine_with
