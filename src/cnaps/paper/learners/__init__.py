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
from cnaps.nn.frozen import FrozenFeatures
from cnaps.nn.model import CNAPs
from cnaps.nn.task_model import Recipe, TaskModel, register_recipe
from cnaps.paper.learners.adapters import TrainedAdapters
from cnaps.paper.learners.base import FeatureLearner, Learner, Predictor
from cnaps.paper.learners.cnaps import TrainedLearner
from cnaps.paper.learners.gradient import (
    Descent,
    GradientLearner,
    Part,
    all_layers,
    all_layers_and_norms,
    film_layers,
    residual_adapters,
)
from cnaps.paper.learners.logreg import BalancedProbe, LogisticRegressionProbe
from cnaps.paper.learners.maml import FixedNormsProtoMaml, Maml, ProtoMaml
from cnaps.paper.learners.prototypes import MatchingNet, ProtoNet, TrainedMatchingNet, TrainedProtoNet
from cnaps.paper.learners.tadam import Tadam
from cnaps.paper.learners.versa import Versa

FEATURES = ("last", "all")  # of the last stage, or of every stage


@dataclass(frozen=True)
class Entry:
    """A method: what it is called, what it does, how it is made.

    A trained method has a `model` class, the `config` that makes it what it is (fields of ModelConfig), and
    perhaps `theta`, settings of its training. Any other is made by `make` around a backbone, on features of its
    last stage or of every stage.
    """

    name: str
    summary: str
    make: Callable[[Backbone, bool], Learner] | None = None
    model: type[TaskModel] = CNAPs
    config: Mapping[str, Any] = field(default_factory=dict)
    theta: Mapping[str, str] = field(default_factory=dict)

    @property
    def trained(self) -> bool:
        """Whether it needs a model that was trained for it."""
        return self.make is None

    def fits(self, model: TaskModel) -> bool:
        """Whether a model was trained for this method."""
        same = type(model) is self.model
        return same and all(getattr(model.config, name) == value for name, value in self.config.items())


def _frozen(name: str, summary: str, learner: type[FeatureLearner]) -> Entry:
    return Entry(name, summary, lambda backbone, every: learner(FrozenFeatures(backbone, every_stage=every)))


def _gradient(name: str, summary: str, part: Callable[[Backbone], Part], descent: Descent) -> Entry:
    return Entry(
        name, summary, lambda backbone, every: GradientLearner(name, backbone, part, descent, every_stage=every)
    )


# MAML's start is theta, so training changes theta; its stored norms stay as they are.
_THETA = {"mode": "warm-start"}
_PAPER_HEAD = {"head": "linear", "spread": False}

# Rates and steps of what begins with prototypes are from tools/tune_descent.py.
_ENTRIES = (
    Entry("cnaps", "FiLM and classifier from one pass over the context", config={"adaptation": "film+ar"}),
    Entry("cnaps-no-ar", "CNAPs whose FiLM comes from z_G alone", config={"adaptation": "film"}),
    Entry("cnaps-no-film", "CNAPs without FiLM", config={"adaptation": "none", "embedding_size": 0}),
    Entry(
        "cnaps-linear",
        "the paper's own, with its linear head",
        config={"adaptation": "film+ar", **_PAPER_HEAD},
    ),
    Entry("simple-cnaps", "CNAPs with Mahalanobis distances", config={"head": "mahalanobis"}),
    _frozen("protonet", "distance to class means of frozen features", ProtoNet),
    _frozen("matchingnet", "attention over the context by frozen features", MatchingNet),
    _frozen("logreg", "logistic regression on frozen features", LogisticRegressionProbe),
    _frozen("logreg-balanced", "the same with every class counting alike", BalancedProbe),
    Entry("protonet-trained", "distance to class means of trained features", model=TrainedProtoNet),
    Entry("matchingnet-trained", "attention over the context by trained features", model=TrainedMatchingNet),
    _gradient(
        "finetune",
        "all layers, 75 steps of Adam at 0.01, norms of the context",
        all_layers_and_norms,
        Descent(75, 0.01, batch=None),
    ),
    _gradient(
        "finetune-tuned", "all layers, 25 steps from prototypes", all_layers, Descent(25, 0.0001, "prototypes")
    ),
    _gradient(
        "finetune-long", "all layers, 100 steps from prototypes", all_layers, Descent(100, 0.0003, "prototypes")
    ),
    _gradient(
        "finetune-long-balanced",
        "the same with every class counting alike",
        all_layers,
        Descent(100, 0.0003, "prototypes", balanced=True),
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
    Entry(
        "residual-adapters-trained",
        "1x1 convolutions beside the spatial ones, from one pass over the context",
        model=TrainedAdapters,
    ),
    Entry("fomaml", "first-order MAML, 10 clipped steps at 0.1, 5 more at test", model=Maml, theta=_THETA),
    Entry(
        "proto-maml", "MAML from prototypes, 1 clipped step at 0.02, 5 more at test", model=ProtoMaml, theta=_THETA
    ),
    Entry(
        "proto-maml-fixed-norms",
        "the same with stored norms instead of those of the context",
        model=FixedNormsProtoMaml,
        theta=_THETA,
    ),
    Entry("versa", "distributions over the classifier's weights", model=Versa),
    Entry("tadam-style", "FiLM from the mean class prototype, in the style of TADAM", model=Tadam),
)
_REGISTRY = {entry.name: entry for entry in _ENTRIES}
for _entry in _ENTRIES:
    if _entry.trained:
        register_recipe(Recipe(_entry.name, _entry.model, _entry.config))


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


def create_learner(name: str, model: TaskModel, features: str | None = None) -> Learner:
    """A method around a model: its backbone, and for trained methods the rest of it too.

    `features`, for methods that are not trained: those of the "last" stage or of "all"; as the model has them, if
    not given.
    """
    entry = find_learner(name)
    if features not in (None, *FEATURES):
        raise InputError(f"features are those of the 'last' stage or of 'all', not {features!r}")
    if entry.make is not None:
        return entry.make(model.backbone, (features or model.config.features) == "all")
    if not entry.fits(model):
        raise InputError(
            f"this model was not trained as {name}: train one with `cnaps train --learner {name}` "
            f"and name its folder, {name}=RUN/best"
        )
    return TrainedLearner(model, name)


__all__ = [
    "FEATURES",
    "Entry",
    "FeatureLearner",
    "FrozenFeatures",
    "Learner",
    "Predictor",
    "create_learner",
    "find_learner",
    "list_learners",
]
