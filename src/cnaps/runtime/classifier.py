"""`FewShotClassifier`: a task learned from a handful of images, as a scikit-learn estimator."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError

from cnaps.errors import CnapsError, InputError
from cnaps.images.finding import find_images
from cnaps.images.inputs import Images, as_images
from cnaps.runtime.engine import Engine, open_engine
from cnaps.runtime.export import export_onnx
from cnaps.runtime.hub import fetch, push
from cnaps.runtime.review import Judgement, judge
from cnaps.runtime.suggest import Suggestion, suggest
from cnaps.runtime.task import Examples, FittedTask, Name, check_enough, choose_size
from cnaps.runtime.taskfile import read_task, write_task
from cnaps.weights import DEFAULT_MODEL


class FewShotClassifier(ClassifierMixin, BaseEstimator):
    """Learns to tell classes of images apart from a few examples each, in one pass and without training.

    Images are paths, Pillow images, arrays (H, W) or (H, W, 3) with uint8 pixels or floats of 0..1, tensors
    (3, H, W), in any mixture, or one array (N, H, W[, 3]) or tensor (N, 3, H, W). Labels are strings or integers.

    Parameters
    ----------
    model:
        The name of a model that comes with the package (see `cnaps.list_models`), a folder, or a `CNAPs`; or a
        pre-trained network on this machine, used frozen: `transformers:FOLDER`, `timm:NAME`.
    image_size:
        The side in pixels at which images are read: `auto` decides by the examples (small drawings need no 224);
        what it chose is `image_size_`. Larger shows more and takes longer.
    flip:
        Learn from the mirror image of each example too: sensible where left and right do not matter.
    updates:
        How `partial_fit` treats what was learned: `freeze` FiLM or `recompute` it; see `FittedTask.update`.
    device:
        `auto`, `cpu`, `cuda`, ...; a `CNAPs` given as `model` stays where it is.
    skip_unreadable:
        Go on without images that cannot be read, with a warning for each: examples are left out, and images to
        classify have None as their class and NaN as their probabilities.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> digits = load_digits()
    >>> images = digits.images / 16  # (1797, 8, 8), values of 0..1
    >>> classifier = FewShotClassifier().fit(images[:50], digits.target[:50])
    >>> classifier.predict_proba(images[50:53]).shape
    (3, 10)
    """

    def __init__(
        self,
        model: Any = DEFAULT_MODEL,
        *,
        image_size: int | str = "auto",
        flip: bool = False,
        updates: str = "freeze",
        device: str = "auto",
        skip_unreadable: bool = False,
    ) -> None:
        self.model = model
        self.image_size = image_size
        self.flip = flip
        self.updates = updates
        self.device = device
        self.skip_unreadable = skip_unreadable

    def fit(self, X: Images, y: Sequence[Any] | np.ndarray) -> FewShotClassifier:
        """Learn from examples, and forget everything learned before."""
        engine = open_engine(self.model, self.device)
        examples = self._examples(X, y, engine)
        check_enough(examples.names)
        self.task_ = FittedTask.learn(engine, examples, flip=self.flip)
        self.examples_ = [examples]  # for `review`
        return self

    def partial_fit(self, X: Images, y: Sequence[Any] | np.ndarray) -> FewShotClassifier:
        """Learn from more examples, of known classes or new ones; earlier images are not needed.

        A first call may hold one class only; predictions are possible as soon as there are two.
        """
        if not hasattr(self, "task_"):
            engine = open_engine(self.model, self.device)
            examples = self._examples(X, y, engine)
            self.task_ = FittedTask.learn(engine, examples, flip=self.flip)
        else:
            examples = self._examples(X, y, self.task_.engine, self.task_.image_size)
            self.task_ = self.task_.update(examples, mode=self.updates, flip=self.flip)
        self.examples_ = [*getattr(self, "examples_", []), examples]
        return self

    def forget(self, classes: Sequence[Name]) -> FewShotClassifier:
        """Remove classes."""
        self.task_ = self._fitted().forget(np.asarray(classes).tolist())
        self.examples_ = [some.of(self.task_.names) for some in self.examples_]
        return self

    @property
    def classes_(self) -> np.ndarray:
        """The classes, sorted: the order of the columns of `predict_proba`."""
        return np.array(self._fitted().names)

    @property
    def image_size_(self) -> int:
        """The side in pixels at which images are read."""
        return self._fitted().image_size

    def predict_proba(self, X: Images) -> np.ndarray:
        """The probability of each class for each image (N, C)."""
        return self._answers(X, lambda _, probabilities: probabilities, (len(self._fitted().names),))

    def predict(self, X: Images, reject_below: float | None = None) -> np.ndarray:
        """The most probable class of each image (N,); None where its probability is below `reject_below`."""
        probabilities = self.predict_proba(X)
        names = self.classes_[probabilities.argmax(1)]
        unread = np.isnan(probabilities).any(1)
        if reject_below is not None or unread.any():
            names = names.astype(object)
            names[unread | (probabilities.max(1) < (reject_below or 0))] = None
        return names

    def novelty(self, X: Images) -> np.ndarray:
        """How unlike all classes each image is (N,), for "none of these": 0 is the middle of a class.

        Sort by it, or cut at `novelty_threshold_`.
        """
        return self._answers(X, lambda features, _: self._fitted().novelty(features), ())

    @property
    def novelty_threshold_(self) -> float | None:
        """The novelty beyond which an image is none of the classes: one in twenty examples is as unlike its own.

        None where it is not known: with too few examples, or after learning on from a task file.
        """
        task = self._fitted()
        given = [name for some in self.examples_ for name in some.names]
        if task.threshold is None and set(given) == set(task.names):
            features = task.features(np.concatenate([some.pixels for some in self.examples_]))
            level = task.none_level(features, np.unique(given, return_inverse=True)[1])
            self.task_ = task.with_classes(task.names, task.statistics, task.seen, level)
        return self.task_.threshold

    def suggest(
        self, pool: Images | str | os.PathLike[str], n: int = 20, strategy: str = "diverse", *, seed: int = 0
    ) -> list[Suggestion]:
        """The `n` images of a pool, or of a folder, whose labels would help most, best first.

        `diverse` looks for doubtful images unlike each other; `entropy`, `margin` and `variation-ratio` rank by
        doubt alone; `random` is for comparison. Any number of images streams by; a broken one is warned of.
        """
        if isinstance(pool, str | os.PathLike):
            pool = find_images([os.fspath(pool)])

        return suggest(self._fitted(), pool, n, strategy, seed=seed, on_error=self._skip)

    def review(self) -> list[Judgement]:
        """All examples by how badly their label fits what the others say, the worst first.

        Each is judged as if it had been left out, in closed form; FiLM stays as all examples made it. Needs the
        examples, which live as long as this object: a task file does not hold them.
        """
        task = self._fitted()
        if not self.examples_:
            raise InputError("there are no examples to review: a task file does not hold them; fit again")
        given = [name for some in self.examples_ for name in some.names]
        check_enough(given)
        names, labels = np.unique(given, return_inverse=True)
        features = task.features(np.concatenate([some.pixels for some in self.examples_]))
        return judge(task.left_out(features, labels), labels, names.tolist())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a task file: what was learned, without the examples, bound to the model by its fingerprint."""
        _ = self.novelty_threshold_  # known from now on, and written too
        write_task(path, self._fitted())

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: Any = None) -> FewShotClassifier:
        """Read a task file; `model` is needed where the task's model does not come with the package."""
        task = read_task(path, model)
        classifier = cls(model if model is not None else task.engine.name)
        classifier.task_, classifier.examples_ = task, []
        return classifier

    def push_to_hub(self, repository: str, *, public: bool = False, token: str | None = None) -> str:
        """Upload what was learned as a task file to `OWNER/NAME` on the hub, with a card; its address."""
        with tempfile.TemporaryDirectory(prefix="cnaps-") as scratch:
            path = os.path.join(scratch, f"{repository.rpartition('/')[2]}.task")
            self.save(path)
            return push(path, repository, public=public, token=token)

    @classmethod
    def from_pretrained(
        cls, source: str | os.PathLike[str], model: Any = None, *, token: str | None = None
    ) -> FewShotClassifier:
        """From a repository of the hub or a folder: with a task file fitted, with a model ready to fit."""
        found = fetch(source, token=token)
        return cls.load(found, model) if found.is_file() else cls(str(found))

    def export_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write an ONNX file that needs nothing of this package; see `cnaps.runtime.export` for its use."""
        export_onnx(self._fitted(), path)

    def _examples(
        self, images: Images, labels: Sequence[Any] | np.ndarray, engine: Engine, size: int | None = None
    ) -> Examples:
        given = as_images(images)
        sources: Any = given if hasattr(given, "__getitem__") else list(given)
        size = size or choose_size(engine, sources, self.image_size)
        examples = Examples.read(sources, labels, size, self._skip if self.skip_unreadable else None)
        lost = {str(label) for label in labels} - {str(name) for name in examples.names}
        if examples.names and lost:
            raise InputError(f"no image of the class {min(lost)!r} can be read: add some, or leave the class out")
        if not examples.names:
            raise InputError("there are no examples: give some labelled images of at least two classes")
        for concern in examples.concerns():
            warnings.warn(concern, stacklevel=3)
        return examples

    def _answers(self, images: Images, of: Callable[[Any, Any], np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
        """`of(features, probabilities)` (N, *shape) of all images, in order; NaN where one cannot be read."""
        where: list[int] = []
        parts = [np.empty((0, *shape))]
        unread: list[int] = []

        def on_error(index: int, error: CnapsError) -> None:
            unread.append(index)
            self._skip(index, error)

        skip = on_error if self.skip_unreadable else None
        for indices, features, probabilities in self._fitted().embed(images, skip):
            where += indices
            parts.append(of(features, probabilities))
        answers = np.full((len(where) + len(unread), *shape), np.nan)
        answers[where] = np.concatenate(parts)
        return answers

    def _skip(self, index: int, error: CnapsError) -> None:
        warnings.warn(f"image {index} is left out: {error}", stacklevel=4)

    def _fitted(self) -> FittedTask:
        if not hasattr(self, "task_"):
            raise NotFittedError("this FewShotClassifier has learned nothing yet: call fit(images, labels) first")
        return self.task_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        tags.input_tags.string = True
        return tags
