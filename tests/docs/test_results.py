"""Every number of the results' pages follows from the stored ones."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cnaps.paper.experiments.scores import Scores

from .pages import ROOT

STORED = sorted((ROOT / "results").glob("*.json"))
NUMBER = re.compile(r"[+-]?\d+\.\d ± \d+\.\d")


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    found = importlib.util.spec_from_file_location("results_tool", ROOT / "tools" / "results.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    import sys

    sys.modules[found.name] = module  # dataclasses look their module up
    found.loader.exec_module(module)
    return module


def test_the_pages_are_what_the_stored_numbers_give(tool: ModuleType) -> None:
    pages: dict[Path, str] = tool.render()
    assert len(pages) > 8
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is not that of results/: run `make results`"
    held = set((ROOT / "docs" / "results").glob("*.md"))
    assert held <= set(pages), "a page that nothing stored gives"


@pytest.mark.parametrize("path", [*(ROOT / "results").glob("*.md")], ids=lambda path: path.name)
def test_words_ask_for_their_numbers(path: Path) -> None:
    bare = re.sub(r"\{[^}]*\}", "", path.read_text(encoding="utf-8"))
    assert re.findall(r"\b\d+\.\d\b|±", bare) == []


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_a_stored_result_says_how_it_was_made(path: Path) -> None:
    data = json.loads(path.read_text(encoding="utf-8"))
    assert data["made"]["command"].startswith(("cnaps ", "make "))
    assert data["made"]["versions"]


@pytest.mark.parametrize("page", ["README.md", "docs/default-model.md"])
def test_tables_elsewhere_repeat_the_evaluation(page: str, tool: ModuleType) -> None:
    data: dict[str, Any] = json.loads((ROOT / "results" / "evaluation.json").read_text(encoding="utf-8"))
    scores = Scores.from_json(data["scores"])
    rows = dict(tool.table_rows(scores.collections, data["unseen"]))
    checked = 0
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
        cells = [cell.strip(" *") for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells[0] in rows and NUMBER.search(line):
            sets, other = rows[cells[0]], data["against"]
            difference = scores.difference("cnaps", other, sets)
            assert difference is not None
            wanted = [str(scores.accuracy("cnaps", sets)), str(scores.accuracy(other, sets)), difference.signed]
            assert cells[1:4] == wanted, f"{page}: {cells[0]}"
            checked += 1
    assert checked == len(rows) - 1  # every data set and two averages
