"""One look for every experiment's result: tables as Markdown and CSV, all numbers as JSON, pictures, a page."""

from __future__ import annotations

import base64
import csv
import io
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from cnaps.errors import InputError
from cnaps.files import atomic_path, check_output, is_own, spreadsheet_cell, write_json, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Colours that stay apart for the colour-blind, in the order of use.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000", "#8c6d31")
MARKERS = "osD^vP*Xh<>dp"


@dataclass
class Table:
    """Rows of text or numbers under a caption."""

    caption: str
    columns: Sequence[str]
    rows: list[Sequence[Any]] = field(default_factory=list)

    def markdown(self) -> str:
        """As GitHub shows it."""
        head = [list(self.columns), ["---"] + ["---:"] * (len(self.columns) - 1)]
        lines = [
            "| " + " | ".join(_text(cell).replace("|", "\\|") for cell in row) + " |"
            for row in [*head, *self.rows]
        ]
        return "\n".join([f"**{self.caption}**", "", *lines, ""])

    def csv(self) -> str:
        """For programs."""
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows(
            [self.columns, *[[spreadsheet_cell(_text(c)) for c in row] for row in self.rows]]
        )
        return out.getvalue()


@dataclass
class Report:
    """The result of an experiment; `write` makes NAME.md, .json, .html, .csv a table and .png a picture."""

    name: str
    title: str
    text: list[str]
    tables: dict[str, Table]
    pictures: dict[str, Figure]
    data: Any

    def write(self, folder: str | Path) -> list[Path]:
        """Write all files; gives their paths, the page first."""
        folder = Path(folder)
        paths = {kind: folder / f"{self.name}.{kind}" for kind in ("html", "md", "json")}
        pictures = self.save_pictures(folder, self.name)
        paths |= {f"{name}.png": path for name, path in pictures.items()}
        for name, table in self.tables.items():
            path = paths[f"{name}.csv"] = folder / _file(self.name, "" if name == self.name else name, "csv")
            write_text(path, table.csv())
        write_json(paths["json"], self.data)
        parts = [f"# {self.title}", "", *[line + "\n" for line in self.text]]
        parts += [table.markdown() for table in self.tables.values()]
        parts += [f"![{name}]({path.name})\n" for name, path in pictures.items()]
        write_text(paths["md"], "\n".join(parts))
        write_text(paths["html"], self._page(pictures))
        return list(paths.values())

    def save_pictures(self, folder: Path, prefix: str) -> dict[str, Path]:
        """Write the pictures alone; gives the file of each."""
        paths = {}
        for name, figure in self.pictures.items():
            paths[name] = folder / _file(prefix, "" if name == self.name else name, "png")
            drawn = io.BytesIO()
            # Without the program's version in it, the same numbers give the same file.
            figure.savefig(drawn, format="png", dpi=130, metadata={"Software": None})
            with atomic_path(
                paths[name]
            ) as temporary:  # lines and dots need no more colours, and a third of the room
                Image.open(drawn).convert("RGB").quantize(256).save(temporary, "png", optimize=True)
        return paths

    def _page(self, pictures: dict[str, Path]) -> str:
        from jinja2 import Environment, FileSystemLoader

        here = FileSystemLoader(Path(__file__).parent)
        environment = Environment(loader=here, autoescape=True, trim_blocks=True)
        environment.filters |= {"text": _text, "data": lambda path: base64.b64encode(path.read_bytes()).decode()}
        return environment.get_template("report.html").render(report=self, pictures=pictures) + "\n"


def style(i: int, *, fmt: str | None = None) -> dict[str, Any]:
    """Colour and marker of the i-th of several; `fmt` is what error bars want beside the marker."""
    marker = MARKERS[i % len(MARKERS)]
    return {"color": COLOURS[i % len(COLOURS)]} | ({"marker": marker} if fmt is None else {"fmt": marker + fmt})


def provenance() -> dict[str, Any]:
    """The command that is running and the versions of what it runs on: kept with every result."""
    import platform

    packages = ("cnaps", "torch", "numpy", "scikit-learn")
    versions = {name: metadata.version(name) for name in packages} | {"python": platform.python_version()}
    return {"command": shlex.join(["cnaps", *sys.argv[1:]]), "versions": versions}


def check_results_folder(folder: Path) -> None:
    """Results go to a new or empty folder, or join earlier ones; other people's files are not written among."""
    check_output(folder / "report")
    held = [item for item in folder.iterdir() if not item.name.startswith(".")] if folder.is_dir() else []
    if held and not any(item.name == "setup.json" or (item.suffix == ".html" and is_own(item)) for item in held):
        raise InputError(f"{folder} holds files of others, such as {held[0].name}: give a new folder")


def new_figure(width: float = 8, height: float = 4.5) -> Figure:
    """An empty figure that no window owns."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _file(report: str, part: str, kind: str) -> str:
    return f"{report}-{part}.{kind}" if part else f"{report}.{kind}"


def _text(cell: Any) -> str:
    if cell is None:
        return ""
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)
