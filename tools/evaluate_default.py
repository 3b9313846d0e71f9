"""The default model and the six tuned probes on the same tasks; what `make evaluate` runs.

    python tools/evaluate_default.py run OUT COLLECTION ... [--learners cnaps,probes] [--tasks 100] [--size auto]
    python tools/evaluate_default.py report OUT results/evaluation --unseen mnist,cifar10,...

`run` goes on where it stood; several processes may share OUT, each with data sets of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import torch
from probes import SIZES, probe
from torch import Tensor
from torch.nn import functional as F

from cnaps.data.collection import Collection
from cnaps.episodes import Limits, Sampler, TaskDescription
from cnaps.episodes.task import flat_rows
from cnaps.files import write_text
from cnaps.images.sizes import auto_size
from cnaps.nn.checkpoints import load_model
from cnaps.nn.film import fold
from cnaps.nn.model import CNAPs
from cnaps.paper.experiments.comparison import comparison_report
from cnaps.paper.experiments.reporting import provenance
from cnaps.paper.experiments.scores import Score, Scores, measure
from cnaps.runtime.engine import open_engine
from cnaps.runtime.task import Examples, FittedTask

CHUNK = 32
BEST = "best probe"


class Frozen:
    """Features of a collection's images at one size, of all stages, each of unit length, computed once."""

    def __init__(self, model: CNAPs, collection: Collection, size: int, folder: Path) -> None:
        b = model.backbone
        units = zip(b.stages, b.stage_units, strict=True)
        self.modules = [fold(b.stem, b.stem_units, fuse=True), *(fold(s, u, fuse=True) for s, u in units)]
        self.collection, self.size, self.normalisation = collection, size, b.normalisation
        self.path = folder / f"frozen-{collection.name}-{size}.npz"
        self.known: dict[int, np.ndarray] = {}
        if self.path.is_file():
            with np.load(self.path) as kept:
                self.known = dict(zip(kept["rows"].tolist(), kept["features"], strict=True))

    def keep(self) -> None:
        """Write what is known, for the next run."""
        if self.known:
            rows = np.array(list(self.known))
            np.savez(self.path, rows=rows, features=np.stack([self.known[row] for row in rows.tolist()]))

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


def run(o: argparse.Namespace) -> None:
    """Every task of every collection that is not done yet."""
    o.out.mkdir(parents=True, exist_ok=True)
    path = o.out / f"scores-{os.getpid()}.jsonl"
    done = {score.key for score in read(o.out)}
    model = load_model(o.model)
    engine = open_engine(o.model)  # what people run, where the model has graphs
    limits = Limits(max_ways=o.max_ways, max_context=o.max_context, max_targets_per_class=o.targets)
    for folder in o.collections:
        collection = Collection.open(folder)
        sampler = Sampler([collection], None if o.split == "all" else o.split, limits=limits, seed=o.seed)
        sizes = [int(size) for size in o.probe_sizes.split(",")] if "probes" in o.learners else []
        stores = {size: Frozen(model, collection, size, o.out) for size in sizes}
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

            for size in sizes:
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
                fitted = FittedTask.learn(engine, Examples(context.numpy(), labels.tolist()))
                logits = fitted.classifier(fitted.features(targets.numpy())) / fitted.temperature
                note(o.label, torch.from_numpy(logits), began)
        for store in stores.values():
            store.keep()
        print(collection.name, round(time.time() - started), "s", flush=True)


def read(folder: Path) -> list[Score]:
    """What is done."""
    lines = [line for path in sorted(folder.glob("scores-*.jsonl")) for line in path.read_text().splitlines()]
    found = {score.key: score for score in (Score(**json.loads(line)) for line in lines)}
    return list(found.values())


def accuracy(scores: Scores, name: str, who: str) -> float:
    return float(np.mean(scores.column(who, name).accuracy))


def report(o: argparse.Namespace) -> None:
    """Every number as JSON, and the tables."""
    found = [s for s in read(o.out) if not o.sets or s.collection in o.sets.split(",")]
    learners = {s.learner for s in found}
    done = Counter((s.collection, s.index) for s in found)  # only tasks that all have done
    scores = Scores.of([s for s in found if done[s.collection, s.index] == len(learners)])
    columns = dict(scores.columns.items())
    if o.keep:
        stored = json.loads(o.result.with_suffix(".json").read_text(encoding="utf-8"))["scores"]
        columns |= {who: mine for who, mine in Scores.from_json(stored).columns.items() if who not in learners}
        columns.pop(BEST, None)
        scores = Scores(columns)
    probes = sorted(who for who in columns if who.startswith("probe-"))
    if probes:
        columns[BEST] = {
            name: scores.column(max(probes, key=partial(accuracy, scores, name)), name)
            for name in scores.collections
        }
    order = [who for who in ("cnaps", BEST, "own", *columns) if who in columns]
    scores = Scores({who: columns[who] for who in dict.fromkeys(order)})
    names = {who: who for who in scores.columns}
    data = {
        "setup": {"learner": names, "tasks": o.about or ""},
        "scores": scores.to_json(),
        "name": o.result.name,
        "title": o.title,
        "made": provenance() | {"command": o.made},
    }
    data |= {
        "unseen": [n for n in o.unseen.split(",") if n in scores.collections],
        "against": BEST if probes else order[0],
    }
    made = comparison_report(data)
    text = json.dumps(data, separators=(",", ":")) + "\n"  # words beside it stay as they are
    write_text(o.result.with_suffix(".json"), text)
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
    runs.add_argument("--probe-sizes", default=",".join(map(str, SIZES)))
    runs.set_defaults(call=run)
    reports = commands.add_parser("report")
    reports.add_argument("out", type=Path)
    reports.add_argument("result", type=Path)
    reports.add_argument("--unseen", default="mnist,cifar10,cifar100,traffic_sign,dtd")
    reports.add_argument("--sets", default="")
    reports.add_argument("--about", default="")
    reports.add_argument("--title", default="Few-shot accuracy")
    reports.add_argument("--keep", action="store_true", help="learners that are stored, and not in OUT, stay")
    reports.add_argument("--made", default="make evaluate", help="the command to name")
    reports.set_defaults(call=report)
    o = parser.parse_args()
    torch.set_num_threads(1)
    o.call(o)


if __name__ == "__main__":
    main()
