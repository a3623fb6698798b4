"""Calibration of a table network on held-out rows, and the mean of several networks."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import integrate, optimize, stats

import kermix as km
from internals import (
    ColumnParts,
    TableLayout,
    TableModelSettings,
    TableModelTask,
    TableNetwork,
    TableRows,
    calibrate,
    draw_cells,
    table_split,
)
from interval_cases import noise, share_inside

LAYOUT = TableLayout((3, 2), (1,), (0.0,) * 5)  # a category, and a number with one atom
ROWS = 3000


def network_of(members=1, layout=LAYOUT):
    torch.manual_seed(0)
    network = TableNetwork(layout, width=16, blocks=1, dropout=0.0, members=members).eval()
    with torch.no_grad():
        for member in (network, *network.others):
            member.out.weight.mul_(20)
    return network


def cells(rows=ROWS, seed=0):
    generator = torch.Generator().manual_seed(seed)
    codes = torch.stack([torch.randint(3, (rows,), generator=generator),
                         torch.zeros(rows, dtype=torch.long)], 1)  # fmt: skip
    return codes, torch.randn(rows, 1, generator=generator), generator


def drawn(network, spread, heat, place, seed=0):
    """Cells of a column, drawn from wider Gaussians and flatter probabilities than its own."""
    codes, values, generator = cells(seed=seed)
    seen = torch.ones_like(codes, dtype=torch.bool)
    seen[:, place] = False
    with torch.no_grad():
        parts = network(codes, values, seen)
        wider = parts._replace(
            logits=parts.logits * np.exp(-heat), log_scales=parts.log_scales + spread
        )
        at = torch.full((len(codes),), place)
        new_codes, new_values = draw_cells(network, wider, at, generator)
    codes[:, place] = new_codes
    if place == 1:
        values[:, 0] = new_values
    return parts, codes, values, seen


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize(("spread", "heat"), [(0.6, 0.5), (-0.4, -0.3), (0.0, 0.0)])
def test_the_factors_of_the_data_are_found(members, spread, heat):
    network = network_of(members)
    parts, codes, values, seen = drawn(network, spread, heat, place=1)
    calibrate(network, parts, codes, values, seen, torch.ones(ROWS, 1))
    assert float(network.log_scale_offset[0]) == pytest.approx(spread, abs=0.05)
    assert float(network.log_temperature[1]) == pytest.approx(heat, abs=0.2)
    assert float(network.log_temperature[0]) == 0  # no cell of the category was asked for


def test_the_heat_of_a_category_against_a_search():
    network = network_of()
    parts, codes, values, seen = drawn(network, 0.0, 0.4, place=0)
    calibrate(network, parts, codes, values, seen, torch.ones(ROWS, 1))
    logits = parts.logits[:, :3].double().numpy()

    def loss(heat):
        scaled = logits * np.exp(-heat)
        logs = scaled - np.log(np.exp(scaled).sum(1, keepdims=True))
        return 2.0 * heat**2 - logs[np.arange(ROWS), codes[:, 0].numpy()].sum()

    best = optimize.minimize_scalar(loss, bounds=(-1, 1), method="bounded").x
    assert float(network.log_temperature[0]) == pytest.approx(best, abs=2e-3)
    assert float(network.log_scale_offset[0]) == 0


def test_few_rows_say_little_and_none_nothing():
    network = network_of()
    parts, codes, values, seen = drawn(network, 0.6, 0.0, place=1)

    def first(rows):
        some = ColumnParts(*(p[:rows] for p in parts))
        weights = torch.ones(rows, 1)
        calibrate(network, some, codes[:rows], values[:rows], seen[:rows], weights)
        return float(network.log_scale_offset[0])

    assert first(0) == 0
    assert abs(first(2)) < abs(first(3000))
    far = values + 1e4
    calibrate(network, parts, torch.zeros_like(codes), far, seen, torch.ones(ROWS, 1))
    assert abs(float(network.log_scale_offset[0])) <= 1.5  # how far is looked
    assert bool(torch.isfinite(network.log_temperature).all())


@pytest.mark.parametrize("members", [1, 2])
def test_calibrated_densities_integrate_to_one(members):
    network = network_of(members)
    network.log_scale_offset.fill_(0.5)
    network.log_temperature.copy_(torch.tensor([0.3, -0.4]))
    codes, _, _ = cells(1)
    seen = torch.tensor([[True, False]])
    grid = torch.linspace(-40, 40, 40_001)[:, None]
    codes, seen = codes.expand(len(grid), -1).contiguous(), seen.expand(len(grid), -1)
    atom = codes.clone()
    atom[:, 1] = 1
    with torch.no_grad():
        density = network.log_likelihood(codes, grid, seen)[:, 1].double().exp()
        mass = float(network.log_likelihood(atom, grid, seen)[0, 1].exp())
    whole = integrate.trapezoid(density.numpy(), grid[:, 0].double().numpy()) + mass
    assert whole == pytest.approx(1, abs=1e-5)
    assert mass > 0.01


def test_shares_of_a_column_that_depends_on_nothing_stay():
    network = network_of()
    codes, values, _ = cells(5)
    nothing = torch.zeros_like(codes, dtype=torch.bool)
    with torch.no_grad():
        before = network.log_likelihood(codes, values, nothing)
        network.log_scale_offset.fill_(0.7)
        network.log_temperature.fill_(0.7)
        torch.testing.assert_close(network.log_likelihood(codes, values, nothing), before)
        some = torch.tensor([[True, False]]).expand(5, 2)
        other = network.log_likelihood(codes, values, some)
        network.log_scale_offset.zero_()
        assert not torch.allclose(network.log_likelihood(codes, values, some), other)


def test_several_networks_are_the_mean_of_their_densities():
    network = network_of(3)
    codes, values, _ = cells(200)
    codes[:50, 1] = 1
    for seen in (torch.tensor([[True, False]]), torch.tensor([[False, False]])):
        seen = seen.expand(200, 2)
        with torch.no_grad():
            whole = network.log_likelihood(codes, values, seen).exp()
            members = []
            for member in (network, *network.others):
                parts = member._mixtures(codes, values, seen, None)
                found = member.column_log_likelihood(parts, codes, values, seen)
                members.append(found.masked_fill(seen, 0.0).exp())
        assert float((members[0] - members[1]).abs().max()) > 0.01
        torch.testing.assert_close(whole, torch.stack(members).mean(0), rtol=1e-4, atol=1e-6)


def test_members_are_trained_apart_and_each_for_its_own_loss():
    codes, values, _ = cells(64)
    settings = TableModelSettings(
        width=16, blocks=1, members=2, dropout=0.2, validation_fraction=0.0
    )
    task = TableModelTask(LAYOUT, TableRows(codes, values), settings)
    masks = task.model.dropout_masks(64, torch.Generator().manual_seed(0))
    assert masks.shape == (2, 64, 16)
    seen = torch.zeros_like(codes, dtype=torch.bool)
    parts = task.model(codes, values, seen, masks, apart=True)
    assert parts.means.shape == (128, 1, 12)
    one = task.model.others[0]._mixtures(codes, values, seen, masks[1:])
    torch.testing.assert_close(parts.means[64:], one.means)


def test_a_model_that_learned_by_heart_is_calibrated_by_other_rows():
    model = km.TableModel("y", target_share=1.0, width=32, blocks=1, steps=150, dropout=0.0,
                          average=0, validation_fraction=0.0, random_state=0)  # fmt: skip
    model.fit(noise(100, 0))
    new = noise(1000, 1)
    assert float(model.network_.log_scale_offset.abs().max()) == 0  # there were no rows to tell
    before = share_inside(model, new)
    assert before < 0.8
    model.set_params(validation_fraction=0.4, steps=1, learning_rate=1e-12).adapt(noise(300, 2))
    assert float(model.network_.log_scale_offset[-1]) > 0.2
    assert abs(share_inside(model, new) - 0.9) < abs(before - 0.9) / 2


def test_samples_quantiles_and_densities_are_those_of_one_mixture():
    rng = np.random.default_rng(0)
    sex = rng.choice(["f", "m"], 300)
    table = pd.DataFrame({"sex": sex, "size": rng.normal(170 + 10 * (sex == "m"), 5)})
    model = km.TableModel(width=16, blocks=1, steps=40, members=2, random_state=0).fit(table)
    model.network_.log_scale_offset.fill_(0.4)
    model.network_.log_temperature.fill_(0.5)
    sizes = model.sample(20_000, given={"sex": "m"}, random_state=0)["size"]
    found = model.conditional("size", {"sex": "m"})
    for share in (0.1, 0.5, 0.9):
        at = found.quantile(share)[0]
        error = stats.binom(20_000, share).std() / 20_000
        assert (sizes <= at).mean() == pytest.approx(share, abs=4 * error)
    women = (model.sample(20_000, random_state=1)["sex"] == "f").mean()
    assert women == pytest.approx(model.conditional("sex").probabilities[0, 0], abs=0.02)


def test_models_are_saved_with_their_calibration(tmp_path):
    table = noise(200, 0)
    model = km.TableModel(width=8, blocks=1, steps=20, members=2, calibrate=True, random_state=0)
    model.fit(table)
    assert float(model.network_.log_scale_offset.abs().max()) > 0
    model.save(tmp_path / "model")
    again = km.TableModel.load(tmp_path / "model")
    np.testing.assert_array_equal(again.score_samples(table), model.score_samples(table))


def test_going_on_calibrates_anew():
    model = km.TableModel(width=8, blocks=1, steps=20, random_state=0).fit(noise(200, 0))
    assert float(model.network_.log_scale_offset.abs().max()) == 0  # there is no target
    model.set_params(calibrate=True).adapt(noise(200, 0))
    first = model.network_.log_scale_offset.clone()
    model.adapt(noise(200, 1))
    assert not torch.equal(model.network_.log_scale_offset, first)


@pytest.mark.parametrize(("share", "rows"), [(0.4, 300), (0.99, 60), (0.05, 60), (0.9, 8192)])
def test_some_rows_are_left_to_train_with(share, rows):
    held, train = table_split(rows, TableModelSettings(validation_fraction=share))
    assert len(train) >= 1
    assert len(held) >= min(round(share * rows), 4096, rows - 1)
