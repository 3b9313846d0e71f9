"""The compared methods: each computes what its paper says, and forgets less than fine-tuning."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cnaps.errors import InputError
from cnaps.paper.continual import NETWORKS, create_continual
from cnaps.paper.continual.base import BATCH, Finetune, Quadratic, small_network
from cnaps.paper.continual.ewc import Ewc
from cnaps.paper.continual.rwalk import DECAY, SMALL, RiemannianWalk
from cnaps.paper.continual.si import DAMPING, SynapticIntelligence
from cnaps.paper.continual.vcl import START, Gaussian, Vcl
from cnaps.paper.experiments.continual import Benchmark, training_of


def tiny(kind, **options):
    torch.manual_seed(0)
    return kind(nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), 4, iterations=3, **options)


def step(digits, classes):
    pixels, labels = digits
    own = torch.isin(labels, torch.tensor(classes))
    return pixels[own], labels[own]


def follow(data, name, iterations):
    """After five steps of two digits: multi-head accuracy, how far it fell, single-head accuracy."""
    size = data[0].shape[-1]
    learner = create_continual(name, 10, model=None, size=size, grey=True, iterations=iterations, seed=0)
    steps = [step(data, [2 * i, 2 * i + 1]) for i in range(5)]

    def accuracy(i, first, last):
        x, y = steps[i]
        logits = learner.logits(x[-60:])[:, first:last]
        return (logits.argmax(1) + first == y[-60:]).double().mean().item()

    learned = []
    for i, (x, y) in enumerate(steps):
        learner.learn(x[:-60], y[:-60])
        learned.append(accuracy(i, 2 * i, 2 * i + 2))
    multi = sum(accuracy(i, 2 * i, 2 * i + 2) for i in range(5)) / 5
    return multi, sum(learned) / 5 - multi, sum(accuracy(i, 0, 10) for i in range(5)) / 5


@pytest.fixture(scope="module")
def mnist(shared):
    """The first 6,000 digits of MNIST, which are harder to keep apart than those of scikit-learn."""
    count = 6000
    with gzip.open(shared / "datasets" / "mnist-train-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read(16 + 784 * count)[16:], np.uint8).reshape(count, 1, 28, 28)
    with gzip.open(shared / "datasets" / "mnist-train-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(8 + count)[8:], np.uint8)
    return torch.from_numpy(pixels.copy()).expand(-1, 3, -1, -1), torch.from_numpy(labels.copy()).long()


@pytest.mark.slow
def test_every_method_forgets_less_than_finetuning(mnist):
    found = {name: follow(mnist, name, 100) for name in NETWORKS}
    for name in set(NETWORKS) - {"finetune"}:
        assert found[name][1] < found["finetune"][1], found
    for name in ("si", "ewc", "rwalk", "joint"):  # Gaussian weights take longer to learn the later steps
        assert found[name][0] > found["finetune"][0], found


def test_kept_examples_help_to_tell_classes_of_different_steps_apart(digits):
    assert follow(digits, "rwalk", 30)[2] > follow(digits, "finetune", 30)[2] + 0.1


def test_the_pull_is_the_gradient_of_the_quadratic_penalty():
    learner = tiny(Quadratic)
    for i, (weight, p) in enumerate(zip(learner.weights, learner.parameters, strict=True)):
        weight += i + 1.5
        p.data += torch.randn(p.shape, generator=torch.Generator().manual_seed(i))
    rows = list(zip(learner.weights, learner.parameters, learner.anchors, strict=True))
    penalty = learner.strength / 2 * sum((w * (p - a).square()).sum() for w, p, a in rows)
    for found, expected in zip(learner.pull(), torch.autograd.grad(penalty, learner.parameters), strict=True):
        torch.testing.assert_close(found, expected)


def test_a_benchmark_may_ask_for_another_strength_and_smaller_batches():
    given = training_of(Benchmark(2, True, 28, grey=True, batch=8, strengths={"si": 0.5}), "si", 3)
    learner = create_continual("si", 4, model=None, size=28, grey=True, seed=0, **given)
    assert isinstance(learner, SynapticIntelligence)
    assert (learner.strength, learner.batch, learner.iterations) == (0.5, 8, 3)
    assert "strength" not in training_of(Benchmark(2, True, 28, strengths={"si": 0.5}), "finetune", 3)


def test_fisher_information_is_the_mean_squared_gradient_of_single_examples(digits):
    learner = tiny(Ewc)
    images, labels = step(digits, [0, 1])
    learner.meet(labels)
    x = learner.prepare(images[:6])
    state = learner.generator.get_state()
    found = learner.fisher(x, labels[:6])
    learner.generator.set_state(state)
    with torch.no_grad():
        probabilities = learner.network(x)[:, :2].softmax(1)
    both = torch.cat([probabilities, torch.zeros(6, 2)], 1)
    drawn = torch.multinomial(both, 1, generator=learner.generator)[:, 0]
    sums = [torch.zeros_like(p) for p in learner.parameters]
    for i in range(6):
        loss = F.cross_entropy(learner.network(x[i : i + 1])[:, :2], drawn[i : i + 1])
        for total, g in zip(sums, torch.autograd.grad(loss, learner.parameters), strict=True):
            total += g.square() / 6
    for mine, expected in zip(found, sums, strict=True):
        torch.testing.assert_close(mine, expected, atol=1e-6, rtol=1e-4)


def test_synaptic_intelligence_adds_up_the_fall_of_the_loss_along_the_way():
    learner = tiny(SynapticIntelligence)
    start = [p.detach().clone() for p in learner.parameters]
    expected = [torch.zeros_like(p) for p in start]
    for i in range(3):
        generator = torch.Generator().manual_seed(i)
        gradients = [torch.randn(p.shape, generator=generator) for p in start]
        before = [p.detach().clone() for p in learner.parameters]
        for p, g, total in zip(learner.parameters, gradients, expected, strict=True):
            p.data -= 0.1 * g
            total += 0.1 * g.square()
        learner.follow(gradients, before)
    moved = [(p.detach() - old).square() for p, old in zip(learner.parameters, start, strict=True)]
    with torch.no_grad():
        learner.consolidate(torch.empty(0), torch.empty(0))
    for weight, total, distance in zip(learner.weights, expected, moved, strict=True):
        torch.testing.assert_close(weight, total / (distance + DAMPING), atol=1e-5, rtol=1e-4)


def test_riemannian_walk_divides_the_gain_by_the_distance_in_the_metric():
    learner = tiny(RiemannianWalk)
    before = [p.detach().clone() for p in learner.parameters]
    gradients = [torch.full_like(p, 2.0) for p in before]
    for p in learner.parameters:
        p.data -= 0.5
    learner.follow(gradients, before)
    fisher = (1 - DECAY) * 4.0
    for mine, gain in zip(learner.fisher, learner.gains, strict=True):
        torch.testing.assert_close(mine, torch.full_like(mine, fisher))
        torch.testing.assert_close(gain, torch.full_like(gain, 1.0 / (0.5 * fisher * 0.25 + SMALL)))
    with torch.no_grad():
        learner.consolidate(torch.zeros(2, 1, 8, 8), torch.tensor([0, 1]))
    for weight in learner.weights:  # all alike: both parts scale to one
        torch.testing.assert_close(weight, torch.full_like(weight, 2.0))
    assert learner.memory.labels.tolist() == [0, 1]


def test_every_class_so_far_has_the_same_say_in_the_loss_of_riemannian_walk(digits):
    learner = tiny(RiemannianWalk)
    first, second = step(digits, [0, 1]), step(digits, [2])
    learner.learn(*first)
    learner.meet(second[1])
    x, labels = learner.prepare(second[0]), second[1]
    state = learner.generator.get_state()
    found = learner.loss(x, labels)
    learner.generator.set_state(state)
    kept = torch.randint(len(learner.memory.labels), (BATCH,), generator=learner.generator)
    logits = [learner.network(images)[:, :3] for images in (x, learner.memory.x[kept])]
    now, before = F.cross_entropy(logits[0], labels), F.cross_entropy(logits[1], learner.memory.labels[kept])
    torch.testing.assert_close(found, now / 3 + before * 2 / 3)


def test_the_pull_of_gaussian_weights_is_the_gradient_of_the_divergence_from_their_prior():
    torch.manual_seed(0)
    learner = tiny(Vcl)
    learner.examples = 7
    layer = learner.layers[0]
    with torch.no_grad():
        for mean, log in layer.posterior():
            mean += torch.randn_like(mean) / 50
            log += torch.randn_like(log)
    divergences = [
        torch.distributions.kl_divergence(
            torch.distributions.Normal(mean, (log / 2).exp()),
            torch.distributions.Normal(old, (old_log / 2).exp()),
        ).sum()
        for (mean, log), (old, old_log) in zip(layer.posterior(), layer.prior, strict=True)
    ]
    expected = torch.autograd.grad(torch.stack(divergences).sum() / 7, learner.parameters)
    for found, gradient in zip(learner.pull(), expected, strict=True):
        torch.testing.assert_close(found, gradient)


def test_a_head_waits_at_its_start_until_its_classes_come_and_has_a_wide_prior_then(digits):
    learner = tiny(Vcl)
    layer = learner.layers[0]
    start = [(mean.clone(), log.clone()) for mean, log in layer.prior]
    learner.learn(*step(digits, [0, 1]))
    for (mean, log), old in zip(layer.posterior(), start, strict=True):
        assert torch.equal(mean[2:], old[0][2:])
        assert torch.equal(log[2:], old[1][2:])
        assert not torch.equal(mean[:2], old[0][:2])
    learned = [(mean.detach().clone(), log.detach().clone()) for mean, log in layer.posterior()]
    learner.meet(torch.tensor([2, 3]))
    for (mean, log), posterior in zip(layer.prior, learned, strict=True):
        assert not mean[2:].any()
        assert not log[2:].any()
        assert torch.equal(mean[:2], posterior[0][:2])
        assert torch.equal(log[:2], posterior[1][:2])


def test_a_step_of_gaussian_weights_starts_anew_and_keeps_what_it_knows_as_the_prior(digits, monkeypatch):
    learner = tiny(Vcl)
    learner.learn(*step(digits, [0, 1]))
    layer = learner.layers[0]
    learned = [(mean.detach().clone(), log.detach().clone()) for mean, log in layer.posterior()]
    monkeypatch.setattr(learner, "train", lambda x, labels: None)  # only the start
    monkeypatch.setattr(layer, "remember", lambda: None)
    learner.learn(*step(digits, [1, 2]))
    for (mean, log), (old_mean, old_log), prior in zip(layer.posterior(), learned, layer.prior, strict=True):
        assert torch.equal(log[1:3], torch.full_like(log[1:3], START))
        assert not torch.equal(mean[1], old_mean[1])
        assert torch.equal(mean[0], old_mean[0])
        assert torch.equal(log[0], old_log[0])
        assert torch.equal(prior[0][:2], old_mean[:2])
        assert torch.equal(prior[1][:2], old_log[:2])
    assert [learner.rate(done) for done in (0.0, 0.5)] == [0.005, 0.0025]


def test_outputs_of_a_gaussian_layer_vary_as_its_weights_do():
    torch.manual_seed(0)
    layer = Gaussian(nn.Conv2d(2, 1, 3, padding=1))
    x = torch.randn(1, 2, 4, 4)
    with torch.no_grad():
        drawn = torch.stack([layer(x) for _ in range(4000)])
        for mean, log in layer.posterior():
            mean.zero_(), log.fill_(-4.0)
        variance = F.conv2d(x.square(), torch.full((1, 2, 3, 3), 0.0183156), torch.tensor([0.0183156]), padding=1)
        again = torch.stack([layer(x) for _ in range(4000)])
    assert drawn.std(0).max() < again.std(0).max()
    torch.testing.assert_close(again.var(0), variance, atol=0.02, rtol=0.1)


@pytest.mark.parametrize("method", [Finetune, SynapticIntelligence, Ewc])
def test_a_network_learns_the_same_however_its_weights_lie_in_memory(method, digits):
    x, labels = step(digits, [0, 1])
    x = F.interpolate(x.float(), 32).byte().expand(-1, 3, -1, -1)
    found = []
    for layout in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(0)
        network = small_network(2, 32, grey=False).to(memory_format=layout)  # type: ignore[call-overload]
        learner = method(network, 2, iterations=10)
        learner.learn(x[:100], labels[:100])
        found.append(learner.logits(x[:50]))
    torch.testing.assert_close(*found, atol=0.01, rtol=0.01)


def test_a_coreset_is_held_out_and_leaves_the_posterior_alone(digits):
    learner = tiny(Vcl, coreset=True)
    images, labels = step(digits, [0, 1])
    learner.learn(images, labels)
    assert learner.memory.labels.bincount().tolist() == [20, 20]
    before = [p.detach().clone() for p in learner.parameters]
    logits = learner.logits(images[:5])
    assert logits.shape == (5, 4)
    torch.testing.assert_close(logits, learner.logits(images[:5]))
    for p, old in zip(learner.parameters, before, strict=True):
        assert torch.equal(p, old)


def test_an_unknown_method_is_refused():
    with pytest.raises(InputError, match="there are: cnaps-fixed"):
        create_continual("lwf", 4, model=None, size=8, grey=True, iterations=1, seed=0)
