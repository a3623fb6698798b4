"""Gaussian mixtures: weights, means, covariances in, densities, samples, closed forms out."""
