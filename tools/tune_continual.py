"""How strongly SI, EWC, RWalk and ridge regression should hold their weights, by training images kept back.

    python tools/tune_continual.py COLLECTION [--benchmark split-cifar100] [--runs 2] [--iterations 150]
                                   [--methods si,ridge@features] [--shots 5] [--size 64]

Every method is followed along the same streams with each strength; a quarter of the training images of each class
is kept back and tested on, the test images are not looked at. What is best goes into `BENCHMARKS`. Features are
those of the default model's backbone, by default at the size of the comparison.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch

from cnaps.data.collection import Collection
from cnaps.nn.checkpoints import load_model
from cnaps.paper.continual import ON_FEATURES, create_continual
from cnaps.paper.experiments.continual import BENCHMARKS, FeatureStream, FeatureTable, Stream, follow, training_of

FIRST_RUN = 1000  # none of these streams is measured later
STRENGTHS = {
    "finetune": (None,),
    "si": (0.02, 0.1, 0.5, 2.0, 8.0, 32.0),
    "ewc": (0.05, 0.5, 5.0, 50.0, 500.0, 5000.0),
    "rwalk": (0.002, 0.02, 0.2, 2.0),
    "finetune@features": (None,),
    "vcl@features": (None,),
    "joint@features": (None,),
    "class-means@features": (None,),
    "si@features": (0.02, 0.1, 0.5, 2.0, 8.0, 32.0),
    "ewc@features": (0.5, 5.0, 50.0, 500.0, 5000.0),
    "rwalk@features": (0.002, 0.02, 0.2, 2.0, 20.0),
    "ridge@features": (1.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0),
}


def held_back(stream: Stream) -> Stream:
    """The stream with a quarter of its training images in the place of the test images."""
    parts = [np.split(rows, [len(rows) // 4]) for rows in stream.train]
    stream.test, stream.train = [own for own, _ in parts], [rest for _, rest in parts]
    return stream


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("collection")
    parser.add_argument("--benchmark", default="split-cifar100")
    parser.add_argument("--size", type=int, default=64, help="of the images that features are of")
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=150)
    parser.add_argument("--methods", default=",".join(STRENGTHS))
    parser.add_argument("--shots", type=int, help="of a class, if not all")
    o = parser.parse_args()
    torch.set_num_threads(1)
    benchmark = BENCHMARKS[o.benchmark]
    collection = Collection.open(o.collection)
    methods = o.methods.split(",")
    table = FeatureTable(collection, load_model("cnaps-lite0"), o.size)
    print("| method | strength | multi-head | single-head |\n| --- | ---: | ---: | ---: |")
    for method in methods:
        featured = method in ON_FEATURES
        for strength in STRENGTHS[method]:
            found: list[dict[str, Any]] = []
            for run in range(FIRST_RUN, FIRST_RUN + o.runs):
                stream = held_back(Stream(collection, benchmark, 40, run))
                training = training_of(benchmark, method, o.iterations)
                training |= {} if strength is None else {"strength": strength}
                size = table.width if featured else benchmark.size
                options: dict[str, Any] = {"size": size, "grey": benchmark.grey, "seed": run, **training}
                learner = create_continual(method, stream.steps.size, model=None, **options)
                steps = FeatureStream(stream, table) if featured else stream
                found.append(follow(steps, learner, o.shots, benchmark.size))
            ends = [100 * np.mean([each[head][-1] for each in found]) for head in ("multi", "single")]
            print(f"| {method} | {strength or ''} | {ends[0]:.1f} | {ends[1]:.1f} |", flush=True)


if __name__ == "__main__":
    main()
