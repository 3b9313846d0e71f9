"""FewShotClassifier: what it takes, what it gives, how it says no."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from cnaps import CNAPs, FewShotClassifier
from cnaps.errors import CheckpointError, DataError, InputError
from cnaps.runtime.task import Examples


def test_the_default_model_learns_digits_from_five_examples_each(default, unseen):
    assert default.score(*unseen) > 0.6  # chance is 0.1


def test_every_kind_of_image_is_understood_the_same_way(small, context, tmp_path):
    classifier = FewShotClassifier(small).fit(*context)
    grey = np.kron(context[0][3], np.ones((4, 4), np.uint8))  # (32, 32)
    rgb = np.stack([grey] * 3, 2)
    path = tmp_path / "image.png"
    Image.fromarray(grey).save(path)
    kinds = [
        str(path),
        path,
        path.read_bytes(),
        Image.open(path),
        grey,
        grey.astype(np.int64),
        (grey / 255).astype(np.float32),
        rgb,
        rgb / 255,
        torch.tensor(grey),
        torch.tensor(rgb).permute(2, 0, 1),
        torch.tensor(rgb).permute(2, 0, 1) / 255,
    ]
    probabilities = classifier.predict_proba(kinds)
    np.testing.assert_allclose(probabilities, probabilities[:1].repeat(len(kinds), 0), atol=1e-6)


def test_a_batch_is_an_array_a_tensor_or_any_iterable(small, context):
    images, labels = context
    classifier = FewShotClassifier(small).fit(images, labels)
    expected = classifier.predict_proba(list(images))
    colour = np.stack([images] * 3, 3)
    for batch in (images, colour, torch.tensor(colour).permute(0, 3, 1, 2), (image for image in images)):
        np.testing.assert_allclose(classifier.predict_proba(batch), expected, atol=1e-6)


def test_predictions_depend_neither_on_the_batch_nor_on_the_order(default, unseen):
    images = unseen[0][:40]
    together = default.predict_proba(images)
    np.testing.assert_allclose(default.predict_proba(images[::-1])[::-1], together, atol=1e-4)
    alone = np.concatenate([default.predict_proba(images[i : i + 1]) for i in range(5)])
    np.testing.assert_allclose(alone, together[:5], atol=1e-4)
    np.testing.assert_allclose(together.sum(1), 1)


def test_the_order_of_the_examples_does_not_matter(small, context, unseen):
    images, labels = context
    one = FewShotClassifier(small).fit(images, labels).predict_proba(unseen[0])
    other = FewShotClassifier(small).fit(images[::-1], labels[::-1]).predict_proba(unseen[0])
    np.testing.assert_allclose(one, other, atol=1e-5)


def test_labels_are_strings_or_integers_and_classes_are_sorted(small, context):
    images, labels = context
    by_number = FewShotClassifier(small).fit(images, labels)
    by_name = FewShotClassifier(small).fit(images, [f"digit {label}" for label in labels])
    assert by_number.classes_.tolist() == list(range(10))
    assert by_name.classes_[0] == "digit 0"
    assert by_name.predict(images).tolist() == [f"digit {label}" for label in by_number.predict(images)]


def test_scikit_learn_can_clone_validate_and_chain_it(small, context):
    images, labels = context
    classifier = FewShotClassifier(small, flip=True)
    assert clone(classifier).get_params()["flip"] is True
    assert repr(FewShotClassifier()) == "FewShotClassifier()"
    assert len(cross_val_score(classifier, list(images), labels, cv=2)) == 2
    invert = FunctionTransformer(lambda batch: [255 - image for image in batch])
    chain = make_pipeline(invert, classifier).fit(images, labels)
    np.testing.assert_array_equal(
        chain.predict(images), classifier.fit(255 - images, labels).predict(255 - images)
    )


def test_a_fitted_classifier_can_be_pickled(default, unseen):
    again = pickle.loads(pickle.dumps(default))
    np.testing.assert_allclose(again.predict_proba(unseen[0][:8]), default.predict_proba(unseen[0][:8]), atol=1e-5)


def test_flip_learns_from_mirror_images(small, context):
    images, labels = context
    flipped = FewShotClassifier(small, flip=True).fit(images, labels)
    by_hand = FewShotClassifier(small).fit(np.concatenate([images, images[:, :, ::-1]]), np.tile(labels, 2))
    plain = FewShotClassifier(small).fit(*context)
    pixels = Examples.read(images, labels, flipped.task_.image_size).pixels

    def logits(classifier):  # not probabilities: a mirror image is no other example to judge by
        return classifier.task_.classifier(classifier.task_.features(pixels))

    np.testing.assert_allclose(logits(flipped), logits(by_hand), atol=1e-5)
    assert not np.allclose(logits(flipped), logits(plain))


def test_partial_fit_brings_new_classes_and_new_examples_in_any_order(small, context, unseen):
    images, labels = context
    first, second, third = labels < 4, (labels >= 4) & (labels < 7), labels >= 7
    one = FewShotClassifier(small).fit(images[first], labels[first])
    one.partial_fit(images[third], labels[third]).partial_fit(images[second], labels[second])
    other = FewShotClassifier(small).partial_fit(images[first], labels[first])
    other.partial_fit(images[~first], labels[~first])
    assert one.classes_.tolist() == other.classes_.tolist() == list(range(10))
    np.testing.assert_allclose(one.predict_proba(unseen[0]), other.predict_proba(unseen[0]), atol=1e-5)


def test_partial_fit_may_begin_with_one_class_but_predicts_with_two(small, context):
    images, labels = context
    classifier = FewShotClassifier(small).partial_fit(images[labels == 1], ["one"] * 5)
    with pytest.raises(InputError, match="at least two classes"):
        classifier.predict(images[:1])
    classifier.partial_fit(images[labels == 0], ["nought"] * 5)
    assert classifier.predict_proba(images[:3]).shape == (3, 2)


def test_a_forgotten_class_is_never_predicted(small, context, unseen):
    classifier = FewShotClassifier(small).fit(*context).forget([3, 8])
    assert classifier.classes_.tolist() == [0, 1, 2, 4, 5, 6, 7, 9]
    assert not {3, 8} & set(classifier.predict(unseen[0]).tolist())
    with pytest.raises(InputError, match="cannot forget 3"):
        classifier.forget([3])


def test_a_thousand_classes_are_no_problem(small):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (1000, 8, 8), np.uint8)
    classifier = FewShotClassifier(small).fit(images, np.arange(1000))
    assert classifier.predict(images[::50]).shape == (20,)
    assert len(classifier.classes_) == 1000


def test_what_does_not_fit_is_refused_with_a_reason(small, context):
    images, labels = context
    classifier = FewShotClassifier(small)
    for bad_images, bad_labels, reason in (
        ([], [], "no examples"),
        (images[:5], [1] * 5, "at least two classes"),
        (images, labels[:-1], "50 images but 49 labels"),
        (images[:2], ["a", 1], "all of one kind"),
        (images[:2], [0.5, 1.0], "labels are strings"),
        (images[:2], ["a", None], "label 1 is None"),
        (images[:2], ["a", ""], "not empty"),
        (images[0], labels[:8], r"one image in a list"),
        (images[:2].reshape(2, 64), labels[:2], r"\(N, H, W\)"),
        (torch.zeros(3, 8, 8), [0, 1, 2], r"\(N, 3, H, W\)"),
        ("photo.jpg", ["a"], "in a list"),
        ([{"no": "image"}, images[0]], [0, 1], "not dict"),
        ([images[0] * 1.0, images[1]], [0, 1], "values of 0..1"),
        ([np.full((8, 8), np.nan), images[1]], [0, 1], "values of 0..1"),
        ([images[0].astype(int) - 300, images[1]], [0, 1], "pixels are 0..255"),
        ([np.zeros((3, 8, 8), np.uint8), images[1]], [0, 1], "channels last"),
    ):
        with pytest.raises(InputError, match=reason):
            classifier.fit(bad_images, bad_labels)
        assert not hasattr(classifier, "task_")


def test_images_too_small_too_large_or_broken_are_named(small, context, huge_png, tmp_path):
    classifier = FewShotClassifier(small).fit(*context)
    Image.new("L", (1, 1)).save(tmp_path / "dot.png")
    (tmp_path / "huge.png").write_bytes(huge_png)
    (tmp_path / "text.jpg").write_text("not an image")
    Image.fromarray(context[0][0]).save(tmp_path / "cut.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:60])
    for name, reason in (
        ("dot.png", "1 x 1 pixels: too small"),
        ("huge.png", "30,?000|900,?000,?000"),
        ("text.jpg", "no image of a known format"),
        ("cut.png", "cut.png"),
        ("missing.png", "does not exist"),
    ):
        with pytest.raises(DataError, match=reason) as caught:
            classifier.predict([context[0][0], str(tmp_path / name)])
        assert name in str(caught.value)


def test_doubtful_labels_are_warned_about(small, context):
    images, _ = context
    with pytest.warns(UserWarning, match="'Cat' and 'cat' differ only by case"):
        FewShotClassifier(small).fit(images[:3], ["cat", "Cat", "dog"])
    with pytest.warns(UserWarning, match="image 0 and image 2 are the same image"):
        FewShotClassifier(small).fit(images[[0, 1, 0]], ["a", "b", "b"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FewShotClassifier(small).fit(images[[0, 1, 0]], ["a", "b", "a"])  # twice in one class is harmless


def test_an_unfitted_classifier_says_so():
    with pytest.raises(NotFittedError, match="call fit"):
        FewShotClassifier().predict([])


def test_a_model_that_does_not_exist_is_named(context):
    with pytest.raises(CheckpointError, match="no-such-model"):
        FewShotClassifier("no-such-model").fit(*context)


def test_a_model_is_given_by_folder_or_as_an_object(small: CNAPs, small_folder: Path, context):
    images, labels = context
    by_object = FewShotClassifier(small).fit(images, labels).predict_proba(images)
    by_folder = FewShotClassifier(small_folder).fit(images, labels).predict_proba(images)
    np.testing.assert_allclose(by_object, by_folder, atol=1e-6)


def test_no_images_give_no_predictions(small, context):
    classifier = FewShotClassifier(small).fit(*context)
    assert classifier.predict([]).shape == (0,)
    assert classifier.predict_proba([]).shape == (0, 10)


def test_unreadable_images_are_skipped_where_that_is_asked_for(small, context, tmp_path):
    images, labels = context
    (tmp_path / "broken.jpg").write_bytes(b"not an image")
    broken = tmp_path / "broken.jpg"
    tolerant = FewShotClassifier(small, on_error="skip")
    with pytest.warns(UserWarning, match=r"image 0 is left out: .*broken\.jpg"):
        tolerant.fit([broken, *images], [3, *labels])
    with pytest.warns(UserWarning, match="image 1 is left out"):
        found = tolerant.predict([images[0], broken, images[1]])
    assert found[1] is None
    assert (found[[0, 2]] == FewShotClassifier(small).fit(images, labels).predict(images[:2])).all()
    with pytest.warns(UserWarning, match="image 0 is left out"):
        assert np.isnan(tolerant.predict_proba([broken])).all()
    unread = pytest.warns(UserWarning, match="left out")
    with unread, pytest.raises(InputError, match="no image of the class '77' can be read"):
        tolerant.fit([broken, *images], [77, *labels])
    with pytest.raises(DataError):
        FewShotClassifier(small).fit([broken, *images], [3, *labels])


def test_images_beyond_the_threshold_of_novelty_are_unlike_all_classes(default, unseen, tmp_path):
    images, _ = unseen
    known = (default.novelty(images) > default.novelty_threshold_).mean()
    noise = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)
    assert known < 0.3
    assert (default.novelty(noise) > default.novelty_threshold_).mean() > 0.9
    default.save(tmp_path / "digits.task")
    assert FewShotClassifier.load(tmp_path / "digits.task").novelty_threshold_ == default.novelty_threshold_
