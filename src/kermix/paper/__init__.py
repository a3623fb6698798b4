"""Reproducing the paper: the name of a figure or table in, its numbers, pictures and claims out.

One module for each figure or table; claims are judged by numbers.
"""

from kermix.paper.artefact import Claim
from kermix.paper.catalogue import ARTEFACTS, reproduce

__all__ = ["ARTEFACTS", "Claim", "reproduce"]
