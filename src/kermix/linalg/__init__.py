"""Factorizations: Cholesky with a ridge, polar factor, nuclear norm, leading singular triplets."""
