"""Permutation-invariant encoders: g of the whole context, and one for each stage's activations.

z_G is `task_embedding`, z_AR is what a stage encoder returns.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from cnaps.nn.context import Chunks

DEPTH = 5  # layers of g


class DenseResidual(nn.Linear):
    """x -> W x + b + x."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., C)."""
        return super().forward(x) + x


class SetEncoder(nn.Module):
    """g: five times [3x3 convolution, norm, ReLU, 2x2 max-pool], pooled over the map: a row for each image.

    z_G is the mean of these rows. With `norm="context"` the norms use the statistics of the whole context set,
    at test time too, as the published weights need it; with `norm="none"` rows do not depend on each other.
    `image_size` shrinks the images first: what a set is about shows in small pictures too.
    """

    def __init__(self, width: int = 64, *, norm: str = "context", image_size: int | None = None) -> None:
        super().__init__()
        self.image_size = image_size
        normed = norm == "context"
        self.convs = nn.ModuleList(  # a norm takes away what a bias adds
            nn.Conv2d(width if i else 3, width, 3, padding=1, bias=not normed) for i in range(DEPTH)
        )
        self.norms = nn.ModuleList(
            nn.BatchNorm2d(width, track_running_stats=False) for _ in range(DEPTH if normed else 0)
        )
        if not normed:  # torch's own start would shrink what is said of the images by a thousand
            for weight in (p for p in self.convs.parameters() if p.ndim == 4):
                nn.init.kaiming_normal_(weight, nonlinearity="relu")
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(
        self, images: Tensor, chunk_size: int | None = None, *, learn: bool = True, recompute: bool = False
    ) -> Tensor:
        """(N, 3, H, W) -> (N, width)."""
        if self.image_size is not None and images.shape[-1] > self.image_size:
            images = F.interpolate(images, (self.image_size, self.image_size), mode="area")
        images = images.contiguous(memory_format=torch.channels_last)
        chunks = Chunks(images, chunk_size or len(images), learn=learn)
        for layer, conv in enumerate(self.convs):
            norm = self.norms[layer] if len(self.norms) else None
            self._layer(chunks, conv, norm, learn and recompute)  # type: ignore[arg-type]
        return torch.cat([chunk.mean((2, 3)) for chunk in chunks.parts])

    @staticmethod
    def _layer(chunks: Chunks, conv: nn.Conv2d, norm: nn.BatchNorm2d | None, recompute: bool) -> None:
        if norm is None:
            for i, chunk in enumerate(chunks.parts):
                chunks[i] = F.relu(F.max_pool2d(conv(chunk), 2))
            return
        # Norm and ReLU rise with their input where gamma is positive, so they commute with the max-pool, on a
        # quarter of the numbers; where gamma is negative, the sign goes into the convolution.
        sign = torch.where(norm.weight.detach() < 0, -1.0, 1.0)
        weight = conv.weight * sign[:, None, None, None]
        moments = weight.new_empty(2, len(chunks), len(weight))  # mean and variance of each chunk's convolution
        for i, chunk in enumerate(chunks.parts):
            filtered = (
                checkpoint(_filter, chunk, weight, use_reentrant=False) if recompute else _filter(chunk, weight)
            )
            chunks[i], moments[0, i], moments[1, i] = filtered
        mean, variance = _combine([len(chunk) for chunk in chunks.parts], *moments)
        scale = norm.weight.abs() * torch.rsqrt(variance + norm.eps)
        shift = norm.bias - mean * scale
        for i, chunk in enumerate(chunks.parts):
            chunks[i] = F.relu(torch.addcmul(shift[:, None, None], chunk, scale[:, None, None]))


def _filter(chunk: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Max-pooled convolution, and mean and variance of the convolution for each channel."""
    filtered = F.conv2d(chunk, weight, padding=1)
    rows = filtered.permute(0, 2, 3, 1).reshape(-1, len(weight))  # (N H W, C), a view in channels_last
    average = rows.new_full((len(rows),), 1 / len(rows))
    mean = average @ rows  # a product is five times as fast as a reduction over the outer dimensions
    return F.max_pool2d(filtered, 2), mean, average @ (rows - mean).square()


def _combine(counts: Sequence[int], means: Tensor, variances: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of a whole from those of its parts (chunks, C)."""
    share = torch.tensor(counts, dtype=means.dtype, device=means.device)[:, None] / sum(counts)
    mean = (share * means).sum(0)
    return mean, (share * (variances + (means - mean) ** 2)).sum(0)


class StageEncoder(nn.Module):
    """Pooled activations of the context at one depth -> z_AR for the stage that follows.

    With `spread`, the summary holds beside the mean how far images lie apart within classes and how far the
    classes lie apart: which directions tell the classes of this task from each other.
    """

    def __init__(self, inputs: int, width: int, *, spread: bool = False) -> None:
        super().__init__()
        self.spread = spread
        self.each = nn.Sequential(
            nn.Linear(inputs, width),
            nn.ReLU(),
            DenseResidual(width, width),
            nn.ReLU(),
            DenseResidual(width, width),
            nn.ReLU(),
            DenseResidual(width, width),
        )
        self.all = nn.Sequential(nn.Linear(3 * width if spread else width, width), nn.ReLU())

    def forward(self, pooled: Tensor, members: Tensor) -> Tensor:
        """(N, C_in), and which image is of which class as ones and zeros (ways, N) -> (width,)."""
        encoded = self.each(pooled)  # (N, width)
        mean = encoded.mean(0)
        if not self.spread:
            return self.all(mean)
        centres = members @ encoded / members.sum(1, keepdim=True)  # (ways, width)
        own = members.T @ centres  # (N, width): the centre of each image's class
        within = ((encoded - own) ** 2).mean(0)
        between = ((own - mean) ** 2).mean(0)
        return self.all(torch.cat([mean, (within + 1e-6).sqrt(), (between + 1e-6).sqrt()]))
