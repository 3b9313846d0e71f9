"""Convolutions for prediction on a CPU: bias and activation are applied while the result is still in the cache."""

from __future__ import annotations

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
    """A convolution and the activation behind it as one operation; without gradients."""

    def __init__(self, conv: nn.Conv2d, activation: nn.Module | None) -> None:
        super().__init__()
        self.conv = conv  # its weight and bias are those of the task
        self.name, self.numbers = ("none", []) if activation is None else _ACTIVATIONS[type(activation)]

    def forward(self, x: Tensor) -> Tensor:
        """(N, C_in, H, W) -> (N, C_out, H', W')."""
        conv = self.conv
        # a convolution may decide on its padding when it sees the image
        place = getattr(conv, "place", None)
        weight, padding = (conv.weight, conv.padding) if place is None else place(x)
        return torch.ops.mkldnn._convolution_pointwise(
            x, weight, conv.bias, padding, conv.stride, conv.dilation, conv.groups, self.name, self.numbers, ""
        )
