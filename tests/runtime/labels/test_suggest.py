"""Suggestions over pools of any kind, from Python and from the command line; rejection and novelty."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import roc_auc_score

from cnaps import FewShotClassifier
from cnaps.cli import main
from cnaps.errors import InputError
from cnaps.runtime.suggest import CANDIDATES, STRATEGIES, choose, suggest, uncertainty

from .conftest import Digits


@pytest.fixture(scope="module")
def embedded(learned: FewShotClassifier, pool: Digits) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities and features of the whole pool."""
    fitted = learned.task_
    features = np.concatenate([features for _, features, _ in fitted.embed(pool[0])])
    return fitted.probabilities(features), features


@pytest.fixture
def folder(pool: Digits, tmp_path: Path) -> Path:
    """The first twelve images of the pool as files, and one that is broken."""
    place = tmp_path / "pool"
    place.mkdir()
    for i, pixels in enumerate(pool[0][:12]):
        Image.fromarray(pixels).save(place / f"{i:02}.png")
    (place / "05x.jpg").write_bytes(b"no image")
    return place


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_stream_gives_what_the_whole_pool_at_once_would(
    strategy: str, learned: FewShotClassifier, pool: Digits, embedded: tuple[np.ndarray, np.ndarray]
) -> None:
    probabilities, features = embedded
    seen = (
        np.argsort(-uncertainty(probabilities, "diverse"), kind="stable")[: 5 * CANDIDATES]
        if strategy == "diverse"
        else ...
    )
    at_once = choose(probabilities[seen], features[seen], 5, strategy, seed=3)
    found = learned.suggest(pool[0], 5, strategy, seed=3)
    assert [each.index for each in found] == np.arange(len(features))[seen][at_once].tolist()
    for each in found:
        assert each.path is None
        assert each.probability == pytest.approx(probabilities[each.index].max(), abs=1e-6)
        assert each.label == learned.classes_[probabilities[each.index].argmax()]


def test_doubtful_images_are_those_of_classes_it_never_saw(learned: FewShotClassifier, pool: Digits) -> None:
    chosen = [each.index for each in learned.suggest(pool[0], 15, "entropy")]
    assert (pool[1][chosen] >= 5).mean() > 0.7  # half of the pool is


def test_a_folder_is_a_pool_and_its_broken_files_are_warned_of(
    learned: FewShotClassifier, pool: Digits, folder: Path
) -> None:
    with pytest.warns(UserWarning, match=r"05x\.jpg"):
        found = learned.suggest(folder, 40, "margin")
    assert len(found) == 12
    scores = [each.score for each in found]
    assert scores == sorted(scores, reverse=True)
    arrays = learned.suggest(pool[0][:12], 40, "margin")
    assert [int(Path(str(each.path)).stem) for each in found] == [each.index for each in arrays]


def test_a_generator_of_any_length_streams_by(learned: FewShotClassifier, pool: Digits) -> None:
    asked = 0

    def images():
        nonlocal asked
        for image in pool[0]:
            asked += 1
            yield image

    assert [each.index for each in learned.suggest(images(), 3)] == [
        each.index for each in learned.suggest(pool[0], 3)
    ]
    assert asked == len(pool[0])
    assert suggest(learned.task_, [], 3) == []


def test_impossible_wishes_are_refused_before_any_work(learned: FewShotClassifier) -> None:
    def images():
        raise AssertionError("nothing needs to be read")
        yield

    with pytest.raises(InputError, match=r"'best'.*entropy"):
        learned.suggest(images(), 3, "best")
    with pytest.raises(InputError, match="at least one"):
        learned.suggest(images(), 0)


def test_the_command_prints_a_table_and_writes_csv_and_sheet(
    learned: FewShotClassifier, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task, table, sheet = tmp_path / "digits.task", tmp_path / "next.csv", tmp_path / "next.png"
    learned.save(task)
    with pytest.raises(SystemExit) as ended:
        main(["suggest", *map(str, (task, folder, "-n", 7, "--out", table, "--sheet", sheet))])
    assert ended.value.code == 3  # the broken file
    printed, warned = capsys.readouterr()
    assert "05x.jpg" in warned
    rows = list(csv.DictReader(table.open(encoding="utf-8")))
    assert list(rows[0]) == ["path", "score", "label", "probability"]
    wanted = [each.path for each in suggest(learned.task_, sorted(folder.glob("*.png")), 7)]
    assert [row["path"] for row in rows] == wanted
    assert [line.split()[0] for line in printed.splitlines()[1:8]] == wanted
    with Image.open(sheet) as picture:
        assert picture.width > 5 * 150


@pytest.mark.parametrize("wrong", [["--strategy", "best"], ["--out", "next.txt"], ["--sheet", "next.jpg"]])
def test_the_command_says_what_it_cannot_do(
    wrong: list[str], learned: FewShotClassifier, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    learned.save(tmp_path / "digits.task")
    with pytest.raises(SystemExit) as ended:
        main(["suggest", str(tmp_path / "digits.task"), str(folder), *wrong])
    assert ended.value.code == 2
    assert wrong[1] in capsys.readouterr().err


def test_unsure_predictions_are_rejected(learned: FewShotClassifier, pool: Digits) -> None:
    probabilities, plain = learned.predict_proba(pool[0]), learned.predict(pool[0])
    found = learned.predict(pool[0], reject_below=0.8)
    rejected = np.array([name is None for name in found])
    assert 0 < rejected.sum() < len(rejected)
    np.testing.assert_array_equal(rejected, probabilities.max(1) < 0.8)
    np.testing.assert_array_equal(found[~rejected].astype(int), plain[~rejected])
    known = pool[1] < 5
    assert rejected[~known].mean() > rejected[known].mean()


def test_images_of_no_class_look_novel(learned: FewShotClassifier, pool: Digits) -> None:
    # thirty of each: by chance it would be 0.5 with a standard error of 0.075
    assert roc_auc_score(pool[1] >= 5, learned.novelty(pool[0])) > 0.5 + 3 * 0.075
