"""Measures of novelty on stored features: AUROC (%) for images of classes outside the task, on each set.

    python tools/compare_novelty.py VALID.pt[,VALID.pt]

Files of tools/cache_features.py with --outside, or with --foreign for strangers of another kind. A second table
says how many members and strangers are beyond the level that a task sets itself.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable

import numpy as np
from compare_heads import load, table
from sklearn.metrics import roc_auc_score

from cnaps.maths.arrays import split, unit
from cnaps.maths.heads import Head, RidgeClassifier
from cnaps.maths.left_out import left_out_logits
from cnaps.maths.statistics import ClassStatistics
from cnaps.runtime.engine import open_engine
from cnaps.runtime.novelty import STRANGE, class_ease, none_level, strange_level, strangeness


class Case:
    """A task: embedded features of examples and of the images asked about, and what the head says of them."""

    def __init__(self, t: dict, head: Head) -> None:
        n, y = t["context"], t["labels"].numpy()
        x, outside = (head.embed(t[name].double().numpy()) for name in ("mean", "outside"))
        self.name, self.groups, self.last = str(t["set"]), head.groups, head.groups[-1]
        self.x, self.labels, self.ways = x[:n], y[:n], int(y.max()) + 1
        self.asked = np.concatenate([x[n:], outside])
        self.novel = np.arange(len(self.asked)) >= len(x) - n
        self.true = y[n:]
        self.statistics = ClassStatistics.of(self.x, self.labels, self.ways, scatter=True)
        self.means, self.counts = self.statistics.means, self.statistics.counts
        self.emphasis = head.emphasis(x)
        made = head.classifier(self.statistics)
        assert isinstance(made, RidgeClassifier)
        v = (self.asked - made.centre) * made.weight
        self.regression, self.prototypes, self.bias = v @ made.regression.T, unit(v) @ made.prototypes.T, made.bias
        self.logits = (self.regression + self.prototypes + self.bias).astype(np.float64)
        self.left_out = left_out_logits(head, self.x, self.labels)
        self.known = np.isfinite(self.left_out).all(1)

    def centred(self, rows: np.ndarray, share: float = 0.75) -> np.ndarray:
        """Emphasised, without a share of what classes have in common."""
        return (rows - share * self.means.mean(0)) * self.emphasis

    def cosines(self, share: float = 0.75, group: int | None = None) -> np.ndarray:
        """To the class means (M, C), of all features or of a stage."""
        asked, means = self.centred(self.asked, share), self.centred(self.means, share)
        if group is not None:
            asked, means = split(asked, self.groups)[group], split(means, self.groups)[group]
        return unit(asked) @ unit(means).T

    def nearest_examples(self, count: int) -> np.ndarray:
        """The mean of the highest cosines to single examples (M,)."""
        return np.sort(unit(self.centred(self.asked)) @ unit(self.centred(self.x)).T, 1)[:, -count:].mean(1)

    def flatness(self, group: int = -1) -> np.ndarray:
        """The cosine of a stage's features to features that are all alike (M,)."""
        rows = split(self.asked, self.groups)[group]
        return np.abs(rows).sum(1) / rows.shape[1] ** 0.5

    def present(self, temperature: float = 1.0) -> np.ndarray:
        """Minus the energy (M,)."""
        return temperature * np.logaddexp.reduce(self.logits / temperature, axis=1)

    def ease(self, few: float = 4.0) -> np.ndarray:
        """See `class_ease`; of left-out examples."""
        own = self.labels[self.known]
        counts = np.bincount(own, minlength=self.ways)
        return class_ease(self.left_out, self.labels) * (counts + 4.0) / (counts + few)

    def unlike(self, group: int | None = None) -> np.ndarray:
        """How much likelier a class is than a new one (M,), both Gaussian, with variances of this task (PLDA)."""
        parts = [self.asked * self.emphasis, self.means * self.emphasis, self.x * self.emphasis]
        q, m, x = parts if group is None else [split(each, self.groups)[group] for each in parts]
        free, centre = max(len(x) - self.ways, 1), m.mean(0)
        apart = ((m - centre) ** 2).sum() / max(self.ways - 1, 1)
        within = ((x - m[self.labels]) ** 2).sum() / free if len(x) > self.ways else apart / 2
        between = max(apart - within * np.mean(1 / self.counts), 0.1 * within)
        share = between / (between + within / self.counts)
        middle, variance = centre + share[:, None] * (m - centre), within + between * (1 - share)
        own = ((q[:, None] - middle) ** 2).sum(2) / variance + np.log(variance)
        new = ((q - centre) ** 2).sum(1) / (within + between) + np.log(within + between)
        return (new[:, None] - own).max(1)

    def outside_span(self, ridge: float) -> np.ndarray:
        """The share of an image that a ridge regression on the examples does not explain (M,)."""
        v, rows = self.centred(self.asked), self.centred(self.x)
        inner = v @ rows.T
        explained = (inner * np.linalg.solve(rows @ rows.T + ridge * np.eye(len(rows)), inner.T).T).sum(1)
        return 1 - explained / (v**2).sum(1)


def mahalanobis(x: np.ndarray, means: np.ndarray, within: np.ndarray, ridge: float) -> np.ndarray:
    """The squared distance to the nearest mean by the covariance of all classes; ridge in parts of its mean."""
    least = ridge * (within**2).sum() / max(len(within), 1) or 1.0
    inverse = np.linalg.inv(np.eye(len(within)) * least + within @ within.T)
    gaps = x[:, None] - means  # (M, C, d)
    inside = gaps @ within.T
    return ((gaps**2).sum(2) - ((inside @ inverse) * inside).sum(2)).min(1)


def measures(case: Case) -> dict[str, np.ndarray]:
    """Scores (M,), higher for strangers."""
    scores = {
        "1 - highest probability": case.present() - case.logits.max(1),
        "highest logit": -case.logits.max(1),
    }
    scores |= {f"energy, temperature {t}": -case.present(t) for t in (0.5, 1, 2, 4)}
    for share in (0, 0.5, 0.75, 1):
        near = case.cosines(share).max(1)
        scores[f"cosine, {share} of what classes have in common left out"] = -near
        scores[f"the same and energy, {share}"] = -6 * near - case.present()
    scores |= {f"cosine in stage {g}": -case.cosines(group=g).max(1) for g in range(len(case.groups))}
    scores |= {f"cosine to {k} nearest examples": -case.nearest_examples(k) for k in (1, 3, 5)}
    scores["PLDA, all stages"], scores["PLDA, last stage"] = -case.unlike(), -case.unlike(-1)
    scores |= {f"share outside the span, ridge {r}": case.outside_span(r) for r in (0.05, 0.2, 1)}
    assert case.statistics.scatter is not None
    freedom = max(len(case.x) - case.ways, 1)
    within = np.concatenate(case.statistics.scatter) * case.emphasis / freedom**0.5
    for ridge in (0.03, 0.3, 1):
        gaps = mahalanobis(case.asked * case.emphasis, case.means * case.emphasis, within, ridge)
        scores[f"Mahalanobis, ridge {ridge}"] = gaps
    scores |= {f"energy - {f} flatness": -case.present() - f * case.flatness() for f in (2, 5, 10)}
    for part, few in ((0.5, 2), (0.5, 4), (1, 4)):
        even = np.logaddexp.reduce(case.logits - part * case.ease(few), axis=1)
        scores[f"energy, {part} of the ease of classes taken away, {few} examples as of others"] = -even
    scores["as shipped"] = strangeness(case.logits, case.asked, case.ease(), case.last)
    return scores


def beyond(case: Case) -> dict[str, tuple[float, float]]:
    """Shares of members and of strangers beyond levels by the examples."""
    level = none_level(case.x, case.labels, case.emphasis)
    own = strange_level(case.left_out, case.x, case.ease(), case.last)
    if level is None or own is None:
        return {}
    mine = strangeness(case.logits, case.asked, case.ease(), case.last)
    left = strangeness(case.left_out[case.known], case.x[case.known], case.ease(), case.last)
    marks = {
        "cosine": 1 - case.cosines().max(1) > level,
        "as shipped": mine > own,
        "as shipped, plain quantile": mine > np.quantile(left, STRANGE),
    }
    return {k: (float(v[~case.novel].mean()), float(v[case.novel].mean())) for k, v in marks.items()}


def average(cases: list[Case], score: Callable[[Case], dict[str, float]]) -> list[tuple[str, dict[str, float]]]:
    """Means over the tasks of each set, a row for each key."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for case in cases:
        for key, value in score(case).items():
            found[key][case.name].append(value)
    return [(key, {k: float(np.mean(v)) for k, v in by_set.items()}) for key, by_set in found.items()]


def auroc(case: Case, score: np.ndarray) -> float:
    return float(roc_auc_score(case.novel, score))


def read_cases(files: str, model: str = "cnaps-lite0") -> list[Case]:
    """Every task of the files that has strangers."""
    head = open_engine(model).head
    return [Case(t, head) for t in load(files) if len(t["outside"])]


def differences(cases: list[Case]) -> str:
    """What the shipped measure has more than the cosine, on the same tasks, with 95% intervals."""
    found: dict[str, list[float]] = defaultdict(list)
    for case in cases:
        mine = strangeness(case.logits, case.asked, case.ease(), case.last)
        found[case.name].append(100 * (auroc(case, mine) - auroc(case, -case.cosines().max(1))))
    errors = {name: float(np.var(v, ddof=1)) / len(v) for name, v in found.items()}
    rows = [f"{name} {np.mean(v):+.1f} ± {1.96 * errors[name] ** 0.5:.1f}" for name, v in found.items()]
    mean = np.mean([np.mean(v) for v in found.values()])
    return f"mean {mean:+.1f} ± {1.96 * sum(errors.values()) ** 0.5 / len(found):.1f}; " + ", ".join(rows)


def main(files: str, model: str = "cnaps-lite0") -> None:
    """What the shipped measure gains, one row a measure, and what is beyond the levels."""
    cases = read_cases(files, model)
    print(differences(cases), flush=True)
    print(table(average(cases, lambda case: {k: auroc(case, v) for k, v in measures(case).items()})))
    print()
    marked = [(who, place) for place, who in enumerate(("members", "strangers"))]
    shares = average(cases, lambda c: {f"{k}: {who}": v[i] for k, v in beyond(c).items() for who, i in marked})
    print(table(shares))


if __name__ == "__main__":
    main(*sys.argv[1:])
