"""Several learners on the same tasks: `cnaps evaluate`.

Frozen features are computed once an image and serve every task of a data set; only methods that change the
backbone run it again.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from cnaps.data.collection import Collection, class_fingerprint
from cnaps.episodes import Sampler, TaskDescription, read_manifest
from cnaps.episodes.task import flat_rows
from cnaps.errors import CnapsError, DataError
from cnaps.maths.calibration import temperature
from cnaps.nn.backbones import Backbone
from cnaps.nn.checkpoints import load_task_model
from cnaps.nn.task_model import TaskModel
from cnaps.paper.experiments.scores import (
    Calibration,
    Score,
    ScoreBook,
    Scores,
    fit_calibration,
    measure,
    without_seed,
)
from cnaps.paper.learners import FEATURES, FeatureLearner, FrozenFeatures, Learner, create_learner, find_learner
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


def seen_in_training(model: TaskModel, task_set: TaskSet, title: str) -> list[str]:
    """What to know of the tasks' classes before their accuracy is believed, a sentence each."""
    noted = model.notes.get("trained_on")
    if noted is None:
        return [f"what {title} was trained on is not noted: classes of these tasks may have been among it"]
    fingerprints = {about.get("classes") for about in noted.values()}
    found = []
    for name, tasks in task_set.tasks.items():
        collection = task_set.collections[name]
        used = {collection.classes[index] for task in tasks for index in task.classes}
        trained: set[str] = set()
        for split in (*collection.splits, "all"):
            members = collection.classes_of(split)
            about = noted.get(name, {})  # early models noted the name of the split alone
            early = "classes" not in about and about.get("split") == split
            if early or class_fingerprint(members) in fingerprints:
                trained.update(members)
        if both := used & trained:
            many = f"{len(both)} of the {len(used)} classes of {name}"
            found.append(f"{title} was trained on {many} in these tasks: this is no few-shot accuracy")
        elif name in noted and not trained:
            found.append(f"{title} was trained on {name}, but on which of its classes is not known here")
    return found


class FeatureStore:
    """Frozen features of every stage of a collection's images, filled in as tasks ask for them.

    With a `file` they are kept there, for further runs, and several processes may fill it at once.
    """

    def __init__(self, frozen: FrozenFeatures, count: int, file: Path | None = None) -> None:
        self._frozen = frozen
        # The last number of a row, written after the others, says that it is known. A table takes room, in memory
        # or on disk, only where it is written.
        shape = (count, frozen.size + 1)
        self._values = np.zeros(shape, np.float32) if file is None else _map_file(file, shape)

    def missing(self, rows: np.ndarray) -> np.ndarray:
        """Which of the rows are not known yet."""
        return rows[self._values[rows, -1] == 0]

    def get(self, rows: np.ndarray, images: Mapping[int, Tensor]) -> Tensor:
        """Features (N, d); those not known are computed from the images of their rows."""
        new = np.unique(self.missing(rows))
        if len(new):
            self._values[new, :-1] = self._frozen(torch.stack([images[row] for row in new.tolist()])).numpy()
            self._values[new, -1] = 1
        return torch.from_numpy(self._values[rows, :-1])


def _map_file(file: Path, shape: tuple[int, int]) -> np.ndarray:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file, "ab") as opened:
            opened.truncate(4 * shape[0] * shape[1])
        return np.memmap(file, np.float32, "r+", shape=shape)
    except OSError as error:
        raise CnapsError(f"cannot keep features in {file}: {error.strerror or error}") from error


def evaluate(
    learners: Mapping[str, Learner],
    frozen: FrozenFeatures,
    task_set: TaskSet,
    book: ScoreBook,
    *,
    size: int,
    world: World | None = None,
    temperatures: Mapping[str, Calibration] | None = None,
    features: Path | None = None,
) -> Scores:
    """Score every learner on every task that is not in the book yet; gives all scores of the book.

    `features` is a folder to keep the frozen features of these images at this size in.
    """
    done = book.read()
    if world is not None:
        world.wait()  # nobody writes before everybody has read
    with progress_bar(visible=world is None or world.is_main) as bar:
        for name, described in task_set.tasks.items():
            todo = [each for each in described if any((who, name, each.index) not in done for who in learners)]
            mine = [todo[i] for i in (world.share(range(len(todo))) if world else range(len(todo)))]
            row = bar.add_task(name, total=len(mine), note="")
            collection = task_set.collections[name]
            file = features / f"{name}-{collection.fingerprint[:16]}" if features else None
            store = FeatureStore(frozen, len(collection), file)
            runner = _Runner(learners, store, collection, size, done, temperatures or {})
            for task in runner.run(mine):
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
        store: FeatureStore,
        collection: Collection,
        size: int,
        done: Mapping[tuple[str, str, int], Score],
        temperatures: Mapping[str, Calibration],
    ) -> None:
        self.store, self.temperatures = store, temperatures
        self.learners, self.collection, self.size, self.done = learners, collection, size, done

    def run(self, tasks: Sequence[TaskDescription]) -> Iterator[list[Score]]:
        """The new scores, task by task."""
        for described, images in zip(tasks, read_ahead(self._read, tasks, threads=1, depth=2), strict=True):
            yield [self._score(name, described, images) for name in self._due(described)]

    def _due(self, described: TaskDescription) -> list[str]:
        return [n for n in self.learners if (n, self.collection.name, described.index) not in self.done]

    def _read(self, described: TaskDescription) -> dict[int, Tensor]:
        """The images that the task needs: all, or only those whose features are not known."""
        rows = np.concatenate([flat_rows(described.context)[0], flat_rows(described.targets)[0]])
        if all(isinstance(self.learners[name], FeatureLearner) for name in self._due(described)):
            rows = self.store.missing(rows)
        return dict(zip(rows.tolist(), self.collection.read(rows.tolist(), size=self.size), strict=True))

    def _score(self, name: str, described: TaskDescription, images: Mapping[int, Tensor]) -> Score:
        learner = self.learners[name]
        context, labels = flat_rows(described.context)
        targets, target_labels = flat_rows(described.targets)
        frozen = isinstance(learner, FeatureLearner)
        learn = learner.fit if isinstance(learner, FeatureLearner) else learner.adapt
        given, asked = ((self.store.get if frozen else _stack)(rows, images) for rows in (context, targets))
        if isinstance(learner, FeatureLearner):
            given, asked = learner.frozen.narrow(given), learner.frozen.narrow(asked)
        began = time.perf_counter()
        logits = learn(given, torch.from_numpy(labels))(asked)
        seconds = round(time.perf_counter() - began, 4)
        if name in self.temperatures:
            notes, ways = {"calibration": self.temperatures[name]}, described.ways
            logits = logits / temperature(notes, ways, len(context) / ways)
        result = measure(logits.float().cpu(), torch.from_numpy(target_labels))
        where = (name, self.collection.name, described.index, described.ways, len(context))
        return Score(*where, **result, seconds=seconds)


def load_learners(chosen: Iterable[str], base: TaskModel) -> tuple[dict[str, Learner], dict[str, str]]:
    """Methods by label, and a fingerprint of what each was made from.

    Of a method without training, `name@last` and `name@all` say which features it reads; else as `base` has them.
    `name#1` is a model of another training seed: reports join those of one name.
    """
    methods: dict[str, Learner] = {}
    identities: dict[str, str] = {}
    for entry in chosen:
        label, _, folder = entry.partition("=")
        method, _, variant = without_seed(label).partition("@")
        own = load_task_model(folder) if folder else base
        features = variant if variant in FEATURES else own.config.features
        methods[label] = create_learner(method, own, features)
        identities[label] = own.fingerprint()
        if not find_learner(method).trained:
            identities[label] = f"backbone {fingerprint(own.backbone)}, {features} features"
    return methods, identities


def compare(
    model: str,
    chosen: Iterable[str],
    task_set: TaskSet,
    out: str | Path,
    *,
    size: int | None = None,
    calibration: str | Path | None = None,
    features: str | Path | None = None,
) -> dict[str, Any] | None:
    """Evaluate `name`, `name=FOLDER` or `name@variant=FOLDER` entries, by all processes; the first has the result.

    Methods without a model of their own use `model`, and all share its backbone. With `calibration`, a folder of
    results of the same methods on validation tasks, every method gets a temperature from them in the same way.
    Frozen features are kept in the folder `features`, if one is given. The result, setup and scores, is plain data
    for `comparison_report`.
    """
    base = load_task_model(model)
    side = size or base.image_size
    methods, identities = load_learners(chosen, base)
    world = join_world()
    main = world is None or world.is_main
    book = ScoreBook(out, world.rank if world else 0)
    setup = {
        "tasks": {**task_set.protocol, "image size": side},
        "data set": {name: task_set.collections[name].fingerprint for name in task_set.tasks},
        "learner": identities,
    }
    temperatures = _temperatures(calibration, identities) if calibration else {}
    if temperatures:
        setup["calibration"] = {label: list(abc) for label, abc in temperatures.items()}
    merged = book.agree(setup, write=main)
    scores = evaluate(
        methods,
        FrozenFeatures(base.backbone, every_stage=True),
        task_set,
        book,
        size=side,
        world=world,
        temperatures=temperatures,
        features=Path(features) / f"{fingerprint(base.backbone)}-{side}" if features else None,
    )
    if world is not None:
        world.close()
    return {"setup": merged, "scores": scores.to_json()} if main else None


def _temperatures(folder: str | Path, identities: Mapping[str, str]) -> dict[str, Calibration]:
    """For each learner the temperature under which its own validation tasks are most likely."""
    book = ScoreBook(folder)
    found, known = list(book.read().values()), book.setup.get("learner", {})
    for label, identity in identities.items():
        if known.get(label) != identity:
            raise DataError(
                f"{folder} has no results of {label} as it is now: evaluate it on validation tasks first"
            )
    done = [{score.key[1:] for score in found if score.learner == label} for label in identities]
    common = set.intersection(*done)  # the same tasks for all
    if not common:
        raise DataError(f"{folder} has no task that all of {', '.join(identities)} have done")
    temperatures = {}
    for label in identities:
        mine = [score for score in found if score.learner == label and score.key[1:] in common]
        a, b, c = fit_calibration(mine)
        temperatures[label] = (round(a, 4), round(b, 4), round(c, 4))
    return temperatures


def fingerprint(backbone: Backbone) -> str:
    """Of a backbone's weights."""
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
