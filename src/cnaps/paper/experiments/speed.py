"""Accuracy against time: one forward pass against gradient steps, and what each method costs in parameters."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import numpy as np

from cnaps.paper.experiments.evaluation import Study, TaskSet, task_arrays
from cnaps.paper.experiments.reporting import COLOURS, Report, Table, new_figure, style
from cnaps.paper.experiments.scores import Estimate, Scores
from cnaps.paper.learners import Learner
from cnaps.progress import track


def measure_speed(study: Study, *, shots: Sequence[int], tasks: int) -> dict[str, Any]:
    """5-way tasks with more and more shots: every score, with the time it took."""
    setup, scores = study.agree("tasks"), Scores({})
    for count in shots:
        drawn = TaskSet.draw(study.collections, study.split, tasks, ways=5, shots=count, targets=10)
        scores = study.score(f"{{}}@{count}".format, drawn)
    return {"setup": setup, "learners": list(study.learners), "shots": list(shots), "scores": scores.to_json()}


def speed_report(data: dict[str, Any]) -> Report:
    """Accuracy against time, a panel a data set, dots that grow with the shots."""
    scores, learners = Scores.from_json(data["scores"]), data["learners"]
    rows: list[dict[str, Any]] = []
    for collection in scores.collections:
        for name in learners:
            for count in data["shots"]:
                column = scores.column(f"{name}@{count}", collection)
                if not column.accuracy:
                    continue
                facts = {"data set": collection, "learner": name, "shots": count}
                numbers = Estimate.of(column.accuracy).numbers
                rows.append({**facts, **numbers, "seconds": float(np.median(column.seconds))})
    figure = new_figure(4.2 * min(len(scores.collections), 4), 4.2 * -(-len(scores.collections) // 4))
    panels = figure.subplots(-(-len(scores.collections) // 4), min(len(scores.collections), 4), squeeze=False)
    times = [row["seconds"] for row in rows]
    ticks = [digit * 10.0**power for power in range(-4, 5) for digit in (1, 2, 5)]
    ticks = [tick for tick in ticks if min(times) / 2 < tick < 2 * max(times)]
    for collection, axes in zip(scores.collections, panels.flat, strict=False):
        for i, name in enumerate(learners):
            some = [row for row in rows if row["data set"] == collection and row["learner"] == name]
            x, y = [row["seconds"] for row in some], [100 * row["mean"] for row in some]
            axes.plot(x, y, color=COLOURS[i], linewidth=0.6)
            axes.scatter(x, y, s=[12 + 5 * row["shots"] for row in some], color=COLOURS[i], alpha=0.7, label=name)
        axes.set(title=collection, xscale="log", xlabel="seconds a task", ylabel="accuracy (%)")
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    panels.flat[0].legend(fontsize="small")
    table = Table("Mean accuracy (5 ways) and median time to adapt and predict 50 images", list(rows[0]))
    table.rows = [[f"{v:.4f}" if isinstance(v, float) else v for v in row.values()] for row in rows]
    text = ["Dots grow with the number of shots. Time is for one task: adapting, and predicting 50 images."]
    first = learners[0]
    ratios = Table("How long a task takes, median over data sets and shots", ["learner", f"times {first}"])
    ours = {(row["data set"], row["shots"]): row["seconds"] for row in rows if row["learner"] == first}
    for name in learners[1:]:
        its = [row["seconds"] / ours[row["data set"], row["shots"]] for row in rows if row["learner"] == name]
        ratios.rows.append([name, f"{np.median(its):.1f}"])
    tables = {"ratios": ratios, "speed": table} if ratios.rows else {"speed": table}
    return Report("speed", "Accuracy against time", text, tables, {"speed": figure}, data)


def measure_costs(study: Study, *, tasks: int) -> dict[str, Any]:
    """Numbers that belong to a task and the time to find them, for every method on the same tasks."""
    collection = study.collections[0]
    drawn = TaskSet.draw([collection], study.split, tasks, ways=5, shots=5, targets=1).tasks[collection.name]
    rows: list[list[Any]] = []
    for name, learner in track(study.learners.items(), "measuring", total=len(study.learners)):
        seconds, parameters = measure_cost(learner, (task_arrays(collection, each, study.size) for each in drawn))
        rows.append([name, parameters, round(seconds, 4)])
    setup = {"data set": {collection.name: collection.fingerprint}, "learner": dict(study.identities)}
    return {"setup": setup, "data set": collection.name, "tasks": tasks, "image size": study.size, "rows": rows}


def design_space_report(data: dict[str, Any]) -> Report:
    """A dot a method: between adapting a classifier alone and adapting every weight, by one pass or many."""
    from matplotlib.transforms import Bbox

    rows = data["rows"]
    figure = new_figure(7, 5)
    axes = figure.add_subplot()
    for i, (_, parameters, seconds) in enumerate(rows):
        axes.scatter(parameters, seconds, **style(i))
    axes.set(xscale="log", yscale="log", xlabel="numbers that belong to a task", ylabel="seconds to adapt")
    axes.margins(0.15)
    figure.draw_without_rendering()  # places are known from here on
    taken = [axes.transData.transform((parameters, seconds)) for _, parameters, seconds in rows]
    blocked = [Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in taken]
    for i, (name, parameters, seconds) in enumerate(rows):
        for rise, side in product((4, -10, 15, -21, 26), ("left", "right")):  # beside the dot, then further away
            label = axes.annotate(
                name,
                (parameters, seconds),
                xytext=(6 if side == "left" else -6, rise),
                textcoords="offset points",
                ha=side,
                fontsize="small",
                color=style(i)["color"],
            )
            box = label.get_window_extent()
            if axes.bbox.containsx(box.x1) and not any(box.overlaps(other) for other in blocked):
                break
            label.remove()
        blocked.append(box)
    caption = f"5 ways, 5 shots of {data['data set']}: median over {data['tasks']} tasks"
    table = Table(caption, ["learner", "task-specific numbers", "seconds to adapt"], rows)
    text = [
        "Methods lie between adapting nothing but a classifier and adapting every weight, by one pass or many."
    ]
    return Report(
        "design-space", "The design space", text, {"design-space": table}, {"design-space": figure}, data
    )


def measure_cost(learner: Learner, tasks: Iterable[tuple[Any, Any]]) -> tuple[float, int]:
    """Median seconds to adapt, and how many numbers a task's classifier has."""
    seconds, parameters = [], 0
    for images, labels in tasks:
        began = time.perf_counter()
        parameters = learner.adapt(images, labels).parameters
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds)), parameters
