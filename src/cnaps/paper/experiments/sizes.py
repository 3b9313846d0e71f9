"""Accuracy against the size of a task: more and more shots, more and more ways, and classes of unequal sizes.

Along an axis everything else stays: 5 ways for shots, 5 shots for ways; for imbalance 10 ways of 10 images on
average, the largest so many times the smallest. A line is the mean over the same data sets at each of its points:
it goes as far as two data sets of its group have images for, or one where there are no two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from cnaps.data.collection import Collection
from cnaps.episodes import TaskDescription
from cnaps.errors import DataError, InputError
from cnaps.paper.experiments.evaluation import Study, TaskSet
from cnaps.paper.experiments.reporting import Report, Table, new_figure, style
from cnaps.paper.experiments.scores import Scores

POINTS = {
    "shots": (1, 2, 5, 10, 25, 50, 100),
    "ways": (2, 5, 10, 20, 50),
    "imbalance": (1, 4, 16),
}
WAYS, SHOTS, MEAN, TARGETS = 5, 5, 10, 10  # of the axes that do not vary; MEAN: images a class, for imbalance
DRAWN = 5  # a line of fewer tasks a point is mostly noise: it is in the table alone, where others have more
TITLES = {
    "shots": f"images a class ({WAYS} ways)",
    "ways": f"classes ({SHOTS} images each)",
    "imbalance": f"largest class / smallest (10 ways, {10 * MEAN} images)",
}


def class_sizes(ways: int, mean: int, ratio: int) -> list[int]:
    """Sizes that fall by equal factors from the largest class to the smallest, with this mean.

    >>> class_sizes(4, 10, 1), class_sizes(4, 10, 16)
    ([10, 10, 10, 10], [27, 9, 3, 1])
    """
    shape = ratio ** -np.linspace(0, 1, ways)
    sizes = np.maximum(1, np.floor(shape / shape.sum() * ways * mean + 1e-9).astype(int))
    sizes[0] += ways * mean - sizes.sum()
    return [int(size) for size in sizes]


def unbalanced(described: TaskDescription, sizes: Sequence[int]) -> TaskDescription:
    """The same task with so many context images of each class."""
    context = tuple(rows[:size] for rows, size in zip(described.context, sizes, strict=True))
    return replace(described, context=context)


def draw_point(collection: Collection, split: str | None, axis: str, value: int, tasks: int) -> TaskSet | None:
    """The tasks of a point of an axis; None where the data set has too few images or classes for it."""
    ways, shots = WAYS, SHOTS
    sizes: list[int] = []
    if axis == "shots":
        shots = value
    elif axis == "ways":
        ways = value
    else:
        ways, sizes = 10, class_sizes(10, MEAN, value)
        shots = sizes[0]
    try:
        drawn = TaskSet.draw([collection], split, tasks, ways=ways, shots=shots, targets=TARGETS, hierarchy=False)
    except DataError:
        return None
    if sizes:
        drawn.tasks = {name: [unbalanced(each, sizes) for each in some] for name, some in drawn.tasks.items()}
    return drawn


def common_reach(reach: Mapping[str, int]) -> tuple[int, list[str]]:
    """How many points of an axis a line has, and over which data sets, from how many each can have.

    >>> common_reach({"few": 2, "many": 5, "more": 6}), common_reach({"few": 2})
    ((5, ['many', 'more']), (2, ['few']))
    """
    longest = sorted(reach.values(), reverse=True)[:2]
    points = longest[-1] if longest else 0
    return points, [name for name, own in reach.items() if own >= points > 0]


def measure_sizes(study: Study, *, axes: Sequence[str], tasks: int, unseen: Sequence[str]) -> dict[str, Any]:
    """Every learner at every point of every axis, on the data sets that have enough images."""
    setup, scores, used = study.agree("tasks", targets=TARGETS), Scores({}), dict[str, dict[str, int]]()
    for axis in axes:
        if axis not in POINTS:
            raise InputError(f"--axes: no axis named {axis!r}; there are: {', '.join(POINTS)}")
        drawn = {each.name: list(draw_points(each, study.split, axis, tasks)) for each in study.collections}
        used[axis] = {name: len(points) for name, points in drawn.items() if points}
        for group in groups_of(used[axis], unseen).values():
            count, names = common_reach(group)
            for value, each in (point for name in names for point in drawn[name][:count]):
                scores = study.score(partial(_label, axis=axis, value=value), each)
    points = {axis: list(POINTS[axis]) for axis in axes}
    facts = {"learners": list(study.learners), "points": points, "used": used}
    return {"setup": setup, **facts, "tasks": tasks, "unseen": list(unseen), "scores": scores.to_json()}


def draw_points(collection: Collection, split: str | None, axis: str, tasks: int) -> Iterator[tuple[int, TaskSet]]:
    """The points of an axis, as far as the data set has images or classes for them."""
    for value in POINTS[axis]:
        drawn = draw_point(collection, split, axis, value, tasks)
        if drawn is None:
            return
        yield value, drawn


def groups_of(reach: Mapping[str, int], unseen: Sequence[str]) -> dict[str, dict[str, int]]:
    """Data sets whose classes are new, and those that are new as a whole."""
    return {
        title: {name: points for name, points in reach.items() if (name in unseen) == whole}
        for title, whole in (("unseen classes", False), ("unseen data sets", True))
    }


def sizes_report(data: dict[str, Any]) -> Report:
    """A panel for each axis and group of data sets; intervals are over tasks."""
    scores = Scores.from_json(data["scores"])
    table = Table(
        "Accuracy (%) with 95% interval, mean over data sets", ["axis", "data sets", "value", *data["learners"]]
    )
    axes_used = {axis: values for axis, values in data["points"].items() if axis in data["used"]}
    figure = new_figure(4.4 * len(axes_used), 7.6)
    panels = figure.subplots(2, len(axes_used), squeeze=False)
    counts = {who: _tasks(scores, who) for who in data["learners"]}
    enough = min(DRAWN, max(counts.values()))
    for column, (axis, every) in enumerate(axes_used.items()):
        for row, (group, reach) in enumerate(groups_of(data["used"][axis], data["unseen"]).items()):
            count, names = common_reach(reach)
            values, panel = every[:count], panels[row, column]
            title = f"{group}: {', '.join(names)}" if len(names) < 3 else f"{len(names)} {group}"
            panel.set(title=title, xscale="log", xlabel=TITLES[axis], ylabel="accuracy (%)")
            panel.set_xticks(values, [str(value) for value in values])
            panel.minorticks_off()
            if not names:
                continue
            found = {
                who: [scores.accuracy(_label(who, axis, value), names) for value in values]
                for who in data["learners"]
            }
            for place, value in enumerate(values):
                cells = [str(found[who][place] or "") for who in data["learners"]]
                table.rows.append([axis, " and ".join(names), value, *cells])
            for i, who in enumerate(who for who in found if counts[who] >= enough):
                estimates = found[who]
                known = [(v, e) for v, e in zip(values, estimates, strict=True) if e is not None]
                heights, widths = ([100 * getattr(e, part) for _, e in known] for part in ("mean", "interval"))
                panel.errorbar(
                    [v for v, _ in known], heights, yerr=widths, label=who, capsize=2, **style(i, fmt="-")
                )
            panel.grid(alpha=0.3)
    shown = {
        name: line for panel in panels.flat for line, name in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(shown.values(), shown, loc="outside lower center", ncols=5, fontsize="small")
    fewer = [f"{count} for {who}" for who, count in counts.items() if count < max(counts.values())]
    many = ", ".join([f"{max(counts.values())} tasks of each data set and point", *fewer])
    undrawn = [who for who, count in counts.items() if count < enough]
    text = [f"{many}; {TARGETS} targets a class."]
    if undrawn:
        text.append(f"Too few tasks to be drawn, and in the table alone: {', '.join(undrawn)}.")
    return Report(
        "sizes", "Accuracy against shots, ways and imbalance", text, {"sizes": table}, {"sizes": figure}, data
    )


def _tasks(scores: Scores, learner: str) -> int:
    """How many tasks a learner has at a point."""
    mine = [label for label in scores.columns if label.startswith(f"{learner} ")]
    return max((len(scores.tasks(label, name)) for label in mine for name in scores.columns[label]), default=0)


def _label(learner: str, axis: str, value: int) -> str:
    return f"{learner} {axis} {value}"
