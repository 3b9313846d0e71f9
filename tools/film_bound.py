"""How much FiLM could be worth on a domain that training never saw: FiLM learned for it by gradient descent.

    python tools/film_bound.py OUT.jsonl COLLECTION ... --known COLLECTION:train ... [--size 128] [--steps 60]

Half of a domain's classes (every second one) are learned from: one FiLM for all tasks, from the mean of the FiLM
that the generators make for them, by Adam on the loss of tasks. The other half is asked, with the FiLM that the
generators make for the task (own), that mean over the domain (domain), the one learned (learned), the mean over
tasks of the collections in `--known`, each counting alike (known), and none (identity). What is learned from a
domain's own labels says how far a generator that has never seen the domain could hope to come. Prints a table in
Markdown; goes on where it stood.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from cnaps.data.collection import Collection
from cnaps.episodes import Limits, Sampler
from cnaps.episodes.task import flat_rows
from cnaps.maths.statistics import ClassStatistics
from cnaps.nn.adapted import AdaptedNetwork
from cnaps.nn.checkpoints import load_model
from cnaps.nn.film import Film
from cnaps.nn.model import CNAPs
from cnaps.paper.experiments.scores import Estimate
from cnaps.training.tasks import open_collections

OWN, DOMAIN, LEARNED, KNOWN, IDENTITY = KINDS = ("own", "domain", "learned", "known", "identity")
WAYS, SHOTS, TARGETS = 8, 5, 5
Task = tuple[Tensor, Tensor, Tensor, Tensor]  # context and its labels, targets and theirs


class Bench:
    """A model at one size of images, with any FiLM."""

    def __init__(self, model: CNAPs, size: int) -> None:
        self.model, self.size = model, size
        self.channels = model.backbone.site_channels

    def task(self, collection: Collection, classes: Sequence[int], index: int, shots: int, targets: int) -> Task:
        """Some of these classes and some of their images, a pure function of the index."""
        chance = np.random.default_rng([index, 11])
        context, asked = [], []
        chosen = chance.permutation(np.array(classes))[:WAYS]
        for k in chosen.tolist():
            rows = chance.permutation(collection.rows(k))
            context.append(rows[:shots])
            asked.append(rows[shots : shots + targets])
        read = [self.pixels(collection, np.concatenate(rows).tolist()) for rows in (context, asked)]
        labels = [
            torch.arange(len(chosen)).repeat_interleave(torch.tensor([len(r) for r in rows]))
            for rows in (context, asked)
        ]
        return read[0], labels[0], read[1], labels[1]

    def pixels(self, collection: Collection, rows: list[int]) -> Tensor:
        """Images as the backbone wants them."""
        return self.model.preprocess(collection.read(rows, self.size, threads=1)).contiguous(
            memory_format=torch.channels_last
        )

    def logits(self, task: Task, vector: Tensor, *, learn: bool = False) -> Tensor:
        """Of the targets, with this FiLM."""
        film = Film.from_vector(vector, self.channels)
        parts = self.model._parts(film.stages, self.model.lora_share(self.size), learn=learn)
        network = AdaptedNetwork(self.model, parts)
        features = network(torch.cat([task[0], task[2]]))
        given, asked = features.split([len(task[0]), len(task[2])])
        statistics = ClassStatistics.of(given, task[1], int(task[1].max()) + 1, scatter=True)
        return self.model.head.classifier(statistics)(asked)

    @torch.no_grad()
    def own(self, images: Tensor, labels: Tensor) -> Tensor:
        """What the generators make."""
        return self.model.adapt(images, labels).film.vector()

    def learn(
        self, collection: Collection, classes: Sequence[int], start: Tensor, steps: int, rate: float
    ) -> Tensor:
        """One FiLM for all tasks of these classes."""
        vector = start.clone().requires_grad_()
        optimiser = torch.optim.Adam([vector], rate)
        for step in range(steps):
            for group in optimiser.param_groups:
                group["lr"] = rate * min(1.0, 2 * (1 - step / steps))
            task = self.task(collection, classes, 10_000 + step, SHOTS, TARGETS)
            loss = F.cross_entropy(self.logits(task, vector, learn=True), task[3])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if step % 20 == 19:
                print(collection.name, step + 1, f"{float(loss.detach()):.3f}", flush=True)
        return vector.detach()


def known_mean(bench: Bench, sets: Sequence[tuple[Collection, str | None]], tasks: int) -> Tensor:
    """The mean FiLM of collections that training knew."""
    limits, means = Limits(max_ways=10, max_context=50, max_targets_per_class=1), []
    for collection, split in sets:
        sampler, made = Sampler([collection], split, limits=limits, seed=3), []
        for i in range(tasks):
            rows, labels = flat_rows(sampler.describe(i).context)
            made.append(bench.own(bench.pixels(collection, rows.tolist()), torch.from_numpy(labels)))
        means.append(torch.stack(made).mean(0))
    return torch.stack(means).mean(0)


def table(rows: Sequence[dict]) -> str:
    """Accuracy by domain, and differences on the same tasks."""
    lines = ["| domain | " + " | ".join(KINDS) + " | own - known | learned - known |"]
    lines.append("| --- |" + " ---: |" * (len(KINDS) + 2))
    found: dict[str, list[dict]] = defaultdict(list)
    for row in rows:
        found[row["set"]].append(row)
    found["mean"] = list(rows)
    for name, some in found.items():
        numbers = [f"{100 * np.mean([row[kind] for row in some]):.1f}" for kind in KINDS]
        gaps = [Estimate.of([row[kind] - row[KNOWN] for row in some]).signed for kind in (OWN, LEARNED)]
        lines.append(f"| {name} | " + " | ".join(numbers + gaps) + " |")
    return "\n".join(lines)


def main() -> None:
    """Learn, ask, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("collections", nargs="+")
    parser.add_argument("--known", nargs="+", required=True)
    parser.add_argument("--model", default="cnaps-lite0")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--tasks", type=int, default=20)
    o = parser.parse_args()
    torch.set_num_threads(1)
    model = load_model(o.model)
    model.requires_grad_(False)
    bench = Bench(model, o.size)
    rows = [json.loads(line) for line in o.out.read_text().splitlines()] if o.out.is_file() else []
    o.out.parent.mkdir(parents=True, exist_ok=True)
    known = known_mean(bench, open_collections(o.known, "train"), 3)
    for collection, _ in open_collections(o.collections, "all"):
        if any(row["set"] == collection.name for row in rows):
            continue
        learned_from, asked = (range(len(collection.classes))[half::2] for half in (0, 1))
        own = [bench.own(*bench.task(collection, learned_from, i, SHOTS, 1)[:2]) for i in range(8)]
        vectors = {KNOWN: known, DOMAIN: torch.stack(own).mean(0)}
        none = [torch.cat([torch.ones(c), torch.zeros(c)]) for stage in bench.channels for c in stage]
        vectors[IDENTITY] = torch.cat(none)
        vectors[LEARNED] = bench.learn(collection, learned_from, vectors[DOMAIN], o.steps, o.rate)
        new = []
        for i in range(o.tasks):
            task = bench.task(collection, asked, i, SHOTS, TARGETS)
            vectors[OWN] = bench.own(task[0], task[1])
            with torch.no_grad():
                hits = {
                    k: float((bench.logits(task, v).argmax(1) == task[3]).float().mean())
                    for k, v in vectors.items()
                }
            new.append({"set": collection.name, "index": i, "size": o.size, **hits})
        rows += new
        o.out.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
        print(table(new), flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
