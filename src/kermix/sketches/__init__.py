"""Primal statistics: feature maps, sketches that add up, and sketches of files."""
