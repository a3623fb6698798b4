"""Kernels: variances or points in, Gram matrices and kernel means out, without cancellation or underflow."""
