"""Continual learning: methods that learn classes in steps, behind one interface.

>>> from cnaps.paper.continual import METHODS
>>> list(METHODS)[:2]
['cnaps-fixed', 'cnaps-paper']
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from cnaps.errors import InputError
from cnaps.paper.continual.adapting import AdaptingLearner
from cnaps.paper.continual.base import ContinualLearner, Finetune, Joint, feature_network, small_network
from cnaps.paper.continual.ewc import Ewc
from cnaps.paper.continual.on_features import ClassMeans, Ridge
from cnaps.paper.continual.rwalk import RiemannianWalk
from cnaps.paper.continual.si import SynapticIntelligence
from cnaps.paper.continual.vcl import HIDDEN as VCL_HIDDEN
from cnaps.paper.continual.vcl import Vcl

if TYPE_CHECKING:
    from cnaps.nn.model import CNAPs

NETWORKS: dict[str, Callable[..., ContinualLearner]] = {
    "si": SynapticIntelligence,
    "ewc": Ewc,
    "vcl": Vcl,
    "vcl-coreset": partial(Vcl, coreset=True),
    "rwalk": RiemannianWalk,
    "finetune": Finetune,
    "joint": Joint,
}
CLOSED: dict[str, Callable[..., ContinualLearner]] = {
    "class-means": ClassMeans,
    "ridge": Ridge,
}  # nothing to train
ON_FEATURES = tuple(f"{name}@features" for name in (*CLOSED, *NETWORKS))  # of a backbone that nothing changes
METHODS = ("cnaps-fixed", "cnaps-paper", *NETWORKS, *ON_FEATURES)  # cnaps: FiLM of the first step, or made anew


def create_continual(
    name: str, classes: int, *, model: CNAPs | None, size: int, grey: bool, seed: int, **training: float
) -> ContinualLearner:
    """A method by its name: around `model`, or a small network for images of `size` that starts at `seed`.

    `NAME@features` is for features, of which there are `size`. `training` of a network: its iterations a step,
    images a batch and, of those that hold weights, the strength; of ridge regression the strength alone.
    """
    if name not in METHODS:
        raise InputError(f"no continual method named {name!r}; there are: {', '.join(METHODS)}")
    method, _, features = name.partition("@")
    if method in CLOSED:
        return CLOSED[method](classes, size, **training)
    if method not in NETWORKS:
        assert model is not None
        return AdaptingLearner(model, classes, method.removeprefix("cnaps-"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        hidden = VCL_HIDDEN if method.startswith("vcl") else (256, 256)
        network: Any = feature_network(classes, size) if features else small_network(classes, size, grey, hidden)
    return NETWORKS[method](network, classes, seed=seed, **training)


__all__ = ["CLOSED", "METHODS", "NETWORKS", "ON_FEATURES", "ContinualLearner", "create_continual"]
