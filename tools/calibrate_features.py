"""The calibration of a model from stored features of validation tasks (tools/cache_features.py --model MODEL).

python tools/calibrate_features.py MODEL VALID.pt[,VALID.pt]
"""

from __future__ import annotations

import sys
from collections import defaultdict

import numpy as np
import torch
from cnaps.nn.statistics import ClassStatistics
from compare_heads import load

from cnaps.nn.checkpoints import load_model, write_notes
from cnaps.paper.experiments.scores import Score, fit_calibration, measure


@torch.no_grad()
def main(folder: str, files: str) -> None:
    """Fit a temperature by ways and shots, write it to the model, and print what it does."""
    model = load_model(folder)
    scores, kept = [], []
    for t in load(files):
        n, labels = t["context"], t["labels"]
        ways = int(labels.max()) + 1
        x = model.head.embed(t["mean"].float())
        logits = model.head.classifier(ClassStatistics.of(x[:n], labels[:n], ways, scatter=True))(x[n:])
        scores.append(Score("cnaps", t["set"], t["index"], ways, n, **measure(logits, labels[n:]), seconds=0.0))
        kept.append((t["set"], logits, labels[n:], np.log(ways), np.log(n / ways)))
    a, b, c = (round(value, 4) for value in fit_calibration(scores))
    write_notes(folder, {"calibration": [a, b, c]})
    print(f"log T = {a} + {b} log(ways) + {c} log(shots), from {len(scores)} tasks")
    for name, scale in (("before", 0.0), ("after", 1.0)):
        bins = defaultdict(lambda: np.zeros((3, 15)))
        for collection, logits, labels, ways, shots in kept:
            temperature = float(np.exp(scale * (a + b * ways + c * shots)))
            bins[collection] += np.array(measure(logits / temperature, labels)["bins"])
        errors = {k: float(np.abs(v[1] - v[2]).sum() / v[0].sum()) for k, v in bins.items()}
        listed = ", ".join(f"{k} {v:.3f}" for k, v in errors.items())
        print(f"{name}: mean {sum(errors.values()) / len(errors):.3f}; {listed}")


if __name__ == "__main__":
    main(*sys.argv[1:3])
