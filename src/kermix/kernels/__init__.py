"""Kernels between samples: variances, Gram matrices, means of the kernel in tiles."""
