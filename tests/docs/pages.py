"""The pages of the documentation as blocks of code, and how each kind of block is run."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cnaps.cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHELL = ("sh", "bash", "shell", "console")

_FENCE = re.compile(
    r"^(?:<!-- not run: (?P<reason>.+?) -->\n+)?```(?P<language>[a-z]*)[^\n]*\n(?P<code>.*?)^```$", re.M | re.S
)


@dataclass(frozen=True)
class Block:
    """A fenced block; one with a reason before it, `<!-- not run: why -->`, is not run."""

    language: str
    code: str
    reason: str | None


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    found = _FENCE.finditer(page.read_text(encoding="utf-8"))
    return [Block(match["language"], match["code"], match["reason"]) for match in found]


def without_blocks(page: Path) -> str:
    """The text around the fenced blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def commands(code: str) -> Iterator[list[str]]:
    """The words of each `cnaps ...` in a piece of shell, whatever stands before it in the line."""
    for line in code.replace("\\\n", " ").splitlines():
        for part in re.split(r"&&|\|\||[;|&](?=\s|$)", line.split("  #")[0]):
            words = shlex.split(part, comments=True)
            if "cnaps" in words:
                yield words[words.index("cnaps") + 1 :]


def run(page: Path) -> None:
    """Run a page from top to bottom in the current folder: a reader would type it in this order."""
    names: dict[str, Any] = {"__name__": page.name}
    for block in blocks(page):
        if block.reason:
            continue
        if block.language == "python":
            exec(compile(block.code, page.name, "exec"), names)
        elif block.language in SHELL:
            _run_shell(block.code)
        elif block.language == "toml" and (name := re.match(r"# ([\w-]+\.toml)\b", block.code)):
            Path(name[1]).write_text(block.code, encoding="utf-8")


def _run_shell(code: str) -> None:
    lines = [line for line in code.replace("\\\n", " ").splitlines() if line.split("#")[0].strip()]
    if all(line.startswith("cnaps ") and not re.search(r"[|<>&;$*]", line) for line in lines):
        for words in commands(code):  # in this process: importing torch for each command takes seconds
            _run_command(words)
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        code = code.replace("8766", str(free.getsockname()[1]))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["bash", "-euo", "pipefail", "-c", code], check=True, env={**os.environ, "PATH": path})


def _run_command(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert not ended.value.code, f"cnaps {shlex.join(words)} ended with {ended.value.code}"
