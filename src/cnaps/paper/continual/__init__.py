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
from cnaps.paper.continual.base import ContinualLearner, Finetune, Joint, small_network
from cnaps.paper.continual.ewc import Ewc
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
METHODS = ("cnaps-fixed", "cnaps-paper", *NETWORKS)  # FiLM of the first step, or made anew


def create_continual(
    name: str, classes: int, *, model: CNAPs | None, size: int, grey: bool, seed: int, **training: float
) -> ContinualLearner:
    """A method by its name: around `model`, or a small network for images of `size` that starts at `seed`.

    `training` of a network: its iterations a step, images a batch and, of those that hold weights, the strength.
    """
    if name not in METHODS:
        raise InputError(f"no continual method named {name!r}; there are: {', '.join(METHODS)}")
    if name not in NETWORKS:
        assert model is not None
        return AdaptingLearner(model, classes, name.removeprefix("cnaps-"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        hidden = VCL_HIDDEN if name.startswith("vcl") else (256, 256)
        network: Any = small_network(classes, size, grey, hidden)
    return NETWORKS[name](network, classes, seed=seed, **training)


__all__ = ["METHODS", "NETWORKS", "ContinualLearner", "create_continual"]
