"""CNAPs and its relatives: models that `cnaps train` made, each the classifier of a task after one `adapt`."""

from __future__ import annotations

import torch
from torch import Tensor

from cnaps.maths.calibration import temperature
from cnaps.nn.adapted import Adapted
from cnaps.nn.task_model import Fitted, TaskModel
from cnaps.paper.learners.base import FittedClassifier, Predictor, count_numbers


class TrainedLearner:
    """A trained model behind the common protocol, calibrated where the model says how."""

    def __init__(self, model: TaskModel, name: str = "cnaps") -> None:
        self.model, self.name = model, name

    @torch.no_grad()
    def adapt(self, images: Tensor, labels: Tensor) -> Predictor:
        """Read the context."""
        adapted = self.model.adapt(self.model.preprocess(images), labels)
        scale = self.temperature(labels)
        return Predictor(lambda pixels: adapted.logits(self.model.preprocess(pixels)) / scale, _count(adapted))

    def temperature(self, labels: Tensor) -> float:
        """What the logits of a task with these labels (N,) are divided by; 1 if the model does not say."""
        ways = int(labels.max()) + 1
        return temperature(self.model.notes, ways, len(labels) / ways)


def _count(fitted: Fitted) -> int:
    if isinstance(fitted, Adapted):
        return len(fitted.film) + count_numbers(fitted.classifier)
    assert isinstance(fitted, FittedClassifier)
    return fitted.numbers
