"""Convolution, norm, FiLM and activation as one operation compute what they compute apart."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from cnaps import CNAPs, ModelConfig
from cnaps.errors import InputError
from cnaps.nn.backbones import create_backbone
from cnaps.nn.film import bind, fold, foldable_units, unite
from cnaps.nn.fused import FusedConv2d, LearningConv2d, can_fuse


def random_stage(name: str, stage: int) -> tuple[nn.Module, list, list[str], Tensor]:
    """A stage with norms that do something, its units and FiLM sites, and activations to give it."""
    torch.manual_seed(0)
    backbone = create_backbone(name)
    for norm in [m for m in backbone.modules() if isinstance(m, nn.BatchNorm2d)]:
        nn.init.normal_(norm.weight, 1, 0.3)
        nn.init.normal_(norm.bias, 0, 0.5)
        nn.init.normal_(norm.get_buffer("running_mean"), 0, 0.3)
    images = torch.randn(5, backbone.channels[stage], 12, 12).to(memory_format=torch.channels_last)
    return backbone.stages[stage], backbone.stage_units[stage], backbone.sites[stage], images


def random_film(module: nn.Module, sites: list[str]) -> list[tuple[Tensor, Tensor]]:
    """Some gammas are negative."""
    channels = [len(module.get_parameter(f"{site}.weight")) for site in sites]
    return [(torch.rand(c) - 0.3, torch.randn(c)) for c in channels]


def gradients(module: nn.Module, images: Tensor, others: Sequence[Tensor]) -> tuple[Tensor, ...]:
    images = images.clone().requires_grad_()
    result = module(images)
    weights = torch.linspace(-1, 1, result.numel()).view(result.shape)
    return result.detach(), *torch.autograd.grad((result * weights).sum(), [images, *others])


needs_kernels = pytest.mark.skipif(
    not can_fuse(nn.Conv2d(1, 1, 1)), reason="this torch is older than the one the kernels were written for"
)


@needs_kernels
@pytest.mark.parametrize(
    ("name", "stage"), [("resnet18", 1), ("efficientnet_lite0", 1), ("efficientnet_lite0", 2)]
)
def test_a_united_stage_has_the_results_and_gradients_of_its_parts(name, stage):
    module, units, sites, images = random_stage(name, stage)
    film = random_film(module, sites)
    learned = [value.requires_grad_() for site in film for value in site]
    learned += [p.requires_grad_() for p in module.parameters()]
    united = unite(bind(module, sites, film), units)
    assert sum(isinstance(m, LearningConv2d) for m in united.modules()) == len(units) > 0
    apart = gradients(bind(module, sites, film), images, learned)
    for one, other in zip(gradients(united, images, learned), apart, strict=True):
        torch.testing.assert_close(one, other, atol=2e-3 * other.abs().max().item(), rtol=1e-3)


@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("kept", [0, 1], ids=["every norm folded", "one norm left as it is"])
@pytest.mark.parametrize("name", ["resnet18", "efficientnet_lite0"])
def test_a_folded_stage_with_film_is_the_stage_with_film(name, kept, fuse):
    module, units, sites, images = random_stage(name, 1)
    film = random_film(module, sites)
    with torch.no_grad():
        expected = bind(module, sites, film)(images)
        found = fold(bind(module, sites, film), units[kept:], fuse=fuse)(images)
        untouched = fold(module, units[kept:])(images)
    torch.testing.assert_close(found, expected, atol=1e-4 * expected.abs().max().item(), rtol=1e-3)
    torch.testing.assert_close(untouched, module(images).detach(), atol=1e-3, rtol=1e-3)


def test_an_activation_in_place_that_is_no_part_of_a_unit_leaves_gradients_right():
    class Shared(nn.Module):
        """One activation used twice, as published residual networks have it."""

        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
            self.c, self.d, self.relu = nn.BatchNorm2d(4), nn.BatchNorm2d(4), nn.ReLU(inplace=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.relu(self.d(self.b(self.relu(self.c(self.a(x))))))

    torch.manual_seed(0)
    stage = Shared().eval()
    images = torch.randn(3, 4, 8, 8)
    units, _ = foldable_units(stage, images)
    assert [unit.activation for unit in units] == [None, None]
    learned = list(stage.parameters())
    for one, other in zip(
        gradients(unite(stage, units), images, learned), gradients(stage, images, learned), strict=True
    ):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


def test_norms_that_learn_from_the_batch_are_not_united():
    module, units, _, images = random_stage("resnet18", 1)
    module.train()
    united = unite(module, units)
    assert not any(isinstance(m, LearningConv2d) for m in united.modules())
    before = module.get_buffer("0.bn1.running_mean").clone()
    united(images)
    assert not torch.equal(module.get_buffer("0.bn1.running_mean"), before)


def test_a_norm_that_starts_at_zero_still_learns():
    torch.manual_seed(0)
    stage = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)).eval()
    images = torch.randn(2, 3, 8, 8)
    units, _ = foldable_units(stage, images)
    nn.init.zeros_(stage.get_parameter("1.weight"))
    learned = list(stage.parameters())
    united = gradients(unite(stage, units), images, learned)
    for one, other in zip(united, gradients(stage, images, learned), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)
    assert united[4].abs().min() > 0.01  # of the norm's weight


@needs_kernels
@pytest.mark.parametrize("name", ["resnet18", "efficientnet_lite0"])
def test_without_the_kernels_everything_is_computed_by_layers_of_torch_to_the_same_end(name, monkeypatch):
    torch.manual_seed(0)
    model = CNAPs(ModelConfig(backbone=name, head="cosine", embedding_size=8, generator_width=8))
    if model.backbone.pretrained is not None:
        model.backbone.load_pretrained()  # random ones let almost nothing through
    images, labels = torch.randn(6, 3, 64, 64), torch.tensor([0, 0, 1, 1, 2, 2])
    found = []
    for kernels in ("fused", "plain"):
        monkeypatch.setenv("CNAPS_KERNELS", kernels)
        with torch.no_grad():
            adapted = model.adapt(images, labels)
            logits = adapted.logits(images)
        used = any(isinstance(m, FusedConv2d) for m in adapted.network.modules())
        learning = model.adapt(images, labels, learn=True)
        loss = nn.functional.cross_entropy(learning.logits(images), labels)
        parameters = [p for p in model.phi_parameters() if p.requires_grad]
        used_to_learn = any(isinstance(m, LearningConv2d) for m in learning.network.modules())
        assert used == used_to_learn == (kernels == "fused")
        gradient = torch.autograd.grad(loss, parameters, allow_unused=True)
        found.append((logits, torch.cat([g.flatten() for g in gradient if g is not None])))
    for fused, plain in zip(*found, strict=True):
        assert (fused - plain).norm() < 0.01 * plain.norm()


def test_an_unknown_choice_of_kernels_is_refused(monkeypatch):
    monkeypatch.setenv("CNAPS_KERNELS", "fast")
    with pytest.raises(InputError, match=r"CNAPS_KERNELS cannot be 'fast': it is fused .* or plain"):
        create_backbone("resnet18")
