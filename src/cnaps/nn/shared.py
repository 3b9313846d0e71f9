"""What phi changes in the backbone for all tasks alike: a low-rank term beside the weight of each 1x1 convolution.

FiLM only scales and shifts channels; it cannot make new ones. Some of what the backbone lacks is lacking in every
task (it has seen photographs only), and need not be found anew from each context: it is learned once, in phi, and
theta stays as it is. A term that starts at nothing leaves the backbone as it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

from cnaps.nn.film import set_tensor, skeleton


class SharedTerms(nn.Module):
    """For each stage, its 1x1 convolutions with weight W + U V, of rank at most `rank`.

    >>> stage = nn.Sequential(nn.Conv2d(4, 8, 1, bias=False))
    >>> terms = SharedTerms([stage], rank=2)
    >>> x = torch.rand(1, 4, 5, 5)
    >>> torch.equal(terms.join(0, stage)(x), stage(x))
    True
    """

    def __init__(self, stages: Iterable[nn.Module], rank: int) -> None:
        super().__init__()
        self.names = [[n for n, m in stage.named_modules() if _is_pointwise(m)] for stage in stages]
        self.outer, self.inner = nn.ParameterList(), nn.ParameterList()
        for stage, names in zip(stages, self.names, strict=True):
            for name in names:
                outputs, inputs, *_ = cast(nn.Conv2d, stage.get_submodule(name)).weight.shape
                r = min(rank, inputs, outputs)
                self.outer.append(nn.Parameter(torch.zeros(outputs, r)))
                self.inner.append(nn.Parameter(torch.randn(r, inputs) / math.sqrt(inputs)))
        self._joined: dict[int, tuple[object, nn.Module]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_joined": {}}

    def join(self, index: int, stage: nn.Module) -> nn.Module:
        """Stage number `index` with its terms in its weights; made once, as long as no gradients are wanted."""
        first, names = sum(map(len, self.names[:index])), self.names[index]
        terms = [(self.outer[first + i], self.inner[first + i], name) for i, name in enumerate(names)]
        if torch.is_grad_enabled():
            return _join(stage, terms)
        weights = [cast(nn.Conv2d, stage.get_submodule(name)).weight for name in names]
        used = [*weights, *(part for outer, inner, _ in terms for part in (outer, inner))]
        state = tuple((tensor.data_ptr(), tensor._version) for tensor in used)  # another one after any change
        known = self._joined.get(index)
        if known is None or known[0] != state:
            known = self._joined[index] = (state, _join(stage, terms))
        return known[1]


def _join(stage: nn.Module, terms: Iterable[tuple[Tensor, Tensor, str]]) -> nn.Module:
    joined = skeleton(stage)
    for outer, inner, name in terms:
        conv = cast(nn.Conv2d, joined.get_submodule(name))
        set_tensor(conv, "weight", conv.weight + (outer @ inner)[:, :, None, None])
    return joined


def _is_pointwise(module: nn.Module) -> bool:
    return isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1) and module.groups == 1
