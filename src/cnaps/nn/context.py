"""The context set on its way through the network: in chunks of constant memory, whole or sub-sampled (LITE)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint as recomputed


class Chunks:
    """Activations of many images, a chunk at a time. A chunk is replaced by its result before the next one is run.

    Without a way back (`learn`) results are kept in one block of memory, each in the place of the one before. Kept
    as they come, small and large pieces would alternate in memory, and what is freed would be of little use to
    others: the peak would be several depths of the network instead of one.
    """

    def __init__(self, images: Tensor, size: int, *, learn: bool = False) -> None:
        self.parts = [part for part in images.split(size) if len(part)]
        self._learn = learn
        self._places: list[Tensor] = []  # of the parts, in the block

    def __len__(self) -> int:
        return len(self.parts)

    def __setitem__(self, i: int, value: Tensor) -> None:
        if self._learn or len(self) == 1:
            self.parts[i] = value
            return
        if i == 0:
            self._make_places(value)
        self.parts[i] = self._places[i].copy_(value)

    def _make_places(self, first: Tensor) -> None:
        """Places for results like the first one; the block before is used again if it is large enough."""
        block = self._places[0]._base if self._places else None
        if block is None or block.shape[1] < first.numel():
            block = first.new_empty(len(self), first.numel())
        self._places = []
        for part, row in zip(self.parts, block, strict=True):
            n, *each = len(part), *first.shape[1:]
            row = row[: n * math.prod(each)]
            if first.ndim == 4:  # maps, in channels_last
                c, h, w = each
                self._places.append(row.view(n, h, w, c).permute(0, 3, 1, 2))
            else:
                self._places.append(row.view(n, *each))


class Context:
    """Activations of all context images at one depth; `run` takes them deeper, `readout` pools them.

    With `lite=h`, every readout lets gradients through only h images drawn for it, scaled by N / h: the forward
    pass is exact and the gradient right on average. Readouts draw independently of each other, because the
    gradient through a later readout multiplies that through an earlier one, and the mean of a product is the
    product of the means only for independent draws.
    """

    def __init__(
        self,
        images: Tensor,
        readouts: int = 1,
        *,
        learn: bool = False,
        chunk_size: int | None = None,
        lite: int | None = None,
        generator: torch.Generator | None = None,
        checkpoint: bool = False,
    ) -> None:
        count = len(images)
        self.recompute = learn and checkpoint
        self.scale: list[Tensor] | None = None  # for each readout, the factor of each gradient-carrying image
        self.inverse: Tensor | None = None
        carrying = count
        if learn and lite is not None and lite < count:
            drawn = [torch.randperm(count, generator=generator)[:lite] for _ in range(readouts)]
            chosen = torch.zeros(readouts, count)
            for row, indices in zip(chosen, drawn, strict=True):
                row[indices] = count / lite
            order = torch.argsort(chosen.amax(0), descending=True, stable=True)
            carrying = int((chosen.amax(0) > 0).sum())
            self.scale = list(chosen[:, order[:carrying]].to(images.device))
            self.inverse = torch.argsort(order).to(images.device)
            images = images[order.to(images.device)]
        size = chunk_size or count
        self.carrying = Chunks(images[:carrying], size, learn=learn)
        self.rest = Chunks(images[carrying:], size)  # run without gradients

    def run(self, module: Callable[[Tensor], Tensor]) -> None:
        """Replace every activation by what `module` makes of it."""
        for i, part in enumerate(self.carrying.parts):
            self.carrying[i] = recomputed(module, part, use_reentrant=False) if self.recompute else module(part)
        with torch.no_grad():
            for i, part in enumerate(self.rest.parts):
                self.rest[i] = module(part)

    def readout(self, pool: Callable[[Tensor], Tensor], which: int = 0) -> Tensor:
        """Pooled activations (N, C), in the order in which the images were given; LITE's draw number `which`."""
        pooled = torch.cat([pool(part) for part in (*self.carrying.parts, *self.rest.parts)])
        if self.scale is None or self.inverse is None:
            return pooled
        factor = self.scale[which][:, None]
        carrying, rest = pooled[: len(factor)], pooled[len(factor) :]
        fixed = carrying.detach()
        return torch.cat([fixed + (carrying - fixed) * factor, rest])[self.inverse]
