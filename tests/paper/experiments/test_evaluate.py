"""`cnaps evaluate`: the same tasks for all, nothing twice, intervals and calibration as defined."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from cnaps.cli import app, main
from cnaps.data.collection import Collection, metadata_digest
from cnaps.episodes import Sampler, write_manifest
from cnaps.errors import DataError, InputError
from cnaps.nn.backbones import Backbone
from cnaps.nn.checkpoints import load_model
from cnaps.paper.experiments.evaluation import FeatureStore, TaskSet
from cnaps.paper.experiments.scores import (
    LOG_TEMPERATURES,
    Estimate,
    Score,
    ScoreBook,
    Scores,
    fit_calibration,
    measure,
)
from cnaps.paper.experiments.sizes import class_sizes, common_reach, draw_points, groups_of
from cnaps.paper.experiments.speed import speed_report
from cnaps.paper.learners import FrozenFeatures


def score(learner: str, index: int, accuracy: float, **changes: object) -> Score:
    facts = {"ways": 5, "context": 25, "nlls": [1.0] * 13, "bins": np.zeros((3, 15)).tolist(), "seconds": 0.1}
    return Score(learner, "digits", index, accuracy=accuracy, **{**facts, **changes})  # type: ignore[arg-type]


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def evaluate(digits: Collection, saved_model: Path, tmp_path: Path) -> list[object]:
    out = tmp_path / "results"
    common = ["--model", saved_model, "--out", out, "--ways", 4, "--shots", 3, "--targets", 4]
    return ["evaluate", digits.path, *common]


def test_an_interval_is_students_and_196_standard_errors_for_many_values() -> None:
    estimate = Estimate.of([0.2, 0.4, 0.9])
    assert estimate.mean == pytest.approx(0.5)
    assert estimate.interval == pytest.approx(4.3027 * math.sqrt(0.13) / math.sqrt(3), rel=1e-4)
    many = np.random.default_rng(0).random(2000)
    assert Estimate.of(many).interval == pytest.approx(1.961 * many.std(ddof=1) / math.sqrt(2000), rel=1e-3)


def test_an_average_of_independent_estimates_is_as_sure_as_all_their_values_together() -> None:
    parts = np.random.default_rng(0).random((20, 4))
    average = Estimate.average([Estimate.of(part) for part in parts])
    error = math.sqrt((parts.var(1, ddof=1) / 4).sum()) / 20
    assert average.interval == pytest.approx(2.0003 * error, rel=1e-4)  # 60 degrees of freedom, not 3


def test_results_are_joined_task_by_task_and_each_counts_once() -> None:
    first = Scores.of(score("a", index, 0.5) for index in (0, 1))
    further = Scores.of([score("a", 2, 0.8), score("b", 0, 0.4)])
    both = first.joined(further)
    assert both.tasks("a", "digits") == {0: 0.5, 1: 0.5, 2: 0.8}
    assert both.tasks("b", "digits") == {0: 0.4}
    assert both.joined(first).to_json() == both.to_json() == first.joined(both).to_json()
    with pytest.raises(InputError, match="share some of their tasks"):
        first.joined(Scores.of(score("a", index, 0.5) for index in (1, 2)))


def test_a_difference_is_taken_over_the_tasks_that_both_have_done() -> None:
    some = {("a", 0): 0.5, ("a", 1): 0.9, ("b", 0): 0.4, ("b", 1): 0.6, ("b", 7): 0.0}
    scores = Scores.of(score(name, index, accuracy) for (name, index), accuracy in some.items())
    difference = scores.difference("a", "b", ["digits"])
    assert difference is not None
    assert (difference.mean, difference.count) == (pytest.approx(0.2), 2)
    assert scores.difference("a", "c", ["digits"]) is None


def test_the_interval_of_an_average_knows_that_data_sets_share_their_draws() -> None:
    easy = [0.1, 0.5, 0.9, 0.3]  # the number of ways and shots of a task is the same in every data set
    rows = [
        replace(score(who, i, a + shift), collection=name)
        for name in ("one", "two")
        for who, shift in (("a", 0.05), ("b", 0.0))
        for i, a in enumerate(easy)
    ]
    scores = Scores.of(rows)
    alone, both = scores.accuracy("a", ["one"]), scores.accuracy("a", ["one", "two"])
    assert alone is not None
    assert both is not None
    assert both.interval == pytest.approx(alone.interval)  # a second data set told nothing new
    assert (both.mean, both.count) == (pytest.approx(0.5), 4)
    difference = scores.difference("a", "b", ["one", "two"])
    assert difference is not None
    assert (difference.mean, difference.interval) == (pytest.approx(0.05), pytest.approx(0))


def test_the_calibration_error_is_the_gap_between_confidence_and_hits() -> None:
    logits = torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 0.5]])
    facts = measure(logits, torch.tensor([0, 1, 0]))
    sure, unsure = 1 / (1 + math.exp(-2)), 1 / (1 + math.exp(-0.5))
    error = Scores.of([score("a", 0, **facts)]).calibration_error("a", ["digits"])
    assert error == pytest.approx((2 * abs(sure - 0.5) + unsure) / 3, abs=1e-4)


def test_a_temperature_that_depends_on_ways_and_shots_is_found() -> None:
    wanted = (0.3, -0.2, 0.1)
    scores = []
    for index in range(40):
        ways, context = 3 + index % 20, 60 + 7 * index
        best = wanted[0] + wanted[1] * math.log(ways) + wanted[2] * math.log(context / ways)
        nlls = ((LOG_TEMPERATURES - best) ** 2).tolist()
        scores.append(score("a", index, 0.5, ways=ways, context=context, nlls=nlls))
    assert np.allclose(fit_calibration(scores), wanted, atol=0.08)


def test_frozen_features_are_computed_once_an_image(backbone: Backbone, digits: Collection) -> None:
    frozen = FrozenFeatures(backbone)
    store = FeatureStore(frozen, len(digits))
    images = digits.read([4, 9])
    first = store.get(np.array([9, 4, 9]), {4: images[0], 9: images[1]})
    assert torch.allclose(first, frozen(images)[[1, 0, 1]], atol=1e-5)
    assert torch.equal(store.get(np.array([4]), {}), first[1:2])  # no image is needed any more
    assert store.missing(np.array([3, 4])).tolist() == [3]


def test_frozen_features_on_disk_serve_the_next_run(
    evaluate: list[object], digits: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--tasks", 2, "--features", tmp_path / "features", "--learners"]
    run(*evaluate, *options, "protonet")
    (file,) = (tmp_path / "features").glob("*/digits-*")
    assert file.stat().st_size == 4 * len(digits) * (32 + 48 + 1)
    monkeypatch.setattr(FrozenFeatures, "__call__", lambda *_: pytest.fail("an image was run again"))
    again = [*evaluate[:4], "--out", tmp_path / "again", *evaluate[6:]]
    run(*again, *options, "protonet,logreg@last")
    first, second = (ScoreBook(tmp_path / name).read() for name in ("results", "again"))
    assert len(second) == 4
    assert all(second[key].accuracy == score.accuracy for key, score in first.items())


def test_a_torn_line_does_not_count_and_is_written_over(tmp_path: Path) -> None:
    book = ScoreBook(tmp_path)
    book.append([score("a", 0, 0.5)])
    with open(tmp_path / "scores-0.jsonl", "a") as file:
        file.write('{"learner": "a", "coll')
    assert len(book.read()) == 1
    book.append([score("a", 1, 0.7)])
    assert sorted(book.read()) == [("a", "digits", 0), ("a", "digits", 1)]
    (tmp_path / "scores-3.jsonl").write_text("nonsense\n")
    with pytest.raises(DataError, match=r"scores-3\.jsonl, line 1"):
        book.read()


def test_a_second_run_continues_and_the_result_is_that_of_one_run(
    evaluate: list[object], tmp_path: Path, saved_model: Path
) -> None:
    out = tmp_path / "results"
    run(*evaluate, "--tasks", 2, "--learners", "cnaps,protonet")
    before = (out / "scores-0.jsonl").read_text()
    run(*evaluate, "--tasks", 3, "--learners", "logreg,protonet,cnaps")
    after = (out / "scores-0.jsonl").read_text()
    assert after.startswith(before)
    assert len(after.splitlines()) == 9
    whole = [*evaluate[:4], "--out", tmp_path / "whole", *evaluate[6:]]
    run(*whole, "--tasks", 3, "--learners", "cnaps,protonet,logreg")
    results = [json.loads((folder / "evaluation.json").read_text()) for folder in (out, tmp_path / "whole")]
    accuracies = [
        {who: column["accuracy"] for who, (column,) in ((w, c.values()) for w, c in each["scores"].items())}
        for each in results
    ]
    assert accuracies[0] == accuracies[1]
    assert len(accuracies[0]["cnaps"]) == 3
    assert (out / "evaluation.png").read_bytes()[:4] == b"\x89PNG"
    assert "digits" in (out / "evaluation.md").read_text()
    assert "<table>" in (out / "evaluation.html").read_text()
    assert len((out / "evaluation.csv").read_text().splitlines()) == 3


def test_other_tasks_or_another_model_are_not_mixed_in(
    evaluate: list[object], saved_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(*evaluate, "--tasks", 1, "--learners", "protonet")
    with pytest.raises(SystemExit):
        main([str(a) for a in evaluate] + ["--tasks", "1", "--seed", "9", "--learners", "protonet"])
    assert "seed = 0, not 9" in capsys.readouterr().err


def test_two_processes_give_the_scores_of_one(evaluate: list[object], tmp_path: Path) -> None:
    import subprocess
    import sys

    run(*evaluate, "--tasks", 3, "--learners", "protonet")
    other = [*evaluate[:4], "--out", tmp_path / "two", *evaluate[6:]]
    program = Path(__file__).parent / "program.py"
    command = [sys.executable, program, *other, "--tasks", 3, "--learners", "protonet", "--processes", 2]
    subprocess.run([str(part) for part in command], check=True, capture_output=True, timeout=300)
    assert len(list((tmp_path / "two").glob("scores-*.jsonl"))) == 2
    found = [ScoreBook(tmp_path / name).read() for name in ("results", "two")]
    assert {key: s.accuracy for key, s in found[0].items()} == {key: s.accuracy for key, s in found[1].items()}


def test_a_manifest_gives_its_own_tasks(digits: Collection, tmp_path: Path) -> None:
    sampler = Sampler([digits], "test", ways=3, shots=2, targets=2, seed=4)
    described = [sampler.describe(index) for index in (3, 8, 11)]
    write_manifest(tmp_path / "tasks.jsonl", described, {"digits": digits}, sampler.protocol)
    assert TaskSet.from_manifest(tmp_path / "tasks.jsonl", [digits], 2).tasks == {"digits": described[:2]}


def test_calibration_is_written_to_the_model_and_used(
    evaluate: list[object], saved_model: Path, tmp_path: Path
) -> None:
    import shutil

    folder = shutil.copytree(saved_model, tmp_path / "model")
    run(*evaluate, "--tasks", 4, "--learners", "cnaps")
    assert "from 4 tasks" in run("calibrate", folder, tmp_path / "results")
    model = load_model(folder)
    assert model.notes["calibration"] != [0.0, 0.0, 0.0]
    calibrated = [*evaluate[:2], "--model", folder, "--out", tmp_path / "after", *evaluate[6:]]
    run(*calibrated, "--tasks", 4, "--learners", "cnaps")
    before, after = (ScoreBook(tmp_path / name).read().values() for name in ("results", "after"))
    assert sum(s.nlls[6] for s in after) < sum(s.nlls[6] for s in before)  # at T = 1


def test_every_method_gets_its_temperature_from_the_same_validation_tasks(
    evaluate: list[object], tmp_path: Path
) -> None:
    who = ["cnaps", "logreg@all", "film-gradient", "finetune"]  # of one pass, of a solver, of gradient steps
    learners = ["--learners", ",".join(who)]
    run(*evaluate, "--tasks", 4, *learners)
    run(*evaluate, "--tasks", 5, "--learners", "cnaps")  # a task that the others have not done does not count
    out = [*evaluate[:4], "--out", tmp_path / "after", *evaluate[6:]]
    run(*out, "--tasks", 4, *learners, "--calibration", tmp_path / "results")
    before, after = (ScoreBook(tmp_path / name) for name in ("results", "after"))
    assert set(after.setup["calibration"]) == set(who)
    for key, one in after.read().items():
        assert one.accuracy == before.read()[key].accuracy
    done = after.read()
    for learner in who:
        mine = [(before.read()[key].nlls[6], s.nlls[6]) for key, s in done.items() if s.learner == learner]
        assert sum(now for _, now in mine) < sum(then for then, _ in mine)
    refused = CliRunner().invoke(
        app,
        [str(a) for a in (*out[:4], "--out", tmp_path / "x", *out[6:], "--tasks", 1)]
        + ["--learners", "protonet", "--calibration", str(tmp_path / "results")],
    )
    assert "no results of protonet" in str(refused.exception)


def test_seeds_of_one_method_join_into_a_row_with_their_spread() -> None:
    scores = Scores.of([score("a#0", 0, 0.4), score("a#0", 1, 0.6), score("a#1", 0, 0.6), score("a#1", 1, 0.8)])
    found = scores.accuracy("a", ["digits"])
    assert found is not None
    assert (found.mean, found.count) == (pytest.approx(0.6), 2)
    assert scores.spread("a", ["digits"]) == pytest.approx(math.sqrt(0.02))
    assert scores.spread("a#0", ["digits"]) is None


def test_tasks_that_one_seed_alone_has_done_count_but_do_not_spread() -> None:
    more = [score("a#0", 0, 0.4), score("a#1", 0, 0.6), score("a#0", 1, 0.9)]
    scores = Scores.of([*more, score("b", 0, 0.2), score("b", 1, 0.2)])
    assert scores.tasks("a", "digits") == {0: pytest.approx(0.5), 1: 0.9}
    assert scores.spread("a", ["digits"]) == pytest.approx(math.sqrt(0.02))  # of the first task
    assert scores.spread("a", ["digits"], "b") == pytest.approx(math.sqrt(0.02))
    gap = scores.difference("a", "b", ["digits"])
    assert gap is not None
    assert (gap.mean, gap.count) == (pytest.approx(0.5), 2)


def test_a_difference_spreads_over_pairs_of_one_seed() -> None:
    accuracies = {"a#0": 0.5, "a#1": 0.7, "b#0": 0.4, "b#1": 0.6, "c": 0.3}
    scores = Scores.of(score(who, 0, accuracy) for who, accuracy in accuracies.items())
    assert scores.spread("a", ["digits"], "b") == pytest.approx(0)  # both have the better second seed
    assert scores.spread("a", ["digits"], "c") == pytest.approx(math.sqrt(0.02))
    assert scores.spread("c", ["digits"], "a") is None


def test_a_line_has_the_same_data_sets_at_every_point() -> None:
    used = {"shots": {"short": 2, "long": 7, "longer": 7, "new": 3}}
    assert common_reach(groups_of(used["shots"], ["new"])["unseen classes"]) == (7, ["long", "longer"])
    assert common_reach(groups_of(used["shots"], ["new"])["unseen data sets"]) == (3, ["new"])
    assert common_reach({}) == (0, [])


def test_points_end_where_a_data_set_has_too_few_images(digits: Collection) -> None:
    points = [value for value, _ in draw_points(digits, None, "shots", 1)]
    assert points == [1, 2, 5, 10, 25, 50, 100]  # some 180 images of each digit
    assert [value for value, _ in draw_points(digits, None, "ways", 1)] == [2, 5, 10]


def test_an_unbalanced_task_keeps_its_size() -> None:
    for ratio in (1, 4, 16):
        sizes = class_sizes(10, 10, ratio)
        assert sum(sizes) == 100
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] / sizes[-1] >= ratio


def test_results_of_another_model_do_not_calibrate(
    evaluate: list[object], saved_model: Path, tmp_path: Path
) -> None:
    run(*evaluate, "--tasks", 2, "--learners", "cnaps")
    other = load_model(saved_model)
    for parameter in other.phi_parameters():
        parameter.data.add_(0.1)
    other.save(tmp_path / "other")
    refused = CliRunner().invoke(app, ["calibrate", str(tmp_path / "other"), str(tmp_path / "results")])
    assert "results of another model" in str(refused.exception)
    assert "calibration" not in load_model(tmp_path / "other").notes


@pytest.mark.parametrize("name", ["ablation", "adapters", "speed", "shots", "design-space", "embeddings"])
def test_an_experiment_writes_table_picture_and_page(
    name: str, digits: Collection, saved_model: Path, tmp_path: Path
) -> None:
    choices: dict[str, list[object]] = {
        "ablation": ["--learners", "cnaps#0,cnaps#1,cnaps@again"],
        "adapters": ["--learners", "cnaps,residual-adapters", "--max-context", 20],
        "speed": ["--learners", "cnaps,film-gradient", "--shots", "1,3"],
        "shots": ["--learners", "cnaps,logreg@last", "--axes", "shots,imbalance", "--size", 32],
        "design-space": ["--learners", "cnaps,protonet,film-gradient"],
        "embeddings": [],
    }
    options = choices[name]
    count = 6 if name == "embeddings" else 2
    sets = [digits.path]
    if name == "embeddings":  # which tells data sets apart
        second = json.loads((digits.path / "collection.json").read_text())
        folder = tmp_path / "second"
        folder.mkdir()
        (folder / "images.arrow").write_bytes((digits.path / "images.arrow").read_bytes())
        (folder / "collection.json").write_text(
            json.dumps({**second, "name": "second", "digest": metadata_digest({**second, "name": "second"})})
        )
        sets.append(folder)
    run("experiment", name, *sets, "--model", saved_model, "--out", tmp_path / "out", "--tasks", count, *options)
    report = "sizes" if name == "shots" else name
    for kind in ("md", "json", "html", "csv", "png"):
        assert (tmp_path / "out" / f"{report}.{kind}").stat().st_size > 50
    made = json.loads((tmp_path / "out" / f"{report}.json").read_text())["made"]
    assert made["versions"]["torch"] == torch.__version__
    if name == "adapters":
        assert "FiLM,160,2,80" in (tmp_path / "out" / "adapters-parameters.csv").read_text()


def test_a_method_that_was_timed_on_some_data_sets_is_compared_on_those():
    def timed(seconds: float) -> dict[str, object]:
        return {"index": [0, 1], "accuracy": [0.5, 0.75], "seconds": [seconds] * 2, "bins": [[0.0] * 15] * 3}

    scores = {"cnaps@1": {"mnist": timed(0.1), "dtd": timed(0.4)}, "steps@1": {"dtd": timed(2.0)}}
    report = speed_report({"scores": scores, "learners": ["cnaps", "steps"], "shots": [1]})
    assert report.tables["ratios"].rows == [["steps", "5.0"]]
    assert [row[:2] for row in report.tables["speed"].rows] == [
        ["dtd", "cnaps"],
        ["dtd", "steps"],
        ["mnist", "cnaps"],
    ]
