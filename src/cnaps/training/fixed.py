"""Training of a head alone: nothing changes the network, so the features of an image are computed once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from cnaps.data.collection import Collection
from cnaps.episodes import Sampler, Task, TaskDescription
from cnaps.episodes.task import flat_rows
from cnaps.errors import InputError
from cnaps.maths.statistics import ClassStatistics
from cnaps.nn.frozen import FrozenFeatures
from cnaps.nn.model import CNAPs
from cnaps.nn.task_model import TaskModel
from cnaps.training.config import Augmentation, TrainConfig
from cnaps.training.distributed import World
from cnaps.training.engine import Job
from cnaps.training.episodic import EpisodicJob
from cnaps.training.tasks import TaskStream


class FixedNetworkJob(EpisodicJob):
    """As `EpisodicJob`, on features instead of images: thousands of tasks a minute on a CPU."""

    def __init__(self, model: CNAPs, config: TrainConfig, world: World) -> None:
        super().__init__(model, config, world)
        self._head = model.head
        self._features = _features_of(model, self.size)

    def _learn(self, task: Task, count: int) -> tuple[float, float]:
        options, labels = self.config.loss, task.target_labels.to(self.world.device)
        logits = self._logits(task)
        loss = F.cross_entropy(logits / options.temperature, labels, reduction=options.reduction)
        value = float(loss.detach())
        if math.isfinite(value):
            (loss / count).backward()
        return value, (logits.argmax(1) == labels).float().mean().item()

    def _score(self, task: Task) -> float:
        return (self._logits(task).argmax(1).cpu() == task.target_labels).float().mean().item()

    def _logits(self, task: Task) -> Tensor:
        """Of the targets (M, C)."""
        device = self.world.device
        context = self._head.embed(task.context_images.to(device))
        labels, ways = task.context_labels.to(device), len(task.class_names)
        statistics = ClassStatistics.of(context, labels, ways, scatter=self._head.needs_scatter)
        return self._head.classifier(statistics)(self._head.embed(task.target_images.to(device)))

    def _load(
        self,
        tasks: Sampler | TaskStream,
        collections: Mapping[str, Collection],
        indices: Iterable[int],
        size: Callable[[TaskDescription], int] | None = None,
    ) -> Iterator[Task]:
        """Tasks whose images are features (N, d); nobody asks where these come from."""
        for index in indices:
            described = tasks.describe(index) if isinstance(tasks, Sampler) else tasks[index]
            collection = collections[described.collection]
            context, context_labels = flat_rows(described.context)
            targets, target_labels = flat_rows(described.targets)
            rows = [*context.tolist(), *targets.tolist()]
            features, n = self._features.of(collection, rows), len(context)
            yield Task(
                context_images=features[:n],
                context_labels=torch.from_numpy(context_labels),
                target_images=features[n:],
                target_labels=torch.from_numpy(target_labels),
                class_names=[collection.classes[each] for each in described.classes],
                collection=collection.name,
                index=index,
                context_keys=[],
                target_keys=[],
            )


def make_job(model: TaskModel, config: TrainConfig, world: World) -> Job:
    """The training of a model by its settings: on features if `memory.features` says so."""
    if not config.memory.features:
        return EpisodicJob(model, config, world)
    changes = {
        "theta.mode = frozen": config.theta.mode == "frozen",
        "a model of the learner cnaps-no-film": isinstance(model, CNAPs) and model.adaptation is None,
        "no LoRA terms": model.lora is None,
        "no augmentation": config.augmentation == Augmentation(),
        "images of one size": not config.data.sizes,
        "no distillation": not config.distillation.weight,
    }
    missing = [what for what, there in changes.items() if not there]
    if missing or not isinstance(model, CNAPs):
        raise InputError(f"memory.features needs features that never change: {', '.join(missing)}")
    return FixedNetworkJob(model, config, world)


class _Features:
    """Features by collection and row, computed when they are first asked for."""

    def __init__(self, model: CNAPs, size: int) -> None:
        self._network = FrozenFeatures(model.backbone, every_stage=model.every_stage)
        self._size, self._device = size, model.device
        self._known: dict[str, dict[int, Tensor]] = {}

    def of(self, collection: Collection, rows: list[int]) -> Tensor:
        """(N, d)."""
        known = self._known.setdefault(collection.fingerprint, {})
        new = [row for row in dict.fromkeys(rows) if row not in known]
        if new:
            found = self._network.raw(collection.read(new, self._size).to(self._device))
            known.update(zip(new, found, strict=True))
        return torch.stack([known[row] for row in rows])


_LATEST: dict[tuple[str, int, bool, str], _Features] = {}


def _features_of(model: CNAPs, size: int) -> _Features:
    """Those of the training before, if it had the same backbone and size: heads are often trained one by one."""
    key = model.backbone.digest(), size, model.every_stage, str(model.device)
    if key not in _LATEST:
        _LATEST.clear()
        _LATEST[key] = _Features(model, size)
    return _LATEST[key]
