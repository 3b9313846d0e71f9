"""CNAPs and its relatives: models that `cnaps train` made, each the classifier of a task after one `adapt`."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from cnaps.nn.model import Adapted, CNAPs
from cnaps.paper.learners.base import Predictor
from cnaps.paper.learners.maml import MamlAdapted


class TrainedLearner:
    """A trained model behind the common protocol, calibrated where the model says how."""

    def __init__(self, model: CNAPs, name: str = "cnaps") -> None:
        self.model, self.name = model, name

    @torch.no_grad()
    def adapt(self, images: Tensor, labels: Tensor) -> Predictor:
        """Read the context."""
        adapted = self.model.adapt(self.model.preprocess(images), labels)
        ways = int(labels.max()) + 1
        a, b, c = self.model.notes.get("calibration", (0.0, 0.0, 0.0))
        temperature = math.exp(a + b * math.log(ways) + c * math.log(len(labels) / ways))
        return Predictor(
            lambda pixels: adapted.logits(self.model.preprocess(pixels)) / temperature, _count(adapted)
        )


def _count(adapted: Adapted | MamlAdapted) -> int:
    if isinstance(adapted, MamlAdapted):
        return sum(value.numel() for value in adapted.weights.values())
    made = adapted.classifier
    numbers = made.buffers() if isinstance(made, nn.Module) else vars(made).values()
    return len(adapted.film) + sum(value.numel() for value in numbers if isinstance(value, Tensor))
