"""Gaussian mixtures and their closed forms."""
