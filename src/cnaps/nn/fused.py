"""Convolutions on a CPU with what follows them: norm, FiLM, sum, activation while the result is in the cache.

`FusedConv2d` is for prediction; `LearningConv2d` has gradients, and is what makes training on a CPU bearable.
Both call operations of torch that it does not promise to keep. Everything works without them too, slower: with a
torch older than the one they were written for, where they are missing, and with CNAPS_KERNELS=plain in the
environment.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import product
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cnaps.errors import InputError

# name in oneDNN and its numbers
_ACTIVATIONS: dict[type[nn.Module], tuple[str, list[float]]] = {
    nn.ReLU: ("relu", []),
    nn.ReLU6: ("hardtanh", [0.0, 6.0]),
}
ACTIVATIONS = tuple(_ACTIVATIONS)
_WRITTEN_FOR = (2, 13)  # in torch 2.6 the sum with a shortcut fails for maps of one pixel
_NEW_ENOUGH = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= _WRITTEN_FOR


def kernels_wanted() -> bool:
    """The one switch between the kernels of this file and torch's own layers."""
    wanted = os.environ.get("CNAPS_KERNELS", "fused")
    if wanted not in ("fused", "plain"):
        raise InputError(f"CNAPS_KERNELS cannot be {wanted!r}: it is fused (the default) or plain")
    return wanted == "fused"


def can_fuse(conv: nn.Module) -> bool:
    """Whether there is a fused kernel for this convolution on its device, and kernels are wanted."""
    return (
        kernels_wanted()
        and _NEW_ENOUGH
        and isinstance(conv, nn.Conv2d)
        and conv.weight.device.type == "cpu"
        and conv.weight.dtype == torch.float32
        and conv.padding_mode == "zeros"
        and not isinstance(conv.padding, str)
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_convolution_pointwise")
    )


class FusedConv2d(nn.Module):
    """A convolution and what follows it, an activation or the sum with a shortcut, as one operation; no gradients.

    The weights are laid out for the kernel when the first image shows which one that is.
    """

    def __init__(self, conv: nn.Conv2d, activation: nn.Module | None) -> None:
        super().__init__()
        self.conv = conv  # its weight and bias are those of the task
        self.after = ("none", []) if activation is None else _ACTIVATIONS[type(activation)]
        self.ready: dict[torch.Size, tuple[Tensor, Sequence[int]]] = {}  # weight and padding by the images' shape

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "ready": {}}  # the kernel's own layout cannot be copied, and is made again

    def forward(self, x: Tensor) -> Tensor:
        """(N, C_in, H, W) -> (N, C_out, H', W')."""
        conv = self.conv
        weight, padding = self._weight(x)
        return torch.ops.mkldnn._convolution_pointwise(
            x, weight, conv.bias, padding, conv.stride, conv.dilation, conv.groups, *self.after, ""
        )

    def plus(self, x: Tensor, shortcut: Tensor, activation: nn.Module | None = None) -> Tensor:
        """`activation(self(x) + shortcut)`."""
        conv = self.conv
        weight, padding = self._weight(x)
        name, numbers = (None, []) if activation is None else _ACTIVATIONS[type(activation)]
        return torch.ops.mkldnn._convolution_pointwise.binary(
            x, shortcut, weight, conv.bias, padding, conv.stride, conv.dilation, conv.groups,
            "add", None, name, numbers, "",
        )  # fmt: skip

    def _weight(self, x: Tensor) -> tuple[Tensor, Sequence[int]]:
        shape = x.shape[1:]
        ready = self.ready.get(shape)
        if ready is None:
            conv = self.conv
            weight, padding = _place(conv, x)
            packed = torch.ops.mkldnn._reorder_convolution_weight(
                weight, padding, conv.stride, conv.dilation, conv.groups, list(x.shape)
            )
            ready = (packed, padding)
            self.ready = {shape: ready}  # one at a time: images of a task have one size
        return ready


class LearningConv2d(nn.Module):
    """activation(scale * conv(x) + shift) as one operation, with gradients of x, scale, shift and the weight.

    Norm and FiLM are the scale and the shift. Apart they would be four passes over the activations forward and
    as many back; here they are none forward, since they go into the convolution, and one back.
    """

    def __init__(self, conv: nn.Conv2d, scale: Tensor, shift: Tensor, activation: nn.Module | None) -> None:
        super().__init__()
        self.conv, self.after = conv, ("none", []) if activation is None else _ACTIVATIONS[type(activation)]
        self.affine = (scale, shift)  # (C,) each, with their history

    def forward(self, x: Tensor) -> Tensor:
        """(N, C_in, H, W) -> (N, C_out, H', W')."""
        weight, padding = _place(self.conv, x)
        conv = self.conv
        return _LearningConv.apply(
            x, weight, *self.affine, conv.stride, padding, conv.dilation, conv.groups, self.after
        )


class _LearningConv(torch.autograd.Function):
    """Only the result is kept for the way back: where it was not clipped, conv(x) is (result - shift) / scale."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor, *how: Any) -> Tensor:
        stride, padding, dilation, groups, after = how
        scaled = weight * scale[:, None, None, None]
        y = torch.ops.mkldnn._convolution_pointwise(
            x, scaled, shift, padding, stride, dilation, groups, *after, ""
        )
        # what follows may change a result in place, but no more than it could change an activation's own
        kept = y.clone() if after[0] == "none" else y
        ctx.save_for_backward(x, scaled, scale, shift, kept)
        ctx.how = how
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, scaled, scale, shift, y = ctx.saved_tensors
        stride, padding, dilation, groups, (activation, numbers) = ctx.how
        for_x, for_weight, for_scale, for_shift = ctx.needs_input_grad[:4]
        grad = grad.contiguous(memory_format=torch.channels_last)
        if activation == "relu":
            grad = torch.ops.aten.threshold_backward(grad, y, 0)
        elif activation == "hardtanh":
            grad = torch.ops.aten.hardtanh_backward(grad, y, *numbers)
        grad_scale = grad_shift = None
        if for_scale or for_shift:
            # Sums of grad * (y - shift) / |scale| and of grad, over all but the channels, in one pass: this is
            # what a batch norm with mean `shift` and variance `scale`^2 does for its own weight and bias.
            size = scale.abs().clamp_min(1e-12)
            _, grad_scale, grad_shift = torch.ops.aten.native_batch_norm_backward(
                grad, y, None, shift, size.square(), None, None, False, 0.0, [False, True, True]
            )
            grad_scale = grad_scale * scale.sign()
        grad_x = _input_gradient(grad, x, scaled, stride, padding, dilation, groups) if for_x else None
        grad_weight = None
        if for_weight:
            grad_weight = _weight_gradient(grad, x, scaled, stride, padding, dilation, groups)
            grad_weight = grad_weight * scale[:, None, None, None]
        return grad_x, grad_weight, grad_scale, grad_shift, None, None, None, None, None


def _input_gradient(
    grad: Tensor, x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any, groups: int
) -> Tensor:
    """Of a convolution; as a product or a convolution itself where that is several times as fast."""
    outputs, inputs, *kernel = weight.shape
    if _pointwise(weight, stride, padding, groups):
        return _maps(_rows(grad) @ weight.view(outputs, inputs), x.shape)
    around = [k - 1 - p for k, p in zip(kernel, padding, strict=True)]
    if inputs == 1 and groups == outputs and max(stride) == max(dilation) == 1 and min(around) >= 0:
        # each channel by itself
        return torch.ops.mkldnn._convolution_pointwise(
            grad, weight.flip(2, 3), None, around, stride, dilation, groups, "none", [], ""
        )
    how = (stride, padding, dilation, False, [0, 0], groups)
    return torch.ops.aten.convolution_backward(grad, x, weight, None, *how, [True, False, False])[0]


def _weight_gradient(
    grad: Tensor, x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any, groups: int
) -> Tensor:
    if _pointwise(weight, stride, padding, groups):
        return (_rows(grad).T @ _rows(x)).view(weight.shape)
    height, width = grad.shape[2:]
    if weight.shape[1] == 1 and groups == len(weight) and max(dilation) == 1 and height * width <= 16:
        # small maps, each channel by itself: one product for each place of the kernel
        wide = F.pad(x, (padding[1], padding[1], padding[0], padding[0]))
        result = torch.empty_like(weight)
        for i, j in product(range(weight.shape[2]), range(weight.shape[3])):
            seen = wide[:, :, i : i + stride[0] * height : stride[0], j : j + stride[1] * width : stride[1]]
            result[:, 0, i, j] = (grad * seen).sum((0, 2, 3))
        return result
    how = (stride, padding, dilation, False, [0, 0], groups)
    return torch.ops.aten.convolution_backward(grad, x, weight, None, *how, [False, True, False])[1]


def _pointwise(weight: Tensor, stride: Any, padding: Any, groups: int) -> bool:
    return weight.shape[2:] == (1, 1) and max(stride) == 1 and max(padding) == 0 and groups == 1


def _rows(maps: Tensor) -> Tensor:
    """(N, C, H, W) -> (N H W, C), a view in channels_last."""
    return maps.permute(0, 2, 3, 1).reshape(-1, maps.shape[1])


def _maps(rows: Tensor, shape: torch.Size) -> Tensor:
    n, c, h, w = shape
    return rows.view(n, h, w, c).permute(0, 3, 1, 2)


def _place(conv: nn.Conv2d, x: Tensor) -> tuple[Tensor, Sequence[int]]:
    """Weight and padding; a convolution may decide on its padding when it sees the image."""
    place = getattr(conv, "place", None)
    return (conv.weight, cast(Sequence[int], conv.padding)) if place is None else place(x)
