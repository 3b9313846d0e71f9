"""Task files and ONNX files: what was learned, kept."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from cnaps import FewShotClassifier
from cnaps.errors import CheckpointError, CnapsError, InputError
from cnaps.images.decoding import to_array


@pytest.mark.parametrize("head", ["linear", "cosine", "mahalanobis", "ridge"])
def test_a_loaded_task_predicts_as_the_saved_one_did(make_small, context, unseen, tmp_path, head):
    model = make_small(head=head)
    classifier = FewShotClassifier(model).fit(*context)
    classifier.save(tmp_path / "task.safetensors")
    loaded = FewShotClassifier.load(tmp_path / "task.safetensors", model)
    assert loaded.classes_.tolist() == classifier.classes_.tolist()
    np.testing.assert_array_equal(loaded.predict(unseen[0]), classifier.predict(unseen[0]))
    np.testing.assert_allclose(loaded.predict_proba(unseen[0]), classifier.predict_proba(unseen[0]), atol=2e-3)


def test_a_loaded_task_learns_on_and_saves_again(small, context, unseen, tmp_path):
    images, labels = context
    first = labels < 5
    classifier = FewShotClassifier(small).fit(images[first], labels[first])
    classifier.save(tmp_path / "a")
    loaded = FewShotClassifier.load(tmp_path / "a", small).partial_fit(images[~first], labels[~first])
    loaded.save(tmp_path / "b")
    classifier.partial_fit(images[~first], labels[~first])
    again = FewShotClassifier.load(tmp_path / "b", small)
    np.testing.assert_allclose(again.predict_proba(unseen[0]), classifier.predict_proba(unseen[0]), atol=1e-6)


def test_a_task_of_the_default_model_needs_its_name_alone_and_is_small(default, context, unseen, tmp_path):
    images, _ = context
    default.save(tmp_path / "digits.safetensors")
    loaded = FewShotClassifier.load(tmp_path / "digits.safetensors")
    np.testing.assert_allclose(
        loaded.predict_proba(unseen[0][:20]), default.predict_proba(unseen[0][:20]), atol=2e-3
    )
    twenty = FewShotClassifier().fit(images[:40], [f"class {i % 20}" for i in range(40)])
    twenty.save(tmp_path / "twenty.safetensors")
    assert (tmp_path / "twenty.safetensors").stat().st_size < 1_000_000


def test_names_survive_whatever_they_are(small, context, tmp_path):
    names = ["Ünï", 'quote"s', "new\nline", "日本", "<b>"]
    classifier = FewShotClassifier(small).fit(context[0][::10], names)
    classifier.save(tmp_path / "task")
    assert FewShotClassifier.load(tmp_path / "task", small).classes_.tolist() == sorted(names)


def test_a_task_of_another_model_is_refused(make_small, context, tmp_path):
    path = tmp_path / "task.safetensors"
    FewShotClassifier(make_small(seed=0)).fit(*context).save(path)
    with pytest.raises(CheckpointError, match="made with another model"):
        FewShotClassifier.load(path, make_small(seed=1))
    with pytest.raises(CheckpointError, match="say which"):
        FewShotClassifier.load(path)


def test_a_damaged_task_is_refused_wherever_the_damage_is(small, context, tmp_path):
    path = tmp_path / "task.safetensors"
    FewShotClassifier(small).fit(*context).save(path)
    whole = path.read_bytes()
    broken = tmp_path / "broken.safetensors"
    for place in np.linspace(0, len(whole) - 1, 60).astype(int):
        changed = bytearray(whole)
        changed[place] ^= 0x41
        broken.write_bytes(changed)
        with pytest.raises(CheckpointError, match=r"broken\.safetensors"):
            FewShotClassifier.load(broken, small)
    for length in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        broken.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="damaged"):
            FewShotClassifier.load(broken, small)


def test_files_of_other_kinds_and_newer_versions_are_refused(small, context, tmp_path):
    path = tmp_path / "task.safetensors"
    FewShotClassifier(small).fit(*context).save(path)
    with safe_open(path, "np") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    save_file(tensors, tmp_path / "newer", metadata | {"version": "99"})
    save_file(tensors, tmp_path / "other", {"format": "something else"})
    for name, reason in (
        ("newer", "newer version"),
        ("other", "no task file of cnaps"),
        ("missing", "there is no task file"),
    ):
        with pytest.raises(CheckpointError, match=reason):
            FewShotClassifier.load(tmp_path / name, small)


def test_a_task_that_cannot_be_written_leaves_nothing_behind(small, context, tmp_path):
    classifier = FewShotClassifier(small).fit(*context)
    (tmp_path / "folder").mkdir()
    with pytest.raises(CnapsError, match="cannot write"):
        classifier.save(tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_the_onnx_file_reads_raw_pixels_and_knows_its_classes(make_small, context, unseen, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    images, labels = context
    model = make_small()
    model.notes = {"calibration": [0.3, 0.1, 0.0]}
    classifier = FewShotClassifier(model).fit(images, [f"digit {label}" for label in labels])
    classifier.export_onnx(tmp_path / "digits.onnx")

    session = onnxruntime.InferenceSession(tmp_path / "digits.onnx")
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["classes"]) == classifier.classes_.tolist()
    size = int(about["image_size"])
    for count in (1, 7):
        squares = [
            Image.fromarray(image).convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
            for image in unseen[0][:count]
        ]
        pixels = np.stack([np.asarray(square).transpose(2, 0, 1) for square in squares])
        probabilities, novelty = session.run(None, {"images": pixels})
        np.testing.assert_allclose(probabilities, classifier.predict_proba(unseen[0][:count]), atol=1e-5)
        np.testing.assert_allclose(novelty, classifier.novelty(unseen[0][:count]), atol=1e-5)


@pytest.fixture(scope="module")
def resized(make_small, context, tmp_path_factory):
    """What an exported network makes of pixels before it looks at them, and the size."""
    onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    path = tmp_path_factory.mktemp("resized") / "task.onnx"
    classifier = FewShotClassifier(make_small(image_size=224)).fit(*context)
    classifier.export_onnx(path)
    network = onnx.load(path)
    network.graph.output.append(onnx.helper.make_tensor_value_info("normalised", 1, None))
    session = onnxruntime.InferenceSession(network.SerializeToString())
    mean, std = classifier.task_.engine.normalisation

    def run(pixels):
        normalised = session.run(["normalised"], {"images": pixels.transpose(2, 0, 1)[None]})[0]
        return normalised[0].transpose(1, 2, 0) * std + mean

    return run, classifier.task_.image_size


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.integers(1, 700), st.integers(1, 700), st.integers(0, 2**32 - 1), st.booleans())
@example(64, 48, 0, False)  # ties in both passes of Pillow
@example(1, 1, 0, False)
@example(1, 4000, 0, True)
@example(4000, 3, 0, True)
@example(1700, 1300, 0, False)
def test_the_onnx_file_resizes_images_of_any_size_as_this_package_does_to_within_a_grey_level(
    resized, height, width, seed, stark
):
    run, size = resized
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (height, width, 3), np.uint8)
    if stark:  # nothing but black and white
        pixels = pixels // 128 * np.uint8(255)
    found = run(pixels)
    assert abs(found - found.round()).max() < 1e-3
    assert abs(found - to_array(Image.fromarray(pixels), size)).max() <= 1.001


def test_calibration_changes_how_sure_it_is_but_not_what_it_says(make_small, context, unseen):
    plain, calibrated = make_small(), make_small()
    calibrated.notes = {"calibration": [1.0, 0.0, 0.0]}
    one = FewShotClassifier(plain).fit(*context).predict_proba(unseen[0])
    other = FewShotClassifier(calibrated).fit(*context).predict_proba(unseen[0])
    np.testing.assert_array_equal(one.argmax(1), other.argmax(1))
    assert other.max(1).mean() < one.max(1).mean()


def test_an_unknown_update_mode_is_named(small, context):
    classifier = FewShotClassifier(small, updates="sideways").fit(*context)
    with pytest.raises(InputError, match="freeze, recompute"):
        classifier.partial_fit(*context)
