"""The paper's figures and its table, one module each, and whether its claims were confirmed."""

from kermix.paper.catalogue import ARTEFACTS, reproduce
from kermix.paper.claims import Claim

__all__ = ["ARTEFACTS", "Claim", "reproduce"]
