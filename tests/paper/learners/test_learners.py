"""Every method on real tasks, and each against a computation by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cnaps
from cnaps import FewShotClassifier
from cnaps.data.collection import Collection
from cnaps.episodes import Sampler, Task, load_task
from cnaps.errors import CheckpointError, InputError
from cnaps.maths.heads import Head
from cnaps.maths.left_out import left_out_logits
from cnaps.maths.statistics import ClassStatistics
from cnaps.nn.backbones import Backbone
from cnaps.nn.checkpoints import load_model, load_task_model
from cnaps.nn.heads import LinearHead
from cnaps.nn.model import CNAPs, ModelConfig
from cnaps.paper.learners import FrozenFeatures, create_learner, find_learner, list_learners
from cnaps.paper.learners.adapters import TrainedAdapters
from cnaps.paper.learners.base import count_numbers
from cnaps.paper.learners.fixed import fixed
from cnaps.paper.learners.gradient import (
    PATIENCE,
    Descent,
    GradientLearner,
    Part,
    all_layers_and_norms,
    film_layers,
    residual_adapters,
)
from cnaps.paper.learners.logreg import BalancedProbe, LogisticRegressionProbe
from cnaps.paper.learners.maml import FixedNormsProtoMaml, Maml, ProtoMaml
from cnaps.paper.learners.prototypes import MatchingNet, ProtoNet, TrainedProtoNet
from cnaps.paper.learners.tadam import Tadam
from cnaps.paper.learners.versa import Versa

from ...models import SMALL_BACKBONE

UNTRAINED = [entry.name for entry in list_learners() if not entry.trained]
TRAINED = [entry.name for entry in list_learners() if entry.trained]
SLOW = {"fomaml": 80, "cnaps-linear": 80}  # a classifier from zero, and from networks that know nothing yet


def accuracy(learner: Any, tasks: list[Task]) -> float:
    hits = []
    for task in tasks:
        logits = learner.adapt(task.context_images, task.context_labels)(task.target_images)
        assert logits.shape == (len(task.target_labels), len(task.class_names))
        hits.append((logits.argmax(1) == task.target_labels).float().mean().item())
    return sum(hits) / len(hits)


@pytest.mark.parametrize("name", UNTRAINED)
def test_a_method_without_training_beats_chance_clearly(name: str, model: CNAPs, tasks: list[Task]) -> None:
    assert accuracy(create_learner(name, model), tasks) > 0.4  # chance is 0.2


@pytest.mark.parametrize("features", ["all", "last"])
@pytest.mark.parametrize("name", ["protonet-trained", "matchingnet-trained", "versa", "cnaps-no-film"])
def test_features_that_no_task_changes_give_the_same_classifier(
    name: str, features: str, backbone: Backbone, tasks: list[Task]
) -> None:
    entry = find_learner(name)
    config = ModelConfig(backbone=SMALL_BACKBONE, features=features, **entry.config)
    model = entry.model(config, backbone)
    learner = fixed(model, name)
    assert learner is not None
    labels, asked = tasks[0].context_labels, tasks[0].target_images
    wanted = create_learner(name, model).adapt(tasks[0].context_images, labels)(asked)
    given = learner.fit(learner.frozen(tasks[0].context_images), labels)
    assert torch.allclose(given(learner.frozen(asked)), wanted, atol=1e-4)


MAMLS = ("fomaml", "proto-maml", "proto-maml-fixed-norms")
CHANGED = ["cnaps", "cnaps-no-ar", "tadam-style", *MAMLS, "residual-adapters-trained"]


@pytest.mark.parametrize("name", CHANGED)
def test_a_network_that_tasks_change_has_no_fixed_features(name: str, backbone: Backbone) -> None:
    entry = find_learner(name)
    assert fixed(entry.model(ModelConfig(backbone=SMALL_BACKBONE, **entry.config), backbone), name) is None


@pytest.mark.parametrize("name", TRAINED)
def test_a_trained_method_beats_chance_clearly_after_a_few_tasks(
    name: str, digits: Collection, backbone: Backbone, tasks: list[Task], tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    from cnaps.cli.train import _learner_settings
    from cnaps.training.config import TrainConfig
    from cnaps.training.settings import apply_changes, build
    from cnaps.training.start import train

    weights = {key: value.contiguous() for key, value in backbone.state_dict().items()}
    save_file(weights, tmp_path / "theta.safetensors")
    table = {
        "data": {"train": [str(digits.path)]},
        "model": {"backbone": SMALL_BACKBONE, "head": "cosine"},
        "init": {"backbone": str(tmp_path / "theta.safetensors")},
        "tasks": {"total": SLOW.get(name, 24), "per_step": 4, "ways": 4, "shots": 5, "targets": 5},
        "optimiser": {"learning_rate": 0.0005 if name in SLOW else 0.002},
        "tensorboard": False,
    }
    train(build(TrainConfig, apply_changes(table, _learner_settings(name))), tmp_path / "run", device="cpu")
    model = load_task_model(tmp_path / "run" / "last")
    assert find_learner(name).fits(model)
    if name == "cnaps-linear":  # five classes teach its networks nothing of others
        sampler = Sampler([digits], "train", ways=5, shots=8, targets=8, seed=1)
        tasks = [load_task(sampler.describe(0), {"digits": digits}, 32)]
    assert accuracy(create_learner(name, model), tasks) > 0.4  # chance is 0.2
    theta = {key: value for key, value in model.backbone.state_dict().items() if "num_batches" not in key}
    same = all(torch.equal(value, weights[key]) for key, value in theta.items())
    assert same == (name not in MAMLS)  # only their start is trained


@pytest.mark.parametrize("name", [entry.name for entry in list_learners()])
def test_no_method_leaves_the_backbone_changed(name: str, backbone: Backbone, tasks: list[Task]) -> None:
    entry = find_learner(name)
    config = ModelConfig(backbone=SMALL_BACKBONE, **entry.config)
    model = entry.model(config, backbone)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    task = tasks[0]
    create_learner(name, model).adapt(task.context_images, task.context_labels)(task.target_images)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(p.grad is None and not p.requires_grad for p in model.backbone.parameters())
    assert not any(module.training for module in model.backbone.modules())


def test_a_trained_method_needs_its_own_model(model: CNAPs) -> None:
    with pytest.raises(InputError, match="cnaps train --learner versa"):
        create_learner("versa", model)
    with pytest.raises(InputError, match="there are: cnaps"):
        create_learner("svm", model)


def test_a_model_of_an_unknown_kind_is_refused(saved_model: Path, tmp_path: Path) -> None:
    for file in saved_model.iterdir():
        text = file.read_bytes().replace(b'"kind": "cnaps"', b'"kind": "strange"')
        (tmp_path / file.name).write_bytes(text)
    with pytest.raises(CheckpointError, match="strange"):
        load_model(tmp_path)


FEATURES = F.normalize(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]), dim=1)
LABELS = torch.tensor([0, 0, 1])
QUERY = torch.tensor([[0.6, 0.8]])


def test_prototypes_are_class_means(backbone: Backbone) -> None:
    logits = ProtoNet(FrozenFeatures(backbone)).fit(FEATURES, LABELS)(QUERY)
    # means (0.9, 0.3) and (0, 1): squared distances 0.09 + 0.25 and 0.36 + 0.04
    assert torch.allclose(logits, -ProtoNet.scale * torch.tensor([[0.34, 0.40]]), atol=1e-5)


def test_matching_sums_attention_over_the_examples_of_a_class(backbone: Backbone) -> None:
    logits = MatchingNet(FrozenFeatures(backbone)).fit(FEATURES, LABELS)(QUERY)
    a, b, c = (math.exp(MatchingNet.scale * x) for x in (0.6, 0.96, 0.8))  # cosines with the three examples
    assert torch.allclose(logits.exp(), torch.tensor([[a + b, c]]) / (a + b + c), atol=1e-5)


@pytest.mark.parametrize(
    ("probe", "weights"), [(LogisticRegressionProbe, None), (BalancedProbe, "balanced")], ids=["plain", "balanced"]
)
def test_the_linear_probe_solves_what_scikit_learn_solves(
    probe: type[LogisticRegressionProbe], weights: Any, backbone: Backbone, tasks: list[Task]
) -> None:
    from sklearn.linear_model import LogisticRegression

    frozen, task = FrozenFeatures(backbone), tasks[0]
    own = torch.ones(len(task.context_labels), dtype=torch.bool)
    own[torch.nonzero(task.context_labels == 0).flatten()[1:]] = False  # one class has a single example
    context, labels = frozen(task.context_images[own]), task.context_labels[own]
    targets = frozen(task.target_images)
    ours = probe(frozen, 100.0).fit(context, labels)(targets).softmax(1)
    solver = LogisticRegression(C=100.0, max_iter=5000, tol=1e-8, class_weight=weights)
    theirs = solver.fit(context.numpy(), labels.numpy())
    assert torch.allclose(ours, torch.tensor(theirs.predict_proba(targets.numpy())).float(), atol=0.01)


@pytest.mark.parametrize("part", [film_layers, residual_adapters])
def test_no_gradient_step_from_prototypes_is_a_protonet(part: Any, backbone: Backbone, tasks: list[Task]) -> None:
    task = tasks[0]
    learner = GradientLearner("none", backbone, part, Descent(0, 0.1, "prototypes"))
    ours = learner.adapt(task.context_images, task.context_labels)(task.target_images)
    theirs = ProtoNet(FrozenFeatures(backbone)).adapt(task.context_images, task.context_labels)(task.target_images)
    assert torch.allclose(ours.softmax(1), theirs.softmax(1), atol=1e-4)


def test_where_classes_count_alike_more_copies_of_one_class_change_nothing(
    backbone: Backbone, tasks: list[Task]
) -> None:
    task = tasks[0]
    once = torch.cat([torch.nonzero(task.context_labels == k).flatten()[:1] for k in task.context_labels.unique()])
    often = torch.cat([once, once[:1].repeat(8)])

    def logits(rows: Tensor, *, balanced: bool) -> Tensor:
        descent = Descent(3, 0.01, "prototypes", batch=None, balanced=balanced)
        learner = GradientLearner("film", backbone, film_layers, descent)
        return learner.adapt(task.context_images[rows], task.context_labels[rows])(task.target_images)

    assert torch.allclose(logits(often, balanced=True), logits(once, balanced=False), atol=1e-3)
    assert not torch.allclose(logits(often, balanced=False), logits(once, balanced=False), atol=0.02)


def test_learning_ends_when_a_network_says_the_same_of_all_images(backbone: Backbone, tasks: list[Task]) -> None:
    read = []

    def dead(backbone: Backbone) -> Part:
        weight = torch.ones(4, requires_grad=True)

        class Dead(nn.Module):
            def forward(self, images: Tensor) -> Tensor:
                read.append(len(images))
                return weight.expand(len(images), 1, 1, -1).transpose(1, 3)

        before = [nn.Identity() for _ in backbone.stages]  # the stem and all stages but the last
        return Part(lambda: [*before, Dead()], [weight])

    images, labels = tasks[0].context_images, tasks[0].context_labels
    GradientLearner("dead", backbone, dead, Descent(200, 0.01, batch=len(images))).adapt(images, labels)
    assert len(read) == 1 + PATIENCE  # the first time for the start of the classifier


def test_film_has_2c_parameters_a_layer_and_residual_adapters_c_squared(backbone: Backbone) -> None:
    assert sum(value.numel() for value in film_layers(backbone).learned) == 2 * (32 + 48)
    assert sum(value.numel() for value in residual_adapters(backbone).learned) == 16 * 32 + 32 * 48


def test_adapters_start_as_the_backbone_and_are_the_tasks_own_once_banks_are_filled(
    backbone: Backbone, tasks: list[Task]
) -> None:
    torch.manual_seed(0)
    model = TrainedAdapters(ModelConfig(backbone=SMALL_BACKBONE, head="cosine", features="all"), backbone)
    task, images = tasks[0], model.preprocess(tasks[0].context_images)
    untouched = CNAPs(
        ModelConfig(backbone=SMALL_BACKBONE, head="cosine", features="all", adaptation="none"), backbone
    )
    with torch.no_grad():
        one, plain = model.adapt(images, task.context_labels), untouched.adapt(images, task.context_labels)
        assert torch.allclose(one.features(images), plain.features(images), atol=1e-5)
        for bank in model.banks.parameters():
            bank.normal_(0, 0.1)
        for generator in model.adaptation.generators:
            generator.get_parameter("regulariser").fill_(1.0)
        some, others = (
            model.adapt(images[rows], task.context_labels[rows]) for rows in (slice(20), slice(20, None))
        )
        assert not torch.allclose(some.features(images), plain.features(images), atol=0.1)
        assert not torch.allclose(some.features(images), others.features(images), atol=1e-3)
    assert one.numbers - count_numbers(one.classify) == 16 * 32 + 32 * 48  # C^2 a layer


def linear_model(kind: type[Maml]) -> Maml:
    """Features are W x: a 1x1 convolution of images that are one colour."""
    torch.manual_seed(1)
    network = Backbone(nn.Identity(), [nn.Conv2d(3, 4, 1, bias=False)], image_size=2, min_image_size=1)
    return kind(ModelConfig(backbone="linear"), network)


def test_maml_steps_and_their_first_order_gradient_are_those_of_autograd() -> None:
    model = linear_model(Maml)
    model.steps, model.rate, model.clip = 2, 0.3, math.inf
    colours, labels = torch.randn(6, 3), torch.tensor([0, 0, 1, 1, 2, 2])
    images = colours[:, :, None, None].expand(6, 3, 2, 2)
    start = model.backbone.stages[0].get_parameter("weight").requires_grad_()

    w = start.detach().view(4, 3).clone()
    u, b = torch.zeros(3, 4), torch.zeros(3)
    for _ in range(2):
        now = [value.requires_grad_() for value in (w, u, b)]
        loss = F.cross_entropy(colours @ w.T @ u.T + b, labels)
        w, u, b = (v.detach() - 0.3 * g for v, g in zip(now, torch.autograd.grad(loss, now), strict=True))
    w.requires_grad_()
    expected = colours @ w.T @ u.T + b

    logits = model.adapt(images, labels, learn=True).logits(images)
    assert torch.allclose(logits, expected, atol=1e-6)
    F.cross_entropy(logits, labels).backward()
    F.cross_entropy(expected, labels).backward()
    assert start.grad is not None
    assert w.grad is not None
    assert w.grad.abs().max() > 1e-4
    assert torch.allclose(start.grad.view(4, 3), w.grad, atol=1e-6)


def test_maml_takes_more_steps_when_it_is_tested() -> None:
    model = linear_model(Maml)
    images, labels = torch.randn(4, 3, 1, 1).expand(4, 3, 2, 2), torch.tensor([0, 0, 1, 1])
    with torch.no_grad():
        tested = model.adapt(images, labels).logits(images)
    trained = model.adapt(images, labels, learn=True).logits(images)
    assert F.cross_entropy(tested, labels) < F.cross_entropy(trained, labels)


def test_the_labels_of_maml_follow_it_to_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def head(start: object, images: Tensor, index: Tensor) -> None:
        raise LookupError(index.device.type)

    model = linear_model(Maml)
    monkeypatch.setattr(Maml, "device", torch.device("meta"))
    monkeypatch.setattr(model, "_head", head)
    with pytest.raises(LookupError, match="meta"):
        model.adapt(torch.randn(4, 3, 2, 2), torch.tensor([0, 0, 1, 1]))


def test_proto_maml_without_steps_is_a_protonet(backbone: Backbone, tasks: list[Task]) -> None:
    model = FixedNormsProtoMaml(ModelConfig(backbone=SMALL_BACKBONE), backbone)
    model.steps = model.more_steps = 0
    task = tasks[0]
    ours = create_learner("proto-maml-fixed-norms", model).adapt(task.context_images, task.context_labels)
    theirs = create_learner("protonet", model).adapt(task.context_images, task.context_labels)
    assert torch.allclose(ours(task.target_images).softmax(1), theirs(task.target_images).softmax(1), atol=1e-4)


def test_versa_without_variance_is_the_deterministic_head(backbone: Backbone, tasks: list[Task]) -> None:
    model = Versa(ModelConfig(backbone=SMALL_BACKBONE), backbone)
    task = tasks[0]
    images = model.preprocess(task.context_images)
    with torch.no_grad():
        model.head.get_parameter("log_variance.bias").fill_(2.0)
        spread = model.adapt(images, task.context_labels).logits(images)
        model.head.get_parameter("log_variance.bias").fill_(-math.inf)
        adapted = model.adapt(images, task.context_labels)
        sampled = adapted.logits(images)
        features = model.head.embed(adapted.features(images))
        statistics = ClassStatistics.of(features, task.context_labels, 5, scatter=False)
        plain = LinearHead.classifier(model.head, statistics)
        assert torch.allclose(sampled, plain(features).log_softmax(1), atol=1e-4)
    assert not torch.allclose(sampled, spread, atol=0.1)


def test_tadam_reads_the_mean_class_prototype(backbone: Backbone, tasks: list[Task]) -> None:
    model = Tadam(ModelConfig(backbone=SMALL_BACKBONE), backbone)
    task = tasks[0]
    some = torch.cat([torch.nonzero(task.context_labels == k)[: k + 1, 0] for k in range(5)])  # 1 to 5 shots
    images, labels = task.context_images[some], task.context_labels[some]
    features = FrozenFeatures(backbone)(images)
    wanted = torch.stack([features[labels == k].mean(0) for k in range(5)]).mean(0)
    with torch.no_grad():
        adapted = model.adapt(model.preprocess(images), labels)
    assert torch.allclose(adapted.task_embedding, wanted, atol=1e-5)
    assert len(adapted.film) == 2 * (32 + 48)


@pytest.mark.parametrize("kind", [Maml, Versa, Tadam, TrainedProtoNet, TrainedAdapters])
def test_a_compared_method_is_no_model_for_people(kind: Any, backbone: Backbone, tmp_path: Path) -> None:
    model = kind(ModelConfig(backbone=SMALL_BACKBONE), backbone)
    with pytest.raises(InputError, match=f"{model.kind!r}"):
        FewShotClassifier(model).fit([torch.zeros(3, 32, 32)] * 2, ["a", "b"])
    model.save(tmp_path / "model")
    with pytest.raises(CheckpointError, match="cnaps evaluate"):
        load_model(tmp_path / "model")
    assert load_task_model(tmp_path / "model").fingerprint() == model.fingerprint()


def test_no_closed_form_is_taken_for_another() -> None:
    class Strange(Head):
        pass

    with pytest.raises(InputError, match="Strange"):
        left_out_logits(Strange([4], {}), np.eye(4), np.array([0, 0, 1, 1]))


def test_nothing_but_the_command_line_imports_the_comparisons() -> None:
    source = Path(cnaps.__file__).parent
    inside = {"cli", "paper"}
    others = [path for path in source.rglob("*.py") if path.relative_to(source).parts[0] not in inside]
    assert len(others) > 50
    assert [path.name for path in others if "cnaps.paper" in path.read_text(encoding="utf-8")] == []


def test_a_method_of_gradient_steps_is_watched_after_each_of_them(backbone: Backbone, tasks: list[Task]) -> None:
    images, labels, asked = tasks[0].context_images, tasks[0].context_labels, tasks[0].target_images
    seen: dict[int, Tensor] = {}

    def learned(steps: int, **watch: Any) -> Tensor:
        descent = Descent(steps, 0.01, "prototypes")
        return GradientLearner("watched", backbone, film_layers, descent).adapt(images, labels, **watch)(asked)

    last = learned(3, watch=lambda step, predictor: seen.update({step: predictor(asked)}))
    assert list(seen) == [1, 2, 3]
    assert torch.equal(seen[2], learned(2))
    assert torch.equal(seen[3], last)
    assert not torch.equal(seen[1], seen[2])


@pytest.mark.parametrize("name", ["logreg", "protonet", "finetune", "film-gradient-tuned"])
def test_a_method_reads_the_features_of_every_stage_or_of_the_last(
    name: str, model: CNAPs, tasks: list[Task]
) -> None:
    task = tasks[0]
    made = {kind: create_learner(name, model, kind) for kind in ("last", "all")}
    found = {kind: each.adapt(task.context_images, task.context_labels) for kind, each in made.items()}
    assert found["all"].parameters - found["last"].parameters == 5 * 32  # one stage more, of 32 channels
    assert accuracy(made["all"], tasks) > 0.4
    with pytest.raises(InputError, match="'last' stage or of 'all'"):
        create_learner(name, model, "first")


def test_features_of_the_last_stage_are_part_of_those_of_every_stage(
    backbone: Backbone, tasks: list[Task]
) -> None:
    images = tasks[0].context_images
    every, last = FrozenFeatures(backbone, every_stage=True), FrozenFeatures(backbone)
    assert every(images).shape[1] == 32 + 48
    assert torch.allclose(last.narrow(every(images)), last(images), atol=1e-6)
    assert torch.allclose(every(images).norm(dim=1), torch.ones(len(images)), atol=1e-5)


def test_fine_tuning_normalises_by_the_context(backbone: Backbone, tasks: list[Task]) -> None:
    task = tasks[0]
    none = GradientLearner("none", backbone, all_layers_and_norms, Descent(0, 0.1, "prototypes", batch=None))
    predict = none.adapt(task.context_images, task.context_labels)
    one_by_one = torch.cat([predict(image[None]) for image in task.target_images])
    assert torch.allclose(one_by_one, predict(task.target_images), atol=1e-4)  # targets know nothing of each other
    frozen = create_learner("protonet", CNAPs(ModelConfig(backbone=SMALL_BACKBONE), backbone))
    stored = frozen.adapt(task.context_images, task.context_labels)(task.target_images)
    assert not torch.allclose(predict(task.target_images), stored, atol=0.1)


def test_maml_normalises_targets_by_the_context(backbone: Backbone, tasks: list[Task]) -> None:
    model = ProtoMaml(ModelConfig(backbone=SMALL_BACKBONE), backbone)
    task = tasks[0]
    with torch.no_grad():
        fitted = model.adapt(model.preprocess(task.context_images), task.context_labels)
    targets = model.preprocess(task.target_images)
    assert torch.allclose(torch.cat([fitted.logits(x[None]) for x in targets]), fitted.logits(targets), atol=1e-3)


@pytest.mark.parametrize("name", ["protonet", "matchingnet"])
def test_an_untrained_comparison_is_the_frozen_one(name: str, backbone: Backbone, tasks: list[Task]) -> None:
    entry, task = find_learner(f"{name}-trained"), tasks[0]
    model = entry.model(ModelConfig(backbone=SMALL_BACKBONE, lora_rank=2), backbone)
    ours, theirs = (
        create_learner(each, model).adapt(task.context_images, task.context_labels)(task.target_images)
        for each in (entry.name, name)
    )
    assert torch.allclose(ours, theirs, atol=1e-4)
