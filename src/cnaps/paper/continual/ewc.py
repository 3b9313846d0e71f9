"""Elastic weight consolidation (Kirkpatrick et al., 2017)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from cnaps.paper.continual.base import Quadratic

SAMPLES = 500  # examples of a step that the Fisher information is estimated from


class Ewc(Quadratic):
    """Weights count by the diagonal of the Fisher information, summed over steps."""

    strength = 2000.0

    def consolidate(self, x: Tensor, labels: Tensor) -> None:
        """Add this step's Fisher information."""
        chosen = torch.randperm(len(x), generator=self.generator)[:SAMPLES]
        for weight, new in zip(self.weights, self.fisher(x[chosen], labels[chosen]), strict=True):
            weight += new

    def fisher(self, x: Tensor, labels: Tensor) -> list[Tensor]:
        """The mean over examples of the squared gradient of the log-likelihood of a label drawn by the network."""
        masks = self.rivals[labels]
        logits = self.network(x).masked_fill(~masks, -torch.inf)
        drawn = torch.multinomial(logits.softmax(1), 1, generator=self.generator)[:, 0]
        weights = {name: p.detach() for name, p in self.network.named_parameters()}

        def loss(weights: dict[str, Tensor], one: Tensor, mask: Tensor, label: Tensor) -> Tensor:
            logits = functional_call(self.network, weights, (one[None],))
            return F.cross_entropy(torch.where(mask[None], logits, -torch.inf), label[None])

        gradient = vmap(grad(loss), (None, 0, 0, 0))
        sums = [torch.zeros_like(p) for p in weights.values()]
        with torch.enable_grad():
            for part in zip(x.split(50), masks.split(50), drawn.split(50), strict=True):
                for total, each in zip(sums, gradient(weights, *part).values(), strict=True):
                    total += each.square().sum(0)
        return [total / len(x) for total in sums]
