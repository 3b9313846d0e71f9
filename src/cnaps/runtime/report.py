"""The report page: one HTML file that opens anywhere and asks nothing of the network."""

from __future__ import annotations

import base64
import io
import os
import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from html import escape
from pathlib import Path
from urllib.parse import quote

from PIL import Image

from cnaps.errors import CnapsError, InputError
from cnaps.files import atomic_folder, escaped, write_text
from cnaps.images.decoding import load_image
from cnaps.parallel import cpu_count
from cnaps.runtime.accuracy import Accuracy
from cnaps.runtime.novelty import NONE
from cnaps.runtime.results import Result, Skipped

SHOWN = 1_000  # images inside the page, which stays below 10 MB; with thumbnails beside it, PAGE
PAGE = 20_000
SHEET_CLASSES, SHEET_IMAGES = 60, 12
UNSURE = 0.5
_SIDE = 144  # pixels of a thumbnail, for 96 on a dense screen
_MATRIX = 40  # classes of a confusion matrix that can still be read
_STATIC = Path(__file__).parent.parent / "static"
_OWN = re.compile(r"[0-9]{5}\.(jpg|png)")  # the files of the folder of thumbnails


class Thumbnails:
    """Pictures as image tags: inside the page, or as files in a folder, which the tags then name."""

    def __init__(self, folder: Path | None = None, name: str = "") -> None:
        self.folder, self.name, self.count = folder, name, 0

    def __call__(self, paths: Iterable[str | Path]) -> list[str]:
        """A tag for each; an empty frame where an image cannot be read."""
        paths = list(paths)
        with ThreadPoolExecutor(cpu_count()) as pool:
            return [self._tag(*each) for each in zip(paths, pool.map(_thumbnail, paths), strict=True)]

    def _tag(self, path: str | Path, made: tuple[bytes, str] | None) -> str:
        if made is None:
            return '<span class="gone" role="img" aria-label="cannot be read"></span>'
        data, kind = made
        if self.folder is None:
            source = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
        else:
            self.count += 1
            file = f"{self.count:05d}.{'png' if kind == 'png' else 'jpg'}"
            (self.folder / file).write_bytes(data)
            source = f"{quote(self.name)}/{file}"
        tiny = ' class="tiny"' if kind == "png" else ""
        lazy = ' loading="lazy"' if self.folder else ""
        name = escape(escaped(Path(path).name), quote=True)
        return f'<img{tiny}{lazy} alt="{name}" src="{source}">'


def _thumbnail(path: str | Path) -> tuple[bytes, str] | None:
    try:
        image = load_image(path, at_least=2 * _SIDE)
    except CnapsError:
        return None
    image.thumbnail((_SIDE, _SIDE), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    if max(image.size) < _SIDE // 2:
        image.save(buffer, "PNG")
        return buffer.getvalue(), "png"
    image.save(buffer, "JPEG", quality=75, optimize=True)
    return buffer.getvalue(), "jpeg"


def write_report(
    path: Path,
    results: Sequence[Result],
    skipped: Sequence[Skipped],
    examples: Sequence[tuple[Path, str]],
    *,
    title: str,
    beside: bool = False,
    links: bool = True,
) -> None:
    """Write the page: what was found, the least certain first, the examples it was learned from.

    With `beside` thumbnails go into a folder next to the page, and the page shows any number of images. Without
    `links` the files are named and not linked to.
    """
    if beside:
        folder = folder_beside(path)
        own = [item.name for item in folder.iterdir()] if folder.is_dir() else []
        with atomic_folder(folder, own) as temporary:
            page = _page(path, results, skipped, examples, title, Thumbnails(temporary, folder.name), links)
    else:
        page = _page(path, results, skipped, examples, title, Thumbnails(), links)
    write_text(path, page)


def folder_beside(path: Path) -> Path:
    """The folder of thumbnails of a report; refused where it holds what no report put there."""
    folder = path.with_name(f"{path.stem}-thumbnails")
    foreign = [item.name for item in folder.iterdir() if not _OWN.fullmatch(item.name)] if folder.is_dir() else []
    if foreign or (folder.exists() and not folder.is_dir()):
        what = (
            f"the folder {folder} holds {foreign[0]}, which is no thumbnail" if foreign else f"{folder} is a file"
        )
        raise InputError(f"{what}: move it away, or give the report another name")
    return folder


def _page(
    path: Path,
    results: Sequence[Result],
    skipped: Sequence[Skipped],
    examples: Sequence[tuple[Path, str]],
    title: str,
    thumbnails: Thumbnails,
    links: bool,
) -> str:
    limit = SHOWN if thumbnails.folder is None else PAGE
    ordered = sorted(results, key=lambda result: result.probability)
    accuracy = Accuracy.of((result.truth, result.label) for result in results if result.truth is not None)
    doubts = [("none", NONE)] * any(result.stranger for result in results)
    doubts += [("wrong", "wrong answers")] * bool(accuracy.mistakes())
    style, script = ((_STATIC / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    return string.Template((_STATIC / "report.html").read_text(encoding="utf-8")).substitute(
        title=escape(escaped(title)),
        style=style,
        script=script,
        summary=_summary(results, skipped, accuracy),
        accuracy=_accuracy(accuracy),
        found=_found(results),
        options=_options((label, label) for label in sorted({result.label for result in results})),
        doubts=_options(doubts),
        orders=_options([("wrong", "wrong answers first")] * bool(accuracy.mistakes())),
        note=_note(min(limit, len(ordered)), len(ordered)),
        cards=_cards(ordered[:limit], path.absolute().parent if links else None, thumbnails),
        sheet=_sheet(examples, thumbnails),
        skipped=_skipped(skipped),
    )


def _summary(results: Sequence[Result], skipped: Sequence[Skipped], accuracy: Accuracy) -> str:
    unsure = sum(result.probability < UNSURE and not result.stranger for result in results)
    tiles = [
        (f"{len(results):,}", "image" if len(results) == 1 else "images"),
        (f"{len({result.label for result in results if not result.stranger}):,}", "classes found"),
        (f"{unsure:,}", f"below {UNSURE:.0%} sure"),
    ]
    if strangers := sum(result.stranger for result in results):
        tiles.append((f"{strangers:,}", NONE))
    if accuracy.total:
        tiles.append(
            (f"{accuracy.correct / accuracy.total:.1%}", f"right, of {accuracy.total:,} with a known class")
        )
    if skipped:
        tiles.append((f"{len(skipped):,}", "could not be read"))
    return "".join(f"<div><dt>{label}</dt><dd>{number}</dd></div>" for number, label in tiles)


def _accuracy(accuracy: Accuracy) -> str:
    """How many are right, and what was taken for what."""
    if not accuracy.total:
        return ""
    names = accuracy.names
    if len(names) <= _MATRIX:
        # columns by number: any number of long names stays readable
        heading = "".join(
            f'<th scope="col" title="{escape(name, quote=True)}">{number}</th>'
            for number, name in enumerate(names, 1)
        )
        rows = "".join(
            f'<tr><th scope="row"><span>{number}</span> {escape(truth)}</th>'
            + "".join(_cell(accuracy.counts[truth, name], truth == name) for name in names)
            + "</tr>"
            for number, truth in enumerate(names, 1)
        )
        corner = '<td class="zero">it is ... (rows), the answer was ... (columns)</td>'
        table = f'<div class="scroll"><table class="matrix"><tr>{corner}{heading}</tr>{rows}</table></div>'
    else:
        mistakes = "".join(
            f"<li><span>{escape(truth)} taken for {escape(answer)}</span><b>{count:,}</b></li>"
            for truth, answer, count in accuracy.mistakes()[:_MATRIX]
        )
        table = f'<ul class="found">{mistakes}</ul>'
    return f'<h2>Right and wrong</h2><p class="note">{accuracy}.</p>{table}'


def _cell(count: int, diagonal: bool) -> str:
    kind = "zero" if not count else "right" if diagonal else "wrong"
    return f'<td class="{kind}">{count:,}</td>'


def _options(values: Iterable[tuple[str, str]]) -> str:
    return "".join(
        f'<option value="{escape(value, quote=True)}">{escape(text)}</option>' for value, text in values
    )


def _found(results: Sequence[Result]) -> str:
    counts = Counter(result.label for result in results)
    most = max(counts.values(), default=1)
    return "".join(
        f"<li><span>{escape(label)}</span>{_bar(count / most)}<b>{count:,}</b></li>"
        for label, count in counts.most_common()
    )


def _bar(share: float, kind: str = "") -> str:
    return f'<i class="bar {kind}"><i style="width:{100 * share:.1f}%"></i></i>'


def _note(shown: int, total: int) -> str:
    if shown == total:
        return "The least certain come first: where the classifier doubts, one more example helps most."
    return (
        f"The {shown:,} least certain of {total:,}; the table of --out has all of them, and --thumbnails beside "
        f"shows up to {PAGE:,}. One more example like the first of these helps most."
    )


def _cards(shown: Sequence[Result], folder: Path | None, thumbnails: Thumbnails) -> str:
    cards = []
    for result, image in zip(shown, thumbnails(result.path for result in shown), strict=True):
        unsure = "unsure" if result.probability < UNSURE or result.stranger else ""
        rows = "".join(
            f"<li><span>{escape(label)}</span><b>{probability:.0%}</b>{_bar(probability, unsure)}</li>"
            for label, probability in result.ranking
        )
        none = f'<p class="answer">{NONE}</p>' if result.stranger else ""
        path = escaped(result.path)
        name = escape(Path(path).name)
        link = f'<a href="{_address(result.path, folder)}">{name}</a>' if folder else name
        marks = "".join(f" data-{name}" for name in ["wrong"] * result.mistaken + ["none"] * result.stranger)
        cards.append(
            f'<li class="card"{marks} data-label="{escape(result.label, quote=True)}" '
            f'data-p="{result.probability:.4f}" data-file="{escape(path, quote=True)}">'
            f'{image}<div>{none}<ol>{rows}</ol>{_truth(result)}<p class="file" title="{escape(path, quote=True)}">'
            f"{link}</p></div></li>"
        )
    return "".join(cards)


def _truth(result: Result) -> str:
    if result.truth is None:
        return ""
    return f'<p class="truth">{f"it is {escape(result.truth)}" if result.mistaken else "right"}</p>'


def _address(path: str, folder: Path) -> str:
    """Seen from the page, so that both can move together."""
    try:
        relative = os.path.relpath(os.path.abspath(path), folder)
    except ValueError:  # on another drive
        return escape(Path(path).absolute().as_uri(), quote=True)
    return escape(quote(os.fsencode(relative).replace(os.sep.encode(), b"/")), quote=True)


def _sheet(examples: Sequence[tuple[Path, str]], thumbnails: Thumbnails) -> str:
    if not examples:
        return ""
    classes: dict[str, list[Path]] = {}
    for path, label in examples:
        classes.setdefault(label, []).append(path)
    rows = []
    for label, paths in list(classes.items())[:SHEET_CLASSES]:
        more = f' <span class="more">+{len(paths) - SHEET_IMAGES}</span>' if len(paths) > SHEET_IMAGES else ""
        images = "".join(thumbnails(paths[:SHEET_IMAGES]))
        rows.append(
            f"<section><h3>{escape(label)} <small>{len(paths)}</small></h3><p>{images}{more}</p></section>"
        )
    rest = len(classes) - SHEET_CLASSES
    note = f'<p class="note">And {rest:,} more classes.</p>' if rest > 0 else ""
    return f'<h2>Learned from</h2><div class="sheet">{"".join(rows)}</div>{note}'


def _skipped(skipped: Sequence[Skipped]) -> str:
    if not skipped:
        return ""
    rows = "".join(f"<li>{escape(escaped(item.reason))}</li>" for item in skipped[:SHOWN])
    return f'<h2>Could not be read</h2><ul class="skipped">{rows}</ul>'
