"""Check the README's comparison of libraries by using them: `python scripts/check_comparison.py`.

A yes is a small program that does the thing with that library. A no is a search through all public
names of the library that finds nothing, or only names that were looked at and do something else.
Writes `results/comparison.json`; stops if what it finds is not what is claimed.
"""

import importlib
import json
import pkgutil
import re
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType

import geomloss
import numpy as np
import ot
import sklearn.base
import sklearn.mixture
import torch
import zuko

import kermix as km
from kermix import fit_conditional
from kermix.environment import environment
from kermix.files import write_json

RESULT = Path(__file__).resolve().parents[1] / "results" / "comparison.json"
LIBRARIES = {"kermix": km, "geomloss": geomloss, "POT": ot, "zuko": zuko, "scikit-learn": sklearn}
Yes = Callable[[], object]
No = str  # a pattern of public names; names after a comma were looked at: they do something else

generator = torch.Generator().manual_seed(0)
x = torch.randn(40, 2, generator=generator)
y = torch.randn(30, 2, generator=generator)
few = {"steps": 5, "refine_steps": 5, "random_state": 0}
mixture = km.GaussianMixture(torch.ones(2), x[:2], torch.ones(2))


def has_gradient(loss: Callable[[torch.Tensor], torch.Tensor], shift: float = 0.0) -> bool:
    """Whether the gradient of a loss is finite and not zero."""
    points = (y + shift).requires_grad_()
    loss(points).backward()
    return bool(torch.isfinite(points.grad).all()) and float(points.grad.abs().max()) > 0


def sinkhorn(points: torch.Tensor) -> torch.Tensor:
    """The loss of geomloss."""
    return geomloss.SamplesLoss("sinkhorn", blur=0.1)(x, points)


def exact_transport(points: torch.Tensor) -> torch.Tensor:
    """The loss of POT."""
    return ot.emd2(torch.ones(40) / 40, torch.ones(30) / 30, ot.dist(x, points))


def weights_change_it(loss: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    """Whether weights of the points change the value."""
    return not torch.isclose(loss(torch.ones(40) / 40), loss(torch.arange(40.0) / 780))


def flow() -> bool:
    """A conditional flow gives a density and samples for a context."""
    model = zuko.flows.NSF(2, context=1, transforms=1, hidden_features=(8,))
    distribution = model(torch.ones(1))
    return distribution.log_prob(x).shape == (40,) and distribution.sample((3,)).shape == (3, 2)


def conditional() -> bool:
    """The same here."""
    short = {"components": 2, "steps": 2, "refine_steps": 2}
    distribution = fit_conditional(x[:, :1], x, device="cpu", **short)(x[:3, :1])
    return distribution.log_prob(x[:3]).shape == (3,) and distribution.sample().shape == (3, 2)


def added() -> bool:
    """Two sketches, saved on two machines, make one."""
    features = km.nystrom_features(x, 0.1, rank=10)
    with tempfile.TemporaryDirectory() as folder:
        for name, part in (("a", x[:20]), ("b", x[20:])):
            km.Sketch(features).update(part).save(Path(folder) / name)
        parts = [km.Sketch.load(Path(folder) / name) for name in "ab"]
    return (parts[0] + parts[1]).count == 40


def certified() -> bool:
    """An approximate value says how wrong it can be, and is not."""
    value, info = km.svd_cost(
        x, y, 0.1, method="sketch", rank=10, normalized=True, return_info=True
    )
    return abs(value - km.svd_cost(x, y, 0.1, normalized=True)) <= info.error_bound


def sk_gmm() -> sklearn.mixture.GaussianMixture:
    """The mixture of scikit-learn."""
    return sklearn.mixture.GaussianMixture(2, random_state=0).fit(x.numpy())


def commands(distribution: str) -> list[str]:
    """Names of the commands that a package installs."""
    return [e.name for e in metadata.distribution(distribution).entry_points
            if e.group == "console_scripts"]  # fmt: skip


def command() -> bool:
    """`kermix compare` runs on two files."""
    from typer.testing import CliRunner

    from kermix.cli.app import app

    with tempfile.TemporaryDirectory() as folder:
        for name, points in (("a", x), ("b", y)):
            np.save(Path(folder) / f"{name}.npy", points.numpy())
        files = [str(Path(folder) / f"{name}.npy") for name in "ab"]
        result = CliRunner().invoke(app, ["compare", *files, "--json", "--permutations", "20"])
    return "measures" in json.loads(result.stdout)


FEATURES: dict[str, tuple[Yes | No, Yes | No, Yes | No, Yes | No, Yes | No]] = {
    "differentiable loss between two samples": (
        lambda: has_gradient(lambda p: km.SVDLoss(0.1)(x, p)),
        lambda: has_gradient(sinkhorn),
        lambda: has_gradient(exact_transport),
        r"loss|divergence|distance",
        r"backward|autograd|requires_grad",
    ),
    "weights on the points": (
        lambda: weights_change_it(lambda w: km.svd_cost(x, y, 0.1, weights_x=w)),
        lambda: weights_change_it(
            lambda w: geomloss.SamplesLoss("sinkhorn", blur=0.1)(w, x, torch.ones(30) / 30, y)
        ),
        lambda: weights_change_it(lambda w: ot.emd2(w, torch.ones(30) / 30, ot.dist(x, y))),
        r"sample_weight|weights",
        lambda: sklearn.neighbors.KernelDensity().fit(x, sample_weight=np.arange(1, 41)),
    ),
    "pull when the samples do not overlap": (
        lambda: has_gradient(lambda p: km.SVDLoss(0.01)(x, p), 100.0),
        lambda: has_gradient(sinkhorn, 100.0),
        lambda: has_gradient(exact_transport, 100.0),
        r"loss|divergence|distance",
        r"backward|autograd|requires_grad",
    ),
    "transport plan, or the potentials of one": (
        r"transport|^plan,Plan,plan",
        lambda: geomloss.SamplesLoss("sinkhorn", blur=0.1, potentials=True)(x, y)[0].numel() == 40,
        lambda: ot.emd([], [], ot.dist(x, y).numpy()).shape == (40, 30),
        r"transport|plan",
        r"transport|plan_",
    ),
    "two-sample test with p-value": (
        lambda: km.two_sample_test(x, y).pvalue <= 1,
        r"two_?sample|permutation|p_?value",
        r"two_?sample|permutation_test|p_?value",
        r"two_?sample|permutation_test|p_?value",
        r"two_?sample|ks_2samp|mmd,",
    ),
    "where two samples differ": (
        lambda: km.compare(x, y, permutations=0, jackknife_groups=0).witness(x).shape == (40,),
        r"witness",
        r"witness",
        r"witness",
        r"witness",
    ),
    "summaries of data that can be saved and added": (
        added,
        r"sketch|merge",
        r"sketch|merge,merge_bijections,merge_bijections_c",
        r"sketch|merge",
        r"sketch|merge,PolynomialCountSketch",
    ),
    "approximate values with a certified error": (
        certified,
        r"certif|error_bound",
        r"certif|error_bound",
        r"certif|error_bound",
        r"certif|error_bound",
    ),
    "singular functions of the kernel between two sets": (
        lambda: km.decompose(x, y, 0.1, rank=2).left(y).shape == (30, 2),
        r"singular|eigenfunction|decompose",
        r"singular|eigenfunction|decompose",
        r"singular|eigenfunction|decompose",
        r"singular_function|eigenfunction",
    ),
    "fits a density: log-density and samples": (
        lambda: km.KernelMixture(2, **few).fit(x).score_samples(x).shape == (40,),
        r"log_prob|score_samples|density",
        r"log_prob|score_samples,",
        lambda: zuko.flows.NSF(2)().log_prob(x).shape == (40,),
        lambda: sk_gmm().score_samples(x.numpy()).shape == (40,),
    ),
    "conditional densities": (
        conditional,
        r"conditional|context",
        r"conditional|context,generic_conditional_gradient,conditional_gradient",
        flow,
        r"conditional_density|ConditionalDensity",
    ),
    "normalizing flows": (
        r"flow,fit_flow",
        r"normali[sz]ing_?flow|^(NSF|MAF)$",
        r"normali[sz]ing_?flow|^(NSF|MAF)$",
        flow,
        r"normali[sz]ing_?flow|^(NSF|MAF)$",
    ),
    "distance between Gaussian mixtures without samples": (
        lambda: mixture.cauchy_schwarz(mixture) == 0,
        r"gmm|mixture",
        lambda: ot.gmm.gmm_ot_loss(
            *(t.numpy() for t in (x[:2], y[:2], torch.eye(2).repeat(2, 1, 1))),
            torch.eye(2).repeat(2, 1, 1).numpy(), np.ones(2) / 2, np.ones(2) / 2,
        ) > 0,
        r"cauchy_schwarz|mixture_distance|gmm_",
        r"cauchy_schwarz|mixture_distance|gmm_",
    ),
    "estimator for scikit-learn pipelines": (
        lambda: issubclass(km.KernelMixture, sklearn.base.BaseEstimator),
        r"Estimator|Transformer",
        r"Estimator,BaseEstimator,check_estimator",
        r"Estimator",
        lambda: isinstance(sk_gmm(), sklearn.base.BaseEstimator),
    ),
    "command line for files": (
        command,
        lambda: not commands("geomloss"),
        lambda: not commands("POT"),
        lambda: not commands("zuko"),
        lambda: not commands("scikit-learn"),
    ),
}  # fmt: skip
NO_BY_CALL = {"command line for files": ("geomloss", "POT", "zuko", "scikit-learn")}


@cache
def public_names(module: ModuleType) -> frozenset[str]:
    """All names without an underscore, in all modules of a library and in its classes."""
    found: set[str] = set()
    modules = [module]
    for info in pkgutil.walk_packages(module.__path__, module.__name__ + "."):
        if "._" in info.name or ".tests" in info.name:
            continue
        try:
            modules.append(importlib.import_module(info.name))
        except Exception:  # noqa: BLE001 (a module that needs what is not installed)
            continue
    for each in modules:
        for name, value in vars(each).items():
            if not name.startswith("_") and str(getattr(value, "__module__", "")).startswith(
                module.__name__
            ):
                found.add(name)
    return frozenset(found)


def check(feature: str, library: str, claim: Yes | No) -> dict[str, object]:
    """Find out one cell of the table."""
    if callable(claim):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the peers
            outcome = claim()
        if not outcome:
            raise SystemExit(f"{library}: {feature}: claimed, but it does not work")
        if library in NO_BY_CALL.get(feature, ()):
            return {"has": False, "how": "no command is installed"}
        return {"has": True, "how": "ran it"}
    pattern, *looked_at = claim.split(",")
    module = LIBRARIES[library]
    found = sorted(n for n in public_names(module) if re.search(pattern, n, re.I))
    rest = [n for n in found if n not in looked_at]
    if rest:
        raise SystemExit(f"{library}: {feature}: look at {rest}")
    return {"has": False, "how": f"no public name like {pattern}", "looked_at": found}


def main() -> None:
    """Check all cells."""
    table = {
        feature: {
            library: check(feature, library, claim)
            for library, claim in zip(LIBRARIES, claims, strict=True)
        }
        for feature, claims in FEATURES.items()
    }
    for feature, row in table.items():
        print(f"{feature:52}", *("yes" if cell["has"] else " - " for cell in row.values()))
    print(write_json(RESULT, {"features": table, **environment()}))


if __name__ == "__main__":
    main()
