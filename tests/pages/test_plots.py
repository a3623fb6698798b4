"""Pictures: each is drawn in both styles, without global state, at the width of a column."""

import pytest
import torch

from cases import normal
from internals import figures_module as plots
from kermix.errors import OptionError, ShapeError
from pictures import ink_in_axes

PLANE = torch.cartesian_prod(torch.linspace(0, 1, 6), torch.linspace(0, 1, 6))
FIGURES = {
    "samples 2-D": lambda s: plots.samples(normal(30, 2), normal(20, 2), style=s),
    "samples 1-D": lambda s: plots.samples(normal(30, 1), normal(20, 1), style=s),
    "spectrum": lambda s: plots.spectrum([1.0, 0.1, 0.0], style=s),
    "functions on a line": lambda s: plots.singular_functions(
        normal(20, 1), normal(20, 4), style=s
    ),
    "functions on a grid": lambda s: plots.singular_functions(
        PLANE, normal(36, 2), shape=(6, 6), singular_values=[1, 0.5], style=s
    ),
    "functions at points": lambda s: plots.singular_functions(
        normal(20, 2), normal(20, 2), style=s
    ),
    "functions of rows": lambda s: plots.singular_functions(normal(20, 5), normal(20, 2), style=s),
    "functions as images": lambda s: plots.singular_functions(
        normal(9, 9), normal(9, 2), shape=(3, 3), images=True, style=s
    ),
}  # fmt: skip


@pytest.mark.parametrize("style", ["light", "dark"])
@pytest.mark.parametrize("name", FIGURES)
def test_every_picture_is_drawn(name, style):
    figure = FIGURES[name](style)
    drawn = ink_in_axes(figure)
    for axes in figure.axes:
        for artist in (*axes.lines, *axes.collections, *axes.images, *axes.patches):
            artist.remove()
    empty = ink_in_axes(figure)
    assert drawn
    assert all(more > 0.01 + less for more, less in zip(drawn, empty, strict=True))
    assert figure.get_size_inches()[0] == plots.COLUMN_WIDTH
    dark = sum(figure.get_facecolor()[:3]) < 1
    assert dark == (style == "dark")


def test_pictures_leave_no_global_state():
    import matplotlib.pyplot as plt

    FIGURES["samples 2-D"]("light")
    assert plt.get_fignums() == []


def test_wrong_requests_say_what_to_do():
    with pytest.raises(ShapeError, match="Choose two columns"):
        plots.samples(normal(10, 3))
    with pytest.raises(OptionError, match="light, dark"):
        plots.spectrum([1.0], style="sepia")
