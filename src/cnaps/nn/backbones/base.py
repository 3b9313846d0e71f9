"""What a feature extractor has to say of itself so that everything else can use it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cnaps.errors import InputError
from cnaps.nn.film import Unit, foldable_units, norm_at, unite


@dataclass(frozen=True)
class Normalisation:
    """How pixels of 0..255 become what the network reads: (pixel - mean) / std, a number or three.

    >>> Normalisation()(torch.tensor([0, 255]).view(2, 1, 1, 1)).flatten().tolist()
    [-1.0, 1.0]
    """

    mean: tuple[float, ...] = (127.5,)
    std: tuple[float, ...] = (127.5,)

    def __call__(self, pixels: Tensor) -> Tensor:
        """Float images (N, 3, H, W) in channels_last from pixels of any dtype."""
        mean = torch.tensor(self.mean, device=pixels.device).view(1, -1, 1, 1)
        std = torch.tensor(self.std, device=pixels.device).view(1, -1, 1, 1)
        images = pixels.to(torch.float32, memory_format=torch.channels_last)
        return images.sub(mean).div_(std)


class Backbone(nn.Module):
    """A network cut into an un-adapted stem and stages with FiLM sites; the feature is the pooled last stage.

    Any network fits: give its stem, its stages and, unless every batch norm of the stages is to be a FiLM site,
    the names of those that are. Channels, feature size and what can be folded are found out by one trial run.

    >>> from torch import nn
    >>> def stage(i, o):
    ...     return nn.Sequential(nn.Conv2d(i, o, 3, stride=2, padding=1), nn.BatchNorm2d(o), nn.ReLU())
    >>> backbone = Backbone(stage(3, 8), [stage(8, 16), stage(16, 32)], image_size=32)
    >>> backbone.feature_size, backbone.sites
    (32, [['1'], ['1']])
    """

    def __init__(
        self,
        stem: nn.Module,
        stages: Iterable[nn.Module],
        *,
        image_size: int,
        sites: Sequence[Sequence[str]] | None = None,
        normalisation: Normalisation | None = None,
        min_image_size: int = 32,
        pretrained: Callable[[], dict[str, Tensor]] | None = None,
    ) -> None:
        super().__init__()
        self.name = ""  # set by the registry
        self.stem = stem
        self.stages = nn.ModuleList(stages)
        self.image_size = image_size
        self.min_image_size = min_image_size
        self.normalisation = normalisation or Normalisation()
        self.sites = [list(s) for s in sites] if sites is not None else [_norms(s) for s in self.stages]
        self.pretrained = pretrained  # weights that come with an installed package, if there are any
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._try_out()

    def _try_out(self) -> None:
        self.eval()
        x = torch.linspace(-1, 1, 3 * self.image_size**2).view(1, 3, self.image_size, self.image_size)
        self.stem_units, x = foldable_units(self.stem, x.contiguous(memory_format=torch.channels_last))
        self.stage_units: list[list[Unit]] = []
        self.channels = [x.shape[1]]  # of the stem and of each stage
        self.site_channels: list[list[int]] = [
            [norm_at(stage, name).num_features for name in names]
            for stage, names in zip(self.stages, self.sites, strict=True)
        ]
        for stage in self.stages:
            units, x = foldable_units(stage, x)
            self.stage_units.append(units)
            self.channels.append(x.shape[1])
        self.feature_size = self.channels[-1]

    def forward(self, images: Tensor) -> Tensor:
        """Un-adapted features (N, d) of float images (N, 3, H, W)."""
        modules, units = [self.stem, *self.stages], [self.stem_units, *self.stage_units]
        x = images.contiguous(memory_format=torch.channels_last)
        for module, its_units in zip(modules, units, strict=True):
            x = (unite(module, its_units) if torch.is_grad_enabled() else module)(x)
        return pool(x)

    def load_pretrained(self) -> Backbone:
        """Load the weights that come with an installed package."""
        if self.pretrained is None:
            raise InputError(f"backbone {self.name!r} has no pre-trained weights; train it or load a checkpoint")
        self.load_state_dict(self.pretrained())
        return self


def pool(maps: Tensor) -> Tensor:
    """Mean over the map, (N, C, H, W) -> (N, C); of bfloat16 in full precision."""
    return (maps.float() if maps.dtype == torch.bfloat16 else maps).mean((2, 3))


def _norms(stage: nn.Module) -> list[str]:
    return [name for name, module in stage.named_modules() if isinstance(module, nn.BatchNorm2d)]
