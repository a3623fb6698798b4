"""Schemas: columns in, their kinds, codes and normal scores out, and back."""
