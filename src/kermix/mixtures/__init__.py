"""Gaussian mixtures: weights, means and covariances in, densities, samples and closed forms out."""
