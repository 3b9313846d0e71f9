"""The experiment: streams, what is measured on them, and the command."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from cnaps.cli import app
from cnaps.errors import InputError
from cnaps.paper.continual.adapting import AdaptingLearner
from cnaps.paper.experiments.continual import (
    BENCHMARKS,
    Benchmark,
    Stream,
    Trials,
    continual_report,
    forgetting,
    run_continual,
)


def test_a_stream_never_tests_on_what_it_teaches_and_runs_differ(collection):
    streams = [Stream(collection, BENCHMARKS["split-mnist"], 10, run) for run in range(2)]
    for stream in streams:
        assert stream.steps.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
        for taught, tested in zip(stream.train, stream.test, strict=True):
            assert len(tested) == 10
            assert not set(taught) & set(tested)
    assert np.array_equal(streams[0].test, streams[1].test)
    assert not np.array_equal(streams[0].train, streams[1].train)
    images, labels = streams[0].part(1, 3, 8)
    assert images.shape == (6, 3, 8, 8)
    assert labels.tolist() == [2, 2, 2, 3, 3, 3]


def test_classes_of_a_collection_come_in_another_order_in_each_run(collection):
    benchmark = Benchmark(classes=5, ordered=False, size=8)
    streams = [Stream(collection, benchmark, 10, run) for run in (0, 1)]
    assert sorted(streams[0].steps.flat) == list(range(10))
    assert streams[0].steps.tolist() != streams[1].steps.tolist()


def test_forgetting_is_the_fall_from_the_best():
    assert forgetting([[0.5], [0.9, 0.8], [0.6, 0.9, 1.0]]) == pytest.approx(((0.9 - 0.6) + (0.8 - 0.9)) / 2)


def test_film_made_anew_drifts_and_stored_results_make_the_report_again(make_model, collection, tmp_path):
    trials = Trials(["cnaps-fixed", "cnaps-paper"], shots=[5], runs=1, tests=20, iterations=1)
    data = run_continual("split-mnist", collection, tmp_path, trials, make_model())
    by_method = {result["method"]: result for result in data["results"]}
    assert by_method["cnaps-paper"]["drift"][0] < 1e-4 < by_method["cnaps-paper"]["drift"][-1]
    for result in data["results"]:
        for step in range(5):
            assert len(result["multi"][step]) == len(result["single"][step]) == step + 1
            # a choice among two is never harder than one among more
            assert all(m >= s for m, s in zip(result["multi"][step], result["single"][step], strict=True))
    again = continual_report(json.loads(json.dumps(data)))
    assert set(again.pictures) == {"accumulated", "tasks", "drift"}
    assert again.tables["continual"].markdown() == continual_report(data).tables["continual"].markdown()


def test_a_model_reads_images_of_the_size_that_is_asked_for(make_model, collection, tmp_path):
    trials = Trials(["cnaps-fixed"], shots=[2], runs=1, tests=4, iterations=1, size=48)
    model = make_model()
    data = run_continual("split-mnist", collection, tmp_path, trials, model)
    assert data["config"]["model"]["image size"] == 48 != model.image_size
    with pytest.raises(InputError, match="image size"):  # what another size gave does not join it
        run_continual("split-mnist", collection, tmp_path, replace(trials, size=None), model)


def test_drift_is_measured_in_the_first_runs_alone(make_model, collection, tmp_path, monkeypatch):
    monkeypatch.setattr("cnaps.paper.experiments.continual.DRIFT_RUNS", 1)
    trials = Trials(["cnaps-paper"], shots=[2], runs=2, tests=4, iterations=1)
    data = run_continual("split-mnist", collection, tmp_path, trials, make_model())
    assert [len(result["drift"]) for result in data["results"]] == [5, 0]
    assert "drift" in continual_report(data).pictures


def test_means_do_not_drift_under_fixed_film(make_model, collection):
    stream = Stream(collection, BENCHMARKS["split-mnist"], 10, 0)
    steps = [stream.part(step, 5, 32) for step in range(3)]
    everything = [torch.cat(part) for part in zip(*steps, strict=True)]
    drifts = {}
    for mode in ("fixed", "paper"):
        learner = AdaptingLearner(make_model(), 10, mode)
        for images, labels in steps:
            learner.learn(images, labels)
        drifts[mode] = learner.drift(*everything)
    assert drifts["fixed"] < 1e-5 < 1e-3 < drifts["paper"]


def test_the_command_goes_on_where_it_stood(collection, tmp_path):
    def command(*more: str) -> str:
        start = ["experiment", "continual", "--benchmark", "split-mnist", "--data", str(collection.path)]
        end = ["--out", str(tmp_path), "--tests", "20", "--iterations", "5", *more]
        result = CliRunner().invoke(app, [*start, *end])
        assert result.exit_code == 0, result.output
        return result.output

    command("--methods", "finetune", "--shots", "10", "--runs", "1")
    first = tmp_path / "runs" / "finetune-10-0.json"
    stamp = first.stat().st_mtime_ns
    shown = command("--methods", "finetune,si", "--shots", "10,all", "--runs", "1", "--head", "multi")
    assert first.stat().st_mtime_ns == stamp
    assert len(list((tmp_path / "runs").iterdir())) == 4
    assert "multi-head, published" in shown
    assert "single-head" not in shown
    held = json.loads((tmp_path / "continual.json").read_text())
    assert {(r["method"], r["shots"], r["images"]) for r in held["results"]} == {
        ("finetune", 10, 100),
        ("finetune", None, 400),
        ("si", 10, 100),
        ("si", None, 400),
    }


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("--methods", "lwf", "no continual method named 'lwf'"),
        ("--benchmark", "split-anything", "no benchmark named"),
        ("--shots", "many", "numbers and 'all'"),
        ("--head", "double", "multi, single or both"),
    ],
)
def test_what_the_command_cannot_do_is_said(collection, tmp_path, option, value, reason):
    options = {"--benchmark": "split-mnist", "--methods": "si", "--shots": "1", "--head": "both"} | {option: value}
    flat = [part for pair in options.items() for part in pair]
    result = CliRunner().invoke(
        app, ["experiment", "continual", "--data", str(collection.path), "--out", str(tmp_path), *flat]
    )
    assert result.exit_code != 0
    assert reason in str(result.exception) + result.output
