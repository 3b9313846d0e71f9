"""The context set on its way through the network: in chunks of constant memory, whole or sub-sampled (LITE)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from cnaps.nn.backbones.base import pool


class Context:
    """Activations of all context images at one depth; `run` takes them deeper, `readout` pools them.

    The first chunk is replaced by its result before the second is run, so one depth is in memory, not two.

    With `lite=h`, every readout lets gradients through only h images drawn for it, scaled by N / h: the forward
    pass is exact and the gradient right on average. Readouts draw independently of each other, because the
    gradient through a later readout multiplies that through an earlier one, and the mean of a product is the
    product of the means only for independent draws.
    """

    def __init__(
        self,
        images: Tensor,
        *,
        chunk_size: int | None = None,
        readouts: int = 1,
        lite: int | None = None,
        generator: torch.Generator | None = None,
        recompute: bool = False,
    ) -> None:
        count = len(images)
        self.recompute = recompute and torch.is_grad_enabled()
        self.scale: list[Tensor] | None = None  # for each readout, the factor of each gradient-carrying image
        self.inverse: Tensor | None = None
        carrying = count
        if lite is not None and lite < count and torch.is_grad_enabled():
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
        self.parts = [part for part in images[:carrying].split(size) if len(part)]
        self.carrying = len(self.parts)  # parts behind these are run without gradients
        self.parts += [part for part in images[carrying:].split(size) if len(part)]

    def run(self, module: Callable[[Tensor], Tensor]) -> None:
        """Replace every activation by what `module` makes of it."""
        for i, part in enumerate(self.parts):
            if i >= self.carrying:
                with torch.no_grad():
                    self.parts[i] = module(part)
            elif self.recompute:
                self.parts[i] = checkpoint(module, part, use_reentrant=False)
            else:
                self.parts[i] = module(part)

    def readout(self, which: int = 0) -> Tensor:
        """Pooled activations (N, C), in the order in which the images were given."""
        pooled = torch.cat([pool(part) for part in self.parts])
        if self.scale is None or self.inverse is None:
            return pooled
        factor = self.scale[which][:, None]
        carrying, rest = pooled[: len(factor)], pooled[len(factor) :]
        fixed = carrying.detach()
        return torch.cat([fixed + (carrying - fixed) * factor, rest])[self.inverse]
