"""Gaussian-product networks."""
