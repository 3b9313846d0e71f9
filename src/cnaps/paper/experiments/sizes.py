"""Accuracy against the size of a task: more and more shots, more and more ways, and classes of unequal sizes.

Along an axis everything else stays: 5 ways for shots, 5 shots for ways; for imbalance 10 ways of 10 images on
average, the largest so many times the smallest. Averages are over data sets with enough images for every point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
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
TITLES = {
    "shots": f"images a class ({WAYS} ways)",
    "ways": f"classes ({SHOTS} images each)",
    "imbalance": f"largest class for the smallest (10 ways, {MEAN} images a class on average)",
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


def measure_sizes(study: Study, *, axes: Sequence[str], tasks: int, unseen: Sequence[str]) -> dict[str, Any]:
    """Every learner at every point of every axis, on the data sets that have enough images for the whole axis."""
    setup, scores, used = study.agree("tasks", targets=TARGETS), Scores({}), dict[str, list[str]]()
    for axis in axes:
        if axis not in POINTS:
            raise InputError(f"--axes: no axis named {axis!r}; there are: {', '.join(POINTS)}")
    for axis, collection in product(axes, study.collections):
        drawn = [(value, draw_point(collection, study.split, axis, value, tasks)) for value in POINTS[axis]]
        if any(each is None for _, each in drawn):
            continue
        used.setdefault(axis, []).append(collection.name)
        for value, each in drawn:
            assert each is not None
            scores = study.score(partial(_label, axis=axis, value=value), each)
    points = {axis: list(POINTS[axis]) for axis in axes}
    facts = {"learners": list(study.learners), "points": points, "used": used}
    return {"setup": setup, **facts, "tasks": tasks, "unseen": list(unseen), "scores": scores.to_json()}


def sizes_report(data: dict[str, Any]) -> Report:
    """A panel for each axis and group of data sets; intervals are over tasks."""
    scores, unseen = Scores.from_json(data["scores"]), set(data["unseen"])
    table = Table(
        "Accuracy (%) with 95% interval, mean over data sets", ["axis", "data sets", "value", *data["learners"]]
    )
    groups = {"unseen classes": lambda name: name not in unseen, "unseen data sets": lambda name: name in unseen}
    axes_used = {axis: values for axis, values in data["points"].items() if axis in data["used"]}
    figure = new_figure(4.4 * len(axes_used), 7.2)
    panels = figure.subplots(2, len(axes_used), squeeze=False)
    for column, (axis, values) in enumerate(axes_used.items()):
        for row, (group, belongs) in enumerate(groups.items()):
            names = [name for name in data["used"][axis] if belongs(name)]
            panel = panels[row, column]
            panel.set(title=f"{group}: {len(names)}", xscale="log", xlabel=TITLES[axis], ylabel="accuracy (%)")
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
                table.rows.append([axis, ", ".join(names), value, *cells])
            for i, (who, estimates) in enumerate(found.items()):
                known = [(v, e) for v, e in zip(values, estimates, strict=True) if e is not None]
                heights, widths = ([100 * getattr(e, part) for _, e in known] for part in ("mean", "interval"))
                panel.errorbar(
                    [v for v, _ in known], heights, yerr=widths, label=who, capsize=2, **style(i, fmt="-")
                )
            panel.grid(alpha=0.3)
    panels[0, 0].legend(fontsize="small")
    text = [f"{data['tasks']} tasks of each data set and point, {TARGETS} targets a class."]
    return Report(
        "sizes", "Accuracy against shots, ways and imbalance", text, {"sizes": table}, {"sizes": figure}, data
    )


def _label(learner: str, axis: str, value: int) -> str:
    return f"{learner} {axis} {value}"
