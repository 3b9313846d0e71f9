"""Which files a person means: examples by class, and images by file, folder, pattern or list."""

from __future__ import annotations

import csv
import glob
import io
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

from cnaps.errors import DataError, explained
from cnaps.files import escaped, plain_cell, read_bytes
from cnaps.images.archives import files_below
from cnaps.images.decoding import is_image

LISTS = (".txt", ".lst")
# what columns of a table may be called
PATHS, LABELS = ("path", "file", "filename", "image"), ("label", "class", "category")


def find_examples(source: Path) -> list[tuple[Path, str]]:
    """Images and their labels: from a folder with a sub-folder for each class, or from a CSV of path,label."""
    if source.is_dir():
        return _by_folder(source)
    if source.suffix.lower() == ".csv":
        return [(_resolved(path, source), label) for _, path, label in read_table(source)]
    if not source.exists():
        raise DataError(f"{source} does not exist: give a folder with a sub-folder for each class, or a CSV")
    raise DataError(f"{source} is neither a folder with a sub-folder for each class nor a CSV of path,label")


def find_images(sources: Sequence[str]) -> list[Path]:
    """Files, those in folders (and below), those a pattern fits, and those that a .txt or .csv lists; each once.

    A file that is named is taken for an image; in folders only names that end like an image's count.
    """
    return list(dict.fromkeys(path for source in sources for path in _meant(source)))


def _meant(source: str) -> list[Path]:
    path = Path(source)
    if path.is_dir():
        inside = images_below(path)
        if not inside:
            raise DataError(f"the folder {path} holds no images")
        return inside
    if path.suffix.lower() in LISTS and path.exists():
        return _listed(path)
    if path.suffix.lower() == ".csv" and path.is_file():
        return [_resolved(name, path) for _, name, _ in read_table(path)]
    if path.exists():
        return [path]
    if not glob.has_magic(source):
        raise DataError(f"{source} does not exist")
    fitting = sorted(Path(name) for name in glob.glob(source, recursive=True))
    if not fitting:
        raise DataError(f"no file fits the pattern {source}")
    return [image for item in fitting for image in (images_below(item) if item.is_dir() else [item])]


def true_labels(sources: Sequence[str], files: Sequence[Path], names: Iterable[str]) -> dict[Path, str]:
    """The true class of each image that has one: by a CSV of path,label, or by a folder named like a class.

    Of several folders around an image the nearest counts, up to the one that was given; case makes no difference
    where it tells no classes apart. A label in a CSV need not be one of the classes.
    """
    tables = [Path(source) for source in sources if Path(source).suffix.lower() == ".csv"]
    folders = {Path(source) for source in sources if Path(source).is_dir()}
    known = {_plain(name): name for name in names} | {name: name for name in names}
    found: dict[Path, str] = {}
    for path in files:
        for above in path.parents:
            label = known.get(above.name) or known.get(_plain(above.name))
            if label is not None:
                found[path] = label
            if label is not None or above in folders or not folders & set(above.parents):
                break
    for table in tables:
        for _, name, label in read_table(table):
            found[_resolved(name, table)] = known.get(label) or known.get(_plain(label)) or label
    return found


def images_below(folder: Path) -> list[Path]:
    """Image files in a folder and its sub-folders, sorted; hidden ones are passed over."""
    return [folder / name for name in files_below(folder) if is_image(name)]


def _by_folder(folder: Path) -> list[tuple[Path, str]]:
    classes = sorted(item for item in folder.iterdir() if item.is_dir() and not item.name.startswith("."))
    if not classes:
        loose = len(images_below(folder))
        hint = f" (its {loose} images lie side by side: move them to folders named after their class)"
        raise DataError(
            f"{folder} has no classes: make a sub-folder for each class, with a few images in it"
            f"{hint if loose else ''}"
        )
    examples = []
    for item in classes:
        images = images_below(item)
        if not images:
            raise DataError(f"the class folder {item} holds no images: add some, or remove it")
        examples += [(path, escaped(item.name)) for path in images]
    return examples


def read_table(table: Path) -> list[tuple[str, str, str]]:
    """The lines of a CSV: where each stands, for errors, and its path and label; a heading is optional."""
    try:
        text = read_bytes(table).decode("utf-8-sig")
        if "\0" in text:
            raise ValueError("there is a NUL in it")
        lines = csv.reader(io.StringIO(text, newline=""))
        rows = [(lines.line_num, [plain_cell(cell.strip()) for cell in row]) for row in lines if any(row)]
    except FileNotFoundError as error:
        raise DataError(f"{table} does not exist") from error
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{table} cannot be read as a CSV: {error}") from error
    path, label = 0, 1
    if rows and not is_image(rows[0][1][0]) and not (table.parent / rows[0][1][0]).is_file():
        heading = [name.lower() for name in rows.pop(0)[1]]
        path = next((heading.index(name) for name in PATHS if name in heading), 0)
        label = next((heading.index(name) for name in LABELS if name in heading), 1)
    if not rows:
        raise DataError(f"{table} lists no examples: write a line path,label for each image")
    for number, cells in rows:
        if len(cells) <= max(path, label) or not cells[path] or not cells[label]:
            found = ",".join(cells)[:80]
            raise DataError(f"{table}, line {number}: expected path,label, found {found!r}")
    return [(f"{table}, line {number}", cells[path], cells[label]) for number, cells in rows]


def _plain(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _listed(path: Path) -> list[Path]:
    with explained(DataError, f"{path} cannot be read as a list of files", OSError, ValueError):
        lines = [line.strip() for line in read_bytes(path).decode("utf-8-sig").splitlines()]
    files = [line for line in lines if line and not line.startswith("#")]
    if not files:
        raise DataError(f"{path} lists no files")
    return [_resolved(file, path) for file in files]


def _resolved(name: str, table: Path) -> Path:
    """Paths in a table are relative to its folder, or else to where the program runs."""
    beside, here = table.parent / name, Path(name)
    return here if here.exists() and not beside.exists() else beside
