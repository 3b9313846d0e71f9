"""A pre-trained network on disk is a product at once: learn, ask, save, export, without anything trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from cnaps import FewShotClassifier
from cnaps.errors import CheckpointError

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
    assert len(classifier.review()) == 60
    classifier.save(tmp_path / "digits.task")
    again = FewShotClassifier.load(tmp_path / "digits.task", f"transformers:{network}")
    np.testing.assert_allclose(again.predict_proba(images[60:90]), found, atol=2e-2)
    with pytest.raises(CheckpointError, match="say which"):
        FewShotClassifier.load(tmp_path / "digits.task")
