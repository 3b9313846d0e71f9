"""The runtime and torch are one model: the same FiLM, features and answers, however a task came about."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from cnaps import CNAPs, ModelConfig, load_model
from cnaps.bridge.engine import TorchEngine
from cnaps.errors import InputError
from cnaps.runtime.engine import OnnxEngine, Support, _shrink, open_engine
from cnaps.runtime.export import onnx_bytes
from cnaps.runtime.task import Examples, FittedTask
from cnaps.runtime.taskfile import read_task, write_task

from ..models import SMALL_BACKBONE

HEADS = ("linear", "cosine", "ridge", "mahalanobis")
Pair = tuple[TorchEngine, OnnxEngine]


def engines(config: ModelConfig) -> Pair:
    """A model with random weights and FiLM far from the identity, behind both engines."""
    torch.manual_seed(0)
    model = CNAPs(config)
    for name, value in model.named_parameters():
        if name.endswith("regulariser"):
            nn.init.normal_(value, 0, 0.3)
    plain = TorchEngine(model)
    return plain, OnnxEngine(plain.bundle())


@pytest.fixture(scope="module")
def small() -> Callable[[str], Pair]:
    known: dict[str, Pair] = {}

    def make(head: str) -> Pair:
        if head not in known:
            config = ModelConfig(
                backbone=SMALL_BACKBONE,
                head=head,
                features="all",
                set_encoder_norm="none",
                lora_rank=2,
                lora_large=0.5,
                spread=True,
                image_size=32,
            )
            known[head] = engines(config)
        return known[head]

    return make


def examples(size: int, names: list[str], seed: int = 0) -> Examples:
    chance = np.random.default_rng(seed)
    return Examples(chance.integers(0, 256, (len(names), 3, size, size), np.uint8), list(names))


def same(one: FittedTask, other: FittedTask, size: int = 32) -> None:
    pixels = examples(size, ["?"] * 5, seed=9).pixels
    np.testing.assert_allclose(one.film, other.film, atol=1e-4)
    np.testing.assert_allclose(one.embedding, other.embedding, atol=1e-4)
    logits = [each.classifier(each.features(pixels)) for each in (one, other)]
    scale = max(1.0, float(np.abs(logits[0]).max()))
    np.testing.assert_allclose(logits[0] / scale, logits[1] / scale, atol=1e-4)


@pytest.mark.parametrize("head", HEADS)
def test_adapted_updated_forgotten_and_reloaded_tasks_are_the_same_with_and_without_torch(small, head, tmp_path):
    first, more = examples(32, ["a", "b", "c"] * 3), examples(32, ["b", "d", "d"], seed=1)
    found = []
    for engine in small(head):
        learned = FittedTask.learn(engine, first)
        frozen, again = learned.update(more), learned.update(more, mode="recompute")
        path = tmp_path / type(engine).__name__
        write_task(path, frozen)
        found.append([learned, frozen, again, frozen.forget(["a"]), read_task(path, engine)])
    for one, other in zip(*found, strict=True):
        assert one.names == other.names
        same(one, other)


@pytest.mark.parametrize("preset", ["reference", pytest.param("paper", marks=pytest.mark.slow)])
def test_the_papers_network_adapts_alike_without_torch(preset):
    pixels = examples(84, ["a", "b"] * 3).pixels
    support = Support(pixels, np.arange(6) % 2, 2)
    plain, light = (engine.adapt(support) for engine in engines(ModelConfig.preset(preset)))
    np.testing.assert_allclose(light.film, plain.film, atol=1e-4)
    np.testing.assert_allclose(light.features, plain.features, atol=1e-4)
    np.testing.assert_allclose(light.network(pixels), plain.features, atol=1e-4)


@pytest.mark.parametrize("size", [96, 160, 224])
def test_the_default_model_answers_alike_without_torch_at_every_size(size):
    given = examples(size, ["a", "b", "c"] * 2)
    same(
        FittedTask.learn(TorchEngine(load_model()), given),
        FittedTask.learn(open_engine("cnaps-lite0"), given),
        size,
    )


def test_leaving_examples_out_needs_no_torch_either(small):
    given = examples(32, ["a", "b", "c"] * 3)
    labels = np.arange(9) % 3
    tasks = [FittedTask.learn(engine, given) for engine in small("ridge")]
    one, other = (task.left_out(task.features(given.pixels), labels) for task in tasks)
    np.testing.assert_allclose(one, other, atol=1e-4)


def test_chunks_do_not_change_what_is_learned(small):
    _, light = small("ridge")
    many = examples(32, ["a", "b", "c"] * 30)  # more than one chunk
    whole = FittedTask.learn(light, many)
    parts = [whole.features(many.pixels[i : i + 1]) for i in range(3)]
    np.testing.assert_allclose(np.concatenate(parts), whole.features(many.pixels)[:3], atol=1e-5)


@pytest.mark.parametrize("head", HEADS)
def test_an_exported_network_answers_as_the_task_does(small, head):
    onnxruntime = pytest.importorskip("onnxruntime")
    _, light = small(head)
    task = FittedTask.learn(light, examples(32, ["a", "b", "c"] * 3))
    pixels = examples(32, ["?"] * 4, seed=3).pixels
    session = onnxruntime.InferenceSession(onnx_bytes(task))
    probabilities, novelty = session.run(None, {"images": pixels})
    features = task.features(pixels)
    np.testing.assert_allclose(probabilities, task.probabilities(features), atol=1e-4)
    np.testing.assert_allclose(novelty, task.novelty(features), atol=1e-4)


def test_a_size_that_the_graphs_do_not_hold_for_is_refused():
    with pytest.raises(InputError, match="steps of 32"):
        FittedTask.learn(open_engine("cnaps-lite0"), examples(100, ["a", "b"]))


@pytest.mark.parametrize("side", [96, 100, 224, 33])
def test_the_set_encoder_sees_images_shrunk_by_area_as_torch_does(side):
    images = np.random.default_rng(side).normal(size=(2, 3, side, side)).astype(np.float32)
    there = torch.nn.functional.interpolate(torch.from_numpy(images), (32, 32), mode="area")
    np.testing.assert_allclose(_shrink(images, 32), there.numpy(), atol=1e-5)


def test_a_task_of_another_size_learned_meanwhile_takes_nothing_away(small, monkeypatch):
    _, engine = small("ridge")
    given = examples(32, ["a", "b", "c"] * 3)
    alone = FittedTask.learn(engine, given)

    class Meanwhile(dict):
        """Weights by size, of which another thread has made new ones as soon as they were looked for."""

        def __contains__(self, size: object) -> bool:
            found = super().__contains__(size)
            self.clear()
            return found

    monkeypatch.setattr(engine, "_layers", Meanwhile(engine._layers))
    same(FittedTask.learn(engine, given), alone)
