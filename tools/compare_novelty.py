"""Measures of novelty on stored features: AUROC (%) for images of classes outside the task, on each set.

python tools/compare_novelty.py VALID.pt[,VALID.pt]        files of tools/cache_features.py --outside 3
"""

from __future__ import annotations

import sys
from collections import defaultdict

import numpy as np
from compare_heads import load, table
from sklearn.metrics import roc_auc_score

from cnaps.maths.arrays import unit
from cnaps.maths.statistics import ClassStatistics
from cnaps.runtime.engine import open_engine


def mahalanobis(x: np.ndarray, means: np.ndarray, within: np.ndarray, ridge: float) -> np.ndarray:
    """The squared distance to the nearest mean by the covariance of all classes; ridge in parts of its mean."""
    least = ridge * (within**2).sum() / max(len(within), 1) or 1.0
    inverse = np.linalg.inv(np.eye(len(within)) * least + within @ within.T)
    gaps = x[:, None] - means  # (M, C, d)
    inside = gaps @ within.T
    return ((gaps**2).sum(2) - ((inside @ inverse) * inside).sum(2)).min(1)


def main(files: str, model: str = "cnaps-lite0") -> None:
    """One row a measure."""
    head = open_engine(model).head
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for t in load(files):
        n, labels = t["context"], t["labels"].numpy()
        x, outside = (head.embed(t[name].float().numpy()) for name in ("mean", "outside"))
        if not len(outside):
            continue
        statistics = ClassStatistics.of(x[:n], labels[:n], int(labels.max()) + 1, scatter=True)
        asked, emphasis = np.concatenate([x[n:], outside]), head.emphasis(x)
        novel = np.arange(len(asked)) >= len(x) - n
        logits = head.classifier(statistics)(asked).astype(np.float64)
        sure = np.logaddexp.reduce(logits, axis=1)
        scores = {"1 - highest probability": 1 - np.exp(logits.max(1) - sure), "energy": -sure}
        for share in (0, 0.5, 0.75, 1):
            common = share * statistics.means.mean(0)
            near = unit((asked - common) * emphasis) @ unit((statistics.means - common) * emphasis).T
            scores[f"cosine, {share} of what classes have in common left out"] = -near.max(1)
            scores[f"the same and energy, {share}"] = -6 * near.max(1) - sure
        assert statistics.scatter is not None
        within = np.concatenate(statistics.scatter) * emphasis / max(n - len(statistics.means), 1) ** 0.5
        for ridge in (0.03, 0.1, 0.3, 1):
            scores[f"Mahalanobis, ridge {ridge}"] = mahalanobis(
                asked * emphasis, statistics.means * emphasis, within, ridge
            )
        for name, score in scores.items():
            found[name][t["set"]].append(float(roc_auc_score(novel, score)))
    rows = [(name, {k: float(np.mean(v)) for k, v in by_set.items()}) for name, by_set in found.items()]
    print(table(rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
