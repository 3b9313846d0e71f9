"""CNAPs: `adapt` reads a context set once and returns an `Adapted`, the classifier of that task.

Names of the paper: theta is `CNAPs.backbone`, phi everything else; psi_f is `Adapted.film`, psi_w the classifier
that the head makes; z_G is `Adapted.task_embedding`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cnaps.errors import InputError
from cnaps.images.sizes import lora_share
from cnaps.maths.arrays import members_of
from cnaps.maths.statistics import ClassStatistics
from cnaps.nn.adaptation import FilmAdaptation
from cnaps.nn.adapted import Adapted, AdaptedNetwork, default_chunk, running_mean
from cnaps.nn.backbones import Backbone, check_sites
from cnaps.nn.checks import check_images, check_labels
from cnaps.nn.context import Context
from cnaps.nn.encoders import SetEncoder
from cnaps.nn.film import Film, SiteFilm, bind, bind_folded, fold, unite
from cnaps.nn.heads import Head, create_head
from cnaps.nn.lora import LoRA
from cnaps.nn.task_model import Recipe, TaskModel, register_recipe

ADAPTATIONS = ("none", "film", "film+ar")


@dataclass(frozen=True)
class ModelConfig:
    """Everything that decides the shape of a model; `preset` gives the two readings of the paper."""

    backbone: str = "resnet18"
    adaptation: str = "film+ar"  # none | film | film+ar
    head: str = "linear"  # linear | mahalanobis | cosine | ridge
    features: str = "last"  # last: the pooled last stage; all: the pooled outputs of all stages, side by side
    bias_width: int | None = None  # hidden width of the linear head's bias network; None: that of the features
    embedding_size: int = 64  # of z_G; 0: no set encoder
    set_encoder_norm: str = "context"  # context: statistics of the context set; none
    set_encoder_size: int | None = None  # shrink images to this size for the set encoder
    generator_width: int | None = None  # None: as wide as the stage
    lora_rank: int = 0  # of the LoRA terms of the 1x1 convolutions; 0: none, as in the paper
    lora_large: float = 1.0  # the share of these terms at 224 pixels; all up to 128, in proportion between
    spread: bool = False  # stage encoders also see the spread within and between classes
    image_size: int | None = None  # None: what the backbone prefers
    backbone_norm: str = "running"  # running | batch: what the backbone's batch norms use (batch: joint training)

    @classmethod
    def preset(cls, name: str) -> ModelConfig:
        """`reference` (as the published weights have it) or `paper` (as its tables have it).

        >>> ModelConfig.preset("reference").bias_width
        1
        """
        if name == "reference":
            return cls(bias_width=1)
        if name == "paper":
            return cls(backbone="resnet18-paper")
        raise InputError(f"no preset named {name!r}; there are: reference, paper")


class CNAPs(TaskModel):
    """A frozen backbone, the networks that adapt it to a task, and a head.

    >>> import torch
    >>> model = CNAPs(ModelConfig.preset("reference"))
    >>> images, labels = torch.rand(6, 3, 84, 84) * 2 - 1, torch.tensor([3, 3, 5, 5, 9, 9])
    >>> with torch.no_grad():
    ...     adapted = model.adapt(images, labels)
    >>> adapted.classes.tolist(), tuple(adapted.logits(images).shape), len(adapted.film)
    ([3, 5, 9], (6, 3), 7680)
    """

    kind = "cnaps"

    def __init__(self, config: ModelConfig | None = None, backbone: Backbone | None = None) -> None:
        config = config or ModelConfig()
        _check_config(config)
        super().__init__(config, backbone)
        self._once: dict[
            tuple[int, float], tuple[object, nn.Module]
        ] = {}  # folded stages, and what they were made from
        self.set_encoder: SetEncoder | None = None
        if config.embedding_size:
            self.set_encoder = SetEncoder(
                config.embedding_size, norm=config.set_encoder_norm, image_size=config.set_encoder_size
            )
        self.adaptation: FilmAdaptation | None = None
        if config.adaptation != "none":
            check_sites(self.backbone)
            self.adaptation = FilmAdaptation(
                self.backbone.channels,
                self.backbone.site_channels,
                autoregressive=config.adaptation == "film+ar",
                embedding_size=config.embedding_size,
                width=config.generator_width,
                spread=config.spread,
            )
        self.lora: LoRA | None = None
        if config.lora_rank:
            self.lora = LoRA(self.backbone.stages, config.lora_rank)
        stages = self.backbone.channels[1:] if config.features == "all" else self.backbone.channels[-1:]
        self.head: Head = create_head(config.head, stages, config.bias_width)
        self.train(False)

    def regularization(self) -> Tensor:
        """The sum of R^2 over all FiLM generators."""
        if self.adaptation is None:
            return super().regularization()
        return self.adaptation.regularization()

    def adapt(
        self,
        images: Tensor,
        labels: Tensor,
        *,
        chunk_size: int | None = None,
        lite: int | None = None,
        generator: torch.Generator | None = None,
        checkpoint: bool = False,
    ) -> Adapted:
        """Read the context set, float images (N, 3, H, W) and any integer labels (N,), and become its classifier.

        The result does not depend on the order of the context, nor on `chunk_size` (to rounding). For training:
        `lite` lets gradients through a random subset only, `checkpoint` recomputes activations on the way back.
        """
        check_images(images, "context images", self.backbone.min_image_size)
        classes, index = check_labels(labels, len(images))
        return self._adapt(images, classes, index, None, 0, chunk_size, lite, generator, checkpoint)

    def _adapt(
        self,
        images: Tensor,
        classes: Tensor,
        index: Tensor,
        earlier_embedding: Tensor | None,
        earlier_images: int,
        chunk_size: int | None = None,
        lite: int | None = None,
        generator: torch.Generator | None = None,
        checkpoint: bool = False,
    ) -> Adapted:
        images = images.to(self.device).contiguous(memory_format=torch.channels_last)
        index = index.to(self.device)
        if self.config.backbone_norm == "batch":
            chunk_size = len(images)
        chunk_size = chunk_size or default_chunk(self.device)
        embedding = self._task_embedding(images, chunk_size, checkpoint or lite is not None)
        if earlier_embedding is not None:
            embedding = running_mean(earlier_embedding, earlier_images, embedding, len(images))
        stages, pools = len(self.backbone.stages), self.backbone.pools
        context = Context(
            images,
            chunk_size=chunk_size,
            readouts=stages + 1,
            lite=lite,
            generator=generator,
            recompute=checkpoint,
        )
        share = self.lora_share(images.shape[-1])
        modules = [self._stem()]
        context.run(modules[0])
        film: list[tuple[SiteFilm, ...]] = []
        members = members_of(index, len(classes), images)
        features = []
        for stage in range(stages):
            if self.adaptation is not None:
                pooled = context.readout(pools[stage], stage) if self.adaptation.autoregressive else None
                film.append(self.adaptation.stage_film(stage, embedding.to(images.dtype), pooled, members))
            modules.append(self._stage(stage, film[stage] if film else None, share))
            context.run(modules[-1])
            if self.config.features == "all" or stage == stages - 1:
                features.append(context.readout(pools[stage + 1], stages))
        embedded = self.head.embed(torch.cat(features, 1))
        statistics = ClassStatistics.of(embedded, index, len(classes), scatter=self.head.needs_scatter)
        adapted = Adapted(self, Film(tuple(film)), classes, statistics, embedding, images.shape[-1])
        adapted.context_features = embedded
        if not torch.is_grad_enabled():
            adapted.keep(modules)
        return adapted

    def network(self, film: Film, image_size: int, *, fuse: bool = True) -> AdaptedNetwork:
        """Images to embedded features with the FiLM of a task at this size; folded without gradients."""
        share = self.lora_share(image_size)
        stages = [
            self._stage(i, film.stages[i] if film.stages else None, share, fuse=fuse)
            for i in range(len(self.backbone.stages))
        ]
        pools, every = self.backbone.pools[1:], self.config.features == "all"
        return AdaptedNetwork(self._stem(fuse=fuse), stages, pools, self.head, every)

    def lora_share(self, image_size: int) -> float:
        """How much of the LoRA terms is used for images of this size."""
        return 1.0 if self.lora is None else lora_share(image_size, self.config.lora_large)

    def _task_embedding(self, images: Tensor, chunk_size: int | None, recompute: bool = False) -> Tensor:
        if self.set_encoder is None:
            return torch.zeros(0, device=self.device)
        return self.set_encoder(images, chunk_size, recompute).mean(0)

    def _stem(self, *, fuse: bool = True) -> nn.Module:
        if self.config.backbone_norm == "batch":
            return self.backbone.stem
        if torch.is_grad_enabled():
            return unite(self.backbone.stem, self.backbone.stem_units)
        return fold(self.backbone.stem, self.backbone.stem_units, fuse=fuse)

    def _stage(
        self, stage: int, film: tuple[SiteFilm, ...] | None, share: float = 1.0, *, fuse: bool = True
    ) -> nn.Module:
        """One stage with a task's FiLM; folded, and fused where there are kernels for it, without gradients."""
        sites, units = self.backbone.sites[stage], self.backbone.stage_units[stage]
        batch = self.config.backbone_norm == "batch"
        if not batch and not torch.is_grad_enabled():
            named, values = ([], ()) if film is None else (sites, film)
            return bind_folded(self._folded(stage, share), units, named, values, fuse=fuse)
        module = self._unadapted(stage, share)
        if film is not None:
            module = bind(module, sites, film, batch_statistics=batch)
        return module if batch else unite(module, units)

    def _unadapted(self, stage: int, share: float = 1.0) -> nn.Module:
        """A stage as all tasks of a size share it."""
        module = self.backbone.stages[stage]
        return module if self.lora is None else self.lora.join(stage, module, share)

    def _folded(self, stage: int, share: float) -> nn.Module:
        """The same, folded: made anew only when a weight has changed."""
        module = self.backbone.stages[stage]
        tensors = [*module.parameters(), *module.buffers()]
        if self.lora is not None:
            tensors += [part for _, *parts in self.lora.terms(stage) for part in parts]
        state = tuple((t.data_ptr(), t._version) for t in tensors)
        known = self._once.get((stage, share))
        if known is None or known[0] != state:
            folded = fold(self._unadapted(stage, share), self.backbone.stage_units[stage])
            known = self._once[stage, share] = (state, folded)
        return known[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_once": {}}


def _check_config(config: ModelConfig) -> None:
    choices = {
        "adaptation": ADAPTATIONS,
        "features": ("last", "all"),
        "set_encoder_norm": ("context", "none"),
        "backbone_norm": ("running", "batch"),
    }
    for field, allowed in choices.items():
        value = getattr(config, field)
        if value not in allowed:
            raise InputError(f"{field} cannot be {value!r}; there are: {', '.join(allowed)}")
    if config.lora_rank < 0:
        raise InputError(f"lora_rank cannot be {config.lora_rank}: it is 0 (no LoRA) or more")
    if not 0 <= config.lora_large <= 2:
        raise InputError(f"lora_large cannot be {config.lora_large}: it is a share of 0 to 2")
    if config.set_encoder_size is not None and config.set_encoder_size < 32:
        raise InputError(
            f"set_encoder_size cannot be {config.set_encoder_size}: five poolings need 32 pixels or more"
        )


register_recipe(Recipe("cnaps", CNAPs))
