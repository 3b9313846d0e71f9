"""LoRA: terms of the backbone's convolutions that all tasks share."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import cnaps
from cnaps import CNAPs, ModelConfig
from cnaps.errors import InputError

CONFIG = ModelConfig(
    backbone="efficientnet_lite0", head="ridge", embedding_size=8, set_encoder_norm="none", generator_width=8
)


@pytest.fixture(scope="module")
def task() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(6, 3, 32, 32, generator=generator), torch.arange(6) % 3


def model(rank: int) -> CNAPs:
    torch.manual_seed(0)
    made = CNAPs(ModelConfig(**{**vars(CONFIG), "lora_rank": rank}))
    made.backbone.load_pretrained()
    return made


def change(model: CNAPs) -> None:
    assert model.lora is not None
    torch.manual_seed(1)
    with torch.no_grad():
        for outer in model.lora.outer:
            outer.normal_(0, 0.05)


def features(model: CNAPs, task: tuple[Tensor, Tensor]) -> Tensor:
    return model.adapt(*task, learn=torch.is_grad_enabled()).features(task[0])


def test_new_terms_leave_the_backbone_as_it_was(task: tuple[Tensor, Tensor]) -> None:
    with torch.no_grad():
        torch.testing.assert_close(features(model(4), task), features(model(0), task))


def test_terms_are_those_of_the_weights_with_and_without_gradients(task: tuple[Tensor, Tensor]) -> None:
    joined, by_hand = model(4), model(0)
    change(joined)
    assert joined.lora is not None
    place = 0
    with torch.no_grad():
        for stage, names in zip(by_hand.backbone.stages, joined.lora.names, strict=True):
            for name in names:
                term = joined.lora.outer[place] @ joined.lora.inner[place]
                stage.get_submodule(name).weight += term[:, :, None, None]
                place += 1
        expected = features(by_hand, task)
        torch.testing.assert_close(features(joined, task), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(features(joined, task).detach(), expected, atol=1e-5, rtol=1e-4)


def test_weights_that_changed_are_seen_by_the_next_task(task: tuple[Tensor, Tensor]) -> None:
    trained = model(4)
    with torch.no_grad():
        before = features(trained, task)
        change(trained)
        assert not torch.allclose(features(trained, task), before, atol=1e-3)


def test_training_changes_the_terms_and_never_the_backbone(task: tuple[Tensor, Tensor]) -> None:
    trained = model(4)
    assert trained.lora is not None
    theta = {name: value.clone() for name, value in trained.backbone.state_dict().items()}
    optimiser = torch.optim.SGD(trained.phi_parameters(), lr=0.1)
    for _ in range(2):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(trained.adapt(*task, learn=True).logits(task[0]), task[1])
        loss.backward()
        optimiser.step()
    assert all(outer.abs().max() > 0 for outer in trained.lora.outer)
    assert all(torch.equal(value, theta[name]) for name, value in trained.backbone.state_dict().items())


def test_a_model_with_terms_ships_without_its_backbone_and_folds(
    task: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    from cnaps.nn.saving import save_model

    shipped = model(4)
    change(shipped)
    save_model(shipped, tmp_path / "model", package_backbone=True)
    loaded = cnaps.load_model(tmp_path / "model")
    with torch.no_grad():
        adapted = shipped.adapt(*task)
        torch.testing.assert_close(loaded.adapt(*task).logits(task[0]), adapted.logits(task[0]))
        torch.testing.assert_close(adapted.fold()(task[0]), adapted.logits(task[0]), atol=1e-4, rtol=1e-4)


def test_a_shipped_copy_may_go_back_some_of_the_way_to_the_backbone(tmp_path: Path) -> None:
    from cnaps.cli import main

    whole, plain = model(4), model(0)
    change(whole)
    whole.save(tmp_path / "whole")
    plain.save(tmp_path / "plain")
    with pytest.raises(SystemExit) as ended:
        main(["ship", str(tmp_path / "whole"), str(tmp_path / "less"), "--lora", "0.5"])
    assert not ended.value.code
    less = cnaps.load_model(tmp_path / "less")
    assert whole.lora is not None
    assert less.lora is not None
    torch.testing.assert_close(less.lora.outer[0], whole.lora.outer[0] / 2, atol=1e-3, rtol=1e-3)
    with pytest.raises(SystemExit) as ended:
        main(["ship", str(tmp_path / "plain"), str(tmp_path / "refused"), "--lora", "0.5"])
    assert ended.value.code
    assert not (tmp_path / "refused").exists()


def test_models_and_options_of_the_first_version_are_understood_by_their_old_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from cnaps.cli import main
    from cnaps.runtime.bundle import read_bundle
    from cnaps.weights import INSTALLED, digest_of

    shipped = INSTALLED / "cnaps-lite0"  # its files have the old names
    about = json.loads((shipped / "config.json").read_text())
    assert about["model"]["shared_large"] == 0.5
    loaded = cnaps.load_model(shipped)
    assert (loaded.config.lora_rank, loaded.config.lora_large) == (32, 0.5)
    assert loaded.fingerprint() == read_bundle(shipped).about["fingerprint"] == "043604defb2423f5"

    made = model(4)
    change(made)
    made.save(tmp_path / "new")
    shutil.copytree(tmp_path / "new", tmp_path / "old")
    tensors = load_file(tmp_path / "new" / "model.safetensors")
    old = {name.replace("lora.", "shared."): value for name, value in tensors.items()}
    assert old.keys() != tensors.keys()
    save_file(old, tmp_path / "old" / "model.safetensors")
    config = json.loads((tmp_path / "new" / "config.json").read_text())
    config["model"] = {name.replace("lora_", "shared_"): value for name, value in config["model"].items()}
    config["digest"] = digest_of(config, [(tmp_path / "old" / "model.safetensors").read_bytes()])
    (tmp_path / "old" / "config.json").write_text(json.dumps(config))
    assert cnaps.load_model(tmp_path / "old").fingerprint() == made.fingerprint()
    with pytest.raises(SystemExit) as ended:
        main(["ship", str(tmp_path / "old"), str(tmp_path / "copy"), "--shared=0.5"])
    assert not ended.value.code
    assert "--shared is called --lora now" in capsys.readouterr().err


def test_a_shipped_copy_may_be_the_mean_of_two_models(tmp_path: Path) -> None:
    from cnaps.cli import main

    one, other = model(4), model(4)
    other.backbone.load_state_dict(one.backbone.state_dict())
    change(other)
    one.save(tmp_path / "one")
    other.save(tmp_path / "other")
    with pytest.raises(SystemExit) as ended:
        main(["ship", str(tmp_path / "one"), str(tmp_path / "mean"), "--average", str(tmp_path / "other")])
    assert not ended.value.code
    mean = cnaps.load_model(tmp_path / "mean").state_dict()
    for name, value in one.state_dict().items():
        wanted = (value + other.state_dict()[name]) / 2 if value.is_floating_point() else value
        torch.testing.assert_close(mean[name], wanted, atol=2e-3, rtol=2e-3)


def test_models_that_differ_in_more_than_phi_have_no_mean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from cnaps.cli import main

    one, ranked, elsewhere = model(4), model(2), model(4)
    ranked.backbone.load_state_dict(one.backbone.state_dict())
    elsewhere.backbone.load_state_dict(one.backbone.state_dict())
    next(elsewhere.backbone.parameters()).data.add_(1)
    one.save(tmp_path / "one")
    for name, other in {"ranked": ranked, "elsewhere": elsewhere}.items():
        other.save(tmp_path / name)
        with pytest.raises(SystemExit) as ended:
            main(["ship", str(tmp_path / "one"), str(tmp_path / "mean"), "--average", str(tmp_path / name)])
        assert ended.value.code
        assert "cannot be averaged" in capsys.readouterr().err
        assert not (tmp_path / "mean").exists()


def test_large_images_use_a_share_of_the_terms_and_a_task_keeps_to_its_size(task: tuple[Tensor, Tensor]) -> None:
    whole = model(4)
    change(whole)
    part, half = (CNAPs(replace(whole.config, lora_large=0.5)) for _ in range(2))
    for other in (part, half):
        other.load_state_dict(whole.state_dict())
    assert half.lora is not None
    half.lora.scale(0.5)
    half.config = whole.config
    images, labels = task
    large = torch.nn.functional.interpolate(images, (224, 224))
    with torch.no_grad():
        torch.testing.assert_close(features(part, task), features(whole, task))
        adapted = part.adapt(large, labels)
        torch.testing.assert_close(adapted.features(large), features(half, (large, labels)), atol=1e-5, rtol=1e-4)
        # FiLM and class statistics are those of large images, so smaller ones go the same way
        small = half.adapt(large, labels).features(images)
        torch.testing.assert_close(adapted.features(images), small, atol=1e-5, rtol=1e-4)
    trained = part.adapt(large, labels, learn=True).features(large).detach()
    torch.testing.assert_close(trained, adapted.features(large).detach(), atol=1e-4, rtol=1e-3)


def test_a_negative_rank_or_a_share_out_of_range_is_refused() -> None:
    with pytest.raises(InputError, match="lora_rank"):
        model(-1)
    with pytest.raises(InputError, match="lora_large"):
        CNAPs(replace(CONFIG, lora_large=-1.0))
