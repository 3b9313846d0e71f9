"""The published model, number for number."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

import cnaps

VARIANTS = ("film_ar", "film", "no_adaptation")
RECORDED = json.loads(Path(__file__).with_name("published.json").read_text())  # what the published code printed
VECTORS = ("gamma1", "beta1", "gamma2", "beta2")
DUPLICATE = "feature_adaptation_network."  # before its second copy of the extractor, where there is one


def published_shapes(variant: str) -> dict[str, tuple[int, ...]]:
    """Every tensor of a published checkpoint, by its name there."""
    found: dict[str, tuple[int, ...]] = {}

    def norm(name: str, size: int) -> None:
        found.update({f"{name}.{part}": (size,) for part in ("weight", "bias", "running_mean", "running_var")})
        found[f"{name}.num_batches_tracked"] = ()

    def linear(name: str, outputs: int, inputs: int) -> None:
        found.update({f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)})

    for i in range(1, 6):
        layer = f"set_encoder.pre_pooling_fn.layer{i}"
        found.update({f"{layer}.0.weight": (64, 3 if i == 1 else 64, 3, 3), f"{layer}.0.bias": (64,)})
        norm(f"{layer}.1", 64)
    for net, width in (("weight", 512), ("bias", 1)):
        for i, inputs in enumerate((512, width, width)):
            linear(f"classifier_adaptation_network.{net}_means_processor.linear{i + 1}", width, inputs)
    for prefix in ("", DUPLICATE) if variant == "film_ar" else ("",):
        theta = f"{prefix}feature_extractor"
        found[f"{theta}.conv1.weight"] = (64, 3, 5, 5)
        norm(f"{theta}.bn1", 64)
        for stage, width in enumerate((64, 128, 256, 512)):
            before = max(64, width // 2)
            for block, inputs in enumerate((before, width)):
                place = f"{theta}.layer{stage + 1}.{block}"
                for conv, channels in ((1, inputs), (2, width)):
                    found[f"{place}.conv{conv}.weight"] = (width, channels, 3, 3)
                    norm(f"{place}.bn{conv}", width)
                if inputs != width:
                    found[f"{place}.downsample.0.weight"] = (width, inputs, 1, 1)
                    norm(f"{place}.downsample.1", width)
    for stage, width in enumerate((64, 128, 256, 512) if variant != "no_adaptation" else ()):
        place = f"feature_adaptation_network.layers.{stage}"
        linear(f"{place}.shared_layer.0", width, max(64, width // 2) if variant == "film_ar" else 64)
        if variant == "film_ar":
            for i in (2, 4, 6):
                linear(f"{place}.shared_layer.{i}.linear", width, width)
            linear(f"{place}.shared_layer_post.0", width, width)
        for vector in VECTORS:
            for block in range(2):
                generator = f"{place}.{vector}_processors.{block}"
                if variant == "film_ar":
                    linear(f"{generator}.0", width, width + 64)
                for i in (2, 4, 6) if variant == "film_ar" else (0, 2, 4):
                    linear(f"{generator}.{i}.linear", width, width)
                found[f"{place}.{vector}_regularizers.{block}"] = (width,)
    return found


def published_weights(variant: str) -> dict[str, torch.Tensor]:
    """Weights that follow from their names: the published code was given the same ones."""
    state = {}
    for key, shape in published_shapes(variant).items():
        source = key.removeprefix(DUPLICATE) if "feature_extractor" in key else key
        rng = np.random.RandomState(zlib.crc32(source.encode()))
        if key.endswith("num_batches_tracked"):
            value = np.zeros(shape)
        elif key.endswith("running_var"):
            value = rng.uniform(0.5, 1.5, shape)
        elif key.endswith("running_mean"):
            value = 0.1 * rng.standard_normal(shape)
        elif "regularizers" in key:
            value = 0.2 * rng.standard_normal(shape)
        elif len(shape) == 1 and key.endswith(".weight"):
            value = rng.uniform(0.4, 0.9, shape)
        elif len(shape) == 1:
            value = 0.1 * rng.standard_normal(shape)
        else:
            gain = 1.5 if len(shape) == 4 else 0.3
            value = np.sqrt(gain / np.prod(shape[1:])) * rng.standard_normal(shape)
        dtype = torch.int64 if key.endswith("num_batches_tracked") else torch.float32
        state[key] = torch.from_numpy(np.asarray(value)).to(dtype)
    return state


def recorded_task() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    ways = len(RECORDED["shots"])
    rng = np.random.RandomState(1000)
    labels = np.repeat(np.arange(ways), RECORDED["shots"])
    labels = labels[rng.permutation(len(labels))]
    assert labels.tolist() == RECORDED["labels"]
    coarse = rng.uniform(-1, 1, (ways, 3, 6, 6))

    def images(of: np.ndarray) -> torch.Tensor:
        noise = 0.3 * rng.standard_normal((len(of), 3, 84, 84))
        return torch.from_numpy(np.clip(np.kron(coarse[of], np.ones((1, 1, 14, 14))) * 0.7 + noise, -1, 1)).float()

    context = images(labels)
    return context, torch.from_numpy(labels), images(np.arange(RECORDED["targets"]) % ways)


@pytest.mark.parametrize("variant", VARIANTS)
def test_published_weights_give_the_recorded_outputs(variant: str) -> None:
    record = RECORDED[variant]
    model = cnaps.from_reference(published_weights(variant))
    context, labels, target = recorded_task()
    with torch.no_grad():
        adapted = model.adapt(context, labels)
        torch.testing.assert_close(adapted.logits(target), torch.tensor(record["logits"]), atol=1e-3, rtol=1e-3)
        torch.testing.assert_close(adapted.task_embedding, torch.tensor(record["z_g"]), atol=1e-4, rtol=1e-3)
        assert model.regularization().item() == pytest.approx(record["regularization"], rel=1e-5)
    for stage, blocks in enumerate(record.get("film", ())):
        ours = adapted.film.stages[stage]
        for b, block in enumerate(blocks):
            for v, expected in enumerate(block):  # mean, deviation, first and last number of each vector
                x = ours[2 * b + v // 2][v % 2]
                summary = torch.stack([x.mean(), x.std(correction=0), x[0], x[-1]])
                torch.testing.assert_close(summary, torch.tensor(expected), atol=2e-3, rtol=5e-3)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_names_and_shapes_here_are_those_of_the_recorded_checkpoints(variant: str, shared: Path) -> None:
    record = json.loads((shared / "reference" / f"{variant}.json").read_text())
    once = {
        k: v for k, v in published_shapes(variant).items() if not k.startswith(f"{DUPLICATE}feature_extractor.")
    }
    assert once == {key: tuple(shape) for key, shape in record["keys"].items()}


def test_a_checkpoint_file_is_imported_by_the_command(tmp_path: Path) -> None:
    from cnaps.cli import main

    torch.save({"model_state_dict": published_weights("film_ar")}, tmp_path / "published.pt")
    with pytest.raises(SystemExit) as leaving:
        main(["import-weights", str(tmp_path / "published.pt"), str(tmp_path / "model")])
    assert leaving.value.code in (0, None)
    context, labels, target = recorded_task()
    with torch.no_grad():
        logits = cnaps.load_model(tmp_path / "model").adapt(context, labels).logits(target)
    torch.testing.assert_close(logits, torch.tensor(RECORDED["film_ar"]["logits"]), atol=1e-3, rtol=1e-3)
