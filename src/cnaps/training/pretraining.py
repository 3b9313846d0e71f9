"""Pre-training of theta: full-way classification with SGD, as the paper does on ILSVRC-2012."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from cnaps.data.collection import Collection
from cnaps.files import atomic_folder, write_json
from cnaps.nn.backbones import create_backbone
from cnaps.training.augment import augment_images
from cnaps.training.checkpoint import optimiser_tensors, restore_optimiser
from cnaps.training.config import PretrainConfig
from cnaps.training.distributed import World
from cnaps.training.engine import NonFiniteError
from cnaps.training.tasks import open_collections, task_generator

Batch = tuple[Tensor, Tensor]  # uint8 images (N, 3, S, S) and classes (N,)


class PretrainingJob:
    """Classifies all classes of all collections at once; every batch is a function of (seed, step)."""

    def __init__(self, config: PretrainConfig, world: World) -> None:
        self.config, self.world = config, world
        self._images = ImageSet(config)
        torch.manual_seed(config.seed)
        self.backbone = create_backbone(config.backbone)
        if config.init:
            from cnaps.training.start import load_backbone

            load_backbone(self.backbone, config.init)
        self.size = config.image_size or self.backbone.image_size
        head = nn.Linear(self.backbone.feature_size, self._images.classes)
        self.network = nn.Sequential(self.backbone, head).to(world.device)
        self._parameters = list(self.network.parameters())
        self._optimiser = torch.optim.SGD(
            self._parameters, config.learning_rate, momentum=config.momentum, weight_decay=config.weight_decay
        )
        self._epoch_steps = math.ceil(len(self._images.train) / config.batch)
        self.steps = config.epochs * self._epoch_steps
        self.validate_every = config.validate_every * self._epoch_steps
        self._batches: Iterator[Batch] | None = None
        self._order = lru_cache(maxsize=2)(self._shuffled)  # this epoch's, and the next one's for reading ahead

    @property
    def fingerprints(self) -> dict[str, str]:
        """The data that the run depends on."""
        return {c.name: c.fingerprint for c in self._images.collections}

    def step(self, step: int, stopping: Callable[[], bool]) -> dict[str, Any] | None:
        """One batch, shared out over the ranks; each rank normalises by the statistics of its own part."""
        config, device = self.config, self.world.device
        if self._batches is None:
            self._batches = prefetch(lambda s: self._read(self._rows(s)), range(step, self.steps), config.prefetch)
        size = len(self._rows_of_all(step))
        images, labels = next(self._batches)
        self.network.train()
        for p in self._parameters:
            p.grad = None
        sums = torch.zeros(3)  # loss, correct, stop
        if stopping():
            sums[2] = 1
        elif len(labels):
            generator = task_generator(config.seed, step * self.world.size + self.world.rank)
            images = augment_images(
                images.to(device),
                crop=config.crop,
                jitter=config.jitter,
                flip=config.flip,
                generator=generator,
            )
            logits = self.network(self.backbone.normalisation(images))
            labels = labels.to(device)
            loss = F.cross_entropy(logits, labels, reduction="sum") / size
            sums[0], sums[1] = loss.item(), (logits.argmax(1) == labels).sum().item()
            loss.backward()
        loss_value, correct, stop = self.world.sum(sums.to(device)).tolist()
        if stop > 0:
            self.close()
            return None
        if not math.isfinite(loss_value):
            raise NonFiniteError(
                f"the loss of step {step} (epoch {step // self._epoch_steps}) is {loss_value}; a smaller "
                "learning_rate may help. The state before this step is saved"
            )
        self.world.sum_gradients(self._parameters)
        rate = config.learning_rate * config.drop ** (step // self._epoch_steps // config.drop_every)
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        self._optimiser.step()
        self.world.average_(b for b in self.network.buffers() if b.is_floating_point())
        epoch = (step + 1) / self._epoch_steps
        known = {"count": size, "epoch": round(epoch, 4), "learning_rate": rate}
        return {"loss": loss_value, "accuracy": correct / size, **known}

    def validate(self, stopping: Callable[[], bool]) -> dict[str, float] | None:
        """Top-1 accuracy on the held-out images."""
        self.network.eval()
        held_out = self._images.held_out
        parts = [held_out[i : i + self.config.batch] for i in range(0, len(held_out), self.config.batch)]
        sums = torch.zeros(2, dtype=torch.float32)
        own = self.world.share(range(len(parts)))
        with torch.no_grad():
            for images, labels in prefetch(lambda i: self._read(parts[i]), own, self.config.prefetch):
                logits = self.network(self.backbone.normalisation(images.to(self.world.device)))
                sums[0] += (logits.argmax(1).cpu() == labels).sum()
                if stopping():
                    sums[1] = 1
                    break
        correct, stop = self.world.sum(sums.to(self.world.device)).tolist()
        return None if stop > 0 else {"top-1": correct / len(held_out)}

    def tensors(self) -> dict[str, Tensor]:
        """Weights and optimiser state."""
        weights = {f"network.{name}": value for name, value in self.network.state_dict().items()}
        return {**weights, **optimiser_tensors(self._optimiser)}

    def restore(self, tensors: dict[str, Tensor], step: int) -> None:
        """Put them back."""
        prefix = "network."
        weights = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        self.network.load_state_dict(weights)
        restore_optimiser(self._optimiser, tensors)

    def save_model(self, folder: Path) -> None:
        """Write theta alone: the classifier of the training classes is of no further use."""
        weights = {name: t.detach().cpu().contiguous() for name, t in self.backbone.state_dict().items()}
        with atomic_folder(folder) as temporary:
            save_file(weights, temporary / "backbone.safetensors")
            write_json(temporary / "backbone.json", {"backbone": self.config.backbone, "image_size": self.size})

    def close(self) -> None:
        """Stop the reading thread."""
        if self._batches is not None:
            self._batches.close()  # type: ignore[attr-defined]
            self._batches = None

    def _rows_of_all(self, step: int) -> np.ndarray:
        """The rows of a step's batch: a piece of the epoch's own order, all pieces about as large."""
        epoch, position = divmod(step, self._epoch_steps)
        order = self._order(epoch)
        start, stop = (len(order) * p // self._epoch_steps for p in (position, position + 1))
        return order[start:stop]

    def _shuffled(self, epoch: int) -> np.ndarray:
        return np.random.default_rng((self.config.seed, epoch, 3)).permutation(self._images.train)

    def _rows(self, step: int) -> np.ndarray:
        return self._rows_of_all(step)[self.world.rank :: self.world.size]

    def _read(self, rows: np.ndarray) -> Batch:
        return self._images.read(rows, self.size)


class ImageSet:
    """The images of several collections in one numbering, classes counted through, a part held out."""

    def __init__(self, config: PretrainConfig) -> None:
        sets = open_collections(config.data, "train")
        self.collections: list[Collection] = [c for c, _ in sets]
        self._starts = np.cumsum([0, *(len(c) for c in self.collections)])
        train: list[np.ndarray] = []
        held_out: list[np.ndarray] = []
        self._labels = np.full(self._starts[-1], -1)
        self.classes = 0
        for start, (collection, split) in zip(self._starts, sets, strict=False):
            chosen = range(len(collection.classes)) if split is None else collection.splits.get(split, [])
            for index in chosen:
                rows = start + np.array(collection.rows(index))
                self._labels[rows] = self.classes
                order = np.random.default_rng((config.seed, self.classes, 4)).permutation(rows)
                kept_back = max(1, round(config.held_out * len(rows))) if len(rows) > 1 else 0
                held_out.append(np.sort(order[:kept_back]))
                train.append(np.sort(order[kept_back:]))
                self.classes += 1
        from cnaps.training.config import check

        check(self.classes >= 2, f"there are {self.classes} classes in {', '.join(config.data)}: 2 are needed")
        self.train, self.held_out = np.concatenate(train), np.concatenate(held_out)

    def read(self, rows: np.ndarray, size: int) -> Batch:
        """Images and labels of rows, in their order."""
        images = torch.empty(len(rows), 3, size, size, dtype=torch.uint8)
        of = np.searchsorted(self._starts, rows, side="right") - 1
        for number in np.unique(of):
            mine = np.flatnonzero(of == number)
            local = (rows[mine] - self._starts[number]).tolist()
            images[torch.from_numpy(mine)] = self.collections[number].read(local, size)
        return images, torch.from_numpy(self._labels[rows])


def prefetch(read: Callable[[int], Batch], items: Any, depth: int) -> Iterator[Batch]:
    """``read(item)`` for each item in order, done in a thread up to ``depth`` items ahead."""
    waiting: deque[Future[Batch]] = deque()
    pool = ThreadPoolExecutor(1, thread_name_prefix="images")
    try:
        for item in items:
            waiting.append(pool.submit(read, item))
            if len(waiting) > depth:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
