"""Several learners on the same tasks: `cnaps evaluate`.

Frozen features are computed once an image and serve every task of a data set; only methods that change the
backbone run it again.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from cnaps.data.collection import Collection
from cnaps.episodes import Sampler, TaskDescription, read_manifest
from cnaps.episodes.task import flat_rows
from cnaps.errors import DataError
from cnaps.images.sizes import auto_size
from cnaps.nn.backbones import Backbone
from cnaps.nn.checkpoints import load_model
from cnaps.nn.fused import bfloat16
from cnaps.nn.model import CNAPs
from cnaps.paper.experiments.scores import Score, ScoreBook, Scores, measure
from cnaps.paper.learners import FeatureLearner, FrozenFeatures, Learner, create_learner, find_learner
from cnaps.parallel import read_ahead
from cnaps.progress import progress_bar

if TYPE_CHECKING:
    from cnaps.training.distributed import World


@dataclass
class TaskSet:
    """The tasks of each data set, and where they come from."""

    collections: dict[str, Collection]
    tasks: dict[str, list[TaskDescription]]
    protocol: dict[str, Any]

    @classmethod
    def draw(cls, collections: Iterable[Collection], split: str | None, count: int, **options: Any) -> TaskSet:
        """`count` tasks of each collection; `options` are the sampler's."""
        found = {collection.name: collection for collection in collections}
        samplers = {name: Sampler([each], split, **options) for name, each in found.items()}
        tasks = {name: [sampler.describe(i) for i in range(count)] for name, sampler in samplers.items()}
        return cls(found, tasks, next(iter(samplers.values())).protocol)

    @classmethod
    def from_manifest(cls, path: str | Path, collections: Iterable[Collection], count: int | None) -> TaskSet:
        """The tasks of a manifest, at most `count` of each collection."""
        found = {collection.name: collection for collection in collections}
        tasks: dict[str, list[TaskDescription]] = {}
        for described in read_manifest(path, found):
            tasks.setdefault(described.collection, []).append(described)
        for name, some in tasks.items():
            if len({described.index for described in some}) < len(some):
                raise DataError(f"{path}: two tasks of {name} have the same index")
        digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]
        return cls(found, {name: some[:count] for name, some in tasks.items()}, {"manifest": digest})


class FeatureStore:
    """Frozen features of a collection's images, filled in as tasks ask for them."""

    def __init__(self, frozen: FrozenFeatures, count: int) -> None:
        self._frozen = frozen
        self._values = np.zeros((count, frozen.size), np.float32)  # takes memory only where it is written
        self._known = np.zeros(count, bool)

    def missing(self, rows: np.ndarray) -> np.ndarray:
        """Which of the rows are not known yet."""
        return rows[~self._known[rows]]

    def get(self, rows: np.ndarray, images: Mapping[int, Tensor]) -> Tensor:
        """Features (N, d); those not known are computed from the images of their rows."""
        new = np.unique(self.missing(rows))
        if len(new):
            self._values[new] = self._frozen(torch.stack([images[row] for row in new.tolist()])).numpy()
            self._known[new] = True
        return torch.from_numpy(self._values[rows])


def evaluate(
    learners: Mapping[str, Learner],
    frozen: FrozenFeatures,
    task_set: TaskSet,
    book: ScoreBook,
    *,
    size: int | None,
    world: World | None = None,
) -> Scores:
    """Score every learner on every task that is not in the book yet; gives all scores of the book.

    Without a `size`, each task's examples say at which size its images are read.
    """
    done = book.read()
    if world is not None:
        world.wait()  # nobody writes before everybody has read
    visible = None if world is None or world.is_main else False
    with progress_bar(visible=visible) as bar:
        for name, described in task_set.tasks.items():
            todo = [each for each in described if any((who, name, each.index) not in done for who in learners)]
            mine = [todo[i] for i in (world.share(range(len(todo))) if world else range(len(todo)))]
            row = bar.add_task(name, total=len(mine), note="")
            for task in _Runner(learners, frozen, task_set.collections[name], size, done).run(mine):
                book.append(task)
                bar.update(row, advance=1, note="  ".join(f"{s.learner} {s.accuracy:.3f}" for s in task))
    if world is not None:
        world.wait()
    return Scores.of(book.read().values())


class _Runner:
    """The tasks of one collection."""

    def __init__(
        self,
        learners: Mapping[str, Learner],
        frozen: FrozenFeatures,
        collection: Collection,
        size: int | None,
        done: Mapping[tuple[str, str, int], Score],
    ) -> None:
        self.learners, self.collection, self.size, self.done = learners, collection, size, done
        self.frozen = frozen
        self.stores: dict[tuple[int, bool], FeatureStore] = {}  # by the size of images, and whether of every stage

    def run(self, tasks: Sequence[TaskDescription]) -> Iterator[list[Score]]:
        """The new scores, task by task."""
        for described, images in zip(tasks, read_ahead(self._read, tasks, threads=1, depth=2), strict=True):
            yield [self._score(name, described, images) for name in self._due(described)]

    def _due(self, described: TaskDescription) -> list[str]:
        return [n for n in self.learners if (n, self.collection.name, described.index) not in self.done]

    def _side(self, learner: Learner, described: TaskDescription) -> int:
        own = learner.frozen.image_size if isinstance(learner, FeatureLearner) else None
        return own or self.size or auto_size(self.collection.looks(flat_rows(described.context)[0].tolist()))

    def _store(self, learner: FeatureLearner, side: int) -> FeatureStore:
        """That of the learner's features, which learners with the same ones share."""
        frozen = learner.frozen if learner.frozen.image_size else self.frozen
        return self.stores.setdefault((side, frozen.every_stage), FeatureStore(frozen, len(self.collection)))

    def _read(self, described: TaskDescription) -> dict[int, dict[int, Tensor]]:
        """By size, the images that the task needs: all, or only those whose features are not known."""
        every = np.concatenate([flat_rows(described.context)[0], flat_rows(described.targets)[0]])
        wanted: dict[int, set[int]] = {}
        for name in self._due(described):
            learner = self.learners[name]
            side = self._side(learner, described)
            rows = self._store(learner, side).missing(every) if isinstance(learner, FeatureLearner) else every
            wanted.setdefault(side, set()).update(rows.tolist())
        return {
            side: dict(zip(sorted(rows), self.collection.read(sorted(rows), size=side), strict=True))
            for side, rows in wanted.items()
        }

    def _score(self, name: str, described: TaskDescription, images: Mapping[int, Mapping[int, Tensor]]) -> Score:
        learner = self.learners[name]
        context, labels = flat_rows(described.context)
        targets, target_labels = flat_rows(described.targets)
        side = self._side(learner, described)
        if isinstance(learner, FeatureLearner):
            learn, get = learner.fit, self._store(learner, side).get
        else:
            learn, get = learner.adapt, _stack
        given, asked = (get(rows, images[side]) for rows in (context, targets))
        began = time.perf_counter()
        logits = learn(given, torch.from_numpy(labels))(asked)
        seconds = round(time.perf_counter() - began, 4)
        result = measure(logits.float().cpu(), torch.from_numpy(target_labels))
        where = (name, self.collection.name, described.index, described.ways, len(context))
        return Score(*where, **result, seconds=seconds)


def load_learners(chosen: Iterable[str], base: CNAPs) -> tuple[dict[str, Learner], dict[str, str]]:
    """Methods by label, and a fingerprint of what each was made from."""
    methods: dict[str, Learner] = {}
    identities: dict[str, str] = {}
    for entry in chosen:
        label, _, folder = entry.partition("=")
        method = label.partition("@")[0]
        own = load_model(folder) if folder else base
        methods[label] = create_learner(method, own)
        trained = find_learner(method).trained
        identities[label] = own.fingerprint() if trained else f"backbone {_fingerprint(own.backbone)}"
    return methods, identities


def compare(
    model: str,
    chosen: Iterable[str],
    task_set: TaskSet,
    out: str | Path,
    *,
    size: int | str | None = None,
    precision: str = "float32",
) -> dict[str, Any] | None:
    """Evaluate `name`, `name=FOLDER` or `name@variant=FOLDER` entries, by all processes; the first has the result.

    Methods without a model of their own use `model`, and all share its backbone. The result, setup and scores, is
    plain data for `comparison_report`. A `size` of "auto" is chosen for each task by its examples; `precision` is
    that of convolutions, float32 or bfloat16.
    """
    base = load_model(model)
    side = size or base.image_size
    with nullcontext() if precision == "float32" else bfloat16():
        methods, identities = load_learners(chosen, base)
        frozen = FrozenFeatures(base.backbone)
    world = join_world()
    main = world is None or world.is_main
    book = ScoreBook(out, world.rank if world else 0)
    setup = {
        "tasks": {**task_set.protocol, "image size": side, "precision": precision},
        "data set": {name: task_set.collections[name].fingerprint for name in task_set.tasks},
        "learner": identities,
    }
    merged = book.agree(setup, write=main)
    with nullcontext() if precision == "float32" else bfloat16():
        own = None if side == "auto" else int(side)
        scores = evaluate(methods, frozen, task_set, book, size=own, world=world)
    if world is not None:
        world.close()
    return {"setup": merged, "scores": scores.to_json()} if main else None


def _fingerprint(backbone: Backbone) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(backbone.state_dict().items()):
        digest.update(name.encode() + value.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def join_world() -> World | None:
    """The processes of this run, if there are several."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return None
    from cnaps.training.distributed import World

    return World(device="cpu")


def task_arrays(collection: Collection, described: TaskDescription, size: int) -> tuple[Tensor, Tensor]:
    """The context of a task: pixels and labels."""
    rows, labels = flat_rows(described.context)
    return collection.read(rows.tolist(), size=size), torch.from_numpy(labels)


def _stack(rows: np.ndarray, images: Mapping[int, Tensor]) -> Tensor:
    return torch.stack([images[row] for row in rows.tolist()])
