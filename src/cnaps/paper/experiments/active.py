"""Active learning as in the paper: images labelled one after the other, chosen by doubt and by chance.

A panel is an alphabet, or all classes of a data set that has no groups. What a method changes in the network it
makes from the first labels, and then it stays: images are embedded once a start, and an iteration makes a
classifier of stored features.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from cnaps.bridge.engine import TorchEngine
from cnaps.data.collection import Collection
from cnaps.errors import DataError, InputError
from cnaps.nn.frozen import CHUNK
from cnaps.nn.model import CNAPs
from cnaps.paper.experiments.evaluation import Study
from cnaps.paper.experiments.reporting import COLOURS, Report, Table, new_figure
from cnaps.paper.experiments.scores import Estimate, append_lines, read_lines
from cnaps.paper.learners import FeatureLearner, Learner
from cnaps.paper.learners.cnaps import TrainedLearner
from cnaps.paper.learners.embedding import EmbeddingModel
from cnaps.progress import track
from cnaps.runtime.suggest import choose
from cnaps.runtime.task import Examples, FittedTask

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Fit: TypeAlias = Callable[[Tensor, Tensor], Callable[[Tensor], np.ndarray]]  # features, labels -> probabilities


@dataclass(frozen=True)
class Plan:
    """How labels are spent."""

    strategies: tuple[str, ...] = ("entropy", "variation-ratio", "margin")
    iterations: int = 30
    images: int = 1  # labelled in an iteration
    start: int = 1  # labels of each class
    pool: int = 400  # images to choose from, at most
    targets: int = 10  # held-out images of a class, at most a third of it


@dataclass(frozen=True)
class Deal:
    """The images of a panel, dealt out: rows of the collection, and their class."""

    rows: np.ndarray
    labels: Tensor
    start: slice
    pool: slice
    targets: slice

    @classmethod
    def of(cls, collection: Collection, classes: Sequence[int], plan: Plan, seed: int) -> Deal:
        """The same for the same seed."""
        chance = np.random.default_rng((seed, zlib.crc32(collection.name.encode()), classes[0]))
        parts: list[list[tuple[int, int]]] = [[], [], []]
        for label, k in enumerate(classes):
            mixed = chance.permutation(np.array(collection.rows(k))).tolist()
            held = min(plan.targets, len(mixed) // 3)
            last = plan.start + held + max(1, plan.pool // len(classes))
            cuts = (0, plan.start, plan.start + held, last)
            if len(mixed) <= cuts[2]:
                raise DataError(f"{collection.classes[k]} of {collection.name} has only {len(mixed)} images")
            for part, a, b in zip(parts, cuts[:-1], cuts[1:], strict=True):
                part += [(row, label) for row in mixed[a:b]]
        rows, labels = np.array([pair for part in parts for pair in part]).T
        one, two = len(parts[0]), len(parts[0]) + len(parts[1])
        return cls(rows, torch.from_numpy(labels.copy()), slice(0, one), slice(two, len(rows)), slice(one, two))


def panels(collection: Collection, split: str | None) -> dict[str, list[int]]:
    """The classes of each panel by its name: alphabets, or the data set as a whole."""
    classes = range(len(collection.classes)) if split is None else collection.splits[split]
    known = collection.hierarchy or {}
    if known.get("kind") != "alphabets":
        return {collection.name: list(classes)}
    held = set(classes)
    groups = {name: [k for k in group if k in held] for name, group in known["groups"].items()}
    return {name: group for name, group in sorted(groups.items()) if len(group) > 1}


def acquire(features: Tensor, deal: Deal, fit: Fit, plan: Plan, strategy: str, seed: int) -> list[float]:
    """The accuracy on held-out images before the first and after each iteration."""
    chance = np.random.default_rng(seed)
    labelled = list(range(deal.start.start, deal.start.stop))
    left = list(range(deal.pool.start, deal.pool.stop))
    truth, curve = deal.labels[deal.targets].numpy(), []
    for step in range(plan.iterations + 1):
        classify = fit(features[labelled], deal.labels[labelled])
        curve.append(round(float((classify(features[deal.targets]).argmax(1) == truth).mean()), 5))
        if step < plan.iterations and left:
            rows = features[left]
            chosen = choose(classify(rows), rows.numpy(), plan.images, strategy, seed=chance)
            labelled += [left[i] for i in chosen]
            left = [row for i, row in enumerate(left) if i not in set(chosen)]
    return curve


def adaptive(learner: Learner, pixels: Tensor, deal: Deal) -> tuple[Tensor, Fit]:
    """Features of all images as the first labels made them, and how classifiers are made of these."""
    model = learner.model if isinstance(learner, TrainedLearner) else None
    if isinstance(model, CNAPs):
        return _with_film(model, pixels, deal)
    if isinstance(learner, TrainedLearner) and isinstance(model, EmbeddingModel):
        return _embedded(learner, model, pixels, deal)
    raise InputError(
        f"active learning needs features that stay, and those of {learner.name} change with every label: "
        "take cnaps, another method of one pass, or one on frozen features"
    )


def _with_film(model: CNAPs, pixels: Tensor, deal: Deal) -> tuple[Tensor, Fit]:
    examples = Examples(pixels[deal.start].numpy(), deal.labels[deal.start].tolist())
    fitted = FittedTask.learn(TorchEngine(model), examples)

    def fit(features: Tensor, labels: Tensor) -> Callable[[Tensor], np.ndarray]:
        again = fitted.refit(features.numpy(), labels.numpy())
        return lambda rows: again.probabilities(rows.numpy())

    return torch.from_numpy(fitted.features(pixels.numpy())), fit


@torch.no_grad()
def _embedded(learner: TrainedLearner, model: EmbeddingModel, pixels: Tensor, deal: Deal) -> tuple[Tensor, Fit]:
    fitted = model.adapt(model.preprocess(pixels[deal.start]), deal.labels[deal.start])

    @torch.no_grad()
    def fit(features: Tensor, labels: Tensor) -> Callable[[Tensor], np.ndarray]:
        classify, temperature = model.classifier(features, labels), learner.temperature(labels)
        return lambda rows: (classify(rows) / temperature).detach().double().softmax(1).numpy()

    return torch.cat([fitted.features(model.preprocess(some)) for some in pixels.split(CHUNK)]), fit


def frozen_fit(learner: FeatureLearner) -> Fit:
    """How a method on frozen features makes classifiers."""

    def fit(features: Tensor, labels: Tensor) -> Callable[[Tensor], np.ndarray]:
        predictor = learner.fit(features, labels)
        return lambda x: predictor(x).double().softmax(1).numpy()

    return fit


def active_runs(study: Study, plan: Plan, *, seeds: int) -> dict[str, Any]:
    """Every learner on every panel and seed that is not in the folder yet; gives the data of `active_report`."""
    setup = study.agree("active", **asdict(plan) | {"strategies": list(plan.strategies)})
    path = study.out / "active.jsonl"
    done = {(run["panel"], run["seed"], run["learner"]) for run in read_lines(path, dict)}
    names = []
    for collection in study.collections:
        known: dict[int, Tensor] = {}  # frozen features by row: the same for every seed
        for name, classes in track(panels(collection, study.split).items(), collection.name):
            names.append(name)
            for seed in range(seeds):
                due = [label for label in study.learners if (name, seed, label) not in done]
                if not due:
                    continue
                deal = Deal.of(collection, classes, plan, seed)
                pixels = collection.read(deal.rows.tolist(), size=study.size)
                for label in due:
                    features, fit = _features(study, study.learners[label], deal, pixels, known)
                    curves = {
                        each: acquire(features, deal, fit, plan, each, seed)
                        for each in ("random", *plan.strategies)
                    }
                    facts = {"panel": name, "data set": collection.name, "seed": seed, "learner": label}
                    append_lines(path, [{**facts, "curves": curves}])
    runs = [
        run
        for run in read_lines(path, dict)
        if run["panel"] in names and run["seed"] < seeds and run["learner"] in study.learners
    ]
    return {"setup": {**setup, "seeds": seeds}, "panels": _summaries(runs, names, list(study.learners))}


def _features(
    study: Study, learner: Learner, deal: Deal, pixels: Tensor, known: dict[int, Tensor]
) -> tuple[Tensor, Fit]:
    """Features of all images of a deal, and how the learner makes classifiers of them."""
    if not isinstance(learner, FeatureLearner):
        return adaptive(learner, pixels, deal)
    rows = deal.rows.tolist()
    new = [i for i, row in enumerate(rows) if row not in known]
    if new:
        known.update(zip([rows[i] for i in new], study.frozen(pixels[new]), strict=True))
    return learner.frozen.narrow(torch.stack([known[row] for row in rows])), frozen_fit(learner)


def _summaries(runs: list[dict[str, Any]], names: Sequence[str], learners: Sequence[str]) -> list[dict[str, Any]]:
    """For each panel, learner and strategy the mean curve, its standard error, and the area of each seed."""
    found = []
    for name in names:
        for learner in learners:
            mine = sorted(
                (run for run in runs if run["panel"] == name and run["learner"] == learner),
                key=lambda run: run["seed"],
            )
            for strategy in mine[0]["curves"]:
                curves = np.array([run["curves"][strategy] for run in mine])  # (seeds, iterations + 1)
                error = curves.std(0, ddof=1) / np.sqrt(len(curves)) if len(curves) > 1 else 0 * curves[0]
                found.append({
                    "panel": name,
                    "data set": mine[0]["data set"],
                    "learner": learner,
                    "strategy": strategy,
                    "mean": curves.mean(0).round(4).tolist(),
                    "standard error": error.round(4).tolist(),
                    "areas": curves[:, 1:].mean(1).round(5).tolist(),
                })  # fmt: skip
    return found


def active_report(data: dict[str, Any]) -> Report:
    """Curves with one standard error, and what each strategy gains over chance, from what `active_runs` gave."""
    names = list(dict.fromkeys((each["data set"], each["panel"]) for each in data["panels"]))
    learners = list(dict.fromkeys(each["learner"] for each in data["panels"]))
    strategies = [name for name in dict.fromkeys(each["strategy"] for each in data["panels"]) if name != "random"]
    areas = {(each["panel"], each["learner"], each["strategy"]): each["areas"] for each in data["panels"]}

    def gain(panel: str, learner: str, strategy: str) -> Estimate:
        chosen, chance = areas[panel, learner, strategy], areas[panel, learner, "random"]
        return Estimate.of(np.subtract(chosen, chance))

    columns = ["panel"]
    for learner in learners:
        columns += [f"{learner}, random", *[f"{learner}, {strategy}" for strategy in strategies]]
    table = Table(
        "Mean accuracy over iterations (%) by random choice, and by how much each strategy is better on the same "
        "seeds, with 95% intervals",
        columns,
    )
    sets = list(dict.fromkeys(name for name, _ in names))
    groups = [(panel, [panel]) for _, panel in names]
    if len(names) > len(sets):
        groups += [(f"mean of {name}", [panel for other, panel in names if other == name]) for name in sets]
    groups += [("mean of all", [panel for _, panel in names])] if len(names) > 1 else []
    overall: dict[tuple[str, str], Estimate] = {}
    for title, some in groups:
        row: list[str] = [title]
        for learner in learners:
            row.append(str(Estimate.average([Estimate.of(areas[panel, learner, "random"]) for panel in some])))
            for strategy in strategies:
                overall[learner, strategy] = Estimate.average([gain(panel, learner, strategy) for panel in some])
                row.append(overall[learner, strategy].signed)
        table.rows.append(row)
    setup = data["setup"]
    plan = setup["active"]
    text = [
        f"Start: {plan['start']} label(s) a class; {plan['images']} image(s) an iteration, {plan['iterations']} "
        f"iterations, {setup['seeds']} seeds. FiLM is made from the first labels and then stays. Shades are one "
        "standard error over seeds. Intervals of single panels come from few seeds; those of means are better."
    ]
    for learner in learners:
        said = [f"{strategy} {overall[learner, strategy].signed}" for strategy in strategies]
        text.append(f"{learner} over random choice, in points of mean accuracy: {', '.join(said)}.")
    picture = _picture(data["panels"], names, learners)
    return Report("active", "Active learning", text, {"active": table}, {"active": picture}, data)


def _picture(found: Sequence[dict[str, Any]], names: Sequence[tuple[str, str]], learners: Sequence[str]) -> Figure:
    """Blocks of at most seven panels, each with a row a learner."""
    wide = min(7, len(names))
    blocks = -(-len(names) // wide)
    figure = new_figure(max(2.3 * wide, 5), 1.9 * blocks * len(learners) + 0.6)
    axes = figure.subplots(blocks * len(learners), wide, squeeze=False, sharex=True)
    for each in axes.flat:
        each.set_axis_off()
    strategies = list(dict.fromkeys(each["strategy"] for each in found))
    places = {panel: divmod(i, wide) for i, (_, panel) in enumerate(names)}
    for each in found:
        block, column = places[each["panel"]]
        panel = axes[block * len(learners) + learners.index(each["learner"]), column]
        panel.set_axis_on()
        mean, error = 100 * np.array(each["mean"]), 100 * np.array(each["standard error"])
        i = strategies.index(each["strategy"])
        colour = "#555555" if each["strategy"] == "random" else COLOURS[i - 1]
        panel.plot(mean, color=colour, linewidth=1.1, label=each["strategy"])
        panel.fill_between(range(len(mean)), mean - error, mean + error, color=colour, alpha=0.2, linewidth=0)
        panel.set_title(each["panel"].replace("_", " ")[:26], fontsize=7)
        panel.tick_params(labelsize=6)
        if column == 0:
            panel.set_ylabel(f"{each['learner']}\naccuracy (%)", fontsize=7)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=4, fontsize=8)
    figure.supxlabel("iterations", fontsize=8)
    for block in range(blocks):  # a panel's learners side by side need the same scale
        for column in range(wide):
            column_axes = axes[block * len(learners) : (block + 1) * len(learners), column]
            low = min(a.get_ylim()[0] for a in column_axes)
            high = max(a.get_ylim()[1] for a in column_axes)
            for a in column_axes:
                a.set_ylim(low, high)
    return figure
