"""Detectors of strangers that are learned from training tasks, and what they are worth on other domains.

    python tools/learn_novelty.py TRAIN.pt[,TRAIN.pt] VALID.pt[,VALID.pt] [energy,statistics,metric]

Files of tools/cache_features.py --outside. Prints AUROC (%) on each validation set: of the energy with parts that
are fitted (rounded, they are the constants of `runtime/novelty.py`), of cosines alike, of logistic regression, a
small network and trees on statistics of each image, of whitening, and of a background of generic class means.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import torch
from compare_heads import table
from compare_novelty import Case, auroc, average, read_cases
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler
from torch import Tensor
from torch.nn import functional as F

from cnaps.maths.arrays import unit

Score = Callable[[Case], np.ndarray]


def statistics(case: Case) -> dict[str, np.ndarray]:
    """Numbers (M,) that a detector may read, all free of scale."""
    cosines, left = case.cosines(), case.left_out[case.known]
    near, ranked = cosines.argmax(1), np.sort(cosines, 1)
    made = case.means[case.labels]
    others = made + (made - case.x) / np.maximum(case.counts[case.labels] - 1, 1)[:, None]
    fits = (unit(case.centred(case.x)) * unit(case.centred(others))).sum(1)
    spread = (((case.x - made) * case.emphasis) ** 2).sum(1)

    def by_class(values: np.ndarray) -> np.ndarray:  # of the nearest class, beside those of all
        some, own = values[case.known], case.labels[case.known]
        apart = np.bincount(own, some - (some.mean() if len(some) else 0), minlength=case.ways)
        return (apart / (np.bincount(own, minlength=case.ways) + 2))[near]

    own_logits = np.full(len(case.x), np.nan)
    own_logits[case.known] = left[np.arange(len(left)), case.labels[case.known]]
    found = {
        "cosine": ranked[:, -1],
        "second cosine": ranked[:, -2],
        "mean cosine": cosines.mean(1),
        "regression": case.regression.max(1),
        "prototypes": case.prototypes.max(1),
        "present": case.present(),
        "present, 2": case.present(2),
        "highest logit": case.logits.max(1),
        "probability": case.logits.max(1) - case.present(),
        "even": np.logaddexp.reduce(case.logits - 0.5 * case.ease(), axis=1),
        "nearest example": case.nearest_examples(1),
        "nearest examples": case.nearest_examples(3),
        "PLDA": case.unlike(),
        "PLDA, last": case.unlike(-1),
        "span": case.outside_span(0.2),
        "span, 2": case.outside_span(2),
        "fits of the class": by_class(fits),
        "logits of the class": by_class(own_logits),
        "spread of the class": by_class(spread),
        "examples of the class": np.log(case.counts[near]),
    }
    for g in range(-4, 0):
        found[f"cosine, stage {g}"] = case.cosines(group=g).max(1)
        found[f"flatness, stage {g}"] = case.flatness(g)
    return found


def stack(case: Case, names: Sequence[str]) -> np.ndarray:
    known: dict[str, np.ndarray] = case.__dict__.setdefault("read", {}) or statistics(case)
    case.__dict__["read"] = known
    return np.stack([known[name] for name in names], 1)


def linear(cases: list[Case], names: Sequence[str], strength: float = 1.0) -> np.ndarray:
    """Weights under which strangers of a task stand above its members, in logistic regression on pairs."""
    chance, gaps = np.random.default_rng(0), []
    for case in cases:
        rows = stack(case, names)
        strangers, members = (chance.choice(np.flatnonzero(of), 300) for of in (case.novel, ~case.novel))
        gaps.append(rows[strangers] - rows[members])
    found = np.concatenate(gaps)
    scale, sign = found.std(0) + 1e-9, np.where(np.arange(len(found)) % 2, 1, -1)
    fitted = LogisticRegression(C=strength, fit_intercept=False, max_iter=500)
    return fitted.fit(found / scale * sign[:, None], sign > 0).coef_[0] / scale


class Parts:
    """A task as tensors, for scores with parts that are fitted by gradient."""

    def __init__(self, case: Case) -> None:
        tensor = torch.from_numpy
        self.regression, self.prototypes = tensor(case.regression).double(), tensor(case.prototypes).double()
        self.bias, self.ease = tensor(np.asarray(case.bias, np.float64)), tensor(case.ease())
        stages = [case.cosines(group=g) for g in range(len(case.groups))]
        self.stages = tensor(np.stack(stages, 2)).double()
        self.flat = tensor(np.stack([case.flatness(g) for g in range(len(case.groups))], 1))
        self.cosines = tensor(case.cosines(0.85)).double()
        made = case.means[case.labels]
        others = made + (made - case.x) / np.maximum(case.counts[case.labels] - 1, 1)[:, None]
        fits = (unit(case.centred(case.x, 0.85)) * unit(case.centred(others, 0.85))).sum(1)[case.known]
        apart = fits - fits.mean() if len(fits) else fits
        own = case.labels[case.known]
        sums, counts = np.bincount(own, apart, minlength=case.ways), np.bincount(own, minlength=case.ways)
        self.fits = tensor(sums / (counts + 3))


START = {"regression": 1.0, "prototypes": 1.0, "bias": 1.0, "ease": 0.0, "flat": 0.0, "temperature": 1.0}


def energy(parts: Parts, w: dict[str, Tensor]) -> Tensor:
    """The energy, evened out between classes, beside flatness and cosines in single stages, all weighted."""
    logits = w["regression"] * parts.regression + w["prototypes"] * parts.prototypes + w["bias"] * parts.bias
    logits = logits - w["ease"] * parts.ease
    for g in range(parts.stages.shape[2]):
        logits = logits + w[f"cosine {g}"] * parts.stages[:, :, g]
    flat = sum(w[f"flat {g}"] * parts.flat[:, g] for g in range(parts.flat.shape[1] - 1))
    present = w["temperature"] * torch.logsumexp(logits / w["temperature"], 1)
    return -present - w["flat"] * parts.flat[:, -1] - flat


def cosine_energy(parts: Parts, w: dict[str, Tensor]) -> Tensor:
    """The same of cosines to class means, without the regression."""
    logits = w["regression"] * 10 * (parts.cosines - w["ease"] * parts.fits)
    return -torch.logsumexp(logits, 1) - w["flat"] * parts.flat[:, -1]


def fitted(
    cases: list[Case], free: Sequence[str], score: Callable[[Parts, dict[str, Tensor]], Tensor]
) -> dict[str, Tensor]:
    """The weights under which strangers of training tasks stand above members, every set alike."""
    parts = [(Parts(case), torch.from_numpy(case.novel), case.name) for case in cases]
    count = Counter(case.name for case in cases)
    start = START | {f"{kind} {g}": 0.0 for kind in ("cosine", "flat") for g in range(len(cases[0].groups))}
    w = {k: torch.tensor(v, dtype=torch.float64, requires_grad=k in free) for k, v in start.items()}
    optimiser = torch.optim.LBFGS([w[k] for k in free], max_iter=60, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = torch.zeros((), dtype=torch.float64)
        for each, novel, name in parts:
            found = score(each, w)
            loss = loss + F.softplus(found[~novel][None] - found[novel][:, None]).mean() / count[name]
        loss.backward()
        return loss

    optimiser.step(closure)
    return {k: v.detach() for k, v in w.items()}


def within_covariance(cases: list[Case]) -> np.ndarray:
    """Of emphasised features around the means of their classes, every set alike."""
    count = Counter(case.name for case in cases)
    total, freedom = np.zeros(2 * cases[0].means.shape[1:]), 0.0
    for case in cases:
        apart = (case.x - case.means[case.labels]) * case.emphasis
        share = 1 / (count[case.name] * len(apart))
        total += share * apart.T @ apart
        freedom += share * (len(apart) - case.ways)
    return total / freedom


def whitened(case: Case, matrix: np.ndarray) -> np.ndarray:
    return -(unit(case.centred(case.asked) @ matrix) @ unit(case.centred(case.means) @ matrix).T).max(1)


def against(case: Case, background: np.ndarray, count: int, share: float) -> np.ndarray:
    """The cosine to the nearest class beside that to the nearest of generic classes."""
    generic = np.sort(unit(case.centred(case.asked)) @ unit(case.centred(background)).T, 1)[:, -count:].mean(1)
    return share * generic - case.cosines().max(1)


Add = Callable[[str, Score], None]


def energies(train: list[Case], add: Add) -> None:
    """Energies and cosines with fitted parts."""
    last = [f"cosine {g}" for g in (4, 5, 6)]
    every = [f"{kind} {g}" for kind in ("cosine", "flat") for g in range(6)]
    for free in (
        ["regression", "flat"],
        ["regression", "prototypes", "ease", "flat"],
        ["regression", "prototypes", "ease", "flat", "bias", "temperature"],
        ["regression", "prototypes", "ease", "flat", "temperature", *last],
        ["regression", "prototypes", "ease", "flat", "bias", "temperature", *every],
    ):
        w = fitted(train, free, energy)
        said = ", ".join(f"{k} {float(w[k]):.2f}" for k in free)
        add(f"energy: {said}", lambda case, w=w: energy(Parts(case), w).numpy())  # type: ignore[misc]
    w = fitted(train, ["regression", "ease", "flat"], cosine_energy)
    said = ", ".join(f"{k} {float(w[k]):.2f}" for k in ("regression", "ease", "flat"))
    add(f"cosines with 0.85: {said}", lambda case: cosine_energy(Parts(case), w).numpy())


def detectors(train: list[Case], add: Add) -> None:
    """Logistic regression, networks and trees on statistics of each image."""
    names = list(statistics(train[0]))
    for strength in (1, 0.01, 0.001):
        weights = linear(train, names, strength)
        add(f"logistic, {len(names)} statistics, C={strength}", lambda case, v=weights: stack(case, names) @ v)  # type: ignore[misc]
    for some in (["present", "cosine"], ["even", "flatness, stage -1"], ["even", "flatness, stage -1", "span"]):
        weights = linear(train, some)
        add(f"logistic: {', '.join(some)}", lambda case, s=some, v=weights: stack(case, s) @ v)  # type: ignore[misc]

    def read(case: Case) -> np.ndarray:
        about = np.log([case.ways, len(case.x) / case.ways])
        return np.concatenate([stack(case, names), np.tile(about, (len(case.asked), 1))], 1)

    x, y = np.concatenate([read(case) for case in train]), np.concatenate([case.novel for case in train])
    size: dict[str, int] = defaultdict(int)
    for case in train:
        size[case.name] += len(case.novel)
    weight = np.concatenate([np.full(len(case.novel), len(y) / size[case.name]) for case in train])
    for depth, count in ((3, 100), (3, 300)):
        trees = HistGradientBoostingClassifier(
            max_depth=depth, max_iter=count, learning_rate=0.05, l2_regularization=10, min_samples_leaf=100
        ).fit(x, y, sample_weight=weight)
        add(f"{count} trees of depth {depth}", lambda case, m=trees: m.decision_function(read(case)))  # type: ignore[misc]
    scaler = StandardScaler().fit(x)
    for width, alpha in ((8, 1.0), (16, 10.0)):
        network = MLPClassifier((width,), alpha=alpha, max_iter=60, early_stopping=True, random_state=0)
        network.fit(scaler.transform(x), y)
        add(
            f"network of {width}, alpha {alpha}",
            lambda case, m=network: m.predict_proba(scaler.transform(read(case)))[:, 1],  # type: ignore[misc]
        )


def metrics(train: list[Case], add: Add) -> None:
    """Whitening, and a background."""
    values, vectors = np.linalg.eigh(within_covariance(train))
    for ridge in (0.1, 1, 3, 10):
        matrix = (vectors * (np.maximum(values, 0) + ridge * values.mean()) ** -0.5) @ vectors.T
        add(f"cosine, whitened, ridge {ridge}", lambda case, m=matrix: whitened(case, m))  # type: ignore[misc]
    background = np.concatenate([case.means for case in train])
    for count, share in ((1, 0.2), (1, 0.5), (5, 0.2), (20, 0.2)):
        add(
            f"cosine less {share} of that to {count} of {len(background)} generic classes",
            lambda case, k=count, s=share: against(case, background, k, s),  # type: ignore[misc]
        )


def main(train_files: str, valid_files: str, parts: str = "energy,statistics,metric") -> None:
    """One row a detector."""
    torch.set_num_threads(1)
    train, valid = read_cases(train_files), read_cases(valid_files)
    rows: list[tuple[str, dict[str, float]]] = []

    def add(label: str, score: Score) -> None:
        rows.extend(average(valid, lambda case: {label: auroc(case, score(case))}))
        print(table(rows[-1:]).splitlines()[-1], flush=True)

    add("cosine", lambda case: -case.cosines().max(1))
    add("energy", lambda case: -case.present())
    for name, run in (("energy", energies), ("statistics", detectors), ("metric", metrics)):
        if name in parts.split(","):
            run(train, add)
    print(table(rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
