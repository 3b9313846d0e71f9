"""A task learns on for thousands of updates: bounded, in any order, without drift, and as a small file."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from cnaps.maths.statistics import RANK, ClassStatistics, in_shared_basis, strongest
from cnaps.runtime.engine import open_engine
from cnaps.runtime.task import Examples, FittedTask
from cnaps.runtime.taskfile import read_task, write_task


def enlarged(digits, count):
    pixels, labels = digits
    return F.interpolate(pixels[:count].float(), size=32).byte(), labels[:count]


@pytest.mark.parametrize("head", ["ridge", "mahalanobis"])
@torch.no_grad()
def test_a_thousand_merges_classify_as_one_batch_does(make_model, digits, head):
    model = make_model(head)
    pixels, labels = enlarged(digits, 1300)
    x = model.preprocess(pixels)
    features = model.adapt(x[:50], labels[:50]).features(x)
    first, last = features[:1050], features[1050:]
    running = ClassStatistics.of(first[:50], labels[:50], 10, scatter=True)
    for i in range(50, 1050):
        one = ClassStatistics.of(first[i : i + 1], torch.zeros(1, dtype=torch.long), 1, scatter=True)
        running = running.merge(one, labels[i : i + 1].tolist(), 10)
    exact = ClassStatistics.of(first.double(), labels[:1050], 10, scatter=True)
    assert running.counts.sum() == 1050
    assert running.scatter is not None
    assert 64 <= max(len(rows) for rows in running.scatter) <= 2 * RANK
    torch.testing.assert_close(running.means, exact.means, atol=1e-9, rtol=1e-7)
    found = model.head.classifier(running)(last).softmax(1)
    wanted = model.head.classifier(exact)(last).softmax(1)
    assert (found - wanted).abs().max() < 0.02
    assert (found.argmax(1) == wanted.argmax(1)).double().mean() > 0.995


def test_hundreds_of_updates_of_a_task_equal_one_update(make_model, digits):
    pixels, labels = (part.numpy() for part in enlarged(digits, 250))

    def some(rows):
        return Examples(pixels[rows], labels[rows].tolist())

    start = FittedTask.learn(open_engine(make_model()), some(slice(50)))
    by_one = start
    for i in range(50, 250):
        by_one = by_one.update(some(slice(i, i + 1)))
    at_once = start.update(some(slice(50, None)))
    assert by_one.seen == at_once.seen == 250
    np.testing.assert_allclose(by_one.embedding, at_once.embedding, atol=1e-6, rtol=1e-5)
    one, other = (task.classifier(task.features(pixels)) for task in (by_one, at_once))
    np.testing.assert_allclose(one, other, atol=1e-3, rtol=1e-3)


@torch.no_grad()
def test_below_the_bound_any_order_gives_the_same_scatter(digits):
    pixels, labels = digits
    chosen = torch.cat([torch.nonzero(labels == k).flatten()[:60] for k in range(3)])
    x, y = pixels[chosen].flatten(1).double() / 255, labels[chosen]
    whole = ClassStatistics.of(x, y, 3, scatter=True)
    for seed in range(2):
        order = torch.randperm(180, generator=torch.Generator().manual_seed(seed))
        running = ClassStatistics(torch.zeros(0), torch.zeros(0, x.shape[1]).double(), ())
        known: list[int] = []
        for part in order.split(7):
            here, index = y[part].unique(return_inverse=True)
            known += [k for k in here.tolist() if k not in known]
            place = [known.index(k) for k in here.tolist()]
            running = running.merge(ClassStatistics.of(x[part], index, len(here), scatter=True), place, len(known))
        assert running.scatter is not None
        assert whole.scatter is not None
        for k in range(3):
            mine, one = running.scatter[known.index(k)], whole.scatter[k]
            torch.testing.assert_close(mine.T @ mine, one.T @ one, atol=1e-9, rtol=1e-9)


def test_the_strongest_rows_keep_as_much_of_the_scatter_as_any_so_few_can(digits):
    rows = digits[0][:90].flatten(1).double()
    rows = rows - rows.mean(0)
    values = torch.linalg.eigvalsh(rows.T @ rows)
    kept = strongest(rows, 10)
    assert kept.shape == (10, rows.shape[1])
    lost = torch.linalg.matrix_norm(rows.T @ rows - kept.T @ kept, 2)
    torch.testing.assert_close(lost, values[-11])  # no ten rows can lose less


def test_a_shared_basis_keeps_given_directions_exactly(digits):
    pixels, labels = digits
    rows = pixels[:, 0].flatten(1).double() / 255
    factors = tuple(rows[labels == k][:40] - rows[labels == k][:40].mean(0) for k in range(4))
    directions = torch.randn(5, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    basis, coordinates = in_shared_basis(factors, directions, 20, 20)
    assert basis.shape == (20, 64)
    for factor, mine in zip(factors, coordinates, strict=True):
        exact = directions @ factor.T @ factor @ directions.T
        torch.testing.assert_close(directions @ basis.T @ mine.T @ mine @ basis @ directions.T, exact)


@pytest.mark.parametrize("head", ["ridge", "mahalanobis"])
@torch.no_grad()
def test_an_updated_task_of_many_examples_is_a_small_file_that_predicts_alike(make_model, digits, head, tmp_path):
    model = make_model(head)
    pixels, labels = enlarged(digits, 1000)
    first = labels < 5
    names = labels.tolist()

    def some(mask):
        return Examples(
            pixels[mask].numpy(), [name for name, own in zip(names, mask.tolist(), strict=True) if own]
        )

    task = FittedTask.learn(open_engine(model), some(first)).update(some(~first))
    before = task.probabilities(task.features(pixels.numpy()))
    sizes = []
    for examples in (task, task.update(some(first | ~first))):
        path = tmp_path / f"{examples.seen}.safetensors"
        write_task(path, examples)
        sizes.append(path.stat().st_size)
    assert sizes[1] <= 1.02 * sizes[0]  # twice the examples, no more to write
    loaded = read_task(tmp_path / "1000.safetensors", model)
    after = loaded.probabilities(loaded.features(pixels.numpy()))
    assert (after.argmax(1) == before.argmax(1)).mean() >= 0.998
    assert abs(after - before).max() < 0.05
    more = loaded.update(some(first))
    assert more.seen == 1000 + int(first.sum())
    direct = task.update(some(first))
    gap = more.probabilities(more.features(pixels.numpy())) - direct.probabilities(direct.features(pixels.numpy()))
    assert abs(gap).max() < 0.1
