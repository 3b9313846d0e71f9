"""Faults, one after another, and a table of what happened: `make torture`.

`--quick` tries a little of each and writes nothing. Names of checks run those alone; what the others did before is
kept in out/torture.json.
"""

from __future__ import annotations

import json
import platform
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from cnaps import __version__
from cnaps.files import write_json, write_text
from cnaps.parallel import cpu_count

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.torture import broken, kills, limits
from tests.torture.common import QUICK, Row, Scale

ROOT = Path(__file__).resolve().parents[2]
PAGE, KEPT = ROOT / "docs" / "reliability.md", ROOT / "out" / "torture.json"
CHECKS = {check.__name__: check for module in (limits, kills, broken) for check in module.CHECKS}
NEEDS_TASK = {"through_server", "mixed_requests", "huge_images"}

TEXT = """# Reliability: what was tried, and what happened

Written by `make torture`, which does all of this to the package as it is and fails where something breaks. Images
are pieces of two photographs and handwritten digits that come with scikit-learn; what is random has a fixed seed.

{header}

{table}

What these mean:

- Every file is written beside its target and then renamed over it; a folder is exchanged in one step where the
  system can (Linux). A process that is killed may leave a hidden `.name.*.tmp` behind, which nothing reads; the
  studio moves those of its project to its trash when it opens it.
- Task files, model folders, training checkpoints and collections carry a digest of their content. The digest of a
  collection's images is looked at by `cnaps check` alone, so that opening one costs nothing.
- A digest shows damage, not nonsense. Mutations change values, types, sizes and names and write the digest anew;
  each is loaded and then answers sensibly, or is refused with one sentence.
- The server decodes images in processes of their own. A file that breaks, stalls or floods a decoder costs that
  process alone.
- The command line decodes in threads of its own process: a bug in an image library that ends the process ends the
  command. Nothing of the {files:,} files above did that.
"""


def main(arguments: list[str]) -> int:
    """Run the checks; 1 where one failed."""
    started = time.monotonic()
    scale = QUICK if "--quick" in arguments else Scale()
    names = [name for name in arguments if name in CHECKS] or list(CHECKS)
    kept: dict[str, list[Any]] = json.loads(KEPT.read_text()) if KEPT.exists() and scale == Scale() else {}
    with tempfile.TemporaryDirectory(prefix="torture-") as name:
        shared = Path(name) / "shared"
        shared.mkdir()
        if NEEDS_TASK & set(names) and "through_classify" not in names:
            names.insert(0, "through_classify")
        for each in names:
            place = shared if each in NEEDS_TASK | {"through_classify"} else Path(name) / each
            place.mkdir(exist_ok=True)
            begun = time.monotonic()
            try:
                found = CHECKS[each](scale, place)
            except Exception as error:
                traceback.print_exc()
                found = [Row(each, "", f"failed: {error!r}"[:300], False)]
            for row in found:
                print(f"{'ok  ' if row.ok else 'FAIL'} {row.what}: {row.tried}: {row.happened}", flush=True)
            print(f"     ({each}: {time.monotonic() - begun:.0f} s)", flush=True)
            kept[each] = [(row.what, row.tried, row.happened, bool(row.ok)) for row in found]
            if scale == Scale():
                write_json(KEPT, kept)
    rows = [Row(*values) for each in CHECKS for values in kept.get(each, ())]
    if scale == Scale() and kept.keys() >= CHECKS.keys():
        write_page(rows, scale.files, time.monotonic() - started)
    failed = sum(not row.ok for row in rows)
    print(f"{len(rows) - failed} of {len(rows)} as they should be")
    return int(failed > 0)


def header(seconds: float) -> str:
    """When, with which versions and on what."""
    system = f"Python {platform.python_version()}, torch {torch.__version__}, {cpu_count()} processors"
    return f"{time.strftime('%Y-%m-%d')}, cnaps {__version__} ({system}), in {seconds / 60:.0f} minutes:"


def write_page(rows: list[Row], files: int, seconds: float) -> None:
    """The table, in docs/reliability.md."""
    lines = ["| what | how much | what happened | |", "| --- | --- | --- | --- |"]
    for row in rows:
        cells = " | ".join(_cell(text) for text in (row.what, row.tried, row.happened))
        lines.append(f"| {cells} | {'✓' if row.ok else '✗'} |")
    write_text(PAGE, TEXT.format(header=header(seconds), table="\n".join(lines), files=files))
    print(f"wrote {PAGE}")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
