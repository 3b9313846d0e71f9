"""Heads and class statistics against computations by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from cnaps.maths.heads import RidgeClassifier, few_shot_bias
from cnaps.maths.statistics import ClassStatistics
from cnaps.nn.heads import CosineHead, LinearHead, MahalanobisHead, RidgeHead


def features(count: int = 12, size: int = 20, ways: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, size, generator=generator), torch.arange(count) % ways


def explicit_mahalanobis(context: Tensor, labels: Tensor, x: Tensor) -> Tensor:
    """The published formula with d x d matrices."""

    def covariance(rows: Tensor) -> Tensor:
        centred = rows - rows.mean(0)
        return centred.T @ centred / max(len(rows) - 1, 1)

    columns = []
    for k in range(int(labels.max()) + 1):
        own = context[labels == k]
        share = len(own) / (len(own) + 1)
        s = share * covariance(own) + (1 - share) * covariance(context) + torch.eye(context.shape[1])
        gap = x - own.mean(0)
        columns.append(-(gap @ torch.linalg.inv(s) * gap).sum(1))
    return torch.stack(columns, 1)


@pytest.mark.parametrize(("count", "size"), [(12, 20), (40, 8), (3, 20)], ids=["wide", "tall", "one shot"])
@pytest.mark.parametrize("gradients", [False, True])
def test_mahalanobis_equals_the_explicit_inverse(count: int, size: int, gradients: bool) -> None:
    context, labels = features(count, size)
    x = torch.randn(7, size, generator=torch.Generator().manual_seed(5))
    context.requires_grad_(gradients)
    with torch.set_grad_enabled(gradients):
        statistics = ClassStatistics.of(context, labels, 3, scatter=True)
        logits = MahalanobisHead([size]).classifier(statistics)(x)
    torch.testing.assert_close(logits, explicit_mahalanobis(context, labels, x), atol=1e-3, rtol=1e-3)


def test_mahalanobis_has_the_gradient_of_the_explicit_formula() -> None:
    context, labels = features()
    x = torch.randn(7, 20, generator=torch.Generator().manual_seed(5))
    gradients = []
    for explicit in (False, True):
        leaf = context.clone().requires_grad_()
        if explicit:
            logits = explicit_mahalanobis(leaf, labels, x)
        else:
            logits = MahalanobisHead([leaf.shape[1]]).classifier(
                ClassStatistics.of(leaf, labels, 3, scatter=True)
            )(x)
        gradients.append(torch.autograd.grad(logits.softmax(1)[:, 0].sum(), leaf)[0])
    torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(("count", "size"), [(12, 20), (40, 8)])
def test_ridge_equals_balanced_regression_on_the_examples(count: int, size: int) -> None:
    torch.manual_seed(0)
    context, _ = features(count, size)
    labels = torch.tensor([0, 1, 1, 2] * (count // 4))  # class 1 has twice as many
    head = RidgeHead([size // 2, size - size // 2])
    torch.nn.init.normal_(head.centring)
    with torch.no_grad():
        embedded = head.embed(context)
        classifier = head.classifier(ClassStatistics.of(embedded, labels, 3, scatter=True))
        assert isinstance(classifier, RidgeClassifier)
        v = (embedded - classifier.centre) * classifier.weight
        counts = torch.bincount(labels).float()
        balance = (counts.mean() / counts)[labels][:, None]
        wanted = torch.nn.functional.one_hot(labels, 3).float() - 1 / 3
        system = v.T @ (v * balance) + head.log_ridge.exp() * torch.eye(size)
        by_hand = torch.linalg.solve(system, (v * balance).T @ wanted).T * head.log_temperature.exp()[0]
    torch.testing.assert_close(classifier.regression, by_hand, atol=1e-4, rtol=1e-3)


def test_cosine_without_centring_is_the_cosine_to_the_mean_of_unit_features() -> None:
    context, labels = features()
    head = CosineHead([20], temperature=4.0)
    torch.nn.init.constant_(head.centring, -100.0)
    x = torch.randn(5, 20)
    with torch.no_grad():
        logits = head.classifier(ClassStatistics.of(head.embed(context), labels, 3, scatter=False))(head.embed(x))
        unit = context / context.norm(dim=1, keepdim=True)
        for k in range(3):
            expected = 4 * torch.cosine_similarity(x, unit[labels == k].mean(0)[None])
            torch.testing.assert_close(logits[:, k], expected)


def test_linear_head_takes_any_number_of_classes() -> None:
    head = LinearHead([20], bias_width=1)
    for ways in (1, 2, 11):
        context, labels = features(22, ways=ways)
        with torch.no_grad():
            classifier = head.classifier(ClassStatistics.of(context, labels, ways, scatter=False))
        assert classifier(context).shape == (22, ways)


@pytest.mark.parametrize("scatter", [False, True])
def test_merged_statistics_are_those_of_the_union_in_any_order(scatter: bool) -> None:
    x, labels = features(60, 6, 4)
    whole = ClassStatistics.of(x, labels, 4, scatter=scatter)
    for order in (torch.arange(60), torch.randperm(60, generator=torch.Generator().manual_seed(1))):
        running, known = ClassStatistics(torch.zeros(0), torch.zeros(0, 6), () if scatter else None), []
        for part in order.split(5):
            here, index = labels[part].unique(return_inverse=True)
            known += [k for k in here.tolist() if k not in known]
            place = [known.index(k) for k in here.tolist()]
            new = ClassStatistics.of(x[part], index, len(here), scatter=scatter)
            running = running.merge(new, place, len(known))
        running = running.select([known.index(k) for k in range(4)])
        torch.testing.assert_close(running.counts.float(), whole.counts)
        torch.testing.assert_close(running.means.float(), whole.means)
        for mine, one in zip(running.scatter or (), whole.scatter or (), strict=True):
            assert len(mine) <= 6
            torch.testing.assert_close((mine.T @ mine).float(), one.T @ one, atol=1e-3, rtol=1e-3)


def test_classes_of_few_examples_are_given_what_they_lack_and_equal_ones_nothing() -> None:
    deviation, spread, size, ridge, temperature = map(np.array, (90.0, 9.0, 3.0, 0.4, [8.0, 5.0]))
    rest = size, ridge, temperature
    assert few_shot_bias(np.array([5.0, 5.0, 5.0]), deviation, spread, *rest).tolist() == [0, 0, 0]
    counts = np.array([1.0, 5.0, 20.0, 100.0])
    found = few_shot_bias(counts, deviation, spread, *rest)
    assert (np.diff(found) < 0).all()
    assert found[-1] == 0
    same = few_shot_bias(*(torch.from_numpy(each) for each in (counts, deviation, spread, *rest)))
    np.testing.assert_allclose(same.numpy(), found)
    nothing_to_see = few_shot_bias(counts, deviation, np.array(0.1), *rest)  # classes do not differ
    assert nothing_to_see.tolist() == [0, 0, 0, 0]
    weak = few_shot_bias(counts, deviation / 1e5, spread / 1e5, *rest)  # all images look alike: answers are weak
    assert weak.max() < 0.01 * found.max()


def test_one_example_beside_many_is_found() -> None:
    """Classes around their own directions: without help every image of the lone one goes to the others."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(4, 64, generator=generator)

    def draw(counts: list[int]) -> tuple[Tensor, Tensor]:
        labels = torch.repeat_interleave(torch.arange(4), torch.tensor(counts))
        return centres[labels] + 2.0 * torch.randn(len(labels), 64, generator=generator), labels

    head = RidgeHead([64])
    context, labels = draw([1, 20, 20, 20])
    asked, truth = draw([100] * 4)
    with torch.no_grad():
        made = head.classifier(ClassStatistics.of(head.embed(context), labels, 4, scatter=True))
        assert isinstance(made, RidgeClassifier)
        logits = made(head.embed(asked))
    lone, found, plain = truth == 0, logits.argmax(1) == truth, (logits - made.bias).argmax(1) == truth
    assert found[lone].float().mean() > plain[lone].float().mean() + 0.2
    assert found.float().mean() > plain.float().mean()
