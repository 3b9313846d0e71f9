from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from cnaps.errors import InputError
from cnaps.nn.adapted import Adapted
from cnaps.training.distillation import Teacher

from .test_episodic import gradients, make_job, never

DISTILLED = ("distillation.weight=4", "distillation.size=48", "distillation.collections=['digits']")
PLAIN = ("memory={}", "augmentation={}")


def test_each_image_is_shown_to_the_teacher_once(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(settings, *DISTILLED)
    assert job._teacher is not None
    looked: list[int] = []
    look = Teacher._look
    monkeypatch.setattr(Teacher, "_look", lambda self, images: looked.append(len(images)) or look(self, images))
    images = torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8)
    first = job._teacher.features("digits", "abcde", images)
    again = job._teacher.features("digits", "ecd", images[[4, 2, 3]])
    other = job._teacher.features("letters", "a", images[1:2])
    assert looked == [5, 1]
    assert torch.equal(again, first[[4, 2, 3]])
    assert not torch.equal(other[0], first[0])


def test_the_teacher_is_theta_looking_at_an_enlarged_image(settings: dict[str, Any]) -> None:
    job = make_job(settings, *DISTILLED)
    assert job._teacher is not None
    images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    large = F.interpolate(images.float(), size=(48, 48), mode="bicubic", align_corners=False).clamp(0, 255)
    with torch.no_grad():
        wanted = job.model.backbone(job.model.preprocess(large))
    found = job._teacher.features("digits", "abcd", images)
    assert torch.allclose(found, wanted, rtol=2e-3, atol=2e-3)


def test_features_come_closer_to_the_teachers(settings: dict[str, Any]) -> None:
    job = make_job(settings, *DISTILLED, *PLAIN, "tasks.total=64", "optimiser.learning_rate=0.003")
    assert job._teacher is not None
    task = next(job._load_from(0))

    def distance() -> float:
        assert job._teacher is not None
        adapted = job.model.adapt(job.model.preprocess(task.context_images), task.context_labels)
        assert isinstance(adapted, Adapted)
        targets = adapted.features(job.model.preprocess(task.target_images))
        return job._teacher.loss(task, adapted, targets).item()

    before = distance()
    for step in range(12):
        job.step(step, never)
    job.close()
    assert distance() < 0.8 * before


def test_context_and_targets_are_both_taught(settings: dict[str, Any]) -> None:
    job = make_job(settings, *DISTILLED, *PLAIN)
    assert job._teacher is not None
    task = next(job._load_from(0))
    context = job.model.preprocess(task.context_images)
    adapted = job.model.adapt(context, task.context_labels, learn=True)
    assert isinstance(adapted, Adapted)
    targets = adapted.features(job.model.preprocess(task.target_images))
    keys = [*task.context_keys, *task.target_keys]
    wanted = job._teacher.features(task.collection, keys, torch.cat([task.context_images, task.target_images]))
    seen = torch.cat([adapted.features(context), targets])
    expected = 4 * (1 - F.cosine_similarity(seen, wanted)).mean()
    assert job._teacher.loss(task, adapted, targets).item() == pytest.approx(expected.item(), rel=1e-4)
    assert job._teacher.loss(task, adapted, targets.detach()).requires_grad, "the context alone teaches, too"


@pytest.mark.parametrize(
    "changes",
    [("distillation.collections=['letters']",), ("augmentation.rotate=1",), ("augmentation.outline=1",)],
    ids=["other data", "turned images", "outlines"],
)
def test_nothing_is_taught_on_images_that_the_teacher_does_not_know(
    settings: dict[str, Any], changes: tuple[str, ...]
) -> None:
    taught = gradients(make_job(settings, *DISTILLED, *PLAIN, *changes))
    alone = gradients(make_job(settings, *PLAIN, *(c for c in changes if not c.startswith("distillation."))))
    assert torch.equal(taught, alone)


def test_other_colours_and_less_detail_are_taught(settings: dict[str, Any]) -> None:
    changes = ("augmentation.invert=1", "augmentation.coarse=1", "augmentation.recolour=1")
    taught = gradients(make_job(settings, *DISTILLED, *PLAIN, *changes))
    assert not torch.allclose(taught, gradients(make_job(settings, *PLAIN, *changes)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (("distillation.weight=1",), "distillation.collections is empty"),
        (("distillation.weight=-1",), "distillation.weight must be 0"),
        ((*DISTILLED, "theta.mode=joint"), "theta.mode to be frozen"),
        ((*DISTILLED, "learner=tadam-style"), "distillation is for the learner cnaps, not for tadam"),
    ],
)
def test_a_teacher_that_cannot_teach_is_refused(
    settings: dict[str, Any], changes: tuple[str, ...], message: str
) -> None:
    import cnaps.paper.learners  # noqa: F401  as the command line does, which knows other learners

    with pytest.raises(InputError, match=message):
        make_job(settings, *changes)
