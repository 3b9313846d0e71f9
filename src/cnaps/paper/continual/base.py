"""A small network that learns one step of a stream after the other; what the compared methods share."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH, LEARNING_RATE = 256, 0.001


class ContinualLearner(Protocol):
    """Learns classes in steps. Labels are 0..K-1 over the whole stream."""

    def learn(self, images: Tensor, labels: Tensor) -> None:
        """One step: images uint8 (N, 3, S, S) of classes that may be new; those of earlier steps are gone.

        In the place of images, features (N, d) where a method is for these.
        """

    def logits(self, images: Tensor) -> Tensor:
        """(M, K); columns of classes that have not been seen mean nothing."""


def small_network(classes: int, size: int, grey: bool, hidden: Sequence[int] = (256, 256)) -> nn.Module:
    """Hidden layers of these sizes for grey images, as for Split MNIST; three convolutions for coloured ones.

    >>> small_network(10, 28, grey=True)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    if grey:
        sizes = [size**2, *hidden]
        layers = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
        return nn.Sequential(nn.Flatten(), *layers, nn.Linear(sizes[-1], classes))
    convolutions = [
        layer
        for inputs, outputs in ((3, 32), (32, 64), (64, 64))
        for layer in (nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.ReLU())
    ]
    wide = 64 * (-(-size // 8)) ** 2
    network = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(wide, 256), nn.ReLU(), nn.Linear(256, classes))
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # convolutions learn twice as fast
    return network


def feature_network(classes: int, width: int, hidden: int = 256) -> nn.Module:
    """One hidden layer, for features of a backbone instead of images.

    >>> feature_network(10, 96)(torch.zeros(2, 96)).shape
    torch.Size([2, 10])
    """
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, classes))


class Finetune:
    """Each step trains on from the last, with nothing against forgetting: the lower bound.

    In a step only its own classes compete in the loss, so that the output layer is one head a step; which classes
    compete in a prediction (those of a step, or all) is up to whoever asks.
    """

    def __init__(
        self, network: nn.Module, classes: int, *, iterations: int = 300, batch: int = BATCH, seed: int = 0
    ) -> None:
        self.network, self.iterations, self.batch = network, iterations, batch
        self.generator = torch.Generator().manual_seed(seed)
        self.grey = isinstance(network[0], nn.Flatten)  # type: ignore[index]
        self.rivals = torch.zeros(classes, classes, dtype=torch.bool)  # row y: who competes with class y

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All weights."""
        return list(self.network.parameters())

    def learn(self, images: Tensor, labels: Tensor) -> None:
        """Train on one step."""
        self.meet(labels)
        self.train(self.prepare(images), labels)

    def meet(self, labels: Tensor) -> None:
        """Classes of one step compete with each other."""
        here = labels.unique()
        self.rivals[here[:, None], here] = True

    def logits(self, images: Tensor) -> Tensor:
        """Of all classes."""
        with torch.no_grad():
            return torch.cat([self.network(part) for part in self.prepare(images).split(1000)])

    def prepare(self, images: Tensor) -> Tensor:
        """Floats of -1..1, of one channel where the network is for grey images; features stay what they are."""
        if images.ndim == 2:
            return images
        x = images.float().mean(1, keepdim=True) if self.grey else images.float()
        return (x / 127.5 - 1).contiguous(memory_format=torch.channels_last)

    def loss(self, x: Tensor, labels: Tensor) -> Tensor:
        """Cross entropy among the rivals of each label."""
        return F.cross_entropy(self.network(x).masked_fill(~self.rivals[labels], -torch.inf), labels)

    def train(self, x: Tensor, labels: Tensor) -> None:
        """Adam on random batches."""
        parameters = self.parameters
        # not fused: that takes a gradient whose layout in memory is another than its weight's for one that is not
        optimiser = torch.optim.Adam(parameters, LEARNING_RATE)
        for i in range(self.iterations):
            optimiser.param_groups[0]["lr"] = self.rate(i / self.iterations)
            batch = torch.randint(len(x), (min(self.batch, len(x)),), generator=self.generator)
            gradients = torch.autograd.grad(self.loss(x[batch], labels[batch]), parameters)
            before = [p.detach().clone() for p in parameters]
            for p, gradient, pull in zip(parameters, gradients, self.pull(), strict=True):
                p.grad = gradient + pull
            optimiser.step()
            self.follow(gradients, before)

    def rate(self, done: float) -> float:
        """The learning rate when this share of the training is done."""
        return LEARNING_RATE

    def pull(self) -> Sequence[Tensor | float]:
        """The gradient of a penalty."""
        return [0.0] * len(self.parameters)

    def follow(self, gradients: Sequence[Tensor], before: Sequence[Tensor]) -> None:
        """What to note of a training step: the loss's gradients, and the weights before it."""


class Quadratic(Finetune):
    """Weights that mattered are held near where they were: strength / 2 * sum of weight * (p - anchor)^2."""

    strength = 1.0  # for Split MNIST, as published where that is known

    def __init__(self, network: nn.Module, classes: int, *, strength: float | None = None, **options: int) -> None:
        super().__init__(network, classes, **options)
        self.strength = self.strength if strength is None else strength
        self.weights = [torch.zeros_like(p) for p in self.parameters]
        self.anchors = [p.detach().clone() for p in self.parameters]

    def learn(self, images: Tensor, labels: Tensor) -> None:
        """Train on one step, then note what mattered to it."""
        super().learn(images, labels)
        with torch.no_grad():
            self.consolidate(self.prepare(images), labels)
        self.anchors = [p.detach().clone() for p in self.parameters]

    def pull(self) -> Sequence[Tensor | float]:
        """The gradient of the penalty."""
        with torch.no_grad():
            return [
                self.strength * w * (p - a)
                for w, p, a in zip(self.weights, self.parameters, self.anchors, strict=True)
            ]

    def consolidate(self, x: Tensor, labels: Tensor) -> None:
        """Change `weights` after a step; `anchors` are still those of the step before."""
        raise NotImplementedError


class Joint(Finetune):
    """Everything seen so far is kept and trained on together: the upper bound, and no continual learning."""

    def __init__(self, network: nn.Module, classes: int, **options: int) -> None:
        super().__init__(network, classes, **options)
        self._images, self._labels = torch.empty(0), torch.empty(0, dtype=torch.long)

    def learn(self, images: Tensor, labels: Tensor) -> None:
        """Train on all steps so far; all classes compete."""
        self._images, self._labels = _joined(self._images, images), _joined(self._labels, labels)
        super().learn(self._images, self._labels)


def _joined(earlier: Tensor, latest: Tensor) -> Tensor:
    return torch.cat([earlier, latest]) if len(earlier) else latest


class Coreset:
    """A few random examples of each class, for methods that keep some."""

    def __init__(self, a_class: int, generator: torch.Generator) -> None:
        self.a_class, self.generator = a_class, generator
        self.x, self.labels = torch.empty(0), torch.empty(0, dtype=torch.long)

    def add(self, x: Tensor, labels: Tensor) -> Tensor:
        """Keep some of a step; gives a mask (N,) of those that were not kept."""
        rest = torch.ones(len(x), dtype=torch.bool)
        for k in labels.unique():
            own = torch.nonzero(labels == k).flatten()
            rest[own[torch.randperm(len(own), generator=self.generator)[: self.a_class]]] = False
        self.x, self.labels = _joined(self.x, x[~rest]), _joined(self.labels, labels[~rest])
        return rest
