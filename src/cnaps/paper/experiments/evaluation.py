"""Several learners on the same tasks: `cnaps evaluate`.

Frozen features are computed once an image and serve every task of a data set; only methods that change the
backbone run it again.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from cnaps.data.collection import Collection, class_fingerprint
from cnaps.episodes import Limits, Sampler, TaskDescription, read_manifest
from cnaps.episodes.task import flat_rows
from cnaps.errors import CnapsError, DataError
from cnaps.maths.calibration import temperature
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
from cnaps.paper.learners import (
    FEATURES,
    FeatureLearner,
    FrozenFeatures,
    Learner,
    Predictor,
    create_learner,
    find_learner,
)
from cnaps.paper.learners.base import ImageFeatures
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
    def draw(
        cls,
        collections: Iterable[Collection],
        split: str | None,
        count: int,
        *,
        most: tuple[int, int] | None = None,
        **options: Any,
    ) -> TaskSet:
        """`count` tasks of each collection, at `most` so many ways and context images; `options` as `Sampler`."""
        if most is not None:
            ways = min(most)
            options["limits"] = Limits(min_ways=min(5, ways), max_ways=ways, max_context=most[1])
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

    def __init__(self, frozen: ImageFeatures, count: int, file: Path | None = None) -> None:
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


@dataclass
class Evaluation:
    """Scores learners on tasks; what the book holds is not done again.

    `features` is a folder to keep the frozen features of these images at this size in.
    """

    learners: Mapping[str, Learner]
    frozen: ImageFeatures
    book: ScoreBook
    size: int  # of images
    world: World | None = None
    temperatures: Mapping[str, Calibration] = field(default_factory=dict)
    features: Path | None = None

    def run(self, task_set: TaskSet) -> Scores:
        """Every learner on every task; gives all scores of the book."""
        world, done = self.world, self.book.read()
        if world is not None:
            world.wait()  # nobody writes before everybody has read
        with progress_bar(visible=world is None or world.is_main) as bar:
            for name, described in task_set.tasks.items():
                runner = _Runner(self, task_set.collections[name], done)
                mine = [each for each in described if runner.due(each)]
                if world is not None:
                    mine = [mine[i] for i in world.share(range(len(mine)))]
                row = bar.add_task(name, total=len(mine), note="")
                for task in runner.run(mine):
                    self.book.append(task)
                    bar.update(row, advance=1, note="  ".join(f"{s.learner} {s.accuracy:.3f}" for s in task))
        if world is not None:
            world.wait()
        return Scores.of(self.book.read().values())


class _Runner:
    """The tasks of one collection."""

    def __init__(
        self, about: Evaluation, collection: Collection, done: Mapping[tuple[str, str, int], Score]
    ) -> None:
        self.learners, self.size, self.temperatures = about.learners, about.size, about.temperatures
        self.collection, self.done = collection, done
        file = about.features / f"{collection.name}-{collection.fingerprint[:16]}" if about.features else None
        self.store = FeatureStore(about.frozen, len(collection), file)

    def run(self, tasks: Sequence[TaskDescription]) -> Iterator[list[Score]]:
        """The new scores, task by task."""
        for described, images in zip(tasks, read_ahead(self._read, tasks, threads=1, depth=2), strict=True):
            yield [self._score(name, described, images) for name in self.due(described)]

    def due(self, described: TaskDescription) -> list[str]:
        """Who has not done a task yet."""
        return [n for n in self.learners if (n, self.collection.name, described.index) not in self.done]

    def _read(self, described: TaskDescription) -> dict[int, Tensor]:
        """The images that the task needs: all, or only those whose features are not known."""
        rows = np.concatenate([flat_rows(described.context)[0], flat_rows(described.targets)[0]])
        if all(isinstance(self.learners[name], FeatureLearner) for name in self.due(described)):
            rows = self.store.missing(rows)
        return dict(zip(rows.tolist(), self.collection.read(rows.tolist(), size=self.size), strict=True))

    def _score(self, name: str, described: TaskDescription, images: Mapping[int, Tensor]) -> Score:
        learner = self.learners[name]
        context, labels = flat_rows(described.context)
        targets, target_labels = flat_rows(described.targets)
        learn: Callable[[Tensor, Tensor], Predictor] = learner.adapt
        if isinstance(learner, FeatureLearner):
            learn = learner.fit
            given, asked = (learner.frozen.narrow(self.store.get(rows, images)) for rows in (context, targets))
        else:
            given, asked = (torch.stack([images[row] for row in rows.tolist()]) for rows in (context, targets))
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
            identities[label] = f"backbone {own.backbone.digest()}, {features} features"
    return methods, identities


@dataclass(frozen=True)
class Study:
    """What an experiment is about: methods around a model, the classes of some data sets, a folder of results."""

    model: TaskModel
    learners: Mapping[str, Learner]
    identities: Mapping[str, str]
    collections: Sequence[Collection]
    split: str | None
    out: Path
    size: int  # of images

    @classmethod
    def open(
        cls,
        model: str,
        chosen: Iterable[str],
        collections: Sequence[Collection],
        split: str | None,
        out: Path,
        size: int | None = None,
    ) -> Study:
        """Load the model and the methods; images have the model's own size, unless another is given."""
        base = load_task_model(model)
        return cls(base, *load_learners(chosen, base), collections, split, out, size or base.image_size)

    @cached_property
    def frozen(self) -> FrozenFeatures:
        """Features that methods without adaptation share."""
        return FrozenFeatures(self.model.backbone, every_stage=True)

    def agree(self, part: str, **protocol: Any) -> dict[str, Any]:
        """The setup of all runs in the folder: refused where this one differs from earlier ones."""
        setup = {
            part: {"split": self.split, "image size": self.size, **protocol},
            "data set": {each.name: each.fingerprint for each in self.collections},
            "learner": dict(self.identities),
        }
        return ScoreBook(self.out).agree(setup, write=True)

    def score(self, label: Callable[[str], str], task_set: TaskSet) -> Scores:
        """Every learner, under a label of its name, on the tasks; gives all scores in the folder."""
        named = {label(name): learner for name, learner in self.learners.items()}
        return Evaluation(named, self.frozen, ScoreBook(self.out), self.size).run(task_set)


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
    frozen = FrozenFeatures(base.backbone, every_stage=True)
    kept = Path(features) / f"{base.backbone.digest()}-{side}" if features else None
    scores = Evaluation(methods, frozen, book, side, world, temperatures, kept).run(task_set)
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
