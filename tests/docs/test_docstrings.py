"""The examples in docstrings are right: every module that has some is tried."""

from __future__ import annotations

import doctest
import importlib

import pytest

from .pages import ROOT

SOURCE = ROOT / "src"
MODULES = [
    ".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    for file in sorted(SOURCE.rglob("*.py"))
    if ">>> " in file.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_in_docstrings_are_right(module: str) -> None:
    failures, tried = doctest.testmod(importlib.import_module(module))
    assert tried > 0
    assert failures == 0
