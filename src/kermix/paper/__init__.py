"""The paper's figures and its table, one module each, and whether its claims were confirmed."""

from kermix.paper.artefact import Claim
from kermix.paper.catalogue import ARTEFACTS, reproduce

__all__ = ["ARTEFACTS", "Claim", "reproduce"]
