"""Comparing: two samples, tables or sketches in, a verdict with its evidence out."""
