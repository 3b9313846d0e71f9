"""Parallel residual adapters as the paper sets them against FiLM: meta-trained, made for a task in one pass.

All else is as in CNAPs: set encoder, stage encoders, generators, head. What the generators say of a task mixes a
few banks of adapters, which are meta-trained, into the C^2 numbers of each layer. (How its adapters come from a
task the paper does not say. Generators without banks, of C^2 numbers each, would be far larger than the network.)
"""

from __future__ import annotations

from functools import partial
from typing import Unpack

import torch
from torch import Tensor, nn

from cnaps.errors import InputError
from cnaps.maths.arrays import members_of
from cnaps.nn.adaptation import FilmAdaptation
from cnaps.nn.adapted import AdaptedNetwork
from cnaps.nn.backbones import Backbone
from cnaps.nn.context import Context
from cnaps.nn.encoders import SetEncoder
from cnaps.nn.film import SiteFilm, unite
from cnaps.nn.frozen import CHUNK
from cnaps.nn.heads import create_head
from cnaps.nn.model import ModelConfig
from cnaps.nn.task_model import AdaptOptions
from cnaps.paper.learners.base import FittedClassifier, count_numbers
from cnaps.paper.learners.embedding import EmbeddingModel
from cnaps.paper.learners.gradient import adapter_shape, spatial_convolutions, with_adapters

BANKS = 4  # half of them begin with a share of one in every task, the others with none


class TrainedAdapters(EmbeddingModel):
    """CNAPs with 1x1 convolutions beside the spatial ones in the place of FiLM."""

    kind = "residual-adapters"

    def __init__(self, config: ModelConfig | None = None, backbone: Backbone | None = None) -> None:
        super().__init__(config, backbone)
        names = [spatial_convolutions(stage) for stage in self.backbone.stages]
        if not all(names):
            raise InputError("residual adapters stand beside spatial convolutions, and a stage here has none")
        self.set_encoder = SetEncoder(
            self.config.embedding_size, norm=self.config.set_encoder_norm, image_size=self.config.set_encoder_size
        )
        # What is a site's FiLM there are here the shares of an adapter's banks.
        self.adaptation = FilmAdaptation(
            self.backbone.channels,
            [[BANKS // 2] * len(some) for some in names],
            autoregressive=True,
            embedding_size=self.config.embedding_size,
            width=self.config.generator_width,
            spread=self.config.spread,
        )
        self.banks = nn.ModuleList(
            nn.ParameterList(torch.zeros(BANKS, *adapter_shape(stage, name)) for name in some)
            for stage, some in zip(self.backbone.stages, names, strict=True)
        )
        self.head = create_head(self.config.head, self.groups, self.config.bias_width)
        self.train(False)

    def regularization(self) -> Tensor:
        """The sum of R^2 over all generators, as CNAPs have it."""
        return self.adaptation.regularization()

    def adapt(self, images: Tensor, labels: Tensor, **options: Unpack[AdaptOptions]) -> FittedClassifier:
        """One pass over the context: before a stage its adapters are made."""
        classes, index = self.check_task(images, labels)
        images, pools = images.to(self.device), self.backbone.pools
        chunk = len(images) if self.config.backbone_norm == "batch" else CHUNK
        embedding = self.set_encoder(images, chunk, learn=options.get("learn", False)).mean(0)
        members = members_of(index, len(classes), images)
        modules: list[nn.Module] = [unite(self.backbone.stem, self.backbone.stem_units)]
        context = Context(images.contiguous(memory_format=torch.channels_last), learn=True, chunk_size=chunk)
        context.run(modules[0])
        pooled = [context.readout(pools[0])]
        for i in range(len(self.backbone.stages)):
            shares = self.adaptation.stage_film(i, embedding, pooled[-1], members)
            modules.append(self._adapted(i, shares))
            context.run(modules[-1])
            pooled.append(context.readout(pools[i + 1]))
        embedded = self.head.embed(torch.cat(pooled[1:] if self.every_stage else pooled[-1:], 1))
        made = self.classifier(embedded, index)
        numbers = sum(bank[0].numel() for bank in self.banks.parameters()) + count_numbers(made)
        return FittedClassifier(classes, partial(self.run, AdaptedNetwork(self, modules)), made, numbers)

    def _adapted(self, index: int, shares: tuple[SiteFilm, ...]) -> nn.Module:
        """A stage with adapters that are mixed as `shares` say."""
        mixed = [
            torch.tensordot(torch.cat(share), bank, 1)
            for bank, share in zip(self.banks[index].parameters(), shares, strict=True)
        ]
        stage = with_adapters(self.backbone.stages[index], mixed)
        return unite(stage, self.backbone.stage_units[index])
