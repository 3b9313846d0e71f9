"""Prediction on Ray gives what prediction in one process gives."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from cnaps import CNAPs, load_model
from cnaps.cli import main
from cnaps.errors import DataError
from cnaps.runtime.engine import open_engine
from cnaps.runtime.task import Examples, FittedTask
from cnaps.runtime.taskfile import write_task
from cnaps.serving.bulk import RayPredictor, predict_on_ray, write_parts


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model for small images, a task of three digits, and a folder of images, one of them broken."""
    folder = tmp_path_factory.mktemp("bulk")
    shipped = load_model()
    model = CNAPs(replace(shipped.config, image_size=32))
    model.load_state_dict(shipped.state_dict())
    model.save(folder / "model")
    data = load_digits()
    rows = np.flatnonzero(data.target < 3)
    pixels = (data.images * 255 / 16).astype(np.uint8)
    examples = Examples.read(pixels[rows[:15]], [f"digit {d}" for d in data.target[rows[:15]]], 32)
    write_task(folder / "task", FittedTask.learn(open_engine(model), examples))
    (folder / "images").mkdir()
    for i in rows[15:155]:
        Image.fromarray(pixels[i]).save(folder / "images" / f"{i}.png")
    (folder / "images" / "_broken.png").write_bytes(b"no image")
    return folder


@pytest.fixture(scope="module")
def two_workers() -> Iterator[None]:
    ray = pytest.importorskip("ray", reason="needs the extra `ray`, which is not installed")
    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False, logging_level=logging.ERROR)
    yield
    ray.shutdown()


def _run(*arguments: object) -> None:
    with pytest.raises(SystemExit) as leaving:
        main([str(each) for each in arguments])
    assert leaving.value.code == 3  # one image is broken


def test_a_predictor_answers_a_batch_of_addresses_by_name(place: Path) -> None:
    images = sorted((place / "images").iterdir())[-3:]
    predictor = RayPredictor(str(place / "task"), str(place / "model"), top=2)
    found = predictor({"path": [f"file://{images[0]}", str(place / "nowhere.png"), *map(str, images)]})
    assert [bool(error) for error in found["error"]] == [False, True, False, False, True]
    assert "nowhere.png" in found["error"][1]
    assert "_broken.png" in found["error"][4]
    assert found["labels"][0] == found["labels"][2]
    assert [len(each) for each in found["probabilities"]] == [2, 0, 2, 2, 0]


@pytest.mark.slow
@pytest.mark.usefixtures("two_workers")
def test_two_workers_give_the_plain_result(place: Path) -> None:
    images, common = place / "images", ("--model", place / "model")
    _run("predict", place / "task", images, *common, "--out", place / "plain.json")
    _run(
        "predict", place / "task", images, *common, "--engine", "ray", "--workers", 2, "--out", place / "ray.json"
    )
    plain, ray = (json.loads((place / f"{name}.json").read_text()) for name in ("plain", "ray"))
    assert len(plain["results"]) == 140
    ranked = [{os.path.basename(r["path"]): r for r in found["results"]} for found in (plain, ray)]
    assert ranked[0].keys() == ranked[1].keys()
    for name, row in ranked[0].items():
        assert ranked[1][name]["label"] == row["label"]
        assert ranked[1][name]["probability"] == pytest.approx(row["probability"], abs=1e-4)
    assert [os.path.basename(each["path"]) for each in ray["skipped"]] == ["_broken.png"]


@pytest.mark.slow
@pytest.mark.usefixtures("two_workers")
def test_images_at_an_address_are_written_as_parquet(place: Path) -> None:
    import pyarrow.parquet

    rows = predict_on_ray(place / "task", [f"file://{place / 'images'}"], model=str(place / "model"))
    write_parts(rows, place / "parts")
    table = pyarrow.parquet.read_table(place / "parts")
    assert len(table) == 141
    assert sum(bool(error) for error in table["error"].to_pylist()) == 1
    with pytest.raises(DataError, match="no images at"):
        predict_on_ray(place / "task", [f"file://{place / 'parts'}"], model=str(place / "model"))
