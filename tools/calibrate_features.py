"""The calibration of a model from stored features of validation tasks (tools/cache_features.py --model MODEL).

python tools/calibrate_features.py MODEL VALID.pt[,VALID.pt]
"""

from __future__ import annotations

import sys
from collections import defaultdict

import numpy as np
import torch
from compare_heads import load

from cnaps.maths.calibration import own_calibration, temperature
from cnaps.maths.left_out import left_out_logits
from cnaps.maths.statistics import ClassStatistics
from cnaps.nn.checkpoints import load_model
from cnaps.nn.saving import write_notes
from cnaps.paper.experiments.scores import Score, fit_calibration, measure


@torch.no_grad()
def main(folder: str, files: str) -> None:
    """Fit a temperature by ways and shots, write it to the model, and print what it does."""
    head = load_model(folder).head.numpy
    scores, kept = [], []
    for t in load(files):
        n, labels = t["context"], t["labels"]
        ways = int(labels.max()) + 1
        x, y = head.embed(t["mean"].float().numpy()), labels.numpy()
        statistics = ClassStatistics.of(x[:n], y[:n], ways, scatter=True)
        logits = torch.from_numpy(head.classifier(statistics)(x[n:]))
        scores.append(Score("cnaps", t["set"], t["index"], ways, n, **measure(logits, labels[n:]), seconds=0.0))
        kept.append((f"{t['set']} at {t['size']}", logits, labels[n:], left_out_logits(head, x[:n], y[:n]), y[:n]))
    notes = {"calibration": [round(float(value), 4) for value in fit_calibration(scores)]}
    write_notes(folder, notes)
    print(notes, f"from {len(scores)} tasks")
    for title in ("as it is", "by ways and shots", "and by left-out examples"):
        bins: dict[str, np.ndarray] = defaultdict(lambda: np.zeros((3, 15)))
        for score, (name, logits, answers, left_out, labels) in zip(scores, kept, strict=True):
            scale = 1.0 if title == "as it is" else temperature(notes, score.ways, score.context / score.ways)
            if title == "and by left-out examples":
                scale *= np.exp(own_calibration(left_out / scale, labels))
            bins[name] += np.array(measure(logits / scale, answers)["bins"])
        errors = {k: float(np.abs(v[1] - v[2]).sum() / v[0].sum()) for k, v in bins.items()}
        listed = ", ".join(f"{k} {v:.3f}" for k, v in errors.items())
        print(f"{title}: mean {sum(errors.values()) / len(errors):.3f}; {listed}")


if __name__ == "__main__":
    main(*sys.argv[1:3])
