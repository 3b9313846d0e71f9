"""Variational continual learning (Nguyen et al., 2018): Gaussian weights, the last posterior is the next prior."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cnaps.continual.base import Finetune, Memory

KEPT = 20  # examples of each class in the coreset
START = -6.0  # log variance before any data
DRAWS = 10  # networks that a prediction averages over


class Gaussian(nn.Module):
    """A linear or convolutional layer with independent Gaussian weights, sampled by its outputs."""

    def __init__(self, layer: nn.Linear | nn.Conv2d) -> None:
        super().__init__()
        assert layer.bias is not None
        self.options: dict[str, Any] = {}
        if isinstance(layer, nn.Conv2d):
            self.options = {"stride": layer.stride, "padding": layer.padding}
        self.mean, self.bias_mean = layer.weight, layer.bias
        self.log_variance = nn.Parameter(torch.full_like(layer.weight, START))
        self.bias_log_variance = nn.Parameter(torch.full_like(layer.bias, START))
        # the prior of the first step is wide: nothing is known
        self.prior = [
            (torch.zeros_like(mean), torch.zeros_like(mean)) for mean in (layer.weight.data, layer.bias.data)
        ]

    def forward(self, x: Tensor) -> Tensor:
        """Outputs are Gaussian with mean W x and variance V x^2: one draw for each (Kingma et al., 2015)."""
        apply: Any = F.conv2d if self.options else F.linear
        mean = apply(x, self.mean, self.bias_mean, **self.options)
        variance = apply(x.square(), self.log_variance.exp(), self.bias_log_variance.exp(), **self.options)
        return mean + variance.clamp_min(1e-12).sqrt() * torch.randn_like(mean)

    def posterior(self) -> list[tuple[Tensor, Tensor]]:
        """Means and log variances of weights and biases."""
        return [(self.mean, self.log_variance), (self.bias_mean, self.bias_log_variance)]

    def divergence(self) -> Tensor:
        """KL from prior to posterior."""
        total = torch.zeros(())
        for (mean, log), (old_mean, old_log) in zip(self.posterior(), self.prior, strict=True):
            terms = (log - old_log).exp() + (mean - old_mean).square() / old_log.exp() - 1 - log + old_log
            total = total + terms.sum() / 2
        return total

    def remember(self) -> None:
        """The posterior becomes the prior."""
        self.prior = [(mean.detach().clone(), log.detach().clone()) for mean, log in self.posterior()]


class Vcl(Finetune):
    """Mean-field VCL; with `coreset`, a few examples are held out and trained on before each prediction."""

    def __init__(
        self,
        network: nn.Sequential,
        classes: int,
        *,
        iterations: int = 300,
        seed: int = 0,
        coreset: bool = False,
    ) -> None:
        layers = [Gaussian(e) if isinstance(e, nn.Linear | nn.Conv2d) else e for e in network]
        super().__init__(nn.Sequential(*layers), classes, iterations=iterations, seed=seed)
        self.layers = [layer for layer in layers if isinstance(layer, Gaussian)]
        self.memory = Memory(KEPT, self.generator) if coreset else None
        self.examples = 1
        self._ready: Vcl | None = None  # what predicts: after the coreset

    def learn(self, images: Tensor, labels: Tensor) -> None:
        """Train on one step from the last posterior; a head that is new starts certain, like the rest did."""
        new = ~self.rivals.any(1)
        for log in (self.layers[-1].log_variance, self.layers[-1].bias_log_variance):
            log.data[new] = START
        self.meet(labels)
        x = self.prepare(images)
        if self.memory is not None:
            rest = self.memory.add(x, labels)
            # a class with no more examples than the coreset takes is trained on all the same
            rest |= ~torch.isin(labels, labels[rest])
            x, labels = x[rest], labels[rest]
        self._fit(x, labels)
        self._ready = None

    def loss(self, x: Tensor, labels: Tensor) -> Tensor:
        """The negative evidence bound of an example."""
        divergence = torch.stack([layer.divergence() for layer in self.layers]).sum()
        return super().loss(x, labels) + divergence / self.examples

    def logits(self, images: Tensor) -> Tensor:
        """The log of the mean probability over draws."""
        if self.memory is not None and self._ready is None:
            self._ready = deepcopy(self)
            self._ready.memory = None
            self._ready.iterations = max(1, self.iterations // 4)
            self._ready._fit(self.memory.x, self.memory.labels)
        source = self._ready or self
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            draws = torch.stack([Finetune.logits(source, images) for _ in range(DRAWS)])
        return draws.log_softmax(2).logsumexp(0)

    def _fit(self, x: Tensor, labels: Tensor) -> None:
        self.examples = len(x)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**31, (), generator=self.generator)))
            self.train(x, labels)
        for layer in self.layers:
            layer.remember()
