"""`FewShotClassifier`: a task learned from a handful of images, as a scikit-learn estimator."""

from __future__ import annotations

import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.exceptions import NotFittedError

from cnaps.errors import CnapsError, InputError
from cnaps.images.inputs import Images, as_images, stream
from cnaps.images.sources import columns_of, image_column, labelled_images, plain_images
from cnaps.runtime.engine import Engine, open_engine
from cnaps.runtime.examples import Examples, Name, check_enough, check_names, choose_size
from cnaps.runtime.export import export_onnx
from cnaps.runtime.hub import fetch, push
from cnaps.runtime.novelty import NONE
from cnaps.runtime.review import Judgement, review
from cnaps.runtime.suggest import Suggestion, suggest
from cnaps.runtime.task import FittedTask
from cnaps.runtime.taskfile import read_task, write_task
from cnaps.weights import DEFAULT_MODEL

_SECONDS = 2.0  # between two lines of `verbose`


class FewShotClassifier(ClassifierMixin, TransformerMixin, BaseEstimator):
    """Learns to tell classes of images apart from a few examples each, in one pass and without training.

    Images are paths, Pillow images, encoded bytes, arrays (H, W) or (H, W, 3) with uint8 pixels or floats of 0..1,
    tensors (3, H, W), in any mixture; one array (N, H, W[, 3]) or tensor (N, 3, H, W); a series, a table of one
    column, or a column of Hugging Face's `datasets`. Labels are strings, integers, or False and True. Without
    labels `fit` takes a folder or a zip with a sub-folder for each class, a torch data set or a loader; of a
    table, labels may be given by the name of their column.

    Parameters
    ----------
    model:
        The name of a model that comes with the package (see `cnaps.list_models`), a folder, or a `CNAPs`; or a
        pre-trained network on this machine, used frozen: `transformers:FOLDER`, `timm:NAME`.
    backbone:
        Such a network in place of `model`.
    image_size:
        The side in pixels at which images are read: `auto` decides by the examples (small drawings need no 224);
        what it chose is `image_size_`. Larger shows more and takes longer.
    flip:
        Learn from the mirror image of each example too: sensible where left and right do not matter.
    class_weight:
        How much classes count, by name: the odds of a class of weight 2 are doubled. None and `balanced` are the
        same: every class counts alike, however many examples it has.
    updates:
        How `partial_fit` treats what was learned: `freeze` FiLM or `recompute` it; see `FittedTask.update`.
    keep_examples:
        Keep the images that were learned from, as `examples_`, for `review`. They make pickles large.
    column:
        Which column of a table holds the images, where it has several.
    on_error:
        `raise` the error of an image that cannot be read, or `skip` it with a warning: examples are left out, and
        images to classify have None as their class and NaN as their probabilities.
    verbose:
        Say on standard error how many images have been looked at.
    device:
        `auto`, `cpu`, `cuda`, ...; a `CNAPs` given as `model` stays where it is.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> digits = load_digits()
    >>> images = digits.images / 16  # (1797, 8, 8), values of 0..1
    >>> classifier = FewShotClassifier().fit(images[:50], digits.target[:50])
    >>> classifier.predict_proba(images[50:53]).shape
    (3, 10)
    """

    task_: FittedTask
    examples_: list[Examples]

    def __init__(
        self,
        model: Any = DEFAULT_MODEL,
        *,
        backbone: str | None = None,
        image_size: int | str = "auto",
        flip: bool = False,
        class_weight: Mapping[Any, float] | str | None = None,
        updates: str = "freeze",
        keep_examples: bool = False,
        column: str | None = None,
        on_error: str = "raise",
        verbose: bool = False,
        device: str = "auto",
    ) -> None:
        self.model = model
        self.backbone = backbone
        self.image_size = image_size
        self.flip = flip
        self.class_weight = class_weight
        self.updates = updates
        self.keep_examples = keep_examples
        self.column = column
        self.on_error = on_error
        self.verbose = verbose
        self.device = device

    def fit(
        self, X: Any, y: Any = None, sample_weight: Sequence[float] | np.ndarray | None = None
    ) -> FewShotClassifier:
        """Learn from examples, and forget everything learned before.

        An example of weight 2 counts in the statistics of its class as one that was seen twice, and one of weight
        0 not at all; FiLM reads every other example once.
        """
        engine = self._engine()
        examples = self._examples(X, y, sample_weight, engine)
        check_enough(examples.names)
        task = FittedTask.learn(engine, examples, flip=self.flip)
        self._learned(task, [examples], X, y)
        return self

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        classes: Sequence[Any] | None = None,
        sample_weight: Sequence[float] | np.ndarray | None = None,
    ) -> FewShotClassifier:
        """Learn from more examples, of known classes or new ones; earlier images are not needed.

        A first call may hold one class only; predictions are possible as soon as there are two. `classes` is there
        for scikit-learn's sake: new ones need not be announced.
        """
        if not hasattr(self, "task_"):
            engine = self._engine()
            examples = self._examples(X, y, sample_weight, engine)
            task = FittedTask.learn(engine, examples, flip=self.flip)
        else:
            examples = self._examples(X, y, sample_weight, self.task_.engine, self.task_.image_size)
            task = self.task_.update(examples, mode=self.updates, flip=self.flip)
        self._learned(task, [*getattr(self, "examples_", []), examples], X, y)
        return self

    def forget(self, classes: Sequence[Name]) -> FewShotClassifier:
        """Remove classes."""
        self.task_ = self._fitted().forget(np.asarray(classes).tolist())
        if hasattr(self, "examples_"):
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
        task = self._fitted()
        return self._answers(X, task.probabilities, (len(task.names),))

    def decision_function(self, X: Images) -> np.ndarray:
        """Logarithms of probabilities (N, C), up to a number for each image; of two classes the log-odds of the
        second (N,)."""
        task = self._fitted()
        logits = self._answers(X, task.logits, (len(task.names),))
        return logits[:, 1] - logits[:, 0] if len(task.names) == 2 else logits

    def predict(
        self, X: Images, none_of_these: bool | float = False, reject_below: float | None = None
    ) -> np.ndarray:
        """The most probable class of each image (N,).

        Images unlike all classes are "none of these" where that is asked for: `True` takes the level beyond which
        one in twenty images of the classes would be (`novelty_threshold_`), a number another share, such as 0.01.
        Where the class found is less probable than `reject_below`, the answer is None.
        """
        task = self._fitted()
        level = None
        if none_of_these:
            level = task.none_beyond() if none_of_these is True else task.none_beyond(float(none_of_these))

        def both(features: np.ndarray) -> np.ndarray:
            return np.column_stack([task.probabilities(features), task.novelty(features)])

        found = self._answers(X, both, (len(task.names) + 1,))
        probabilities, novelty = found[:, :-1], found[:, -1]
        names = self.classes_[probabilities.argmax(1)]
        unread = np.isnan(novelty)
        if level is not None or reject_below is not None or unread.any():
            names = names.astype(object)
            names[unread | (probabilities.max(1) < (reject_below or 0))] = None
            if level is not None:
                names[novelty > level] = NONE
        return names

    def predict_set(self, X: Images, coverage: float = 0.9) -> np.ndarray:
        """Which classes each image may be (N, C): sets that hold the true class as often as `coverage` says.

        Conformal prediction with the examples, each left out in turn, in place of a calibration set, on average
        over classes. A class whose examples are too few to say is in every set; the most probable class always is.
        """
        task = self._fitted()
        levels = task.set_levels(coverage)

        def members(features: np.ndarray) -> np.ndarray:
            found = task.probabilities(features)
            return (found >= levels) | (found == found.max(1, initial=0, keepdims=True))

        return self._answers(X, members, (len(task.names),))

    def transform(self, X: Images) -> np.ndarray:
        """Adapted features (N, d): what the network sees of each image, with the FiLM of this task."""
        task = self._fitted()
        return self._answers(X, lambda features: features, (task.statistics.means.shape[1],))

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """The names of the columns of `transform`: fewshotclassifier0, fewshotclassifier1, ..."""
        name = type(self).__name__.lower()
        return np.array([f"{name}{i}" for i in range(self._fitted().statistics.means.shape[1])], dtype=object)

    def novelty(self, X: Images) -> np.ndarray:
        """How unlike all classes each image is (N,), for "none of these": 0 is the middle of a class.

        Sort by it, or cut at `novelty_threshold_`.
        """
        return self._answers(X, self._fitted().novelty, ())

    @property
    def novelty_threshold_(self) -> float | None:
        """The novelty beyond which an image is none of the classes: one in twenty examples is as unlike its own.

        None where it is not known: with too few examples, or after learning on from a task file.
        """
        return self._fitted().threshold

    def suggest(
        self, pool: Images | str | os.PathLike[str], n: int = 20, strategy: str = "diverse", *, seed: int = 0
    ) -> list[Suggestion]:
        """The `n` images of a pool, or of a folder, whose labels would help most, best first.

        `diverse` looks for uncertain images unlike each other; `entropy`, `margin` and `variation-ratio` rank by
        uncertainty alone; `random` is for comparison. Any number of images streams by; a broken one is warned of.
        """
        return suggest(self._fitted(), self._images(pool), n, strategy, seed=seed, on_error=self._skip)

    def review(self, X: Any = None, y: Any = None) -> list[Judgement]:
        """All examples by how badly their label fits what the others say, the worst first.

        Each is judged as if it had been left out, in closed form; FiLM stays as all examples made it. Needs the
        examples: with `keep_examples=True` they are there, else give them again.
        """
        task = self._fitted()
        kept: list[Examples] = getattr(self, "examples_", [])
        if X is not None:
            kept = [self._examples(X, y, None, task.engine, task.image_size)]
        if not kept:
            raise InputError(
                "there are no examples to review: they are kept by FewShotClassifier(keep_examples=True) only, "
                "and never in a task file; give them again: review(images, labels)"
            )
        given = [name for some in kept for name in some.names]
        check_enough(given)
        return review(task, np.concatenate([some.pixels for some in kept]), given)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a task file: what was learned, without the examples, bound to the model by its fingerprint."""
        write_task(path, self._fitted())

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: Any = None) -> FewShotClassifier:
        """Read a task file; `model` is needed where the task's model does not come with the package."""
        task = read_task(path, model)
        classifier = cls(model if model is not None else task.engine.name)
        classifier.task_ = task
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

    def _engine(self) -> Engine:
        if self.backbone is not None and self.model != DEFAULT_MODEL:
            raise InputError("give a model or a backbone, not both: a model has its own")
        return open_engine(self.backbone or self.model, self.device)

    def _learned(self, task: FittedTask, examples: list[Examples], X: Any, y: Any) -> None:
        weights = self.class_weight
        if isinstance(weights, Mapping):
            weights = {check_names([name])[0]: weight for name, weight in weights.items()}
            task = task.weighed({name: weight for name, weight in weights.items() if name in task.names})
        elif weights not in (None, "balanced"):
            raise InputError(
                f"class_weight is a table such as {{'robin': 2}}, 'balanced' or None, not {weights!r}"
            )
        self.task_ = task
        if self.keep_examples:
            self.examples_ = examples
        else:
            self.__dict__.pop("examples_", None)
        if columns_of(X) is not None:
            self.column_ = image_column(X, self.column, y if isinstance(y, str) else None)

    def _images(self, X: Any) -> Any:
        """Images as `stream` takes them; of a table those of the column that was learned from, if it is there."""
        names = columns_of(X)
        learned = getattr(self, "column_", None)
        return plain_images(X, learned if self.column is None and names and learned in names else self.column)

    def _examples(self, X: Any, y: Any, weights: Any, engine: Engine, size: int | None = None) -> Examples:
        images, labels = labelled_images(X, y, self.column)
        given = as_images(images)
        sources: Any = given if hasattr(given, "__getitem__") else list(given)
        size = size or choose_size(engine, sources, self.image_size)
        examples = Examples.read(sources, labels, size, self._on_error(), weights)
        lost = {str(name) for name in check_names(labels)} - {str(name) for name in examples.names}
        if examples.names and lost and weights is None:
            raise InputError(f"no image of the class {min(lost)!r} can be read: add some, or leave the class out")
        if not examples.names:
            raise InputError("there are no examples: give some labelled images of at least two classes")
        for concern in examples.concerns():
            warnings.warn(concern, stacklevel=3)
        return examples

    def _answers(self, X: Any, of: Callable[[np.ndarray], np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
        """`of(features)` (N, *shape) of all images, in order; NaN where one cannot be read."""
        task, images = self._fitted(), self._images(X)
        where: list[int] = []
        parts = [of(np.empty((0, task.statistics.means.shape[1]), np.float32))]
        unread: list[int] = []
        total, said = f" of {len(images)}" if isinstance(images, Sized) else "", 0.0
        for indices, pixels in stream(images, task.image_size, on_error=self._on_error(unread)):
            where += indices
            parts.append(of(task.features(pixels)))
            if self.verbose and time.monotonic() - said > _SECONDS:
                print(f"[FewShotClassifier] {indices[-1] + 1}{total} images", file=sys.stderr, flush=True)
                said = time.monotonic()
        found = np.concatenate(parts)
        unknown: Any = False if found.dtype == bool else np.nan
        answers = np.full((len(where) + len(unread), *shape), unknown, found.dtype)
        answers[where] = found
        return answers

    def _on_error(self, unread: list[int] | None = None) -> Callable[[int, CnapsError], None] | None:
        if self.on_error not in ("raise", "skip"):
            raise InputError(f"on_error is 'raise' or 'skip', not {self.on_error!r}")

        def skip(index: int, error: CnapsError) -> None:
            if unread is not None:
                unread.append(index)
            self._skip(index, error)

        return skip if self.on_error == "skip" else None

    def _skip(self, index: int, error: CnapsError) -> None:
        warnings.warn(f"image {index} is left out: {error}", stacklevel=5)

    def _fitted(self) -> FittedTask:
        if not hasattr(self, "task_"):
            raise NotFittedError("this FewShotClassifier has learned nothing yet: call fit(images, labels) first")
        return self.task_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.no_validation = True  # images have no number of features
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        tags.input_tags.string = True
        return tags
