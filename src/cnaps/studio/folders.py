"""`cnaps studio FOLDER`, whatever the folder is: a project, a place for one, or somebody's photographs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cnaps.errors import DataError, InputError, explained
from cnaps.images.finding import find_examples
from cnaps.studio.description import FOLDERS, MAX_CLASSES, MAX_IMAGES, class_name, parse
from cnaps.studio.store import Project, Upload, is_empty


def project_for(folder: Path) -> tuple[Path, Path | None]:
    """The project's folder, and the class folders to import into it: those are read and never changed."""
    if (folder / "project.json").exists() or is_empty(folder):
        return folder, None
    if (folder / "images").is_dir() and (folder / "cache").is_dir():
        raise InputError(f"{folder} was a project and lost its project.json: its pictures are whole, in images/")
    with explained(InputError, f"{folder} is no project of the studio, and nothing to import", DataError):
        find_examples(folder)
    beside = folder.absolute().parent / f"{folder.absolute().name}-studio"
    return beside, None if _has_images(beside) else folder


def import_folder(project: Project, folder: Path) -> str:
    """Add the class folders of a folder, as one change; what became of them."""
    examples = find_examples(folder)
    classes = {label for _, label in examples}
    if len(examples) > MAX_IMAGES or len(classes) > MAX_CLASSES:
        raise InputError(
            f"{folder} has {len(examples):,} images of {len(classes):,} classes; "
            f"a project holds at most {MAX_IMAGES:,} of {MAX_CLASSES}"
        )

    def uploads() -> Iterator[Upload]:
        for path, label in examples:
            try:
                yield f"{label}/{path.name}", path.read_bytes()
            except OSError:
                yield f"{label}/{path.name}", b""  # refused by name

    project.name = class_name(folder.absolute().name)
    report = project.add(uploads(), FOLDERS)
    lines = [f"imported {len(report['added'])} images of {len(project.classes)} classes from {folder}"]
    lines += [f"not used: {entry['name']} ({entry['reason']})" for entry in report["refused"]]
    return "\n".join(lines)


def _has_images(folder: Path) -> bool:
    try:
        return bool(parse((folder / "project.json").read_bytes())["images"])
    except FileNotFoundError:
        return False
    except DataError:
        return True  # opening it will say what is wrong
