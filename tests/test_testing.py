"""The checks for estimators of images: a good one passes all, and each check finds what it is there for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.exceptions import NotFittedError

from cnaps import CNAPs, FewShotClassifier, testing
from cnaps.testing import check_image_estimator, image_checks, parametrize_with_image_checks


class NearestMean(ClassifierMixin, TransformerMixin, BaseEstimator):
    """The nearest mean image: as small as an estimator of images can be, and a good one."""

    def __init__(self, power: float = 1.0, options: tuple[str, ...] = ()) -> None:
        self.power = power
        self.options = options

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> NearestMean:
        self.__dict__.pop("sums_", None)
        return self._learn(X, y, sample_weight, least=2)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> NearestMean:
        return self._learn(X, y, None, least=1)

    def _learn(self, X: Any, y: Any, weights: Any, least: int) -> NearestMean:
        if y is None or hasattr(X, "nnz"):
            raise ValueError("labels and dense images are needed")
        rows, labels = self._rows(X), np.asarray(y)
        if len(rows) != len(labels) or labels.dtype.kind == "f" or not np.isfinite(rows).all():
            raise ValueError("a label for each image, and images of numbers")
        weights = np.ones(len(rows)) if weights is None else np.asarray(weights, float)
        sums = dict(getattr(self, "sums_", {}))
        for row, label, weight in zip(rows, labels.tolist(), weights, strict=True):
            if weight:
                total, count = sums.get(label, (0, 0))
                sums[label] = total + weight * row, count + weight
        if len(sums) < least:
            raise ValueError("two classes are needed")
        self.sums_ = sums
        self.classes_ = np.array(sorted(sums))
        self.means_ = np.stack([sums[label][0] / sums[label][1] for label in sorted(sums)])
        return self

    def _rows(self, X: Any) -> np.ndarray:
        images = np.asarray(X)
        if images.size == 0:
            return np.zeros((0, 24 * 24 * 3))
        if images.ndim != 4:
            raise ValueError("images are (N, H, W, 3)")
        images = images / 255 if images.dtype.kind in "iu" else images
        return images.reshape(len(images), -1) ** self.power

    def transform(self, X: Any) -> np.ndarray:
        if not hasattr(self, "means_"):
            raise NotFittedError("fit first")
        return self._rows(X)

    def get_feature_names_out(self, input_features: Any = None) -> list[str]:
        return [f"pixel{i}" for i in range(self.means_.shape[1])]

    def _distances(self, X: Any) -> np.ndarray:
        return ((self.transform(X)[:, None] - self.means_) ** 2).sum(2)

    def decision_function(self, X: Any) -> np.ndarray:
        values = -self._distances(X)
        return values[:, 1] - values[:, 0] if len(self.classes_) == 2 else values

    def predict_proba(self, X: Any) -> np.ndarray:
        distances = self._distances(X)
        powers = np.exp(distances.min(1, initial=np.inf, keepdims=True) - distances)
        return powers / powers.sum(1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:
        return self.classes_[self.predict_proba(X).argmax(1)] if hasattr(self, "classes_") else self.transform(X)


class ParametersComputed(NearestMean):
    def __init__(self, power: float = 1.0, options: tuple[str, ...] = ()) -> None:
        super().__init__(power, options)
        self.cache: dict[str, Any] = {}


class FitReturnsNothing(NearestMean):
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> None:  # type: ignore[override]
        super().fit(X, y, sample_weight)


class FitTunesAParameter(NearestMean):
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> NearestMean:
        self.power = float(self.power) * 1.5 / 1.5 + 0.25
        return super().fit(X, y, sample_weight)


class ScalesInPlace(NearestMean):
    def _rows(self, X: Any) -> np.ndarray:
        rows = super()._rows(X)
        if isinstance(X, np.ndarray) and X.size:
            X[0, 0] = 0
        return rows


class FitCounts(NearestMean):
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> NearestMean:
        super().fit(X, y, sample_weight)
        self.fits_ = getattr(self, "fits_", 0) + 1
        self.means_ = self.means_ + 0.01 * self.fits_ * np.arange(self.means_.shape[1])
        return self


class FitNeverForgets(NearestMean):
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> NearestMean:
        return self._learn(X, y, sample_weight, least=2)


class PicklesWithoutItsMeans(NearestMean):
    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "means_": np.roll(self.__dict__.get("means_", np.zeros((1, 1))), 1, axis=0)}


class GuessesBeforeFit(NearestMean):
    def transform(self, X: Any) -> np.ndarray:
        return self._rows(X)

    def predict(self, X: Any) -> np.ndarray:
        return super().predict(X) if hasattr(self, "means_") else np.zeros(len(X))


class TakesFloatsForBytes(NearestMean):
    def _rows(self, X: Any) -> np.ndarray:
        images = np.asarray(X)
        return super()._rows(images / 255 if images.dtype.kind == "f" else images)


class NormalisesByTheBatch(NearestMean):
    def transform(self, X: Any) -> np.ndarray:
        rows = super().transform(X)
        return rows - rows.mean(0) if len(rows) else rows


class NeedsAnImage(NearestMean):
    def transform(self, X: Any) -> np.ndarray:
        rows = super().transform(X)
        return rows[[0, *range(1, len(rows))]]


class SharesOfAHundred(NearestMean):
    def predict_proba(self, X: Any) -> np.ndarray:
        return 100 * super().predict_proba(X)


class TwoColumnsForTwoClasses(NearestMean):
    def decision_function(self, X: Any) -> np.ndarray:
        return -self._distances(X)


class AnswersWithNumbers(NearestMean):
    def predict(self, X: Any) -> np.ndarray:
        found = super().predict(X)
        return np.searchsorted(self.classes_, found) if found.dtype.kind in "UO" else found


class TakesAnything(NearestMean):
    def _rows(self, X: Any) -> np.ndarray:
        return super()._rows(np.nan_to_num(np.asarray(X)))


class IgnoresWeights(NearestMean):
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> NearestMean:
        return super().fit(X, y)


class LearnsOnlyTheLast(NearestMean):
    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> NearestMean:
        self.__dict__.pop("sums_", None)
        return self._learn(X[:3], y[:3], None, least=1)


class NamesTooFew(NearestMean):
    def get_feature_names_out(self, input_features: Any = None) -> list[str]:
        return ["pixel0"]


BROKEN = {
    "parameters_are_kept_as_they_were_given": ParametersComputed,
    "fit_returns_the_estimator": FitReturnsNothing,
    "fit_changes_no_parameters": FitTunesAParameter,
    "nothing_given_is_changed": ScalesInPlace,
    "fitting_twice_gives_the_same": FitCounts,
    "fit_forgets_what_was_learned_before": FitNeverForgets,
    "a_pickle_answers_alike": PicklesWithoutItsMeans,
    "an_unfitted_one_says_so": GuessesBeforeFit,
    "the_same_pixels_in_any_form_are_the_same_image": TakesFloatsForBytes,
    "some_images_get_the_answers_they_get_among_all": NormalisesByTheBatch,
    "no_images_get_no_answers": NeedsAnImage,
    "probabilities_and_classes_fit_together": SharesOfAHundred,
    "decisions_have_the_order_of_the_predictions": TwoColumnsForTwoClasses,
    "labels_may_be_words_numbers_or_truth_values": AnswersWithNumbers,
    "what_makes_no_sense_is_a_value_error": TakesAnything,
    "weights_of_examples_mean_how_often_they_count": IgnoresWeights,
    "learning_on_adds_to_what_was_learned": LearnsOnlyTheLast,
    "features_have_names": NamesTooFew,
}


@parametrize_with_image_checks([NearestMean()])
def test_a_plain_estimator_passes(estimator: Any, check: testing.Check) -> None:
    check(estimator)


def test_every_check_has_an_estimator_that_it_refuses() -> None:
    assert [check.__name__ for check in image_checks()] == list(BROKEN)


@pytest.mark.parametrize("check", image_checks(), ids=lambda check: check.__name__)
def test_each_check_finds_what_it_is_there_for(check: testing.Check) -> None:
    with pytest.raises((AssertionError, IndexError)) as caught:
        check(BROKEN[check.__name__]())
    assert str(caught.value)


@pytest.mark.parametrize("check", image_checks(), ids=lambda check: check.__name__)
def test_the_few_shot_classifier_passes_with_any_model(check: testing.Check, small: CNAPs) -> None:
    check(FewShotClassifier(small))


@pytest.mark.slow
def test_the_few_shot_classifier_passes_with_the_model_that_ships() -> None:
    check_image_estimator(FewShotClassifier(image_size=96))
