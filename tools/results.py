"""Write docs/results.md and its pictures from the stored numbers: `make results`.

results/NAME.json is what an experiment wrote, brought here by `python tools/results.py FILE [NAME]`.
results/NAME.md, where there is one, says in words what it shows, and in its first line the command that made it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cnaps.files import write_text
from cnaps.paper.experiments.active import active_report
from cnaps.paper.experiments.comparison import comparison_report
from cnaps.paper.experiments.continual import continual_report
from cnaps.paper.experiments.embeddings import embeddings_report
from cnaps.paper.experiments.reporting import Report
from cnaps.paper.experiments.speed import design_space_report, speed_report
from cnaps.paper.experiments.trust import trust_report

ROOT = Path(__file__).parents[1]
PICTURES = Path("images/results")

# The kind of a result is what its name begins with.
KINDS: dict[str, Callable[[dict[str, Any]], Report]] = {
    "evaluation": comparison_report,
    "comparison": comparison_report,
    "ablation": comparison_report,
    "joint": comparison_report,
    "adapters": comparison_report,
    "speed": speed_report,
    "design-space": design_space_report,
    "embeddings": embeddings_report,
    "continual": continual_report,
    "active": active_report,
    "trust": trust_report,
}

HEAD = """# Results

Written by `make results` from the numbers in `results/`, which the named commands wrote. Accuracies are in
percent, intervals are of 95%, differences are paired: the same tasks for both sides.
"""


def main(arguments: Sequence[str]) -> None:
    """Take in a result, if one is given; then render all of them, in the order of KINDS."""
    if arguments:
        source = Path(arguments[0])
        data = json.loads(source.read_text(encoding="utf-8"))
        if "scores" in data:
            data.pop("results", None)  # what a table says follows from the scores
        name = arguments[1] if len(arguments) > 1 else source.stem
        write_text(ROOT / "results" / f"{name}.json", json.dumps(data, separators=(",", ":")) + "\n")
    parts = [HEAD]
    for kind, render in KINDS.items():
        for path in sorted((ROOT / "results").glob(f"{kind}*.json")):
            parts.append(section(path, render(json.loads(path.read_text(encoding="utf-8")))))
    write_text(ROOT / "docs" / "results.md", "\n".join(parts))


def section(path: Path, report: Report) -> str:
    """One experiment: its words, tables and pictures."""
    words = path.with_suffix(".md")
    lines = [f"## {report.title}", ""]
    if words.exists():
        command, _, rest = words.read_text(encoding="utf-8").partition("\n")
        why = "<!-- not run: takes minutes, and needs the collections -->"
        lines += [why, "```sh", command, "```", "", rest.strip(), ""]
    lines += [line + "\n" for line in report.text]
    lines += [table.markdown() for table in report.tables.values()]
    for name, picture in report.save_pictures(ROOT / "docs" / PICTURES, path.stem).items():
        lines.append(f"![{report.title}: {name}]({PICTURES / picture.name})\n")
    return "\n".join(lines)


if __name__ == "__main__":
    main(sys.argv[1:])
