"""Error bounds of sketches and of the polar factor, against a dense reference of its own.

The reference shares no code with what it judges: kernels from explicit differences, systems in
extended precision where the machine has it, singular values by NumPy.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import kermix as km
from benchmarks.certificate_cases import CertificateCase, certificate_cases, described
from kermix.info import Informative

__all__ = ["Verdict", "run", "verdicts"]

SEED = 15
COUNT = 5000
QUICK_COUNT = 100
Wide = np.longdouble


class Verdict(dict[str, Any]):
    """A value with its bound, the reference, and the case that they are of."""

    @property
    def violated(self) -> bool:
        """Whether the reference lies outside the bound."""
        return not self["error"] <= self["bound"]


def run(quick: bool = False) -> dict[str, list[dict[str, Any]]]:
    """Violations, which there should be none of, and how close errors come to their bounds."""
    count = QUICK_COUNT if quick else COUNT
    found: list[Verdict] = []
    for case in certificate_cases(SEED, count):
        found += verdicts(case)
    rows = []
    for what in dict.fromkeys(v["what"] for v in found):
        ratios = np.array([_ratio(v) for v in found if v["what"] == what])
        bounds = np.array([v["bound"] for v in found if v["what"] == what])
        rows.append(
            {
                "what": what,
                "bounds": len(ratios),
                "violations": int((ratios > 1).sum()),
                "largest_error_over_bound": float(ratios.max()),
                "median_error_over_bound": float(np.median(ratios)),
                "median_bound": float(np.median(bounds)),
                "smallest_bound": float(bounds.min()),
            }
        )
    total = {
        "cases": count,
        "bounds": len(found),
        "violations": sum(r["violations"] for r in rows),
    }
    tables: dict[str, list[dict[str, Any]]] = {"certificates": [total], "by_cost": rows}
    if total["violations"]:
        tables["violations"] = [dict(v) for v in found if v.violated][:50]
    return tables


def verdicts(case: CertificateCase) -> Iterator[Verdict]:
    """All bounds that a case has to show."""
    reference = _Reference(case)
    sides = _sides(case)
    options: dict[str, dict[str, Any]] = {"scalar": {}, "vector": {"ridge": case.ridge}, "svd": {}}
    for name in options:
        cost: Informative[...] = getattr(km, f"{name}_cost")
        for normalized in (True, False):
            if name == "svd" and not normalized and reference.weighted:
                continue
            value, info = cost(*sides, normalized=normalized, **options[name], return_info=True)
            assert info.error_bound is not None
            ridge = 0.0 if info.ridge is None else float(info.ridge)
            truth = reference.cost(name, normalized, ridge)
            what = f"{name}, normalized" if normalized else name
            yield _verdict(case, what, float(value), truth, float(info.error_bound))
    yield from _polar(case, reference)


def _polar(case: CertificateCase, reference: "_Reference") -> Iterator[Verdict]:
    """The nuclear norm of a matrix, by matrix products alone."""
    matrix = torch.from_numpy(reference.cross.astype(np.float64)).to(case.x.dtype)
    tolerance = max(case.tolerance, 1e-6) if matrix.dtype == torch.float32 else case.tolerance**2
    value, info = km.nuclear_norm(
        matrix, method="polar", tolerance=max(tolerance, 1e-13), return_info=True
    )
    truth = float(np.linalg.svd(matrix.double().numpy(), compute_uv=False).sum())
    assert info.error_bound is not None
    yield _verdict(case, "nuclear norm", float(value), truth, float(info.error_bound))


def _verdict(
    case: CertificateCase, what: str, value: float, truth: float, bound: float
) -> Verdict:
    return Verdict(what=what, value=value, truth=truth, error=abs(value - truth), bound=bound,
                   **described(case))  # fmt: skip


def _ratio(verdict: Verdict) -> float:
    if verdict["bound"] == 0:
        return 0.0 if verdict["error"] == 0 else np.inf
    ratio = verdict["error"] / verdict["bound"]
    return float(ratio) if np.isfinite(ratio) else np.inf


def _sides(case: CertificateCase) -> list[Any]:
    """Both sets as the case wants them."""
    points = (case.x, case.weights_x), (case.y, case.weights_y)
    sketches = [km.Sketch(case.features).update(p, w) for p, w in points]
    if case.sides == "samples" and case.weights_y is None:
        return [sketches[0], case.y]
    if case.sides == "merged":
        return [_merged(case, p, w) for p, w in points]
    if case.sides == "loaded":
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "a.sketch"
            return [km.Sketch.load(s.save(path)) for s in sketches]
    return sketches


def _merged(case: CertificateCase, points: Tensor, weights: Tensor | None) -> km.Sketch:
    """The sum of sketches of seven rows each, or of more where seven have no weight."""
    whole, start = km.Sketch(case.features), 0
    for stop in range(7, len(points) + 7, 7):
        later = weights is not None and stop < len(points)
        if weights is not None and (
            not bool((weights[start:stop] > 0).any())
            or (later and not bool((weights[stop:] > 0).any()))
        ):
            continue
        share = None if weights is None else weights[start:stop]
        whole = whole + km.Sketch(case.features).update(points[start:stop], share)
        start = stop
    assert whole.count == len(points)
    return whole


class _Reference:
    """The costs of a case from all pairs of points."""

    def __init__(self, case: CertificateCase) -> None:
        features = case.features
        x, y = (p.double().numpy().astype(Wide) for p in (case.x, case.y))
        if features.scale is not None:
            centre, spread = (t.numpy() for t in (features.scale.center, features.scale.spread))
            x, y = (x - centre) / spread, (y - centre) / spread
        self.a, self.b = (
            _shares(w, len(p)) for w, p in ((case.weights_x, x), (case.weights_y, y))
        )
        self.weighted = case.weights_x is not None or case.weights_y is not None
        kernel = features.kernel
        divisor = x.shape[1] if kernel.per_dimension else 1
        variances = [2 * float(v) * 2 * divisor for v in kernel.v_p]
        self.cross, self.xx, self.yy = (
            sum(np.exp(-_distances(p, q) / v) for v in variances) / Wide(len(variances))
            for p, q in ((y, x), (x, x), (y, y))
        )
        self.sizes = len(x), len(y)

    def cost(self, name: str, normalized: bool, ridge: float) -> float:
        """One of the certified costs."""
        norm = self.a @ self.xx @ self.a if normalized else Wide(1)
        if name == "scalar":
            return float((self.b @ self.cross @ self.a) ** 2 / (self.b @ self.yy @ self.b) / norm)
        if name == "vector":
            roots = np.sqrt(self.sizes[1] * self.b)
            matrix = self.yy * np.outer(roots, roots) + ridge * np.eye(len(roots))
            whitened = _forward(_cholesky(matrix), roots * (self.cross @ self.a))
            return float((whitened @ whitened) / norm)
        roots = np.sqrt(np.outer(self.b, self.a)) * self.cross
        values = np.linalg.svd(roots.astype(np.float64), compute_uv=False).sum()
        return float(values * (1.0 if normalized else np.sqrt(float(np.prod(self.sizes)))))


def _shares(weights: Tensor | None, count: int) -> np.ndarray:
    if weights is None:
        return np.full(count, Wide(1) / count)
    shares = weights.double().numpy().astype(Wide)
    return shares / shares.sum()


def _distances(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    return ((p[:, None, :] - q[None, :, :]) ** 2).sum(-1)


def _cholesky(matrix: np.ndarray) -> np.ndarray:
    """In the precision of the matrix, which NumPy's own is not."""
    left, factor = matrix.copy(), np.zeros_like(matrix)
    for j in range(len(left)):
        factor[j:, j] = left[j:, j] / np.sqrt(left[j, j])
        left[j:, j:] -= np.outer(factor[j:, j], factor[j:, j])
    return factor


def _forward(factor: np.ndarray, right: np.ndarray) -> np.ndarray:
    solution = np.zeros_like(right)
    for j in range(len(right)):
        solution[j] = (right[j] - factor[j, :j] @ solution[:j]) / factor[j, j]
    return solution
