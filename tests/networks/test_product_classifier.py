"""The Gaussian-product network for images: its structure, its start, its errors."""

import pytest
import torch
from torch.testing import assert_close

import tolerances
from internals import (
    GaussianProductClassifier,
    PlainCNN,
    ProductDesign,
    image_patches,
    whitening_map,
)
from kermix.errors import OptionError, SampleError, ShapeError

SIDE = 9


def pictures(count=24, channels=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (count, channels, SIDE, SIDE)
    return torch.randint(256, shape, generator=generator, dtype=torch.uint8)


def network_of(patch, **options):
    generator = torch.Generator().manual_seed(0)
    options = {"width": 12, "depth": 3, "output_width": 20, **options}
    design = ProductDesign(patch, **options)
    network = GaussianProductClassifier((2, SIDE, SIDE), 4, design, generator=generator)
    network.prepare(pictures(), generator)
    network.train()(pictures())  # statistics that are not those of the start
    return network.eval()


@pytest.mark.parametrize("options", [{}, {"anchors_at": (0, 2)}, {"residual": True}])
@pytest.mark.parametrize(("patch", "stride"), [(1, 1), (3, 1), (3, 3), (5, 2), (7, 1)])
def test_no_position_sees_another_before_the_output(patch, stride, options):
    network = network_of(patch, stride=stride, **options)
    patches = network.patches(pictures(3))
    before = network.patch_features(patches)
    place = patches.shape[1] // 2
    patches[:, place] += 5.0
    after = network.patch_features(patches)
    elsewhere = torch.arange(patches.shape[1]) != place
    assert torch.equal(before[:, elsewhere], after[:, elsewhere])
    assert not torch.equal(before[:, place], after[:, place])
    # The scores do change: there the positions meet.
    assert not torch.equal(network.output(before), network.output(after))


@pytest.mark.parametrize("patch", [1, 3, 5])
def test_a_pixel_reaches_only_the_patches_it_lies_in(patch):
    network, images = network_of(patch), pictures(2)
    before = network.features(images).unflatten(1, network.grid)
    images[:, :, 4, 4] = 255 - images[:, :, 4, 4]
    after = network.features(images).unflatten(1, network.grid)
    changed = (before != after).any(-1).any(0)
    reached = torch.zeros(network.grid, dtype=torch.bool)
    low = 4 - patch + 1
    reached[max(low, 0) : 5, max(low, 0) : 5] = True
    assert torch.equal(changed, reached)


@pytest.mark.parametrize("options", [{}, {"anchors_at": (0, 1)}, {"anchor_grid": 2}])
def test_some_positions_are_a_network_of_these_only(options):
    generator = torch.Generator().manual_seed(0)
    network = GaussianProductClassifier(
        (2, 7, 7), 4, ProductDesign(width=8, depth=2, **options), generator=generator
    ).eval()
    images = torch.rand(5, 2, 7, 7, generator=generator)
    at = torch.tensor([3, 17, 4])
    assert_close(network.features(images, at), network.features(images)[:, at])
    k, anchors = network.features(images)[:, at], network.output.position_anchors()[at]
    mean = (k - anchors).square().mean(1)
    assert_close(network.output.exponent(k, at), network.output.norm(mean))
    assert_close(network(images, torch.arange(25)), network(images))
    assert not torch.allclose(network(images, at), network(images))


def test_patches_are_those_of_a_convolution():
    pixels = torch.randn(2, 3, 7, 8, dtype=torch.float64)
    kernel = torch.randn(5, 3, 3, 3, dtype=torch.float64)
    expected = torch.nn.functional.conv2d(pixels, kernel, stride=2).flatten(2).mT
    found = image_patches(pixels, 3, 2) @ kernel.flatten(1).T
    assert_close(found, expected, **tolerances.same(torch.float64))


def test_whitening_makes_the_covariance_one():
    mixing = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows = torch.randn(5000, 6, dtype=torch.float64) @ mixing + 3
    mean, whitener = whitening_map(rows, 1e-9)
    white = (rows - mean) @ whitener
    assert_close(white.T.cov(), torch.eye(6, dtype=torch.float64), rtol=0, atol=1e-4)
    assert_close(whitener, whitener.T)
    _, scaled = whitening_map(rows, None)
    level = ((rows - mean) @ scaled).var(0).mean()
    assert_close(level, torch.ones_like(level))


def test_the_filters_are_what_pixels_are_multiplied_by():
    network, images = network_of(3), pictures(2)
    pixels = images.double() / 255
    network = network.double()
    found = torch.nn.functional.conv2d(pixels, network.filters()).flatten(2).mT
    offset = network.layers[0].weight @ (network.patch_mean @ network.patch_map)
    expected = network.patches(pixels) @ network.layers[0].weight.T
    assert_close(found - offset, expected, **tolerances.same(torch.float64))
    assert network.anchor_maps().shape == (20, 7, 7)


def test_the_output_can_start_from_images():
    network = network_of(1, image_anchors=True)
    centres = network.output.anchors.detach()
    network.train()
    generator = torch.Generator().manual_seed(0)
    images = pictures()
    network.prepare(images, generator)
    again = network.features(images).detach()
    # Each Gaussian is centred at one of the images: its mean square is 0 there.
    squares = (again - network.output.anchors.detach()).square().mean(1).amin(0)
    assert_close(squares, torch.zeros_like(squares), atol=1e-6, rtol=0)
    assert centres.shape == (SIDE * SIDE, 20)
    gridded = network_of(1, image_anchors=True, anchor_grid=3)
    assert gridded.output.anchors.shape == (9, 20)


def test_a_grid_of_anchors_is_interpolated():
    network = network_of(1, anchor_grid=3)
    assert network.output.anchors.shape == (9, 20)
    maps = network.anchor_maps()
    assert maps.shape == (20, SIDE, SIDE)
    grid = network.output.anchors.T.unflatten(1, (3, 3))
    assert_close(maps[:, 1::3, 1::3], grid.detach())  # the middles of the cells


@pytest.mark.parametrize("network", ["product", "cnn"])
def test_bytes_and_floats_are_the_same_images(network):
    generator = torch.Generator().manual_seed(0)
    model = network_of(3) if network == "product" else PlainCNN(
        (2, SIDE, SIDE), 4, widths=(4, 8), generator=generator
    )  # fmt: skip
    model.prepare(pictures(), generator)
    model.eval()
    assert_close(model(pictures(3)), model(pictures(3).float() / 255))
    assert model(pictures(3)).shape == (3, 4)


def test_bad_arguments_have_named_errors():
    shape = (1, 8, 8)
    for options in ({"patch": 2}, {"patch": 9}, {"stride": 0}, {"anchors_at": (4,)},
                    {"whitening": 0.0}, {"anchor_grid": 0}, {"alpha": "two"}):  # fmt: skip
        with pytest.raises(OptionError, match=next(iter(options))):
            GaussianProductClassifier(shape, 10, ProductDesign(**options))
    with pytest.raises(OptionError, match="classes=1"):
        GaussianProductClassifier(shape, 1)
    with pytest.raises(ShapeError, match="1, 8, 8"):
        GaussianProductClassifier(shape, 2, ProductDesign(width=4))(torch.zeros(2, 1, 8, 9))
    with pytest.raises(SampleError, match="equal"):
        GaussianProductClassifier(shape, 2, ProductDesign(width=4)).prepare(
            torch.zeros(5, 1, 8, 8), torch.Generator()
        )
