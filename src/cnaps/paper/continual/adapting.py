"""CNAPs as a continual learner: one pass over each step, then the fitted task learns on."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from cnaps.maths.statistics import ClassStatistics
from cnaps.nn.model import CNAPs
from cnaps.runtime.engine import open_engine
from cnaps.runtime.task import Examples, FittedTask


class AdaptingLearner:
    """A model that keeps FiLM, class statistics and a running task embedding, and no image."""

    def __init__(self, model: CNAPs, classes: int, mode: str) -> None:
        self.engine, self.classes, self.mode = open_engine(model), classes, mode
        self.task: FittedTask | None = None
        self._known: tuple[np.ndarray, Tensor, np.ndarray] | None = None  # features hold as long as FiLM does

    def learn(self, images: Tensor, labels: Tensor) -> None:
        """Adapt to the first step, update with each later one."""
        examples = Examples(images.numpy(), labels.tolist())
        if self.task is None:
            self.task = FittedTask.learn(self.engine, examples)
        else:
            self.task = self.task.update(examples, mode=self.mode)

    def logits(self, images: Tensor) -> Tensor:
        """(M, K)."""
        assert self.task is not None
        if self._known is None or self._known[0] is not self.task.film or self._known[1] is not images:
            self._known = self.task.film, images, self.task.features(images.numpy())
        out = torch.full((len(images), self.classes), -torch.inf)
        out[:, torch.tensor(self.task.names)] = torch.from_numpy(self.task.classifier(self._known[2])).float()
        return out

    def drift(self, images: Tensor, labels: Tensor) -> float:
        """How far stored class means are from what these images, all seen so far, give under the present FiLM.

        In units of the distance of class means from their centre; rounding is all there is with fixed FiLM.
        """
        assert self.task is not None
        index = np.searchsorted(np.array(self.task.names), labels.numpy())
        features = self.task.features(images.numpy()).astype(np.float64)
        true = ClassStatistics.of(features, index, len(self.task.names), scatter=False).means
        emphasis = self.engine.head.emphasis(true)
        gaps = np.linalg.norm((self.task.statistics.means - true) * emphasis, axis=1)
        return float(gaps.mean() / np.linalg.norm((true - true.mean(0)) * emphasis, axis=1).mean())
