"""Methods on features of a backbone that nothing changes: the rival that brings the same backbone."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge as TrueRidge
from torch import Tensor

from cnaps.errors import InputError
from cnaps.nn.frozen import FrozenFeatures
from cnaps.paper.continual import ON_FEATURES, create_continual
from cnaps.paper.experiments.continual import (
    BENCHMARKS,
    FeatureStream,
    FeatureTable,
    Stream,
    Trials,
    continual_report,
    run_continual,
)

WIDTH, CLASSES = 12, 4


@pytest.fixture
def steps() -> list[tuple[Tensor, Tensor]]:
    """Two steps of two classes each, around centres of their own."""
    torch.manual_seed(0)
    centres, found = torch.randn(CLASSES, WIDTH), []
    for first in (0, 2):
        labels = torch.arange(40) % 2 + first
        found.append((centres[labels] + 0.5 * torch.randn(40, WIDTH), labels))
    return found


def made(name: str, **training: float):
    return create_continual(name, CLASSES, model=None, size=WIDTH, grey=False, seed=0, **training)


def test_ridge_regression_in_steps_is_ridge_regression_on_everything_at_once(steps):
    learner = made("ridge@features", strength=3.0)
    for x, labels in reversed(steps):
        learner.learn(x, labels)
        learner.logits(x)  # what was solved before is solved anew
    x, labels = (torch.cat(part) for part in zip(*steps, strict=True))
    with_one = np.hstack([x.numpy(), np.ones((len(x), 1))])
    true = TrueRidge(alpha=3.0, fit_intercept=False).fit(with_one, np.eye(CLASSES)[labels])
    np.testing.assert_allclose(learner.logits(x).numpy(), true.predict(with_one), atol=1e-4)


def test_class_means_are_those_of_all_steps_so_far(steps):
    learner = made("class-means@features")
    for x, labels in [*steps, steps[0]]:
        learner.learn(x, labels)
    asked = torch.stack([x[labels == k].mean(0) for x, labels in steps for k in labels.unique()])
    torch.testing.assert_close(learner.logits(5 * asked).diagonal(), torch.ones(CLASSES))


@pytest.mark.parametrize("name", ON_FEATURES)
def test_every_method_tells_classes_of_one_step_apart_by_features(name, steps):
    training = {"class-means@features": {}, "ridge@features": {"strength": 1.0}}.get(
        name, {"iterations": 30, "batch": 20}
    )
    learner = made(name, **training)
    for x, labels in steps:
        learner.learn(x, labels)
    x, labels = steps[1]
    assert (learner.logits(x)[:, 2:].argmax(1) + 2 == labels).float().mean() > 0.9


def test_a_table_holds_what_the_backbone_makes_of_images_as_it_is(make_model, collection):
    model = make_model()
    table = FeatureTable(collection, model, 32)
    stream = Stream(collection, BENCHMARKS["split-mnist"], 10, 0)
    images, labels = stream.part(1, 3, 32)
    found, same = FeatureStream(stream, table).part(1, 3, 32)
    assert torch.equal(labels, same)
    frozen = FrozenFeatures(model.backbone, every_stage=True)
    torch.testing.assert_close(found, frozen(images) * frozen.size**0.5)
    torch.testing.assert_close(found.square().mean(1), torch.ones(6))
    assert torch.equal(table[[5, 3, 5]][0], table[[5]][0])


def test_results_on_features_say_of_which_backbone_and_have_a_picture_of_their_own(
    make_model, collection, tmp_path
):
    trials = Trials(["cnaps-paper", "ridge@features", "si"], shots=[2, 5], runs=1, tests=4, iterations=2)
    model = make_model()
    data = run_continual("split-mnist", collection, tmp_path, trials, model)
    said = {"backbone": model.backbone.digest(), "stages": "all", "image size": 32, "ridge@features": 10.0}
    assert data["config"]["features"] == said
    report = continual_report(json.loads(json.dumps(data)))
    assert {"accumulated", "features"} <= set(report.pictures)
    shown = {
        name: [str(line.get_label()) for line in report.pictures[name].axes[0].lines]
        for name in ("features", "accumulated")
    }
    assert shown["features"] == ["cnaps-paper, 5", "ridge@features, 5"]
    assert not any("@" in label for label in shown["accumulated"])
    with pytest.raises(InputError, match="image size"):
        run_continual("split-mnist", collection, tmp_path, replace(trials, size=48), model)
