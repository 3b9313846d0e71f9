"""Every method of the comparison behind one protocol: a registry of names.

>>> from cnaps.learners import list_learners
>>> "logreg" in [entry.name for entry in list_learners()]
True
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cnaps.errors import InputError
from cnaps.learners.base import FeatureLearner, FrozenFeatures, Learner, Predictor
from cnaps.learners.cnaps import AmortisedLearner
from cnaps.learners.logreg import LogisticRegressionProbe
from cnaps.learners.prototypes import MatchingNet, ProtoNet
from cnaps.nn.model import CNAPs


@dataclass(frozen=True)
class Entry:
    """A method: what it is called, what it does, how it is made from a model (its own, where `trained`)."""

    name: str
    summary: str
    trained: bool
    make: Callable[[CNAPs], Learner]


def _frozen(learner: type[FeatureLearner]) -> Callable[[CNAPs], Learner]:
    return lambda model: learner(FrozenFeatures(model.backbone))


_ENTRIES = (
    Entry("cnaps", "FiLM and classifier from one pass over the context", True, AmortisedLearner),
    Entry("protonet", "distance to class means of frozen features", False, _frozen(ProtoNet)),
    Entry("matchingnet", "attention over the context by frozen features", False, _frozen(MatchingNet)),
    Entry("logreg", "logistic regression on frozen features", False, _frozen(LogisticRegressionProbe)),
)
_REGISTRY = {entry.name: entry for entry in _ENTRIES}


def list_learners() -> list[Entry]:
    """All methods, in the order of the tables."""
    return list(_REGISTRY.values())


def find_learner(name: str) -> Entry:
    """A method by its name."""
    if name not in _REGISTRY:
        raise InputError(f"no learner named {name!r}; there are: {', '.join(_REGISTRY)}")
    return _REGISTRY[name]


def create_learner(name: str, model: CNAPs) -> Learner:
    """A method around a model: its backbone, and for trained methods the rest of it too."""
    return find_learner(name).make(model)


__all__ = [
    "Entry",
    "FeatureLearner",
    "FrozenFeatures",
    "Learner",
    "Predictor",
    "create_learner",
    "find_learner",
    "list_learners",
]
