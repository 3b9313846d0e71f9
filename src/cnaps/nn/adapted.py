"""`Adapted`: the classifier of one task, all its state, and how it learns on."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from cnaps.errors import InputError
from cnaps.maths.heads import Classifier
from cnaps.maths.statistics import ClassStatistics
from cnaps.nn.checks import check_images, check_labels
from cnaps.nn.film import Film
from cnaps.nn.heads import Head

if TYPE_CHECKING:
    from os import PathLike

    from cnaps.nn.model import CNAPs

UPDATES = ("fixed", "paper")


class Adapted:
    """The classifier of one task: FiLM parameters and class statistics, and the model they belong to.

    It holds all state of the task; the model is not changed by it.
    """

    def __init__(
        self,
        model: CNAPs,
        film: Film,
        classes: Tensor,
        statistics: ClassStatistics,
        task_embedding: Tensor,
        seen: int,
    ) -> None:
        self.model = model
        self.film = film
        self.classes = classes  # sorted labels (C,)
        self.statistics = statistics
        self.task_embedding = task_embedding  # z_G
        self.seen = seen  # images read so far
        self.context_features: Tensor | None = None  # (N, d) of the context itself

    def update(self, images: Tensor, labels: Tensor, *, mode: str = "fixed") -> Adapted:
        """The classifier after more examples, of known classes or new ones; earlier images are not needed.

        `fixed` keeps FiLM as the first data made it: the result is that of seeing everything at once with this
        FiLM, in any order. `paper` makes FiLM anew from the running task embedding and keeps the means of
        earlier examples as they were.

        >>> import torch
        >>> from cnaps import CNAPs
        >>> images = torch.rand(4, 3, 84, 84)
        >>> with torch.no_grad():
        ...     adapted = CNAPs().adapt(images, torch.tensor([0, 0, 7, 7]))
        ...     later = adapted.update(images[:2], torch.tensor([7, 3]))
        >>> later.classes.tolist(), later.statistics.counts.tolist(), later.forget([3]).classes.tolist()
        ([0, 3, 7], [2.0, 1.0, 3.0], [0, 7])
        """
        if mode not in UPDATES:
            raise InputError(f"no update mode named {mode!r}; there are: {', '.join(UPDATES)}")
        check_images(images, "images", self.model.backbone.min_image_size)
        new, index = check_labels(labels, len(images))
        if mode == "paper":
            latest = self.model._adapt(images, new, index, self.task_embedding, self.seen)
            film, added, embedding = latest.film, latest.statistics, latest.task_embedding
            kept = {name: value for name, value in vars(latest).items() if name == "_folded_network"}
        else:
            features = self.features(images)
            scatter = self.model.head.needs_scatter
            film, kept = self.film, {}
            added = ClassStatistics.of(features, index.to(features.device), len(new), scatter=scatter)
            embedding = self.model._task_embedding(images.to(self.model.device), default_chunk(self.model.device))
            embedding = running_mean(self.task_embedding, self.seen, embedding, len(images))
        classes = torch.cat([self.classes, new[~torch.isin(new, self.classes)]])
        place = (new[:, None] == classes).int().argmax(1).tolist()
        merged = self.statistics.merge(added, place, len(classes))
        classes, order = classes.sort()
        return self._with(
            film=film,
            classes=classes,
            statistics=merged.select(order.tolist()),
            task_embedding=embedding,
            seen=self.seen + len(images),
            **kept,
        )

    def forget(self, classes: Iterable[int]) -> Adapted:
        """The classifier without some of its classes; FiLM and what it was made from stay."""
        gone = set(classes)
        known = self.classes.tolist()
        unknown = gone - set(known)
        if unknown:
            raise InputError(f"cannot forget {', '.join(map(str, sorted(unknown)))}: no such class")
        keep = [i for i, label in enumerate(known) if label not in gone]
        if not keep:
            raise InputError("cannot forget every class: at least one must remain")
        return self._with(classes=self.classes[keep], statistics=self.statistics.select(keep))

    def relabel(self, classes: Tensor) -> Adapted:
        """The same task under other labels, given in the order of `classes` and rising like them."""
        return self._with(classes=classes)

    def _with(self, **changes: Any) -> Adapted:
        """A copy with other parts. The folded network lives on with its FiLM, so that small updates are cheap."""
        changed = copy(self)
        changed.__dict__.pop("_fixed_classifier", None)
        changed.context_features = None
        if changes.get("film", self.film) is not self.film:
            changed.__dict__.pop("_folded_network", None)
        changed.__dict__.update(changes)
        return changed

    def features(self, images: Tensor, *, chunk_size: int | None = None) -> Tensor:
        """Adapted features (M, d) of float images (M, 3, H, W), as the head's classifier reads them."""
        check_images(images, "images", self.model.backbone.min_image_size)
        images = images.to(self.model.device)
        if self.model.config.backbone_norm == "batch":
            return self._network()(images)
        network = self._network() if torch.is_grad_enabled() else self._folded_network
        return torch.cat([network(part) for part in images.split(chunk_size or default_chunk(images.device))])

    def logits(self, images: Tensor, *, chunk_size: int | None = None) -> Tensor:
        """Logits (M, C) of float images (M, 3, H, W); columns in the order of `classes`."""
        return self.classify(self.features(images, chunk_size=chunk_size))

    def classify(self, features: Tensor) -> Tensor:
        """Logits (M, C) of adapted features (M, d)."""
        return (self.classifier if torch.is_grad_enabled() else self._fixed_classifier)(features)

    def predict(self, images: Tensor) -> Tensor:
        """The most probable label of each image (M,)."""
        with torch.no_grad():
            return self.classes[self.logits(images).argmax(1).cpu()]

    @property
    def classifier(self) -> Classifier:
        """From embedded features (M, d) to logits (M, C)."""
        return self.model.head.classifier(self.statistics)

    def fold(self) -> nn.Module:
        """A plain network from float images to logits: convolutions with bias, no norm, no FiLM.

        For prediction only: it is a copy without gradients, and needs the model no longer.
        """
        if self.model.config.backbone_norm == "batch":
            raise InputError("a model that normalises by batch statistics cannot be folded")
        with torch.no_grad():
            return _Folded(self._network(fuse=False), self._fixed_classifier).eval()

    def export_onnx(self, path: str | PathLike[str], image_size: int | None = None) -> None:
        """Write the folded network as ONNX: float images (batch, 3, S, S) to logits (batch, C)."""
        from cnaps.nn.export import export_onnx

        export_onnx(self.fold(), path, image_size or self.model.image_size)

    def detach(self) -> Adapted:
        """The same task without the history that training needs."""
        s = self.statistics
        scatter = None if s.scatter is None else tuple(f.detach() for f in s.scatter)
        statistics = replace(s, means=s.means.detach(), scatter=scatter)
        return self._with(
            film=self.film.detach(),
            statistics=statistics,
            task_embedding=self.task_embedding.detach(),
        )

    def keep(self, modules: list[nn.Module]) -> None:
        """Predict with the folded stem and stages that read the context, instead of folding them again."""
        self.__dict__["_folded_network"] = AdaptedNetwork(
            modules[0],
            modules[1:],
            self.model.backbone.pools[1:],
            self.model.head,
            self.model.config.features == "all",
        )

    @cached_property
    def _folded_network(self) -> AdaptedNetwork:
        with torch.no_grad():
            return self._network()

    @cached_property
    def _fixed_classifier(self) -> Classifier:
        with torch.no_grad():
            return self.classifier

    def _network(self, *, fuse: bool = True) -> AdaptedNetwork:
        return self.model.network(self.film, fuse=fuse)


class AdaptedNetwork(nn.Module):
    """Stem, adapted stages, pooling: from images to the features that a task's classifier reads."""

    def __init__(
        self, stem: nn.Module, stages: list[nn.Module], pools: nn.ModuleList, head: Head, every_stage: bool
    ) -> None:
        super().__init__()
        self.stem, self.stages, self.pools = stem, nn.ModuleList(stages), pools
        self.head, self.every_stage = head, every_stage

    def forward(self, images: Tensor) -> Tensor:
        """(M, 3, H, W) -> (M, d)."""
        x = self.stem(images.contiguous(memory_format=torch.channels_last))
        pooled = []
        for i, (stage, pool) in enumerate(zip(self.stages, self.pools, strict=True)):
            x = stage(x)
            if self.every_stage or i == len(self.stages) - 1:
                pooled.append(pool(x))
        return self.head.embed(torch.cat(pooled, 1))


class _Folded(nn.Module):
    """Features and classifier as one network."""

    def __init__(self, network: nn.Module, classifier: Classifier) -> None:
        super().__init__()
        self.network, self.classifier = network, classifier

    def forward(self, images: Tensor) -> Tensor:
        """(M, 3, H, W) -> (M, C)."""
        return self.classifier(self.network(images))


def default_chunk(device: torch.device) -> int:
    """How many images are run at once: few enough for a processor's cache, many enough to keep a GPU busy."""
    return 32 if device.type == "cpu" else 256


def running_mean(earlier: Tensor, earlier_count: int, latest: Tensor, latest_count: int) -> Tensor:
    """The mean over everything seen so far, in double precision, so that thousands of updates do not drift."""
    share = latest_count / (latest_count + earlier_count)
    return earlier.double() + share * (latest.double() - earlier.double())
