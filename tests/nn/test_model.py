"""The laws of the model: what must hold for every task, backbone and head."""

from __future__ import annotations

import tarfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cnaps
from cnaps import CNAPs, ModelConfig
from cnaps.errors import CheckpointError, InputError
from cnaps.nn.backbones import Backbone, register_backbone
from cnaps.nn.backbones.base import MapMean
from cnaps.nn.context import Context

from ..models import random_film

HEADS = ("linear", "cosine", "ridge", "mahalanobis")
REFERENCE = ModelConfig.preset("reference")


def block(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())


def small_backbone() -> Backbone:
    """A network of somebody's own, unknown to the package."""
    torch.manual_seed(7)
    return Backbone(block(3, 8), [block(8, 12), block(12, 16)], image_size=32)


register_backbone("small", small_backbone)
SMALL = ModelConfig(backbone="small", embedding_size=16)


def small_model(strength: float = 0.3, **changes: Any) -> CNAPs:
    """A small model whose FiLM really does something: R of a trained size, norms with statistics."""
    model = CNAPs(replace(SMALL, **changes))
    torch.manual_seed(1)
    with torch.no_grad():
        random_film(model, strength)
        for module in model.backbone.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.get_buffer("running_mean").normal_(0, 0.2)
                module.get_buffer("running_var").uniform_(0.5, 1.5)
    return model


def small_task(count: int = 14, ways: int = 4, size: int = 32, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(count, 3, size, size, generator=generator)
    labels = torch.tensor([10, -3, 7, 500])[torch.arange(count) % ways]
    return images, labels, torch.randn(5, 3, size, size, generator=generator)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("adaptation", ["none", "film", "film+ar"])
def test_logits_do_not_depend_on_the_order_or_the_chunks_of_the_context(head: str, adaptation: str) -> None:
    model = small_model(head=head, adaptation=adaptation)
    images, labels, targets = small_task()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        expected = model.adapt(images, labels).logits(targets)
        shuffled = model.adapt(images[order], labels[order]).logits(targets)
        chunked = [model.adapt(images, labels, chunk_size=k).logits(targets) for k in (1, 3, 100)]
    for logits in (shuffled, *chunked):
        torch.testing.assert_close(logits, expected, atol=2e-5, rtol=2e-4)


@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize("norm", ["none", "context"])
def test_the_set_encoder_and_spread_do_not_depend_on_order_or_chunks(norm: str, spread: bool) -> None:
    model = small_model(
        set_encoder_norm=norm, spread=spread, set_encoder_size=32, generator_width=8, features="all"
    )
    images, labels, targets = small_task(size=48)
    with torch.no_grad():
        whole, parts = (
            model.adapt(images, labels, chunk_size=99),
            model.adapt(images.flip(0), labels.flip(0), chunk_size=2),
        )
        torch.testing.assert_close(whole.task_embedding, parts.task_embedding, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(whole.logits(targets), parts.logits(targets), atol=2e-5, rtol=2e-4)


def test_the_context_norms_of_the_set_encoder_are_those_of_one_large_batch() -> None:
    encoder = CNAPs(SMALL).set_encoder
    assert encoder is not None
    torch.manual_seed(0)
    for norm in encoder.norms:
        nn.init.normal_(norm.get_parameter("weight"))  # signs of both kinds
        nn.init.normal_(norm.get_parameter("bias"))
    images = torch.randn(6, 3, 40, 40)
    plain = images
    for conv, norm in zip(encoder.convs, encoder.norms, strict=True):
        plain = nn.functional.max_pool2d(torch.relu(norm(conv(plain))), 2)
    torch.testing.assert_close(encoder(images, 4), plain.mean((2, 3)), atol=1e-5, rtol=1e-4)


def test_resnet18_has_7680_film_numbers_and_a_new_model_starts_near_identity() -> None:
    torch.manual_seed(0)
    model = CNAPs(REFERENCE)
    with torch.no_grad():
        adapted = model.adapt(*small_task(size=84)[:2])
        plain = model.backbone(small_task(size=84)[2])
        features = adapted.features(small_task(size=84)[2])
    assert len(adapted.film) == 7680
    gamma, beta = adapted.film.stages[0][0]
    assert (gamma - 1).abs().max() < 0.01
    assert beta.abs().max() < 0.01
    torch.testing.assert_close(features, plain, atol=0.02, rtol=0.05)


def test_labels_may_be_any_integers_and_classes_are_sorted() -> None:
    images, labels, targets = small_task()
    with torch.no_grad():
        adapted = small_model().adapt(images, labels)
    assert adapted.classes.tolist() == [-3, 7, 10, 500]
    assert adapted.logits(targets).shape == (5, 4)
    assert set(adapted.predict(targets).tolist()) <= {-3, 7, 10, 500}


def test_two_tasks_of_one_model_keep_their_own_answers_also_in_threads() -> None:
    model = small_model()
    tasks = [small_task(seed=seed) for seed in range(4)]
    with torch.no_grad():
        expected = [model.adapt(images, labels).logits(targets) for images, labels, targets in tasks]
    wrong: list[int] = []

    def work(i: int) -> None:
        images, labels, targets = tasks[i]
        with torch.no_grad():
            for _ in range(10):
                if not torch.allclose(model.adapt(images, labels).logits(targets), expected[i], atol=1e-5):
                    wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_adapting_leaves_the_model_as_it_was() -> None:
    model = small_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    images, labels, targets = small_task()
    model.adapt(images, labels, learn=True).logits(targets).sum().backward()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.backbone.parameters())
    unused = [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert unused == []


@pytest.mark.parametrize("head", HEADS)
def test_folding_gives_a_plain_network_with_the_same_logits(head: str) -> None:
    model = small_model(head=head, features="all" if head != "linear" else "last")
    images, labels, targets = small_task()
    adapted = model.adapt(images, labels, learn=True)
    folded = adapted.fold()
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.modules())
    assert all(m.bias is not None for m in folded.modules() if isinstance(m, nn.Conv2d))
    with torch.no_grad():
        torch.testing.assert_close(folded(targets), adapted.logits(targets), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("head", HEADS)
def test_a_model_round_trips_bit_for_bit(head: str, tmp_path: Path) -> None:
    model = small_model(head=head)
    model.save(tmp_path / "model")
    again = cnaps.load_model(tmp_path / "model")
    assert again.config == model.config
    assert again.fingerprint() == model.fingerprint()
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name


def test_an_unregistered_backbone_is_passed_in_when_loading(tmp_path: Path) -> None:
    model = CNAPs(replace(SMALL, backbone="nobody knows it"), backbone=small_backbone())
    model.save(tmp_path / "model")
    with pytest.raises(InputError, match="no backbone named"):
        cnaps.load_model(tmp_path / "model")
    again = cnaps.load_model(tmp_path / "model", backbone=small_backbone())
    assert again.fingerprint() == model.fingerprint()


def test_recomputed_activations_give_the_same_gradients() -> None:
    images, labels, targets = small_task()
    gradients = []
    for checkpoint in (False, True):
        model = small_model()
        adapted = model.adapt(images, labels, learn=True, chunk_size=4, checkpoint=checkpoint)
        adapted.logits(targets).sum().backward()
        gradients.append([p.grad for p in model.phi_parameters()])
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(recomputed, plain, atol=1e-4, rtol=1e-3)


def test_a_readout_of_a_random_subset_has_the_exact_value_and_the_right_gradient_on_average() -> None:
    weight = torch.ones(3, requires_grad=True)
    images = torch.arange(8 * 3, dtype=torch.float32).view(8, 3, 1, 1)
    total = torch.zeros(3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(400):
        context = Context(images, learn=True, chunk_size=3, lite=2, generator=generator)
        context.run(lambda x: x * weight[:, None, None])
        pooled = context.readout(MapMean())
        assert torch.equal(pooled, images[:, :, 0, 0])
        total += torch.autograd.grad(pooled.sum(), weight)[0]
    torch.testing.assert_close(total / 400, images.sum((0, 2, 3)), rtol=0.1, atol=0)


def test_batch_statistics_are_used_when_asked_for() -> None:
    model = small_model(backbone_norm="batch").train()
    images, labels, targets = small_task()
    with torch.no_grad():
        a = model.adapt(images, labels)
        together, alone = a.logits(targets), a.logits(targets[:2])
    assert (together[:2] - alone).abs().max() > 1e-3
    with pytest.raises(InputError, match="cannot be folded"):
        a.fold()


def content(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()


def test_imagenet_weights_load_exactly_and_recognise_photographs(shared: Path) -> None:
    """At 128 pixels the backbone with its own classifier names most of a few photographs out of 1,000 classes."""
    from cnaps.images.decoding import load_image, to_array
    from cnaps.nn.backbones import create_backbone
    from cnaps.nn.backbones.efficientnet import imagenet_classifier

    backbone, classifier = create_backbone("efficientnet_lite0").load_pretrained(), imagenet_classifier()
    with tarfile.open(shared / "datasets" / "ilsvrc-val.tar") as archive:
        names = sorted(name for name in archive.getnames() if "." in name.rsplit("/", 1)[-1])
        classes = sorted({name.split("/")[-2] for name in names})
        chosen = names[::50]
        arrays = [to_array(load_image(content(archive, name)), 160) for name in chosen]
    pixels = torch.stack([torch.tensor(a) for a in arrays]).permute(0, 3, 1, 2)
    with torch.no_grad():
        predicted = classifier(backbone(backbone.normalisation(pixels))).argmax(1)
    truth = torch.tensor([classes.index(name.split("/")[-2]) for name in chosen])
    assert (predicted == truth).float().mean() > 0.4


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.zeros(3, 32, 32), torch.zeros(3), r"add a dimension"),
        (torch.zeros(2, 1, 32, 32), torch.zeros(2), "3 channels"),
        (torch.zeros(2, 3, 32, 32, dtype=torch.uint8), torch.zeros(2), "preprocess"),
        (torch.zeros(0, 3, 32, 32), torch.zeros(0), "empty"),
        (torch.zeros(2, 3, 8, 8), torch.zeros(2).long(), "too small"),
        (torch.zeros(2, 3, 32, 32), torch.zeros(3).long(), r"shape \(2,\)"),
        (torch.zeros(2, 3, 32, 32), torch.zeros(2), "integers"),
        (torch.full((2, 3, 32, 32), float("nan")), torch.zeros(2).long(), "first in image 0"),
        (torch.full((2, 3, 32, 32), float("inf")), torch.zeros(2).long(), "NaN or infinity"),
        ([[1.0]], torch.zeros(2).long(), "torch.Tensor"),
    ],
)
def test_wrong_input_is_refused_with_what_to_do(images: Tensor, labels: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        small_model().adapt(images, labels)


def test_a_set_encoder_below_its_smallest_size_is_refused() -> None:
    with pytest.raises(InputError, match="32 pixels or more"):
        CNAPs(replace(SMALL, set_encoder_size=16))


@pytest.mark.parametrize(
    "field", ["adaptation", "head", "features", "set_encoder_norm", "backbone_norm", "backbone"]
)
def test_an_unknown_choice_is_refused_with_the_choices_there_are(field: str) -> None:
    with pytest.raises(InputError, match="there are"):
        CNAPs(replace(SMALL, **dict[str, Any]({field: "nonsense"})))


def test_a_damaged_model_is_refused_and_named(tmp_path: Path) -> None:
    model = small_model()
    model.save(tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged"):
        cnaps.load_model(tmp_path / "model")
    weights.unlink()
    with pytest.raises(CheckpointError, match="is missing"):
        cnaps.load_model(tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    config.write_text("{}")
    with pytest.raises(CheckpointError, match="no configuration of a cnaps model"):
        cnaps.load_model(tmp_path / "model")
    config.write_text('{"format": "cnaps-model", "version": 99}')
    with pytest.raises(CheckpointError, match="newer version"):
        cnaps.load_model(tmp_path / "model")
    with pytest.raises(CheckpointError, match="no model at"):
        cnaps.load_model(tmp_path / "nowhere")


def test_weights_that_do_not_fit_are_named() -> None:
    from cnaps.nn.checkpoints import load_weights

    model = small_model()
    state = dict(model.state_dict())
    del state["head.weight_net.0.weight"]
    state["head.weight_net.0.bias"] = torch.zeros(3)
    state["stranger"] = torch.zeros(1)
    with pytest.raises(CheckpointError) as raised:
        load_weights(model, state, "file.safetensors")
    for part in (
        "missing: head.weight_net.0.weight",
        "unexpected: stranger",
        "misshaped: head.weight_net.0.bias (3,)",
    ):
        assert part in str(raised.value)


class Attack:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        import os

        return os.system, ("touch /tmp/cnaps-was-attacked",)


def test_a_checkpoint_that_would_run_code_is_refused(tmp_path: Path) -> None:
    torch.save({"state_dict": Attack()}, tmp_path / "bad.pt")
    (tmp_path / "text.pt").write_text("not a checkpoint")
    for name in ("bad.pt", "text.pt", "absent.pt"):
        with pytest.raises(CheckpointError):
            cnaps.from_reference(tmp_path / name)
    with pytest.raises(CheckpointError, match="neither"):
        cnaps.from_reference({"weight": torch.zeros(2)})
    assert not Path("/tmp/cnaps-was-attacked").exists()


def test_a_published_backbone_alone_is_imported() -> None:
    torch.manual_seed(0)
    source = CNAPs(REFERENCE).backbone.state_dict()
    theirs = {}
    for key, value in source.items():
        key = key.replace("stem.0", "conv1").replace("stem.1", "bn1")
        if key.startswith("stages."):
            _, stage, rest = key.split(".", 2)
            key = f"layer{int(stage) + 1}.{rest}"
        theirs[f"module.{key}"] = value
    theirs["module.fc.weight"] = torch.zeros(712, 512)
    model = cnaps.from_reference({"state_dict": theirs})
    assert all(torch.equal(value, source[name]) for name, value in model.backbone.state_dict().items())
    broken = {k: v for k, v in theirs.items() if "layer3.0.conv1" not in k}
    with pytest.raises(CheckpointError, match=r"missing: stages\.2\.0\.conv1\.weight"):
        cnaps.from_reference({"state_dict": broken})


def test_a_shipped_model_is_half_as_large_and_takes_its_backbone_from_the_package(tmp_path: Path) -> None:
    from cnaps.cli import main

    config = ModelConfig(backbone="efficientnet_lite0", head="cosine", generator_width=4, embedding_size=4)
    model = CNAPs(config)
    model.backbone.load_pretrained()
    model.save(tmp_path / "whole")
    with pytest.raises(SystemExit):
        main(["ship", str(tmp_path / "whole"), str(tmp_path / "small")])
    shipped = cnaps.load_model(tmp_path / "small")
    assert (tmp_path / "small" / "model.safetensors").stat().st_size < 1e6
    for name, value in model.backbone.state_dict().items():
        assert torch.equal(shipped.backbone.state_dict()[name], value)
    torch.testing.assert_close(shipped.head.log_temperature, model.head.log_temperature, atol=1e-2, rtol=1e-2)
    with torch.no_grad():
        model.backbone.stem.get_parameter("0.weight")[0] += 1
    model.save(tmp_path / "changed")
    with pytest.raises(SystemExit) as leaving:
        main(["ship", str(tmp_path / "changed"), str(tmp_path / "refused")])
    assert leaving.value.code == 2
    assert not (tmp_path / "refused").exists()


def test_a_changed_or_loaded_backbone_is_used_at_once() -> None:
    images, labels, targets = small_task()
    model, other = small_model(), small_model()
    with torch.no_grad():
        before = model.adapt(images, labels).logits(targets)
        for value in other.backbone.parameters():
            value.mul_(1.5)
        changed = other.adapt(images, labels).logits(targets)
        assert not torch.allclose(before, changed)
        model.load_state_dict(other.state_dict())
        torch.testing.assert_close(model.adapt(images, labels).logits(targets), changed)
