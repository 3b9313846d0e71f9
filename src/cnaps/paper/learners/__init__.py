"""Every method of the comparison behind one protocol: a registry of names.

>>> from cnaps.paper.learners import list_learners
>>> "logreg" in [entry.name for entry in list_learners()]
True
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cnaps.errors import InputError
from cnaps.nn.backbones import Backbone
from cnaps.nn.model import CNAPs
from cnaps.paper.learners.base import FeatureLearner, FrozenFeatures, Learner, Predictor
from cnaps.paper.learners.cnaps import TrainedLearner
from cnaps.paper.learners.gradient import (
    Descent,
    GradientLearner,
    Part,
    all_layers,
    film_layers,
    residual_adapters,
)
from cnaps.paper.learners.logreg import LogisticRegressionProbe
from cnaps.paper.learners.maml import Maml, ProtoMaml
from cnaps.paper.learners.prototypes import MatchingNet, ProtoNet
from cnaps.paper.learners.tadam import Tadam
from cnaps.paper.learners.versa import Versa


@dataclass(frozen=True)
class Entry:
    """A method: what it is called, what it does, how it is made.

    A trained method has a `model` class, the `config` that makes it what it is (fields of ModelConfig), and
    perhaps `theta`, settings of its training. Any other is made by `make` around a backbone.
    """

    name: str
    summary: str
    make: Callable[[Backbone], Learner] | None = None
    model: type[CNAPs] = CNAPs
    config: Mapping[str, Any] = field(default_factory=dict)
    theta: Mapping[str, str] = field(default_factory=dict)

    @property
    def trained(self) -> bool:
        """Whether it needs a model that was trained for it."""
        return self.make is None

    def fits(self, model: CNAPs) -> bool:
        """Whether a model was trained for this method."""
        same = type(model) is self.model
        return same and all(getattr(model.config, name) == value for name, value in self.config.items())


def _frozen(name: str, summary: str, learner: type[FeatureLearner]) -> Entry:
    return Entry(name, summary, lambda backbone: learner(FrozenFeatures(backbone)))


def _gradient(name: str, summary: str, part: Callable[[Backbone], Part], descent: Descent) -> Entry:
    return Entry(name, summary, lambda backbone: GradientLearner(name, backbone, part, descent))


# MAML's start is theta, so training changes theta; its norms keep their running statistics.
_THETA = {"mode": "warm-start"}

# What is called tuned was chosen among a few rates on ten tasks of validation classes.
_ENTRIES = (
    Entry("cnaps", "FiLM and classifier from one pass over the context", config={"adaptation": "film+ar"}),
    Entry("cnaps-no-ar", "CNAPs whose FiLM comes from z_G alone", config={"adaptation": "film"}),
    Entry("cnaps-no-film", "CNAPs without FiLM", config={"adaptation": "none", "embedding_size": 0}),
    Entry("simple-cnaps", "CNAPs with Mahalanobis distances", config={"head": "mahalanobis"}),
    _frozen("protonet", "distance to class means of frozen features", ProtoNet),
    _frozen("matchingnet", "attention over the context by frozen features", MatchingNet),
    _frozen("logreg", "logistic regression on frozen features", LogisticRegressionProbe),
    _gradient("finetune", "all layers, 200 steps of Adam at 0.01", all_layers, Descent(200, 0.01, batch=8)),
    _gradient(
        "finetune-tuned", "all layers, 25 steps from prototypes", all_layers, Descent(25, 0.0001, "prototypes")
    ),
    _gradient("film-gradient", "FiLM by 25 steps of Adam at 0.001", film_layers, Descent(25, 0.001, batch=64)),
    _gradient(
        "film-gradient-tuned", "FiLM by 25 steps from prototypes", film_layers, Descent(25, 0.01, "prototypes")
    ),
    _gradient(
        "residual-adapters",
        "1x1 convolutions beside the spatial ones, 25 steps from prototypes",
        residual_adapters,
        Descent(25, 0.0001, "prototypes"),
    ),
    Entry("fomaml", "first-order MAML, 10 steps at 0.1, 5 more at test", model=Maml, theta=_THETA),
    Entry("proto-maml", "MAML from prototypes, 1 step at 0.02, 5 more at test", model=ProtoMaml, theta=_THETA),
    Entry("versa", "distributions over the classifier's weights", model=Versa),
    Entry("tadam", "FiLM from the mean class prototype", model=Tadam),
)
_REGISTRY = {entry.name: entry for entry in _ENTRIES}


def list_learners() -> list[Entry]:
    """All methods, in the order of the tables."""
    return list(_REGISTRY.values())


def find_learner(name: str) -> Entry:
    """A method by its name.

    >>> find_learner("protonet").trained, find_learner("versa").trained
    (False, True)
    """
    if name not in _REGISTRY:
        raise InputError(f"no learner named {name!r}; there are: {', '.join(_REGISTRY)}")
    return _REGISTRY[name]


def create_learner(name: str, model: CNAPs) -> Learner:
    """A method around a model: its backbone, and for trained methods the rest of it too."""
    entry = find_learner(name)
    if entry.make is not None:
        return entry.make(model.backbone)
    if not entry.fits(model):
        raise InputError(
            f"this model was not trained as {name}: train one with `cnaps train --learner {name}` "
            f"and name its folder, {name}=RUN/best"
        )
    return TrainedLearner(model, name)


def model_class(kind: str) -> type[CNAPs] | None:
    """The class of models of a kind; None if there is no such kind."""
    return {entry.model.kind: entry.model for entry in _ENTRIES}.get(kind)


__all__ = [
    "Entry",
    "FeatureLearner",
    "FrozenFeatures",
    "Learner",
    "Predictor",
    "create_learner",
    "find_learner",
    "list_learners",
    "model_class",
]
