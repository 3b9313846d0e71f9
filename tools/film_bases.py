"""A FiLM for each kind of images: learned for training domains by gradient descent, added where a task is near.

    python tools/film_bases.py learn BASES.pt COLLECTION:train ... [--steps 60]
    python tools/film_bases.py place BASES.pt KINDS.pt COLLECTION:train ...
    python tools/cache_features.py OUT.pt COLLECTION:valid ... --kinds KINDS.pt --sharpness 0.1

A kind is a domain of training, its base one FiLM for all tasks of the domain, less the mean of what the generators
make for them. `place` notes where the mean features of tasks of each domain lie before each stage, at the size
that `auto` takes. What mixing them is worth, tools/compare_film.py says.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from film_bound import SHOTS, Bench
from torch import Tensor
from torch.nn import functional as F

from cnaps.images.sizes import auto_size
from cnaps.nn.checkpoints import load_model
from cnaps.training.tasks import open_collections

TASKS = 10  # of each domain, for where it lies


def learn(o: argparse.Namespace) -> None:
    """A base for each collection; those that are there stay."""
    bases = torch.load(o.bases) if o.bases.is_file() else {}
    bench = Bench(load_model(o.model).requires_grad_(False), o.size)
    for collection, split in open_collections(o.collections, "train"):
        if collection.name in bases:
            continue
        classes = collection.indices_of(split)
        made = [bench.own(*bench.task(collection, classes, i, SHOTS, 1)[:2]) for i in range(6)]
        own = torch.stack(made).mean(0)
        bases[collection.name] = bench.learn(collection, classes, own, o.steps, o.rate) - own
        o.bases.parent.mkdir(parents=True, exist_ok=True)
        torch.save(bases, o.bases)


@torch.no_grad()
def place(o: argparse.Namespace) -> None:
    """Bases by stage, and where the tasks of each kind lie before it, (kinds, tasks, C)."""
    bases, model = torch.load(o.bases), load_model(o.model)
    assert model.adaptation is not None
    seen: list[Tensor] = []
    for encoder in model.adaptation.stage_encoders:
        encoder.register_forward_pre_hook(lambda _, given: seen.append(F.normalize(given[0], dim=1).mean(0)))
    tasks, used = [], []
    for collection, split in open_collections(o.collections, "train"):
        classes = collection.indices_of(split)
        size = auto_size(collection.looks([int(collection.rows(k)[0]) for k in classes[:20]]))
        bench, found = Bench(model, size), []
        for i in range(TASKS):
            seen.clear()
            bench.own(*bench.task(collection, classes, 500 + i, SHOTS, 1)[:2])
            found.append(seen.copy())
        tasks.append([torch.stack(stage) for stage in zip(*found, strict=True)])
        used.append(bases[collection.name])
        print(collection.name, size, flush=True)
    numbers = torch.stack(used).split([2 * sum(sites) for sites in model.backbone.site_channels], 1)
    torch.save({"bases": numbers, "tasks": [torch.stack(stage) for stage in zip(*tasks, strict=True)]}, o.kinds)


def main() -> None:
    """Read the command."""
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("learn", "place"):
        command = commands.add_parser(name)
        command.add_argument("bases", type=Path)
        if name == "place":
            command.add_argument("kinds", type=Path)
        command.add_argument("collections", nargs="+")
        command.add_argument("--model", default="cnaps-lite0")
        command.add_argument("--size", type=int, default=128)
        command.add_argument("--steps", type=int, default=60)
        command.add_argument("--rate", type=float, default=3e-3)
    o = parser.parse_args()
    torch.set_num_threads(1)
    {"learn": learn, "place": place}[o.command](o)


if __name__ == "__main__":
    main()
