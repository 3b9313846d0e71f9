"""What scikit-learn's `check_estimator` asks of estimators, asked of estimators of images: for anybody's tests.

scikit-learn's own checks give rows of numbers, which mean nothing here. These give images. In a test file:

    from cnaps.testing import parametrize_with_image_checks

    @parametrize_with_image_checks([MyImageClassifier()])
    def test_my_classifier_is_a_good_estimator(estimator, check):
        check(estimator)

Every check takes a classifier that is not fitted, works on copies of it, and raises an AssertionError whose text
says what is wrong. What an estimator has not got (`transform`, `partial_fit`, weights, ...) is not asked of it.
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

Check: TypeAlias = Callable[[Any], None]
_CLASSES, _SHOTS = 3, 6


def image_checks() -> list[Check]:
    """All checks, in the order in which they are run."""
    return list(_CHECKS)


def check_image_estimator(estimator: Any) -> None:
    """Run all checks on a classifier of images; the first that fails is raised."""
    for check in _CHECKS:
        check(estimator)


def parametrize_with_image_checks(estimators: Iterable[Any]) -> Any:
    """A pytest mark for a test with the arguments `estimator` and `check`: one test for each pair."""
    import pytest

    pairs = [(estimator, check) for estimator in estimators for check in _CHECKS]
    names = [f"{type(estimator).__name__}-{check.__name__}" for estimator, check in pairs]
    return pytest.mark.parametrize(("estimator", "check"), pairs, ids=names)


def images_and_labels(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 (18, 24, 24, 3) of three classes that are easy to tell apart, by colour and pattern."""
    chance = np.random.default_rng(seed)
    labels = np.repeat(np.arange(_CLASSES), _SHOTS)
    images = chance.integers(0, 60, (len(labels), 24, 24, 3))
    for i, label in enumerate(labels):
        stripes = (np.indices((24, 24))[label % 2] // 4) % 2
        images[i, ..., label] += 150 * (stripes if label < 2 else 1)
    order = chance.permutation(len(labels))
    return images[order].astype(np.uint8), labels[order]


def parameters_are_kept_as_they_were_given(estimator: Any) -> None:
    """`__init__` stores and does nothing else; `clone` and `set_params` see the same parameters."""
    given = estimator.get_params(deep=False)
    for name, value in clone(estimator).get_params(deep=False).items():
        same = value is given[name] or np.array_equal(repr(value), repr(given[name]))
        assert same, f"after clone the parameter {name} is {value!r}, not {given[name]!r}"
    fresh = clone(estimator)
    assert fresh.set_params(**given) is fresh, "set_params must return the estimator"
    expected = set(inspect.signature(type(estimator).__init__).parameters) - {"self"}
    assert set(given) == expected, f"parameters {sorted(given)} are not those of __init__, {sorted(expected)}"
    extra = [name for name in vars(fresh) if name not in given and not name.startswith("_")]
    assert not extra, f"__init__ sets {extra}, which are no parameters"


def fit_returns_the_estimator(estimator: Any) -> None:
    """So that calls can be chained."""
    fresh = clone(estimator)
    assert fresh.fit(*images_and_labels()) is fresh, "fit must return the estimator"


def fit_changes_no_parameters(estimator: Any) -> None:
    """What was learned ends in an underscore; parameters stay the objects that they were."""
    fresh = clone(estimator)
    before, names = fresh.get_params(deep=False), set(vars(fresh))
    fresh.fit(*images_and_labels())
    for name, value in fresh.get_params(deep=False).items():
        assert value is before[name], f"fit changed the parameter {name}"
    extra = [name for name in set(vars(fresh)) - names if not (name.endswith("_") or name.startswith("_"))]
    assert not extra, f"fit sets {extra}: what is learned must end in an underscore"


def nothing_given_is_changed(estimator: Any) -> None:
    """Neither fit nor predictions write to images or labels, which may be read-only."""
    images, labels = images_and_labels()
    before = images.copy(), labels.copy()
    fitted = clone(estimator).fit(images, labels)
    for name in _answering(fitted):
        getattr(fitted, name)(images)
    same = np.array_equal(images, before[0]) and np.array_equal(labels, before[1])
    assert same, "images or labels were changed"
    images.setflags(write=False)
    clone(estimator).fit(images, labels).predict(images)


def fitting_twice_gives_the_same(estimator: Any) -> None:
    """Fit is idempotent: nothing of the first time is left."""
    fitted, images, labels = _fitted(estimator)
    once = _answers(fitted, images)
    _same(once, _answers(fitted.fit(images, labels), images), "fitted a second time")
    _same(once, _answers(clone(estimator).fit(images, labels), images), "fitted anew")


def fit_forgets_what_was_learned_before(estimator: Any) -> None:
    """Other examples of other classes make another classifier."""
    images, labels = images_and_labels()
    two = labels < 2
    after = clone(estimator).fit(images, labels).fit(images[two], labels[two])
    assert after.classes_.tolist() == [0, 1], f"after a second fit the classes are {after.classes_.tolist()}"
    _same(
        _answers(after, images), _answers(clone(estimator).fit(images[two], labels[two]), images), "fitted before"
    )


def a_pickle_answers_alike(estimator: Any) -> None:
    """Fitted or not, it goes to other processes and back."""
    images, labels = images_and_labels()
    pickle.loads(pickle.dumps(clone(estimator)))
    fitted = clone(estimator).fit(images, labels)
    _same(_answers(fitted, images), _answers(pickle.loads(pickle.dumps(fitted)), images), "from a pickle")


def an_unfitted_one_says_so(estimator: Any) -> None:
    """With scikit-learn's own error, also after a clone of a fitted one."""
    images, labels = images_and_labels()
    for fresh in (clone(estimator), clone(clone(estimator).fit(images, labels))):
        for name in _answering(fresh):
            try:
                getattr(fresh, name)(images)
            except NotFittedError:
                continue
            except Exception as error:
                raise AssertionError(f"{name} before fit raises {error!r} instead of NotFittedError") from error
            raise AssertionError(f"{name} before fit must raise NotFittedError")


def the_same_pixels_in_any_form_are_the_same_image(estimator: Any) -> None:
    """Bytes or floats of 0..1, in any order of memory, an array or a list."""
    fitted, images, labels = _fitted(estimator)
    expected = _answers(fitted, images)
    for title, given in (
        ("in Fortran's order", np.asfortranarray(images)),
        ("as a view with gaps", np.repeat(images, 2, axis=0)[::2]),
        ("as a list", list(images)),
        ("as 64-bit integers", images.astype(np.int64)),
        ("as floats of 0..1", images / 255),
        ("as 32-bit floats of 0..1", (images / 255).astype(np.float32)),
    ):
        _same(expected, _answers(fitted, given), f"with images {title}", 1e-4)
        again = clone(estimator).fit(given, labels)
        _same(expected, _answers(again, images), f"fitted with images {title}", 1e-4)


def some_images_get_the_answers_they_get_among_all(estimator: Any) -> None:
    """Alone, in parts and in another order."""
    fitted, images, _ = _fitted(estimator)
    whole = _answers(fitted, images)
    for name, expected in whole.items():
        ask = getattr(fitted, name)
        parts = np.concatenate([ask(images[i : i + 5]) for i in range(0, len(images), 5)])
        _same({name: expected}, {name: parts}, "asked in parts", 1e-4)
        _same({name: expected}, {name: np.asarray(ask(images[::-1]))[::-1]}, "asked in another order", 1e-4)
        _same({name: expected[:1]}, {name: ask(images[:1])}, "asked of one image", 1e-4)


def no_images_get_no_answers(estimator: Any) -> None:
    """An empty list is no error once there is something learned."""
    fitted, _, _ = _fitted(estimator)
    for name in _answering(fitted):
        found = getattr(fitted, name)([])
        assert len(found) == 0, f"{name} of no images has {len(found)} rows"


def probabilities_and_classes_fit_together(estimator: Any) -> None:
    """Classes are sorted, rows sum to one, the most probable class is the prediction, and better than chance."""
    fitted, _, labels = _fitted(estimator)
    assert fitted.classes_.tolist() == sorted(set(labels.tolist())), "classes_ must be the labels, sorted"
    others, truth = images_and_labels(seed=1)
    found = np.asarray(fitted.predict(others))
    assert found.shape == (len(others),), f"predictions have the shape {found.shape}, not {(len(others),)}"
    assert set(found.tolist()) <= set(labels.tolist()), "predictions must be labels that were given"
    right = (found == truth).mean()
    assert right > 0.5, f"only {right:.0%} of three easy classes are right"
    assert abs(fitted.score(others, truth) - right) < 1e-9, "score must be the share of right predictions"
    if hasattr(fitted, "predict_proba"):
        shares = fitted.predict_proba(others)
        assert shares.shape == (len(others), _CLASSES), f"probabilities have the shape {shares.shape}"
        assert np.allclose(shares.sum(1), 1, atol=1e-5), "probabilities must sum to 1"
        assert (shares >= 0).all(), "there are probabilities below 0"
        assert np.array_equal(fitted.classes_[shares.argmax(1)], found), "predict must be the most probable class"


def decisions_have_the_order_of_the_predictions(estimator: Any) -> None:
    """A column for each class, the largest the prediction; of two classes one number, above 0 for the second."""
    if not hasattr(estimator, "decision_function"):
        return
    images, labels = images_and_labels()
    three = clone(estimator).fit(images, labels)
    values = three.decision_function(images)
    assert values.shape == (len(images), _CLASSES), f"decisions of three classes have the shape {values.shape}"
    assert np.array_equal(three.classes_[values.argmax(1)], three.predict(images)), (
        "decisions and predictions differ"
    )
    some = labels < 2
    two = clone(estimator).fit(images[some], labels[some])
    values = two.decision_function(images)
    assert values.shape == (len(images),), f"decisions of two classes have the shape {values.shape}"
    assert np.array_equal(two.classes_[(values > 0).astype(int)], two.predict(images)), "decisions of two classes"


def labels_may_be_words_numbers_or_truth_values(estimator: Any) -> None:
    """Whatever was given as a label comes back as a prediction."""
    images, labels = images_and_labels()
    numbers = clone(estimator).fit(images, labels).predict(images)
    for title, names in (
        ("words", np.array(["ash", "beech", "cedar"])),
        ("objects", np.array(["ash", "beech", "cedar"], object)),
        ("negative numbers", np.array([-5, 0, 7])),
    ):
        for given in (names[labels], names[labels].tolist()):
            found = clone(estimator).fit(images, given).predict(images)
            assert list(found) == list(names[numbers]), f"with {title} as labels predictions are others"
    some = labels < 2
    found = clone(estimator).fit(images[some], labels[some] == 1).predict(images[some])
    assert set(np.asarray(found).tolist()) <= {False, True}, "with truth values as labels predictions are others"


def what_makes_no_sense_is_a_value_error(estimator: Any) -> None:
    """With a text that says what is wrong, and nothing learned."""
    from scipy.sparse import csr_matrix

    images, labels = images_and_labels()
    for title, bad in (
        ("fewer labels than images", (images, labels[:-1])),
        ("no examples", ([], [])),
        ("no labels", (images, None)),
        ("a single class", (images, np.zeros(len(images), int))),
        ("labels that are shares", (images, np.linspace(0, 1, len(images)))),
        ("an image that is NaN", (np.full(images.shape, np.nan), labels)),
        ("rows of numbers", (images.reshape(len(images), -1), labels)),
        ("a sparse matrix", (csr_matrix(images.reshape(len(images), -1)), labels)),
        ("one image for many", (images[0], labels)),
    ):
        said = "accepted"
        try:
            clone(estimator).fit(*bad)
        except (ValueError, TypeError) as error:
            said = "" if str(error).strip() else "the error has no text"
        except Exception as error:
            raise AssertionError(f"{title}: raises {error!r}, not a ValueError or TypeError") from error
        assert not said, f"{title}: {said}"


def weights_of_examples_mean_how_often_they_count(estimator: Any) -> None:
    """Equal weights change nothing, and an example of weight 0 is as good as not there."""
    if "sample_weight" not in inspect.signature(estimator.fit).parameters:
        return
    images, labels = images_and_labels()
    plain = _answers(clone(estimator).fit(images, labels), images)
    equal = clone(estimator).fit(images, labels, sample_weight=np.ones(len(labels)))
    _same(plain, _answers(equal, images), "with equal weights", 1e-4)
    wrong = np.concatenate([labels, [0, 1]])
    more, weights = np.concatenate([images, images[-2:]]), [*[1] * len(labels), 0, 0]
    nought = clone(estimator).fit(more, wrong, sample_weight=weights)
    _same(plain, _answers(nought, images), "with examples of weight 0", 1e-4)


def learning_on_adds_to_what_was_learned(estimator: Any) -> None:
    """`partial_fit` returns the estimator, keeps the classes it knows and its parameters."""
    if not hasattr(estimator, "partial_fit"):
        return
    images, labels = images_and_labels()
    fresh = clone(estimator)
    before = fresh.get_params(deep=False)
    half = len(labels) // 2
    assert fresh.partial_fit(images[:half], labels[:half], classes=[0, 1, 2]) is fresh, (
        "partial_fit must return it"
    )
    fresh.partial_fit(images[half:], labels[half:])
    assert fresh.classes_.tolist() == [0, 1, 2], f"after learning on the classes are {fresh.classes_.tolist()}"
    assert fresh.get_params(deep=False) == before, "partial_fit changed a parameter"
    right = (fresh.predict(images) == labels).mean()
    assert right > 0.5, f"after learning on only {right:.0%} of its own examples are right"


def features_have_names(estimator: Any) -> None:
    """A row for each image, a name for each column; `fit_transform` is `fit` and `transform`."""
    if not hasattr(estimator, "transform"):
        return
    fitted, images, labels = _fitted(estimator)
    found = fitted.transform(images)
    assert len(found) == len(images), f"{len(found)} rows of features for {len(images)} images"
    again = clone(estimator).fit_transform(images, labels)
    assert np.allclose(found, again, atol=1e-4), "fit_transform differs from fit and transform"
    if hasattr(fitted, "get_feature_names_out"):
        names = fitted.get_feature_names_out()
        assert len(names) == found.shape[1], f"{len(names)} names for {found.shape[1]} features"


_CHECKS: tuple[Check, ...] = (
    parameters_are_kept_as_they_were_given,
    fit_returns_the_estimator,
    fit_changes_no_parameters,
    nothing_given_is_changed,
    fitting_twice_gives_the_same,
    fit_forgets_what_was_learned_before,
    a_pickle_answers_alike,
    an_unfitted_one_says_so,
    the_same_pixels_in_any_form_are_the_same_image,
    some_images_get_the_answers_they_get_among_all,
    no_images_get_no_answers,
    probabilities_and_classes_fit_together,
    decisions_have_the_order_of_the_predictions,
    labels_may_be_words_numbers_or_truth_values,
    what_makes_no_sense_is_a_value_error,
    weights_of_examples_mean_how_often_they_count,
    learning_on_adds_to_what_was_learned,
    features_have_names,
)


def _fitted(estimator: Any) -> tuple[Any, np.ndarray, np.ndarray]:
    """A fitted copy, and the images and labels that it was given."""
    images, labels = images_and_labels()
    return clone(estimator).fit(images, labels), images, labels


def _answering(estimator: Any) -> list[str]:
    names = ("predict", "predict_proba", "decision_function", "transform")
    return [name for name in names if hasattr(estimator, name)]


def _answers(fitted: Any, images: Any) -> dict[str, np.ndarray]:
    return {name: np.asarray(getattr(fitted, name)(images)) for name in _answering(fitted)}


def _same(one: dict[str, Any], other: dict[str, Any], when: str, tolerance: float = 1e-5) -> None:
    for name, expected in one.items():
        found = np.asarray(other[name])
        if expected.dtype.kind == "f":
            alike = found.shape == expected.shape and np.allclose(found, expected, atol=tolerance)
        else:
            alike = np.array_equal(found, expected)
        assert alike, f"{name} gives other answers {when}"
