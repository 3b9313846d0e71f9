"""Fused convolutions in bfloat16: evaluations in a third of the time, on processors that know it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cnaps.nn import fused
from cnaps.nn.fused import FusedConv2d


def install() -> None:
    """From here on fused convolutions of this process compute in bfloat16; what goes in and out is float32."""
    FusedConv2d.forward, FusedConv2d.plus = _forward, _plus  # type: ignore[method-assign]


def _prepared(self: FusedConv2d, x: Tensor) -> tuple[Tensor, Tensor, Tensor | None, list]:
    x, conv = x.bfloat16(), self.conv
    if x.shape[1:] not in self.ready:
        weight, padding = fused._place(conv, x)
        how = (padding, conv.stride, conv.dilation, conv.groups, list(x.shape))
        packed = torch.ops.mkldnn._reorder_convolution_weight(weight.bfloat16(), *how)
        self.ready = {x.shape[1:]: (packed, padding)}
    weight, padding = self.ready[x.shape[1:]]
    bias = None if conv.bias is None else conv.bias.bfloat16()
    return x, weight, bias, [padding, conv.stride, conv.dilation, conv.groups]


def _forward(self: FusedConv2d, x: Tensor) -> Tensor:
    x, weight, bias, how = _prepared(self, x)
    return torch.ops.mkldnn._convolution_pointwise(x, weight, bias, *how, *self.after, "").float()


def _plus(self: FusedConv2d, x: Tensor, shortcut: Tensor, activation: nn.Module | None = None) -> Tensor:
    x, weight, bias, how = _prepared(self, x)
    name, numbers = (None, []) if activation is None else fused._ACTIVATIONS[type(activation)]
    after = ("add", None, name, numbers, "")
    return torch.ops.mkldnn._convolution_pointwise.binary(
        x, shortcut.bfloat16(), weight, bias, *how, *after
    ).float()
