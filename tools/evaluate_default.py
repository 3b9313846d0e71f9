"""The default model and the six tuned probes on the same tasks; what `make evaluate` runs.

    python tools/evaluate_default.py run OUT COLLECTION ... [--learners cnaps,probes] [--tasks 100] [--size auto]
    python tools/evaluate_default.py report OUT results/evaluation --unseen mnist,cifar10,...

`run` goes on where it stood; several processes may share OUT, each with data sets of its own. `--precision
bfloat16` is for all learners alike. FiLM other than a task's own: `--film` with a file of tools/mean_film.py,
`identity`, or `frozen`, which is the backbone as it is.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import bfloat16
import numpy as np
import torch
from probes import SIZES, probe
from torch import Tensor
from torch.nn import functional as F

from cnaps.data.collection import Collection
from cnaps.episodes import Limits, Sampler, TaskDescription
from cnaps.episodes.task import flat_rows
from cnaps.files import write_json
from cnaps.images.sizes import auto_size
from cnaps.nn.checkpoints import load_model
from cnaps.nn.film import fold
from cnaps.nn.model import CNAPs
from cnaps.paper.experiments.comparison import comparison_report
from cnaps.paper.experiments.reporting import provenance
from cnaps.paper.experiments.scores import Score, Scores, measure

CHUNK = 32
BEST = "best probe"


class Frozen:
    """Features of a collection's images at one size, of all stages, each of unit length, computed once."""

    def __init__(self, model: CNAPs, collection: Collection, size: int) -> None:
        b = model.backbone
        units = zip(b.stages, b.stage_units, strict=True)
        self.modules = [fold(b.stem, b.stem_units, fuse=True), *(fold(s, u, fuse=True) for s, u in units)]
        self.collection, self.size, self.normalisation = collection, size, b.normalisation
        self.known: dict[int, np.ndarray] = {}

    @torch.no_grad()
    def __call__(self, rows: np.ndarray) -> np.ndarray:
        new = sorted(set(rows.tolist()) - self.known.keys())
        for start in range(0, len(new), CHUNK):
            some = new[start : start + CHUNK]
            x = self.normalisation(self.collection.read(some, self.size, threads=1))
            x, pooled = self.modules[0](x), []
            for module in self.modules[1:]:
                x = module(x)
                pooled.append(F.normalize(x.mean((2, 3)), dim=1))
            features = torch.cat(pooled, 1).numpy()
            self.known |= dict(zip(some, features, strict=True))
        return np.stack([self.known[row] for row in rows.tolist()])


def with_film(model: CNAPs, film: list | str, images: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """Logits of targets under FiLM that is not the task's own."""
    from cnaps.nn.statistics import ClassStatistics

    modules = [model._stem()]
    for i in range(len(model.backbone.stages)):
        if film == "frozen":
            modules.append(fold(model.backbone.stages[i], model.backbone.stage_units[i], fuse=True))
        else:
            modules.append(model._stage(i, None if film == "identity" else tuple(film[i])))

    def features(pixels: Tensor) -> Tensor:
        found = []
        for x in pixels.split(CHUNK):
            x, pooled = modules[0](x.contiguous(memory_format=torch.channels_last)), []
            for module in modules[1:]:
                x = module(x)
                pooled.append(x.mean((2, 3)))
            found.append(torch.cat(pooled, 1))
        return model.head.embed(torch.cat(found))

    statistics = ClassStatistics.of(features(images), labels, int(labels.max()) + 1, scatter=True)
    return model.head.classifier(statistics)(features(targets))


def run(o: argparse.Namespace) -> None:
    """Every task of every collection that is not done yet."""
    o.out.mkdir(parents=True, exist_ok=True)
    path = o.out / f"scores-{os.getpid()}.jsonl"
    done = {score.key for score in read(o.out)}
    model = load_model(o.model)
    a, b, c = model.notes.get("calibration", (0.0, 0.0, 0.0))
    films = torch.load(o.film, weights_only=False) if o.film not in ("own", "identity", "frozen") else None
    limits = Limits(max_ways=o.max_ways, max_context=o.max_context, max_targets_per_class=o.targets)
    for folder in o.collections:
        collection = Collection.open(folder)
        sampler = Sampler([collection], None if o.split == "all" else o.split, limits=limits, seed=o.seed)
        stores = {size: Frozen(model, collection, size) for size in SIZES}
        started = time.time()
        for index in range(o.first, o.tasks):
            described = sampler.describe(index)
            rows, labels = flat_rows(described.context)
            asked, _truth = flat_rows(described.targets)

            def note(name: str, logits: Tensor, began: float, d: TaskDescription = described) -> None:
                seconds = round(time.perf_counter() - began, 3)
                answers = torch.from_numpy(flat_rows(d.targets)[1])
                score = Score(
                    name,
                    d.collection,
                    d.index,
                    d.ways,
                    d.context_size,
                    **measure(logits.float(), answers),
                    seconds=seconds,
                )
                with path.open("a") as file:
                    file.write(json.dumps(asdict(score)) + "\n")

            if "probes" in o.learners:
                for size in SIZES:
                    names = [f"probe-{which}-{size}" for which in ("last", "all")]
                    if all((name, collection.name, index) in done for name in names):
                        continue
                    given, wanted = stores[size](rows), stores[size](asked)
                    for name, columns in zip(names, (1280, given.shape[1]), strict=True):
                        began = time.perf_counter()
                        logits = probe(given[:, -columns:], labels, wanted[:, -columns:])
                        note(name, torch.from_numpy(logits), began)
            if "cnaps" in o.learners and (o.label, collection.name, index) not in done:
                size = auto_size(collection.looks(rows.tolist())) if o.size == "auto" else int(o.size)
                context, targets = (collection.read(some.tolist(), size, threads=1) for some in (rows, asked))
                began = time.perf_counter()
                y = torch.from_numpy(labels)
                with torch.no_grad():
                    if o.film == "own":
                        logits = model.adapt(model.preprocess(context), y).logits(model.preprocess(targets))
                    else:
                        film = o.film if films is None else films[collection.name]
                        logits = with_film(model, film, model.preprocess(context), y, model.preprocess(targets))
                ways = described.ways
                note(o.label, logits / math.exp(a + b * math.log(ways) + c * math.log(len(labels) / ways)), began)
        print(collection.name, round(time.time() - started), "s", flush=True)


def read(folder: Path) -> list[Score]:
    """What is done."""
    lines = [line for path in sorted(folder.glob("scores-*.jsonl")) for line in path.read_text().splitlines()]
    found = {score.key: score for score in (Score(**json.loads(line)) for line in lines)}
    return list(found.values())


def report(o: argparse.Namespace) -> None:
    """Every number as JSON, and the tables."""
    found = [s for s in read(o.out) if not o.sets or s.collection in o.sets.split(",")]
    learners = {s.learner for s in found}
    done = Counter((s.collection, s.index) for s in found)  # only tasks that all have done
    scores = Scores.of([s for s in found if done[s.collection, s.index] == len(learners)])
    probes = sorted(who for who in scores.columns if who.startswith("probe-"))
    columns = dict(scores.columns.items())
    if probes:
        mean = lambda who, name: float(np.mean(scores.column(who, name).accuracy))  # noqa: E731
        columns[BEST] = {
            name: scores.column(max(probes, key=lambda who, name=name: mean(who, name)), name)
            for name in scores.collections
        }
    order = [who for who in ("cnaps", BEST, *columns) if who in columns]
    scores = Scores({who: columns[who] for who in dict.fromkeys(order)})
    names = {who: who for who in scores.columns}
    data = {
        "setup": {"learner": names, "tasks": o.about or ""},
        "scores": scores.to_json(),
        "name": o.result.name,
        "title": o.title,
        "made": provenance() | {"command": "make evaluate"},
    }
    data |= {
        "unseen": [n for n in o.unseen.split(",") if n in scores.collections],
        "against": BEST if probes else order[0],
    }
    made = comparison_report(data)
    write_json(o.result.with_suffix(".json"), data)  # words beside it stay as they are
    for table in made.tables.values():
        print(table.markdown())


def main() -> None:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(required=True)
    runs = commands.add_parser("run")
    runs.add_argument("out", type=Path)
    runs.add_argument("collections", nargs="+")
    runs.add_argument("--model", default="cnaps-lite0")
    runs.add_argument("--learners", default="cnaps,probes")
    runs.add_argument("--label", default="cnaps")
    runs.add_argument("--split", default="test")
    runs.add_argument("--tasks", type=int, default=100)
    runs.add_argument("--first", type=int, default=0)
    runs.add_argument("--max-ways", type=int, default=20)
    runs.add_argument("--max-context", type=int, default=200)
    runs.add_argument("--targets", type=int, default=10)
    runs.add_argument("--seed", type=int, default=0)
    runs.add_argument("--size", default="auto")
    runs.add_argument("--film", default="own")
    runs.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    runs.set_defaults(call=run)
    reports = commands.add_parser("report")
    reports.add_argument("out", type=Path)
    reports.add_argument("result", type=Path)
    reports.add_argument("--unseen", default="mnist,cifar10,cifar100,traffic_sign,dtd")
    reports.add_argument("--sets", default="")
    reports.add_argument("--about", default="")
    reports.add_argument("--title", default="Few-shot accuracy")
    reports.set_defaults(call=report)
    o = parser.parse_args()
    torch.set_num_threads(1)
    if getattr(o, "precision", "") == "bfloat16":
        bfloat16.install()
    o.call(o)


if __name__ == "__main__":
    main()
