"""What trains a classifier: AdamW, with Muon for matrices where it is asked for."""

import torch
from torch import nn

from kermix.training.classifier_settings import ClassifierSettings
from kermix.training.graphs import adam
from kermix.training.muon import Muon

__all__ = ["classifier_optimizers"]


def classifier_optimizers(
    model: nn.Module, settings: ClassifierSettings, device: torch.device
) -> list[torch.optim.Optimizer]:
    """AdamW for everything, or Muon for the matrices and AdamW for the rest.

    The `share` of a group is its part of the learning rate, which the trainer sets in each step.
    """
    decay = settings.weight_decay
    named = list(model.named_parameters())

    def is_matrix(name: str) -> bool:
        if name == "output.anchors":
            return settings.optimizer == "muon-anchors"
        return name.startswith("layers.") and name.endswith("weight")

    muon = [p for name, p in named if is_matrix(name) and p.ndim == 2]
    muon = muon if settings.optimizer != "adamw" else []
    scores = [p for name, p in named if name == "output.scores.weight"]
    rest = [p for _, p in named if not any(p is m for m in (*muon, *scores))]
    groups = [
        {"params": [p for p in rest if p.ndim >= 2], "weight_decay": decay, "share": 1.0},
        {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0, "share": 1.0},
        {"params": scores, "weight_decay": decay, "share": settings.score_rate},
    ]
    found: list[torch.optim.Optimizer] = [
        adam(groups, device, torch.optim.AdamW, betas=(0.9, 0.99))
    ]
    if muon:
        found.append(
            Muon([{"params": muon, "share": 1.0}], lr=1.0, weight_decay=decay, momentum=0.9)
        )
    return found
