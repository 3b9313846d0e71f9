"""`FewShotClassifier`: a task learned from a handful of images, as a scikit-learn estimator."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError

from cnaps.errors import CnapsError, InputError
from cnaps.images.finding import find_images
from cnaps.images.inputs import Images
from cnaps.nn.checkpoints import DEFAULT_MODEL
from cnaps.runtime.recogniser import Examples, ModelSource, Name, Recogniser, check_enough, open_model
from cnaps.runtime.review import Judgement, judge, leave_one_out
from cnaps.runtime.suggest import Suggestion, suggest


class FewShotClassifier(ClassifierMixin, BaseEstimator):
    """Learns to tell classes of images apart from a few examples each, in one pass and without training.

    Images are paths, Pillow images, arrays (H, W) or (H, W, 3) with uint8 pixels or floats of 0..1, tensors
    (3, H, W), in any mixture, or one array (N, H, W[, 3]) or tensor (N, 3, H, W). Labels are strings or integers.

    Parameters
    ----------
    model:
        The name of a model that comes with the package (see `cnaps.list_models`), a folder, or a `CNAPs`.
    flip:
        Learn from the mirror image of each example too: sensible where left and right do not matter.
    updates:
        How `partial_fit` treats what was learned: `fixed` or `paper`; see `Adapted.update`.
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

    def __init__(
        self,
        model: ModelSource = DEFAULT_MODEL,
        *,
        flip: bool = False,
        updates: str = "fixed",
        device: str = "auto",
    ) -> None:
        self.model = model
        self.flip = flip
        self.updates = updates
        self.device = device

    def fit(self, X: Images, y: Sequence[Any]) -> FewShotClassifier:
        """Learn from examples, and forget everything learned before."""
        network, source = open_model(self.model, self.device)
        examples = self._examples(X, y, network.image_size)
        check_enough(examples.names)
        self.recogniser_ = Recogniser.learn(network, examples, flip=self.flip, source=source)
        self.examples_ = [examples]  # for `review`
        return self

    def partial_fit(self, X: Images, y: Sequence[Any]) -> FewShotClassifier:
        """Learn from more examples, of known classes or new ones; earlier images are not needed.

        A first call may hold one class only; predictions are possible as soon as there are two.
        """
        if not hasattr(self, "recogniser_"):
            network, source = open_model(self.model, self.device)
            examples = self._examples(X, y, network.image_size)
            self.recogniser_ = Recogniser.learn(network, examples, flip=self.flip, source=source)
        else:
            examples = self._examples(X, y, self.recogniser_.image_size)
            self.recogniser_ = self.recogniser_.update(examples, mode=self.updates, flip=self.flip)
        self.examples_ = [*getattr(self, "examples_", []), examples]
        return self

    def forget(self, classes: Sequence[Name]) -> FewShotClassifier:
        """Remove classes."""
        self.recogniser_ = self._fitted().forget(np.asarray(classes).tolist())
        self.examples_ = [some.of(self.recogniser_.names) for some in self.examples_]
        return self

    @property
    def classes_(self) -> np.ndarray:
        """The classes, sorted: the order of the columns of `predict_proba`."""
        return np.array(self._fitted().names)

    def predict_proba(self, X: Images) -> np.ndarray:
        """The probability of each class for each image (N, C)."""
        recogniser = self._fitted()
        batches = [probabilities for _, probabilities in recogniser.predict(X)]
        return np.concatenate(batches) if batches else np.empty((0, len(recogniser.names)))

    def predict(self, X: Images, reject_below: float | None = None) -> np.ndarray:
        """The most probable class of each image (N,); None where its probability is below `reject_below`."""
        probabilities = self.predict_proba(X)
        names = self.classes_[probabilities.argmax(1)]
        if reject_below is not None:
            names = names.astype(object)
            names[probabilities.max(1) < reject_below] = None
        return names

    def novelty(self, X: Images) -> np.ndarray:
        """How unlike all classes each image is (N,), for "none of these": 0 is the middle of a class.

        Sort or cut by it; where to cut depends on the task, so look at images of your own first.
        """
        recogniser = self._fitted()
        batches = [recogniser.novelty(features) for _, features, _ in recogniser.embed(X)]
        return np.concatenate(batches) if batches else np.empty(0)

    def suggest(
        self, pool: Images | str | os.PathLike[str], n: int = 20, strategy: str = "diverse", *, seed: int = 0
    ) -> list[Suggestion]:
        """The `n` images of a pool, or of a folder, whose labels would help most, best first.

        `diverse` looks for doubtful images unlike each other; `entropy`, `margin` and `variation-ratio` rank by
        doubt alone; `random` is for comparison. Any number of images streams by; a broken one is warned of.
        """
        if isinstance(pool, str | os.PathLike):
            pool = find_images([os.fspath(pool)])

        def on_error(index: int, error: CnapsError) -> None:
            warnings.warn(f"image {index} is left out: {error}", stacklevel=4)

        return suggest(self._fitted(), pool, n, strategy, seed=seed, on_error=on_error)

    def review(self) -> list[Judgement]:
        """All examples by how badly their label fits what the others say, the worst first.

        Each is judged as if it had been left out, in closed form; FiLM stays as all examples made it. Needs the
        examples, which live as long as this object: a task file does not hold them.
        """
        recogniser = self._fitted()
        if not self.examples_:
            raise InputError("there are no examples to review: a task file does not hold them; fit again")
        given = [name for some in self.examples_ for name in some.names]
        check_enough(given)
        names, labels = np.unique(given, return_inverse=True)
        features = recogniser.features(torch.cat([some.pixels for some in self.examples_]))
        head, places = recogniser.adapted.model.head, torch.from_numpy(labels)
        fit = leave_one_out(head, features, places, recogniser.temperature)
        return judge(fit, labels, names.tolist())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a task file: what was learned, without the examples, bound to the model by its fingerprint."""
        self._fitted().save(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: ModelSource | None = None) -> FewShotClassifier:
        """Read a task file; `model` is needed where the task's model does not come with the package."""
        recogniser = Recogniser.load(path, model)
        classifier = cls(model if model is not None else recogniser.source)
        classifier.recogniser_, classifier.examples_ = recogniser, []
        return classifier

    def export_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write an ONNX file that needs nothing of this package; see `Recogniser.export_onnx` for its use."""
        self._fitted().export_onnx(path)

    def _examples(self, images: Images, labels: Sequence[Any], size: int) -> Examples:
        examples = Examples.read(images, labels, size)
        if not examples.names:
            raise InputError("there are no examples: give some labelled images of at least two classes")
        for concern in examples.concerns():
            warnings.warn(concern, stacklevel=3)
        return examples

    def _fitted(self) -> Recogniser:
        if not hasattr(self, "recogniser_"):
            raise NotFittedError("this FewShotClassifier has learned nothing yet: call fit(images, labels) first")
        return self.recogniser_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        tags.input_tags.string = True
        return tags
