"""Nobody who installs the package takes on terms that they did not expect."""

from __future__ import annotations

import re

import pytest

from . import licences


def test_every_dependency_has_a_known_licence_without_far_reaching_terms() -> None:
    found = licences.dependencies()
    assert {"torch", "numpy", "pillow", "safetensors"} <= found.keys()
    assert {name: text for name, (text, _) in found.items() if licences.verdict(text) == "unfit"} == {}


def test_the_page_lists_what_every_installation_has() -> None:
    listed = set(re.findall(r"^\| (\S+) \|", licences.PAGE.read_text(), re.M))
    assert {name for name, (_, part) in licences.dependencies().items() if part == "cnaps"} <= listed


@pytest.mark.parametrize(("text", "expected"), [
    ("MIT", "permissive"), ("BSD-3-Clause", "permissive"), ("Apache Software License", "permissive"),
    ("MPL-2.0 AND MIT", "permissive"), ("Mozilla Public License 2.0 (MPL 2.0)", "weak"), ("LGPL-2.1", "weak"),
    ("GPL-3.0-only", "unfit"), ("AGPL-3.0", "unfit"), ("", "unfit"), ("Proprietary", "unfit"),
])  # fmt: skip
def test_licences_are_told_apart(text: str, expected: str) -> None:
    assert licences.verdict(text) == expected
