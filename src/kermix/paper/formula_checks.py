r"""What formulas of the text say of samples, beside its figures.

On samples of one dimension of `fig-measure`'s density: which sum of products of two sets
of Gaussians is nearest to the identity (Property 9, and the same said of the SVD cost), whether
the vector-matrix cost has such a form too, and the bounds of Section IV. With the Gram matrices
R_F, R_G and P of the Gaussians f and g, the squared distance of $f(X')^\top C g(X)$ to the
identity is, up to a constant,

$$J(C) = \mathrm{tr}(R_F C R_G C^\top) - 2 \, \mathrm{tr}(C^\top P)$$

whose least value is minus the matrix-matrix cost, at $C = R_F^{-1} P R_G^{-1}$.
"""

from collections.abc import Mapping
from typing import TypeAlias

import torch
from torch import Tensor

from kermix.costs.functions import scalar_cost, svd_cost, vector_cost
from kermix.mixtures.mixture import GaussianMixture
from kermix.paper import identity
from kermix.paper.artefact import Claim
from kermix.paper.measure import DENSITY

__all__ = [
    "BEST_PLAIN",
    "BOUNDED",
    "OPTIMAL",
    "ROOT",
    "SAMPLES",
    "TRACE",
    "VECTOR_FORM",
    "Numbers",
    "V",
    "formula_claims",
    "formulas",
]

Numbers: TypeAlias = Mapping[str, float]

V = 0.001
SAMPLES = 40
PERTURBED, APART = 200, 0.03
OPTIMAL = "The whitened functions are the best approximators of the identity (Property 9)."
BEST_PLAIN = "The SVD cost's functions are the best approximator of the identity (Section IV)."
VECTOR_FORM = "Approximating the identity applies to the vector-matrix cost too."
BOUNDED = "Scalar and vector-matrix cost are bounded by the norm of p, tight when q = p."
TRACE = "The greatest nuclear norm is the trace N * N(0), reached when samples match."
ROOT = "sqrt(p) N(.; v) is the root of the joint density p N(.; 2v), up to a constant."


def formulas() -> dict[str, float]:
    """Numbers of the formulas, on samples of the first coordinate of `fig-measure`'s density."""
    density = GaussianMixture(DENSITY.weights, DENSITY.means[:, :1], DENSITY.covariances)
    generator = torch.Generator().manual_seed(0)
    x = density.sample((SAMPLES,), generator=generator)
    y = density.sample((SAMPLES,), generator=generator)
    many = [density.sample((400,), generator=generator) for _ in "xy"]
    found = _optimality(*map(_apart, many)) | _vector_form(x)
    norm = float(scalar_cost(x, x, V))
    found |= {
        "norm of p": norm,
        "largest scalar cost": max(float(scalar_cost(x, x + s, V)) for s in (0.0, 0.01, 0.3)),
        "largest vector cost": max(
            float(vector_cost(x, x + s, V, ridge=1e-12)) for s in (0.0, 0.01, 0.3)
        ),
        "vector cost at q = p": float(vector_cost(x, x, V, ridge=1e-12)),
        "matrix cost, data fixed, p_n = N/N": _fixed(x, y) / SAMPLES**2,
        "nuclear norm, matched": float(svd_cost(x, x.clone(), V, method="svd")),
        "nuclear norm, others": max(
            float(svd_cost(x, z, V, method="svd")) for z in (y, x + 0.02, x + 1.0)
        ),
        "N": float(SAMPLES),
    }
    return found | _root_of_the_joint_density()


def _gram(a: Tensor, b: Tensor) -> Tensor:
    return torch.exp(-(a - b.T).square() / (4 * V))


def _fixed(x: Tensor, y: Tensor) -> float:
    cross = _gram(y, x)
    return float((cross * torch.linalg.solve(_gram(y, y), cross)).sum())


def _apart(points: Tensor) -> Tensor:
    """Some of the points, so far apart that systems of their Gaussians can be solved exactly."""
    kept = points[:1]
    for point in points[1:]:
        if float((kept - point).abs().min()) >= APART:
            kept = torch.cat([kept, point[None]])
    return kept


def _optimality(x: Tensor, y: Tensor) -> dict[str, float]:
    """How near to the identity each form is: minus J, with the best factor, over its greatest."""
    r_f, r_g, cross = _gram(y, y), _gram(x, x), _gram(y, x)

    def reached(c: Tensor) -> float:
        # The best factor of C makes minus J this.
        return float((c * cross).sum() ** 2 / ((r_f @ c @ r_g) * c).sum())

    left, right = (_inverse_root(r) for r in (r_f, r_g))
    u, s, vh = torch.linalg.svd(left @ cross @ right, full_matrices=False)
    functions = u.T @ left  # the rows are the functions f*, in terms of f
    whitened = functions.T @ torch.diag(s) @ vh @ right
    best = float(s.square().sum())
    plain_u, sigma, plain_vh = torch.linalg.svd(cross, full_matrices=False)
    inverse = torch.where(sigma > 0.01 * sigma[0], 1 / sigma, torch.zeros_like(sigma))
    generator = torch.Generator().manual_seed(1)
    others = []
    for i in range(PERTURBED):
        noise = torch.randn(whitened.shape, generator=generator, dtype=x.dtype)
        size = 10.0 ** -(i % 6)
        others.append(reached(whitened + size * whitened.norm() / noise.norm() * noise))
    products = functions @ r_f @ functions.T
    identity_error = (products - torch.eye(len(products), dtype=x.dtype)).abs()
    return {
        "whitened": reached(whitened) / best,
        "best of perturbed": max(others) / best,
        "weights sigma": reached(plain_u @ torch.diag(sigma) @ plain_vh) / best,
        "weights 1/sigma": reached(plain_u @ torch.diag(inverse) @ plain_vh) / best,
        "not orthonormal by": float(identity_error.max()),
    }


def _inverse_root(matrix: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors / values.sqrt()) @ vectors.T


def _vector_form(x: Tensor) -> dict[str, float]:
    r"""The identity as the centres' Gaussians see it, $f(X')^\top R^{-1} f(X)$.

    Between p and p it is the vector-matrix cost.
    """
    grid = torch.linspace(-1.2, 1.2, 961, dtype=x.dtype)[:, None]
    cell = float(grid[1] - grid[0])
    y = torch.linspace(-0.9, 0.9, 61, dtype=x.dtype)[:, None]  # centres
    # Gaussians of variance v whose inner products are `_gram`: with unit norm.
    scale = (2 * torch.pi * V) ** -0.5 * (4 * torch.pi * V) ** 0.25
    of_y, of_x = (torch.exp(-(grid - z.T).square() / (2 * V)) * scale for z in (y, x))
    seen = of_y @ torch.linalg.solve(_gram(y, y), of_y.T)
    p = of_x.mean(1)
    between = float(p @ seen @ p) * cell**2
    shape = identity.describe(seen, grid[:, 0], grid[:, 0].abs() < 0.6)
    return {
        "identity of f, near the diagonal": shape["near the diagonal"],
        "identity of f, between p and p": between,
        "vector cost": float(vector_cost(x, y, V, ridge=1e-12)),
    }


def _root_of_the_joint_density() -> dict[str, float]:
    r"""How far $N(z; v)^2$ is from a multiple of $N(z; 2v)$ and of N(z; v/2)."""
    z = torch.linspace(-3, 3, 61, dtype=torch.float64) * V**0.5
    square = (-z.square() / V).exp()  # of exp(-z^2 / (2 v))
    return {
        f"root and {name}": float((square - (-z.square() / (2 * v)).exp()).abs().max())
        for name, v in (("2v", 2 * V), ("v/2", V / 2))
    }


def formula_claims(found: Numbers) -> list[Claim]:
    """Judge what `formulas` has found."""

    def chosen(*names: str) -> dict[str, float]:
        return {name: found[name] for name in names}

    norm = found["norm of p"]
    return [
        Claim(
            "The whitened functions are the best approximators of the identity by these "
            "Gaussians, and orthonormal (Property 9).",
            "as near to it as any sum can be to 1e-6, none of 200 perturbed sums nearer; "
            "orthonormal to 1e-6",
            chosen("whitened", "best of perturbed", "not orthonormal by"),
            abs(found["whitened"] - 1) <= 1e-6 and found["best of perturbed"] <= 1 + 1e-9
            and found["not orthonormal by"] <= 1e-6,
            statement=OPTIMAL,
        ),
        Claim(
            "The functions of the plain SVD are the best approximator of the identity by these "
            "Gaussians (weights sigma, the paper's formula, or 1/sigma).",
            "with the best factor, within 1 % of the nearest sum",
            chosen("weights sigma", "weights 1/sigma"),
            max(found["weights sigma"], found["weights 1/sigma"]) >= 0.99,
            statement=BEST_PLAIN,
        ),
        Claim(
            "The vector-matrix cost has an identity form too: f' R^-1 f, between p and p.",
            "the cost to 1e-6, and 95 % of the sum of squares within 0.1 of the diagonal",
            chosen("identity of f, near the diagonal", "identity of f, between p and p",
                   "vector cost"),
            abs(found["identity of f, between p and p"] / found["vector cost"] - 1) <= 1e-6
            and found["identity of f, near the diagonal"] >= 0.95,
            statement=VECTOR_FORM,
        ),
        Claim(
            "Scalar and vector-matrix cost are bounded by the norm of p; tight when q = p.",
            "never above it, and equal to 1e-6 at q = p",
            chosen("norm of p", "largest scalar cost", "largest vector cost",
                   "vector cost at q = p"),
            max(found["largest scalar cost"], found["largest vector cost"]) <= norm * (1 + 1e-9)
            and abs(found["vector cost at q = p"] / norm - 1) <= 1e-6
            and abs(found["largest scalar cost"] / norm - 1) <= 1e-6,
            statement=BOUNDED,
        ),
        Claim(
            "The data-fixed matrix-matrix cost is bounded by the norm of p where the data's "
            "residuals are p_n = N(X - X_n; v) / N, that is, where they sum to p.",
            "at most the norm of p",
            chosen("matrix cost, data fixed, p_n = N/N", "norm of p"),
            found["matrix cost, data fixed, p_n = N/N"] <= norm,
            ours=True,
        ),
        Claim(
            "The nuclear norm is N (times N(0)) when samples match, and less otherwise.",
            "N to 1e-6 for equal samples, less for others",
            chosen("nuclear norm, matched", "nuclear norm, others", "N"),
            abs(found["nuclear norm, matched"] / found["N"] - 1) <= 1e-6
            and found["nuclear norm, others"] < found["N"],
            statement=TRACE,
        ),
        Claim(
            "The square of sqrt(p) N(.; v) is p N(.; 2v), up to a constant.",
            "N(.; v)^2 and N(.; 2v), both with peak 1, differ by at most 1e-9",
            chosen("root and 2v"),
            found["root and 2v"] <= 1e-9,
            statement=ROOT,
        ),
        Claim(
            "The square of sqrt(p) N(.; v) is p N(.; v/2), up to a constant.",
            "N(.; v)^2 and N(.; v/2), both with peak 1, differ by at most 1e-9",
            chosen("root and v/2"),
            found["root and v/2"] <= 1e-9,
            ours=True,
        ),
    ]  # fmt: skip
