"""The paper's figures and its table, one module each, and whether its claims were seen."""

from .catalogue import ARTEFACTS, reproduce
from .claims import Claim

__all__ = ["ARTEFACTS", "Claim", "reproduce"]
