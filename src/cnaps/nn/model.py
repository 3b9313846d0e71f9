"""CNAPs: `adapt` reads a context set once and returns an `Adapted`, the classifier of that task.

Names of the paper: theta is `CNAPs.backbone`, phi everything else; psi_f is `Adapted.film`, psi_w the classifier
that the head makes; z_G is `Adapted.task_embedding`.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from cnaps.images.sizes import lora_share
from cnaps.maths.arrays import members_of
from cnaps.maths.statistics import ClassStatistics
from cnaps.nn.adaptation import FilmAdaptation
from cnaps.nn.adapted import Adapted, AdaptedNetwork, default_chunk
from cnaps.nn.backbones import Backbone, check_sites
from cnaps.nn.config import ModelConfig
from cnaps.nn.context import Context
from cnaps.nn.encoders import SetEncoder
from cnaps.nn.film import Film, SiteFilm
from cnaps.nn.heads import create_head
from cnaps.nn.lora import LoRA
from cnaps.nn.task_model import AdaptOptions, Recipe, TaskModel, gradients, register_recipe


class CNAPs(TaskModel):
    """A frozen backbone, the networks that adapt it to a task, and a head.

    >>> import torch
    >>> model = CNAPs(ModelConfig.preset("reference"))
    >>> images, labels = torch.rand(6, 3, 84, 84) * 2 - 1, torch.tensor([3, 3, 5, 5, 9, 9])
    >>> adapted = model.adapt(images, labels)
    >>> adapted.classes.tolist(), tuple(adapted.logits(images).shape), len(adapted.film)
    ([3, 5, 9], (6, 3), 7680)
    """

    kind = "cnaps"

    def __init__(self, config: ModelConfig | None = None, backbone: Backbone | None = None) -> None:
        super().__init__(config, backbone)
        config = self.config
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
        if config.lora_rank:
            self.lora = LoRA(self.backbone.stages, config.lora_rank)
        self.head = create_head(config.head, self.groups, config.bias_width)
        self.train(False)

    def regularization(self) -> Tensor:
        """The sum of R^2 over all FiLM generators."""
        if self.adaptation is None:
            return super().regularization()
        return self.adaptation.regularization()

    def adapt(self, images: Tensor, labels: Tensor, **options: Unpack[AdaptOptions]) -> Adapted:
        """Read the context set, float images (N, 3, H, W) and any integer labels (N,), and become its classifier.

        The result does not depend on the order of the context, nor on `chunk_size` (to rounding). For training
        there is `learn`, and what it may be combined with: see `AdaptOptions`.
        """
        classes, index = self.check_task(images, labels)
        with gradients(options.get("learn", False)):
            return self._adapt(images, classes, index, None, options)

    @torch.no_grad()
    def adapt_more(self, images: Tensor, labels: Tensor, ways: int, earlier: tuple[Tensor, int]) -> Adapted:
        """A task of classes 0..ways-1, whose z_G is a mean that goes on: given that of so many images before."""
        return self._adapt(images, torch.arange(ways), labels, earlier, {})

    def _adapt(
        self,
        images: Tensor,
        classes: Tensor,
        index: Tensor,
        earlier: tuple[Tensor, int] | None,
        options: AdaptOptions,
    ) -> Adapted:
        learn, stages, pools = options.get("learn", False), range(len(self.backbone.stages)), self.backbone.pools
        images, index = images.to(self.device).contiguous(memory_format=torch.channels_last), index.to(self.device)
        members = members_of(index, len(classes), images)  # (C, N)
        size = images.shape[-1]
        chunk_size = options.get("chunk_size") or default_chunk(self.device)
        if self.config.backbone_norm == "batch":
            chunk_size = len(images)
        options = {**options, "chunk_size": chunk_size}
        embedding = self.task_embedding(images, options)  # z_G
        if earlier is not None:  # in double precision, so that thousands of updates do not drift
            mean, count = earlier[0].double(), earlier[1]
            embedding = mean + len(images) / (len(images) + count) * (embedding.double() - mean)
        context = Context(images, len(stages) + 1, **options)
        modules = [self._stem(learn=learn)]
        context.run(modules[0])
        film: list[tuple[SiteFilm, ...]] = []
        features = []
        for i in stages:
            if self.adaptation is not None:
                pooled = context.readout(pools[i], i) if self.adaptation.autoregressive else None
                film.append(self.adaptation.stage_film(i, embedding.to(images.dtype), pooled, members))
            modules.append(self._stage(i, film[i] if film else None, self.lora_share(size), learn=learn))
            context.run(modules[-1])
            if self.every_stage or i == stages[-1]:
                features.append(context.readout(pools[i + 1], len(stages)))
        embedded = self.head.embed(torch.cat(features, 1))  # (N, d)
        statistics = ClassStatistics.of(embedded, index, len(classes), scatter=self.head.needs_scatter)
        network = AdaptedNetwork(self, modules)
        return Adapted(self, Film(tuple(film)), classes, statistics, embedding, size, embedded, network, learn)

    @torch.no_grad()
    def network(self, film: Film, image_size: int, *, fuse: bool = True) -> AdaptedNetwork:
        """Images to embedded features with the FiLM of a task at this size, for prediction."""
        return AdaptedNetwork(self, self._parts(film.stages, self.lora_share(image_size), fuse=fuse))

    def lora_share(self, image_size: int) -> float:
        """How much of the LoRA terms is used for images of this size."""
        return 1.0 if self.lora is None else lora_share(image_size, self.config.lora_large)

    def task_embedding(self, images: Tensor, options: AdaptOptions) -> Tensor:
        """z_G (E,): the mean over the rows of the set encoder; of no numbers if there is none."""
        if self.set_encoder is None:
            return torch.zeros(0, device=self.device)
        recompute = options.get("checkpoint", False) or options.get("lite") is not None
        learn = options.get("learn", False)
        return self.set_encoder(images, options.get("chunk_size"), learn=learn, recompute=recompute).mean(0)


register_recipe(Recipe("cnaps", CNAPs))
