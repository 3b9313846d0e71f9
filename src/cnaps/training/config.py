"""Everything that can be chosen about a training run; the defaults are the paper's."""

from __future__ import annotations

import math
from dataclasses import field
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt
from pydantic import AfterValidator

from cnaps.errors import InputError
from cnaps.training.settings import settings


def _share(value: float) -> float:
    if not 0 <= value <= 1:
        raise ValueError("must lie between 0 and 1")
    return value


Count = Annotated[int, Ge(1)]
Positive = Annotated[float, Gt(0)]
Share = Annotated[float, AfterValidator(_share)]


def check(condition: bool, message: str) -> None:
    """Refuse a setting with a sentence."""
    if not condition:
        raise InputError(message)


@settings
class Data:
    """Which collections: paths, each with an optional ``:train``, ``:valid``, ``:test`` or ``:all``."""

    train: tuple[str, ...] = ()  # a path without a suffix means its "train" classes
    valid: tuple[str, ...] = ()  # a path without a suffix means its "valid" classes
    image_size: int | None = None  # None: the model's own; validation is at this size
    # For training, by the name of a collection ("others": all not named): the sizes that its tasks are drawn at.
    sizes: dict[str, list[Count]] = field(default_factory=dict)
    workers: int = 1
    prefetch: int = 4

    def __post_init__(self) -> None:
        for name, sizes in self.sizes.items():
            check(bool(sizes), f"data.sizes.{name} is empty: give a list of sizes in pixels")


@settings
class Tasks:
    """How many tasks, and how they are drawn (the Meta-Dataset protocol, or fixed ways and shots)."""

    total: Count = 110_000
    per_step: Count = 16
    min_ways: int = 5
    max_ways: int = 40
    max_context: int = 400
    max_context_per_class: int = 100
    max_targets_per_class: int = 10
    ways: int | None = None
    shots: int | None = None
    targets: int | None = None
    hierarchy: bool = True
    balance: float = 0.0  # collections are drawn by their number of classes to this power; 0: all alike

    @property
    def steps(self) -> int:
        """The number of optimiser steps; the last one may hold fewer tasks."""
        return -(-self.total // self.per_step)


@settings
class Schedule:
    """The learning rate as a pure function of the step, so that there is no scheduler state to lose.

    >>> Schedule(kind="cosine", warmup=2).factor(0, steps=10)
    0.5
    """

    kind: Literal["constant", "cosine", "step"] = "constant"
    warmup: int = 0  # steps
    every: int = 0  # steps between two drops of the "step" schedule
    drop: float = 0.1
    floor: float = 0.0  # where the cosine ends, as a share of the learning rate

    def factor(self, step: int, steps: int) -> float:
        """What the base learning rate is multiplied by in ``step`` (counted from 0)."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        if self.kind == "cosine":
            done = (step - self.warmup) / max(1, steps - self.warmup)
            return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * done))
        if self.kind == "step" and self.every > 0:
            return float(self.drop ** (step // self.every))
        return 1.0


@settings
class Optimiser:
    """Adam, its learning rate, and what tames it."""

    learning_rate: Positive = 5e-4
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0  # decoupled (AdamW) if above 0
    schedule: Schedule = field(default_factory=Schedule)
    clip: Positive | None = None  # the largest norm of the gradient
    ema: float | None = None  # decay of the exponential moving average; models are then the averaged ones

    def __post_init__(self) -> None:
        check(self.ema is None or 0 < self.ema < 1, "optimiser.ema must lie between 0 and 1")


@settings
class Loss:
    """The negative log likelihood of a task's targets, and the penalty on R."""

    reduction: Literal["mean", "sum"] = "mean"  # mean over targets (paper); sum over targets (reference)
    penalty: float = 0.001  # times the sum of R^2
    temperature: Positive = 1.0  # divides the logits, for a head without a scale of its own


@settings
class Distillation:
    """Features like those that theta has of the same image enlarged, as a second aim of training."""

    weight: float = 0.0  # times one minus the cosine between the two; 0: no distillation
    size: int = 192  # at which theta looks at the images
    collections: tuple[str, ...] = ()  # names of those that are of the kind that theta learned from

    def __post_init__(self) -> None:
        check(self.weight >= 0, "distillation.weight must be 0 (none) or above")
        check(
            not self.weight or bool(self.collections),
            "distillation.collections is empty: name those that the teacher knows",
        )


@settings
class Validation:
    """When to validate, on how many tasks a set, and what makes a model better."""

    every: Count = 10_000  # tasks
    tasks_per_set: int = 200
    # better on more than half of the sets (paper), on at least half (published code), or by the mean accuracy
    rule: Literal["majority", "half", "mean"] = "majority"
    max_ways: int = 50
    max_context: int = 500
    max_targets_per_class: int = 10
    seed: int = 1_000_003


@settings
class Memory:
    """Options that trade time for memory; none of them changes what is estimated."""

    lite: int | None = None  # gradients flow through this many random context images only
    checkpoint: bool = False  # recompute activations in the backward pass
    chunk_size: int | None = None  # images run at once
    precision: Literal["no", "bf16"] = "no"  # mixed precision, for GPUs
    features: bool = False  # where only a head is trained: keep the features of every image that was drawn


@settings
class Augmentation:
    """Probabilities of changes made to a whole task alike, and strengths of changes made to each image.

    A change of a whole task (context and targets alike) keeps every class a class. None is used by the paper.
    """

    flip: Share = 0.0
    rotate: Share = 0.0  # by a multiple of 90 degrees
    invert: Share = 0.0
    permute_channels: Share = 0.0
    recolour: Share = 0.0  # each channel's range is mapped to a random one, possibly reversed
    greyscale: Share = 0.0
    zoom: Share = 0.0  # the same random crop of every image of the task
    min_zoom: Share = 0.6  # the smallest side of that crop
    coarse: Share = 0.0  # every image shrunk to 25-60% of its side and enlarged again
    outline: Share = 0.0  # only edges remain, as in a drawing
    plate: Share = 0.0  # characters and drawings painted on a plate of some shape, as signs are
    duotone: Share = 0.0  # brightness between two colours, which differ between and within images
    image_tasks: Share = 1.0  # share of the tasks whose images are changed each by itself, as follows
    image_turn: Share = 0.0  # largest angle, as a share of a right angle
    image_blur: Share = 0.0  # largest share of detail that is lost
    image_crop: Share = 0.0  # largest share of the side that a crop of its own takes from each image
    image_jitter: Share = 0.0  # strength of brightness, contrast and saturation changes of each image
    image_flip: bool = False  # flip each image by itself with probability 1/2

    def __post_init__(self) -> None:
        check(self.min_zoom > 0 and self.image_crop < 1, "a crop cannot take the whole image")


@settings
class Init:
    """What the weights start from."""

    model: str | None = None  # a model folder or name
    # Weights of theta: a file, the folder of a `cnaps pretrain` run, "random", or "auto": those that come
    # with an installed package, and random ones if theta is trained anyway.
    backbone: str = "auto"
    # Start with this R, and a layer before it that gives the same FiLM: larger than the published 0.001, tasks are
    # told apart sooner. loss.penalty, which draws R to zero, should then be 0.
    regulariser: Positive | None = None
    head: str | None = None  # a model folder whose head is taken, such as one that was trained on fixed features
    freeze: tuple[str, ...] = ()  # parts of phi that stay as they are: lora, head, set_encoder, adaptation


@settings
class Theta:
    """Whether theta is trained with phi: the paper's comparison of training procedures."""

    mode: Literal["frozen", "joint", "warm-start"] = "frozen"
    warm_start_tasks: int = 0  # "warm-start": batch statistics for so many tasks, then the running ones
    learning_rate: Positive | None = None  # None: that of phi; the schedule is the same


@settings
class TrainConfig:
    """The configuration of ``cnaps train``.

    >>> TrainConfig(data=Data(train=("collections/cu_birds",))).tasks.steps
    6875
    """

    seed: int = 0
    learner: str | None = None  # the method that a new model is for, see `cnaps learners`
    data: Data = field(default_factory=Data)
    model: dict[str, Any] = field(default_factory=dict)  # fields of ModelConfig, for a new model
    init: Init = field(default_factory=Init)
    theta: Theta = field(default_factory=Theta)
    tasks: Tasks = field(default_factory=Tasks)
    optimiser: Optimiser = field(default_factory=Optimiser)
    loss: Loss = field(default_factory=Loss)
    distillation: Distillation = field(default_factory=Distillation)
    augmentation: Augmentation = field(default_factory=Augmentation)
    validation: Validation = field(default_factory=Validation)
    memory: Memory = field(default_factory=Memory)
    checkpoint_every: Count = 25  # steps
    tensorboard: bool = True

    def __post_init__(self) -> None:
        check(bool(self.data.train), "data.train is empty: name at least one collection to train on")
        check(
            not self.distillation.weight or self.theta.mode == "frozen",
            "distillation needs theta.mode to be frozen: its teacher is theta, which would change meanwhile",
        )
        check(not (self.init.model and self.model), "give either init.model or a [model] table, not both")


@settings
class PretrainConfig:
    """The configuration of ``cnaps pretrain``: full-way classification, the paper's numbers."""

    seed: int = 0
    data: tuple[str, ...] = ()  # collections as in data.train of `cnaps train`
    backbone: str = "resnet18"
    image_size: int | None = None  # None: the backbone's own
    init: str | None = None  # weights to start from
    epochs: Count = 125
    batch: Annotated[int, Ge(2)] = 256
    learning_rate: float = 0.1
    drop_every: int = 25  # epochs
    drop: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4
    crop: Share = 0.3  # largest share of the side that a random crop takes away
    flip: bool = True
    jitter: Share = 0.4
    held_out: float = 0.05  # share of each class's images for the top-1 accuracy
    validate_every: Count = 1  # epochs
    checkpoint_every: Count = 200  # steps
    prefetch: int = 4
    tensorboard: bool = True

    def __post_init__(self) -> None:
        check(bool(self.data), "data is empty: name at least one collection to train on")
        check(0 < self.held_out < 1, "held_out must lie between 0 and 1")
        check(self.crop < 1, "a crop cannot take the whole image")
