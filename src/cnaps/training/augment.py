"""Changes of images for training: the whole task alike, then each image by itself. All on uint8 tensors."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from cnaps.training.config import Augmentation


def augment_task(
    context: Tensor, targets: Tensor, options: Augmentation, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Change the images of a task, (N, 3, S, S) and (M, 3, S, S) uint8, square; labels stay as they are."""
    if options == Augmentation():
        return context, targets
    images = torch.cat([context, targets])
    images = _whole_task(images, options, generator)
    if options.duotone and torch.rand((), generator=generator) < options.duotone:
        images = _duotone(images, generator)
    if options.image_tasks == 1 or torch.rand((), generator=generator) < options.image_tasks:
        images = augment_images(
            images,
            crop=options.image_crop,
            jitter=options.image_jitter,
            flip=options.image_flip,
            turn=options.image_turn,
            blur=options.image_blur,
            generator=generator,
        )
    return images[: len(context)], images[len(context) :]


def _whole_task(images: Tensor, options: Augmentation, generator: torch.Generator) -> Tensor:
    # Every number is drawn whether or not it is used: switching one option leaves the others' draws alone.
    chance = torch.rand(7, generator=generator).tolist()
    turns = int(torch.randint(1, 4, (), generator=generator))
    order = torch.randperm(3, generator=generator)
    ends = torch.rand(2, 3, generator=generator)  # what black and white become, a channel
    side, left, top = torch.rand(3, generator=generator).tolist()
    coarse, outline, detail = torch.rand(3, generator=generator).tolist()
    if chance[0] < options.flip:
        images = images.flip(-1)
    if chance[1] < options.rotate:
        images = images.rot90(turns, (-2, -1))
    if chance[2] < options.zoom:
        size = images.shape[-1]
        cut = max(1, round(size * (options.min_zoom + side * (1 - options.min_zoom))))
        x, y = round(left * (size - cut)), round(top * (size - cut))
        crop = images[..., y : y + cut, x : x + cut].float()
        images = _to_uint8(F.interpolate(crop, size=(size, size), mode="bilinear", align_corners=False))
    if coarse < options.coarse:
        images = _to_uint8(_coarse(images.float(), 0.25 + 0.35 * detail))
    if outline < options.outline:
        grey = _grey(images.float())
        edges = F.max_pool2d(grey, 3, 1, 1) + F.max_pool2d(-grey, 3, 1, 1)  # the range within 3 x 3 pixels
        images = _to_uint8(2 * edges).expand_as(images)
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
    return images


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


def augment_images(
    images: Tensor,
    *,
    crop: float,
    jitter: float,
    flip: bool,
    generator: torch.Generator,
    turn: float = 0.0,
    blur: float = 0.0,
) -> Tensor:
    """Change each of (N, 3, S, S) uint8 images by itself: place, detail, brightness, contrast, saturation."""
    n = len(images)
    draws = torch.rand(n, 7, generator=generator).to(images.device)
    if flip:
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
