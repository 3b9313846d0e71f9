"""Changes of images for training: the whole task alike, then each image by itself. All on uint8 tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from cnaps.training.config import Augmentation


class ChangedTask(NamedTuple):
    """The images of a task after the changes."""

    context: Tensor
    targets: Tensor
    whole: bool  # things are still to be seen as a whole and upright, in whatever colours and sharpness


def augment_task(
    context: Tensor, targets: Tensor, options: Augmentation, generator: torch.Generator
) -> ChangedTask:
    """Change the images of a task, (N, 3, S, S) and (M, 3, S, S) uint8, square; labels stay as they are."""
    if options == Augmentation():
        return ChangedTask(context, targets, True)
    images = torch.cat([context, targets])
    chosen = options.plate > 0 and float(torch.rand((), generator=generator)) < options.plate
    plates = chosen and _is_ink(images)
    if plates:
        images = _on_plates(images, generator)
    images, whole = _whole_task(images, options, generator)
    if options.duotone and torch.rand((), generator=generator) < options.duotone:
        images = _duotone(images, generator)
    if options.image_tasks == 1 or torch.rand((), generator=generator) < options.image_tasks:
        images = augment_images(images, options, generator)
    return ChangedTask(images[: len(context)], images[len(context) :], whole and not plates)


def _whole_task(images: Tensor, options: Augmentation, generator: torch.Generator) -> tuple[Tensor, bool]:
    # Every number is drawn whether or not it is used: switching one option leaves the others' draws alone.
    chance = torch.rand(7, generator=generator).tolist()
    turns = int(torch.randint(1, 4, (), generator=generator))
    order = torch.randperm(3, generator=generator)
    ends = torch.rand(2, 3, generator=generator)  # what black and white become, a channel
    side, left, top = torch.rand(3, generator=generator).tolist()
    coarse, outline, detail = torch.rand(3, generator=generator).tolist()
    if chance[0] < options.flip:
        images = images.flip(-1)
    whole = True
    if chance[1] < options.rotate:
        images, whole = images.rot90(turns, (-2, -1)), False
    if chance[2] < options.zoom:
        size = images.shape[-1]
        cut = max(1, round(size * (options.min_zoom + side * (1 - options.min_zoom))))
        x, y = round(left * (size - cut)), round(top * (size - cut))
        crop = images[..., y : y + cut, x : x + cut].float()
        images = _to_uint8(F.interpolate(crop, size=(size, size), mode="bilinear", align_corners=False))
        whole &= cut >= 0.75 * size
    if coarse < options.coarse:
        images = _to_uint8(_coarse(images.float(), 0.25 + 0.35 * detail))
    if outline < options.outline:
        grey = _grey(images.float())
        edges = F.max_pool2d(grey, 3, 1, 1) + F.max_pool2d(-grey, 3, 1, 1)  # the range within 3 x 3 pixels
        images, whole = _to_uint8(2 * edges).expand_as(images), False
    if chance[3] < options.greyscale:
        images = _grey(images.float()).round().to(torch.uint8).expand_as(images)
    if chance[4] < options.permute_channels:
        images = images[:, order.to(images.device)]
    if chance[5] < options.recolour:
        low, high = ends.to(images.device)[..., None, None]  # (3, 1, 1)
        # Keep at least 0.3 between the two ends, or the picture would vanish in its own background.
        high = torch.where((high - low).abs() < 0.3, (low + 0.5) % 1.0, high)
        images = _to_uint8(255 * low + (high - low) * images.float())
    if chance[6] < options.invert:
        images = 255 - images
    return images, whole


def _duotone(images: Tensor, generator: torch.Generator) -> Tensor:
    """Dark becomes one colour and bright another, as things look that are painted or lit in many ways."""
    n, size = len(images), images.shape[-1]
    grey = _grey(images.float()) / 255
    low, high = grey.amin((2, 3), keepdim=True), grey.amax((2, 3), keepdim=True)
    share = (grey - low) / (high - low).clamp_min(0.05)
    # two fields of slowly varying colour for each image, which have more or less in common between the images
    cells = int(torch.randint(1, 4, (), generator=generator))
    own = torch.rand((), generator=generator)
    common = torch.rand(2, 1, 3, 1, 1, generator=generator)
    fields = torch.lerp(common, torch.rand(2, n, 3, cells, cells, generator=generator), own).to(images.device)
    one, other = (F.interpolate(field, size=(size, size), mode="bilinear", align_corners=True) for field in fields)
    # dark stays darker than bright in every place
    dark, bright = 0.75 * torch.minimum(one, other), 0.25 + 0.75 * torch.maximum(one, other)
    return _to_uint8(255 * torch.lerp(dark, bright, share))


def _is_ink(images: Tensor) -> bool:
    """Whether most images are characters or drawings: without colour, and mostly an even ground."""
    values = images.float()
    colourless = (values.amax(1) - values.amin(1)).amax((1, 2)) < 8
    grey = _grey(values).flatten(1)
    even = ((grey - grey.median(1, keepdim=True).values).abs() < 16).float().mean(1) > 0.4
    return bool((colourless & even).float().mean() > 0.8)


def _on_plates(images: Tensor, generator: torch.Generator) -> Tensor:
    """Ink painted on a plate: one design for a task, each image in its own scene."""
    n, size, device = len(images), images.shape[-1], images.device

    def draw(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator).to(device)

    # where each pixel of each image lies on its plate, whose rim is at a distance of 1
    stretch = 0.95 + 0.35 * draw(n, 2)
    angle, lean, shift = 0.15 * (2 * draw(n) - 1), 0.2 * (2 * draw(n) - 1), 0.12 * (2 * draw(n, 2) - 1)
    place = torch.zeros(n, 2, 3, device=device)
    place[:, 0, 0], place[:, 0, 1] = stretch[:, 0] * angle.cos(), stretch[:, 0] * (lean - angle.sin())
    place[:, 1, 0], place[:, 1, 1] = stretch[:, 1] * angle.sin(), stretch[:, 1] * angle.cos()
    place[:, :, 2] = shift
    uv = F.affine_grid(place, [n, 1, size, size], align_corners=False)  # (N, S, S, 2)
    chances = draw(3).tolist()
    sides, border, inner = int(3 + 6 * chances[0]), 0.25 * chances[1], 0.5 + 0.25 * chances[2]
    turn = math.pi * (0.5 + int(torch.randint(0, 2, (), generator=generator)) + 1 / sides)
    corners = torch.arange(sides, device=device) * (2 * math.pi / sides) + turn
    across = torch.stack([corners.cos(), corners.sin()])  # (2, sides)
    distance = (uv @ across).amax(-1) * (1.15 if sides < 5 else 1.0) if sides < 8 else uv.norm(dim=-1)
    plate = torch.sigmoid((1 - distance) * 25)[:, None]
    face = torch.sigmoid((1 - border - distance) * 25)[:, None]

    grey = _grey(images.float())
    ink = (grey - grey.flatten(1).median(1).values[:, None, None, None]).abs()
    ink = ink / ink.amax((2, 3), keepdim=True).clamp_min(1)
    ink = F.grid_sample(ink, uv / inner, mode="bilinear", padding_mode="zeros", align_corners=False)

    colours = draw(3, 1, 3, 1, 1)  # of the face, the border and the ink
    alike = (colours[0] - colours[2]).abs().mean() < 0.35
    colours[2] = torch.where(alike, (colours[0] + 0.5) % 1.0, colours[2])
    painted = torch.lerp(colours[1], torch.lerp(colours[0], colours[2], ink), face)
    picture = torch.lerp(_scenes(n, size, draw), painted, plate)
    light = torch.exp(-1.2 * draw(n, 1, 2, 2).square()) * (0.6 + 0.4 * draw(n, 1, 1, 1))
    haze = 0.5 * draw(n, 3, 1, 1)
    picture = picture * F.interpolate(light, size=(size, size), mode="bilinear", align_corners=False)
    picture = torch.lerp(picture, haze.expand_as(picture), 0.5 * draw(n, 1, 1, 1))
    return _to_uint8(255 * torch.lerp(picture, _coarse(picture, 0.22), draw(n, 1, 1, 1)))


def _scenes(n: int, size: int, draw: Callable[..., Tensor]) -> Tensor:
    """Something to stand before: colours (N, 3, S, S) of 0..1 that vary from place to place."""
    parts = []
    for cells in (1, 2, 4, 8, 16):
        field = (draw(n, 3, cells, cells) - 0.5) / (1 + cells / 8)
        parts.append(F.interpolate(field, size=(size, size), mode="bilinear", align_corners=False))
    scene = torch.stack(parts).sum(0)
    scene = torch.lerp(scene, scene.mean(1, keepdim=True), draw(n, 1, 1, 1).sqrt())  # many are almost grey
    return (0.5 + scene).clamp(0, 1)


def augment_images(images: Tensor, options: Augmentation, generator: torch.Generator) -> Tensor:
    """Change each of (N, 3, S, S) uint8 images by itself: place, detail, brightness, contrast, saturation."""
    n, crop, turn = len(images), options.image_crop, options.image_turn
    blur, jitter = options.image_blur, options.image_jitter
    draws = torch.rand(n, 7, generator=generator).to(images.device)
    if options.image_flip:
        images = torch.where((draws[:, 0] < 0.5)[:, None, None, None], images.flip(-1), images)
    if not (crop or jitter or turn or blur):
        return images
    values = images.float()
    if crop > 0 or turn > 0:
        side = 1 - crop * draws[:, 1]  # of the window, relative to the image
        shift = (2 * draws[:, 2:4] - 1) * (1 - side)[:, None]  # (N, 2) in [-1, 1] coordinates
        theta = torch.zeros(n, 2, 3, device=images.device)
        angle = torch.zeros(n, device=images.device)
        if turn > 0:
            angle = turn * math.pi / 2 * (2 * torch.rand(n, generator=generator).to(images.device) - 1)
        theta[:, 0, 0] = theta[:, 1, 1] = side * angle.cos()
        theta[:, 0, 1], theta[:, 1, 0] = -side * angle.sin(), side * angle.sin()
        theta[:, :, 2] = shift
        grid = F.affine_grid(theta, list(images.shape), align_corners=False)
        values = F.grid_sample(values, grid, mode="bilinear", padding_mode="border", align_corners=False)
    if blur > 0:
        share = blur * torch.rand(n, generator=generator).to(images.device)[:, None, None, None]
        values = torch.lerp(values, _coarse(values, 0.2), share)
    if jitter > 0:
        low = math.log1p(-min(jitter, 0.99))
        brightness, contrast, saturation = torch.exp(low * (2 * draws[:, 4:7] - 1))[..., None, None].unbind(1)
        values = values * brightness[..., None]
        centre = values.mean((1, 2, 3), keepdim=True)
        values = centre + (values - centre) * contrast[..., None]
        grey = _grey(values)
        values = grey + (values - grey) * saturation[..., None]
    return _to_uint8(values)


def _coarse(values: Tensor, share: float) -> Tensor:
    """Shrunk to a share of their side and enlarged again."""
    small = F.interpolate(values, scale_factor=share, mode="area")
    return F.interpolate(small, size=values.shape[-2:], mode="bilinear", align_corners=False)


def _grey(values: Tensor) -> Tensor:
    weights = torch.tensor([0.299, 0.587, 0.114], device=values.device).view(1, 3, 1, 1)
    return (values * weights).sum(1, keepdim=True)


def _to_uint8(values: Tensor) -> Tensor:
    return values.round().clamp_(0, 255).to(torch.uint8)
