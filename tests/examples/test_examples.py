"""Every notebook and script of `examples/` runs from top to bottom in an empty folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient
from PIL import Image

from cnaps import FewShotClassifier

FOLDER = Path(__file__).resolve().parents[2] / "examples"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
QUICK = "first-classifier.ipynb"


@pytest.mark.parametrize(
    "path", [pytest.param(p, id=p.stem, marks=[pytest.mark.slow] * (p.name != QUICK)) for p in NOTEBOOKS]
)
def test_a_notebook_runs_from_top_to_bottom(path: Path, tmp_path: Path) -> None:
    book = nbformat.read(path, as_version=4)
    done = NotebookClient(
        book, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    assert all(cell.execution_count for cell in done.cells if cell.cell_type == "code")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs_and_listed(path: Path) -> None:
    book = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in book.cells)
    assert f"({path.name})" in (FOLDER / "README.md").read_text()


def test_the_script_classifies_what_is_put_into_a_folder(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 255, (4, 32, 32, 3), np.uint8)
    FewShotClassifier(image_size=64).fit(images, list("abab")).save(tmp_path / "things.task")
    (tmp_path / "incoming").mkdir()
    Image.fromarray(images[0]).save(tmp_path / "incoming/new.png")
    command = [sys.executable, str(FOLDER / "watch-a-folder.py"), "things.task", "incoming", "1"]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert told.startswith("new.png: a (")
