"""A torch model behind the runtime's protocol: for models without a bundle, objects of one's own, and GPUs."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cnaps.bridge.bundle import describe, make_graphs
from cnaps.errors import InputError
from cnaps.nn.adapted import default_chunk
from cnaps.nn.backbones import open_backbone
from cnaps.nn.checkpoints import load_model
from cnaps.nn.devices import pick_device
from cnaps.nn.film import Film
from cnaps.nn.model import CNAPs, ModelConfig
from cnaps.nn.task_model import AdaptOptions, TaskModel
from cnaps.runtime.bundle import Bundle
from cnaps.runtime.engine import BACKBONES, Adaptation, Engine, Network, Support, reopen


class TorchEngine:
    """A CNAPs model on any device."""

    def __init__(self, model: CNAPs, name: str = "", source: str = "") -> None:
        self.model, self.name, self._source = model, name, source
        self._process = os.getpid()
        self.fingerprint, self.image_size, self.head = model.fingerprint(), model.image_size, model.head.numpy
        self._sites = model.backbone.site_channels if model.adaptation is not None else []
        self.film_numbers = 2 * sum(map(sum, self._sites))
        self.embedding_size = model.config.embedding_size
        self.notes = model.notes
        normalisation = model.backbone.normalisation
        self.normalisation = normalisation.mean, normalisation.std

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and other processes open the model again, where it has a name; an object is pickled whole."""
        if not self._source:
            return TorchEngine, (self.model, self.name)
        return reopen, (self._source, self.fingerprint)

    def check_size(self, size: int) -> int:
        """Torch runs at any size that leaves something to pool."""
        if size < self.model.backbone.min_image_size:
            raise InputError(f"images of {size} pixels are too small: take {self.model.backbone.min_image_size}")
        return size

    @torch.no_grad()
    def adapt(self, support: Support, earlier: tuple[np.ndarray, int] | None = None) -> Adaptation:
        """One pass over the examples."""
        images, labels = self._images(support.pixels), torch.from_numpy(support.labels)
        if earlier is None:
            adapted = self.model.adapt(images, labels)
        else:
            embedding = torch.from_numpy(earlier[0]).to(self.model.device)
            adapted = self.model.adapt_more(images, labels, support.ways, (embedding, earlier[1]))
        return Adaptation(
            _numpy(adapted.film.vector()),
            _numpy(adapted.context_features),
            _numpy(adapted.task_embedding.double()),
            self._network(adapted.features),
        )

    @torch.no_grad()
    def embedding(self, pixels: np.ndarray) -> np.ndarray:
        """The mean over the rows of the set encoder."""
        options: AdaptOptions = {"chunk_size": default_chunk(self.model.device)}
        return _numpy(self.model.task_embedding(self._images(pixels), options).double())

    def network(self, film: np.ndarray, image_size: int) -> Network:
        """The network with the FiLM of a task at this size."""
        parts = Film.from_vector(torch.from_numpy(film).to(self.model.device), self._sites)
        return self._network(self.model.network(parts, image_size))

    def frozen(self) -> Network:
        """The backbone as it was pre-trained."""
        return self._network(self.model.backbone)

    def bundle(self) -> Bundle:
        """Graphs and weights, made on the spot."""
        state = {name: _numpy(value) for name, value in self.model.state_dict().items()}
        return Bundle(asdict(self.model.config), describe(self.model), state, make_graphs(self.model))

    def _images(self, pixels: np.ndarray) -> Tensor:
        if self._process != os.getpid():
            raise InputError(
                "torch does not go on in a process that was forked: start processes by spawn (multiprocessing) or "
                "loky (joblib), or use a model with a bundle (`cnaps ship`)"
            )
        return self.model.preprocess(torch.from_numpy(np.ascontiguousarray(pixels)))

    def _network(self, features: Callable[[Tensor], Tensor]) -> Network:
        @torch.no_grad()
        def run(pixels: np.ndarray) -> np.ndarray:
            chunk = default_chunk(self.model.device)
            return np.concatenate([_numpy(features(part)) for part in self._images(pixels).split(chunk)])

        return run


def open_torch(source: Any, device: str = "auto") -> Engine | None:
    """A torch engine for a `CNAPs` or the folder of one; None for what it does not know."""
    if isinstance(source, CNAPs):
        return TorchEngine(source)
    if isinstance(source, TaskModel):
        kind = f"a model of the compared method {source.kind!r}"
        raise InputError(f"{kind} is for `cnaps evaluate` only: give a CNAPs model")
    if not isinstance(source, str | os.PathLike):
        return None
    if os.fspath(source).startswith(BACKBONES):
        return _open_backbone(os.fspath(source), device)
    config = Path(source) / "config.json"
    stamp = config.stat().st_mtime_ns if config.is_file() else 0
    return _open_folder(os.fspath(source), device, stamp)


@lru_cache(maxsize=2)
def _open_backbone(name: str, device: str) -> TorchEngine:
    """A pre-trained network as it is: no FiLM, a closed-form head on its features."""
    backbone = open_backbone(name)
    config = ModelConfig(
        backbone=name, adaptation="none", embedding_size=0, head="ridge", image_size=backbone.image_size
    )
    return TorchEngine(CNAPs(config, backbone).to(pick_device(device)), source=name)


@lru_cache(maxsize=4)
def _open_folder(source: str, device: str, stamp: int) -> TorchEngine:
    model = load_model(source)
    try:
        return TorchEngine(model.to(pick_device(device)), source if stamp == 0 else "", source)
    except (RuntimeError, AssertionError) as error:  # no such device, or a build of torch without it
        reason = str(error).splitlines()[0]
        raise InputError(f"the device {device!r} cannot be used: {reason}") from error


def _numpy(tensor: Tensor) -> np.ndarray:
    found: np.ndarray = tensor.detach().cpu().numpy()
    return found
