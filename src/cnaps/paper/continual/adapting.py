"""CNAPs as a continual learner: one pass over each step, then `Adapted.update`."""

from __future__ import annotations

import torch
from torch import Tensor

from cnaps.maths.statistics import ClassStatistics
from cnaps.nn.adapted import Adapted
from cnaps.nn.model import CNAPs


class AdaptingLearner:
    """A model that keeps FiLM, class statistics and a running task embedding, and no image."""

    def __init__(self, model: CNAPs, classes: int, mode: str) -> None:
        self.model, self.classes, self.mode = model, classes, mode
        self.adapted: Adapted | None = None
        self._embedded: tuple[object, object, Tensor] | None = None  # features hold as long as FiLM does

    @torch.no_grad()
    def learn(self, images: Tensor, labels: Tensor) -> None:
        """Adapt to the first step, update with each later one."""
        x = self.model.preprocess(images)
        if self.adapted is None:
            self.adapted = self.model.adapt(x, labels)
        else:
            self.adapted = self.adapted.update(x, labels, mode=self.mode)

    @torch.no_grad()
    def logits(self, images: Tensor) -> Tensor:
        """(M, K)."""
        assert self.adapted is not None
        key = self.adapted.film
        if self._embedded is None or self._embedded[0] is not key or self._embedded[1] is not images:
            self._embedded = key, images, self._features(images)
        out = torch.full((len(images), self.classes), -torch.inf)
        out[:, self.adapted.classes] = self.adapted.classify(self._embedded[2]).cpu()
        return out

    @torch.no_grad()
    def drift(self, images: Tensor, labels: Tensor) -> float:
        """How far stored class means are from what these images, all seen so far, give under the present FiLM.

        In units of the distance of class means from their centre; rounding is all there is with fixed FiLM.
        """
        assert self.adapted is not None
        ways = len(self.adapted.classes)
        index = torch.searchsorted(self.adapted.classes, labels)
        true = ClassStatistics.of(self._features(images), index, ways, scatter=False).means.double()
        emphasis = self.model.head.maths.emphasis(true)
        gaps = ((self.adapted.statistics.means.double() - true) * emphasis).norm(dim=1)
        return float(gaps.mean() / ((true - true.mean(0)) * emphasis).norm(dim=1).mean())

    def _features(self, images: Tensor) -> Tensor:
        assert self.adapted is not None
        return torch.cat([self.adapted.features(self.model.preprocess(part)) for part in images.split(256)])
