"""Labels judged by the other examples; images of no class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from cnaps import FewShotClassifier
from cnaps.cli import main
from cnaps.errors import InputError
from cnaps.maths.left_out import left_out_logits
from cnaps.maths.statistics import ClassStatistics
from cnaps.nn.heads import Head, create_head
from cnaps.runtime.review import LeftOut, project, suspects, wilson
from cnaps.runtime.task import softmax

from .conftest import Digits


def leave_one_out(head: Head, features: torch.Tensor, labels: torch.Tensor) -> np.ndarray:
    return softmax(left_out_logits(head.numpy, features.numpy(), labels.numpy()))


def clusters(ways: int = 4, shots: int = 6, size: int = 20, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(ways, size, generator=generator)
    labels = torch.arange(ways).repeat_interleave(shots)
    return centres[labels] + 0.4 * torch.randn(ways * shots, size, generator=generator), labels


@pytest.mark.parametrize("counts", [[6, 6, 6, 6], [2, 1, 5, 9], [30, 12]], ids=str)
@pytest.mark.parametrize("name", ["cosine", "linear", "ridge", "mahalanobis"])
def test_leaving_one_out_is_the_same_as_fitting_without_it(name: str, counts: list[int]) -> None:
    generator = torch.Generator().manual_seed(0)
    head = create_head(name, [8, 12]).double()
    with torch.no_grad():
        for parameter in head.parameters():  # so that groups differ in weight, temperature and centring
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=generator)]
    features = torch.randn(len(counts), 20, generator=generator)[labels]
    features = head.embed((features + torch.randn(len(labels), 20, generator=generator)).double())
    found = torch.from_numpy(left_out_logits(head.numpy, features.detach().numpy(), labels.numpy()))
    torch.set_default_dtype(torch.float64)
    try:
        for i, k in enumerate(labels.tolist()):
            if counts[k] == 1:
                assert found[i].isnan().all()
                continue
            rest = torch.arange(len(labels)) != i
            statistics = ClassStatistics.of(features[rest], labels[rest], len(counts), scatter=head.needs_scatter)
            with torch.no_grad():
                wanted = head.classifier(statistics)(features[i : i + 1])[0]
            torch.testing.assert_close(found[i], wanted, rtol=1e-9, atol=1e-9)
    finally:
        torch.set_default_dtype(torch.float32)


def test_an_only_example_is_not_judged() -> None:
    head = create_head("cosine", [20])
    features, labels = clusters()
    keep = torch.tensor([0, 1, 2, 6, 12, 13, 18, 19])
    found = leave_one_out(head, features[keep], labels[keep])
    assert np.isnan(found[3]).all()
    assert not np.isnan(np.delete(found, 3, axis=0)).any()
    assert LeftOut.of(found, labels[keep].numpy()).total == 7


def test_a_flipped_label_is_found_first_and_its_class_named() -> None:
    head = create_head("cosine", [20])
    features, labels = clusters()
    wrong = labels.clone()
    wrong[8] = 3
    (worst, better), *others = suspects(leave_one_out(head, features, wrong), wrong.numpy())
    assert (worst, better) == (8, 1)
    assert len(others) <= 1


def test_few_examples_are_said_to_be_too_few() -> None:
    probabilities, labels = np.eye(2)[[0, 0, 1, 1]], np.array([0, 0, 1, 1])
    assert not LeftOut.of(probabilities, labels).enough
    many = LeftOut.of(np.repeat(probabilities, 3, axis=0), np.repeat(labels, 3))
    assert many.enough
    assert (many.correct, many.total) == (12, 12)
    assert many.low < 0.8 < many.high == 1


def test_an_interval_holds_the_share_and_narrows_with_more() -> None:
    narrow, wide = wilson(80, 100), wilson(8, 10)
    assert wide[0] < narrow[0] < 0.8 < narrow[1] < wide[1]
    assert wilson(0, 0) == (0.0, 1.0)


def test_the_plane_keeps_alike_images_together() -> None:
    features, labels = clusters(ways=3)
    points = project(features.numpy())
    assert np.abs(points).max() == pytest.approx(1)
    means = np.stack([points[labels == k].mean(0) for k in range(3)])
    nearest = np.linalg.norm(points[:, None] - means, axis=2).argmin(1)
    assert (nearest == labels.numpy()).mean() > 0.9
    np.testing.assert_array_equal(points, project(features.numpy()))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_even_a_few_images_have_a_place(count: int) -> None:
    assert np.isfinite(project(np.ones((count, 5)))).all()


def test_most_of_the_flipped_labels_of_real_images_come_first(context: Digits) -> None:
    images, labels = context
    wrong = labels.copy()
    wrong[[3, 14, 26]] = [4, 0, 1]
    judgements = FewShotClassifier().fit(images, wrong).review(images, wrong)
    assert sorted(each.index for each in judgements) == list(range(30))
    first = judgements[:3]
    assert len({each.index for each in first} & {3, 14, 26}) >= 2
    for each in first:
        assert each.suspicious
        assert each.label == wrong[each.index] != each.better
        assert each.fit < each.better_fit
    assert not judgements[-1].suspicious
    assert judgements[-1].fit > 0.9


def test_what_was_learned_later_is_reviewed_and_what_was_forgotten_is_not(context: Digits) -> None:
    images, labels = context
    keeping = FewShotClassifier(keep_examples=True)
    classifier = keeping.fit(images[:12], labels[:12]).partial_fit(images[12:], labels[12:])
    assert sorted(each.index for each in classifier.review()) == list(range(30))
    assert {each.label for each in classifier.forget([0, 1]).review()} == {2, 3, 4}


def test_a_task_file_holds_no_examples_to_review(learned: FewShotClassifier, tmp_path: Path) -> None:
    learned.save(tmp_path / "digits.task")
    with pytest.raises(InputError, match="no examples"):
        FewShotClassifier.load(tmp_path / "digits.task").review()


def test_the_command_names_a_label_that_looks_wrong(
    tmp_path: Path, context: Digits, capsys: pytest.CaptureFixture[str]
) -> None:
    images, labels = context
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        place = tmp_path / "digits" / str(3 if i == 0 else label)  # a zero among the threes
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{i:02d}.png")
    table = tmp_path / "review.csv"
    for _ in range(2):  # its own table it may replace
        with pytest.raises(SystemExit) as left:
            main(["review", str(tmp_path / "digits"), "--out", str(table)])
        assert left.value.code == 0
    said = capsys.readouterr().out
    assert f"{Path('3') / '00.png'}: labelled 3" in said
    assert "looks like 0" in said
    assert "of 30 labels look wrong" in said
    heading, first, *_ = table.read_text().splitlines()
    assert heading == "path,label,fit,better,better_fit,suspicious"
    assert "00.png,3," in first
    assert first.endswith(",yes")
