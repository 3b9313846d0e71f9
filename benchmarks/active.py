"""Active learning against embedding its pool once; a review of examples against refitting for each."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from benchmarks.classify import photograph
from benchmarks.model import best
from cnaps import load_model
from cnaps.maths.left_out import left_out_logits
from cnaps.maths.statistics import ClassStatistics
from cnaps.paper.experiments.active import Deal, Plan, acquire, adaptive
from cnaps.paper.learners.cnaps import TrainedLearner

WAYS, POOL, TARGETS = 10, 400, 50


def main() -> None:
    model = load_model()
    size = model.image_size
    total = WAYS + TARGETS + POOL
    pixels = torch.from_numpy(np.stack([np.asarray(photograph(i, size, size)) for i in range(total)]))
    pixels = pixels.permute(0, 3, 1, 2)
    labels, ends = torch.arange(total) % WAYS, (WAYS, WAYS + TARGETS)
    deal = Deal(np.arange(total), labels, slice(0, ends[0]), slice(ends[1], total), slice(*ends))
    features, fit = adaptive(TrainedLearner(model), pixels, deal)
    plan = Plan(iterations=30)

    def loop(strategy: str) -> list[float]:
        """From the first labels to the last choice, with everything embedded on the way."""
        features, fit = adaptive(TrainedLearner(model), pixels, deal)
        return acquire(features, deal, fit, plan, strategy, 0)

    with torch.no_grad():
        adapted = model.adapt(model.preprocess(pixels[:WAYS]), labels[:WAYS])
        once = best(lambda: adapted.features(model.preprocess(pixels[deal.pool])))
    for strategy in ("entropy", "diverse"):
        whole = best(partial(loop, strategy), 2)
        alone = best(partial(acquire, features, deal, fit, plan, strategy, 0), 2)
        print(
            f"30 iterations on {POOL} images, {strategy} / embedding them once: {whole / once:.2f} "
            f"(aim: below 4; without embedding {alone / once:.2f})"
        )
    some, their, head = features[:200], labels[:200], model.head.numpy

    @torch.no_grad()
    def refit(i: int) -> None:
        rest = torch.arange(len(some)) != i
        statistics = ClassStatistics.of(some[rest], their[rest], WAYS, scatter=model.head.needs_scatter)
        model.head.classifier(statistics)(some[i : i + 1])

    closed = best(lambda: left_out_logits(head, some.numpy(), their.numpy()))
    every = best(lambda: [refit(i) for i in range(0, 200, 20)]) * 20
    print(f"judging {len(some)} examples by refitting / in closed form: {every / closed:.0f}")
