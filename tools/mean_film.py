"""FiLM vectors for `cache_features.py --film FILE`: for each validation set the mean over training tasks of other sets.

python tools/mean_film.py TRAIN.pt OUT.pt SET ... [--own VALID.pt --share 0.5]
"""

from __future__ import annotations

import sys
from collections import defaultdict

import torch


def mean(films: list) -> list:
    return [
        [
            (
                sum(f[s][k][0].float() for f in films) / len(films),
                sum(f[s][k][1].float() for f in films) / len(films),
            )
            for k in range(len(films[0][s]))
        ]
        for s in range(len(films[0]))
    ]


def main(train: str, out: str, *sets: str) -> None:
    """The mean of the sets' means."""
    by_set = defaultdict(list)
    for t in torch.load(train, weights_only=False):
        by_set[t["set"]].append(t["film"])
    means = {name: mean(films) for name, films in by_set.items()}
    torch.save({name: mean([m for other, m in means.items() if other != name]) for name in sets}, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
