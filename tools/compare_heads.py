"""Heads on stored features: what a power, a metric and other pooling are worth, before anything is trained.

    python tools/compare_heads.py TRAIN.pt[,TRAIN.pt] VALID.pt[,VALID.pt] [--variants all]

Files are those of tools/cache_features.py. A metric comes from the within-class covariance of the training tasks. Prints a
table in Markdown: accuracy in percent on each set of the validation files.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from cnaps.nn.checkpoints import load_model
from cnaps.nn.heads import RidgeHead
from cnaps.nn.statistics import ClassStatistics
from cnaps.paper.learners.logreg import _solve

GROUPS = [16, 24, 40, 80, 112, 192, 1280]


def load(names: str) -> list[dict]:
    return [task for name in names.split(",") for task in torch.load(name, weights_only=False)]


def power(x: Tensor, exponent: float) -> Tensor:
    return x if exponent == 1 else x.sign() * x.abs().clamp_min(1e-6).pow(exponent)


class Metric:
    """Per group: power, centre and whitening by the within-class covariance of training tasks."""

    def __init__(
        self, tasks: list[dict], exponent: float, ridge: float, strength: float = 0.5, groups=GROUPS
    ) -> None:
        self.exponent, self.groups = exponent, groups
        sums, centres, total = [torch.zeros(g, g, dtype=torch.float64) for g in groups], [0.0] * len(groups), 0
        freedom = 0
        by_set = defaultdict(int)
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


def prepare(t: dict, exponent: float, groups=GROUPS) -> Tensor:
    """Each group of unit length, then its power, then of unit length again."""
    x = t["mean"].double()
    parts = [F.normalize(p, dim=1) for p in x.split(GROUPS, 1)]
    parts = [F.normalize(power(p, exponent), dim=1) for p in parts]
    return torch.cat(parts, 1)


def raw(t: dict) -> Tensor:
    return torch.cat([F.normalize(p, dim=1) for p in t["mean"].float().split(GROUPS, 1)], 1)


def powered(exponent: float) -> Callable[[dict], Tensor]:
    return lambda t: prepare(t, exponent).float()


@torch.no_grad()
def ridge_accuracy(head: RidgeHead, x: Tensor, t: dict) -> float:
    n, labels = t["context"], t["labels"]
    ways = int(labels.max()) + 1
    made = head.classifier(ClassStatistics.of(x[:n], labels[:n], ways, scatter=True))
    return (made(x[n:]).argmax(1) == labels[n:]).double().mean().item()


def logistic_accuracy(x: Tensor, t: dict, strength: float) -> float:
    n, labels = t["context"], t["labels"]
    weight, bias = _solve(x[:n], labels[:n], strength)
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("train")
    parser.add_argument("valid")
    parser.add_argument("--logistic", action="store_true")
    o = parser.parse_args()
    torch.set_num_threads(1)
    train, valid = load(o.train), load(o.valid)
    model = load_model("cnaps-lite0")
    head = model.head
    rows = []

    def add(label: str, embed: Callable[[dict], Tensor], strengths=(), only=None) -> None:
        started = time.time()
        rows.append((label + " + ridge", score(valid, lambda t: ridge_accuracy(head, embed(t), t))))
        if o.logistic:
            w = torch.cat([torch.full((g,), float(v)) for g, v in zip(GROUPS, head.log_weight.exp(), strict=True)])
            for c in (10, 100, 1000):
                rows.append(
                    (
                        f"{label} + weights, logistic C={c}",
                        score(valid, lambda t: logistic_accuracy(embed(t) * w, t, c)),
                    )
                )
                rows.append(
                    (
                        f"{label}, last, logistic C={c}",
                        score(valid, lambda t: logistic_accuracy(embed(t)[:, -1280:], t, c)),
                    )
                )
        print(table(rows[-1:]).splitlines()[-1], round(time.time() - started), "s", flush=True)

    print({k: v.exp().tolist() if "log" in k else v.tolist() for k, v in head.named_parameters()})
    add("as shipped", raw)
    for e in (0.5, 0.7):
        add(f"power {e}", powered(e))
    for e in (1, 0.5):
        for r in (0.1, 0.3, 1.0):
            add(f"power {e}, metric r={r}", Metric(train, e, r))
    print(table(rows))


if __name__ == "__main__":
    main()
