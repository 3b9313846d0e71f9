"""Every number of the results' pages follows from the stored ones, and some of those are made again."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cnaps.paper.experiments.continual import run_file
from cnaps.paper.experiments.scores import ScoreBook, Scores

from .pages import ROOT

STORED = sorted((ROOT / "results").glob("*.json"))
NUMBER = re.compile(r"[+-]?\d+\.\d ± \d+\.\d")


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    found = importlib.util.spec_from_file_location("results_tool", ROOT / "tools" / "results.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module  # dataclasses look their module up
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "tools"))
        found.loader.exec_module(module)
    return module


def test_the_pages_are_what_the_stored_numbers_give(tool: ModuleType) -> None:
    pages: dict[Path, str] = tool.render()
    assert len(pages) > 8
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is not that of results/: run `make results`"
    held = set((ROOT / "docs" / "results").glob("*.md"))
    assert held <= set(pages), "a page that nothing stored gives"


@pytest.mark.parametrize("path", [*(ROOT / "results").glob("*.md")], ids=lambda path: path.name)
def test_words_ask_for_their_numbers(path: Path) -> None:
    bare = re.sub(r"\{[^}]*\}", "", path.read_text(encoding="utf-8"))
    assert re.findall(r"\b\d+\.\d\b|±", bare) == []


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_a_stored_result_says_how_it_was_made(path: Path) -> None:
    data = json.loads(path.read_text(encoding="utf-8"))
    assert data["made"]["command"].startswith(("cnaps ", "make "))
    assert data["made"]["versions"]


@pytest.mark.parametrize("page", ["README.md", "docs/default-model.md"])
def test_tables_elsewhere_repeat_the_evaluation(page: str, tool: ModuleType) -> None:
    data: dict[str, Any] = json.loads((ROOT / "results" / "evaluation.json").read_text(encoding="utf-8"))
    scores = Scores.from_json(data["scores"])
    rows = dict(tool.table_rows(scores.collections, data["unseen"]))
    checked = 0
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
        cells = [cell.strip(" *") for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells[0] in rows and NUMBER.search(line):
            sets, other = rows[cells[0]], data["against"]
            difference = scores.difference("cnaps", other, sets)
            assert difference is not None
            wanted = [str(scores.accuracy("cnaps", sets)), str(scores.accuracy(other, sets)), difference.signed]
            assert cells[1:4] == wanted, f"{page}: {cells[0]}"
            checked += 1
    assert checked == len(rows) - 1  # every data set and two averages


def test_an_interval_on_any_page_is_a_stored_one(tool: ModuleType) -> None:
    known: set[str] = set()
    for result in tool.stored():
        for table in result.report.tables.values():
            known.update(NUMBER.findall(" ".join(str(cell) for row in table.rows for cell in row)))
    for page in (ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")):
        if page.name != "results.md":  # which is rendered
            shown = NUMBER.findall(page.read_text(encoding="utf-8"))
            assert [number for number in shown if number not in known] == [], page.name


def one_more(seed: int, **setup: Any) -> dict[str, Any]:
    label = f"cnaps@all#{seed}"
    column = {"index": [0, 1], "accuracy": [0.5, 0.75], "seconds": [0.1, 0.1], "bins": [[2.0] * 15] * 3}
    facts = {"tasks": {"seed": 0}, "learner": {label: "f"}, "trained": {label: {"rate": "1e-3"}}}
    made = {"command": f"make seed-{seed}"}
    return {"setup": facts | setup, "scores": {label: {"mnist": column}}, "made": made}


def test_a_later_session_adds_seeds_to_what_is_kept(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    (tmp_path / "results").mkdir()
    for seed in (0, 1, 1):
        tool.take_in(one_more(seed), "comparison")
    kept = json.loads((tmp_path / "results" / "comparison.json").read_text(encoding="utf-8"))
    assert Scores.from_json(kept["scores"]).seeds("cnaps@all") == ["cnaps@all#0", "cnaps@all#1"]
    assert list(kept["setup"]["trained"]) == ["cnaps@all#0", "cnaps@all#1"]
    assert kept["made"]["command"].splitlines() == ["make seed-0", "make seed-1"], "both made it, each once"


def test_a_further_axis_joins_those_that_are_kept(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    (tmp_path / "results").mkdir()
    for seed, (axis, who) in enumerate((("shots", "cnaps"), ("ways", "logreg"))):
        about = {"points": {axis: [1]}, "used": {axis: {"mnist": 1}}, "learners": [who], "tasks": 2}
        tool.take_in({**one_more(seed), **about}, "sizes")
    kept = json.loads((tmp_path / "results" / "sizes.json").read_text(encoding="utf-8"))
    assert list(kept["points"]) == list(kept["used"]) == ["shots", "ways"]
    assert kept["learners"] == ["cnaps", "logreg"]


def test_a_result_names_the_target_that_made_it_and_not_its_last_step(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    (tmp_path / "results").mkdir()
    tool.take_in(
        {"results": [], "made": {"command": "cnaps experiment", "versions": {"cnaps": "1"}}}, "a", "make b  "
    )
    kept = json.loads((tmp_path / "results" / "a.json").read_text(encoding="utf-8"))
    assert kept["made"] == {"command": "make b", "versions": {"cnaps": "1"}}


def test_runs_that_are_stored_are_not_done_again(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    (tmp_path / "results").mkdir()
    tool.unpack("continual-none", tmp_path / "out")  # nothing is stored, nothing happens
    assert not (tmp_path / "out").exists()
    stored = [{"method": "si", "shots": None, "run": 7, "multi": [[0.5]], "single": [[0.5]]}]
    data = {"config": {"stream": {"benchmark": "split"}}, "results": stored}
    (tmp_path / "results" / "continual-some.json").write_text(json.dumps(data), encoding="utf-8")
    tool.unpack("continual-some", tmp_path / "out")
    path = run_file(tmp_path / "out", "si", None, 7)
    assert json.loads(path.read_text(encoding="utf-8")) == stored[0]
    path.write_text("{}", encoding="utf-8")
    tool.unpack("continual-some", tmp_path / "out")
    assert path.read_text(encoding="utf-8") == "{}", "what lies there stays"


def test_scores_that_are_stored_are_not_measured_again_and_stay_what_they_were(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    (tmp_path / "results").mkdir()
    tool.take_in(one_more(0), "sizes")
    for _ in range(2):  # what lies there stays
        tool.unpack("sizes", tmp_path / "out")
    book = ScoreBook(tmp_path / "out")
    stored = json.loads((tmp_path / "results" / "sizes.json").read_text(encoding="utf-8"))
    assert Scores.of(book.read().values()).to_json() == stored["scores"]
    assert book.setup == stored["setup"]
    lines = (tmp_path / "out" / "scores-0.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(book.read()), "each once"


def test_scores_of_a_model_with_other_weights_are_dropped_and_not_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import comparison
    import results

    for module in (comparison, results):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    (tmp_path / "results").mkdir()
    assert not comparison.forget("cnaps@all#0", "f")  # nothing is kept yet
    for seed in (0, 1):
        results.take_in(one_more(seed), "comparison")
    assert not comparison.forget("cnaps@all#0", "f")
    assert list(comparison.kept_at("cnaps@all#0", "1e-3")) == ["mnist"]
    assert not comparison.kept_at("cnaps@all#0", "3e-4"), "a training at another rate is another one"
    assert comparison.forget("cnaps@all#0", "other weights")
    assert list(comparison.kept().columns) == ["cnaps@all#1"]
    results.take_in(one_more(0, learner={"cnaps@all#0": "other weights"}), "comparison")
    assert len(comparison.kept().columns) == 2


def test_film_for_the_papers_head_learns_with_the_head_of_the_same_seed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import comparison

    monkeypatch.setattr(comparison, "rates", lambda: {"cnaps-linear-no-film": {"best": "1e-3"}})
    monkeypatch.setattr(comparison, "CONFIG", ROOT / comparison.CONFIG)
    config = comparison.settings("cnaps-linear-long", "last", 2, "3e-4")
    folder = comparison.model_folder("cnaps-linear-no-film", "last", 2, "1e-3")
    assert (config.init.head, config.init.freeze) == (str(folder), ("head",))
    assert not comparison.settings("cnaps-linear", "last", 2, "3e-4").init.head

    def first(config: Any) -> None:
        raise LookupError(config.learner, config.seed, config.optimiser.learning_rate)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(comparison, "build_model", first)
    with pytest.raises(LookupError) as began:
        comparison.trained("cnaps-linear-long", "last", 2, "3e-4")
    assert began.value.args == ("cnaps-no-film", 2, 1e-3), "its head is trained before it"


@pytest.mark.parametrize(
    "other",
    [
        {"tasks": {"seed": 1}},
        {"learner": {"cnaps@all#0": "other weights"}},
        {"trained": {"cnaps@all#0": {"rate": "3e-4"}}},
    ],
    ids=lambda other: next(iter(other)),
)
def test_what_was_made_otherwise_does_not_join_it(
    other: dict[str, Any], tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    (tmp_path / "results").mkdir()
    tool.take_in(one_more(0), "comparison")
    before = (tmp_path / "results" / "comparison.json").read_bytes()
    with pytest.raises(SystemExit, match="another experiment"):
        tool.take_in(one_more(0, **other), "comparison")
    assert (tmp_path / "results" / "comparison.json").read_bytes() == before


def test_what_a_page_calls_measured_is_stored(tool: ModuleType) -> None:
    tables = [table for result in tool.stored() for table in result.report.tables.values()]
    cells = " ".join(str(cell) for table in tables for row in table.rows for cell in row)
    known = set(re.findall(r"\d+\.\d+", cells))
    data = json.loads((ROOT / "results" / "evaluation.json").read_text(encoding="utf-8"))
    scores = Scores.from_json(data["scores"])
    for _, sets in tool.table_rows(scores.collections, data["unseen"]):
        known.add(f"{scores.calibration_error('cnaps', sets):.3f}")
    found = 0
    for page in (ROOT / "docs").glob("*.md"):
        for part in re.split(r"\n(?:\n|- )", page.read_text(encoding="utf-8")):
            if "[measured](results/" in part:
                numbers = re.findall(r"(?<!below )(?<!at )\b\d+\.\d+", part)
                assert [number for number in numbers if number not in known] == [], f"{page.name}: {part}"
                found += len(numbers)
    assert found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cifar10", "mnist"])
def test_cheap_rows_are_found_again_from_the_data(
    name: str, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import comparison
    from typer.testing import CliRunner

    from cnaps.cli import app
    from cnaps.data.collection import Collection
    from cnaps.nn.checkpoints import load_task_model
    from cnaps.paper.experiments.evaluation import Evaluation, TaskSet, load_learners
    from cnaps.paper.experiments.scores import ScoreBook
    from cnaps.paper.learners import FrozenFeatures

    stored = json.loads((ROOT / "results" / "comparison.json").read_text(encoding="utf-8"))
    source = shared / "datasets" / ("cifar10.tar" if name == "cifar10" else "")
    words = ["data", "prepare", name, source, tmp_path / name, "--size", 512]
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    collection = Collection.open(tmp_path / name)
    if collection.fingerprint != stored["setup"]["data set"][name]:
        pytest.skip(f"{name} is another cut of the data than the stored results are of")
    base = load_task_model("cnaps-lite0")
    learners, _ = load_learners(["logreg@all", "logreg@last", "protonet@last"], base)
    drawn = TaskSet.draw([collection], "test", 8, limits=comparison.LIMITS, seed=0)
    frozen = FrozenFeatures(base.backbone, every_stage=True)
    size = stored["setup"]["tasks"]["image size"]
    found = Evaluation(learners, frozen, ScoreBook(tmp_path / "out"), size).run(drawn)
    for learner in learners:
        wanted = Scores.from_json(stored["scores"]).tasks(learner, name)
        # other processors round otherwise, which may turn an image or two
        assert found.tasks(learner, name) == pytest.approx({i: wanted[i] for i in range(8)}, abs=0.05), learner


def test_a_training_is_stored_with_its_budget_and_its_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import paper_runs

    tasks = {"total": 200, "max_ways": 10, "max_context": 30}
    (tmp_path / "config.json").write_text(json.dumps({"tasks": tasks, "optimiser": {"learning_rate": 1e-3}}))
    steps = [
        {"kind": "step", "step": i + 1, "loss": float(i % 2), "accuracy": 0.5, "seconds": 1.2} for i in range(100)
    ]
    valid = {"kind": "validation", "step": 100, "accuracy": 0.25, "sets": {}, "seconds": 60}
    (tmp_path / "metrics.jsonl").write_text("\n".join(json.dumps(record) for record in [*steps, valid]))
    run = paper_runs.read_run(tmp_path)
    assert run["budget"]["trained on"] == "200 tasks of at most 10 ways and 30 context images"
    assert run["budget"]["steps"] == 100
    assert run["minutes"] == 3
    assert run["validation"] == [[100, 0.25]]
    assert len(run["curves"]["step"]) == len(run["curves"]["loss"]) == paper_runs.POINTS
    assert run["curves"]["step"][-1] == 100


MAKEFILE = """
quick:
\ttrue
broken:
\tfalse
long:
\tsleep 60
"""


def test_steps_go_on_where_they_stood_and_say_what_is_left(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text(MAKEFILE)
    words = [sys.executable, str(ROOT / "tools" / "reviewer.py"), "run", "done", "quick", "broken", "long"]
    options: dict[str, Any] = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 50}
    first = subprocess.run([*words, "--minutes", "0.02"], check=False, **options)
    assert first.returncode == 1
    assert "broken: failed" in first.stdout
    assert "long: stopped" in first.stdout
    left = [line.split(maxsplit=1) for line in first.stdout.splitlines()[-3:]]
    assert left == [["quick", "done"], ["broken", "begun"], ["long", "begun"]]
    (tmp_path / "Makefile").write_text(MAKEFILE.replace("false", "true").replace("sleep 60", "true"))
    second = subprocess.run(words, check=True, **options)
    assert "quick ..." not in second.stdout
    assert second.stdout.count(" done") == 3
