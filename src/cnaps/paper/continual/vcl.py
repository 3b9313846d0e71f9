"""Variational continual learning (Nguyen et al., 2018): Gaussian weights, the last posterior is the next prior.

Trained as Swaroop et al. (2019) found best: outputs are sampled and not weights, every step starts at random means
and small variances, and goes on until the variances have settled: at a higher rate and longer than other methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cnaps.paper.continual.base import Coreset, Finetune

KEPT = 20  # examples of each class in the coreset
START = -6.0  # log variance at the start of a step
RATE, LONGER = 0.005, 5  # of the first iteration; how many times as many iterations as other methods take
HIDDEN = (200,)  # units for grey images
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
        self.remember()

    def forward(self, x: Tensor) -> Tensor:
        """Outputs are Gaussian with mean W x and variance V x^2: one draw for each (Kingma et al., 2015)."""
        apply: Any = F.conv2d if self.options else F.linear
        mean = apply(x, self.mean, self.bias_mean, **self.options)
        variance = apply(x.square(), self.log_variance.exp(), self.bias_log_variance.exp(), **self.options)
        # drawn in a row, and laid out as the outputs are: torch draws into channels_last one number at a time
        noise = torch.randn(mean.numel(), device=mean.device).as_strided(mean.shape, mean.stride())
        return mean + variance.clamp_min(1e-12).sqrt() * noise

    def posterior(self) -> list[tuple[Tensor, Tensor]]:
        """Means and log variances of weights and biases."""
        return [(self.mean, self.log_variance), (self.bias_mean, self.bias_log_variance)]

    def pull(self) -> list[Tensor]:
        """The gradient of the divergence from prior to posterior, in the order of the parameters."""
        with torch.no_grad():
            pairs = list(zip(self.posterior(), self.prior, strict=True))
            means = [(mean - old_mean) / old_log.exp() for (mean, _), (old_mean, old_log) in pairs]
            return means + [((log - old_log).exp() - 1) / 2 for (_, log), (_, old_log) in pairs]

    def begin(self, outputs: Tensor | slice = slice(None)) -> None:
        """Random means and small variances for these outputs."""
        with torch.no_grad():
            fresh = nn.init.kaiming_uniform_(torch.empty_like(self.mean))
            self.mean[outputs], self.bias_mean[outputs] = fresh[outputs], 0.0
            self.log_variance[outputs], self.bias_log_variance[outputs] = START, START

    def remember(self) -> None:
        """The posterior becomes the prior."""
        self.prior = [(mean.detach().clone(), log.detach().clone()) for mean, log in self.posterior()]

    def widen(self, outputs: Tensor | slice = slice(None)) -> None:
        """The prior of these outputs is that of weights of which nothing is known: N(0, 1)."""
        for mean, log in self.prior:
            mean[outputs], log[outputs] = 0.0, 0.0


class Vcl(Finetune):
    """Mean-field VCL; with `coreset`, a few examples are held out and trained on before each prediction."""

    def __init__(
        self,
        network: nn.Sequential,
        classes: int,
        *,
        iterations: int = 300,
        coreset: bool = False,
        **options: int,
    ) -> None:
        layers = [Gaussian(e) if isinstance(e, nn.Linear | nn.Conv2d) else e for e in network]
        super().__init__(nn.Sequential(*layers), classes, iterations=LONGER * iterations, **options)
        self.layers = [layer for layer in layers if isinstance(layer, Gaussian)]
        for layer in self.layers[:-1]:
            layer.widen()  # a head waits until its classes come
        self.memory = Coreset(KEPT, self.generator) if coreset else None
        self.examples = 1
        self._ready: Vcl | None = None  # what predicts: after the coreset

    def meet(self, labels: Tensor) -> None:
        """Of classes that are new nothing is known."""
        known = self.rivals.any(1)
        super().meet(labels)
        self.layers[-1].widen(self.rivals.any(1) & ~known)

    def learn(self, images: Tensor, labels: Tensor) -> None:
        """Train on one step, with the last posterior as the prior."""
        self.meet(labels)
        x = self.prepare(images)
        if self.memory is not None:
            rest = self.memory.add(x, labels)
            # a class with no more examples than the coreset takes is trained on all the same
            rest |= ~torch.isin(labels, labels[rest])
            x, labels = x[rest], labels[rest]
        self._fit(x, labels, fresh=True)
        self._ready = None

    def prepare(self, images: Tensor) -> Tensor:
        """Floats of 0..1: weights of dark pixels then tell nothing and stay free for later steps."""
        x = super().prepare(images)
        return x if x is images else (x + 1) / 2

    def rate(self, done: float) -> float:
        """Falls to zero."""
        return RATE * (1 - done)

    def pull(self) -> Sequence[Tensor | float]:
        """The gradient of the divergence for one example: with the loss, that of the negative evidence bound."""
        return [gradient / self.examples for layer in self.layers for gradient in layer.pull()]

    def logits(self, images: Tensor) -> Tensor:
        """The log of the mean probability over draws."""
        if self.memory is not None and self._ready is None:
            self._ready = deepcopy(self)
            self._ready.memory = None
            self._ready.iterations = max(1, self.iterations // (4 * LONGER))
            self._ready._fit(self.memory.x, self.memory.labels)
        source = self._ready or self
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            draws = torch.stack([Finetune.logits(source, images) for _ in range(DRAWS)])
        return draws.log_softmax(2).logsumexp(0)

    def _fit(self, x: Tensor, labels: Tensor, *, fresh: bool = False) -> None:
        self.examples = len(x)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**31, (), generator=self.generator)))
            if fresh:
                for layer in self.layers[:-1]:
                    layer.begin()
                self.layers[-1].begin(labels.unique())
            self.train(x, labels)
        for layer in self.layers:
            layer.remember()
