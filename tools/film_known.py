"""What training knew: where the tasks of each training set lie before each stage, and the mean of their FiLM.

    python tools/film_known.py KNOWN.pt COLLECTION:train ... [--coarse NAME ...]
    python tools/cache_features.py OUT.pt COLLECTION:valid ... --familiar KNOWN.pt --border 0.7 0.9

A kind is a collection, its tasks at the size that `auto` takes. What it is worth, tools/compare_film.py says.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from film_table import Task
from torch import Tensor
from torch.nn.functional import normalize

from cnaps.episodes import Limits, Sampler
from cnaps.nn.checkpoints import load_model
from cnaps.training.tasks import open_collections


@torch.no_grad()
def main() -> None:
    """Every kind counts alike."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("collections", nargs="+")
    parser.add_argument("--coarse", nargs="*", default=[], help="names of collections known as small images, too")
    parser.add_argument("--pixels", type=int, default=32, help="how small those are")
    parser.add_argument("--model", default="cnaps-lite0")
    parser.add_argument("--tasks", type=int, default=10, help="of each collection")
    o = parser.parse_args()
    torch.set_num_threads(1)
    model = load_model(o.model)
    assert model.adaptation is not None
    seen: list[Tensor] = []
    for encoder in model.adaptation.stage_encoders:
        encoder.register_forward_pre_hook(lambda _, given: seen.append(normalize(given[0], dim=1).mean(0)))
    limits = Limits(max_ways=16, max_context=60, max_targets_per_class=1)
    sets = open_collections(o.collections, "train")
    kinds = [(*each, None) for each in sets] + [(*each, o.pixels) for each in sets if each[0].name in o.coarse]
    films, places = [], []
    for collection, split, coarse in kinds:
        sampler, made, found = Sampler([collection], split, limits=limits, seed=5), [], []
        for i in range(o.tasks):
            task = Task(sampler, collection, i, model, coarse)
            seen.clear()
            made.append(model.adapt(task.context, task.labels).film.vector())
            found.append(seen.copy())
        films.append(torch.stack(made).mean(0))
        places.append([torch.stack(stage).mean(0) for stage in zip(*found, strict=True)])
        print(collection.name, coarse or "", flush=True)
    means = torch.stack(films).mean(0).split([2 * sum(sites) for sites in model.backbone.site_channels])
    o.out.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"means": means, "places": [torch.stack(stage) for stage in zip(*places, strict=True)]}, o.out)


if __name__ == "__main__":
    main()
