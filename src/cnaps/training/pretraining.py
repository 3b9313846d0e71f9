"""Pre-training of theta: full-way classification with SGD, as the paper does on ILSVRC-2012."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from cnaps.data.collection import Collection
from cnaps.data.wordnet import is_wordnet_id
from cnaps.files import atomic_folder, write_json
from cnaps.nn.backbones import create_backbone
from cnaps.nn.checkpoints import load_backbone
from cnaps.parallel import read_ahead
from cnaps.training.augment import augment_images
from cnaps.training.config import Augmentation, PretrainConfig, check
from cnaps.training.distributed import World
from cnaps.training.engine import Job, NonFiniteError, Stopping
from cnaps.training.tasks import open_collections, task_generator

Batch = tuple[Tensor, Tensor]  # uint8 images (N, 3, S, S) and classes (N,)


class PretrainingJob(Job):
    """Classifies all classes of all collections at once; every batch is a function of (seed, step)."""

    prefix = "network."
    rule = "mean"

    def __init__(self, config: PretrainConfig, world: World) -> None:
        self._images = ImageSet(config)
        torch.manual_seed(config.seed)
        self.backbone = create_backbone(config.backbone)
        if config.init:
            load_backbone(self.backbone, config.init)
        self.size = config.image_size or self.backbone.image_size
        head = nn.Linear(self.backbone.feature_size, self._images.classes)
        network = nn.Sequential(self.backbone, head).to(world.device)
        parameters = list(network.parameters())
        optimiser = torch.optim.SGD(
            parameters, config.learning_rate, momentum=config.momentum, weight_decay=config.weight_decay
        )
        super().__init__(config, world, network, parameters, optimiser)
        self._epoch_steps = math.ceil(len(self._images.train) / config.batch)
        self.steps = config.epochs * self._epoch_steps
        self.validate_every = config.validate_every * self._epoch_steps
        self._order = lru_cache(maxsize=2)(self._shuffled)  # this epoch's, and the next one's for reading ahead
        self.fingerprints = {c.name: c.fingerprint for c in self._images.collections}

    def step(self, step: int, stopping: Stopping) -> dict[str, Any] | None:
        """One batch, shared out over the ranks; each rank normalises by the statistics of its own part."""
        config, device = self.config, self.world.device
        if self._loader is None:
            self._loader = self._read(self._rows(s) for s in range(step, self.steps))
        size = len(self._rows_of_all(step))
        images, labels = next(self._loader)
        self.network.train()
        self._clear_gradients()
        sums = torch.zeros(3)  # loss, correct, stop
        if stopping():
            sums[2] = 1
        elif len(labels):
            generator = task_generator(config.seed, step * self.world.size + self.world.rank)
            changes = Augmentation(image_crop=config.crop, image_jitter=config.jitter, image_flip=config.flip)
            images = augment_images(images.to(device), changes, generator)
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
        self._update(rate)
        self.world.average_(b for b in self.network.buffers() if b.is_floating_point())
        epoch = round((step + 1) / self._epoch_steps, 4)
        known = {"count": size, "epoch": epoch, "learning_rate": rate}
        return {"loss": loss_value, "accuracy": correct / size, **known}

    def validate(self, stopping: Stopping) -> dict[str, float] | None:
        """Top-1 accuracy on the held-out images."""
        self.network.eval()
        held_out, batch = self._images.held_out, self.config.batch
        sums = torch.zeros(2)  # correct, stop
        own = self.world.share(range(0, len(held_out), batch))
        with torch.no_grad():
            for images, labels in self._read(held_out[start : start + batch] for start in own):
                logits = self.network(self.backbone.normalisation(images.to(self.world.device)))
                sums[0] += (logits.argmax(1).cpu() == labels).sum()
                if stopping():
                    sums[1] = 1
                    break
        correct, stop = self.world.sum(sums.to(self.world.device)).tolist()
        return None if stop > 0 else {"top-1": correct / len(held_out)}

    def save_model(self, folder: Path) -> None:
        """Write theta alone: the classifier of the training classes is of no further use."""
        weights = {name: t.detach().cpu().contiguous() for name, t in self.backbone.state_dict().items()}
        with atomic_folder(folder, ("backbone.safetensors", "backbone.json")) as temporary:
            save_file(weights, temporary / "backbone.safetensors")
            write_json(temporary / "backbone.json", {"backbone": self.config.backbone, "image_size": self.size})

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

    def _read(self, batches: Iterable[np.ndarray]) -> Iterator[Batch]:
        return read_ahead(
            lambda rows: self._images.read(rows, self.size), batches, threads=1, depth=self.config.prefetch
        )


class ImageSet:
    """The images of several collections in one numbering, classes counted through, a part held out.

    A class of ImageNet, named by its WordNet id, is one class in whatever collections it occurs.
    """

    def __init__(self, config: PretrainConfig) -> None:
        sets = open_collections(config.data, "train")
        self.collections: list[Collection] = [c for c, _ in sets]
        self._starts = np.cumsum([0, *(len(c) for c in self.collections)])
        train: list[np.ndarray] = []
        held_out: list[np.ndarray] = []
        self._labels = np.full(self._starts[-1], -1)
        known: dict[str, int] = {}
        for start, (collection, split) in zip(self._starts, sets, strict=False):
            for index in collection.indices_of(split):
                rows = start + np.array(collection.rows(index))
                name = collection.classes[index]
                label = known.setdefault(name if is_wordnet_id(name) else f"{collection.name}/{name}", len(known))
                self._labels[rows] = label
                order = np.random.default_rng((config.seed, len(train), 4)).permutation(rows)
                kept_back = max(1, round(config.held_out * len(rows))) if len(rows) > 1 else 0
                held_out.append(np.sort(order[:kept_back]))
                train.append(np.sort(order[kept_back:]))
        self.classes = len(known)
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
