"""Mixtures to test with, and their densities through SciPy."""

import itertools
import math

import numpy as np
import torch
from scipy.stats import multivariate_normal

from kermix import GaussianMixture, SampledMixture

KINDS = ("isotropic", "diagonal", "full")
KIND_PAIRS = list(itertools.product(KINDS, KINDS))


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def parameters(kind, count=3, dim=2, batch=(), seed=0, dtype=torch.float64):
    g = rng(seed)
    weights = torch.rand(*batch, count, generator=g, dtype=torch.float64) + 0.2
    means = torch.randn(*batch, count, dim, generator=g, dtype=torch.float64)
    root = torch.randn(*batch, count, dim, dim, generator=g, dtype=torch.float64) / math.sqrt(dim)
    full = root @ root.mT + 0.3 * torch.eye(dim, dtype=torch.float64)
    diagonal = full.diagonal(dim1=-2, dim2=-1)
    covariances = {"isotropic": diagonal[..., 0], "diagonal": diagonal, "full": full}[kind]
    return weights.to(dtype), means.to(dtype), covariances.clone().to(dtype)


def make(kind, **options):
    return GaussianMixture(*parameters(kind, **options))


def full_covariances(p):
    """NumPy (K, d, d) whatever the kind, by definition."""
    eye = np.eye(p.means.shape[-1])
    c = p.covariances.double().numpy()
    if p.covariance_kind == "isotropic":
        return c[:, None, None] * eye
    return c[:, :, None] * eye if p.covariance_kind == "diagonal" else c


def curves(p):
    """Each weighted component, as a function of NumPy points (..., d), through SciPy."""
    normals = map(multivariate_normal, p.means.numpy(), full_covariances(p))
    return [
        lambda x, w=w, normal=normal: w * normal.pdf(x)
        for w, normal in zip(p.weights.numpy(), normals, strict=True)
    ]


def density(p):
    components = curves(p)
    return lambda x: sum(c(x) for c in components)


def build(kind, raw_weights, means, raw):
    """A mixture from unconstrained numbers."""
    if kind == "full":
        covariances = raw @ raw.mT + 0.5 * torch.eye(raw.shape[-1], dtype=raw.dtype)
    else:
        covariances = raw.exp()
    return GaussianMixture(raw_weights.exp(), means, covariances)


def raw_parameters(kind, count, dim, seed):
    g = rng(seed)
    shape = {"isotropic": (count,), "diagonal": (count, dim), "full": (count, dim, dim)}[kind]
    shapes = [(count,), (count, dim), shape]
    return [
        (0.5 * torch.randn(s, generator=g, dtype=torch.float64)).requires_grad_() for s in shapes
    ]


FUNCTIONS = {
    "inner": lambda p, q: p.inner(q),
    "log_inner": lambda p, q: p.log_inner(q),
    "norm2": lambda p, q: p.norm2(),
    "lp_norm_1": lambda p, q: p.lp_norm(1),
    "lp_norm_3": lambda p, q: p.lp_norm(3),
    "log_lp_norm_4": lambda p, q: p.log_lp_norm(4),
    "cauchy_schwarz": lambda p, q: p.cauchy_schwarz(q),
    "moments": lambda p, q: (p.mean, p.variance, p.covariance_matrix),
}


def sampled(kind, seed=0, count=4, dim=2):
    weights, means, covariances = parameters(kind, count=count, dim=dim, seed=seed)
    return SampledMixture(3 * weights, means, covariances)
