"""FewShotClassifier as an estimator: tables and data sets in, weights, features out, copies and processes."""

from __future__ import annotations

import copy
import dataclasses
import io
import os
import pickle
import sys
import zipfile
from multiprocessing import get_context
from typing import Any

import datasets
import joblib
import numpy as np
import pandas
import polars
import pytest
import sklearn
import torch
from PIL import Image
from scipy.sparse import csr_matrix
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch.utils.data import DataLoader, Dataset, TensorDataset

from cnaps import FewShotClassifier
from cnaps.errors import DataError, InputError
from cnaps.runtime.novelty import NONE
from cnaps.runtime.task import Fits


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def learned(small, context):
    return FewShotClassifier(small).fit(*context)


@pytest.fixture(scope="module")
def paths(context, tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    for i, pixels in enumerate(context[0]):
        (folder / f"{i}.png").write_bytes(png(pixels))
    return [str(folder / f"{i}.png") for i in range(len(context[0]))]


def expected(learned: FewShotClassifier, unseen) -> np.ndarray:
    return learned.predict_proba(unseen[0][:6])


# what comes in


def test_labels_may_be_series_arrays_of_objects_and_tables_of_one_column(small, learned, context, unseen):
    images, labels = context
    for given in (
        pandas.Series(labels, index=labels[::-1]),
        polars.Series(labels),
        pandas.DataFrame({"label": labels}),
        polars.DataFrame({"label": labels}),
        labels.astype(object),
        labels[:, None],
        torch.tensor(labels),
    ):
        found = FewShotClassifier(small).fit(images, given)
        assert found.classes_.tolist() == learned.classes_.tolist()
        np.testing.assert_allclose(found.predict_proba(unseen[0][:6]), expected(learned, unseen), atol=1e-6)
    words = FewShotClassifier(small).fit(images, pandas.Categorical([f"digit {label}" for label in labels]))
    assert words.classes_[3] == "digit 3"
    with pytest.raises(InputError, match="label 1 is nan"):
        FewShotClassifier(small).fit(images[:2], pandas.Series(["a", None]))


def test_truth_values_are_classes_and_stay_truth_values(small, context, tmp_path):
    images, labels = context
    classifier = FewShotClassifier(small).fit(images, labels > 4)
    assert classifier.classes_.tolist() == [False, True]
    assert classifier.predict(images).dtype == bool
    assert classifier.score(images, labels > 4) > 0.7
    classifier.save(tmp_path / "more.task")
    again = FewShotClassifier.load(tmp_path / "more.task", small)
    assert again.predict(images[:3]).tolist() == classifier.predict(images[:3]).tolist()
    with pytest.raises(InputError, match="make them all of one kind"):
        FewShotClassifier(small).fit(images[:2], [True, 2])


@pytest.mark.parametrize("library", [pandas, polars])
def test_images_come_from_tables_by_column(small, learned, context, paths, library):
    labels = context[1]
    one = library.DataFrame({"file": paths})
    probabilities = learned.predict_proba(paths[:6])
    np.testing.assert_allclose(learned.predict_proba(one[:6]), probabilities)
    np.testing.assert_allclose(learned.predict_proba(one["file"][:6]), probabilities)
    whole = library.DataFrame({"number": range(50), "photo": paths, "label": labels})
    classifier = FewShotClassifier(small, column="photo").fit(whole, "label")
    np.testing.assert_allclose(classifier.predict_proba(whole)[:6], probabilities, atol=1e-6)
    remembered = FewShotClassifier(small).fit(whole[["photo", "label"]], "label")
    np.testing.assert_allclose(remembered.predict_proba(whole)[:6], probabilities, atol=1e-6)
    with pytest.raises(InputError, match=r"which column holds the images, 'number', 'photo'\?"):
        FewShotClassifier(small).fit(whole, "label")
    with pytest.raises(InputError, match="no column 'kind' of labels; there are: number, photo, label"):
        FewShotClassifier(small).fit(whole, "kind")
    with pytest.raises(InputError, match="no column 'image'"):
        FewShotClassifier(small, column="image").fit(whole, "label")


def test_columns_of_hugging_face_are_read_decoded_or_not(small, learned, context, paths, unseen):
    labels = context[1]
    table = datasets.Dataset.from_dict({"image": paths, "label": labels}).cast_column("image", datasets.Image())
    for rows in (table, table.cast_column("image", datasets.Image(decode=False))):
        for given in ((rows["image"], rows["label"]), (rows, "label")):
            found = FewShotClassifier(small).fit(*given)
            np.testing.assert_allclose(found.predict_proba(unseen[0][:6]), expected(learned, unseen), atol=1e-6)
    raw = [{"bytes": png(context[0][0]), "path": None}, {"bytes": None, "path": paths[0]}]
    first, second = learned.predict_proba(raw)
    np.testing.assert_allclose(first, second, atol=1e-6)
    with pytest.raises(InputError, match=r"choose one, such as data\['train'\]"):
        FewShotClassifier(small).fit(datasets.DatasetDict({"train": table}), "label")


class Pairs(Dataset):
    """As people write them: no end of its own."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.fromarray(self.images[index % len(self)]), int(self.labels[index % len(self)])


def test_torch_data_sets_and_loaders_bring_their_labels(small, learned, context, unseen):
    images, labels = context
    colour = torch.tensor(np.stack([images] * 3, 1))
    tensors = TensorDataset(colour, torch.tensor(labels))
    every: list[Any] = [Pairs(images, labels), tensors, DataLoader(tensors, batch_size=7)]
    for data in every:
        found = FewShotClassifier(small).fit(data)
        np.testing.assert_allclose(found.predict_proba(unseen[0][:6]), expected(learned, unseen), atol=1e-6)
        np.testing.assert_allclose(found.predict_proba(data), learned.predict_proba(images), atol=1e-6)
    with pytest.raises(InputError, match="pairs of an image and a label"):
        FewShotClassifier(small).fit(DataLoader(colour))  # type: ignore[arg-type]


def test_a_zip_or_a_folder_of_class_folders_is_a_set_of_examples(small, folders, tmp_path):
    examples, _ = folders
    by_folder = FewShotClassifier(small).fit(examples)
    assert by_folder.classes_.tolist() == ["digit 0", "digit 1", "digit 2"]
    for inside in ("", "around/"):
        with zipfile.ZipFile(tmp_path / "digits.zip", "w") as archive:
            for path in sorted(examples.rglob("*.png")):
                archive.write(path, inside + path.relative_to(examples).as_posix())
            archive.writestr("__MACOSX/digit 0/._1.png", b"nothing")
        by_zip = FewShotClassifier(small).fit(tmp_path / "digits.zip")
        assert by_zip.classes_.tolist() == by_folder.classes_.tolist()
        np.testing.assert_allclose(by_zip.predict_proba(examples), by_folder.predict_proba(examples), atol=1e-6)
        assert len(by_zip.predict(tmp_path / "digits.zip")) == 15
    with zipfile.ZipFile(tmp_path / "flat.zip", "w") as archive:
        archive.writestr("1.png", png(np.zeros((8, 8), np.uint8)))
    with pytest.raises(DataError, match=r"flat\.zip must hold a folder of images for each class"):
        FewShotClassifier(small).fit(tmp_path / "flat.zip")


def test_what_has_no_labels_or_is_sparse_is_refused(small, context):
    images, labels = context
    with pytest.raises(InputError, match=r"labels are missing: call fit\(images, labels\)"):
        FewShotClassifier(small).fit(images)
    with pytest.raises(InputError, match="sparse"):
        FewShotClassifier(small).fit(csr_matrix(images.reshape(50, 64)), labels)
    with pytest.raises(InputError, match="on_error is 'raise' or 'skip', not 'ignore'"):
        FewShotClassifier(small, on_error="ignore").fit(images, labels)


# weights


def test_a_weight_of_two_is_an_example_seen_twice_and_of_nought_one_not_seen(small, context):
    images, labels = context
    without = FewShotClassifier(small).fit(images[1:], labels[1:])
    nought = FewShotClassifier(small).fit(images, labels, sample_weight=[0, *[1] * 49])
    np.testing.assert_allclose(nought.predict_proba(images), without.predict_proba(images), atol=1e-6)
    double = FewShotClassifier(small).fit(images, labels, sample_weight=[2, *[1] * 49]).task_.statistics
    twice = FewShotClassifier(small).fit(images, labels)
    again = twice.partial_fit(images[:1], labels[:1], sample_weight=[1]).task_.statistics
    k = int(labels[0])
    assert double.counts[k] == again.counts[k] == 6
    np.testing.assert_allclose(double.means[k], again.means[k], atol=1e-5)


def test_weights_add_up_over_calls_and_scatter_counts_them_too(context):
    images, labels = context[0][:15], context[1][:15]
    ones, twos = np.ones(15), np.full(15, 2.0)
    whole = FewShotClassifier().fit(images, labels).partial_fit(images, labels, sample_weight=ones)
    double = FewShotClassifier().fit(images, labels, sample_weight=twos)
    scatter, expected_scatter = (each.task_.statistics.scatter for each in (whole, double))
    assert scatter is not None
    assert expected_scatter is not None
    for one, other in zip(scatter, expected_scatter, strict=True):
        np.testing.assert_allclose(one.T @ one, other.T @ other, atol=1e-4)
    np.testing.assert_allclose(whole.predict_proba(images), double.predict_proba(images), atol=1e-3)


def test_impossible_weights_are_refused(small, context):
    images, labels = context
    cases: list[tuple[Any, str]] = [
        ([1, 2], r"shape \(2,\): give one number for each of 50"),
        ([-1] * 50, "below 0"),
        ([np.nan] * 50, "NaN"),
        (["much"] * 50, "list of numbers"),
        ([0] * 50, "no examples"),
    ]
    for weights, reason in cases:
        with pytest.raises(InputError, match=reason):
            FewShotClassifier(small).fit(images, labels, sample_weight=weights)


def test_the_odds_of_a_class_follow_its_weight_through_files_and_export(small, learned, context, unseen, tmp_path):
    images = unseen[0][:10]
    plain = learned.predict_proba(images)
    weighed = FewShotClassifier(small, class_weight={3: 4.0}).fit(*context)
    odds = weighed.predict_proba(images)
    np.testing.assert_allclose(odds[:, 3] / odds[:, 1], 4 * plain[:, 3] / plain[:, 1], rtol=1e-4)
    weighed.save(tmp_path / "weighed.task")
    loaded = FewShotClassifier.load(tmp_path / "weighed.task", small)
    np.testing.assert_allclose(loaded.predict_proba(images), odds, atol=1e-2)
    prior = loaded.forget([1]).task_.prior
    assert prior is not None
    assert prior.tolist() == pytest.approx([0, 0, np.log(4), 0, 0, 0, 0, 0, 0])
    balanced = FewShotClassifier(small, class_weight="balanced").fit(*context)
    np.testing.assert_array_equal(balanced.predict_proba(images), plain)
    for weights, reason in (({3: 0}, "above 0"), ("heavy", "class_weight is a table")):
        with pytest.raises(InputError, match=reason):
            FewShotClassifier(small, class_weight=weights).fit(*context)


def test_class_weights_are_in_the_exported_network(context, tmp_path):
    import onnxruntime

    images, labels = context
    classifier = FewShotClassifier(class_weight={0: 50.0}).fit(images, labels)
    classifier.export_onnx(tmp_path / "digits.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "digits.onnx")
    pixels = np.stack([images[:4]] * 3, 1)
    found = session.run(["probabilities"], {"images": pixels})[0]
    np.testing.assert_allclose(found, classifier.predict_proba(images[:4]), atol=1e-3)


# what comes out


def test_features_are_what_the_network_sees_and_have_names(learned, unseen):
    images = unseen[0][:5]
    features = learned.transform(images)
    assert features.shape == (5, learned.task_.statistics.means.shape[1])
    np.testing.assert_allclose(learned.task_.probabilities(features), learned.predict_proba(images), atol=1e-6)
    assert learned.get_feature_names_out()[:2].tolist() == ["fewshotclassifier0", "fewshotclassifier1"]
    framed = copy.copy(learned).set_output(transform="pandas").transform(images)
    assert isinstance(framed, pandas.DataFrame)
    assert framed.columns.tolist() == learned.get_feature_names_out().tolist()
    assert make_pipeline(learned, StandardScaler()).fit_transform(*unseen).shape[0] == len(unseen[0])


def test_one_class_has_features_before_there_is_anything_to_predict(small, context):
    images, labels = context
    alone = FewShotClassifier(small).partial_fit(images[labels == 1], labels[labels == 1], classes=[1, 2])
    assert len(alone.transform(images)) == 50


def test_decisions_are_logarithms_of_probabilities_and_of_two_classes_one_number(small, learned, context, unseen):
    decisions = learned.decision_function(unseen[0][:5])
    powers = np.exp(decisions)
    np.testing.assert_allclose(powers / powers.sum(1, keepdims=True), learned.predict_proba(unseen[0][:5]))
    images, labels = context
    two = FewShotClassifier(small).fit(images, labels > 4)
    decisions, probabilities = two.decision_function(images), two.predict_proba(images)
    assert decisions.shape == (50,)
    np.testing.assert_allclose(decisions, np.log(probabilities[:, 1] / probabilities[:, 0]), atol=1e-6)
    np.testing.assert_array_equal(decisions > 0, two.predict(images))


def test_progress_is_told_where_it_is_asked_for(small, context, capsys):
    FewShotClassifier(small, verbose=True).fit(*context).predict(context[0][:40])
    assert "[FewShotClassifier] 32 of 40 images" in capsys.readouterr().err
    FewShotClassifier(small).fit(*context).predict(context[0][:40])
    assert capsys.readouterr().err == ""


def test_none_of_these_takes_a_share_of_the_known_images_that_may_be_lost(default, unseen):
    images = unseen[0][::3]
    noise = np.random.default_rng(0).integers(0, 256, (8, 32, 32, 3), dtype=np.uint8)
    answers = default.predict([*images, *noise], none_of_these=True)
    assert (answers[40:] == NONE).all()
    assert (answers[:40] == NONE).mean() < 0.3
    assert (default.predict(images, none_of_these=0.5) == NONE).mean() > (answers[:40] == NONE).mean()
    known = default.novelty(images) <= default.novelty_threshold_
    np.testing.assert_array_equal(answers[:40] != NONE, known)
    with pytest.raises(InputError, match=r"between 0 and 1, such as 0\.05"):
        default.predict(images[:1], none_of_these=2.0)


def test_what_is_none_of_these_is_known_after_learning_on(small, context):
    images, labels = context
    early = labels < 5
    whole = FewShotClassifier(small).fit(images, labels)
    grown = FewShotClassifier(small).fit(images[early], labels[early]).partial_fit(images[~early], labels[~early])
    assert grown.novelty_threshold_ is not None
    assert grown.task_.none_beyond(0.2) < grown.task_.none_beyond(0.02)
    fewer = whole.forget([3])
    assert fewer.task_.shown is not None
    features, names = fewer.task_.shown
    assert 3 not in names
    assert len(features) == 45
    anew = FewShotClassifier(small, updates="recompute").fit(images[early], labels[early])
    anew.partial_fit(images[~early], labels[~early])
    with pytest.raises(InputError, match="fit again"):
        anew.predict(images[:1], none_of_these=True)


def test_prediction_sets_hold_the_true_class_as_often_as_was_asked(default, unseen, tmp_path):
    images, labels = unseen[0][::2], unseen[1][::2]
    rows, sizes = np.arange(len(labels)), []
    for coverage in (0.7, 0.9):
        sets = default.predict_set(images, coverage)
        assert sets.shape == (len(images), 10)
        assert sets[rows, labels].mean() > coverage - 0.1
        sizes.append(sets.sum())
    assert sets[rows, default.predict(images)].all()
    assert sizes[0] <= sizes[1] < 10 * len(images)
    assert default.predict_set(images[:3], 0.999).all()  # fifty examples cannot say so much
    default.save(tmp_path / "digits.task")
    again = FewShotClassifier.load(tmp_path / "digits.task")
    assert again.task_.set_levels(0.9) == pytest.approx(default.task_.set_levels(0.9), abs=1e-6)
    with pytest.raises(InputError, match="share between 0 and 1"):
        default.predict_set(images[:1], 90)
    with pytest.raises(InputError, match="fit again"):
        again.partial_fit(images[:1], labels[:1]).predict_set(images[:1])


# copies, other processes, scikit-learn


def test_a_pickle_of_twenty_classes_is_smaller_than_a_megabyte(context):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (400, 16, 16), np.uint8)
    for shots in (4, 20):
        classifier = FewShotClassifier(image_size=96).fit(images[: 20 * shots], np.arange(20 * shots) % 20)
        packed = pickle.dumps(classifier)
        assert len(packed) < 1_000_000
        again, twin = pickle.loads(packed), copy.deepcopy(classifier)
        assert again.task_.engine is twin.task_.engine is classifier.task_.engine
        for other in (again, twin):
            gap = np.abs(other.predict_proba(images[:9]) - classifier.predict_proba(images[:9])).max()
            assert gap < (1e-6 if shots == 4 else 1e-3)
        assert again.task_.set_levels(0.8) == pytest.approx(classifier.task_.set_levels(0.8))


def test_joblib_dumps_it_and_takes_it_to_other_processes(default, context, unseen, tmp_path):
    joblib.dump(default, tmp_path / "digits.joblib")
    again = joblib.load(tmp_path / "digits.joblib")
    np.testing.assert_allclose(again.predict_proba(unseen[0][:2]), default.predict_proba(unseen[0][:2]), atol=1e-6)
    one, two = (cross_val_score(FewShotClassifier(image_size=96), *context, cv=2, n_jobs=n) for n in (1, 2))
    np.testing.assert_allclose(one, two)


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux")
def test_a_forked_process_goes_on_or_says_why_it_cannot(default, learned, unseen):
    images = unseen[0][:2]
    expected = default.predict_proba(images)
    with get_context("fork").Pool(1) as pool:
        found = pool.apply_async(default.predict_proba, (images,)).get(120)
        inherited = pool.apply_async(_inherited, (images,)).get(120)
        why = pool.apply_async(_why, (images,)).get(120)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(inherited, expected, atol=1e-6)
    assert "torch does not go on in a process that was forked" in why


def _inherited(images: np.ndarray) -> np.ndarray:
    return _kept["default"].predict_proba(images)


def _why(images: np.ndarray) -> str:
    try:
        return str(_kept["learned"].predict_proba(images))
    except InputError as error:
        return str(error)


_kept: dict[str, FewShotClassifier] = {}


@pytest.fixture(autouse=True)
def kept(default, learned):
    _kept.update(default=default, learned=learned)


def test_images_are_kept_only_where_that_is_asked_for(small, context):
    images, labels = context
    plain = FewShotClassifier(small).fit(images, labels).partial_fit(images, labels)
    assert not hasattr(plain, "examples_")
    with pytest.raises(InputError, match="keep_examples=True"):
        plain.review()
    keeping = FewShotClassifier(small, keep_examples=True).fit(images, labels)
    again = FewShotClassifier(small).fit(images, labels).review(images, labels)
    assert [each.index for each in keeping.review()] == [each.index for each in again]
    with pytest.raises(InputError, match="of the classes that were learned"):
        plain.review(images[labels < 3], labels[labels < 3])
    assert not hasattr(keeping.set_params(keep_examples=False).fit(images, labels), "examples_")


def test_metadata_is_routed_and_images_have_no_number_of_features(small, context):
    images, labels = context
    with sklearn.config_context(enable_metadata_routing=True):
        routed = (
            FewShotClassifier(small).set_fit_request(sample_weight=True).set_score_request(sample_weight=False)
        )
        scores = cross_val_score(routed, images, labels, cv=2, params={"sample_weight": np.ones(50)})
        assert len(scores) == 2
        with pytest.raises(InputError, match="below 0"):
            cross_val_score(
                routed, images, labels, cv=2, params={"sample_weight": -np.ones(50)}, error_score="raise"
            )
    assert not hasattr(routed.fit(images, labels), "n_features_in_")
    assert sklearn.utils.get_tags(routed).no_validation


def test_the_light_runtime_imports_none_of_the_libraries_it_understands():
    code = (
        "import sys, numpy; from cnaps import FewShotClassifier; images = numpy.zeros((4, 8, 8)); images[2:] = 1;"
        "c = FewShotClassifier(image_size=96).fit(images, [0, 0, 1, 1]); c.predict(images);"
        "print([n for n in ('torch', 'polars', 'datasets') if n in sys.modules])"
    )
    assert os.popen(f'"{sys.executable}" -c "{code}"').read().strip() == "[]"


def test_every_class_counts_alike_in_prediction_sets_and_a_single_example_says_nothing(small, context):
    images, labels = context
    twos, rest = np.flatnonzero(labels == 2), np.flatnonzero(labels != 2)
    few = np.concatenate([rest, twos[:1]])
    task = FewShotClassifier(small).fit(images[few], labels[few]).task_
    assert task.set_levels(0.95)[2] == 0  # nothing says how far its class reaches
    assert (np.delete(task.set_levels(0.8), 2) > 0).all()
    fits = task.own_fits
    assert fits is not None
    for name in range(10):  # copies of the examples of a class change nothing: it counts as before
        mine = fits.labels == name
        more = Fits(np.append(fits.values, fits.values[mine]), np.append(fits.labels, fits.labels[mine]))
        again = dataclasses.replace(task, fits=more).set_levels(0.85)
        np.testing.assert_allclose(np.delete(again, name), np.delete(task.set_levels(0.85), name), atol=1e-12)
