"""Write docs/results.md, the pages in docs/results/ and their pictures from the stored numbers: `make results`.

results/NAME.json is what an experiment wrote, brought here by `python tools/results.py FILE [NAME]`, with `--made`
and the command that it is made by where that is more than the experiment's own, and
results/NAME.md says in words what it shows. `python tools/results.py --unpack NAME FOLDER` lays stored scores,
or the runs of a continual experiment, out where `cnaps experiment` looks for them: what is stored is not done
again. The words ask for numbers, so that they cannot differ from the tables:

    {accuracy WHO | ROW}             of a comparison, as in its table
    {difference WHO - OTHER | ROW}   on the same tasks, signed; {by ...} without the sign; ROW or `SET and SET`
    {cell TABLE | ROW | COLUMN}      of any report; a row is found by its first cells, separated by commas
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from paper_runs import paper_report
from reports import descent_report, grid_report, unequal_report

from cnaps.files import write_json, write_text
from cnaps.paper.experiments.active import active_report
from cnaps.paper.experiments.comparison import comparison_report, table_rows
from cnaps.paper.experiments.continual import continual_report, run_file
from cnaps.paper.experiments.embeddings import embeddings_report
from cnaps.paper.experiments.reporting import Report, Table
from cnaps.paper.experiments.scores import ScoreBook, Scores, agree, without_seed
from cnaps.paper.experiments.sizes import sizes_report
from cnaps.paper.experiments.speed import design_space_report, speed_report
from cnaps.paper.experiments.trust import trust_report

ROOT = Path(__file__).parents[1]

# The kind of a result is what its name begins with.
KINDS: dict[str, Callable[[dict[str, Any]], Report]] = {
    "evaluation": comparison_report,
    "full-size": comparison_report,
    "film": comparison_report,
    "comparison": comparison_report,
    "ladder": comparison_report,
    "joint": comparison_report,
    "adapters": comparison_report,
    "paper": paper_report,
    "sizes": sizes_report,
    "speed": speed_report,
    "design-space": design_space_report,
    "embeddings": embeddings_report,
    "continual": continual_report,
    "active": active_report,
    "trust": trust_report,
    "grid": grid_report,
    "descent": descent_report,
    "unequal": unequal_report,
}


@dataclass(frozen=True)
class Page:
    """A question and the kinds of results that answer it."""

    name: str
    question: str
    kinds: tuple[str, ...]


@dataclass(frozen=True)
class View:
    """Some rows of the comparison, as a result of their own; only those that are stored are shown."""

    name: str
    title: str
    rows: tuple[str, ...]
    against: str

    def of(self, data: dict[str, Any]) -> dict[str, Any] | None:
        """The data of the view, or None where there are no two rows, or not the one to compare with."""
        stored = list(data["setup"]["learner"])
        labels = {row: [each for each in stored if without_seed(each) == row] for row in self.rows}
        if not labels[self.against] or sum(map(bool, labels.values())) < 2:
            return None
        mine = [label for row in self.rows for label in labels[row]]
        setup = {**data["setup"], "learner": {label: data["setup"]["learner"][label] for label in mine}}
        scores = {label: data["scores"][label] for label in mine}
        about = {"name": self.name, "title": self.title, "against": self.against}
        return {**data, **about, "setup": setup, "scores": scores}


METHODS = (
    *("cnaps", "cnaps-no-ar", "cnaps-no-film", "simple-cnaps", "tadam-style", "protonet-trained"),
    *("matchingnet-trained", "versa", "fomaml", "proto-maml", "proto-maml-fixed-norms"),
    "residual-adapters-trained",
    *(
        "logreg",
        "protonet",
        "matchingnet",
        "finetune",
        "finetune-tuned",
        "finetune-long",
        "film-gradient-tuned",
        "residual-adapters",
    ),
)
PAPER_HEADS = ("cnaps-linear@last", "cnaps-linear-long@last")
VIEWS = (
    View(
        "comparison",
        "Methods around one backbone",
        (*(f"{name}@all" for name in METHODS), *PAPER_HEADS, *(f"{name}@last" for name in METHODS)),
        "cnaps@all",
    ),
    View(
        "ladder",
        "From the paper's model to the default one",
        (
            *("cnaps-linear@last", "cnaps-linear-no-film@last", "cnaps-linear-long@last"),
            *("cnaps-cosine@last", "cnaps-ridge@last"),
            *("cnaps-no-film@last", "cnaps-no-ar@last", "cnaps@last"),
            *("cnaps-no-film@all", "cnaps-no-ar@all", "cnaps@all", "cnaps-lora@all", "cnaps-taught@all"),
        ),
        "cnaps@all",
    ),
    View(
        "joint",
        "Joint against two-stage training",
        ("cnaps@all", "cnaps-joint@all", "cnaps-warm-start@all"),
        "cnaps@all",
    ),
    View(
        "adapters",
        "FiLM against residual adapters",
        ("cnaps@all", "residual-adapters-trained@all", "film-gradient-tuned@all", "residual-adapters@all"),
        "cnaps@all",
    ),
)
PAGES = (
    Page("default-model", "How good is the default model?", ("evaluation", "film", "full-size")),
    Page("methods", "How do other methods compare?", ("comparison", "grid", "descent")),
    Page("parts", "What is each part worth?", ("ladder", "joint", "adapters")),
    Page("sizes", "How does accuracy grow with shots, and fall with ways?", ("sizes",)),
    Page("speed", "How fast is it?", ("speed", "design-space")),
    Page("steps", "Does it learn on without forgetting?", ("continual",)),
    Page("labels", "Does it know which labels help?", ("active",)),
    Page("trust", "How far can answers be trusted?", ("trust", "unequal")),
    Page("embeddings", "What do the adaptation networks see?", ("embeddings",)),
    Page("paper", "The paper's own model", ("paper",)),
)
HEAD = """# Results

Written by `make results` from the numbers in `results/`; each names the command that made it. Accuracies are in
percent, intervals are of 95%, differences are paired: the same tasks for both sides. An interval of an average
over data sets is taken over tasks, since data sets share the draws of their tasks.
"""


class Result:
    """A stored result: its data, its report, and the facts that its words may ask for."""

    def __init__(self, name: str, data: dict[str, Any]) -> None:
        self.name, self.data = name, data
        kind = max((kind for kind in KINDS if self.name.startswith(kind)), key=len)
        self.report = KINDS[kind](self.data)

    def fill(self, words: str) -> str:
        """Words with their numbers."""
        asked = re.compile(r"\{(accuracy|difference|by|cell)\s+([^}]+)\}")
        return asked.sub(lambda m: self.fact(m[1], " ".join(m[2].split())), words)

    def fact(self, kind: str, asked: str) -> str:
        """One number, with its interval."""
        first, *rest = (part.strip() for part in asked.split("|"))
        if kind == "cell":
            return _cell(self.report.tables[first], *rest)
        scores = Scores.from_json(self.data["scores"])
        rows = dict(table_rows(scores.collections, self.data["unseen"]))
        sets = rows.get(rest[0]) or rest[0].split(" and ")
        if kind == "accuracy":
            found = scores.accuracy(first, sets)
        else:
            learner, other = (part.strip() for part in first.split(" - "))
            found = scores.difference(learner, other, sets)
        assert found is not None, f"{self.name}: nothing is known of {asked}"
        return str(found) if kind == "accuracy" else found.signed.lstrip("+-" if kind == "by" else "")


def stored() -> Iterator[Result]:
    """Every result: the files of results/, and the views of the comparison in its place."""
    for path in sorted((ROOT / "results").glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        if path.stem == "comparison":
            views = ((view.name, view.of(data)) for view in VIEWS)
            yield from (Result(name, some) for name, some in views if some is not None)
        else:
            yield Result(path.stem, data)


def _cell(table: Table, row: str, column: str) -> str:
    wanted = [part.strip() for part in row.split(",")]
    rows = [each for each in table.rows if [str(cell) for cell in each[: len(wanted)]] == wanted]
    assert len(rows) == 1, f"{table.caption}: {len(rows)} rows begin with {row}"
    return str(rows[0][list(table.columns).index(column)])


def main(arguments: Sequence[str]) -> None:
    """Take in a result, if one is given, then render all of them; or unpack one."""
    if arguments and arguments[0] == "--unpack":
        unpack(arguments[1], Path(arguments[2]))
        return
    made = None
    if arguments and arguments[0] == "--made":
        made, arguments = arguments[1], arguments[2:]
    if arguments:
        source = Path(arguments[0])
        name = arguments[1] if len(arguments) > 1 else source.stem
        take_in(json.loads(source.read_text(encoding="utf-8")), name, made)
    for path, text in render(pictures=True).items():
        write_text(path, text)


def take_in(data: dict[str, Any], name: str, made_by: str | None = None) -> None:
    """Keep a result as results/NAME.json; scores join those that are there, if they are of the same setup."""
    path = ROOT / "results" / f"{name}.json"
    if made_by is not None:
        data["made"]["command"] = " ".join(made_by.split())
    if "scores" in data:
        data.pop("results", None)  # what a table says follows from the scores
        if path.exists():
            held = json.loads(path.read_text(encoding="utf-8"))
            try:
                agree(held["setup"], data["setup"])
            except ValueError as error:
                raise SystemExit(
                    f"{path} {error}: it is another experiment; remove that file to begin anew"
                ) from None
            scores = Scores.from_json(held["scores"]).joined(Scores.from_json(data["scores"]))
            axes = [key for key in ("points", "used") if key in held]  # of sizes
            both: dict[str, Any] = {key: {**held[key], **data[key]} for key in axes}
            if "learners" in held:
                both["learners"] = list(dict.fromkeys([*held["learners"], *data["learners"]]))
            if "tasks" in held:
                both["tasks"] = max(held["tasks"], data["tasks"])
            commands = dict.fromkeys(
                line for part in (held, data) for line in part["made"]["command"].splitlines()
            )
            made = {**data["made"], "command": "\n".join(commands)}
            data = {**data, **both, "setup": held["setup"], "scores": scores.to_json(), "made": made}
    write_text(path, json.dumps(data, separators=(",", ":")) + "\n")


def unpack(name: str, folder: Path) -> None:
    """Stored runs or scores, as files that an experiment goes on from; those that are there stay."""
    held = ROOT / "results" / f"{name}.json"
    if not held.exists():
        return
    data, book = json.loads(held.read_text(encoding="utf-8")), ScoreBook(folder)
    if "scores" in data:
        book.agree(data["setup"], write=True)
        known = book.read()
        book.append(score for score in Scores.from_json(data["scores"]).single() if score.key not in known)
        return
    book.agree(data["config"], write=True)
    for result in data["results"]:
        path = run_file(folder, result["method"], result["shots"], result["run"])
        if not path.exists():
            write_json(path, result)


def render(*, pictures: bool = False) -> dict[Path, str]:
    """The text of every page; with `pictures`, these are written."""
    found = {result.name: result for result in stored()}
    pages: dict[Path, str] = {}
    answers = []
    for page in PAGES:
        mine = [result for kind in page.kinds for result in found.values() if result.name.startswith(kind)]
        if not mine:
            continue
        parts = [f"# {page.question}\n", *[section(result, pictures=pictures) for result in mine]]
        pages[ROOT / "docs" / "results" / f"{page.name}.md"] = "\n".join(parts)
        short = _words(mine[0])[0]
        answers.append(f"- [{page.question}](results/{page.name}.md) {short}")
    main_table = main_result(found["evaluation"])
    outlook = (ROOT / "results" / "outlook.md").read_text(encoding="utf-8")
    pages[ROOT / "docs" / "results.md"] = "\n".join([
        HEAD, main_table.markdown(), "## Questions, a page each\n", *answers, "", outlook
    ])  # fmt: skip
    for repeating in (ROOT / "README.md", ROOT / "docs" / "default-model.md"):
        pages[repeating] = repeated(repeating.read_text(encoding="utf-8"), model_card(found["evaluation"]))
    return pages


def repeated(text: str, table: Table) -> str:
    """A page that repeats the rows and the first columns of a table, perhaps in bold, with its numbers."""
    numbers = {str(row[0]): [str(cell) for cell in row[1:]] for row in table.rows}
    lines = text.splitlines(keepends=True)
    for at, line in enumerate(lines):
        cells = line.split("|")
        name = cells[1].strip(" *") if line.startswith("|") and len(cells) > 5 else ""
        for k, number in zip(range(2, len(cells) - 1), numbers.get(name, []), strict=False):
            cells[k] = f" **{number}** " if "**" in cells[k] else f" {number} "
        lines[at] = "|".join(cells)
    return "".join(lines)


def model_card(result: Result) -> Table:
    """The main table, and which probe was the best, tasks and calibration errors."""
    scores, table = Scores.from_json(result.data["scores"]), main_result(result)
    probes, other = [who for who in scores.columns if who.startswith("probe-")], result.data["against"]
    titles = [*table.columns, "which probe", "tasks", "calibration error", "of the probe"]
    card = Table(table.caption, titles)
    for row, (_, sets) in zip(table.rows, table_rows(scores.collections, result.data["unseen"]), strict=True):
        means = {who: np.mean([scores.column(who, name).accuracy for name in sets]) for who in probes}
        which = max(probes, key=means.__getitem__).removeprefix("probe-").replace("-", ", ")
        tasks = sum(len(scores.tasks("cnaps", name)) for name in sets)
        errors = [f"{scores.calibration_error(who, sets):.3f}" for who in ("cnaps", other)]
        card.rows.append([*row, which if len(sets) == 1 else "", tasks, *errors])
    return card


def main_result(result: Result) -> Table:
    """The default model beside the first learner that it is compared with."""
    scores = Scores.from_json(result.data["scores"])
    ours, other = "cnaps", result.data["against"]
    table = Table("The default model on tasks of at most 20 ways and 200 context images", [
        "data set", ours, other, "difference"
    ])  # fmt: skip
    for row, sets in table_rows(scores.collections, result.data["unseen"]):
        difference = scores.difference(ours, other, sets)
        assert difference is not None
        table.rows.append([row, scores.accuracy(ours, sets), scores.accuracy(other, sets), difference.signed])
    return table


def _words(result: Result) -> tuple[str, str]:
    """The first sentence, which the index shows, and the rest."""
    path = ROOT / "results" / f"{result.name}.md"
    text = result.fill(path.read_text(encoding="utf-8")) if path.exists() else ""
    first, _, rest = text.partition("\n\n")
    return first.replace("\n", " ").strip(), rest.strip()


def section(result: Result, *, pictures: bool) -> str:
    """One experiment: its words, its first table, its pictures, and the other tables folded away."""
    report, (first, rest) = result.report, _words(result)
    tables = list(report.tables.values())
    command = result.data["made"]["command"]
    lines = [
        f"## {report.title}",
        "",
        first,
        "",
        rest,
        "",
        *[line + "\n" for line in report.text],
        tables[0].markdown(),
    ]
    folder = ROOT / "docs" / "images" / "results"
    if pictures:
        report.save_pictures(folder, result.name)
    for name in report.pictures:
        file = result.name if name == report.name else f"{result.name}-{name}"
        lines.append(f"![{report.title}: {name}](../images/results/{file}.png)\n")
    for table in tables[1:]:
        body = table.markdown().partition("\n\n")[2]
        lines.append(f"<details markdown><summary>{table.caption}</summary>\n\n{body}\n</details>\n")
    why = "<!-- not run: takes long, and needs the collections -->"
    lines += ["Made by", "", why, "```sh", command, "```", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    main(sys.argv[1:])
