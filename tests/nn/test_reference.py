"""The published model, number for number."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cnaps

VARIANTS = ("film_ar", "film", "no_adaptation")


def weights_from_names(record: dict[str, Any]) -> dict[str, torch.Tensor]:
    state = {}
    duplicate = record["duplicate_prefix"]
    for key, shape in record["keys"].items():
        source = key
        if duplicate and key.startswith(duplicate):
            source = "feature_extractor." + key.removeprefix(duplicate)
        rng = np.random.RandomState((zlib.crc32(source.encode()) + record["seed"]) % 2**32)
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


def recorded_task(record: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    ways = len(record["shots"])
    rng = np.random.RandomState(1000 + record["seed"])
    labels = np.repeat(np.arange(ways), record["shots"])
    labels = labels[rng.permutation(len(labels))]
    assert labels.tolist() == record["labels"]
    coarse = rng.uniform(-1, 1, (ways, 3, 6, 6))

    def images(of: np.ndarray) -> torch.Tensor:
        noise = 0.3 * rng.standard_normal((len(of), 3, 84, 84))
        return torch.from_numpy(np.clip(np.kron(coarse[of], np.ones((1, 1, 14, 14))) * 0.7 + noise, -1, 1)).float()

    context = images(labels)
    return context, torch.from_numpy(labels), images(np.arange(record["targets"]) % ways)


@pytest.fixture(params=VARIANTS)
def record(request: pytest.FixtureRequest, shared: Path) -> dict[str, Any]:
    return json.loads((shared / "reference" / f"{request.param}.json").read_text())


def test_published_weights_give_the_recorded_outputs(record: dict[str, Any]) -> None:
    model = cnaps.from_reference(weights_from_names(record))
    context, labels, target = recorded_task(record)
    with torch.no_grad():
        adapted = model.adapt(context, labels)
        torch.testing.assert_close(adapted.logits(target), torch.tensor(record["logits"]), atol=1e-3, rtol=1e-3)
        torch.testing.assert_close(adapted.task_embedding, torch.tensor(record["z_g"]), atol=1e-4, rtol=1e-3)
        assert model.regularization().item() == pytest.approx(record["regularization"], rel=1e-5)
    if "film" in record:
        for stage, blocks in enumerate(record["film"]):
            ours = adapted.film.stages[stage]
            for b, block in enumerate(blocks):
                for v, vector in enumerate(("gamma1", "beta1", "gamma2", "beta2")):
                    x = ours[2 * b + v // 2][v % 2]
                    summary = torch.stack([x.mean(), x.std(correction=0), x[0], x[-1]])
                    torch.testing.assert_close(summary, torch.tensor(block[vector]), atol=2e-3, rtol=5e-3)


def test_a_checkpoint_file_is_imported_by_the_command(shared: Path, tmp_path: Path) -> None:
    from cnaps.cli import main

    record = json.loads((shared / "reference" / "film_ar.json").read_text())
    torch.save({"model_state_dict": weights_from_names(record)}, tmp_path / "published.pt")
    with pytest.raises(SystemExit) as leaving:
        main(["import-weights", str(tmp_path / "published.pt"), str(tmp_path / "model")])
    assert leaving.value.code in (0, None)
    context, labels, target = recorded_task(record)
    with torch.no_grad():
        logits = cnaps.load_model(tmp_path / "model").adapt(context, labels).logits(target)
    torch.testing.assert_close(logits, torch.tensor(record["logits"]), atol=1e-3, rtol=1e-3)
