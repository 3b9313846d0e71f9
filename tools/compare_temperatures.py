"""Ways to choose the temperature of a task, on stored features: calibration error and loss over sets of tasks.

python tools/compare_temperatures.py VALID.pt[,VALID.pt] [MODEL]        files of tools/cache_features.py
"""

from __future__ import annotations

import sys
from collections import defaultdict
from itertools import product

import numpy as np
import torch
from compare_heads import load

from cnaps.maths.calibration import temperature
from cnaps.maths.heads import Head
from cnaps.maths.left_out import left_out_logits
from cnaps.maths.statistics import ClassStatistics
from cnaps.paper.experiments.scores import Score, fit_calibration, measure
from cnaps.runtime.engine import open_engine

GRID = np.linspace(-1.2, 1.2, 49)  # of log T


def losses(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Negative log likelihoods (49, M) at every temperature of the grid."""
    scaled = logits[None] / np.exp(GRID)[:, None, None]
    return np.logaddexp.reduce(scaled, axis=2) - scaled[:, np.arange(len(labels)), labels]


class Task:
    """Logits of targets and of left-out examples, and their losses over the grid."""

    def __init__(self, t: dict, head: Head) -> None:
        n, labels = t["context"], t["labels"].numpy()
        self.name, self.size = f"{t['set']} at {t['size']}", t["size"]
        self.ways, self.shots = int(labels.max()) + 1, n / (labels.max() + 1)
        x = head.embed(t["mean"].float().numpy())
        classifier = head.classifier(ClassStatistics.of(x[:n], labels[:n], self.ways, scatter=True))
        self.logits, self.labels = classifier(x[n:]).astype(np.float64), labels[n:]
        self.loss = losses(self.logits, self.labels).mean(1)
        left_out = left_out_logits(head, x[:n], labels[:n])
        known = ~np.isnan(left_out[:, 0])
        self.known, self.left_out = int(known.sum()), losses(left_out[known], labels[:n][known]).sum(1)
        found = measure(torch.from_numpy(self.logits), t["labels"][n:])
        self.score = Score("cnaps", t["set"], t["index"], self.ways, n, **found, seconds=0.0)


def main(files: str, model: str = "cnaps-lite0") -> None:
    """One row a way, then the best log T of each set beside that of its left-out examples."""
    engine = open_engine(model)
    tasks = [Task(t, engine.head) for t in load(files)]
    notes = {"calibration": fit_calibration([task.score for task in tasks])}
    alike = [float(np.log(temperature(notes, task.ways, task.shots))) for task in tasks]
    said = [float(np.log(temperature(engine.notes, task.ways, task.shots))) for task in tasks]

    def best(some: list[Task]) -> float:
        return float(GRID[np.mean([task.loss for task in some], axis=0).argmin()])

    row("one for all", tasks, [best(tasks)] * len(tasks))
    row("by ways and shots", tasks, alike)
    row("by ways and shots as the model's notes have it", tasks, said)
    by_size = {size: best([t for t in tasks if t.size == size]) for size in {t.size for t in tasks}}
    row("by size", tasks, [by_size[task.size] for task in tasks])
    for doubt, fewer in product((2, 3, 5, 10, 30), (0, 0.1, 0.2)):
        chosen = []
        for task, middle in zip(tasks, said, strict=True):
            found = GRID[(task.left_out + doubt * (GRID - middle) ** 2).argmin()] if task.known else middle
            chosen.append(found - fewer * task.known / (task.known + 10))
        row(f"by left-out examples, prior {doubt}, {fewer} less", tasks, chosen)
    for doubt, fewer in product((2, 3, 5), (0.1, 0.2, 0.3, 0.4)):
        chosen = []
        for task, middle in zip(tasks, said, strict=True):
            found = GRID[(task.left_out + doubt * (GRID - middle) ** 2).argmin()] if task.known else middle
            chosen.append(found - (fewer / task.shots if task.known else 0))
        row(f"by left-out examples, prior {doubt}, {fewer} / shots less", tasks, chosen)
    for low, high in ((1, 3), (3, 6), (6, 12), (12, 1000)):
        some = [(t, s) for t, s in zip(tasks, said, strict=True) if low <= t.shots < high and t.known]
        asked = [GRID[(task.left_out + 3 * (GRID - middle) ** 2).argmin()] for task, middle in some]
        loss = {
            less: np.mean([np.interp(v - less, GRID, t.loss) for v, (t, _) in zip(asked, some, strict=True)])
            for less in (-0.1, -0.05, 0, 0.05, 0.1, 0.2)
        }
        listed = ", ".join(f"{less}: {value:.4f}" for less, value in loss.items())
        print(
            f"{low} to {high} examples of a class, {len(some)} tasks, loss by what is taken from log T: {listed}"
        )
    row("the best of each task", tasks, [best([task]) for task in tasks])
    for name in dict.fromkeys(task.name for task in tasks):
        mine = [task for task in tasks if task.name == name]
        said = GRID[np.sum([task.left_out for task in mine], axis=0).argmin()]
        print(f"{name}: best log T {best(mine):.2f}, of left-out examples {said:.2f}")


def row(title: str, tasks: list[Task], chosen: list[float]) -> None:
    """Calibration error, mean over sets, and mean loss."""
    bins: dict[str, np.ndarray] = defaultdict(lambda: np.zeros((3, 15)))
    for task, log_t in zip(tasks, chosen, strict=True):
        found = measure(torch.from_numpy(task.logits / np.exp(log_t)), torch.from_numpy(task.labels))
        bins[task.name] += np.array(found["bins"])
    error = np.mean([np.abs(v[1] - v[2]).sum() / v[0].sum() for v in bins.values()])
    loss = np.mean([np.interp(log_t, GRID, task.loss) for task, log_t in zip(tasks, chosen, strict=True)])
    worst = max(np.abs(v[1] - v[2]).sum() / v[0].sum() for v in bins.values())
    over = np.mean([(v[1] - v[2]).sum() / v[0].sum() for v in bins.values()])
    print(f"{title}: error {error:.4f}, worst {worst:.3f}, too sure by {over:+.3f}, loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
