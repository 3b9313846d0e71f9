"""What every test may ask for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests import models  # noqa: F401  registers the small one
from tests.digits import context, default, digits, folders, huge_png, make_small, small, small_folder, unseen

__all__ = ["context", "default", "digits", "folders", "huge_png", "make_small", "small", "small_folder", "unseen"]

os.environ.setdefault("MPLBACKEND", "Agg")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with real data sets and recorded outputs that stands beside the project, or a skip."""
    folder = ROOT.parent / "shared"
    if not (folder / "datasets").is_dir():
        pytest.skip("needs the shared data sets in ../shared, which are not here")
    return folder
