"""The studio in Firefox too: it opens, learns, answers, and nothing sticks out."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ..servers import CLASSES, Server

PUPPETEER = "puppeteer-core@24"


def in_firefox(folder: Path, program: Path, *arguments: str) -> dict[str, Any]:
    """What a program for node that drives Firefox prints; it is given puppeteer's folder, Firefox and this."""
    firefox = shutil.which("firefox-esr") or shutil.which("firefox")
    node, npm = shutil.which("node"), shutil.which("npm")
    if not (firefox and node and npm):
        pytest.skip("needs firefox, node and npm, which are not all here")
    install = [npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), PUPPETEER]
    if subprocess.run(install, capture_output=True).returncode:
        pytest.skip(f"{PUPPETEER} cannot be installed here")
    command = [node, str(program), str(folder), firefox, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_the_studio_works_in_firefox(studio: Server, pictures: dict[str, list[Path]], tmp_path: Path) -> None:
    studio.teach({name: pictures[name][:4] for name in CLASSES[:2]})
    studio.settled()
    images = [pictures[CLASSES[0]][8], pictures[CLASSES[1]][8]]
    program = Path(__file__).with_name("firefox.mjs")
    found = in_firefox(tmp_path, program, studio.address, *map(str, images))
    assert found["classes"] == list(CLASSES[:2])
    assert sorted(found["answers"]) == sorted(CLASSES[:2])
    assert max(found["wide"].values()) <= 0
    assert found["problems"] == []
