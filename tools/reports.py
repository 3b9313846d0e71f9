"""Tables of what tools/comparison.py, tools/tune_descent.py and benchmarks/unequal.py have stored."""

from __future__ import annotations

from typing import Any

import numpy as np

from cnaps.paper.experiments.reporting import Report, Table
from cnaps.paper.experiments.scores import Estimate


def grid_report(data: dict[str, Any]) -> Report:
    """The validation accuracy of each method at each rate, from what tools/comparison.py wrote."""
    rates = sorted({rate for method in data["methods"].values() for rate in method["rates"]}, key=float)
    table = Table("Accuracy in percent on validation domains by the rate of training", ["method", *rates, "best"])
    for name, method in data["methods"].items():
        found = [method["rates"].get(rate) for rate in rates]
        cells = ["" if each is None else _rate(each) for each in found]
        table.rows.append([name, *cells, method["best"]])
    return Report("grid", "How rates were chosen", [], {"grid": table}, {}, data)


def _rate(found: dict[str, Any]) -> str:
    return "diverged" if found.get("diverged") else f"{100 * found['accuracy']:.1f}"


def descent_report(data: dict[str, Any]) -> Report:
    """The accuracy of methods of gradient steps by steps and rate, from what tools/tune_descent.py wrote."""
    every = [(m, rate, found) for m, rates in data["accuracies"].items() for rate, found in rates.items()]
    kinds = list(dict.fromkeys(name.split(", ")[1] for *_, found in every for name in found))
    tried = {(name.split(", ")[1], int(n)) for *_, found in every for name, own in found.items() for n in own}
    columns = [(kind, str(n)) for kind in kinds for n in sorted(n for other, n in tried if other == kind)]
    caption = "Accuracy in percent on validation classes and domains by rate and steps"
    table = Table(caption, ["method", "rate", *[f"{kind}, {count} steps" for kind, count in columns], "tasks"])
    for method, rate, found in every:
        cells = []
        for kind, count in columns:
            mine = [own[count] for name, own in found.items() if f", {kind}," in name and count in own]
            cells.append(f"{100 * np.mean(mine):.1f}" if mine else "")
        table.rows.append([method, rate, *cells, len(found)])
    text = [f"Five ways, {data['setup']['image size']} pixels."]
    return Report("descent", "How steps and their rates were chosen", text, {"descent": table}, {}, data)


def unequal_report(data: dict[str, Any]) -> Report:
    """Coverage, and recall with and without what a class of few examples is given, from benchmarks/unequal.py."""
    rows, used = data["rows"], str(data["given back"])
    coverages, shares = list(rows[0]["sets"]), list(rows[0]["given"])
    titles = [f"{float(coverage):.0%}" for coverage in coverages]

    def mean(some: list[dict[str, Any]], kind: str, key: str, place: int) -> Estimate:
        return Estimate.of([row[kind][key][place] for row in some])

    def by(key: str, **wanted: str) -> dict[str, list[dict[str, Any]]]:
        some = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
        return {
            each: [row for row in some if row[key] == each] for each in dict.fromkeys(row[key] for row in some)
        }

    def sets(caption: str, groups: dict[str, list[dict[str, Any]]], first: str) -> Table:
        table = Table(
            caption, [first, *titles, *[f"few, {each}" for each in titles], "classes in a set at 90%", "tasks"]
        )
        for name, some in groups.items():
            held = [mean(some, "sets", key, place) for place in (1, 0) for key in coverages]
            table.rows.append([name, *map(str, held), f"{mean(some, 'sets', '0.9', 2).mean:.2f}", len(some)])
        return table

    tables = {}
    for part in ("unseen", "validation"):
        groups = by("case", part=part)
        caption = f"How often (%) prediction sets hold the true class, {part}"
        tables[f"sets {part}"] = sets(caption, groups, "examples")
        caption = f"Recall (%) of the classes of fewest examples, and of all, {part}"
        table = Table(caption, ["examples", "few, without", "few, with", "all, without", "all, with", "tasks"])
        for case, some in groups.items():
            found = [mean(some, "given", key, place) for place in (0, 1) for key in ("0.0", used)]
            table.rows.append([case, *map(str, found), len(some)])
        tables[f"recall {part}"] = table
    caption = "How often (%) prediction sets hold the true class, unseen, tasks by the protocol"
    tables["by data set"] = sets(caption, by("data set", part="unseen", case="Meta-Dataset"), "data set")
    choice = Table(
        "Accuracy (%) by how much is given to classes of few examples, validation", ["examples", *shares]
    )
    for case, some in by("case", part="validation").items():
        choice.rows.append([case, *[f"{100 * mean(some, 'given', share, 1).mean:.1f}" for share in shares]])
    unequal = [row for row in rows if row["part"] == "validation" and row["case"] in _UNEQUAL]
    choice.rows.append(["mean of those that are unequal", *[
        f"{100 * mean(unequal, 'given', share, 1).mean:.1f}" for share in shares
    ]])  # fmt: skip
    tables["choice"] = choice
    return Report("unequal", "Unequal numbers of examples, and prediction sets", [], tables, {}, data)


_UNEQUAL = ("1 beside 5", "1 beside 20", "5 beside 20", "20 beside 1")
