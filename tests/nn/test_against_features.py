"""The comparison with features and logistic regression runs for anybody with weights on disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from sklearn.datasets import load_digits

pytest.importorskip("transformers", reason="needs transformers: pip install 'cnaps[transformers]'")
from . import families

ROOT = Path(__file__).resolve().parents[2]


def compare(*words: object) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    command = [sys.executable, "-m", "benchmarks.against_features", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=ROOT, env=environment)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("folders") / "digits"
    data = load_digits()
    for i in range(120):
        if data.target[i] < 3:
            path = folder / str(data.target[i]) / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((data.images[i] * 15).astype("uint8")).resize((32, 32)).save(path)
    return folder


def test_every_method_gets_the_same_draws_and_reports_accuracy_time_and_memory(digits, tmp_path):
    network = families.write(families.network_of("convnext"), tmp_path / "net", 32)
    out = tmp_path / "out.json"
    run = compare(digits, "--backbone", f"transformers:{network}", "--shots", 3, "--draws", 2, "--out", out)
    assert run.returncode == 0, run.stderr
    results = json.loads(out.read_text())
    assert [r["method"] for r in results] == ["cnaps", "net + logreg", "net + head"]
    for result in results:
        assert 33 < result["accuracy"] <= 100  # better than chance, with random weights too
        assert result["learn"] > 0
        assert result["predict"] > 0
        assert result["memory"] > 50
    assert results[0]["accuracy"] > 90
    assert "accuracy %" in run.stdout


def test_what_is_missing_is_said_in_a_sentence(digits):
    for words, message in (
        (("--shots", 30), "have no more than 30 images: give fewer --shots"),
        (("--backbone", "transformers:./nothing"), "holds no network of transformers"),
    ):
        run = compare(digits, "--draws", 1, *words)
        assert run.returncode != 0
        assert message in run.stderr
        assert "Traceback" not in run.stderr
