"""FiLM at norms of other libraries' networks, shipped: the light runtime adapts as torch does, and without it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from cnaps import CNAPs, FewShotClassifier, ModelConfig
from cnaps.bridge.engine import TorchEngine
from cnaps.cli import main
from cnaps.nn.backbones import Backbone, register_backbone
from cnaps.nn.checkpoints import load_model
from cnaps.runtime.engine import OnnxEngine, open_engine
from cnaps.runtime.task import Examples, FittedTask

families = pytest.importorskip("tests.nn.families", reason="needs transformers")
pytest.importorskip("onnxscript", reason="needs cnaps[ship]")

# Layer norms of tokens and of maps, RMS norms of tokens, group norms, and batch norms, which are folded.
KINDS = ("vit", "convnext", "aimv2", "groups", "resnet")


@pytest.fixture(
    scope="module",
    params=[each if each == "vit" else pytest.param(each, marks=pytest.mark.slow) for each in KINDS],
)
def shipped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a bundle made by `cnaps ship` of a model with random weights."""
    root, family = tmp_path_factory.mktemp("shipped"), request.param
    assert ship(family, root) in (0, None)
    return root / "bundle"


def ship(family: str, root: Path) -> object:
    name = "groups"
    if family == name:
        register_backbone(name, groups)
    else:
        written = families.write(families.network_of(family), root / "network", families.size_of(family))
        name = f"transformers:{written}"
    torch.manual_seed(1)
    model = CNAPs(
        ModelConfig(backbone=name, head="ridge", features="all", embedding_size=8, set_encoder_norm="none")
    )
    for generator in model.adaptation.generators if model.adaptation else ():
        nn.init.normal_(generator.get_parameter("regulariser"), 0, 0.3)  # or FiLM is next to nothing
    model.save(root / "model")
    with pytest.raises(SystemExit) as ended:
        main(["ship", str(root / "model"), str(root / "bundle")])
    return ended.value.code


def groups() -> Backbone:
    """A network with group norms."""
    torch.manual_seed(0)
    stages = [
        nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.GroupNorm(2, b), nn.GELU())
        for a, b in ((3, 8), (8, 12), (12, 16))
    ]
    return Backbone(stages[0], stages[1:], image_size=32)


@pytest.mark.slow
def test_a_network_that_the_exporter_changes_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """BiT standardises its weights, which the exporter does with an epsilon of its own."""
    assert ship("bit", tmp_path) not in (0, None)
    assert "do not compute what torch computes" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "bundle" / "bundle.json").exists()


def test_the_runtime_makes_the_same_film_and_logits_as_torch(shipped: Path) -> None:
    light, heavy = open_engine(shipped), TorchEngine(load_model(shipped))
    assert isinstance(light, OnnxEngine)
    assert light.film_numbers == heavy.film_numbers > 0
    chance, size = np.random.default_rng(0), light.image_size
    pixels = chance.integers(0, 256, (13, 3, size, size), np.uint8)
    first, more = Examples(pixels[:6], ["a", "b", "c"] * 2), Examples(pixels[6:8], ["b", "d"])
    for mode in ("freeze", "recompute"):
        one, other = (FittedTask.learn(engine, first).update(more, mode=mode) for engine in (light, heavy))
        assert np.abs(one.film - np.tile([1.0, 0.0], len(one.film) // 2)).max() > 0.1, "it does something"
        np.testing.assert_allclose(one.film, other.film, atol=1e-4)
        logits = [each.classifier(each.features(pixels[8:])) for each in (one, other)]
        np.testing.assert_allclose(logits[0], logits[1], atol=1e-4 * max(1.0, float(np.abs(logits[1]).max())))


PROGRAM = """
import json, sys
from importlib.abc import MetaPathFinder
from pathlib import Path

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers"):
            raise ModuleNotFoundError(f"No module named {name!r}")

sys.meta_path.insert(0, Missing())
from fastapi.testclient import TestClient
from cnaps import FewShotClassifier
from cnaps.cli import main
from cnaps.serving.app import create_serving

folder, model = Path(sys.argv[1]), sys.argv[2]

def run(*words):
    try:
        main([str(word) for word in words])
    except SystemExit as ended:
        assert not ended.code, words

run("classify", folder / "examples", folder / "images", "--model", model, "--out", folder / "found.csv")
run("fit", folder / "examples", folder / "a.task", "--model", model)
run("export", folder / "a.task", folder / "a.onnx", "--model", model)
images = sorted((folder / "images").iterdir())
known = FewShotClassifier.load(folder / "a.task", model=model)
with TestClient(create_serving(str(folder / "a.task"), model), base_url="http://127.0.0.1") as client:
    answer = client.post("/predict", files={"files": (images[0].name, images[0].read_bytes())})
assert answer.status_code == 200, answer.text
print(json.dumps({"found": known.predict_proba(images).tolist(), "served": answer.json()}))
"""


def test_folders_task_files_and_the_server_need_no_torch(shipped: Path, tmp_path: Path) -> None:
    chance = np.random.default_rng(1)
    for i in range(8):
        folder = tmp_path / ("images" if i > 5 else f"examples/{'dark' if i % 2 else 'light'}")
        folder.mkdir(parents=True, exist_ok=True)
        pixels = chance.integers(0, 120, (40, 40, 3)) + (0 if i % 2 else 130)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i}.png")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), str(shipped)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    heavy = FewShotClassifier(TorchEngine(load_model(shipped))).fit(tmp_path / "examples")
    images = sorted((tmp_path / "images").iterdir())
    np.testing.assert_allclose(found["found"], heavy.predict_proba(images), atol=1e-2)  # files are half precision
    assert len((tmp_path / "found.csv").read_text().splitlines()) == 3
    assert (tmp_path / "a.onnx").stat().st_size > 1000
