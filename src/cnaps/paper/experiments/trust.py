"""How far answers can be trusted: calibration, images of no class, and labels that are wrong."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cnaps.bridge.engine import TorchEngine
from cnaps.data.collection import Collection
from cnaps.episodes import TaskDescription
from cnaps.episodes.task import flat_rows
from cnaps.images.sizes import auto_size
from cnaps.nn.model import CNAPs
from cnaps.paper.experiments.evaluation import TaskSet
from cnaps.paper.experiments.reporting import COLOURS, Report, Table, new_figure
from cnaps.paper.experiments.scores import (
    Estimate,
    ScoreBook,
    append_lines,
    calibration_error,
    measure,
    over_tasks,
    read_lines,
)
from cnaps.parallel import read_ahead
from cnaps.progress import track
from cnaps.runtime.review import judge
from cnaps.runtime.task import Examples, FittedTask

FLIPPED = 0.1  # of the labels
_SCORES = ("novelty", "1 - highest probability")


def trust_runs(model: CNAPs, task_set: TaskSet, out: Path, *, split: str | None) -> dict[str, Any]:
    """Every task that is not in the folder yet; gives the data of `trust_report`."""
    sizes = model.notes.get("image_sizes")  # of a model for one size there are none
    setup = {
        "tasks": {**task_set.protocol, "image size": "auto" if sizes else model.image_size},
        "data set": {name: task_set.collections[name].fingerprint for name in task_set.tasks},
        "model": {"fingerprint": model.fingerprint(), "calibration": model.notes.get("calibration")},
    }
    ScoreBook(out).agree(setup, write=True)
    path = out / "trust.jsonl"
    done = {(run["data set"], run["task"]) for run in read_lines(path, dict)}
    for name, tasks in task_set.tasks.items():
        collection, due = task_set.collections[name], [each for each in tasks if (name, each.index) not in done]
        read = read_ahead(
            partial(_read, collection, split, None if sizes else model.image_size), due, threads=1, depth=2
        )
        for parts, described in zip(track(read, name, total=len(due)), due, strict=True):
            found = measure_trust(model, parts, seed=described.index)
            about = {"data set": name, "task": described.index, "ways": described.ways}
            about["size"] = parts.context.shape[-1]
            append_lines(path, [about | found])
    wanted = {(name, each.index) for name, tasks in task_set.tasks.items() for each in tasks}
    runs = [run for run in read_lines(path, dict) if (run["data set"], run["task"]) in wanted]
    bins = {
        name: {
            when: np.sum([run["bins"][when] for run in runs if run["data set"] == name], axis=0).round(3).tolist()
            for when in ("before", "after")
        }
        for name in task_set.tasks
    }
    return {"setup": setup, "bins": bins, "tasks": [{k: v for k, v in run.items() if k != "bins"} for run in runs]}


class _Parts(NamedTuple):
    """Pixels uint8 (N, 3, S, S) of a task, labels of the first two, and as many images of other classes."""

    context: Tensor
    labels: Tensor
    targets: Tensor
    truth: Tensor
    outside: Tensor


def _read(collection: Collection, split: str | None, size: int | None, described: TaskDescription) -> _Parts:
    if size is None:
        size = auto_size(collection.looks(flat_rows(described.context)[0].tolist()))
    chance = np.random.default_rng(described.index)
    every = range(len(collection.classes)) if split is None else collection.splits[split]
    others = chance.permutation(sorted(set(every) - set(described.classes)))[: described.ways]
    each = len(described.targets[0])
    outside = [row for k in others.tolist() for row in chance.permutation(collection.rows(k))[:each].tolist()]
    (context, labels), (targets, truth) = map(flat_rows, (described.context, described.targets))
    images = [collection.read(rows, size=size) for rows in (context.tolist(), targets.tolist(), outside)]
    return _Parts(images[0], torch.from_numpy(labels), images[1], torch.from_numpy(truth), images[2])


def measure_trust(model: CNAPs, task: _Parts, *, seed: int) -> dict[str, Any]:
    """Calibration bins before and after the temperature, AUROC of scores of novelty, flipped labels found."""
    from sklearn.metrics import roc_auc_score

    context, labels, targets, truth, outside = task
    engine = TorchEngine(model)
    fitted = FittedTask.learn(engine, Examples(context.numpy(), labels.tolist()))
    features = fitted.features(torch.cat([targets, outside]).numpy())
    logits = torch.from_numpy(fitted.classifier(features[: len(targets)])).double()
    found: dict[str, Any] = {
        "context": len(labels),
        "bins": {
            "before": measure(logits, truth)["bins"],
            "after": measure(logits / fitted.temperature, truth)["bins"],
        },
    }
    if len(outside):
        novel = np.arange(len(features)) >= len(targets)
        scores = fitted.novelty(features), 1 - fitted.probabilities(features).max(1)
        found["auroc"] = {
            name: round(float(roc_auc_score(novel, each)), 4) for name, each in zip(_SCORES, scores, strict=True)
        }
    wrong, flipped = flip_labels(labels, seed)
    if len(flipped):
        fitted = FittedTask.learn(engine, Examples(context.numpy(), wrong.tolist()))
        fit = fitted.left_out(fitted.features(context.numpy()), wrong.numpy())
        judged = judge(fit, wrong.numpy(), fitted.names)
        found["flipped"] = {
            "labels": len(flipped),
            "first": len(flipped & {each.index for each in judged[: len(flipped)]}),
            "suspects": sum(each.suspicious for each in judged),
            "found": sum(each.suspicious and each.index in flipped for each in judged),
        }
    return found


def flip_labels(labels: Tensor, seed: int) -> tuple[Tensor, set[int]]:
    """A tenth of the labels replaced by others at random, and which; only of classes with at least three examples.

    >>> wrong, flipped = flip_labels(torch.arange(4).repeat(5), seed=0)
    >>> len(flipped), int((wrong != torch.arange(4).repeat(5)).sum())
    (2, 2)
    """
    chance = np.random.default_rng(seed)
    wrong, ways = labels.clone(), int(labels.max()) + 1
    flipped: set[int] = set()
    for i in chance.permutation(len(labels)).tolist():
        if len(flipped) < int(FLIPPED * len(labels)) and (wrong == labels[i]).sum() > 2:
            wrong[i] = (labels[i] + int(chance.integers(1, ways))) % ways
            flipped.add(i)
    return wrong, flipped


def trust_report(data: dict[str, Any]) -> Report:
    """Three tables and a picture, from what `trust_runs` gave."""
    names = list(data["bins"])
    tasks = {name: [task for task in data["tasks"] if task["data set"] == name] for name in names}
    errors = {
        when: [calibration_error(data["bins"][name][when]) for name in names] for when in ("before", "after")
    }
    calibration = Table("Expected calibration error", ["data set", "before calibration", "after"])
    calibration.rows = [[name, f"{a:.3f}", f"{b:.3f}"] for name, a, b in zip(names, *errors.values(), strict=True)]
    calibration.rows.append(["mean", *[f"{np.mean(each):.3f}" for each in errors.values()]])
    novelty = Table("AUROC (%) for images of classes outside the task", ["data set", *_SCORES, "tasks"])
    aurocs = {
        name: [Estimate.of([task["auroc"][score] for task in tasks[name] if "auroc" in task]) for score in _SCORES]
        for name in names
        if any("auroc" in task for task in tasks[name])
    }
    novelty.rows = [[name, *map(str, found), found[0].count] for name, found in aurocs.items()]
    if aurocs:
        means = [
            over_tasks([{t["task"]: t["auroc"][score] for t in tasks[name] if "auroc" in t} for name in aurocs])
            for score in _SCORES
        ]
        novelty.rows.append(
            ["mean", *[str(mean or "") for mean in means], sum(e[0].count for e in aurocs.values())]
        )
    review = Table(
        "10% of the labels flipped: share found (%)",
        ["data set", "among the first 10%", "called suspicious", "of those called, truly flipped", "flipped"],
    )
    sums = {
        name: np.sum([list(task["flipped"].values()) for task in tasks[name] if "flipped" in task], axis=0)
        for name in names
        if any("flipped" in task for task in tasks[name])
    }
    sums["all"] = np.sum(list(sums.values()), axis=0)
    for name, (labels, first, suspects, found) in sums.items():
        shares = [first / labels, found / labels, found / max(suspects, 1)]
        review.rows.append([name, *[f"{100 * share:.1f}" for share in shares], int(labels)])
    text = [
        "Tasks by the Meta-Dataset protocol. Calibration divides logits by the temperature of the fitted task"
        + ("." if data["setup"]["model"]["calibration"] else "; of this model no validation tasks are known."),
        "Novelty is what `FittedTask.novelty` says.",
        "An example is judged by the others, in closed form, under the FiLM that all labels made, wrong ones too.",
    ]
    figure = new_figure(13, 4)
    left, middle, right = figure.subplots(1, 3)
    left.plot([0, 1], [0, 1], color="#999999", linewidth=0.8)
    for i, when in enumerate(("before", "after")):
        count, confidence, hits = np.sum([data["bins"][name][when] for name in names], axis=0)
        some = count >= 20
        left.plot(confidence[some] / count[some], hits[some] / count[some], "o-", color=COLOURS[i], label=when)
    left.set(title="calibration, all data sets", xlabel="probability", ylabel="share that is right")
    left.legend()
    _bars(middle, list(aurocs), [[100 * each.mean for each in found] for found in aurocs.values()], list(_SCORES))
    middle.set(title="images of no class", ylabel="AUROC (%)", ylim=(50, 110))
    _bars(
        right,
        list(sums),
        [[100 * s[1] / s[0], 100 * s[3] / s[0]] for s in sums.values()],
        list(review.columns[1:3]),
    )
    right.set(title="flipped labels", ylabel="found (%)", ylim=(0, 120))
    tables = {"calibration": calibration, "novelty": novelty, "review": review}
    return Report("trust", "How far answers can be trusted", text, tables, {"trust": figure}, data)


def _bars(axes: Any, names: Sequence[str], rows: Sequence[Sequence[float]], labels: Sequence[str]) -> None:
    for i, (label, heights) in enumerate(zip(labels, zip(*rows, strict=True), strict=True)):
        axes.bar(np.arange(len(names)) + 0.4 * i, heights, 0.38, color=COLOURS[i], label=label)
    axes.set_xticks(np.arange(len(names)) + 0.2, names, rotation=20)
    axes.legend(fontsize="small", loc="upper right")
