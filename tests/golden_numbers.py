"""Golden numbers: seeded results of every command and public function, to compare after a move.

    python tests/golden_numbers.py --write     # compute all and write tests/golden/golden.json
    python tests/golden_numbers.py             # compute all and say what is not equal, bit for bit

All goes through the command line and the names of `import kermix as km`; what has another name
after a move is changed in the section "Names" alone, never a number. An array is kept by its
shape, sum, norm and a few of its values, a training by the loss of each of its first steps.
"""

import argparse
import csv
import json
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

import golden_tables
import kermix as km
from golden_tables import DIGEST, Exact

# ---- Names: what a move may change ------------------------------------------------------------
from internals import GenerationTraining, app, fit_conditional
from internals import generation_module as ablations
from internals import generation_train as train
from internals import identity_module as identity
from internals import singular_functions_module as singular_functions

ABLATIONS = {"frobenius": ablations.frobenius_cost, "distance": ablations.distance_nuclear_cost}
STEPS, POLISH, FINISH, BATCH = "--steps", "--refine-steps", "--refine-with", "--batch-size"
POLISH_BATCH, SPREAD, RATE = "--refine-batch-size", "--variance-factors", "--learning-rate"
COVARIANCE = "--covariance-type"
POLISH_KEYWORD, COVARIANCE_KEYWORD = "refine_steps", "covariance_type"  # of KernelMixture
LOSSES_FILE, LOSS, METRIC = "metrics.csv", "loss", "metric"


def conditional(context, target, steps, polish, finish="likelihood", **options):
    return fit_conditional(
        context, target, components=4, width=16, batch_size=64, refine_batch_size=64, steps=steps,
        refine_steps=polish, refine_with=finish, **options, device="cpu",
    )  # fmt: skip


def figure_of_generation(method):
    """Numbers and samples of a network of the paper's figure, after 20 steps."""
    numbers, samples, _ = train(
        method, 0, GenerationTraining(steps=20, batch_size=64, width=16, compared=100)
    )
    return {**numbers, "samples": samples}


# ---- What is kept of a result -----------------------------------------------------------------

FIXTURE = Path(__file__).parent / "golden" / "golden.json"
SHOWN = 8  # values of an array
ZERO = 1e-9  # a norm below it is rounding
TINY = 1e-300  # between digests of bytes, which any rounding changes: only equal bit for bit


def kept(value):
    """Something that JSON holds exactly: floats are written with all their digits."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        if value.ndim == 0:
            return kept(value.item())
        if value.dtype.kind not in "biuf":
            return [Exact(cell) for cell in value.ravel().tolist()]
        numbers = value.astype(np.float64).ravel()
        places = np.linspace(0, max(len(numbers) - 1, 0), SHOWN)
        chosen = np.unique(places.round().astype(int))[: len(numbers)]
        return {
            "shape": list(value.shape),
            "dtype": str(value.dtype),
            "sum": kept(math.fsum(numbers.tolist())),
            "norm": kept(math.sqrt(math.fsum((numbers**2).tolist()))),
            "values": [kept(x) for x in numbers[chosen].tolist()],
        }
    if isinstance(value, dict):
        return {str(k): kept(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [kept(v) for v in value]
    if isinstance(value, np.generic):
        return kept(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str) and " " in value and not isinstance(value, Exact):
        return "words"  # sentences may be worded otherwise
    return value


def differences(found, golden, tolerance, where=""):
    """Places where two kept results differ by more than a tolerance, relative to their size.

    The tolerance is a number, or a function of the place.
    """
    allowed = tolerance if callable(tolerance) else lambda place: tolerance
    return [
        f"{place}: {text}"
        for place, distance, text in distances(found, golden, where)
        if distance > allowed(place)
    ]


def distances(found, golden, where=""):
    """Where two kept results differ, by how much relative to their size, and in words."""
    if isinstance(golden, dict) and isinstance(found, dict):
        if found.keys() != golden.keys():
            yield where, math.inf, f"has {sorted(found)}, not {sorted(golden)}"
        elif {"shape", "sum", "norm", "values"} <= golden.keys():
            yield from _array_distances(found, golden, where)
        else:
            for key in golden:
                yield from distances(found[key], golden[key], f"{where}/{key}")
    elif isinstance(golden, list) and isinstance(found, list):
        if len(found) != len(golden):
            yield where, math.inf, f"{len(found)} of them, not {len(golden)}"
        else:
            for i, pair in enumerate(zip(found, golden, strict=True)):
                yield from distances(*pair, f"{where}/{i}")
    else:
        yield from _distance(found, golden, 1e-3, where)


def _array_distances(found, golden, where):
    if any(found[name] != golden[name] for name in ("shape", "dtype")):
        yield where, math.inf, f"{found['shape']} {found['dtype']}, not {golden['shape']}"
        return
    size = math.prod(golden["shape"])
    norm = max(golden["norm"], ZERO) if _number(golden["norm"]) else math.inf
    # A value may be a rounding of what the others are; a sum has the errors of all.
    for name, scale in {"norm": norm, "sum": norm * math.sqrt(max(size, 1))}.items():
        yield from _distance(found[name], golden[name], scale, f"{where}/{name}")
    each = norm / math.sqrt(max(size, 1))
    for i, pair in enumerate(zip(found["values"], golden["values"], strict=True)):
        yield from _distance(*pair, each, f"{where}/values/{i}")


def _distance(found, golden, scale, where):
    if found != golden:
        both = _number(found) and _number(golden)
        distance = abs(found - golden) / max(abs(golden), scale) if both else math.inf
        if str(found).startswith(DIGEST) and str(golden).startswith(DIGEST):
            distance = TINY
        yield where, distance, f"{found!r}, not {golden!r}"


def _number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


def machine():
    """What decides about the last bits of a result."""
    return {
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "processor": _processor(),
    }


def _processor():
    """Vendor, family and model: with the same instructions, MKL takes another way on each."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    pairs = [re.split(r"\s*:\s*", line, maxsplit=1) for line in lines if ":" in line]
    facts = dict(reversed(pairs))  # of the first core
    known = [facts[name] for name in ("vendor_id", "cpu family", "model") if name in facts]
    return " ".join(known) or platform.processor()


# ---- Inputs -----------------------------------------------------------------------------------


def normal(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def weights(n, seed):
    generator = torch.Generator().manual_seed(seed)
    return 0.1 + torch.rand(n, generator=generator, dtype=torch.float64)


def slopes(function, *inputs):
    """The value of a function and its gradients."""
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    value = function(*leaves)
    gradients = torch.autograd.grad(value.sum(), leaves)
    return {"value": value, "gradients": list(gradients)}


def command(*arguments):
    """What a command prints."""
    from typer.testing import CliRunner

    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exit_code:
        raise RuntimeError(f"{arguments}: {result.output}") from result.exception
    return result.stdout


def json_of(*arguments):
    return json.loads(command(*arguments, "--json"))


def losses(run, *more):
    rows = list(csv.DictReader((run / LOSSES_FILE).read_text().splitlines()))
    return {name: [float(row[name]) for row in rows] for name in (LOSS, *more)}


def write_rows(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = ",".join(f"c{i}" for i in range(rows.shape[1]))
    lines = [",".join(repr(float(v)) for v in row) for row in rows]
    path.write_text("\n".join([columns, *lines]) + "\n")
    return path


def write_pictures(folder, count=10, side=16):
    """Two classes of small pictures."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for number, name in enumerate(("circle", "square")):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            array = np.full((side, side, 3), 30 + 160 * number, np.uint8)
            x, y = rng.integers(0, side - 6, 2)
            array[y : y + 6, x : x + 6] = rng.integers(0, 255, 3)
            Image.fromarray(array).save(folder / name / f"{i:02}.png")
    return folder


# ---- Sections ---------------------------------------------------------------------------------

COSTS = {
    "scalar": km.scalar_cost, "vector": km.vector_cost, "matrix": km.matrix_cost,
    "svd": km.svd_cost,
}  # fmt: skip
KERNELS = {
    "one": lambda: 0.5,
    "several": lambda: [0.2, 1.0, 5.0],
    "unequal": lambda: km.GaussianKernel(0.3, 0.7),
    "undivided": lambda: km.GaussianKernel(0.8, per_dimension=False),
}


def costs(folder):
    found = {}
    for name, cost in COSTS.items():
        for kernel, make in KERNELS.items():
            for d in (2, 12):
                x, y = normal(30, d, seed=1), normal(21, d, seed=2) + 0.3
                key = f"{name}, {kernel}, {d} columns"
                found[key] = slopes(lambda x, y, c=cost, m=make: c(x, y, m()), x, y)
        x, y, a, b = normal(17, 3, seed=3), normal(13, 3, seed=4), weights(17, 5), weights(13, 6)

        def weighted(x, y, a, b, cost=cost, **options):
            return cost(x, y, 0.5, weights_x=a, weights_y=b, **options)

        found[f"{name}, weights"] = slopes(weighted, x, y, a, b)
        for option in ("normalized", "log"):
            found[f"{name}, {option}"] = slopes(
                lambda *t, f=weighted, o=option: f(*t, **{o: True}), x, y, a, b
            )
        single = x.float(), y.float()
        found[f"{name}, float32"] = slopes(lambda x, y, c=cost: c(x, y, 0.5), *single)
        batch = normal(3, 9, 2, seed=7), normal(3, 8, 2, seed=8)
        found[f"{name}, batch"] = slopes(lambda x, y, c=cost: c(x, y, 0.5), *batch)
        found[f"{name}, far"] = slopes(
            lambda x, y, c=cost: c(x, y, 0.5, log=True, normalized=True), x, y + 12.0
        )
    x, y = normal(25, 3, seed=9), normal(25, 3, seed=10)
    for form in ("trace", "data_fixed", "logdet"):
        found[f"matrix, {form}"] = slopes(
            lambda x, y, f=form: km.matrix_cost(x, y, 0.5, form=f), x, y
        )
    found["frobenius"] = slopes(lambda x, y: ABLATIONS["frobenius"](x, y, 0.5), x, y)
    found["distance"] = slopes(ABLATIONS["distance"], x, y)
    found["vector_weights"] = km.vector_weights(x, y, 0.5, ridge=1e-3)
    found["vector_weights, not negative"] = km.vector_weights(x, y, 0.5, nonnegative=True)
    return found


def large_costs(folder):
    """Beyond the sizes at which tiles, iterations or features take over."""
    found = {}
    x, y = normal(1300, 3, seed=1), normal(1200, 3, seed=2) + 0.2
    for name in ("scalar", "vector"):
        found[name] = slopes(lambda x, y, c=COSTS[name]: c(x, y, 0.3, log=True), x, y)
    found["scalar, chunks"] = slopes(lambda x, y: km.scalar_cost(x, y, 0.3, chunk=500), x, y)
    x, y = x[:700].float(), y[:650].float()
    for method in ("auto", "svd"):
        found[f"svd, {method}"] = slopes(
            lambda x, y, m=method: km.svd_cost(x, y, 0.3, method=m), x, y
        )
    value, info = km.svd_cost(
        normal(5000, 2, seed=3), normal(4500, 2, seed=4), 1.0, normalized=True, return_info=True
    )
    found["svd of many"] = {"value": value, "method": info.method}
    return found


def loss_modules(folder):
    kinds = (km.SVDLoss, km.ScalarLoss, km.VectorLoss, km.MatrixLoss)
    x, y = normal(24, 2, seed=1), normal(24, 2, seed=2) + 0.2
    found = {}
    for kind in kinds:
        name = kind.__name__
        found[name] = slopes(kind([0.1, 1.0]), x, y)
        found[f"{name}, log=False"] = slopes(kind(0.5, log=False), x, y)
        found[f"{name}, debiased"] = slopes(km.DebiasedLoss(kind(0.5)), x, y)
        found[f"{name}, weights"] = kind(0.5)(x, y, weights(24, 3), weights(24, 4))
        variance = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
        kind(variance)(x, y).backward()
        found[f"{name}, variance"] = variance.grad
    return found


def kernels(folder):
    x, y = normal(40, 3, seed=1), normal(30, 3, seed=2)
    matrix = km.gram(x, y, 0.3)
    found = {"gram": matrix, "gram of several": km.gram(x, y, [0.2, 2.0])}
    for rule in ("median", "silverman"):
        for divided in (True, False):
            found[f"{rule}, {divided}"] = km.choose_variance(x, rule, divided)
    for method in ("svd", "auto"):
        found[f"nuclear norm, {method}"] = slopes(
            lambda m, how=method: km.nuclear_norm(m, how), matrix
        )
    return found


def mixtures(folder):
    found = {}
    base = normal(4, 3, 3, seed=5)
    shapes = {
        "isotropic": torch.tensor([0.5, 1.0, 1.5, 0.3]).double(),
        "diagonal": 0.3 + weights(12, 4).reshape(4, 3),
        "full": base @ base.mT + 0.2 * torch.eye(3).double(),
    }
    points = normal(20, 3, seed=8)
    for kind, covariances in shapes.items():
        p = km.GaussianMixture(weights(4, 1), normal(4, 3, seed=2), covariances)
        q = km.GaussianMixture(weights(4, 3), normal(4, 3, seed=4), covariances.flip(0))
        found[kind] = {
            "log_prob": p.log_prob(points), "inner": p.inner(q), "norm2": p.norm2(),
            "log_norm2": p.log_norm2(), "third norm": p.lp_norm(3),
            "cauchy_schwarz": p.cauchy_schwarz(q), "mean": p.mean, "variance": p.variance,
            "covariance": p.covariance_matrix,
            "sample": p.sample((9,), generator=torch.Generator().manual_seed(6)),
            "slope": slopes(
                lambda m, c=covariances, q=q: km.GaussianMixture(
                    weights(4, 1), m, c
                ).cauchy_schwarz(q),
                normal(4, 3, seed=2),
            ),
        }  # fmt: skip
    drawn = km.SampledMixture(None, normal(50, 3, seed=7), torch.full((50,), 0.4).double())
    other = km.GaussianMixture(weights(4, 1), normal(4, 3, seed=2), shapes["isotropic"])
    found["sampled"] = {"norm2": drawn.norm2(), "cauchy_schwarz": drawn.cauchy_schwarz(other),
                        "log_prob": drawn.log_prob(points)}  # fmt: skip
    return found


def spectra(folder):
    x, y, at = normal(60, 2, seed=1), normal(50, 2, seed=2) + 0.4, normal(7, 2, seed=3)
    found = {}
    for name, options in {
        "own": {}, "two": {"y": y}, "whitened": {"y": y, "whiten": True, "ridge": 1e-3},
        "weights": {"y": y, "weights_x": weights(60, 4), "weights_y": weights(50, 5)},
    }.items():  # fmt: skip
        parts = km.decompose(x, v=0.2, rank=5, **options)
        found[name] = {"values": parts.singular_values, "left": parts.left_vectors,
                       "right": parts.right_vectors, "at": parts.left(at)}  # fmt: skip
    parts = km.decompose(normal(600, 2, seed=6), v=0.2, rank=4)
    found["truncated"] = {"values": parts.singular_values, "method": parts.method}
    grid = torch.linspace(-4, 4, 81, dtype=torch.float64)[:, None]
    p = torch.exp(-grid[:, 0].square() / 2) / math.sqrt(2 * math.pi)
    on_grid = km.decompose_grid(p, p.roll(4), grid, 0.1, 0.1, rank=6)
    found["grid"] = {"values": on_grid.singular_values, "left": on_grid.left(grid)}
    return found


def sketches(folder):
    data, other = normal(3000, 3, seed=1), normal(2000, 3, seed=2) + 0.2
    found = {}
    for name, features in {
        "nystrom": km.nystrom_features(data[:600], 0.5, rank=60),
        "fourier": km.fourier_features(3, 0.5, rank=64),
    }.items():
        first, second = (km.Sketch(features).update(t) for t in (data, other))
        both = first + second
        path = folder / f"{name}.sketch"
        both.save(path)
        again = km.Sketch.load(path)
        numbers = {"count": again.count, "features": features(data[:5])}
        for cost_name, cost in COSTS.items():
            numbers[cost_name] = cost(first, second, normalized=True)
            numbers[f"{cost_name} to sum"] = cost(first, again, normalized=True)
            numbers[f"{cost_name} to points"] = slopes(
                lambda y, c=cost, s=first: c(s, y, log=True, normalized=True), other[:40]
            )
        _, info = km.svd_cost(first, second, normalized=True, return_info=True)
        numbers["bound"] = info.error_bound
        found[name] = numbers
    return found


def tests(folder):
    x, y = normal(60, 3, seed=1), normal(50, 3, seed=2) + torch.tensor([0.4, 0, 0])
    found = {}
    for cost in ("svd", "matrix", "vector", "scalar", "mmd", "energy"):
        for form in ("local", "exact"):
            result = km.two_sample_test(x, y, cost, permutations=50, form=form)
            found[f"{cost}, {form}"] = {
                "statistic": result.statistic, "p": result.pvalue, "each": result.statistics,
                "p of each": result.pvalues, "variances": result.variances, "null": result.null,
            }  # fmt: skip
    found["compare"] = km.compare(x, y, permutations=30, jackknife_groups=5).to_dict()
    many = km.compare(
        normal(1100, 2, seed=3),
        normal(1010, 2, seed=4) * 1.2,
        0.3,
        permutations=20,
        jackknife_groups=3,
    )
    found["compare many"] = many.to_dict()
    return found


def estimators(folder):
    rows = np.concatenate([normal(150, 2, seed=1), normal(100, 2, seed=2) * 0.5 + 3]).astype(float)
    found = {}
    for cost in ("svd", "scalar", "vector", "matrix", "mmd", "energy", "likelihood"):
        model = km.KernelMixture(
            6, cost=cost, steps=20, batch_size=40, device="cpu", random_state=0,
            **{POLISH_KEYWORD: 4, COVARIANCE_KEYWORD: "diagonal"},
        ).fit(rows)  # fmt: skip
        found[cost] = {
            "weights": model.weights_, "means": model.means_, "vars": model.variances_,
            "density": model.score_samples(rows[:9]), "drawn": model.sample(5),
        }  # fmt: skip
    kinds = (rows[:, 0] * rows[:, 1] > 1).astype(int)
    options = {"width": 6, "n_members": 2, "max_epochs": 20, "batch_size": 60, "random_state": 0}
    for form in ("variational", "product", "signed"):
        classifier = km.ProductClassifier(8, form=form, **options).fit(rows, kinds)
        found[f"classifier, {form}"] = {
            "losses": classifier.loss_curve_, "chances": classifier.predict_proba(rows[:9])
        }  # fmt: skip
    regressor = km.ProductRegressor(8, **options).fit(rows, rows[:, 0] ** 2 - rows[:, 1])
    found["regressor"] = {"losses": regressor.loss_curve_, "seen": regressor.predict(rows[:9])}
    return found


def conditionals(folder):
    context = normal(200, 2, seed=1)
    target = (context[:, :1] * torch.where(normal(200, 1, seed=2) > 0, 1.0, -1.0)).double()
    found = {}
    for name, options in {
        "svd": {}, "closed form": {"finish": "closed form"}, "likelihood": {"cost": "likelihood"},
    }.items():  # fmt: skip
        model = conditional(context, target, 14, 6, **options)
        with torch.no_grad():
            mixture = model(context[:5])
            found[name] = {"means": mixture.means, "weights": mixture.weights,
                           "density": mixture.log_prob(target[:5])}  # fmt: skip
    return found


FITS = {
    "mixture": ["moons", STEPS, 20, POLISH, 6, "--components", 8, "--rows", 300],
    "network": ["ring8", "--model", "network", COVARIANCE, "diagonal", STEPS, 14, POLISH, 6,
                FINISH, "closed form", "--components", 8, "--rows", 300, "--cost", "matrix"],
    "generator": ["pinwheel", "--model", "generator", "--prior", "uniform", SPREAD, "1,4",
                  "--variance", 0.02, STEPS, 20, "--rows", 300, "--average", 4, RATE, 0.003],
    "digits": ["digits", STEPS, 20, "--components", 16, "--rows", 100],
}  # fmt: skip


def fit(folder):
    found = {}
    rows = write_rows(folder / "rows.csv", normal(12, 2, seed=9))
    for name, options in FITS.items():
        run = folder / name
        batch = [BATCH, 32] + ([POLISH_BATCH, 64] if POLISH in options else [])
        command("fit", *options, *batch, "--seed", 3, "--device", "cpu", "--out", run)
        command("sample", run, "-n", 40, "-o", run / "drawn.npy")
        found[name] = losses(run, METRIC) | {"drawn": np.load(run / "drawn.npy"),
                                             "samples": np.load(run / "samples.npy")}  # fmt: skip
        if name != "digits":
            command("score", run, rows, "-o", run / "density.npy")
            found[name]["density"] = np.load(run / "density.npy")
    return found


def fit_images(folder):
    pictures = write_pictures(folder / "pictures")
    found = {}
    for name, options in {
        "codes": [STEPS, 12, "--code", 3, "--encoder-steps", 8],
        "mixture": ["--model", "code-mixture", STEPS, 8, POLISH, 3, "--code", 3,
                    "--encoder-steps", 8, "--components", 8],
        "conv": ["--model", "conv", "--spaces", "pixels,coarse", STEPS, 20],
    }.items():  # fmt: skip
        run = folder / name
        command("fit", pictures, "--quick", *options, BATCH, 8, "--device", "cpu", "--out", run)
        command("sample", run, "-n", 6, "--label", "square", "-o", run / "drawn.npy")
        found[name] = losses(run, METRIC) | {"drawn": np.load(run / "drawn.npy")}
    return found


CLASSIFY = {
    "adamw": ["--width", 8, "--depth", 2, "--batch-size", 1437, "--epochs", 20],
    "muon": ["--width", 8, "--depth", 2, "--batch-size", 100, "--epochs", 2, "--patch", 1,
             "--set", "optimizer=muon", "--set", "rotation=5"],
}  # fmt: skip


def classify(folder):
    found = {}
    for name, options in CLASSIFY.items():
        run = folder / name
        fixed = ["--set", "output_width=16", "--seed", 2, "--device", "cpu", "--out", run]
        command("classify", "digits", *options, *fixed)
        digits = folder / f"{name}.npy"
        np.save(digits, np.random.default_rng(1).integers(0, 256, (7, 8, 8), np.uint8))
        command("predict", run, digits, "--all", "-o", run / "chances.csv")
        table = list(csv.reader((run / "chances.csv").read_text().splitlines()))
        found[name] = losses(run, "train_accuracy", "test_accuracy") | {
            "chances": [[float(cell) for cell in row[2:]] for row in table[1:]]
        }
        result = json.loads((run / "result.json").read_text())
        found[name]["result"] = {
            key: result[key] for key in ("test_accuracy", "test_loss", "confusion", "parameters")
        }
    run, pictures = folder / "cnn", write_pictures(folder / "pictures")
    command("classify", pictures, "--model", "cnn", "--epochs", 2, "--batch-size", 8,
            "--device", "cpu", "--out", run)  # fmt: skip
    found["cnn"] = losses(run, "test_accuracy")
    return found


def measure(folder):
    """The commands that compare."""
    x = write_rows(folder / "x.csv", normal(80, 3, seed=1))
    y = write_rows(folder / "y.csv", normal(70, 3, seed=2) * 1.3)
    found = {
        "compare": json_of(
            "compare", x, y, "--details", "--permutations", 30, "--jackknife-groups", 5
        )
    }
    found["spectrum"] = json_of("spectrum", x, y, "--rank", 4, "--report", folder / "s.html")
    series = folder / "series"
    first = series / "a.sketch"
    write_rows(series / "a.csv", normal(500, 3, seed=3))
    command("sketch", series / "a.csv", "-o", first, "--rank", 40)
    for name, shift in (("b", 0.1), ("c", 0.5)):
        file = write_rows(series / f"{name}.csv", normal(400, 3, seed=4) + shift)
        command("sketch", file, "-o", series / f"{name}.sketch", "--landmarks-from", first)
    found["sketches"] = json_of("compare", first, series / "c.sketch")
    found["drift"] = json_of("compare", series)
    return found


# At sizes that take a moment.
PAPER = {
    "fig-identity": lambda: identity.run(samples=60, points=41),
    "fig-singular-functions": lambda: singular_functions.run(across=30, samples=200),
}


def paper(folder):
    (folder / "paper").mkdir()
    found = {}
    for name, run in PAPER.items():
        record = run().save(folder / "paper", quick=True, seconds=1.0)
        tables = {}
        for path in sorted((folder / "paper").glob(f"{name}.*.csv")):
            for column, cells in _columns(path).items():
                tables[f"{path.name} {column}"] = cells
        claims = [{k: c[k] for k in ("holds", "numbers") if k in c} for c in record["claims"]]
        found[name] = {"claims": claims, "tables": tables}
    for method in ("svd", "scalar", "vector", "matrix", "Frobenius", "L2 large"):
        found[f"generation, {method}"] = figure_of_generation(method)
    return found


def _columns(path):
    rows = list(csv.DictReader(path.read_text().splitlines()))
    found = {}
    for column in rows[0]:
        cells = [row[column] for row in rows]
        if all(re.fullmatch(r"-?[\d.]+(e[+-]?\d+)?", cell) for cell in cells):
            found[column] = np.array([float(cell) for cell in cells])
    return found


SECTIONS = {
    function.__name__: function
    for function in (
        costs, large_costs, loss_modules, kernels, mixtures, spectra, sketches, tests, estimators,
        conditionals, fit, fit_images, classify, measure, paper,
    )
} | golden_tables.SECTIONS  # fmt: skip
# What is trained, or iterated until it is close enough, magnifies the last bit of a sum, which
# another processor or library may round otherwise.
MAGNIFIED = (
    "large_costs", "estimators", "conditionals", "fit", "fit_images", "classify", "paper",
    *golden_tables.MAGNIFIED,
)  # fmt: skip
TOLERANCE, ELSEWHERE, MAGNIFIED_ELSEWHERE = 1e-6, 1e-5, 1e-3
MARGIN = 10  # times the difference between processors that were tried
# Instructions that PyTorch, MKL and oneDNN are told to do with, as on other processors.
PROCESSORS = {
    "SSE4": ("default", "SSE4_2", "SSE41"),
    "AVX2": ("avx2", "AVX2", "AVX2"),
    "AVX512": ("avx512", "AVX512", "AVX512_CORE"),
}


def tolerance(section, golden):
    """How far a number may be from the golden one: 1e-6; on other machines 1e-5, or 1e-3.

    On other machines also `MARGIN` times what rounding has changed of it on the processors that
    were tried: a long training leaves its path sooner or later.
    """
    written = golden[section]
    if written["machine"] == machine():
        return lambda place: TOLERANCE

    def allowed(place):
        series, step = _series(place)
        changes = written["rounding"].get(series, [])
        seen = (MARGIN * change for at, change in changes if step is None or at <= step)
        return max([_floor(section), *seen])

    return allowed


def _floor(section):
    return MAGNIFIED_ELSEWHERE if section in MAGNIFIED else ELSEWHERE


def _series(place):
    """The array, list or steps of a training that a number is one of; and which step."""
    series = re.sub(r"((/values)?(/\d+)+|/sum|/norm)$", "", place)
    steps = re.fullmatch(r"/(\d+)", place[len(series) :])
    ordered = re.search(r"/(loss|metric|losses|\w+_accuracy)$", series)
    return series, int(steps[1]) if steps and ordered else None


def rounding(numbers):
    """For each series of these sections, from which step on rounding changes it, and how much."""
    most = {section: {} for section in numbers}
    for processor in PROCESSORS:
        for section, elsewhere in _elsewhere(processor, numbers).items():
            for place, distance, _ in distances(elsewhere, numbers[section], section):
                series, step = _series(place)
                changes = most[section].setdefault(series, {})
                changes[step or 0] = max(changes.get(step or 0, 0.0), distance)
    return {
        section: {s: grown for s, c in series.items() if (grown := _growing(s, c))}
        for section, series in most.items()
    }


def _growing(series, changes):
    """Only those that are larger than all before, and than what is allowed anyway."""
    kept_changes, largest = [], _floor(series.split("/")[0]) / MARGIN
    for step, change in sorted(changes.items()):
        if change > largest:
            kept_changes.append([step, float(f"{change:.2g}")])
            largest = change
    return kept_changes


def _elsewhere(processor, sections):
    """Numbers as another processor would round them."""
    names = ("ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")
    told = dict(zip(names, PROCESSORS[processor], strict=True))
    asked = [sys.executable, __file__, "--print", *sections]
    printed = subprocess.run(
        asked, env={**os.environ, **told}, check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(printed.stdout.splitlines()[-1])


@contextmanager
def _alone():
    """One thread, and a cache of images of its own."""
    threads, cache = torch.get_num_threads(), os.environ.get("KERMIX_CACHE")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["KERMIX_CACHE"] = str(Path(folder) / "cache")
        try:
            yield Path(folder)
        finally:
            torch.set_num_threads(threads)
            os.environ.pop("KERMIX_CACHE")
            if cache is not None:
                os.environ["KERMIX_CACHE"] = cache


def compute(section):
    """The numbers of a section, as they are kept."""
    with _alone() as folder:
        found = kept(SECTIONS[section](folder))
        # As a file would hold them, without the names of a folder that is gone.
        return json.loads(json.dumps(found).replace(str(folder), "FOLDER"))


def main():
    """Write the golden numbers, or say which ones differ."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"write {FIXTURE}")
    parser.add_argument("--print", action="store_true", help="print the numbers as JSON")
    parser.add_argument("sections", nargs="*", help=f"of {', '.join(SECTIONS)}; by default all")
    asked = parser.parse_args()
    if asked.print:
        found = {section: compute(section) for section in asked.sections or SECTIONS}
        sys.stdout.write(f"\n{json.dumps(found)}\n")
        return 0
    golden = json.loads(FIXTURE.read_text()) if FIXTURE.exists() else {}
    numbers, status = {}, 0
    for section in asked.sections or SECTIONS:
        start = time.process_time()
        numbers[section] = compute(section)
        known = golden.get(section, {}).get("numbers")
        differ = differences(numbers[section], known, 0.0, section)
        seconds = time.process_time() - start
        sys.stdout.write(f"{section}: {seconds:.1f} s, {len(differ)} differ\n")
        if not asked.write:
            sys.stdout.writelines(f"  {line}\n" for line in differ)
            status = status or int(bool(differ))
    if asked.write:
        changes = rounding(numbers)
        for section in numbers:
            golden[section] = {
                "machine": machine(), "rounding": changes[section], "numbers": numbers[section]
            }  # fmt: skip
        FIXTURE.parent.mkdir(exist_ok=True)
        # A section is a line, so that two changes of two sections are merged by git.
        lines = [f"{json.dumps(s)}: {json.dumps(golden[s])}" for s in SECTIONS if s in golden]
        FIXTURE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        sys.stdout.write(f"{FIXTURE}: {FIXTURE.stat().st_size / 1000:.0f} kB\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
