"""Evaluating: real and generated data in, scores with error bars and copies out."""
