"""Kernels: points and variances in, Gram matrices and means out, without cancellation."""
