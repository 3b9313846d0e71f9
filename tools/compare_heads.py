"""Heads on stored features: what a power, a metric and other pooling are worth, before anything is trained.

    python tools/compare_heads.py TRAIN.pt[,TRAIN.pt] VALID.pt[,VALID.pt]

Files are those of tools/cache_features.py. A metric comes from the within-class covariance of the training tasks.
Prints a table in Markdown: accuracy in percent on each set of the validation files.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import product

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from cnaps.maths.left_out import left_out_logits
from cnaps.maths.statistics import ClassStatistics
from cnaps.nn.checkpoints import load_model
from cnaps.nn.heads import RidgeHead
from cnaps.paper.learners.logreg import solve

GROUPS = [16, 24, 40, 80, 112, 192, 1280]


def load(names: str) -> list[dict]:
    return [task for name in names.split(",") for task in torch.load(name, weights_only=False)]


def power(x: Tensor, exponent: float) -> Tensor:
    return x if exponent == 1 else x.sign() * x.abs().clamp_min(1e-6).pow(exponent)


class Metric:
    """Per group: power, centre and whitening by the within-class covariance of training tasks."""

    def __init__(
        self, tasks: list[dict], exponent: float, ridge: float, strength: float = 0.5, groups: list[int] = GROUPS
    ) -> None:
        self.exponent, self.groups = exponent, groups
        sums, centres, total = [torch.zeros(g, g, dtype=torch.float64) for g in groups], [0.0] * len(groups), 0.0
        freedom = 0.0
        by_set: dict[str, int] = defaultdict(int)
        for t in tasks:
            by_set[t["set"]] += 1
        for t in tasks:
            x = prepare(t, exponent, groups)
            labels = t["labels"]
            ways = int(labels.max()) + 1
            onehot = F.one_hot(labels, ways).double()
            means = onehot.T @ x / onehot.sum(0)[:, None]
            w = 1 / (by_set[t["set"]] * len(x))
            within = x - means[labels]
            for i, (part, mean) in enumerate(zip(within.split(groups, 1), x.mean(0).split(groups), strict=True)):
                sums[i] += w * part.T @ part
                centres[i] = centres[i] + w * len(x) * mean
            total += w * len(x)
            freedom += w * (len(x) - ways)
        self.centre = [c / total for c in centres]
        self.matrices = []
        for s in sums:
            values, vectors = torch.linalg.eigh(s / freedom)
            values = values.clamp_min(0) + ridge * values.mean()
            self.matrices.append((vectors * values.pow(-strength)) @ vectors.T)

    def __call__(self, t: dict) -> Tensor:
        x = prepare(t, self.exponent, self.groups)
        parts = zip(x.split(self.groups, 1), self.centre, self.matrices, strict=True)
        return torch.cat([F.normalize((p - c) @ m, dim=1) for p, c, m in parts], 1).float()


def prepare(t: dict, exponent: float, groups: list[int] = GROUPS) -> Tensor:
    """Each group of unit length, then its power, then of unit length again."""
    x = t["mean"].double()
    parts = [F.normalize(p, dim=1) for p in x.split(groups, 1)]
    parts = [F.normalize(power(p, exponent), dim=1) for p in parts]
    return torch.cat(parts, 1)


def raw(t: dict) -> Tensor:
    return torch.cat([F.normalize(p, dim=1) for p in t["mean"].float().split(GROUPS, 1)], 1)


@torch.no_grad()
def ridge_accuracy(head: RidgeHead, x: Tensor, t: dict) -> float:
    n, labels = t["context"], t["labels"]
    ways = int(labels.max()) + 1
    made = head.classifier(ClassStatistics.of(x[:n], labels[:n], ways, scatter=True))
    return (made(x[n:]).argmax(1) == labels[n:]).double().mean().item()


def logistic_accuracy(x: Tensor, t: dict, strength: float) -> float:
    n, labels = t["context"], t["labels"]
    weight, bias = solve(x[:n], labels[:n], strength)
    return ((x[n:] @ weight.T + bias).argmax(1) == labels[n:]).double().mean().item()


def table(rows: list[tuple[str, dict[str, float]]]) -> str:
    names = list(rows[0][1])
    lines = ["| | mean | " + " | ".join(names) + " |", "| --- |" + " ---: |" * (len(names) + 1)]
    for label, row in rows:
        mean = sum(row.values()) / len(row)
        lines.append(f"| {label} | {100 * mean:.1f} | " + " | ".join(f"{100 * row[n]:.1f}" for n in names) + " |")
    return "\n".join(lines)


def score(tasks: list[dict], accuracy: Callable[[dict], float]) -> dict[str, float]:
    found: dict[str, list[float]] = defaultdict(list)
    for t in tasks:
        found[t["set"]].append(accuracy(t))
    return {name: sum(v) / len(v) for name, v in found.items()}


def reweighted(head: RidgeHead, last: float, ridge: float = 1.0, cosine: float = 1.0) -> RidgeHead:
    """The head with its last stage `last` times as strong beside the others, its ridge and cosine part changed."""
    changed = copy.deepcopy(head)
    with torch.no_grad():
        changed.log_weight[:-1] -= math.log(last)
        before, after = (each.log_weight.exp().square().sum() for each in (head, changed))
        changed.log_weight.add_(0.5 * (before / after).log())
        changed.log_ridge.add_(math.log(ridge))
        changed.log_temperature[1] += math.log(cosine)
    return changed


@torch.no_grad()
def chosen_accuracy(heads: list[RidgeHead], x: Tensor, t: dict) -> float:
    """By the head under which left-out context examples are likeliest."""
    n, labels = t["context"], t["labels"]
    found = [torch.from_numpy(left_out_logits(head.numpy, x[:n].numpy(), labels[:n].numpy())) for head in heads]
    known = ~found[0][:, 0].isnan()
    losses = [
        F.cross_entropy(each[known], labels[:n][known]).item() if known.sum() >= 5 else 0.0 for each in found
    ]
    return ridge_accuracy(heads[losses.index(min(losses))], x, t)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("train")
    parser.add_argument("valid")
    parser.add_argument("--model", default="cnaps-lite0")
    parser.add_argument("--rows", default="power,metric,weights,chosen,logistic")
    o = parser.parse_args()
    torch.set_num_threads(1)
    train, valid = load(o.train) if "metric" in o.rows else [], load(o.valid)
    head = load_model(o.model).head
    assert isinstance(head, RidgeHead)
    rows: list[tuple[str, dict[str, float]]] = []

    def add(label: str, accuracy: Callable[[dict], float]) -> None:
        started = time.time()
        rows.append((label, score(valid, accuracy)))
        print(table(rows[-1:]).splitlines()[-1], round(time.time() - started), "s", flush=True)

    add("as it is", lambda t: ridge_accuracy(head, raw(t), t))
    if "power" in o.rows:
        for e in (0.5, 0.7):
            add(f"power {e}", partial(lambda e, t: ridge_accuracy(head, prepare(t, e).float(), t), e))
    if "metric" in o.rows:
        for e, r in product((1, 0.5), (0.1, 0.3, 1.0)):
            metric = Metric(train, e, r)
            add(f"power {e}, metric r={r}", partial(lambda m, t: ridge_accuracy(head, m(t), t), metric))
    if "weights" in o.rows:
        for last, ridge in product((1, 2, 4, 100), (0.25, 1, 4)):
            h = reweighted(head, last, ridge)
            add(f"last stage x{last}, ridge x{ridge}", partial(lambda h, t: ridge_accuracy(h, raw(t), t), h))
        for cosine in (1e-6, 0.5, 2):
            h = reweighted(head, 1, 1, cosine)
            add(f"cosine part x{cosine}", partial(lambda h, t: ridge_accuracy(h, raw(t), t), h))
    if "chosen" in o.rows:
        heads = [reweighted(head, last, ridge) for last, ridge in product((1, 2, 4, 100), (1, 0.25))]
        add("last x1 to x100, by left-out examples", lambda t: chosen_accuracy(heads, raw(t), t))
    if "logistic" in o.rows:
        weight = head.numpy.emphasis(np.empty(0, np.float32))
        for c in (10, 100, 1000):
            add(f"weights, logistic C={c}", partial(lambda c, t: logistic_accuracy(raw(t) * weight, t, c), c))
            add(f"last stage, logistic C={c}", partial(lambda c, t: logistic_accuracy(raw(t)[:, -1280:], t, c), c))
    print(table(rows))


if __name__ == "__main__":
    main()
