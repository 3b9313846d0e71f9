"""Convolutions for prediction on a CPU: bias, sum and activation happen while the result is still in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

# name in oneDNN and its numbers
_ACTIVATIONS: dict[type[nn.Module], tuple[str, list[float]]] = {
    nn.ReLU: ("relu", []),
    nn.ReLU6: ("hardtanh", [0.0, 6.0]),
}
ACTIVATIONS = tuple(_ACTIVATIONS)


def can_fuse(conv: nn.Conv2d) -> bool:
    """Whether there is a fused kernel for this convolution on its device."""
    return (
        conv.weight.device.type == "cpu"
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
            # a convolution may decide on its padding when it sees the image
            place = getattr(conv, "place", None)
            weight, padding = (conv.weight, cast(Sequence[int], conv.padding)) if place is None else place(x)
            packed = torch.ops.mkldnn._reorder_convolution_weight(
                weight, padding, conv.stride, conv.dilation, conv.groups, list(x.shape)
            )
            ready = (packed, padding)
            self.ready = {shape: ready}  # one at a time: images of a task have one size
        return ready
