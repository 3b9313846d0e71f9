"""What training, evaluation and checkpoints ask of a method that is trained on tasks, and a registry of those.

`CNAPs` is one of them. Others may be registered from outside (the paper's comparisons are): a checkpoint names its
`kind`, `cnaps train` a recipe, and neither needs to know where the class comes from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypedDict, Unpack

import torch
from torch import Tensor, nn

from cnaps.errors import InputError
from cnaps.nn.backbones import Backbone, create_backbone
from cnaps.nn.checks import check_images, check_labels
from cnaps.nn.config import ModelConfig
from cnaps.nn.film import StageFilm, Unit, bind, ready
from cnaps.nn.heads import Head
from cnaps.nn.lora import LoRA
from cnaps.nn.saving import fingerprint, save_model

if TYPE_CHECKING:
    from os import PathLike


class Fitted(Protocol):
    """What a method has learned of a task."""

    classes: Tensor  # sorted labels (C,)

    def features(self, images: Tensor) -> Tensor:
        """Float images (M, 3, H, W) -> features (M, d)."""

    def classify(self, features: Tensor) -> Tensor:
        """Features (M, d) -> logits (M, C)."""

    def logits(self, images: Tensor) -> Tensor:
        """Float images (M, 3, H, W) -> logits (M, C)."""


class AdaptOptions(TypedDict, total=False):
    """How `adapt` goes about it; none of this changes what is computed or, on average, its gradient."""

    learn: bool  # for training: gradients flow; without it networks are folded, and there is no way back
    chunk_size: int | None  # images run at once
    lite: int | None  # gradients flow through so many random context images only
    generator: torch.Generator | None  # which draws those
    checkpoint: bool  # recompute activations on the way back


def gradients(learn: bool) -> AbstractContextManager[Any]:
    """As the caller has it, or none."""
    return nullcontext() if learn else torch.no_grad()


class TaskModel(nn.Module):
    """A backbone (theta), and what training on tasks learns around it (phi); `adapt` learns a task."""

    kind: ClassVar[str]  # saved with the weights: which class to load them into
    head: Head  # of methods that have one

    def __init__(self, config: ModelConfig | None = None, backbone: Backbone | None = None) -> None:
        super().__init__()
        self.config = config = config or ModelConfig()
        self.notes: dict[str, Any] = {}  # what is known of the model beside its weights, such as its calibration
        self.backbone = (
            backbone if backbone is not None else create_backbone(config.backbone, image_size=config.image_size)
        )
        self.backbone.requires_grad_(False)
        self.lora: LoRA | None = None
        self.every_stage = config.features == "all"
        self.groups = self.backbone.groups(every_stage=self.every_stage)  # of features

    def adapt(self, images: Tensor, labels: Tensor, **options: Unpack[AdaptOptions]) -> Fitted:
        """Learn a task from float images (N, 3, H, W) and any integer labels (N,)."""
        raise NotImplementedError

    @property
    def image_size(self) -> int:
        """The side in pixels at which images are best given."""
        return self.config.image_size or self.backbone.image_size

    @property
    def device(self) -> torch.device:
        """Where the model lives."""
        return next(self.backbone.parameters()).device

    def train(self, mode: bool = True) -> Self:
        """Training mode for phi; the backbone's norms stay as they are unless it is trained jointly."""
        super().train(mode)
        if self.config.backbone_norm == "running":
            self.backbone.eval()
        return self

    def phi_parameters(self) -> Iterator[nn.Parameter]:
        """Every learned number but the backbone's."""
        for name, parameter in self.named_parameters():
            if not name.startswith("backbone."):
                yield parameter

    def regularization(self) -> Tensor:
        """What the loss's penalty is of; nothing, unless a method has something."""
        return torch.zeros((), device=self.device)

    def auxiliary_loss(self, adapted: Any, names: Sequence[str]) -> Tensor | None:
        """A further loss of a training task, whose classes have these names; none, unless a method has one."""
        return None

    def check_task(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Refuse what is no context set; its sorted classes (C,) and each class index (N,), on the device."""
        check_images(images, "context images", self.backbone.min_image_size)
        classes, index = check_labels(labels, len(images))
        return classes, index.to(self.device)

    def _parts(
        self, film: Sequence[StageFilm] = (), share: float = 1.0, *, learn: bool = False, fuse: bool = True
    ) -> list[nn.Module]:
        """The stem and all stages as they are run, with a task's FiLM if it has one."""
        numbers = range(len(self.backbone.stages))
        stages = [self._stage(i, film[i] if film else None, share, learn=learn, fuse=fuse) for i in numbers]
        return [self._stem(learn=learn, fuse=fuse), *stages]

    def _stem(self, *, learn: bool = False, fuse: bool = True) -> nn.Module:
        """The stem as it is run."""
        return self._as_run(self.backbone.stem, self.backbone.stem_units, learn, fuse)

    def _stage(
        self, stage: int, film: StageFilm | None, share: float = 1.0, *, learn: bool = False, fuse: bool = True
    ) -> nn.Module:
        """A stage as it is run, with a task's FiLM and this share of its LoRA terms."""
        module, batch = self.unadapted(stage, share), self.config.backbone_norm == "batch"
        if film is not None:
            module = bind(module, self.backbone.sites[stage], film, batch_statistics=batch)
        return self._as_run(module, self.backbone.stage_units[stage], learn, fuse)

    def unadapted(self, stage: int, share: float = 1.0) -> nn.Module:
        """A stage as all tasks of a size share it: with this share of its LoRA terms."""
        module = self.backbone.stages[stage]
        return module if self.lora is None else self.lora.join(stage, module, share)

    def _as_run(self, module: nn.Module, units: Sequence[Unit], learn: bool, fuse: bool) -> nn.Module:
        """Norms that read the batch at hand cannot become part of a convolution."""
        return module if self.config.backbone_norm == "batch" else ready(module, units, learn=learn, fuse=fuse)

    def preprocess(self, pixels: Tensor) -> Tensor:
        """Pixels of 0..255 (N, 3, H, W) as the backbone wants them."""
        return self.backbone.normalisation(pixels.to(self.device))

    def fingerprint(self) -> str:
        """A hash of the configuration and of every weight: two models with the same one answer alike."""
        return fingerprint(self)

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the model to a folder (safetensors and a readable config); `cnaps.load_model` reads it."""
        save_model(self, folder)


@dataclass(frozen=True)
class Recipe:
    """How a new model of a named method is made: its class, and the settings that make it what it is."""

    name: str
    model: type[TaskModel]
    config: Mapping[str, Any] = field(default_factory=dict)  # fields of ModelConfig


_RECIPES: dict[str, Recipe] = {}


def register_recipe(recipe: Recipe) -> None:
    """Make a method known to `cnaps train`, and its kind of models to checkpoints."""
    _RECIPES[recipe.name] = recipe


def find_recipe(name: str) -> Recipe:
    """A registered method by its name."""
    if name not in _RECIPES:
        raise InputError(f"no method named {name!r} can be trained; there are: {', '.join(_RECIPES) or 'none'}")
    return _RECIPES[name]


def model_kind(kind: str) -> type[TaskModel] | None:
    """The class of models of a kind; None if no such kind is registered."""
    return next((recipe.model for recipe in _RECIPES.values() if recipe.model.kind == kind), None)
