"""Sketches: samples of any size in, features and mergeable moments with error bounds out."""
