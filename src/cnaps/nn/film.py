"""FiLM: a scale and a shift for each channel behind a batch norm.

A batch norm in eval mode is itself a scale and a shift, so FiLM only changes its numbers. Nothing in a network
has to be rewritten for it: `bind` gives a stage whose norms carry a task's FiLM, `fold` goes on and moves norm
and FiLM into the convolution before them. Both leave the stage itself as it was and share all other weights
with it, so that many tasks, in many threads, use one network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

from cnaps.errors import InputError

M = TypeVar("M", bound=nn.Module)
SiteFilm = tuple[Tensor, Tensor]  # gamma (C,), beta (C,)
StageFilm = Sequence[SiteFilm]  # in the order of the stage's sites


@dataclass(frozen=True)
class Film:
    """The FiLM parameters psi_f of one task: for each stage, for each site, gamma and beta."""

    stages: tuple[tuple[SiteFilm, ...], ...]

    def __len__(self) -> int:
        """How many numbers these are."""
        return sum(part.numel() for stage in self.stages for site in stage for part in site)

    def detach(self) -> Film:
        """The same numbers without their history."""
        return Film(tuple(tuple((g.detach(), b.detach()) for g, b in stage) for stage in self.stages))

    def vector(self) -> Tensor:
        """All numbers in one row, site by site, gamma before beta."""
        parts = [part for stage in self.stages for site in stage for part in site]
        return torch.cat(parts) if parts else torch.empty(0)

    @classmethod
    def from_vector(cls, vector: Tensor, site_channels: Sequence[Sequence[int]]) -> Film:
        """Undo `vector`, given the channels of each site of each stage."""
        parts = iter(vector.split([c for stage in site_channels for c in stage for _ in range(2)]))
        return cls(tuple(tuple((next(parts), next(parts)) for _ in stage) for stage in site_channels))


def bind(stage: M, sites: Sequence[str], film: StageFilm, *, batch_statistics: bool = False) -> M:
    """A stage whose batch norms named in `sites` apply `film` as well; gradients flow into `film`.

    `batch_statistics` normalises by the statistics of the batch at hand, as joint training needs it.
    """
    bound = _skeleton(stage)
    if batch_statistics:
        bound.train()
    for name, (gamma, beta) in zip(sites, film, strict=True):
        norm = norm_at(bound, name)
        weight, bias = norm.weight, norm.bias
        # weight * x + bias, then gamma * (...) + beta, is one scale and one shift
        _set_tensor(norm, "weight", gamma if weight is None else gamma * weight)
        _set_tensor(norm, "bias", beta if bias is None else gamma * bias + beta)
    return bound


@torch.no_grad()
def fold(stage: M, pairs: Sequence[tuple[str, str]]) -> M:
    """A stage in which each (convolution, norm) of `pairs` is one convolution with a bias."""
    folded = _skeleton(stage)
    for conv_name, norm_name in pairs:
        norm = norm_at(folded, norm_name)
        conv = cast(nn.Conv2d, folded.get_submodule(conv_name))
        if norm.running_mean is None or norm.running_var is None:
            continue
        scale = torch.rsqrt(norm.running_var + norm.eps)
        if norm.weight is not None:
            scale = scale * norm.weight
        shift = -norm.running_mean * scale
        if norm.bias is not None:
            shift = shift + norm.bias
        if conv.bias is not None:
            shift = shift + conv.bias * scale
        _set_tensor(conv, "weight", conv.weight * scale[:, None, None, None])
        _set_tensor(conv, "bias", shift)
        parent, _, child = norm_name.rpartition(".")
        folded.get_submodule(parent)._modules[child] = nn.Identity()
    return folded


@torch.no_grad()
def foldable_pairs(stage: nn.Module, example: Tensor) -> tuple[list[tuple[str, str]], Tensor]:
    """Which norms read nothing but the output of one convolution: found by watching one forward pass.

    Returns the pairs of names and the stage's output. If folding them would change what the stage computes (a
    convolution whose output is used elsewhere too), no pair is returned.
    """
    made_by: dict[int, str] = {}
    outputs: list[Tensor] = []  # keeps every output alive, so that no id is used twice
    pairs: list[tuple[str, str]] = []
    hooks = []

    for name, module in stage.named_modules():
        if isinstance(module, nn.Conv2d):

            def after(_: nn.Module, __: object, output: Tensor, name: str = name) -> None:
                made_by[id(output)] = name
                outputs.append(output)

            hooks.append(module.register_forward_hook(after))
        elif isinstance(module, nn.BatchNorm2d):

            def before(_: nn.Module, inputs: tuple[Tensor, ...], name: str = name) -> None:
                if id(inputs[0]) in made_by:
                    pairs.append((made_by[id(inputs[0])], name))

            hooks.append(module.register_forward_pre_hook(before))
    try:
        result = stage(example)
    finally:
        for hook in hooks:
            hook.remove()
    if pairs:
        again = fold(stage, pairs)(example)
        if (again - result).abs().max() > 1e-3 * result.abs().max().clamp_min(1e-6):
            pairs = []
    return pairs, result


def norm_at(stage: nn.Module, name: str) -> nn.BatchNorm2d:
    """The batch norm of that name: the only kind of layer that FiLM can be part of."""
    module = stage.get_submodule(name)
    if not isinstance(module, nn.BatchNorm2d):
        raise InputError(f"FiLM site {name!r} is a {type(module).__name__}; it must be a BatchNorm2d")
    return module


def _skeleton(module: M) -> M:
    """A copy of the tree of modules that shares every tensor with the original."""
    copy = module.__class__.__new__(module.__class__)
    copy.__dict__ = module.__dict__.copy()
    copy._parameters = module._parameters.copy()
    copy._buffers = module._buffers.copy()
    copy._modules = {name: None if m is None else _skeleton(m) for name, m in module._modules.items()}
    return copy


def _set_tensor(module: nn.Module, name: str, value: Tensor) -> None:
    """Put a tensor, possibly with history, in the place of a parameter of a skeleton."""
    module._parameters.pop(name, None)
    object.__setattr__(module, name, value)
