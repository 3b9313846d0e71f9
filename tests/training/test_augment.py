from __future__ import annotations

import dataclasses

import pytest
import torch

from cnaps.training.augment import augment_images, augment_task
from cnaps.training.config import Augmentation
from cnaps.training.settings import build
from cnaps.training.tasks import task_generator

TASK_LEVEL = ("flip", "rotate", "invert", "permute_channels", "recolour", "greyscale", "zoom")


@pytest.fixture
def images() -> torch.Tensor:
    """Six different pictures: a bright square at another place in another colour each."""
    pictures = torch.full((6, 3, 32, 32), 20, dtype=torch.uint8)
    for i, picture in enumerate(pictures):
        picture[i % 3, 4 * i : 4 * i + 8, 3 * i : 3 * i + 8] = 220
    return pictures


@pytest.mark.parametrize("name", TASK_LEVEL)
def test_a_change_of_the_task_changes_every_image_alike(name: str, images: torch.Tensor) -> None:
    options = build(Augmentation, {name: 1.0})
    # The second permutation of channels drawn may be the identity: look at several tasks.
    changed = False
    for index in range(4):
        context, targets, _ = augment_task(images, images, options, task_generator(0, index))
        assert context.dtype == torch.uint8
        assert context.shape == images.shape
        assert torch.equal(context, targets), "the same picture looks the same in context and targets"
        changed |= not torch.equal(context, images)
    assert changed


def test_an_image_by_itself_is_changed_independently(images: torch.Tensor) -> None:
    same = images[:1].repeat(8, 1, 1, 1)
    options = Augmentation(image_crop=0.3, image_jitter=0.4, image_flip=True)
    context, targets, _ = augment_task(same, same, options, task_generator(0, 0))
    everything = torch.cat([context, targets]).flatten(1)
    assert len(torch.unique(everything, dim=0)) == 16


@pytest.mark.parametrize("options", [{"image_turn": 0.3}, {"image_blur": 0.9}, {"duotone": 1.0}])
def test_each_image_is_turned_blurred_or_coloured_in_its_own_way(
    options: dict[str, float], images: torch.Tensor
) -> None:
    same = images[:1].repeat(8, 1, 1, 1)
    context, targets, _ = augment_task(same, same, build(Augmentation, options), task_generator(0, 0))
    everything = torch.cat([context, targets]).flatten(1)
    assert len(torch.unique(everything, dim=0)) == 16


def test_in_two_colours_what_was_brighter_stays_brighter(images: torch.Tensor) -> None:
    for index in range(20):
        context, *_ = augment_task(images, images, Augmentation(duotone=1.0), task_generator(2, index))
        grey = context.float().mean(1)
        inside = images.amax(1) > 100
        for picture, mask in zip(grey, inside, strict=True):
            assert picture[mask].min() > picture[~mask].min()
            assert picture[mask].mean() > picture[~mask].mean()


def test_only_a_share_of_the_tasks_has_images_changed_by_themselves(images: torch.Tensor) -> None:
    options = Augmentation(image_tasks=0.5, image_jitter=0.5)
    made = (augment_task(images, images, options, task_generator(3, index))[0] for index in range(40))
    changed = sum(not torch.equal(context, images) for context in made)
    assert 8 < changed < 32


def test_no_augmentation_is_the_identity(images: torch.Tensor) -> None:
    context, *_ = augment_task(images, images, Augmentation(), task_generator(0, 0))
    assert context is images


def test_the_same_seed_and_index_make_the_same_pictures(images: torch.Tensor) -> None:
    options = build(Augmentation, dict.fromkeys(TASK_LEVEL, 0.5) | {"image_crop": 0.2, "image_jitter": 0.2})
    first, again, other = (
        torch.cat(augment_task(images, images, options, task_generator(7, index))[:2]) for index in (3, 3, 4)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_switching_one_change_on_leaves_the_others_as_they_were(images: torch.Tensor) -> None:
    with_flip = Augmentation(invert=0.5, flip=1.0)
    without = dataclasses.replace(with_flip, flip=0.0)
    for index in range(6):
        a, *_ = augment_task(images, images, with_flip, task_generator(1, index))
        b, *_ = augment_task(images, images, without, task_generator(1, index))
        assert torch.equal(a, b.flip(-1))


def test_recoloured_pictures_stay_visible(images: torch.Tensor) -> None:
    for index in range(30):
        context, *_ = augment_task(images, images, Augmentation(recolour=1.0), task_generator(2, index))
        contrast = context.amax((1, 2, 3)).int() - context.amin((1, 2, 3)).int()
        assert contrast.min() >= 40


def test_a_crop_keeps_the_middle_of_a_plain_picture_plain() -> None:
    plain = torch.full((3, 3, 16, 16), 90, dtype=torch.uint8)
    changes = Augmentation(image_crop=0.5, image_flip=True)
    cropped = augment_images(plain, changes, torch.Generator().manual_seed(0))
    assert torch.equal(cropped, plain)


def strokes() -> torch.Tensor:
    """White crosses and bars on black, as characters are stored."""
    pictures = torch.zeros(8, 3, 48, 48, dtype=torch.uint8)
    pictures[:, :, 8:40, 22:26] = 255
    pictures[::2, :, 22:26, 8:40] = 255
    return pictures


def test_ink_is_painted_on_plates_each_in_its_own_scene() -> None:
    ink = strokes()
    context, targets, whole = augment_task(ink, ink, Augmentation(plate=1.0), task_generator(0, 1))
    assert not whole, "a painted character is not what stands in the file"
    everything = torch.cat([context, targets]).flatten(1)
    assert len(torch.unique(everything, dim=0)) == 16
    assert (context.float().amax(1) - context.float().amin(1)).mean() > 10, "there are colours"


def test_what_was_painted_can_still_be_told_apart() -> None:
    kinds = torch.arange(8) % 2
    found = []
    for index in range(12):
        context, targets, _ = augment_task(strokes(), strokes(), Augmentation(plate=1.0), task_generator(4, index))
        # how much the middle row changes left of the bar: only a cross has ink there
        middle, above = context[:, :, 23:25, 14:20].float(), context[:, :, 14:18, 14:20].float()
        contrast = (middle.mean((2, 3)) - above.mean((2, 3))).abs().sum(1)
        found.append(contrast[kinds == 0].mean() > contrast[kinds == 1].mean())
        assert targets.shape == context.shape
    assert sum(found) >= 10


def test_photographs_are_not_painted_on_plates(images: torch.Tensor) -> None:
    noise = torch.randint(0, 256, (6, 3, 32, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    for pictures in (noise, images):
        context, _, whole = augment_task(pictures, pictures, Augmentation(plate=1.0), task_generator(0, 0))
        assert torch.equal(context, pictures)
        assert whole


@pytest.mark.parametrize(
    ("options", "whole"),
    [({"rotate": 1.0}, False), ({"outline": 1.0}, False), ({"invert": 1.0, "coarse": 1.0, "duotone": 1.0}, True)],
)
def test_a_task_knows_whether_things_are_still_seen_as_a_whole(
    options: dict[str, float], whole: bool, images: torch.Tensor
) -> None:
    assert augment_task(images, images, build(Augmentation, options), task_generator(0, 0)).whole is whole


def test_a_small_window_does_not_show_things_as_a_whole(images: torch.Tensor) -> None:
    options = Augmentation(zoom=1.0, min_zoom=0.4)
    seen = {augment_task(images, images, options, task_generator(0, index)).whole for index in range(30)}
    assert seen == {True, False}
    near = Augmentation(zoom=1.0, min_zoom=0.9)
    assert all(augment_task(images, images, near, task_generator(0, index)).whole for index in range(10))
