"""Every tolerance of the tests, in one place."""

import torch

# Of a value against the reference. The ridge is given explicitly there: below it, matrices of
# hundreds of overlapping points are singular to working precision.
RELATIVE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 2e-2}
RIDGE = {torch.float64: 1e-6, torch.float32: 1e-4}

# Of two computations of the same number by the library itself (batched and one by one, compiled
# and not): only the order of summation may differ.
SAME = {torch.float64: 1e-11, torch.float32: 1e-5}

# Of laws that round the samples themselves (a translation, a rotation).
LAW = 1e-7


def value(dtype: torch.dtype, count: int = 1) -> dict[str, float]:
    """Relative, and absolute only where `count` terms underflow."""
    return {"rtol": RELATIVE[dtype], "atol": torch.finfo(dtype).tiny * count}


def logarithm(dtype: torch.dtype) -> dict[str, float]:
    """A relative error of a number is an absolute error of its logarithm."""
    return {"rtol": RELATIVE[dtype], "atol": RELATIVE[dtype]}


def same(dtype: torch.dtype) -> dict[str, float]:
    """For the same number computed twice."""
    return {"rtol": SAME[dtype], "atol": SAME[dtype] * 0.1}
