"""Learn the head's numbers, and a metric, on stored features of training tasks; judge them on validation tasks.

python tools/learn_head.py TRAIN.pt[,TRAIN.pt] VALID.pt[,VALID.pt] --metric full --epochs 6 [--save head.pt]
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections import defaultdict

import torch
from compare_heads import GROUPS, load, table
from torch import Tensor, nn
from torch.nn import functional as F

from cnaps.maths.statistics import ClassStatistics
from cnaps.nn.checkpoints import load_model
from cnaps.nn.heads import RidgeHead


class MetricHead(RidgeHead):
    """Ridge on unit(M (power(x) - c)) of each group."""

    def __init__(self, metric: str, power: bool, centre: bool, rank: int = 0) -> None:
        super().__init__(GROUPS)
        self.kind, self.use_power = metric, power
        if power:
            self.log_power = nn.Parameter(torch.zeros(len(GROUPS)))
        self.shift = nn.Parameter(torch.zeros(sum(GROUPS)), requires_grad=centre)
        self.matrices = nn.ParameterList()
        if metric == "full":
            self.matrices.extend(nn.Parameter(torch.eye(g)) for g in GROUPS)
        elif metric == "scale":
            self.matrices.extend(nn.Parameter(torch.ones(g)) for g in GROUPS)
        elif metric == "low":
            for g in GROUPS:
                r = min(rank, g)
                self.matrices.append(nn.Parameter(torch.zeros(g, r)))
                self.matrices.append(nn.Parameter(torch.randn(r, g) / math.sqrt(g)))

    def embed(self, features: Tensor) -> Tensor:
        out = []
        for i, (x, c) in enumerate(zip(features.split(GROUPS, 1), self.shift.split(GROUPS), strict=True)):
            x = F.normalize(x, dim=1)
            if self.use_power:
                x = F.normalize(x.sign() * x.abs().clamp_min(1e-5).pow(self.log_power[i].exp()), dim=1)
            x = x - c
            if self.kind == "full":
                x = x @ self.matrices[i]
            elif self.kind == "scale":
                x = x * self.matrices[i]
            elif self.kind == "low":
                x = x + (x @ self.matrices[2 * i]) @ self.matrices[2 * i + 1]
            out.append(F.normalize(x, dim=1))
        return torch.cat(out, 1)


def logits_of(head: RidgeHead, t: dict) -> tuple[Tensor, Tensor]:
    n, labels = t["context"], t["labels"]
    x = head.embed(t["mean"].float())
    ways = int(labels.max()) + 1
    made = head.classifier(ClassStatistics.of(x[:n], labels[:n], ways, scatter=True))
    return made(x[n:]), labels[n:]


@torch.no_grad()
def evaluate(head: RidgeHead, tasks: list[dict]) -> tuple[dict[str, float], float]:
    found, losses = defaultdict(list), defaultdict(list)
    for t in tasks:
        logits, labels = logits_of(head, t)
        found[t["set"]].append((logits.argmax(1) == labels).double().mean().item())
        losses[t["set"]].append(F.cross_entropy(logits, labels).item())
    mean = sum(sum(v) / len(v) for v in losses.values()) / len(losses)
    return {k: sum(v) / len(v) for k, v in found.items()}, mean


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("train")
    parser.add_argument("valid")
    parser.add_argument("--metric", default="full")
    parser.add_argument("--power", action="store_true")
    parser.add_argument("--centre", action="store_true")
    parser.add_argument("--rank", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--matrix-rate", type=float, default=3e-4)
    parser.add_argument("--save")
    o = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    train, valid = load(o.train), load(o.valid)
    head = MetricHead(o.metric, o.power, o.centre, o.rank)
    shipped = load_model("cnaps-lite0").head
    head.load_state_dict(shipped.state_dict(), strict=False)
    rows = []
    scores, loss = evaluate(head, valid)
    rows.append(("start", scores))
    print(table(rows).splitlines()[0], table(rows).splitlines()[-1], f"{loss:.4f}", flush=True)
    big = [p for p in head.parameters() if p.numel() > 100]
    small = [p for p in head.parameters() if p.numel() <= 100]
    optimiser = torch.optim.Adam([{"params": big, "lr": o.matrix_rate}, {"params": small, "lr": o.rate * 10}])
    order = list(range(len(train)))
    total, step = o.epochs * len(order) // 8, 0
    base = [g["lr"] for g in optimiser.param_groups]
    for epoch in range(o.epochs):
        random.Random(epoch).shuffle(order)
        started, seen = time.time(), 0.0
        for start in range(0, len(order) - 7, 8):
            optimiser.zero_grad()
            for i in order[start : start + 8]:
                t = dict(train[i])
                # other shots of the same task: a part of the context is left out at random
                n = t["context"]
                if random.random() < 0.5:
                    ways = int(t["labels"].max()) + 1
                    keep = torch.rand(n) < random.uniform(0.2, 1)
                    for k in range(ways):
                        mine = torch.nonzero(t["labels"][:n] == k).flatten()
                        keep[mine[torch.randint(len(mine), ())]] = True
                    rows_ = torch.cat([torch.nonzero(keep).flatten(), torch.arange(n, len(t["labels"]))])
                    t = {"labels": t["labels"][rows_], "mean": t["mean"][rows_], "context": int(keep.sum())}
                logits, labels = logits_of(head, t)
                loss_ = F.cross_entropy(logits, labels) / 8
                loss_.backward()
                seen += loss_.item()
            for g, b in zip(optimiser.param_groups, base, strict=True):
                g["lr"] = b * 0.5 * (1 + math.cos(math.pi * step / max(1, total)))
            optimiser.step()
            step += 1
        scores, loss = evaluate(head, valid)
        rows.append((f"epoch {epoch + 1}", scores))
        print(
            table(rows).splitlines()[-1],
            f"valid {loss:.4f} train {seen / (len(order) // 8):.4f}",
            round(time.time() - started),
            "s",
            flush=True,
        )
    for name, p in head.named_parameters():
        if p.numel() <= 100:
            print(name, (p.exp() if "log" in name else p).tolist())
    if o.save:
        torch.save(head.state_dict(), o.save)


if __name__ == "__main__":
    main()
