"""Damaged files are refused by name, and a write that fails leaves what was there."""

from __future__ import annotations

import resource
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from cnaps import load_model
from cnaps.errors import CheckpointError, CnapsError, DataError
from cnaps.serving.decoding import Decoder
from cnaps.studio.store import Project

from . import make


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_changed_byte_anywhere_in_a_model_is_refused(name: str, tmp_path: Path) -> None:
    shutil.copytree(make.STORED / "model", tmp_path / "model")
    path = tmp_path / "model" / name
    whole = path.read_bytes()
    for place in np.linspace(0, len(whole) - 2, 40).astype(int):
        changed = bytearray(whole)
        changed[place] ^= 0x04
        path.write_bytes(changed)
        with pytest.raises(CnapsError):
            load_model(tmp_path / "model")
    path.write_bytes(whole)
    load_model(tmp_path / "model")


def test_a_model_without_a_digest_is_read_as_before(tmp_path: Path) -> None:
    import json

    shutil.copytree(make.STORED / "model", tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    stored = json.loads(config.read_text())
    del stored["digest"]
    config.write_text(json.dumps(stored))
    load_model(tmp_path / "model")
    config.write_text(json.dumps(stored | {"digest": "0" * 64}))
    with pytest.raises(CheckpointError, match="do not fit the digest"):
        load_model(tmp_path / "model")


def test_a_model_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    model = make.make_model()
    model.save(tmp_path / "model")
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))  # fails in the middle, as on a full disk
    try:
        with pytest.raises(CnapsError, match="cannot write"):
            model.save(tmp_path / "model")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert load_model(tmp_path / "model").fingerprint() == model.fingerprint()
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_project_that_cannot_be_read_is_not_kept_locked(tmp_path: Path) -> None:
    shutil.copytree(make.STORED / "project", tmp_path / "project")
    about = tmp_path / "project" / "project.json"
    whole = about.read_bytes()
    decoder = Decoder(32, workers=1)
    about.write_bytes(whole[:50])
    with pytest.raises(DataError, match=r"project\.json cannot be read") as raised:
        Project(tmp_path / "project", decoder)
    about.write_bytes(whole)
    Project(tmp_path / "project", decoder).close()
    assert raised.value is not None  # alive until here, with all that it refers to
    decoder.close()
