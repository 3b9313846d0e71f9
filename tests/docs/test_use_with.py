"""The page "Use it with": each of its sections runs where the package that it is about is installed."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path

import pytest

from .pages import ROOT, blocks

PAGE = ROOT / "docs/use-with.md"
FIRST, *SECTIONS = blocks(PAGE)


def package(code: str) -> str:
    """The first package that a section imports."""
    found = re.search(r"^(?:import|from) (\w+)", code, re.M)
    assert found
    return found[1]


def test_every_section_says_when_it_is_run() -> None:
    assert FIRST.reason is None
    for block in SECTIONS:
        assert block.reason is not None
        assert f"where {package(block.code)} is installed" in block.reason
        assert len([line for line in block.code.splitlines() if line.strip()]) <= 12, "it is to be short"


@pytest.mark.slow
@pytest.mark.parametrize("code", [pytest.param(b.code, id=package(b.code)) for b in SECTIONS])
def test_a_section_runs(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec(package(code)) is None:
        pytest.skip(f"{package(code)} is not installed")
    if package(code) == "fiftyone" and shutil.which("mongod") is None:
        pytest.skip("fiftyone needs a MongoDB")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    for part in (FIRST.code, code):
        exec(compile(part, PAGE.name, "exec"), names)
