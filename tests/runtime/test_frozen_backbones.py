"""A pre-trained network on disk is a product at once: learn, ask, save, export, without anything trained."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from cnaps import FewShotClassifier
from cnaps.errors import CheckpointError, InputError

families = pytest.importorskip("tests.nn.families", reason="needs transformers")


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return families.write(
        families.network_of("vit"), tmp_path_factory.mktemp("vit") / "vit", families.size_of("vit")
    )


def test_a_network_by_name_learns_answers_and_is_saved(network: Path, tmp_path: Path) -> None:
    digits = load_digits()
    images, labels = digits.images / 16, digits.target
    classifier = FewShotClassifier(f"transformers:{network}").fit(images[:60], labels[:60])
    found = classifier.predict_proba(images[60:90])
    assert found.shape == (30, 10)
    assert (classifier.predict(images[:60]) == labels[:60]).mean() > 0.2  # twice chance, by tiny random weights
    assert len(classifier.review(images[:60], labels[:60])) == 60
    classifier.save(tmp_path / "digits.task")
    again = FewShotClassifier.load(tmp_path / "digits.task", f"transformers:{network}")
    np.testing.assert_allclose(again.predict_proba(images[60:90]), found, atol=2e-2)
    with pytest.raises(CheckpointError, match="say which"):
        FewShotClassifier.load(tmp_path / "digits.task")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder of examples for each of three digits, and images."""
    root, digits = tmp_path_factory.mktemp("digits"), load_digits()
    for i, (pixels, label) in enumerate(zip(digits.images[:60], digits.target[:60], strict=True)):
        if label < 3:
            folder = root / ("examples" if i < 40 else "images") / f"digit {label}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray((pixels * 15).astype(np.uint8)).save(folder / f"{i}.png")
    return root / "examples", root / "images"


def run(*arguments: object) -> None:
    from cnaps.cli import app

    with pytest.raises(SystemExit) as caught:
        app([str(each) for each in arguments])
    assert caught.value.code in (0, None)


def test_every_command_works_with_a_network_by_name_and_its_tasks_are_bound_to_the_weights(
    network: Path, folders: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    examples, images = folders
    name = f"transformers:{network}"
    run("classify", examples, images, "--backbone", name, "--out", tmp_path / "a.csv", "--none-of-these")
    run("fit", examples, tmp_path / "digits.task", "--backbone", name)
    run("predict", tmp_path / "digits.task", images, "--model", name, "--out", tmp_path / "b.csv")
    run("suggest", tmp_path / "digits.task", images, "--model", name, "-n", 2)
    run("export", tmp_path / "digits.task", tmp_path / "digits.onnx", "--model", name)
    assert (tmp_path / "b.csv").read_text().count("\n") > 3
    assert "of 3 classes" in capsys.readouterr().out
    other = families.write(families.network_of("convnext"), tmp_path / "other", families.size_of("convnext"))
    with pytest.raises(CheckpointError, match="was made with another model"):
        FewShotClassifier.load(tmp_path / "digits.task", f"transformers:{other}")


def test_the_server_and_the_studio_take_a_network_by_name(
    network: Path, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    from starlette.testclient import TestClient

    from cnaps.serving.app import create_serving
    from cnaps.studio.server import create_studio

    examples, images = folders
    name = f"transformers:{network}"
    FewShotClassifier(backbone=name).fit(examples).save(tmp_path / "digits.task")
    some, local = next(images.rglob("*.png")), "http://127.0.0.1"
    with TestClient(create_serving(str(tmp_path / "digits.task"), name), base_url=local) as page:
        answer = page.post("/predict", files={"files": (some.name, some.read_bytes())})
        assert answer.status_code == 200, answer.text
    with TestClient(create_studio(tmp_path / "project", name), base_url=local) as page:
        assert page.get("/").status_code == 200


def test_a_pickle_holds_the_name_of_the_network_and_not_the_network(network: Path) -> None:
    digits = load_digits()
    classifier = FewShotClassifier(backbone=f"transformers:{network}").fit(
        digits.images[:40] / 16, digits.target[:40]
    )
    packed = pickle.dumps(classifier)
    assert len(packed) < 60_000
    found = pickle.loads(packed).predict_proba(digits.images[40:44] / 16)
    np.testing.assert_allclose(found, classifier.predict_proba(digits.images[40:44] / 16), atol=1e-6)
    with pytest.raises(InputError, match="a model or a backbone, not both"):
        FewShotClassifier("somewhere", backbone=f"transformers:{network}").fit(digits.images[:4], [0, 1, 0, 1])


@pytest.mark.parametrize("family", families.FAMILIES)
def test_every_family_is_a_product_as_it_is(family: str, tmp_path: Path) -> None:
    """Frozen, from end to end: learn, answer, tell strangers, suggest, review, save, load, refuse others."""
    import torch

    size, written = families.size_of(family), families.network_of(family)
    name = f"transformers:{families.write(written, tmp_path / 'network', size)}"
    chance = np.random.default_rng(0)
    kinds = np.arange(16) % 2
    images = chance.integers(0, 256, (16, size, size, 3), np.uint8)
    classifier = FewShotClassifier(backbone=name).fit(images[:10], kinds[:10])
    found = classifier.predict_proba(images[10:])
    np.testing.assert_allclose(found.sum(1), 1)
    pixels = torch.from_numpy(images[10:]).permute(0, 3, 1, 2) / 255
    scaled = (pixels - torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1)) / torch.tensor([0.2, 0.25, 0.3]).view(3, 1, 1)
    with torch.no_grad():
        output = written(pixel_values=scaled)
    first = family in ("vit", "dinov2", "dinov2-registers", "dinov3")  # token; others pool
    own = (output.last_hidden_state[:, 0] if first else output.pooler_output.flatten(1)).numpy()
    seen = classifier.transform(images[10:])
    np.testing.assert_allclose(seen, own / np.linalg.norm(own, axis=1, keepdims=True), atol=1e-4)
    assert classifier.novelty(images[10:]).shape == (6,)
    assert len(classifier.suggest(images[10:], 2)) == 2
    assert classifier.review(images[:10], 1 - kinds[:10])[0].better in (0, 1)
    classifier.save(tmp_path / "a.task")
    again = FewShotClassifier.load(tmp_path / "a.task", model=name)
    np.testing.assert_allclose(again.predict_proba(images[10:]), found, atol=2e-2)
    with torch.no_grad():
        next(iter(written.parameters())).mul_(1.5)
    other = families.write(written, tmp_path / "other", size)
    with pytest.raises(CheckpointError, match="was made with another model"):
        FewShotClassifier.load(tmp_path / "a.task", model=f"transformers:{other}")
