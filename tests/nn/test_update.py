"""An adapted task learns on without the images it has seen."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cnaps import CNAPs, ModelConfig
from cnaps.errors import InputError
from cnaps.nn.film import bind_folded

from ..conftest import small_backbone

HEADS = ["linear", "cosine", "mahalanobis", "ridge"]


def make_model(head: str) -> CNAPs:
    torch.manual_seed(0)
    backbone = small_backbone(8, 12, 16)
    model = CNAPs(ModelConfig(backbone="own", head=head, set_encoder_norm="none", spread=True), backbone)
    for generator in model.adaptation.generators:
        nn.init.normal_(generator.regulariser, 0, 0.3)
    return model


def make_task(count: int = 48, ways: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(count) % ways
    images = torch.randn(count, 3, 32, 32, generator=generator) + labels[:, None, None, None] / 3
    return images, labels * 10


@pytest.mark.parametrize("head", HEADS)
@torch.no_grad()
def test_fixed_updates_equal_seeing_everything_at_once_in_any_order(head):
    model = make_model(head)
    images, labels = make_task()
    start = model.adapt(images[:12], labels[:12])
    at_once = start.update(images[12:], labels[12:]).logits(images)
    for seed in range(3):
        order = 12 + torch.randperm(36, generator=torch.Generator().manual_seed(seed))
        adapted = start
        for part in order.split(5):
            adapted = adapted.update(images[part], labels[part])
        assert adapted.seen == 48
        torch.testing.assert_close(adapted.logits(images), at_once, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("head", HEADS)
@torch.no_grad()
def test_new_classes_take_their_place_among_the_old(head):
    model = make_model(head)
    images, labels = make_task()
    even = labels % 20 == 0
    adapted = model.adapt(images[even], labels[even]).update(images[~even], labels[~even])
    assert adapted.classes.tolist() == [0, 10, 20, 30, 40, 50]
    assert adapted.statistics.counts.tolist() == [8] * 6
    embedded = adapted.features(images)
    for k, label in enumerate(adapted.classes):
        mean = embedded[labels == label].double().mean(0)
        torch.testing.assert_close(adapted.statistics.means[k], mean, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_hundreds_of_updates_do_not_drift():
    model = make_model("cosine")
    images, labels = make_task()
    start = model.adapt(images, labels)
    adapted = start
    for i in range(600):
        adapted = adapted.update(images[i % 48][None], labels[i % 48][None])
    whole = model.adapt(images, labels)
    assert adapted.seen == 648
    mean_of_stream = whole.task_embedding.double()
    assert (adapted.task_embedding - mean_of_stream).abs().max() < 0.02 * mean_of_stream.abs().max()
    # 12 whole rounds and a part of one beside the first: exactly those weights, to double precision
    times = torch.tensor([1 + 600 // 48 + (i < 600 % 48) for i in range(48)]).double()
    embedded = torch.cat([start.features(image[None]) for image in images]).double()
    for k, label in enumerate(adapted.classes):
        own = labels == label
        later = (embedded[own] * (times[own] - 1)[:, None]).sum(0)
        first = start.statistics.means[k].double() * int(own.sum())
        expected = (later + first) / times[own].sum()
        torch.testing.assert_close(adapted.statistics.means[k], expected, atol=1e-9, rtol=1e-7)


@torch.no_grad()
def test_the_scatter_of_a_class_stays_bounded():
    model = make_model("mahalanobis")
    images, labels = make_task()
    adapted = model.adapt(images, labels)
    for _ in range(5):
        adapted = adapted.update(images, labels)
    assert max(len(rows) for rows in adapted.statistics.scatter) <= 16


@torch.no_grad()
def test_paper_mode_makes_film_anew_and_keeps_the_means_of_old_classes():
    model = make_model("linear")
    images, labels = make_task()
    old = labels < 30
    before = model.adapt(images[old], labels[old])
    after = before.update(images[~old], labels[~old], mode="paper")
    assert not torch.allclose(after.film.vector(), before.film.vector())
    torch.testing.assert_close(after.statistics.means[:3].float(), before.statistics.means)
    everything = model.adapt(images, labels)
    torch.testing.assert_close(after.task_embedding.float(), everything.task_embedding, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("head", HEADS)
@torch.no_grad()
def test_forgetting_a_class_is_as_if_its_statistics_had_never_been(head):
    model = make_model(head)
    images, labels = make_task()
    adapted = model.adapt(images, labels)
    adapted.logits(images)
    fewer = adapted.forget([20])
    assert fewer.classes.tolist() == [0, 10, 30, 40, 50]
    assert fewer.logits(images).shape == (48, 5)
    assert adapted.logits(images).shape == (48, 6)  # the original is untouched
    back = fewer.update(images[labels == 20], labels[labels == 20])
    torch.testing.assert_close(back.logits(images), adapted.logits(images), atol=1e-4, rtol=1e-4)
    with pytest.raises(InputError, match="no such class"):
        fewer.forget([20])
    with pytest.raises(InputError, match="every class"):
        fewer.forget(fewer.classes.tolist())


@pytest.mark.parametrize("mode", ["fixed", "paper"])
def test_what_read_the_examples_also_predicts_and_is_not_folded_again(mode, monkeypatch):
    calls = []
    monkeypatch.setattr("cnaps.nn.model.bind_folded", lambda *a, **k: calls.append(None) or bind_folded(*a, **k))
    model = CNAPs(ModelConfig.preset("reference"))
    images, labels = torch.rand(4, 3, 84, 84), torch.tensor([0, 0, 1, 1])
    parts = len(model.backbone.stages)
    with torch.no_grad():
        adapted = model.adapt(images, labels)
        adapted.logits(images)
        assert len(calls) == parts
        adapted.update(images, labels, mode=mode).logits(images)
    assert len(calls) == parts * (2 if mode == "paper" else 1)
