"""FiLM that is not a task's own, on the same tasks: the mean of its set or of others, identity, another set's.

    python tools/film_table.py OUT COLLECTION ... [--split test] [--tasks 16]
    python tools/evaluate_default.py report OUT results/film

A set's mean is over its other tasks; another set's is the mean of the set after it. Goes on where it stood.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from itertools import product
from pathlib import Path

import torch
from cache_features import enlarged
from evaluate_default import read
from torch import Tensor

from cnaps.data.collection import Collection
from cnaps.episodes import Limits, Sampler
from cnaps.episodes.task import flat_rows
from cnaps.images.sizes import Look, auto_size
from cnaps.maths.statistics import ClassStatistics
from cnaps.nn.checkpoints import load_model
from cnaps.nn.film import Film
from cnaps.nn.model import CNAPs
from cnaps.paper.experiments.scores import Score, measure

CHUNK = 32
OWN, SET, OTHERS, IDENTITY, ANOTHER = KINDS = (
    "own",
    "mean of its set",
    "mean of others",
    "identity",
    "another set's",
)


class Task:
    """The images of a task at the size that `auto` takes, as they are or shrunk to `coarse` pixels before."""

    def __init__(
        self, sampler: Sampler, collection: Collection, index: int, model: CNAPs, coarse: int | None = None
    ) -> None:
        self.described = described = sampler.describe(index)
        (rows, labels), (asked, answers) = flat_rows(described.context), flat_rows(described.targets)
        self.size = auto_size([Look(coarse, False)] if coarse else collection.looks(rows.tolist()))
        self.labels, self.answers = torch.from_numpy(labels), torch.from_numpy(answers)
        pixels = [collection.read(some.tolist(), coarse or self.size, threads=1) for some in (rows, asked)]
        if coarse:
            pixels = [enlarged(images, self.size) for images in pixels]
        self.context, self.targets = (model.preprocess(images) for images in pixels)

    def logits(self, model: CNAPs, film: Film) -> Tensor:
        """Of the targets, with this FiLM."""
        network = model.network(film, self.size)
        given, asked = (
            torch.cat([network(part) for part in pixels.split(CHUNK)]) for pixels in (self.context, self.targets)
        )
        ways = int(self.labels.max()) + 1
        return model.head.classifier(ClassStatistics.of(given, self.labels, ways, scatter=True))(asked)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("collections", nargs="+")
    parser.add_argument("--model", default="cnaps-lite0")
    parser.add_argument("--split", default="test")
    parser.add_argument("--tasks", type=int, default=16)
    o = parser.parse_args()
    torch.set_num_threads(1)
    model = load_model(o.model)
    limits = Limits(max_ways=20, max_context=100, max_targets_per_class=5)
    sets = [Collection.open(folder) for folder in o.collections]
    samplers = [Sampler([each], o.split, limits=limits, seed=0) for each in sets]
    o.out.mkdir(parents=True, exist_ok=True)
    done = {score.key for score in read(o.out)}

    def note(kind: str, task: Task, logits: Tensor) -> None:
        d = task.described
        found = measure(logits.float(), task.answers)
        score = Score(kind, d.collection, d.index, d.ways, d.context_size, **found, seconds=0.0)
        with (o.out / "scores-film.jsonl").open("a") as file:
            file.write(json.dumps(asdict(score)) + "\n")

    films: list[Tensor] = []  # of each set (tasks, numbers)
    for each, sampler in zip(sets, samplers, strict=True):
        kept, made = o.out / f"film-{each.name}.pt", []
        if kept.is_file():
            made = list(torch.load(kept))
        for i in range(len(made), o.tasks):
            task = Task(sampler, each, i, model)
            adapted = model.adapt(task.context, task.labels)
            made.append(adapted.film.vector())
            note(OWN, task, adapted.logits(task.targets))
            torch.save(torch.stack(made), kept)
        films.append(torch.stack(made[: o.tasks]))
        print(each.name, flush=True)
    means = torch.stack([each.mean(0) for each in films])
    for i, (k, each) in product(range(o.tasks), enumerate(sets)):
        if all((kind, each.name, i) in done for kind in KINDS[1:]):
            continue
        task = Task(samplers[k], each, i, model)
        vectors = {
            SET: (films[k].sum(0) - films[k][i]) / (o.tasks - 1),
            OTHERS: (means.sum(0) - means[k]) / (len(means) - 1),
            ANOTHER: means[(k + 1) % len(means)],
        }
        for name, vector in vectors.items():
            note(name, task, task.logits(model, Film.from_vector(vector, model.backbone.site_channels)))
        note(IDENTITY, task, task.logits(model, Film(())))
        print("task", i, each.name, flush=True)


if __name__ == "__main__":
    main()
