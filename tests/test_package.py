"""The package as a whole: quick to import, documented by code that runs, readable from one place."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("torch", "numpy", "PIL", "pyarrow", "sklearn", "matplotlib", "scipy", "accelerate", "onnx", "fastapi")
PAGES = ("README.md", "docs/model.md")


@pytest.mark.parametrize("code", ["import cnaps", "import cnaps.cli"])
def test_importing_the_package_or_its_commands_loads_nothing_heavy(code: str) -> None:
    check = f"{code}; import sys; print(*sorted(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_every_public_name_can_be_imported() -> None:
    import cnaps

    for name in cnaps.__all__:
        assert getattr(cnaps, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        _ = cnaps.nonsense


@pytest.mark.parametrize("page", PAGES)
def test_the_python_on_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.S)
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), {"__name__": page})


@pytest.mark.parametrize(
    "module",
    [
        "cnaps.files",
        "cnaps.progress",
        "cnaps.runtime",
        "cnaps.nn.backbones",
        "cnaps.nn.backbones.base",
        "cnaps.nn.model",
    ],
)
def test_the_examples_in_docstrings_are_right(module: str) -> None:
    import doctest
    import importlib

    failures, tried = doctest.testmod(importlib.import_module(module))
    assert tried > 0
    assert failures == 0
