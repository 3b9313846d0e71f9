"""The experiments on active learning and on trust: what they deal out, keep, and say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from cnaps import CNAPs, ModelConfig
from cnaps.cli import main
from cnaps.data.collection import Collection, write_collection
from cnaps.errors import InputError
from cnaps.paper.experiments.active import Deal, Plan, acquire, active_report, adaptive, panels
from cnaps.paper.experiments.trust import calibration_error, flip_labels, trust_report
from cnaps.paper.learners import FeatureLearner, create_learner, find_learner, list_learners
from cnaps.paper.learners.prototypes import TrainedProtoNet
from cnaps.runtime.suggest import STRATEGIES

from ...models import SMALL_BACKBONE

PLAN = Plan(("entropy", "diverse"), iterations=3, images=2, start=2, pool=60, targets=8)


@pytest.fixture(scope="module")
def model() -> CNAPs:
    torch.manual_seed(0)
    return CNAPs(ModelConfig(backbone=SMALL_BACKBONE, head="ridge", set_encoder_norm="none", image_size=32))


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    """Thirty images of each digit; even and odd ones are two alphabets, and 8 and 9 are for training."""
    data = load_digits()
    images, labels = (data.images * 255 / 16).astype(np.uint8), data.target
    examples = [(k, f"{k}/{i}", images[i]) for k in range(10) for i in np.flatnonzero(labels == k)[:30]]
    return write_collection(
        tmp_path_factory.mktemp("collections") / "digits",
        name="digits",
        classes=[str(k) for k in range(10)],
        examples=examples,
        size=32,
        splits={"train": [8, 9], "test": list(range(8))},
        hierarchy={"kind": "alphabets", "groups": {"odd": [1, 3, 5, 7, 9], "even": [0, 2, 4, 6, 8]}},
    )


def test_a_panel_is_an_alphabet_of_the_split(collection: Collection) -> None:
    assert panels(collection, "test") == {"even": [0, 2, 4, 6], "odd": [1, 3, 5, 7]}
    assert panels(collection, None)["odd"] == [1, 3, 5, 7, 9]
    assert list(panels(collection, "train")) == []  # one class of each: nothing to tell apart


def test_every_image_is_dealt_once_and_the_same_seed_deals_the_same(collection: Collection) -> None:
    deal = Deal.of(collection, [0, 2, 4, 6], PLAN, seed=1)
    assert len(set(deal.rows.tolist())) == len(deal.rows)
    np.testing.assert_array_equal(collection.class_of(deal.rows.tolist()), np.array([0, 2, 4, 6])[deal.labels])
    for part, each in ((deal.start, 2), (deal.targets, 8), (deal.pool, 15)):
        assert torch.bincount(deal.labels[part]).tolist() == [each] * 4
    np.testing.assert_array_equal(deal.rows, Deal.of(collection, [0, 2, 4, 6], PLAN, seed=1).rows)
    assert (deal.rows != Deal.of(collection, [0, 2, 4, 6], PLAN, seed=2).rows).any()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_buying_the_whole_pool_ends_alike_whatever_the_strategy(
    strategy: str, collection: Collection, model: CNAPs
) -> None:
    deal = Deal.of(collection, [1, 3, 5, 7], PLAN, seed=0)
    pixels = collection.read(deal.rows.tolist(), size=32)
    features, fit = adaptive(create_learner("cnaps", model), pixels, deal)
    plan = Plan(iterations=7, images=10, start=2, pool=60)
    curve = acquire(features, deal, fit, plan, strategy, seed=0)
    known = [*range(deal.start.stop), *range(deal.pool.start, deal.pool.stop)]
    for labelled, accuracy in ((list(range(deal.start.stop)), curve[0]), (known, curve[-1])):
        answers = fit(features[labelled], deal.labels[labelled])(features[deal.targets]).argmax(1)
        assert accuracy == pytest.approx((answers == deal.labels[deal.targets].numpy()).mean(), abs=1e-4)
    assert len(curve) == 8
    assert curve[-1] > curve[0]


@pytest.mark.parametrize("name", [entry.name for entry in list_learners()])
def test_every_method_of_one_pass_buys_labels_and_begins_as_it_classifies(
    name: str, collection: Collection
) -> None:
    entry = find_learner(name)
    torch.manual_seed(0)
    settings = {"head": "ridge", "set_encoder_norm": "none", "lora_rank": 2, **entry.config}
    own = entry.model(ModelConfig(backbone=SMALL_BACKBONE, image_size=32, **settings))
    own.notes["calibration"] = [0.7, 0.0, 0.0]
    learner, deal = create_learner(name, own), Deal.of(collection, [1, 3, 5], PLAN, seed=0)
    if isinstance(learner, FeatureLearner):
        return  # buys labels on features that are shared with others
    pixels = collection.read(deal.rows.tolist(), size=32)
    if entry.theta or not entry.trained:
        with pytest.raises(InputError, match=f"features that stay, and those of {name} change"):
            adaptive(learner, pixels, deal)
        return
    features, fit = adaptive(learner, pixels, deal)
    ours = fit(features[deal.start], deal.labels[deal.start])(features[deal.targets])
    theirs = learner.adapt(pixels[deal.start], deal.labels[deal.start])(pixels[deal.targets]).softmax(1).numpy()
    if isinstance(own, CNAPs):  # which as a fitted task asks its examples for a temperature, too
        np.testing.assert_array_equal(ours.argmax(1), theirs.argmax(1))
    else:
        np.testing.assert_allclose(ours, theirs, atol=2e-4)


def run(*words: object) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["experiment", *map(str, words)])
    assert not ended.value.code


def test_the_command_draws_panels_and_goes_on_where_it_was(
    collection: Collection, model: CNAPs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model.save(tmp_path / "model")
    TrainedProtoNet(model.config, model.backbone).save(tmp_path / "proto")
    learners = f"cnaps,protonet-trained={tmp_path / 'proto'}"
    command = ("active", collection.path, "--out", tmp_path / "out", "--model", tmp_path / "model",
               "--strategies", "margin", "--iterations", 3, "--learners", learners)  # fmt: skip
    run(*command, "--seeds", 1)
    lines = (tmp_path / "out/active.jsonl").read_text().splitlines()
    assert len(lines) == 2 * 2  # panels, learners
    run(*command, "--seeds", 2)
    again = (tmp_path / "out/active.jsonl").read_text().splitlines()
    assert again[:4] == lines
    assert len(again) == 8
    assert "mean of all" in capsys.readouterr().out
    assert (tmp_path / "out/active.png").stat().st_size > 10_000
    data = json.loads((tmp_path / "out/active.json").read_text())
    assert (tmp_path / "out/active.csv").read_text() == active_report(data).tables["active"].csv()
    assert {(each["panel"], each["learner"], each["strategy"]) for each in data["panels"]} == {
        (panel, learner, strategy)
        for panel in ("even", "odd")
        for learner in ("cnaps", "protonet-trained")
        for strategy in ("random", "margin")
    }


def test_gains_are_differences_on_the_same_seeds() -> None:
    areas = {"random": [0.5, 0.7, 0.9], "entropy": [0.6, 0.8, 1.0]}
    rows = [
        {"panel": "p", "data set": "d", "learner": "cnaps", "strategy": strategy, "mean": [0.5, 0.7],
         "standard error": [0.1, 0.1], "areas": values}
        for strategy, values in areas.items()
    ]  # fmt: skip
    setup = {"seeds": 3, "active": {"start": 1, "images": 1, "iterations": 1}}
    report = active_report({"setup": setup, "panels": rows})
    assert report.tables["active"].rows == [["p", "70.0 ± 49.7", "+10.0 ± 0.0"]]  # Student, two degrees of freedom
    assert "cnaps over random choice" in report.text[1]


def test_a_tenth_of_the_labels_is_flipped_and_no_class_dies() -> None:
    labels = torch.tensor([0] * 20 + [1] * 20 + [2] * 2)
    wrong, flipped = flip_labels(labels, seed=4)
    assert len(flipped) == 4
    assert torch.nonzero(wrong != labels).flatten().tolist() == sorted(flipped)
    assert set(wrong.tolist()) == {0, 1, 2}
    assert flipped < set(range(40))


def test_calibration_error_is_the_gap_between_confidence_and_hits() -> None:
    assert calibration_error([[10, 10, 0], [4, 9, 0], [5, 8, 0]]) == pytest.approx(0.1)


def test_trust_is_measured_task_by_task_and_told_from_the_data_alone(
    collection: Collection, model: CNAPs, tmp_path: Path
) -> None:
    model.notes["calibration"] = [3.0, 0.0, 0.0]  # more than a task takes back
    model.save(tmp_path / "model")
    command = ("trust", collection.path, "--out", tmp_path / "out", "--model", tmp_path / "model",
               "--max-context", 60, "--max-ways", 4, "--split", "all")  # fmt: skip
    run(*command, "--tasks", 2)
    lines = (tmp_path / "out/trust.jsonl").read_text().splitlines()
    run(*command, "--tasks", 4)
    assert (tmp_path / "out/trust.jsonl").read_text().splitlines()[:2] == lines
    data = json.loads((tmp_path / "out/trust.json").read_text())
    report = trust_report(data)
    assert [row[0] for row in report.tables["calibration"].rows] == ["digits", "mean"]
    before, after = (np.array(data["bins"]["digits"][when]) for when in ("before", "after"))
    assert before[0].sum() == after[0].sum() > 0
    assert before[2].sum() == after[2].sum()  # a temperature changes no answer
    assert before[1].sum() > after[1].sum()  # but makes it less sure
    found = [task["flipped"] for task in data["tasks"] if "flipped" in task]  # too few examples: no tenth of them
    assert sum(each["first"] for each in found) > 0
    for each in found:
        assert each["found"] <= min(each["labels"], each["suspects"])
    assert all(0 <= value <= 1 for task in data["tasks"] for value in task["auroc"].values())
    assert (tmp_path / "out/trust.png").stat().st_size > 10_000
