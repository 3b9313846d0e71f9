"""Continual learning: classes arrive in steps, and what was learned is tested after each.

Every method sees the same streams. Multi-head accuracy chooses among the classes of one step, single-head accuracy
among all classes seen so far.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from cnaps.data.collection import Collection
from cnaps.errors import DataError, InputError
from cnaps.files import write_json
from cnaps.nn.frozen import FrozenFeatures
from cnaps.paper.continual import METHODS, NETWORKS, ON_FEATURES, ContinualLearner, create_continual
from cnaps.paper.continual.adapting import AdaptingLearner
from cnaps.paper.continual.base import BATCH
from cnaps.paper.experiments.reporting import Report, Table, new_figure, style
from cnaps.paper.experiments.scores import ScoreBook
from cnaps.progress import progress_bar

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from cnaps.nn.model import CNAPs

HEADS = ("multi", "single")
DRIFT_SHOTS, DRIFT_RUNS = 25, 10  # drift needs all earlier images again: up to so many a class, in the first runs


@dataclass(frozen=True)
class Benchmark:
    """Classes a step, whether their order is fixed, the images that small networks see, and how they train."""

    classes: int
    ordered: bool
    size: int
    grey: bool = False
    batch: int = BATCH
    strengths: Mapping[str, float] = field(default_factory=dict)  # of methods that hold weights, if not their own


# Strengths by tools/tune_continual.py; those of networks that are not here are as published for Split MNIST.
BENCHMARKS = {
    "split-mnist": Benchmark(2, True, 28, grey=True, strengths={"ridge@features": 10.0}),
    "split-cifar10": Benchmark(2, True, 32, strengths={"ridge@features": 300.0}),
    "split-cifar100": Benchmark(
        10,
        False,
        32,
        batch=64,
        strengths={
            **{"si": 8.0, "ewc": 500.0, "rwalk": 0.02},
            **{"si@features": 0.1, "ewc@features": 50.0, "rwalk@features": 0.2, "ridge@features": 300.0},
        },
    ),
    "split-collection": Benchmark(20, False, 32, strengths={"ridge@features": 300.0}),
}
# Final accuracy in per cent as the CNAPs paper lists it: multi-head, single-head.
PUBLISHED: dict[str, dict[str, tuple[float, float | None]]] = {
    "split-mnist": {
        "cnaps-paper": (98.9, 80.9),
        "si": (99.3, 57.6),
        "ewc": (99.3, 55.8),
        "vcl": (98.5, None),
        "rwalk": (99.3, 82.5),
    },
    "split-cifar100": {
        "cnaps-paper": (76.0, 37.2),
        "si": (73.2, 22.8),
        "ewc": (72.8, 23.1),
        "rwalk": (74.2, 34.0),
    },
}


class Stream:
    """The steps of one run: which classes, which images to learn from, which to be tested on."""

    def __init__(self, collection: Collection, benchmark: Benchmark, tests: int, run: int) -> None:
        self.collection = collection
        order = np.arange(len(collection.classes))
        if not benchmark.ordered:
            order = np.random.default_rng([run, 1]).permutation(order)
        whole = len(order) // benchmark.classes * benchmark.classes
        if whole < 2 * benchmark.classes:
            raise DataError(f"{collection.name} has {len(order)} classes: too few for two steps")
        self.steps = order[:whole].reshape(-1, benchmark.classes)  # (T, K), in the order of the stream
        self.train: list[np.ndarray] = []
        self.test: list[np.ndarray] = []
        for k in self.steps.flat:
            rows = np.random.default_rng([int(k), 2]).permutation(np.array(collection.rows(int(k))))
            # official test images where the data set has some, else the same random ones in every run
            official = np.array([key.startswith(("t10k/", "test/")) for key in collection.keys(rows.tolist())])
            if official.all() or not official.any():
                official = np.arange(len(rows)) < min(tests, len(rows) // 2)
            self.test.append(rows[official][:tests])
            self.train.append(np.random.default_rng([run, int(k), 3]).permutation(rows[~official]))
        self._small: dict[tuple[Any, ...], Tensor] = {}

    def rows(self, step: int, shots: int | None, *, test: bool = False) -> tuple[list[int], Tensor]:
        """Rows of the collection and labels of a step; label i is the i-th class of the stream."""
        width = self.steps.shape[1]
        labels = range(step * width, (step + 1) * width)
        chosen = [(self.test if test else self.train)[i][:shots] for i in labels]
        repeats = torch.tensor([len(rows) for rows in chosen])
        return np.concatenate(chosen).tolist(), torch.tensor(list(labels)).repeat_interleave(repeats)

    def part(self, step: int, shots: int | None, size: int, *, test: bool = False) -> tuple[Tensor, Tensor]:
        """Images (N, 3, size, size) and labels of a step."""
        rows, labels = self.rows(step, shots, test=test)
        key = (step, shots, size, test)
        images = self._small.get(key)
        if images is None:
            images = self.collection.read(rows, size=size)
            if size <= 32:  # all networks read the same images, and decoding takes longer than learning
                self._small[key] = images
        return images, labels


class FeatureTable:
    """Features of images, by every stage of a backbone as it is; their mean square is one.

    They are computed when they are first asked for, once for all runs and methods.
    """

    def __init__(self, collection: Collection, model: CNAPs, size: int) -> None:
        self.collection, self.size = collection, size
        self.frozen = FrozenFeatures(model.backbone, every_stage=True)
        self.width = self.frozen.size
        self._known: dict[int, Tensor] = {}  # by row of the collection

    def __getitem__(self, rows: Sequence[int]) -> Tensor:
        """(N, d)."""
        new = torch.tensor([row for row in dict.fromkeys(rows) if row not in self._known], dtype=torch.long)
        for part in new.split(1000):
            found = self.frozen(self.collection.read(part.tolist(), size=self.size)) * self.width**0.5
            self._known.update(zip(part.tolist(), found, strict=True))
        return torch.stack([self._known[row] for row in rows])


class FeatureStream:
    """The steps of a stream in features of its images."""

    def __init__(self, stream: Stream, table: FeatureTable) -> None:
        self.steps, self.stream, self.table = stream.steps, stream, table

    def part(self, step: int, shots: int | None, size: int, *, test: bool = False) -> tuple[Tensor, Tensor]:
        """Features (N, d) and labels of a step; of images whose size the table has, whatever `size` says."""
        rows, labels = self.stream.rows(step, shots, test=test)
        return self.table[rows], labels


@dataclass(frozen=True)
class Trials:
    """What is tried on a benchmark; None of `shots` stands for all images."""

    methods: Sequence[str]
    shots: Sequence[int | None]
    runs: int
    tests: int  # images of a class, at most
    iterations: int  # of a network, for each step
    classes: int | None = None  # a step; as the benchmark has it
    size: int | None = None  # of the images that a model reads; its own


def run_continual(
    name: str, collection: Collection, out: str | Path, trials: Trials, model: CNAPs | None = None
) -> dict[str, Any]:
    """Every method, number of shots and run that `out` does not hold yet; gives all that it holds.

    A finished result is a file of its own, so a run can be stopped.
    """
    if name not in BENCHMARKS:
        raise InputError(f"no benchmark named {name!r}; there are: {', '.join(BENCHMARKS)}")
    for method in trials.methods:
        if method not in METHODS:
            raise InputError(f"no continual method named {method!r}; there are: {', '.join(METHODS)}")
    held, methods, shots = BENCHMARKS[name], trials.methods, trials.shots
    benchmark = replace(held, classes=trials.classes or held.classes)
    setup: dict[str, dict[str, Any]] = {
        "stream": {"benchmark": name, "classes a step": benchmark.classes, "test images a class": trials.tests},
        "data set": {collection.name: collection.fingerprint},
    }
    if any(method.partition("@")[0] in NETWORKS for method in methods):
        setup["networks"] = {"iterations a step": trials.iterations}
        if benchmark.batch != BATCH:
            setup["networks"] |= {"images a batch": benchmark.batch, **_strengths(benchmark, featured=False)}
    side = 0 if model is None else trials.size or model.image_size
    if model is not None and any(method.startswith("cnaps-") for method in methods):
        setup["model"] = {"fingerprint": model.fingerprint(), "image size": side}
    if model is not None and any(method in ON_FEATURES for method in methods):
        setup["features"] = {"backbone": model.backbone.digest(), "stages": "all", "image size": side}
        setup["features"] |= _strengths(benchmark, featured=True)
    setup = ScoreBook(out).agree(setup, write=True)

    table = None if model is None else FeatureTable(collection, model, side)
    with progress_bar() as bar:
        row = bar.add_task(name, total=trials.runs * len(shots) * len(methods), note="")
        for run in range(trials.runs):
            stream = Stream(collection, benchmark, trials.tests, run)
            for few, method in product(shots, methods):
                path = run_file(out, method, few, run)
                bar.update(row, note=f"{method}, {few or 'all'} shots, run {run}")
                if not path.exists():
                    began = time.perf_counter()
                    size = benchmark.size if method in NETWORKS else side
                    options: dict[str, Any] = {"size": size, "grey": benchmark.grey, "seed": run, "model": model}
                    options |= training_of(benchmark, method, trials.iterations)
                    steps: Stream | FeatureStream = stream
                    if method in ON_FEATURES:
                        assert table is not None
                        steps, options["size"] = FeatureStream(stream, table), table.width
                    learner = create_continual(method, stream.steps.size, **options)
                    found = follow(steps, learner, few, size, drift=run < DRIFT_RUNS)
                    seconds = round(time.perf_counter() - began, 1)
                    write_json(path, {"method": method, "shots": few, "run": run, **found, "seconds": seconds})
                bar.advance(row)
    return {"config": setup, "results": [_read(path) for path in sorted((Path(out) / "runs").glob("*.json"))]}


def run_file(out: str | Path, method: str, shots: int | None, run: int) -> Path:
    """Where a finished result lies."""
    return Path(out) / "runs" / f"{method}-{shots or 'all'}-{run}.json"


def training_of(benchmark: Benchmark, method: str, iterations: int) -> dict[str, float]:
    """How a method's network trains on a benchmark, and how strongly it is held."""
    own = {"strength": benchmark.strengths[method]} if method in benchmark.strengths else {}
    trained = {"iterations": iterations, "batch": benchmark.batch}
    return own | (trained if method.partition("@")[0] in NETWORKS else {})


def _strengths(benchmark: Benchmark, *, featured: bool) -> dict[str, float]:
    return {name: own for name, own in benchmark.strengths.items() if (name in ON_FEATURES) == featured}


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is damaged ({error}): remove it, and it is done again") from error


def follow(
    stream: Stream | FeatureStream, learner: ContinualLearner, shots: int | None, size: int, *, drift: bool = True
) -> dict[str, Any]:
    """One method along one stream: accuracy of each step's classes after each step, (T, T), a row a step."""
    steps, width = stream.steps.shape
    asked = [stream.part(step, None, size, test=True) for step in range(steps)]
    # with fixed FiLM there is nothing to measure
    drift &= isinstance(learner, AdaptingLearner) and learner.mode != "fixed" and (shots or 10**9) <= DRIFT_SHOTS
    found: dict[str, Any] = {head: [] for head in HEADS} | {"drift": [], "images": 0}
    for step in range(steps):
        learned, labels = stream.part(step, shots, size)
        learner.learn(learned, labels)
        found["images"] += len(labels)
        logits = [learner.logits(images) for images, _ in asked[: step + 1]]
        for head in HEADS:
            found[head].append([_accuracy(logits[j], asked[j][1], head, j, step, width) for j in range(step + 1)])
        if drift and isinstance(learner, AdaptingLearner):
            seen = [stream.part(j, shots, size) for j in range(step + 1)]
            found["drift"].append(round(learner.drift(*(torch.cat(part) for part in zip(*seen, strict=True))), 6))
    return found


def _accuracy(logits: Tensor, truth: Tensor, head: str, task: int, step: int, width: int) -> float:
    """Of the images of one task, after some step."""
    first, last = (task * width, (task + 1) * width) if head == "multi" else (0, (step + 1) * width)
    hits = logits[:, first:last].argmax(1) + first == truth
    return round(float(hits.double().mean()), 5)


def forgetting(table: Sequence[Sequence[float]]) -> float:
    """How far below its best each earlier task ended, on average (Chaudhry et al., 2018).

    >>> round(forgetting([[0.9], [0.6, 0.8]]), 2)
    0.3
    """
    last = len(table) - 1
    drops = [max(table[i][j] for i in range(j, last)) - table[last][j] for j in range(last)]
    return sum(drops) / len(drops)


def continual_report(data: dict[str, Any], heads: Sequence[str] = HEADS) -> Report:
    """Tables and pictures of what `run_continual` gave."""
    groups: dict[tuple[str, int | None], list[dict[str, Any]]] = {}
    order = {method: i for i, method in enumerate(METHODS)}
    for result in sorted(data["results"], key=lambda r: (order[r["method"]], r["shots"] or 10**9, r["run"])):
        groups.setdefault((result["method"], result["shots"]), []).append(result)
    if not groups:
        raise DataError("there are no results to report")
    name = data["config"]["stream"]["benchmark"]
    published = PUBLISHED.get(name, {})
    columns = ["method", "shots", "runs", "images"]
    for head in heads:
        columns += [f"{head}-head", f"{head}-head, published", f"{head}-head forgetting"]
    table = Table("Accuracy over all steps after the last one, and forgetting, in %: mean ± sd over runs", columns)
    for (method, shots), some in groups.items():
        cells: list[Any] = [method, shots or "all", len(some), some[0]["images"]]
        for head in heads:
            listed = published.get(method, (None, None)) if (shots or 100) >= 100 else (None, None)
            known = listed[HEADS.index(head)]  # those figures are of many images
            cells += [_spread([np.mean(r[head][-1]) for r in some]), known]
            cells.append(_spread([forgetting(r[head]) for r in some]))
        table.rows.append(cells)
    collection = next(iter(data["config"]["data set"]))
    text = [
        f"{collection}: {data['config']['stream']['classes a step']} classes a step, tested on at most "
        f"{data['config']['stream']['test images a class']} images a class.",
        "Multi-head chooses among the classes of one step, single-head among all classes seen so far. Networks "
        "train with the classes of a step competing (rwalk and joint: all classes so far); CNAPs does not train.",
    ]
    featured = {key: some for key, some in groups.items() if key[0] in ON_FEATURES}
    shown = {key: some for key, some in groups.items() if key not in featured} or groups
    pictures = {"accumulated": _accumulated(shown, heads), "tasks": _tasks(shown, heads)}
    if featured:
        text.append(
            "`@features`: on features of every stage of the backbone as it is, in the place of images. Class "
            "means and ridge regression keep sums and are not trained."
        )
        whole = {key: some for key, some in groups.items() if key[0] == "cnaps-paper"} | featured
        most = max(shots or 10**9 for _, shots in featured)
        pictures["features"] = _accumulated(
            {key: some for key, some in whole.items() if (key[1] or 10**9) == most}, heads
        )
    if any(result["drift"] for result in data["results"]):
        pictures["drift"] = _drift(groups)
    title = f"Continual learning: {name}" + ("" if name != "split-collection" else f" of {collection}")
    return Report("continual", title, text, {"continual": table}, pictures, data)


def _spread(values: Sequence[Any]) -> str:
    sd = f" ± {100 * np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
    return f"{100 * np.mean(values):.1f}{sd}"


Groups = dict[tuple[str, int | None], list[dict[str, Any]]]


def _looks(groups: Groups) -> dict[tuple[str, int | None], dict[str, Any]]:
    """Others by colour, dashed; CNAPs the darker the more images, with rings where FiLM is made anew."""
    from matplotlib import colormaps

    others = list(dict.fromkeys(method for method, _ in groups if not method.startswith("cnaps-")))
    sizes = sorted({shots for method, shots in groups if method not in others}, key=lambda shots: shots or 10**9)
    shades = dict(zip(sizes, colormaps["Blues"](np.linspace(1, 0.3, len(sizes))[::-1]), strict=True))
    rings = {"linestyle": ":", "marker": "o", "markersize": 6, "markerfacecolor": "none"}
    return {
        (method, shots): {"linestyle": "--", "markersize": 4, **style(1 + others.index(method))}
        if method in others
        else {"color": shades[shots], **({"linestyle": "-"} if method == "cnaps-fixed" else rings)}
        for method, shots in groups
    }


def _line(axes: Axes, key: tuple[str, int | None], look: dict[str, Any], start: int, runs: Sequence[Any]) -> None:
    """Mean over runs, shaded by one standard deviation."""
    values = 100 * np.array(runs)
    steps = np.arange(start, start + values.shape[1])
    axes.plot(steps, values.mean(0), label=f"{key[0]}, {key[1] or 'all'}", **look)
    if len(values) > 1:
        mean, sd = values.mean(0), values.std(0, ddof=1)
        axes.fill_between(steps, mean - sd, mean + sd, color=look["color"], alpha=0.15, linewidth=0)


def _legend(figure: Figure, panel: Axes) -> None:
    lines, labels = panel.get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside right upper", fontsize="small", title="method, images a class")


def _accumulated(groups: Groups, heads: Sequence[str]) -> Figure:
    figure = new_figure(5 * len(heads) + 2, 4.6)
    panels = figure.subplots(1, len(heads), squeeze=False)[0]
    looks = _looks(groups)
    for head, axes in zip(heads, panels, strict=True):
        for key, some in groups.items():
            _line(axes, key, looks[key], 1, [[float(np.mean(row)) for row in r[head]] for r in some])
        axes.set(title=f"{head}-head", xlabel="steps learned", ylabel="accuracy over steps so far, %")
        axes.locator_params(axis="x", integer=True)
        axes.grid(alpha=0.3)
    _legend(figure, panels[0])
    return figure


def _tasks(groups: Groups, heads: Sequence[str]) -> Figure:
    """A panel a task (at most four, evenly chosen, not the last): its accuracy from when it was learned."""
    steps = len(next(iter(groups.values()))[0]["multi"])
    shown = np.unique(np.linspace(0, steps - 2, min(4, steps - 1)).astype(int))
    figure = new_figure(2.9 * len(shown) + 2, 2.8 * len(heads))
    panels = figure.subplots(len(heads), len(shown), squeeze=False, sharex=True, sharey="row")
    looks = _looks(groups)
    for head, line in zip(heads, panels, strict=True):
        for task, axes in zip(shown, line, strict=True):
            for key, some in groups.items():
                _line(axes, key, looks[key], task + 1, [[row[task] for row in r[head][task:]] for r in some])
            axes.set(title=f"step {task + 1}, {head}-head", xlabel="steps learned" if head == heads[-1] else "")
            axes.locator_params(axis="x", integer=True)
            axes.grid(alpha=0.3)
        line[0].set_ylabel("accuracy, %")
    _legend(figure, panels[0][0])
    return figure


def _drift(groups: Groups) -> Figure:
    figure = new_figure(6.5, 3.8)
    axes = figure.add_subplot()
    looks = _looks(groups)
    for key, some in groups.items():
        measured = [r["drift"] for r in some if r["drift"]]
        if measured:
            _line(axes, key, looks[key], 1, measured)
    axes.set(xlabel="steps learned", ylabel="drift of class means, % of their spread")
    axes.locator_params(axis="x", integer=True)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    return figure
