"""Kernelized matrix costs for distributions that are given by samples."""
