"""Distillation: theta is the teacher of phi, by what it sees in the same image shown larger.

A backbone that learned from images of 224 pixels knows things best at about that size. A model that reads smaller
images, blurred ones or ones in other colours can learn to see in them what theta sees in the original, enlarged.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from cnaps.episodes import Task
from cnaps.nn.adapted import Adapted, default_chunk
from cnaps.nn.backbones.base import Backbone, staged_features
from cnaps.training.config import Distillation


class Teacher:
    """Compares adapted features with those of theta, which looks at each image once."""

    @torch.no_grad()
    def __init__(self, backbone: Backbone, options: Distillation) -> None:
        self._options, self._normalisation = options, backbone.normalisation
        self._device = next(backbone.parameters()).device
        self._modules, self._pools = backbone.ready(learn=False), backbone.pools[1:]
        self._known: dict[tuple[str, str], Tensor] = {}

    def teaches(self, collection: str) -> bool:
        """Whether theta knows enough of such images to teach."""
        return collection in self._options.collections

    def loss(self, task: Task, adapted: Adapted, targets: Tensor) -> Tensor:
        """One minus the cosine to the teacher's features, over context and targets (adapted features, (M, d))."""
        images = torch.cat([task.context_images, task.target_images])
        wanted = self.features(task.collection, [*task.context_keys, *task.target_keys], images)
        seen = torch.cat([adapted.context_features, targets])[:, -wanted.shape[1] :].float()  # the last stage's
        return self._options.weight * (1 - F.cosine_similarity(seen, wanted.to(seen.device))).mean()

    def features(self, collection: str, keys: Iterable[str], images: Tensor) -> Tensor:
        """Features (N, d) of the images (N, 3, S, S) as they are stored."""
        names = [(collection, key) for key in keys]
        new = [i for i, name in enumerate(names) if name not in self._known]
        size = default_chunk(self._device)
        for part in (new[start : start + size] for start in range(0, len(new), size)):
            for i, feature in zip(part, self._look(images[part]), strict=True):
                self._known[names[i]] = feature
        return torch.stack([self._known[name] for name in names]).float()

    @torch.no_grad()
    def _look(self, images: Tensor) -> Tensor:
        size = (self._options.size, self._options.size)
        large = F.interpolate(images.float(), size=size, mode="bicubic", align_corners=False).clamp_(0, 255)
        images = self._normalisation(large.to(self._device))
        return staged_features(self._modules, self._pools, images).half().cpu()
