"""The tables and pictures of `cnaps evaluate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cnaps.errors import InputError
from cnaps.nn.backbones import Backbone
from cnaps.paper.experiments.published import published_table
from cnaps.paper.experiments.reporting import Report, Table, new_figure, style
from cnaps.paper.experiments.scores import Estimate, Scores, without_seed
from cnaps.paper.learners.gradient import film_layers, residual_adapters

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def comparison_report(data: dict[str, Any]) -> Report:
    """Accuracy for each data set, averages over groups, paired differences, calibration.

    `data` is what `compare` gave, and beside it: `name`, `title` and perhaps a `note`, the names of `unseen` data
    sets, whom to compare `against`, perhaps rows of `parameters`, and `beside`, whose published table to show.
    """
    name = data["name"]
    scores, against = Scores.from_json(data["scores"]), data["against"]
    learners = list(dict.fromkeys(without_seed(who) for who in data["setup"]["learner"]))
    if against not in learners:
        raise InputError(f"cannot compare with {against}: there are results of {', '.join(learners)}")
    others = [who for who in learners if who != against]
    rows = table_rows(scores.collections, data["unseen"])

    def table(caption: str, names: Sequence[str], cell: Callable[[str, list[str]], Any]) -> Table:
        return Table(
            caption, ["data set", *names], [[row, *[cell(who, some) for who in names]] for row, some in rows]
        )

    calibrated = "calibration" in data["setup"]
    several = any(len(scores.seeds(who)) > 1 for who in learners)
    seeded = "; in brackets the standard deviation over training seeds" if several else ""
    averages = [(row.removeprefix("average, "), some) for row, some in rows if row.startswith("average")]
    summary = Table(
        f"Averages over data sets in percent with 95% intervals, and the difference from {against}{seeded}",
        ["method", *[row for row, _ in averages], "difference", *(["seeds"] if several else [])],
    )
    for who in learners:
        cells = [_cell(scores.accuracy(who, some)) + _seeds(scores.spread(who, some)) for _, some in averages]
        gap = ""
        if who != against:
            gap = _cell(scores.difference(who, against, scores.collections), True)
            gap += _seeds(scores.spread(who, scores.collections, against))
        number = len(scores.seeds(who)) if who not in scores.columns else ""
        summary.rows.append([who, *cells, gap, *([number] if several else [])])
    tables = {
        "averages": summary,
        name: table(
            "Accuracy in percent, mean over tasks with 95% interval" + seeded,
            learners,
            lambda who, some: _cell(scores.accuracy(who, some)) + _seeds(scores.spread(who, some)),
        ),
        "differences": table(
            f"Difference from {against} on the same tasks, in percentage points",
            others,
            lambda who, some: _cell(scores.difference(who, against, some), True),
        ),
        "tasks": table(
            "Number of tasks", learners, lambda who, some: sum(len(scores.tasks(who, c)) for c in some)
        ),
    }
    if not others:
        del tables["differences"]
    if calibrated:  # of one method alone it would say more about the temperature than about the method
        tables["calibration"] = table(
            "Expected calibration error (15 bins); temperatures of all from the same validation tasks",
            learners,
            lambda who, some: _error(scores.calibration_error(who, some)),
        )
    counts = {len(scores.tasks(who, name)) for who in learners for name in scores.collections}
    if len(counts) == 1:
        del tables["tasks"]
    results = {
        who: {
            row: {
                "accuracy": _numbers(scores.accuracy(who, some)),
                "standard deviation over seeds": scores.spread(who, some),
                f"difference from {against}": _numbers(scores.difference(who, against, some)),
                "calibration error": scores.calibration_error(who, some) if calibrated else None,
            }
            for row, some in rows
        }
        for who in learners
    }
    many = len(learners) > MOST_IN_A_COLUMN
    pictures = {name: _averages(scores, learners, averages) if many else _accuracies(scores, learners)}
    if calibrated:
        pictures["reliability"] = _reliability(scores, learners)
    if "parameters" in data:
        tables["parameters"] = Table("Numbers that belong to a task", ADAPTER_COLUMNS, data["parameters"])
    if data.get("beside"):
        tables["published"] = published_table(scores.collections)
    number = f"{counts.pop()} tasks of each data set. " if len(counts) == 1 else ""
    text = [f"{number}Every learner sees the same tasks, backbone and image size.", data.get("note", "")]
    return Report(
        name, data["title"], [line for line in text if line], tables, pictures, {**data, "results": results}
    )


ADAPTER_COLUMNS = ("adapter", "numbers", "layers", "numbers a layer")


def adapter_rows(backbone: Backbone) -> list[list[Any]]:
    """What FiLM and residual adapters add to each layer and to the whole network, under ADAPTER_COLUMNS."""
    counts = [[p.numel() for p in part(backbone).learned] for part in (film_layers, residual_adapters)]
    return [
        ["FiLM", sum(counts[0]), len(counts[0]) // 2, round(2 * sum(counts[0]) / len(counts[0]))],
        ["residual adapters", sum(counts[1]), len(counts[1]), round(sum(counts[1]) / len(counts[1]))],
    ]


def table_rows(collections: Sequence[str], unseen: Sequence[str]) -> list[tuple[str, list[str]]]:
    """The rows of a table: each data set, then the averages over groups.

    >>> [name for name, _ in table_rows(["a", "b", "c"], ["c"])]
    ['a', 'b', 'average, unseen classes', 'c', 'average, unseen data sets', 'average']
    """
    groups = {
        "unseen classes": [name for name in collections if name not in unseen],
        "unseen data sets": [name for name in collections if name in unseen],
    }
    rows: list[tuple[str, list[str]]] = []
    for group, names in groups.items():
        rows += [(name, [name]) for name in names]
        if names and len(names) < len(collections):
            rows.append((f"average, {group}", names))
    return [*rows, ("average", list(collections))]


MOST_IN_A_COLUMN = 10  # learners whose colours can be told apart


def _averages(scores: Scores, learners: Sequence[str], groups: Sequence[tuple[str, list[str]]]) -> Figure:
    """A line for each learner, with a dot for each group of data sets."""
    figure = new_figure(7.0, 0.27 * len(learners) + 1.2)
    axes = figure.add_subplot()
    for i, (title, names) in enumerate(groups[:-1] or groups):  # the last is the average of all
        found = [(y, scores.accuracy(who, names)) for y, who in enumerate(learners)]
        points = [(100 * e.mean, y + 0.2 * i - 0.1, 100 * e.interval) for y, e in found if e is not None]
        x, places, widths = zip(*points, strict=True)
        axes.errorbar(x, places, xerr=widths, label=title, capsize=2, markersize=5, **style(i, fmt=""))
    axes.set_yticks(range(len(learners)), learners)
    axes.invert_yaxis()
    axes.set_xlabel("accuracy (%), mean over data sets")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(fontsize="small")
    return figure


def _accuracies(scores: Scores, learners: Sequence[str]) -> Figure:
    figure = new_figure(max(7.0, 1.1 * len(scores.collections)), 4.8)
    axes = figure.add_subplot()
    for i, who in enumerate(learners):
        shift = (i - (len(learners) - 1) / 2) * 0.7 / len(learners)
        found = [(x, scores.accuracy(who, [name])) for x, name in enumerate(scores.collections)]
        points = [(x + shift, 100 * e.mean, 100 * e.interval) for x, e in found if e is not None]
        if points:
            x, y, width = zip(*points, strict=True)
            axes.errorbar(x, y, yerr=width, label=who, capsize=2, markersize=5, **style(i, fmt=""))
    axes.set_xticks(range(len(scores.collections)), scores.collections, rotation=30, ha="right")
    axes.set_ylabel("accuracy (%)")
    axes.grid(axis="y", alpha=0.3)
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _reliability(scores: Scores, learners: Sequence[str]) -> Figure:
    figure = new_figure(5.2, 5.0)
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color="#999", linewidth=1)
    for i, who in enumerate(learners):
        count, confidence, hits = scores.reliability(who, scores.collections)
        used = count > 0.002 * max(count.sum(), 1)
        n = np.maximum(count[used], 1)
        axes.plot(confidence[used] / n, hits[used] / n, label=who, markersize=4, **style(i))
    axes.set_xlabel("confidence")
    axes.set_ylabel("share of correct predictions")
    axes.legend(fontsize="small")
    return figure


def _cell(estimate: Estimate | None, signed: bool = False) -> str:
    if estimate is None:
        return ""
    return estimate.signed if signed else str(estimate)


def _seeds(spread: float | None) -> str:
    return "" if spread is None else f" ({100 * spread:.1f})"


def _error(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _numbers(estimate: Estimate | None) -> dict[str, float | None] | None:
    return None if estimate is None else estimate.numbers
