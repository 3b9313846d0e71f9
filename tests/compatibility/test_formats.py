"""Files that earlier versions wrote are read; those of a newer version are refused with a sentence."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from cnaps import load_model
from cnaps.data.collection import Collection
from cnaps.episodes import read_manifest
from cnaps.errors import CnapsError
from cnaps.runtime.taskfile import read_task
from cnaps.serving.decoding import Decoder
from cnaps.studio.store import Project
from cnaps.training.config import TrainConfig
from cnaps.training.run import checkpoints, latest_checkpoint
from cnaps.training.settings import build
from cnaps.training.start import train

from . import make

STORED = make.STORED
EXPECTED = json.loads((STORED / "expected.json").read_text())
TASKS = sorted(STORED.glob("task-*.safetensors"))


def test_a_stored_model_answers_as_it_did() -> None:
    learned = make.learned(load_model(STORED / "model"))
    found = make.answers(replace(learned, calibration=0.0))  # what a task says of its temperature came later
    np.testing.assert_allclose(found, EXPECTED["model"], atol=1e-4)


@pytest.mark.parametrize("path", TASKS, ids=lambda path: path.stem)
def test_a_stored_task_answers_as_it_did_and_learns_on(path: Path) -> None:
    fitted = read_task(path, STORED / "model")
    assert fitted.names == ["digit 0", "digit 1", "digit 2"]
    # the scatter of a class is kept in half precision
    np.testing.assert_allclose(make.answers(fitted), EXPECTED["task"], atol=2e-3)
    images, labels = make.digits()
    more = make.Examples.read(images[labels == 4], ["digit 4"] * 5, 32)
    assert fitted.update(more).names[-1] == "digit 4"


def test_a_stored_collection_and_manifest_give_the_same_tasks() -> None:
    collection = Collection.open(STORED / "collection")
    images, labels = make.digits()
    assert collection.class_of(range(len(collection))).tolist() == labels.tolist()
    assert (collection.read(range(30))[:, 0].numpy() == images).all()
    found = read_manifest(STORED / "tasks.jsonl", {"digits": collection})
    assert [make.rows(described) for described in found] == EXPECTED["manifest"]


def test_a_stored_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    shutil.copytree(STORED / "run", run)
    monkeypatch.chdir(STORED)  # where its data is
    found = latest_checkpoint(run)
    assert found is not None
    assert found[1]["step"] == 1
    train(build(TrainConfig, json.loads((run / "config.json").read_text())), run, resume=True, device="cpu")
    assert checkpoints(run)[-1].name == "step-00000002.safetensors"
    assert (run / "last" / "model.safetensors").exists()


def test_a_stored_project_opens(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    shutil.copytree(STORED / "project", folder)
    decoder = Decoder(32, workers=1)
    project = Project(folder, decoder)
    plan = project.contents()
    assert {name: len(ids) for name, ids in plan.classes.items()} == {"digit 0": 2, "digit 1": 1, "digit 2": 1}
    assert len(plan.pool) == 1
    assert project.files.pixels(plan.pool[0]).shape == (32, 32, 3)
    project.close()
    decoder.close()


def _newer_json(path: Path, key: str) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: 1000}))


def _newer_tensors(path: Path, key: str) -> None:
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    save_file(load_file(path), path, metadata | {key: "1000"})


def test_files_of_a_newer_version_are_refused_with_a_sentence(tmp_path: Path) -> None:
    here = tmp_path / "new"
    shutil.copytree(STORED, here)
    manifest = here / "tasks.jsonl"
    header, *rest = manifest.read_text().splitlines()
    manifest.write_text("\n".join([json.dumps(json.loads(header) | {"version": 1000}), *rest]))
    collection = Collection.open(here / "collection")
    _newer_json(here / "model" / "config.json", "version")
    _newer_json(here / "collection" / "collection.json", "format")
    _newer_json(here / "project" / "project.json", "version")
    _newer_tensors(here / TASKS[-1].name, "version")
    _newer_tensors(checkpoints(here / "run")[-1], "format")
    decoder = Decoder(32, workers=1)
    for name, read in {
        "model": lambda: load_model(here / "model"),
        TASKS[-1].name: lambda: read_task(here / TASKS[-1].name, STORED / "model"),
        "collection": lambda: Collection.open(here / "collection"),
        "tasks.jsonl": lambda: read_manifest(manifest, {"digits": collection}),
        "step-00000001": lambda: latest_checkpoint(here / "run"),
        "project.json": lambda: Project(here / "project", decoder),
    }.items():
        with pytest.raises(CnapsError, match=r"newer version|reads version") as raised:
            read()
        assert name in str(raised.value)
    decoder.close()
