"""Models and task files handed on: to a repository of the Hugging Face hub and from one, or from a folder.

Nothing but safetensors, ONNX graphs and JSON is fetched, and nothing is used before its digests were found right.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from cnaps.errors import CheckpointError, InputError, MissingPackageError
from cnaps.files import read_json, write_text
from cnaps.runtime.bundle import has_bundle, read_bundle
from cnaps.runtime.taskfile import check_file, versions_in
from cnaps.weights import INSTALLED, list_models

PREFIX = "hub:"  # before the name of a repository, wherever a model is named
_FILES = ("config.json", "bundle.json", "model.safetensors", "graphs/*.onnx", "*.task", "README.md")
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")


class Model(NamedTuple):
    """A model on this machine."""

    name: str
    folder: Path

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())


def fetch(source: str | os.PathLike[str], *, token: str | None = None) -> Path:
    """A model's folder or a task file: of a folder or file on this machine, or of a repository on the hub.

    A repository is `owner/name`, and `owner/name@revision` for a branch, tag or commit. What was fetched before is
    taken from the cache where nothing newer is there, or the hub cannot be reached.
    """
    name = os.fspath(source).removeprefix(PREFIX)
    if Path(name).exists():
        return _checked(Path(name), name)
    if not _REPOSITORY.fullmatch(name):
        raise InputError(f"there is no {name} on this machine; a repository on the hub is named OWNER/NAME")
    repository, _, revision = name.partition("@")
    with _explained(f"{name} cannot be fetched") as hub:
        folder = hub.snapshot_download(
            repository,
            revision=revision or None,
            allow_patterns=list(_FILES),
            cache_dir=_cache(),
            endpoint=os.environ.get("HF_ENDPOINT"),
            token=token,
            library_name="cnaps",
        )
    return _checked(Path(folder), name)


def push(
    source: str | os.PathLike[str], repository: str, *, public: bool = False, token: str | None = None
) -> str:
    """Upload a model (by its name or folder) or a task file, with a card made from what it says of itself.

    The repository is made if it does not exist, private unless `public`. Returns its address.
    """
    if not _REPOSITORY.fullmatch(repository) or "@" in repository:
        raise InputError(f"{repository} is no name of a repository: give OWNER/NAME")
    named = os.fspath(source) in list_models()
    path = _checked(INSTALLED / source if named else Path(source), os.fspath(source))
    with tempfile.TemporaryDirectory(prefix="cnaps-") as scratch:
        folder = Path(scratch)
        for file in [path] if path.is_file() else [p for each in _FILES for p in path.glob(each)]:
            target = folder / (f"{path.stem}.task" if path.is_file() else file.relative_to(path))
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(file, target)
        card = task_card(path, repository) if path.is_file() else model_card(path, repository)
        write_text(folder / "README.md", card)
        with _explained(f"{path.name} cannot be pushed to {repository}") as hub:
            api = hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT"), token=token)
            address = str(api.create_repo(repository, private=not public, exist_ok=True))
            api.upload_folder(repo_id=repository, folder_path=folder, commit_message=f"cnaps: {path.name}")
    return address


def known_models() -> list[Model]:
    """Models that come with the package, then those that were fetched."""
    found = [Model(name, INSTALLED / name) for name in list_models()]
    for config in sorted(_cache().glob("models--*/snapshots/*/config.json")):
        owner, _, name = config.parts[-4].removeprefix("models--").partition("--")
        with contextlib.suppress(OSError, ValueError, AttributeError):  # of others, or half-fetched
            if read_json(config).get("format") == "cnaps-model":
                found.append(Model(f"{PREFIX}{owner}/{name}@{config.parts[-2][:8]}", config.parent))
    return found


def model_card(folder: Path, repository: str) -> str:
    """What there is to say of a model, as the hub shows it."""
    config = read_json(folder / "config.json")
    settings, notes = config["model"], dict(config.get("notes") or {})
    sources = notes.pop("trained_on", {})
    lines = [_HEAD, f"# {repository.partition('/')[2]}", "", "A model for few-shot image classification with"]
    lines += ["[CNAPs](https://arxiv.org/abs/1906.07697): it adapts to a task in one forward pass.", ""]
    if has_bundle(folder):
        bundle = read_bundle(folder)
        lines += [f"Fingerprint `{bundle.fingerprint}`, images of {bundle.image_size} pixels by default.", ""]
    model = f'FewShotClassifier("{PREFIX}{repository}")'
    lines += ["```python", "from cnaps import FewShotClassifier", "", f"classifier = {model}.fit(images, labels)"]
    lines += ["```", "", "## Settings", "", *_table(settings)]
    if sources:
        lines += ["", "## Trained on", "", "| data set | split | source | licence |", "| --- | --- | --- | --- |"]
        for name, about in sources.items():
            row = [name, *(about.get(key, "") for key in ("split", "source", "licence"))]
            lines.append(f"| {' | '.join(map(_cell, row))} |")
    if notes:
        lines += ["", "## Notes", "", *_table(notes)]
    return "\n".join([*lines, ""])


def task_card(path: Path, repository: str) -> str:
    """What there is to say of a task file, as the hub shows it."""
    versions = versions_in(path)
    lines = [_HEAD, f"# {repository.partition('/')[2]}", "", "What was learned from a few examples of each class:"]
    lines += [
        "FiLM numbers and class statistics, without the images. It is bound to its model by a fingerprint.",
        "",
    ]
    lines += [*_table({key: versions[key] or "one of your own" for key in ("model", "fingerprint")}), ""]
    lines += ["```python", "from cnaps import FewShotClassifier", ""]
    lines += [f'classifier = FewShotClassifier.from_pretrained("{repository}")', "```", ""]
    return "\n".join(lines)


_HEAD = """---
library_name: cnaps
pipeline_tag: image-classification
tags: [few-shot, meta-learning, cnaps]
---
"""


def _table(about: dict[str, Any]) -> list[str]:
    rows = [f"| {_cell(key)} | {_cell(value)} |" for key, value in about.items()]
    return ["| | |", "| --- | --- |", *rows]


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")[:500]


def _checked(path: Path, name: str) -> Path:
    """The model's folder or the one task file that is there; refused where it is damaged."""
    if path.is_file():
        check_file(path)
        return path
    if (path / "config.json").is_file():
        if has_bundle(path):
            read_bundle(path)
        return path
    tasks = sorted(path.glob("*.task")) if path.is_dir() else []
    if len(tasks) != 1:
        raise CheckpointError(f"{name} has {len(tasks)} task files and no model: there must be one of either")
    check_file(tasks[0])
    return tasks[0]


def _cache() -> Path:
    """Where fetched repositories lie: the hub's own cache, as its variables have it."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()


@contextlib.contextmanager
def _explained(what: str) -> Iterator[Any]:
    """The hub's package; what goes wrong with it as a sentence."""
    try:
        import huggingface_hub
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, HTTPError, LocalEntryNotFoundError
    except ImportError as error:
        raise MissingPackageError("the hub", "huggingface_hub") from error
    try:
        yield huggingface_hub
    except LocalEntryNotFoundError as error:
        raise CheckpointError(f"{what}: the hub cannot be reached, and it was not fetched before") from error
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        why = {401: "you are not logged in (`hf auth login`, or HF_TOKEN)", 403: "your token does not allow it"}
        why[404] = "there is no such repository or revision, or it is not shown to you"
        raise CheckpointError(f"{what}: {why.get(status, f'the hub answered {status}')}") from error
    except (HFValidationError, HTTPError, OSError) as error:
        raise CheckpointError(f"{what}: {str(error).splitlines()[0]}") from error
