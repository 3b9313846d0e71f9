"""The report page: one HTML file with everything in it, that opens anywhere and asks nothing of the network."""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from html import escape
from pathlib import Path

from PIL import Image

from cnaps.errors import CnapsError
from cnaps.files import escaped, write_text
from cnaps.images.decoding import load_image
from cnaps.parallel import cpu_count
from cnaps.runtime.results import Result, Skipped

SHOWN = 300  # images with a thumbnail: the page stays below some 2 MB
SHEET_CLASSES, SHEET_IMAGES = 60, 12
UNSURE = 0.5
_SIDE = 144  # pixels of a thumbnail, for 96 on a dense screen


def write_report(
    path: Path,
    results: Sequence[Result],
    skipped: Sequence[Skipped],
    examples: Sequence[tuple[Path, str]],
    *,
    title: str,
) -> None:
    """Write the page: what was found, the least certain first, the examples it was learned from."""
    ordered = sorted(results, key=lambda result: result.probability)
    page = _PAGE.format(
        title=escape(escaped(title)),
        style=_STYLE,
        summary=_summary(results, skipped),
        found=_found(results),
        cards=_cards(ordered[:SHOWN], len(ordered)),
        sheet=_sheet(examples),
        skipped=_skipped(skipped),
    )
    write_text(path, page)


def thumbnail(path: str | Path, side: int = _SIDE) -> str:
    """An image tag with the picture inside it; an empty frame where it cannot be read."""
    try:
        image = load_image(path, at_least=2 * side)
    except CnapsError:
        return '<span class="gone" role="img" aria-label="cannot be read"></span>'
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    small = max(image.size) < side // 2
    buffer = io.BytesIO()
    if small:
        image.save(buffer, "PNG")
    else:
        image.save(buffer, "JPEG", quality=82)
    data = base64.b64encode(buffer.getvalue()).decode()
    name = escape(escaped(Path(path).name), quote=True)
    kind, style = ("png", ' class="tiny"') if small else ("jpeg", "")
    return f'<img{style} alt="{name}" src="data:image/{kind};base64,{data}">'


def _thumbnails(paths: Iterable[str | Path]) -> list[str]:
    with ThreadPoolExecutor(cpu_count()) as pool:
        return list(pool.map(thumbnail, paths))


def _summary(results: Sequence[Result], skipped: Sequence[Skipped]) -> str:
    unsure = sum(result.probability < UNSURE for result in results)
    tiles = [
        (f"{len(results):,}", "image" if len(results) == 1 else "images"),
        (f"{len({result.label for result in results}):,}", "classes found"),
        (f"{unsure:,}", f"below {UNSURE:.0%} sure"),
    ]
    if skipped:
        tiles.append((f"{len(skipped):,}", "could not be read"))
    return "".join(f"<div><dt>{label}</dt><dd>{number}</dd></div>" for number, label in tiles)


def _found(results: Sequence[Result]) -> str:
    counts = Counter(result.label for result in results)
    most = max(counts.values(), default=1)
    return "".join(
        f"<li><span>{escape(label)}</span>{_bar(count / most)}<b>{count:,}</b></li>"
        for label, count in counts.most_common()
    )


def _bar(share: float, kind: str = "") -> str:
    return f'<i class="bar {kind}"><i style="width:{100 * share:.1f}%"></i></i>'


def _cards(shown: Sequence[Result], total: int) -> str:
    cards = []
    for result, image in zip(shown, _thumbnails(result.path for result in shown), strict=True):
        rows = "".join(
            f"<li><span>{escape(label)}</span><b>{probability:.0%}</b>"
            f"{_bar(probability, 'unsure' if result.probability < UNSURE else '')}</li>"
            for label, probability in result.ranking
        )
        path = escaped(result.path)
        name = escape(Path(path).name)
        cards.append(
            f'<li class="card">{image}<div><ol>{rows}</ol>'
            f'<p class="file" title="{escape(path, quote=True)}">{name}</p></div></li>'
        )
    if len(shown) == total:
        note = "Look at the first few: where the classifier doubts, one more example helps most."
    else:
        note = f"The {len(shown):,} least certain of {total:,}. One more example like these helps most."
    return f'<p class="note">{note}</p><ol class="cards">{"".join(cards)}</ol>'


def _sheet(examples: Sequence[tuple[Path, str]]) -> str:
    if not examples:
        return ""
    classes: dict[str, list[Path]] = {}
    for path, label in examples:
        classes.setdefault(label, []).append(path)
    rows = []
    for label, paths in list(classes.items())[:SHEET_CLASSES]:
        more = f' <span class="more">+{len(paths) - SHEET_IMAGES}</span>' if len(paths) > SHEET_IMAGES else ""
        images = "".join(_thumbnails(paths[:SHEET_IMAGES]))
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


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="generator" content="cnaps">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header><h1>{title}</h1><dl>{summary}</dl></header>
<main>
<h2>Found</h2>
<ul class="found">{found}</ul>
<h2>Least certain first</h2>
{cards}
{sheet}
{skipped}
</main>
<footer>Written by cnaps. Probabilities are the classifier's own; images stay on this machine.</footer>
</body>
</html>
"""

_STYLE = """
:root { color-scheme: light dark; --paper: #faf9f7; --card: #fff; --ink: #1d2126; --soft: #667079;
  --line: #e4e2dd; --accent: #2f6f6a; --doubt: #c0781f; }
@media (prefers-color-scheme: dark) { :root { --paper: #15181b; --card: #1d2125; --ink: #e8e6e1; --soft: #98a1a9;
  --line: #2e3439; --accent: #6bb5ad; --doubt: #e0a458; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1180px; padding: 2.5rem 1.5rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
h1 { font-size: 1.7rem; font-weight: 650; letter-spacing: -.015em; line-height: 1.25; margin: 0 0 1.2rem; }
h2 { font-size: 1.15rem; font-weight: 650; margin: 2.8rem 0 .6rem; }
h3 { font-size: .95rem; font-weight: 600; margin: 0 0 .35rem; overflow-wrap: anywhere; }
small, .note, .file, footer, .more { color: var(--soft); }
small { font-weight: 400; }
.note { margin: 0 0 1rem; }
dl { display: flex; flex-wrap: wrap; gap: .8rem; margin: 0; }
dl div { display: flex; flex-direction: column-reverse; min-width: 8.5rem; padding: .8rem 1.1rem;
  background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
dt { color: var(--soft); font-size: .85rem; }
dd { margin: 0; font-size: 1.6rem; font-weight: 650; font-variant-numeric: tabular-nums; line-height: 1.2; }
ul, ol { list-style: none; margin: 0; padding: 0; }
b { font-weight: 600; font-variant-numeric: tabular-nums; }
.bar { display: block; height: 6px; border-radius: 3px; background: var(--line); overflow: hidden; }
.bar i { display: block; height: 100%; min-width: 2px; border-radius: 3px; background: var(--accent); }
.bar.unsure i { background: var(--doubt); }
.found { columns: 2 22rem; column-gap: 2.5rem; }
.found li { display: grid; grid-template-columns: minmax(5rem, 9rem) 1fr 3.2rem; gap: .8rem; align-items: center;
  padding: .22rem 0; break-inside: avoid; }
.found span, .card span { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.found b, .card b { text-align: right; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(265px, 1fr)); gap: .9rem; }
.card { display: flex; gap: .9rem; padding: .8rem; background: var(--card); border: 1px solid var(--line);
  border-radius: 10px; }
.card > div { flex: 1; min-width: 0; display: flex; flex-direction: column; }
.card ol { flex: 1; }
.card ol li { display: grid; grid-template-columns: 1fr auto; column-gap: .6rem; font-size: .85rem;
  color: var(--soft); margin-bottom: .3rem; }
.card ol li:first-child { font-size: .98rem; font-weight: 600; color: var(--ink); }
.card ol .bar { grid-column: 1 / -1; height: 4px; }
.file { margin: .25rem 0 0; font-size: .78rem; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
img, .gone { width: 96px; height: 96px; object-fit: contain; border-radius: 6px; background: var(--line);
  flex: none; }
.tiny { image-rendering: pixelated; }
.gone { display: inline-block; border: 1px dashed var(--soft); background: none; }
.sheet { display: grid; gap: 1.3rem; }
.sheet p { display: flex; flex-wrap: wrap; gap: .4rem; align-items: center; margin: 0; }
.sheet img, .sheet .gone { width: 68px; height: 68px; }
.skipped li { padding: .3rem 0; border-bottom: 1px solid var(--line); font-size: .9rem; overflow-wrap: anywhere; }
footer { margin-top: 3rem; padding-top: 1rem; border-top: 1px solid var(--line); font-size: .85rem; }
@media (max-width: 480px) { body { padding: 1.4rem 1rem; } dl div { flex: 1; min-width: 6.5rem; } }
"""
