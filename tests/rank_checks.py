"""What the tests run in many processes: each function is called on every rank."""

import gc
import os
import signal
import time
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import kermix as km
from cases import LOSSES, normal, ridged, uniform
from internals import DistributedLoss, Layout, MixedKernel, Ranks, shares, slice_of
from kermix.errors import KermixError

N, K, D = 23, 14, 2
# Rows of each rank: even, and as uneven as can be.
SPLITS = {
    1: [([23], [14])],
    2: [([12, 11], [7, 7]), ([23, 0], [5, 9])],
    4: [([9, 0, 8, 6], [5, 4, 0, 5])],
}
# Collectives of many processes on few cores are slow: four ranks take the hardest case.
WEIGHTED = {1: (False, True), 2: (False, True), 4: (True,)}
STRATEGIES = ("gather", "shard", "moments")


def _strategies(name, ranks):
    """All of them, for four ranks one: each for two of the losses."""
    place = list(LOSSES).index(name) % len(STRATEGIES)
    return STRATEGIES if ranks < 4 else (STRATEGIES[place],)


def with_group(check, *arguments):
    """Call a check inside a process group."""
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        return check(*arguments)
    finally:
        dist.destroy_process_group()


def everything():
    """All checks of one number of processes: a group is expensive to start."""
    return {
        "gradients": gradients(),
        "mixed": mixed(),
        "polar": polar(),
        "parameters": parameters(),
        "traffic": traffic(),
        "auto": automatic(),
        "errors": disagreements(),
    }


def _worst(found, expected):
    """Relative error of tensors, the largest over ranks."""
    found, expected = ([t.detach() for t in side] for side in (found, expected))
    scale = max(float(e.abs().sum()) for e in expected) or 1.0
    errors = [float((f - e).abs().max()) if e.numel() else 0.0
              for f, e in zip(found, expected, strict=True)]  # fmt: skip
    return float(Ranks().max(torch.tensor(max(errors) / scale, dtype=torch.float64)))


def _points(weighted):
    x, y = normal(N, D, seed=1), normal(K, D, seed=2) + 0.3
    weights = [uniform(N, seed=3) + 0.1, uniform(K, seed=4) + 0.1] if weighted else [None, None]
    if weighted:
        weights[0][5] = 0.0
    return [x, y, *weights]


def _leaves(tensors):
    return [None if t is None else t.detach().clone().requires_grad_() for t in tensors]


def _loss(name, strategy, v=(0.3, 2.0), **options):
    features = km.nystrom_features(normal(40, D, seed=9), list(v), rank=12)
    moments = strategy == "moments"
    loss = LOSSES[name](None if moments else list(v), **ridged(name, 1e-3), **options)
    one = _Sketched(loss, features) if moments else loss
    return one, DistributedLoss(loss, strategy, features=features if moments else None)


class _Sketched(nn.Module):
    """The primal form on one process: a loss beside a sketch, differentiable on both sides."""

    def __init__(self, loss, features):
        super().__init__()
        self.ours = DistributedLoss(loss, "moments", group=None, features=features)

    def forward(self, x, y, weights_x=None, weights_y=None):
        from internals import MomentStatistics, sample_moments

        features = self.ours.features
        moments = [sample_moments(features, *side) for side in ((x, weights_x), (y, weights_y))]
        loss = self.ours.loss
        sides = MomentStatistics(*moments, weights_x is not None, loss.ridge, x.dtype)
        log_cost = loss.log_cost(sides)
        value, _ = sides.answer(loss.cost_name, log_cost, loss.normalized, loss.log)
        value = value if loss.normalized or loss.log else -value
        return loss.minimized(value, min(len(x), len(y)))


def gradients():
    """Value and gradients, at all inputs, against one process with the whole batch."""
    ranks, worst = Ranks(), {}
    for name in LOSSES:
        for strategy in _strategies(name, ranks.size):
            for weighted in WEIGHTED[ranks.size]:
                one, many = _loss(name, strategy)
                whole = _leaves(_points(weighted))
                expected = one(*whole[:2], weights_x=whole[2], weights_y=whole[3])
                expected.backward()
                for rows_x, rows_y in SPLITS[ranks.size]:
                    a, b = slice_of(rows_x, ranks.rank), slice_of(rows_y, ranks.rank)
                    parts = [None if t is None else t[s]
                             for t, s in zip(whole, (a, b, a, b), strict=True)]  # fmt: skip
                    mine = _leaves(parts)
                    value, info = many(*mine, return_info=True)
                    value.backward()
                    assert info.strategy == strategy
                    assert info.rows_x == rows_x
                    found = [t.grad / ranks.size for t in mine if t is not None]
                    truth = [t.grad[s] for t, s in zip(whole, (a, b, a, b), strict=True)
                             if t is not None]  # fmt: skip
                    scale = [t.grad for t in whole if t is not None]
                    key = f"{name} {strategy} weighted={weighted} {rows_x} {rows_y}"
                    for kind, f, e, all_of in zip("xyab", found, truth, scale, strict=False):
                        size = float(all_of.abs().max())
                        error = float((f - e).abs().max()) / size if e.numel() else 0.0
                        worst[f"{key} {kind}"] = error
                    worst[f"{key} value"] = float((value / expected - 1).detach().abs())
    keys = list(worst)
    largest = Ranks().max(torch.tensor([worst[key] for key in keys], dtype=torch.float64))
    return dict(zip(keys, largest.tolist(), strict=True))


def mixed():
    """Rows of numbers and codes: value and gradients against one process."""
    ranks, layout = Ranks(), Layout(2, 2.0, 3)
    kernel = MixedKernel([0.3, 2.0], layout)
    sides = []
    for seed, n in ((1, N), (2, K)):
        codes = (3 * uniform(2 * n, seed=seed)).floor().reshape(n, 2)
        sides.append(torch.cat([normal(n, D, seed=seed), codes], 1))
    features = km.nystrom_features(torch.cat(sides), kernel, rank=12)
    rows_x, rows_y = SPLITS[ranks.size][-1]
    parts = [slice_of(rows, ranks.rank) for rows in (rows_x, rows_y)]
    errors = {}
    for name in LOSSES:
        for strategy in _strategies(name, ranks.size):
            moments = strategy == "moments"
            loss = LOSSES[name](None if moments else kernel, **ridged(name, 1e-3))
            one = _Sketched(loss, features) if moments else loss
            many = DistributedLoss(loss, strategy, features=features if moments else None)
            whole = _leaves(sides)
            expected = one(*whole)
            expected.backward()
            mine = _leaves([t[p] for t, p in zip(sides, parts, strict=True)])
            value = many(*mine)
            value.backward()
            found = [value / expected, *(t.grad / ranks.size for t in mine)]
            truth = [t.grad[p] for t, p in zip(whole, parts, strict=True)]
            errors[f"{name} {strategy}"] = _worst(found, [torch.ones_like(value), *truth])
            assert all(bool((t.grad[:, D:] == 0).all()) for t in mine)
    return errors


def polar():
    """The polar factor by products with only K x K reductions, both ways round."""
    ranks = Ranks()
    errors = {}
    for kind, (n, k) in {"wide": (N, K), "tall": (K, N)}.items():
        x, y = normal(n, D, seed=1), normal(k, D, seed=2)
        _, many = _loss("svd", "shard", method="polar", tolerance=1e-12)
        one, _ = _loss("svd", "shard", method="svd")
        whole = _leaves([x, y])
        one(*whole).backward()
        rows = shares(n, ranks.size), shares(k, ranks.size)
        parts = [slice_of(r, ranks.rank) for r in rows]
        mine = _leaves([x[parts[0]], y[parts[1]]])
        value, info = many(*mine, return_info=True)
        value.backward()
        assert float(info.error_bound) < 1e-10
        found = [t.grad / ranks.size for t in mine]
        errors[kind] = _worst(found, [t.grad[p] for t, p in zip(whole, parts, strict=True)])
    return errors


def _network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, D)).double()


class _Model(nn.Module):
    """A generator and a loss with a learned variance."""

    def __init__(self, network, strategy):
        super().__init__()
        self.network = network
        self.v = nn.Parameter(torch.tensor([0.4, 1.5], dtype=torch.float64))
        self.strategy = strategy

    def forward(self, x, noise):
        loss = km.SVDLoss(km.GaussianKernel(self.v))
        if self.strategy is not None:
            loss = DistributedLoss(loss, self.strategy)
        return loss(x, self.network(noise))


def parameters():
    """After the mean over ranks that DistributedDataParallel takes, gradients of one process."""
    ranks = Ranks()
    x, noise = normal(N, D, seed=1), normal(K, 3, seed=5)
    one = _Model(_network(), None)
    one(x, noise).backward()
    errors = {}
    rows_x, rows_y = (shares(rows, ranks.size) for rows in (N, K))
    for strategy in ("gather", "shard"):
        model = DistributedDataParallel(_Model(_network(), strategy))
        model(x[slice_of(rows_x, ranks.rank)], noise[slice_of(rows_y, ranks.rank)]).backward()
        found = [p.grad for p in model.module.parameters()]
        errors[strategy] = _worst(found, [p.grad for p in one.parameters()])
    return errors


def traffic():
    """Bytes that are handed to collectives, of a batch and of one of twice as many rows."""
    ranks, counted = Ranks(), {}
    features = km.nystrom_features(normal(64, 3, seed=1), 0.5, rank=12)
    for cost in ("scalar", "vector", "data_fixed", "trace", "svd"):
        for strategy in STRATEGIES:
            moments = strategy == "moments"
            loss = LOSSES[cost](None if moments else 0.5)
            many = DistributedLoss(loss, strategy, features=features if moments else None)
            sent = []
            for size in (64, 128):
                x, y = normal(size, 3, seed=1), normal(size // 2, 3, seed=2)
                parts = [slice_of(shares(len(s), ranks.size), ranks.rank) for s in (x, y)]
                mine = y[parts[1]].clone().requires_grad_()
                value, info = many(x[parts[0]], mine, return_info=True)
                value.backward()
                sent.append(info.ranks.payload)
            counted[f"{cost} {strategy}"] = sent
    return counted


def automatic():
    """What `auto` chooses, by size and by what is given."""
    ranks, chosen = Ranks(), {}
    few, many = normal(20, 2, seed=1), normal(3000 // ranks.size, 2, seed=ranks.rank)
    loss = DistributedLoss(km.SVDLoss(0.3))
    chosen["few"] = loss(few, few, return_info=True)[1].strategy
    chosen["many"] = loss(many, many[:200], return_info=True)[1].strategy
    features = km.nystrom_features(few, 0.3, rank=8)
    sketch = km.Sketch(features).update(few)
    value, info = DistributedLoss(km.SVDLoss())(sketch, few, return_info=True)
    chosen["sketch"] = info.strategy
    everybody = torch.cat([few] * ranks.size)
    chosen["sketch error"] = float((value - km.SVDLoss()(sketch, everybody)).abs())
    # Landmarks are chosen among the points of all ranks; the bound holds.
    value, info = DistributedLoss(km.SVDLoss(0.3, log=False), "moments")(
        few, few + 0.2, return_info=True
    )
    exact = km.SVDLoss(0.3, log=False)(everybody, everybody + 0.2)
    chosen["bound holds"] = bool((value - exact).abs() <= info.error_bound)
    return chosen


def disagreements():
    """What does not fit together is refused on every rank, so that none waits for another."""
    ranks, said = Ranks(), {}
    x = normal(5, 2, seed=1)
    first = ranks.rank == 0
    wrong = {
        "dimension": (x if first else normal(5, 3, seed=1), x, None),
        "dtype": (x if first else x.float(), x, None),
        "weights": (x, x, uniform(5, seed=1) if first else None),
        "NaN": (x if not first else x * float("nan"), x, None),
        "empty": (x[:0], x, None),
    }
    for name, (a, b, weights) in wrong.items():
        try:
            DistributedLoss(km.SVDLoss(0.5))(a, b, weights_x=weights)
            said[name] = "nothing"
        except KermixError as error:
            said[name] = str(error)
    return said


def fail_on(rank, how):
    """A rank that fails in the middle, while the others wait for it."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    total = torch.ones(3)
    for step in range(1000):
        if step == 5 and dist.get_rank() == rank:
            if how == "raise":
                raise ValueError("the seventh seal")
            if how == "kermix":
                raise km.errors.SampleError("x has NaN")
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(total)
        time.sleep(0.01)


FITS = {
    "mixture svd": {"learning_rate": 0.01},
    "network vector": {"model": "network", "cost": "vector"},
    "mixture energy": {"cost": "energy", "refine_with": "likelihood"},
    "mixture mmd": {"cost": "mmd"},
    "mixture likelihood": {"cost": "likelihood"},
}


def fit_settings(name):
    from internals import FitSettings

    common = {
        "components": 9,
        "steps": 6,
        "refine_steps": 3,
        "batch_size": 33,
        "refine_batch_size": 33,
    }
    return FitSettings(**{**common, **FITS[name]})


STOPPED, STOP_AT = ("mixture svd", "network vector"), 4


def all_fits(folder):
    """Over two ranks: to the end; stopped in the middle; what one process stopped, to the end."""
    first = fits(folder / "two", 2)
    fits(folder / "stopped by two", 2, STOPPED, STOP_AT)
    return first, fits(folder / "stopped by one", 2, STOPPED)


def fits(folder, devices, names=tuple(FITS), stop_at=None):
    """Train each model; points and reports of what rank 0 ends with."""
    from internals import build_split_rows as split_rows
    from internals import build_trainer, toy

    torch.set_num_threads(1)
    data = split_rows(toy("moons").sample(300, torch.Generator().manual_seed(0)), 0)
    found = {}
    for name in names:
        trainer = build_trainer(data, fit_settings(name), device="cpu", devices=devices)
        path = folder / name
        if trainer.broadcast_from_main((path / "last.safetensors").exists()):
            trainer.load(path / "last.safetensors")
        last = not trainer.is_main or devices == 1

        def stop(trainer=trainer, last=last):
            return last and trainer.step == stop_at

        finished = trainer.run(folder=path, should_stop=stop)
        assert finished == (stop_at is None)
        assert trainer.step == (trainer.total if stop_at is None else stop_at)
        trainer.model.eval()
        with torch.no_grad():
            # Weights themselves may differ: some, such as the softmax's bias, change nothing.
            drawn = trainer.model.draw(20, torch.Generator().manual_seed(1))
        found[name] = (drawn, trainer.history)
    return found


def trains_a_generator():
    """What is said of batch normalization, which processes on CPUs do not share."""
    from internals import FitSettings, build_trainer, toy
    from internals import build_split_rows as split_rows

    data = split_rows(toy("moons").sample(60, torch.Generator().manual_seed(0)), 0)
    settings = FitSettings(model="generator", refine_steps=0, steps=2)
    build_trainer(data, settings, device="cpu", devices=2).run()


def what_holds_a_group():
    """What is left of the wrapped module, and whether there is a group, after a training."""
    from internals import build_split_rows as split_rows
    from internals import build_trainer, toy

    data = split_rows(toy("moons").sample(60, torch.Generator().manual_seed(0)), 0)
    trainer = build_trainer(data, fit_settings("mixture svd"), device="cpu", devices=2)
    trainer.run()
    before = sum(isinstance(o, DistributedDataParallel) for o in gc.get_objects())
    trainer.leave_group()
    after = sum(isinstance(o, DistributedDataParallel) for o in gc.get_objects())
    return before, after, dist.is_initialized()


def node(folder):
    """What a rank of two nodes sees."""
    dist.init_process_group("gloo")
    total = torch.tensor([1.0 + dist.get_rank()])
    dist.all_reduce(total)
    dist.destroy_process_group()
    return float(total), os.environ["RANK"], os.environ["LOCAL_RANK"], os.environ["GROUP_RANK"]


def start_node(number, port, path):
    """Be one of two nodes."""
    from importlib import import_module

    launching = import_module("internals").launch_module

    launching.PRELOADED = ["kermix.distributed.processes"]  # Lightning is not needed, and slow
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), NODE_RANK=str(number))
    path.write_text(repr(launching.launch(node, path, devices=1, nodes=2)))


def table_rows():
    """Codes, numbers and weights of a table whose columns depend on each other."""
    import numpy as np
    import pandas as pd

    import kermix as km
    from internals import TableLayout, TableRows

    rng = np.random.default_rng(0)
    kind = rng.choice(list("abc"), 350)
    size = rng.normal(size=350) + 3 * (kind == "a")
    size[rng.random(350) < 0.1] = np.nan
    table = pd.DataFrame({"kind": kind, "size": size, "count": rng.poisson(40, 350)})
    schema = km.Schema.infer(table)
    codes, values = schema.encode(table).tensors()
    weights = torch.from_numpy(rng.uniform(0.2, 1, 350)).float()
    return TableLayout.of(schema), TableRows(codes, values, weights)


def table_training(devices, **changes):
    """Reports, the kept step and the weights that rank 0 ends with, and the steps of each rank."""
    from internals import TableModelSettings, TableModelTask, Trainer

    torch.set_num_threads(1)
    common = {"width": 16, "blocks": 2, "steps": 40, "batch_size": 33, "learning_rate": 0.01}
    task = TableModelTask(*table_rows(), TableModelSettings(**{**common, **changes}))
    trainer = Trainer(task, device="cpu", devices=devices)
    ended = trainer.run()
    steps = [trainer.step]
    if devices > 1:
        steps = [None] * devices
        dist.all_gather_object(steps, trainer.step)
    weights = {name: p.detach() for name, p in task.model.named_parameters()}
    trainer.leave_group()
    return ended, steps, trainer.history, task.best_step, weights
