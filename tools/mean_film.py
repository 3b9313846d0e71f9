"""FiLM vectors for `cache_features.py --film FILE`: for each set the mean over training tasks of other sets.

python tools/mean_film.py TRAIN.pt OUT.pt SET ...
"""

from __future__ import annotations

import sys
from collections import defaultdict

import torch


def mean(films: list) -> list:
    """The mean of several FiLMs, site by site."""
    stages = [
        [torch.stack([torch.cat(site).float() for site in sites]).mean(0) for sites in zip(*stage, strict=True)]
        for stage in zip(*films, strict=True)
    ]
    return [[tuple(site.chunk(2)) for site in stage] for stage in stages]


def main(train: str, out: str, *sets: str) -> None:
    """The mean of the sets' means."""
    by_set = defaultdict(list)
    for t in torch.load(train, weights_only=False):
        by_set[t["set"]].append(t["film"])
    means = {name: mean(films) for name, films in by_set.items()}
    torch.save({name: mean([m for other, m in means.items() if other != name]) for name in sets}, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
