"""FiLM: a scale and a shift for each channel behind a norm.

A norm ends with a scale and a shift of its own, so FiLM only changes its numbers. Nothing in a network has to be
rewritten for it: `bind` gives a stage whose norms carry a task's FiLM, `fold` goes on and moves batch norms and
their FiLM into the convolution before them. Both leave the stage itself as it was and share all other weights
with it, so that many tasks, in many threads, use one network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

from cnaps.errors import InputError
from cnaps.nn.fused import ACTIVATIONS, FusedConv2d, LearningConv2d, can_fuse

M = TypeVar("M", bound=nn.Module)
SiteFilm = tuple[Tensor, Tensor]  # gamma (C,), beta (C,)
StageFilm = Sequence[SiteFilm]  # in the order of the stage's sites
_NOTHING = nn.Identity()  # in the place of what became part of a convolution


class RMSNorm(nn.RMSNorm):
    """A root mean square norm with a shift, which it lacks and FiLM needs; the shift starts at zero."""

    def __init__(self, weight: Tensor, eps: float | None) -> None:
        super().__init__(len(weight), eps)
        self.weight = nn.Parameter(weight.detach().clone())
        self.bias = nn.Parameter(torch.zeros_like(weight))

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., C)."""
        return super().forward(x) + self.bias


Norm = nn.BatchNorm2d | nn.LayerNorm | nn.GroupNorm | RMSNorm


@dataclass(frozen=True)
class Film:
    """The FiLM parameters psi_f of one task: for each stage, for each site, gamma and beta."""

    stages: tuple[tuple[SiteFilm, ...], ...]

    def __len__(self) -> int:
        """How many numbers these are."""
        return sum(part.numel() for stage in self.stages for site in stage for part in site)

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
    """A stage whose norms named in `sites` apply `film` as well; gradients flow into `film`.

    `batch_statistics` normalises by the statistics of the batch at hand, as joint training needs it.
    """
    bound = skeleton(stage)
    if batch_statistics:
        bound.train()
    for name, (gamma, beta) in zip(sites, film, strict=True):
        norm = norm_at(bound, name)
        weight, bias = norm.weight, norm.bias
        # weight * x + bias, then gamma * (...) + beta, is one scale and one shift
        set_tensor(norm, "weight", gamma if weight is None else gamma * weight)
        set_tensor(norm, "bias", beta if bias is None else gamma * bias + beta)
    return bound


@dataclass(frozen=True)
class Unit:
    """Names of a convolution, the norm that reads it and, where there is one, the activation behind them."""

    conv: str
    norm: str
    activation: str | None = None


@torch.no_grad()
def fold(stage: M, units: Sequence[Unit], *, fuse: bool = False) -> M:
    """A stage in which each unit is one convolution with a bias; `fuse` also takes in the activation (CPU)."""
    folded = skeleton(stage)
    for unit in units:
        conv = cast(nn.Conv2d, folded.get_submodule(unit.conv))
        scale, shift = _affine(conv, cast(nn.BatchNorm2d, folded.get_submodule(unit.norm)))
        set_tensor(conv, "weight", conv.weight * scale[:, None, None, None])
        set_tensor(conv, "bias", shift)
        _replace(folded, unit.norm, _NOTHING)
    return _fuse(folded, units) if fuse else folded


def _fuse(folded: M, units: Sequence[Unit]) -> M:
    """Convolution and activation as one operation, where there are kernels for it; changes `folded` itself."""
    for unit in units:
        conv = cast(nn.Conv2d, folded.get_submodule(unit.conv))
        if can_fuse(conv):
            activation = None if unit.activation is None else folded.get_submodule(unit.activation)
            _replace(folded, unit.conv, FusedConv2d(conv, activation))
            if unit.activation is not None:
                _replace(folded, unit.activation, _NOTHING)
    return folded


def unite(stage: M, units: Sequence[Unit]) -> M:
    """A stage in which each unit is one operation with gradients, where there are kernels for it (CPU).

    It computes what the stage computes. Units whose norm learns from the batch at hand stay as they are.
    """
    united = skeleton(stage)
    for unit in units:
        conv, norm = united.get_submodule(unit.conv), cast(nn.BatchNorm2d, united.get_submodule(unit.norm))
        if not isinstance(conv, nn.Conv2d) or not can_fuse(conv) or norm.training:
            continue
        scale, shift = _affine(conv, norm)
        if conv.weight.requires_grad and scale.detach().abs().amin() < 1e-6:
            continue  # a scale that starts at zero is to be learned, and its gradient is lost with the result
        activation = None if unit.activation is None else united.get_submodule(unit.activation)
        _replace(united, unit.conv, LearningConv2d(conv, scale, shift, activation))
        for name in (unit.norm, unit.activation):
            if name is not None:
                _replace(united, name, _NOTHING)
    return united


def ready(module: M, units: Sequence[Unit], *, learn: bool, fuse: bool = True) -> M:
    """A stem or stage as it is run: united where gradients are to flow, else folded and mostly fused."""
    return unite(module, units) if learn else fold(module, units, fuse=fuse)


def _affine(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> SiteFilm:
    """Scale and shift (C,) that the norm, in eval mode, applies to the convolution without its bias."""
    mean, variance = cast(Tensor, norm.running_mean), cast(Tensor, norm.running_var)
    scale = torch.rsqrt(variance + norm.eps)
    if norm.weight is not None:
        scale = scale * norm.weight
    shift = -mean * scale
    if norm.bias is not None:
        shift = shift + norm.bias
    if conv.bias is not None:
        shift = shift + conv.bias * scale
    return scale, shift


@torch.no_grad()
def foldable_units(stage: nn.Module, example: Tensor) -> tuple[list[Unit], Tensor]:
    """Which norms read nothing but one convolution, and which activations only such a norm: by watching a pass.

    Returns them and the stage's output. Activations are left out if taking them in would change what the stage
    computes (something was added in place before them); if folding alone would (a convolution whose output is
    used elsewhere too), there are no units.
    """
    calls: list[tuple[str, nn.Module, Tensor, Tensor]] = []  # keeps every tensor alive, so that no id comes twice
    hooks = []
    for name, module in stage.named_modules():
        if isinstance(module, nn.Conv2d | nn.BatchNorm2d | nn.ReLU | nn.ReLU6):
            hooks.append(
                module.register_forward_hook(
                    lambda module, inputs, output, name=name: calls.append((name, module, inputs[0], output))
                )
            )
    try:
        result = stage(example)
    finally:
        for hook in hooks:
            hook.remove()

    def reader(of: Tensor, kinds: tuple[type[nn.Module], ...]) -> tuple[str, Tensor] | None:
        for name, module, source, output in calls:
            once = sum(other == name for other, *_ in calls) == 1
            if source is of and once and isinstance(module, kinds):
                return name, output
        return None

    units = []
    for name, module, _, output in calls:
        norm = reader(output, (nn.BatchNorm2d,)) if isinstance(module, nn.Conv2d) else None
        own = None if norm is None else cast(nn.BatchNorm2d, stage.get_submodule(norm[0]))
        # a norm with modules inside does more than normalise: timm's have an activation
        if norm is not None and own is not None and own.track_running_stats and not list(own.children()):
            activation = reader(norm[1], ACTIVATIONS)
            units.append(Unit(name, norm[0], activation[0] if activation else None))
    near = 1e-3 * result.abs().max().clamp_min(1e-6)
    for found in (units, [replace(unit, activation=None) for unit in units]):
        again = (fold(stage, found, fuse=fuse)(example) for fuse in (False, True) if found)
        if all((each - result).abs().max() <= near for each in again):
            return found, result
    return [], result


def norm_at(stage: nn.Module, name: str) -> Norm:
    """The norm of that name: the only kind of layer that FiLM can be part of."""
    module = stage.get_submodule(name)
    if not norm_channels(module):
        raise InputError(
            f"FiLM site {name!r} is a {type(module).__name__}; it must be a batch, layer, group or RMS norm "
            "with one scale a channel"
        )
    return cast(Norm, module)


def norm_channels(module: nn.Module) -> int:
    """How many channels a norm scales and shifts; 0 if the module is no norm that FiLM can be part of."""
    if isinstance(module, nn.BatchNorm2d):
        return module.num_features
    if isinstance(module, nn.GroupNorm):
        return module.num_channels
    if isinstance(module, nn.LayerNorm | RMSNorm) and len(module.normalized_shape) == 1:
        return module.normalized_shape[0]
    return 0


@torch.no_grad()
def give_shifts(stage: nn.Module) -> None:
    """Replace every root mean square norm by one with a shift that computes the same."""
    for name, module in list(stage.named_modules()):
        weight = getattr(module, "weight", None)
        if isinstance(module, RMSNorm) or not type(module).__name__.endswith("RMSNorm"):
            continue
        if isinstance(weight, Tensor) and weight.ndim == 1:
            eps = getattr(module, "eps", getattr(module, "variance_epsilon", None))  # as transformers name it
            shifted, trial = RMSNorm(weight, eps), torch.linspace(-1, 1, 2 * len(weight)).view(2, -1).to(weight)
            if torch.allclose(shifted(trial), module(trial), atol=1e-5):
                _replace(stage, name, shifted)


def skeleton(module: M) -> M:
    """A copy of the tree of modules that shares every tensor with the original."""
    copy = module.__class__.__new__(module.__class__)
    parts = {
        "_parameters": module._parameters.copy(),
        "_buffers": module._buffers.copy(),
        "_modules": {name: None if m is None else skeleton(m) for name, m in module._modules.items()},
    }
    object.__setattr__(copy, "__dict__", module.__dict__ | parts)  # past the slow checks of a module's own way
    return copy


def set_tensor(module: nn.Module, name: str, value: Tensor) -> None:
    """Put a tensor, possibly with history, in the place of a parameter or buffer of a skeleton."""
    module._parameters.pop(name, None)
    object.__setattr__(module, name, value)


def _replace(stage: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    stage.get_submodule(parent)._modules[child] = module
