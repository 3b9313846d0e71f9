"""LoRA: what phi changes in the backbone for all tasks alike, a low-rank term for each 1x1 convolution.

FiLM only scales and shifts channels; it cannot make new ones. Some of what the backbone lacks is lacking in every
task (it has seen photographs only), and need not be found anew from each context: it is learned once, in phi, and
theta stays as it is. A term that starts at nothing leaves the backbone as it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn

from cnaps.nn.film import set_tensor, skeleton


class LoRA(nn.Module):
    """For each stage, its 1x1 convolutions with weight W + U V, of rank at most `rank`.

    >>> stage = nn.Sequential(nn.Conv2d(4, 8, 1, bias=False))
    >>> terms = LoRA([stage], rank=2)
    >>> x = torch.rand(1, 4, 5, 5)
    >>> torch.equal(terms.join(0, stage)(x), stage(x))
    True
    """

    def __init__(self, stages: Iterable[nn.Module], rank: int) -> None:
        super().__init__()
        stages = list(stages)
        self.names = [[n for n, m in stage.named_modules() if _is_pointwise(m)] for stage in stages]
        self.outer, self.inner = nn.ParameterList(), nn.ParameterList()
        for stage, names in zip(stages, self.names, strict=True):
            for name in names:
                outputs, inputs, *_ = cast(nn.Conv2d, stage.get_submodule(name)).weight.shape
                r = min(rank, inputs, outputs)
                self.outer.append(nn.Parameter(torch.zeros(outputs, r)))
                self.inner.append(nn.Parameter(torch.randn(r, inputs) / math.sqrt(inputs)))

    def terms(self, index: int) -> list[tuple[str, Tensor, Tensor]]:
        """Of stage number `index`: the names of its convolutions, each with its U and V."""
        first = sum(map(len, self.names[:index]))
        return [(name, self.outer[i], self.inner[i]) for i, name in enumerate(self.names[index], first)]

    def join(self, index: int, stage: nn.Module, share: float = 1.0) -> nn.Module:
        """Stage number `index` with a share of its terms in its weights; gradients flow into them."""
        joined = skeleton(stage)
        for name, outer, inner in self.terms(index):
            conv = cast(nn.Conv2d, joined.get_submodule(name))
            set_tensor(conv, "weight", conv.weight + (share * (outer @ inner))[:, :, None, None])
        return joined

    @torch.no_grad()
    def scale(self, factor: float) -> None:
        """Go back some of the way to the backbone: 1 leaves the terms as they are, 0 takes them away."""
        for outer in self.outer:
            outer.mul_(factor)


def _is_pointwise(module: nn.Module) -> bool:
    return isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1) and module.groups == 1
