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
        self._film: np.ndarray | None = None
        self._known: list[tuple[Tensor, np.ndarray]] = []  # images and their features, which hold as long as FiLM

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
        if self._film is not self.task.film:
            self._film, self._known = self.task.film, []
        features = next((found for known, found in self._known if known is images), None)
        if features is None:
            features = self.task.features(images.numpy())
            self._known.append((images, features))
        out = torch.full((len(images), self.classes), -torch.inf)
        out[:, torch.tensor(self.task.names)] = torch.from_numpy(self.task.classifier(features)).float()
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
