"""What a feature extractor has to say of itself so that everything else can use it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cnaps.errors import InputError
from cnaps.nn.film import Unit, foldable_units, give_shifts, norm_at, norm_channels, ready
from cnaps.weights import package_weights


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


@dataclass(frozen=True)
class PackageWeights:
    """Weights that an installed package carries: its name, and the names of tensors in it by ours."""

    package: str
    keys: Mapping[str, str]

    def __call__(self) -> dict[str, Tensor]:
        """The tensors by our names."""
        held = package_weights(self.package)
        return {ours: torch.tensor(held[theirs]) for ours, theirs in self.keys.items()}


class Backbone(nn.Module):
    """A network cut into an un-adapted stem and stages with FiLM sites; the feature is the pooled last stage.

    Any network fits: give its stem, its stages and, unless every norm of the stages is to be a FiLM site, the
    names of those that are. `pools` make a row for each image of what the stem and each stage give; without them
    it is the mean over the map. Channels, feature size and what can be folded are found out by one trial run.

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
        pools: Iterable[nn.Module] | None = None,
        normalisation: Normalisation | None = None,
        min_image_size: int = 32,
        size_step: int = 1,
    ) -> None:
        super().__init__()
        self.name = ""  # set by the registry
        self.stem = stem
        self.stages = nn.ModuleList(stages)
        self.pools = nn.ModuleList(pools or (MapMean() for _ in range(len(self.stages) + 1)))
        for stage in self.stages:
            give_shifts(stage)
        self.image_size = image_size
        self.min_image_size = min_image_size
        self.size_step = size_step  # a graph drawn at one size holds for others in such steps; 0: for none
        self.normalisation = normalisation or Normalisation()
        self.sites = [list(s) for s in sites] if sites is not None else [_norms(s) for s in self.stages]
        # weights of an installed package (`PackageWeights`) or a folder, if any
        self.pretrained: Callable[[], dict[str, Tensor]] | None = None
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._try_out()

    @torch.no_grad()
    def _try_out(self) -> None:
        self.eval()
        x = torch.linspace(-1, 1, 3 * self.image_size**2).view(1, 3, self.image_size, self.image_size)
        self.stem_units, x = foldable_units(self.stem, x.contiguous(memory_format=torch.channels_last))
        self.stage_units: list[list[Unit]] = []
        self.channels = [self.pools[0](x).shape[1]]  # of the stem and of each stage
        self.site_channels: list[list[int]] = [
            [norm_channels(norm_at(stage, name)) for name in names]
            for stage, names in zip(self.stages, self.sites, strict=True)
        ]
        for stage, pool in zip(self.stages, self.pools[1:], strict=True):
            units, x = foldable_units(stage, x)
            self.stage_units.append(units)
            self.channels.append(pool(x).shape[1])
        self.feature_size = self.channels[-1]

    def forward(self, images: Tensor) -> Tensor:
        """Un-adapted features (N, d) of float images (N, 3, H, W)."""
        return staged_features([self.stem, *self.stages], self.pools[1:], images)

    def ready(self, *, learn: bool) -> list[nn.Module]:
        """Stem and stages as they are run, with gradients or without."""
        parts = zip([self.stem, *self.stages], [self.stem_units, *self.stage_units], strict=True)
        return [ready(module, units, learn=learn) for module, units in parts]

    def groups(self, *, every_stage: bool) -> list[int]:
        """How many features each stage gives: those of all of them, or of the last alone."""
        return self.channels[1:] if every_stage else self.channels[-1:]

    def digest(self) -> str:
        """A hash of every weight, by name."""
        return digest_of_state(self.state_dict())[:16]

    def load_pretrained(self) -> Backbone:
        """Load the weights of an installed package or of the folder that the backbone is named after."""
        if self.pretrained is None:
            raise InputError(f"backbone {self.name!r} has no pre-trained weights; train it or load a checkpoint")
        self.load_state_dict(self.pretrained())
        return self


def staged_features(
    modules: Iterable[nn.Module], pools: Iterable[nn.Module], images: Tensor, *, every_stage: bool = False
) -> Tensor:
    """Float images through a stem and stages, pooled: the last stage, or all of them side by side, (N, d)."""
    stem, *stages = modules
    x = stem(images.contiguous(memory_format=torch.channels_last))
    pooled = []
    for i, (stage, pool) in enumerate(zip(stages, pools, strict=True)):
        x = stage(x)
        if every_stage or i == len(stages) - 1:
            pooled.append(pool(x))
    return torch.cat(pooled, 1)


def digest_of_state(state: Mapping[str, Tensor], about: str = "") -> str:
    """A hash of tensors by their names, and of what is said about them."""
    digest = hashlib.sha256(about.encode())
    for name, value in sorted(state.items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


class MapMean(nn.Module):
    """Mean over the map."""

    def forward(self, maps: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, C)."""
        return maps.mean((2, 3))


def _norms(stage: nn.Module) -> list[str]:
    return [name for name, module in stage.named_modules() if norm_channels(module)]
