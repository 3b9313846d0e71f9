"""The documentation keeps what it says: its code runs, its commands exist, its links lead somewhere."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from PIL import Image
from sklearn.datasets import load_digits

from cnaps.cli import app
from cnaps.paper.learners import find_learner
from cnaps.training.config import TrainConfig
from cnaps.training.settings import apply_changes, build, read_settings

from .pages import PAGES, ROOT, SHELL, blocks, commands, run, without_blocks

LONG = {"deployment.md", "meta-dataset.md"}  # an export and a training take some 20 s each
PUBLIC = ("cnaps", "cnaps.nn.backbones", "cnaps.episodes", "cnaps.paper.learners")
TREE = typer.main.get_command(app)
RUNNABLE = [page for page in PAGES if any(b.language in ("python", *SHELL) and not b.reason for b in blocks(page))]


@pytest.fixture
def digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder to work in with what the pages speak of: `examples`, a folder a class, and `images`."""
    monkeypatch.chdir(tmp_path)
    data = load_digits()
    for i in (*range(20), *range(40, 50)):
        folder = Path("examples", str(data.target[i])) if i < 40 else Path("images")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((data.images[i] * 15).astype("uint8")).save(folder / f"{i:03d}.png")


@pytest.mark.parametrize(
    "page", [pytest.param(p, id=p.name, marks=[pytest.mark.slow] * (p.name in LONG)) for p in RUNNABLE]
)
@pytest.mark.usefixtures("digits")
def test_the_code_of_a_page_runs_from_top_to_bottom(page: Path) -> None:
    run(page)


def leaves(command: Any = TREE, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with its path."""
    below = getattr(command, "commands", None)
    if below is None:
        yield path, command
    for name, item in (below or {}).items():
        yield from leaves(item, (*path, name))


def parse(words: list[str]) -> None:
    """Fails where a command line names what does not exist, or lacks what it needs."""
    path = max((p for p, _ in leaves() if tuple(words[: len(p)]) == p), key=len, default=())
    command = dict(leaves()).get(path)
    if command is None:
        assert words[:1] in ([], ["--help"], ["--version"]), f"there is no command cnaps {' '.join(words)}"
        return
    context = command.context_class(command, info_name="cnaps")
    given, extra, _ = command.make_parser(context).parse_args(list(words[len(path) :]))
    assert not extra, f"cnaps {' '.join(words)}: {extra} is more than it takes"
    missing = [p.name for p in command.params if p.required and given.get(p.name) in (None, ())]
    assert not missing, f"cnaps {' '.join(words)} lacks {missing}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_a_page_exist_with_their_options(page: Path) -> None:
    indented = "\n".join(re.findall(r"^    (.*)$", without_blocks(page), re.M))
    for code in [*(b.code for b in blocks(page) if b.language in ("", *SHELL)), indented]:
        for words in commands(code):
            parse(words)
    for text in re.findall(r"`cnaps ([a-z][^`]*)`", without_blocks(page)):
        words = text.split()
        path, command = next(((p, c) for p, c in leaves() if tuple(words[: len(p)]) == p), ((), TREE))
        groups = {p[:-1] for p, _ in leaves()}
        assert path or tuple(words) in groups, f"there is no command cnaps {text}"
        options = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        assert {word for word in words if word.startswith("--")} <= options, f"cnaps {text}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_settings_on_a_page_are_settings_of_training(page: Path) -> None:
    for block in blocks(page):
        if block.language == "toml":
            build(TrainConfig, tomllib.loads(block.code))


def tool(name: str) -> Any:
    """A program of tools/, which import one another by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "tools"))
        return importlib.import_module(name)


@pytest.mark.parametrize(("budget", "models"), [("small", 8), ("smoke", 8), ("full", 6)])
def test_commands_of_the_long_runs_exist_with_their_options_learners_and_settings(
    budget: str, models: int
) -> None:
    steps = re.search(r"^REVIEWER := (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert steps is not None
    planned = subprocess.run(
        ["make", "-nB", *steps[1].split(), "SEEDS=0", f"BUDGET={budget}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    trained, rows = set(), set()
    comparison = tool("comparison")
    script = re.sub(r"\$\(\(.*?\)\)", "1", planned.stdout).replace(".venv/bin/cnaps", "cnaps")
    for line in re.findall(r"tools/comparison\.py (?:grid|run|train) ([^)\n]*)", script):
        rows |= set(re.sub(r"--[\w-]+ \S+", "", line).split())
    assert rows == comparison.ROWS.keys(), "every row by some target, and no other"
    for name, row in comparison.ROWS.items():
        for block in row.blocks:
            assert comparison.settings(name, block, 0, "1e-3").model["features"] == block
    for words in commands("\n".join(line for line in script.splitlines() if "tools/comparison.py" not in line)):
        parse(words)
        if words[0] == "train" and "--resume" not in words:
            changes = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
            build(TrainConfig, apply_changes(read_settings(ROOT / words[1]), changes))
            trained.add(words[words.index("--out") + 1])
        if "--learners" in words:
            entries = words[words.index("--learners") + 1].split(",")
            for entry in (each for each in entries if each != "$models"):  # rows of the comparison, checked above
                label, _, folder = entry.partition("=")
                find_learner(re.split("[@#]", label)[0])
                assert folder.startswith("$") or not folder or str(Path(folder).parent) in trained
    assert len(trained) == models, "of the paper"


def test_every_command_is_explained_somewhere() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [" ".join(path) for path, _ in leaves() if not re.search(rf"cnaps {' '.join(path)}\b", text)] == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as both the site and code hosts make them."""
    headings = re.findall(r"^#+ (.+)$", without_blocks(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "ARCHITECTURE.md"], ids=lambda page: page.name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_blocks(page)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name) if name else page
        assert file.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(file), f"{page.name} links to {target}"


def test_the_reference_has_every_public_name() -> None:
    listed = re.findall(r"^::: ([\w.]+)$", (ROOT / "docs/api.md").read_text(encoding="utf-8"), re.M)
    for name in listed:
        module, _, attribute = name.rpartition(".")
        assert getattr(importlib.import_module(module), attribute).__doc__, f"{name} has no docstring"
    public = {name for module in PUBLIC for name in importlib.import_module(module).__all__}
    found = {name.rpartition(".")[2] for name in listed}
    assert sorted(name for name in public - found if not name.startswith("_") and not name.isupper()) == []


def test_every_page_is_in_the_navigation_once() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    entries = re.findall(r"- (?:.*: )?(\S+\.md)$", nav, re.M)
    assert len(set(entries)) == len(entries)
    missing = {str(page.relative_to(ROOT / "docs")) for page in PAGES[1:]} - set(entries)
    assert not missing, f"add {sorted(missing)} to `nav` in mkdocs.yml"


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    if shutil.which("mkdocs", path=str(Path(sys.executable).parent)) is None:
        pytest.skip("needs the packages of the extra `docs`: run `make docs`")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site/index.html").is_file()
