"""Members of a table network that leave out different rows, and how wide those make mixtures."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import optimize, special

import kermix as km
from internals import (
    ColumnParts,
    OutOfFold,
    TableLayout,
    TableModelSettings,
    TableModelTask,
    TableNetwork,
    TableRows,
    Trainer,
    for_all_members,
    make_fabric,
    table_split,
)
from interval_cases import noise, share_inside

LAYOUT = TableLayout((3, 2), (1,), (0.0,) * 5)  # a category, and a number with one atom


def cells(rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(2, (rows, 2), generator=generator)
    return codes, torch.randn(rows, 1, generator=generator)


@pytest.mark.parametrize("rows", [53, 300, 1999])
@pytest.mark.parametrize(("members", "most"), [(3, 0.25), (4, 0.25), (5, 0.2), (8, 0.125)])
def test_two_members_leave_out_each_judging_row(rows, members, most):
    out_of_fold = OutOfFold(rows, members, seed=1)
    left_out = out_of_fold.left_out
    count = int(rows * min(0.5, members / 8))
    assert len(out_of_fold.judging) == len(set(out_of_fold.judging.tolist())) == count
    assert bool((left_out[out_of_fold.judging].sum(1) == 2).all())
    assert int(left_out.sum()) == 2 * count
    pairs = [int(left_out[:, pair].all(1).sum()) for pair in itertools.combinations(
        range(members), 2)]  # fmt: skip
    assert max(pairs) - min(pairs) <= 1
    assert abs(left_out.sum(0) / rows - most).max() < members / rows
    assert torch.equal(OutOfFold(rows, members, seed=1).left_out, left_out)
    assert not torch.equal(OutOfFold(rows, members, seed=2).left_out, left_out)


@pytest.mark.parametrize(
    ("rows", "changes", "expected"),
    [(49, {}, False), (50, {}, True), (1996, {}, True), (1997, {}, False),
     (600, {"members": 2}, False), (600, {"members": 3}, True),
     (600, {"out_of_fold": False}, False),
     (600, {"calibrate": False}, False), (600, {"calibrate": None}, False),
     (600, {"calibrate": None, "target": 0, "target_share": 0.5}, True),
     (600, {"validation_fraction": 0.0}, False), (600, {"validation_fraction": 0.2}, False),
     (598, {"validation_fraction": 0.2}, True), (6000, {"validation_fraction": 0.01}, True)],
)  # fmt: skip
def test_small_tables_and_no_others_are_judged_out_of_fold(rows, changes, expected):
    common = {"members": 4, "out_of_fold": True, "calibrate": True}
    settings = TableModelSettings(**{**common, **changes})
    assert settings.is_out_of_fold(rows) == expected
    held, train = table_split(rows, settings)
    assert len(held) + len(train) == rows
    if expected:
        assert len(held) == 0


def test_rows_are_judged_by_the_mean_density_of_members_that_left_them_out():
    torch.manual_seed(0)
    network = TableNetwork(LAYOUT, width=16, blocks=1, members=4).eval()
    with torch.no_grad():
        for member in (network, *network.others):
            member.out.weight.mul_(20)
    out_of_fold = OutOfFold(200, 4, seed=0)
    codes, values = cells(200)
    seen = torch.tensor([[True, False], [False, False]])[torch.arange(200) % 2]
    rows = out_of_fold.judging[:50]
    block = codes[rows], values[rows], seen[rows]
    with torch.no_grad():
        found = out_of_fold.log_likelihood(network, rows, *block)
        members = torch.stack([
            member.column_log_likelihood(member._mixtures(*block, None), *block)
            for member in (network, *network.others)
        ]).double()  # fmt: skip
    for k, row in enumerate(rows):
        own = members[out_of_fold.left_out[row].nonzero()[:, 0], k]
        expected = own.exp().mean(0).log()
        others = members[(~out_of_fold.left_out[row]).nonzero()[:, 0], k].exp().mean(0).log()
        hidden = ~seen[row]
        torch.testing.assert_close(found[k].double()[hidden], expected[hidden])
        assert not torch.allclose(found[k].double()[hidden], others[hidden])


def task_of(weighted):
    codes, values = cells(200)
    weights = torch.rand(200, generator=torch.Generator().manual_seed(1)) if weighted else None
    settings = TableModelSettings(
        width=8, blocks=1, members=4, dropout=0.0, calibrate=True, out_of_fold=True
    )
    task = TableModelTask(LAYOUT, TableRows(codes, values, weights), settings)
    task.prepare(make_fabric("cpu", "32-true"), None)
    return task


def gradients(task):
    """Of each member, by a batch of all rows."""
    rows = torch.arange(task._rows.rows)
    asked = task._questions(len(rows), torch.Generator().manual_seed(0))
    task.model.zero_grad()
    task.loss(task.model, (rows, asked, ()), 0).backward()
    main = {n: p for n, p in task.model.named_parameters() if not n.startswith("others")}
    everyone = [main.values(), *(other.parameters() for other in task.model.others)]
    return [torch.cat([p.grad.flatten() for p in own]) for own in everyone]


@pytest.mark.parametrize("weighted", [False, True])
def test_a_member_learns_nothing_from_rows_that_it_leaves_out(weighted):
    task = task_of(weighted)
    assert len(task._train) == 200
    before, values = gradients(task), task._rows.values
    for member in range(4):
        changed = torch.where(task._out_of_fold.left_out[:, [member]], values + 1, values)
        task._rows = task._rows._replace(values=changed)
        for other, gradient in enumerate(gradients(task)):
            assert torch.equal(before[other], gradient) == (other == member)


class Told(TableNetwork):
    """A network whose members say what they are told to."""

    told: ColumnParts

    def forward(self, codes, values, seen, masks=None, apart=False):
        assert apart
        return self.told


def needed(errors, scale, values):
    """The factor, as a logarithm, that makes the mean of Gaussians most likely, by search."""

    def loss(spread):
        z = (values[:, None] - errors) / (scale * np.exp(spread))
        logs = -0.5 * z**2 - np.log(scale) - spread - np.log(errors.shape[1])
        return -special.logsumexp(logs, axis=1).mean()

    return optimize.minimize_scalar(loss, bounds=(-1.5, 1.5), method="bounded").x


@pytest.mark.parametrize("members", [3, 4, 8])
@pytest.mark.parametrize(("differ", "scale"), [(0.5, 0.6), (0.3, 1.5), (0.0, 0.7), (0.7, 0.9)])
def test_all_members_get_what_their_mean_density_needs(members, differ, scale):
    rng = np.random.default_rng(members)
    rows = 8000
    out_of_fold = OutOfFold(rows, members, seed=0)
    # Targets around zero, and members that are off by what they differ.
    values, errors = rng.normal(size=rows), differ * rng.normal(size=(rows, members))
    network = Told(LAYOUT, width=4, blocks=1, components=1, members=members)
    some = out_of_fold.judging
    count = len(some) * members
    means = torch.from_numpy(errors[some].T.reshape(-1, 1, 1)).float()
    network.told = ColumnParts(
        torch.tensor([[0.0, 0, 0, 20, -20]]).expand(count, -1), torch.zeros(count, 1, 1), means,
        torch.full((count, 1, 1), np.log(scale)), torch.zeros(count, 1, 0),
    )  # fmt: skip
    codes = torch.zeros(len(some), 2, dtype=torch.long)
    known = torch.tensor([[True, False]]).expand(len(some), 2)
    of_rows = torch.from_numpy(values[some, None]).float()
    weights = torch.ones(len(some), 1)
    with torch.no_grad():
        out_of_fold.calibrate(network, some, codes, of_rows, known, weights)
    found = float(network.log_scale_offset[0])
    for_all = needed(errors, scale, values)
    for_two = needed(errors[:, :2], scale, values)
    # Of members that differ much the line is wide rather than narrow, and nearer than two are.
    assert found > for_all - 0.03
    assert found < for_all + 0.04 + 0.5 * max(0.0, for_two - for_all)


def test_rows_without_weight_do_not_count():
    members, rows = 4, 400
    out_of_fold = OutOfFold(rows, members, seed=0)
    network = TableNetwork(LAYOUT, width=8, blocks=1, members=members).eval()
    some = out_of_fold.judging
    codes, values = cells(rows)
    known = torch.tensor([[True, False]]).expand(len(some), 2)
    weights = torch.ones(len(some), 2)
    weights[50:] = 0
    found = []
    for far in (0.0, 3.0):
        values[some[50:]] += far
        with torch.no_grad():
            out_of_fold.calibrate(network, some, codes[some], values[some], known, weights)
        found.append((network.log_scale_offset.clone(), network.log_temperature.clone()))
    torch.testing.assert_close(found[0], found[1])
    assert float(found[0][0].abs()) > 0.01


def test_the_line_goes_through_one_and_two():
    one, two = torch.tensor([0.4, -0.2]), torch.tensor([0.3, 0.1])
    torch.testing.assert_close(for_all_members(one, two, 2), two)
    torch.testing.assert_close(for_all_members(one, two, 1), one)
    torch.testing.assert_close(for_all_members(one, one, 9), one)


def test_intervals_of_a_small_table_hold_what_they_say():
    model = km.TableModel("y", target_share=1.0, width=32, blocks=1, steps=200, members=4,
                          dropout=0.0, learning_rate=0.01, random_state=2)  # fmt: skip
    model.fit(noise(160, 2))
    new = noise(3000, 99)
    assert 0 < model.n_iter_ < 200
    calibrated = share_inside(model, new)
    assert calibrated == pytest.approx(0.9, abs=0.025)
    model.network_.log_scale_offset.zero_()
    assert share_inside(model, new) < calibrated - 0.02


def test_gaps_categories_and_all_columns():
    rng = np.random.default_rng(0)
    table = noise(150, 0)
    table["kind"] = rng.choice(list("uvw"), 150)
    table.loc[rng.random(150) < 0.2, "b"] = np.nan
    model = km.TableModel(width=8, blocks=1, steps=8, members=3, calibrate=True, random_state=0)
    model.fit(table, sample_weight=rng.uniform(0.5, 2, 150))
    assert float(model.network_.log_scale_offset.abs().min()) > 0
    assert float(model.network_.log_temperature[-1].abs()) > 0
    assert np.isfinite(model.score_samples(table)).all()
    assert len(model.sample(20, given={"kind": "u"})) == 20


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1)])
def test_going_on_has_the_members_that_there_are(before, after):
    model = km.TableModel("y", target_share=1.0, width=8, blocks=1, steps=8, members=before,
                          random_state=0).fit(noise(120, 0))  # fmt: skip
    model.set_params(members=after).adapt(noise(120, 1))
    assert model.network_.members == before
    assert np.isfinite(model.conditional("y", noise(5, 2)).mean()).all()


@pytest.mark.parametrize("weighted", [False, True])
def test_processes_that_share_a_batch_have_its_gradient(weighted):
    task = task_of(weighted)
    whole = gradients(task)
    shares = []
    for rank in range(3):  # of 67, 67 and 66 rows
        task._ranks = SimpleNamespace(rank=rank, size=3, sum=lambda t: t)
        shares.append(gradients(task))
    for member in range(4):
        mean = torch.stack([share[member] for share in shares]).mean(0)
        torch.testing.assert_close(mean, whole[member], rtol=1e-4, atol=1e-6)


def test_stopped_and_resumed_is_the_same(tmp_path):
    codes, values = cells(300)
    settings = TableModelSettings(width=8, blocks=1, steps=30, batch_size=40, members=4,
                                  target=1, target_share=0.5, out_of_fold=True)  # fmt: skip
    ends = []
    for stops in (False, True):
        trainer = Trainer(TableModelTask(LAYOUT, TableRows(codes, values), settings), "cpu")
        if stops:
            trainer.run(should_stop=lambda own=trainer: own.step >= 11)
            assert 0 < trainer.step < 30
            trainer.save(tmp_path / "last")
            trainer = Trainer(TableModelTask(LAYOUT, TableRows(codes, values), settings), "cpu")
            trainer.load(tmp_path / "last")
        trainer.run()
        ends.append(trainer.task.model.state_dict())
    assert float(ends[0]["log_scale_offset"].abs()) > 0
    for name, tensor in ends[0].items():
        assert torch.equal(tensor, ends[1][name]), name
