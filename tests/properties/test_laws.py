"""The laws of the model, on random tasks of real digits.

In double precision, where rounding is a millionth of what a broken law would do.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from torch import Tensor, nn

import cnaps
from cnaps import Adapted, CNAPs, ModelConfig
from cnaps.maths.statistics import ClassStatistics
from cnaps.nn.backbones import register_backbone
from cnaps.runtime.engine import open_engine
from cnaps.runtime.task import Examples, FittedTask, softmax
from cnaps.runtime.taskfile import read_task, write_task

from ..models import random_film, small_backbone

NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)
HEADS = ("linear", "cosine", "ridge", "mahalanobis")
law = settings(max_examples=6, derandomize=True, deadline=None, database=None, phases=[Phase.generate])


@pytest.fixture(autouse=True, scope="module")
def _double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


register_backbone("laws", lambda: small_backbone(6, 8, 10))


@cache
def model_of(head: str, adaptation: str = "film+ar", norm: str = "context") -> CNAPs:
    """A small model whose FiLM is far from the identity."""
    torch.manual_seed(1)
    config = ModelConfig(
        "laws", adaptation, head, features="all", embedding_size=6, set_encoder_norm=norm, spread=True
    )
    model = CNAPs(config)
    random_film(model, 0.4)
    for module in model.backbone.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.get_buffer("running_mean"), -0.3, 0.3)
            nn.init.uniform_(module.get_buffer("running_var"), 0.5, 1.5)
    return model


@cache
def digits() -> tuple[Tensor, np.ndarray]:
    data = load_digits()
    pixels = torch.from_numpy(data.images / 8 - 1)[:, None].expand(-1, 3, -1, -1)
    return nn.functional.interpolate(pixels, size=32, mode="nearest"), data.target


@dataclass
class Task:
    """Context and targets; every class occurs, some once."""

    images: Tensor
    labels: Tensor
    targets: Tensor

    def __repr__(self) -> str:
        return f"Task(labels={self.labels.tolist()})"


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    ways = draw(st.integers(2, 5))
    names = draw(st.lists(st.integers(-(10**6), 10**6), min_size=ways, max_size=ways, unique=True))
    shots = draw(st.lists(st.integers(1, 4), min_size=ways, max_size=ways))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    images, digit = digits()
    rows = np.concatenate([
        rng.choice(np.flatnonzero(digit == d), n, replace=False)
        for d, n in zip(rng.permutation(10)[:ways], shots, strict=True)
    ])  # fmt: skip
    labels = torch.tensor(np.repeat(names, shots))
    return Task(images[rows], labels, images[rng.integers(0, len(images), 3)])


def pixels(images: Tensor) -> np.ndarray:
    """As the engine reads them: 0..255."""
    return ((images + 1) * 127.5).numpy()


def examples(images: Tensor, labels: Tensor) -> Examples:
    return Examples(pixels(images), labels.tolist())


def same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


def same_task(found: Adapted, expected: Adapted, targets: Tensor) -> None:
    assert found.classes.tolist() == expected.classes.tolist()
    same(found.film.vector(), expected.film.vector())
    same(found.task_embedding, expected.task_embedding)
    same(found.logits(targets), expected.logits(targets))


@pytest.mark.parametrize("head", HEADS)
@given(task=tasks(), data=st.data(), adaptation=st.sampled_from(["none", "film", "film+ar"]))
@law
@torch.no_grad()
def test_the_order_of_the_context_does_not_matter(head, task, data, adaptation):
    order = torch.tensor(data.draw(st.permutations(range(len(task.labels)))))
    model = model_of(head, adaptation)
    expected = model.adapt(task.images, task.labels)
    same_task(model.adapt(task.images[order], task.labels[order]), expected, task.targets)


@pytest.mark.parametrize("head", HEADS)
@given(task=tasks(), chunk=st.integers(1, 25), norm=st.sampled_from(["context", "none"]))
@law
@torch.no_grad()
def test_how_the_context_is_cut_into_chunks_does_not_matter(head, task, chunk, norm):
    model = model_of(head, norm=norm)
    expected = model.adapt(task.images, task.labels, chunk_size=100)
    found = model.adapt(task.images, task.labels, chunk_size=chunk)
    same_task(found, expected, task.targets)
    same(found.logits(task.targets, chunk_size=1 + chunk % 3), expected.logits(task.targets))


@pytest.mark.parametrize("head", HEADS)
@given(task=tasks(), times=st.integers(2, 3))
@law
@torch.no_grad()
def test_the_whole_context_several_times_adapts_the_network_as_once(head, task, times):
    model = model_of(head)
    once = model.adapt(task.images, task.labels)
    often = model.adapt(task.images.repeat(times, 1, 1, 1), task.labels.repeat(times))
    same(often.film.vector(), once.film.vector())
    same(often.task_embedding, once.task_embedding)
    same(often.statistics.means, once.statistics.means)
    same(often.statistics.counts, once.statistics.counts * times)
    if head in ("linear", "cosine"):  # the others also weigh how many examples there are
        same(often.logits(task.targets), once.logits(task.targets))


@pytest.mark.parametrize("head", HEADS)
@given(task=tasks(), data=st.data())
@law
@torch.no_grad()
def test_other_names_for_the_classes_only_exchange_the_columns(head, task, data):
    model = model_of(head)
    before = model.adapt(task.images, task.labels)
    known = before.classes.tolist()
    names = data.draw(st.lists(st.integers(-99, 99), min_size=len(known), max_size=len(known), unique=True))
    new = dict(zip(known, names, strict=True))
    after = model.adapt(task.images, torch.tensor([new[label] for label in task.labels.tolist()]))
    assert after.classes.tolist() == sorted(names)
    column = [after.classes.tolist().index(new[label]) for label in known]
    same(after.logits(task.targets)[:, column], before.logits(task.targets))
    same(after.film.vector(), before.film.vector())


@pytest.mark.parametrize("head", HEADS)
@given(task=tasks(), more=tasks(), data=st.data())
@law
@torch.no_grad()
def test_the_order_and_size_of_updates_does_not_matter_while_film_is_frozen(head, task, more, data):
    start = FittedTask.learn(open_engine(model_of(head, norm="none")), examples(task.images, task.labels))
    names = [*start.names, *(int(name) + 1 for name in start.names)]  # some are known, some are new
    labels = torch.tensor(names)[more.labels % len(names)]
    at_once = start.update(examples(more.images, labels))
    order = torch.tensor(data.draw(st.permutations(range(len(labels)))))
    found = start
    for part in order.split(data.draw(st.integers(1, len(labels)))):
        found = found.update(examples(more.images[part], labels[part]))
    assert (found.names, found.seen) == (at_once.names, at_once.seen)
    same(torch.from_numpy(found.embedding), torch.from_numpy(at_once.embedding))
    one, other = (each.classifier(each.features(pixels(task.targets))) for each in (found, at_once))
    same(torch.from_numpy(one), torch.from_numpy(other))


@pytest.mark.parametrize("head", HEADS)
@given(task=tasks(), adaptation=st.sampled_from(["none", "film", "film+ar"]))
@law
def test_folding_norms_and_film_into_convolutions_changes_nothing(head, task, adaptation):
    model = model_of(head, adaptation)
    plain = model.adapt(task.images, task.labels, learn=True).logits(task.targets).detach()  # not folded
    with torch.no_grad():
        adapted = model.adapt(task.images, task.labels)
        same(adapted.logits(task.targets), plain)
        same(adapted.fold()(task.targets), plain)


@pytest.mark.parametrize("head", HEADS)
@given(task=tasks(), names=st.lists(NAMES, min_size=5, max_size=5, unique=True))
@law
@torch.no_grad()
def test_a_saved_task_is_the_same_task(head, task, names):
    model = model_of(head)
    adapted = model.adapt(task.images, task.labels)
    engine, chosen = open_engine(model), sorted(names[: len(adapted.classes)])
    s = adapted.statistics
    scatter = None if s.scatter is None else tuple(rows.numpy() for rows in s.scatter)
    statistics = ClassStatistics(s.counts.numpy(), s.means.numpy(), scatter)
    film, embedding = adapted.film.vector().numpy(), adapted.task_embedding.numpy()
    fitted = FittedTask(engine, chosen, film, statistics, embedding, len(task.labels), 32)
    with tempfile.TemporaryDirectory() as folder:
        write_task(Path(folder) / "task", fitted)
        again = read_task(Path(folder) / "task", model)
    assert (again.names, again.image_size) == (fitted.names, 32)
    np.testing.assert_allclose(again.film, film, atol=1e-6)  # as are all numbers of a file
    np.testing.assert_allclose(again.statistics.means, s.means.numpy(), atol=1e-6)  # kept in single precision
    # the scatter of a class is kept in half precision
    tolerance = 2e-2 if model.head.needs_scatter else 1e-5
    features = adapted.features(task.targets)
    found, expected = (
        softmax(each) for each in (again.classifier(features.numpy()), adapted.classify(features).numpy())
    )
    np.testing.assert_allclose(found, expected, atol=tolerance, rtol=0)


@given(
    head=st.sampled_from(HEADS),
    adaptation=st.sampled_from(["none", "film", "film+ar"]),
    seed=st.integers(0, 1000),
    notes=st.dictionaries(st.text(), st.one_of(st.integers(), st.text(), st.lists(st.floats(-9, 9)))),
)
@law
def test_a_saved_model_is_the_same_model(head, adaptation, seed, notes):
    torch.manual_seed(seed)
    torch.set_default_dtype(torch.float32)  # what weights are stored in
    model = CNAPs(ModelConfig("laws", adaptation, head, embedding_size=6))
    model.notes = notes
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model")
        again = cnaps.load_model(Path(folder) / "model")
    torch.set_default_dtype(torch.float64)
    assert again.fingerprint() == model.fingerprint()
    assert (again.config, again.notes) == (model.config, notes)
