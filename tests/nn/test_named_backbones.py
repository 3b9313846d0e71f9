"""Networks of transformers by name: cut into stages, adapted, trained and exported like any backbone."""

from __future__ import annotations

import json
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

pytest.importorskip("transformers", reason="needs transformers: pip install 'cnaps[transformers]'")
from cnaps import CNAPs, ModelConfig, load_model
from cnaps.errors import CheckpointError, CnapsError, InputError
from cnaps.nn.backbones import Backbone, Normalisation, create_backbone, open_backbone
from cnaps.nn.film import norm_channels
from cnaps.runtime.engine import open_engine
from cnaps.runtime.export import onnx_bytes
from cnaps.runtime.task import Examples, FittedTask

from . import families

Folder = Callable[[str], Path]
BOTH = ("vit", "convnext")  # tokens and maps


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """The folder of a small network of a family, as `save_pretrained` writes it."""
    known: dict[str, Path] = {}

    def find(family: str) -> Path:
        if family not in known:
            path = tmp_path_factory.mktemp("networks") / family
            known[family] = families.write(families.network_of(family), path, families.size_of(family))
        return known[family]

    return find


def model_of(folder: Path, **options: object) -> CNAPs:
    """With adaptation networks that do something: those of a new model leave the backbone nearly as it is."""
    torch.manual_seed(1)
    settings = {"head": "cosine", "embedding_size": 8, "set_encoder_norm": "none", "generator_width": 16}
    model = CNAPs(ModelConfig(backbone=f"transformers:{folder}", **(settings | options)))  # type: ignore[arg-type]
    model.backbone.load_pretrained()
    if model.adaptation is not None:
        for generator in model.adaptation.generators:
            nn.init.normal_(generator.regulariser, 0, 0.3)  # type: ignore[arg-type]
    return model


def task(size: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    images = torch.randn(11, 3, size, size, generator=generator)
    return images[:7], torch.tensor([0, 0, 1, 1, 2, 2, 2]), images[7:]


def is_norm(module: nn.Module) -> bool:
    """RMS norms of a library are not torch's, and are norms all the same."""
    return norm_channels(module) > 0 or type(module).__name__.endswith("RMSNorm")


@pytest.mark.parametrize("family", families.FAMILIES)
def test_every_family_has_its_own_features_and_every_norm_of_its_blocks_is_a_site(family, folder):
    path, size = folder(family), families.size_of(family)
    backbone = open_backbone(f"transformers:{path}")
    network = families.network_of(family)
    images = torch.randn(3, 3, size, size)
    with torch.no_grad():
        output = network(images)
        wanted = output.last_hidden_state[:, 0] if family == "vit" else output.pooler_output.flatten(1)
        torch.testing.assert_close(backbone(images), wanted, rtol=1e-4, atol=1e-5)
    assert backbone.image_size == size
    assert backbone.feature_size == wanted.shape[1] == backbone.channels[-1]
    assert len(backbone.stages) >= 3
    assert all(backbone.site_channels)
    sites = sum(map(len, backbone.sites))
    others = [*backbone.stem.modules(), *backbone.pools.modules()]
    assert sites == sum(map(is_norm, network.modules())) - sum(map(is_norm, others))
    assert [round(v, 3) for v in backbone.normalisation.mean] == [127.5, 102.0, 76.5]
    assert [round(v, 3) for v in backbone.normalisation.std] == [51.0, 63.75, 76.5]


@pytest.mark.parametrize("family", ["resnet", "efficientnet"])
def test_batch_norms_of_other_libraries_are_folded_too(family, folder):
    backbone = open_backbone(f"transformers:{folder(family)}")
    folded = {unit.norm for unit in backbone.stage_units[1]}
    assert folded == set(backbone.sites[1])


def test_the_vision_part_of_clip_is_found_in_the_folder_of_the_whole(tmp_path):
    import transformers as hf

    torch.manual_seed(0)
    text = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    vision = families.TOKENS
    for kind, config in (("CLIPModel", hf.CLIPConfig), ("SiglipModel", hf.SiglipConfig)):
        network = getattr(hf, kind)(config(text_config=text | {"vocab_size": 50}, vision_config=vision)).eval()
        path = families.write(network, tmp_path / kind, 32)
        images = torch.randn(2, 3, 32, 32)
        with torch.no_grad():
            wanted = network.vision_model(pixel_values=images).pooler_output
            torch.testing.assert_close(open_backbone(f"transformers:{path}")(images), wanted, rtol=1e-4, atol=1e-5)


def test_another_image_size_is_chosen_with_the_model_and_a_wrong_one_is_refused(folder):
    for family in ("vit", "dinov2", "dinov3"):
        model = model_of(folder(family), image_size=48)
        images, labels, targets = task(48)
        with torch.no_grad():
            assert model.adapt(images, labels).logits(targets).shape == (4, 3)
            with pytest.raises(InputError, match="opened for images of 48x48 pixels, not 64x64"):
                model.adapt(torch.randn(7, 3, 64, 64), labels)


def test_the_digest_is_that_of_the_weights(folder):
    name = f"transformers:{folder('vit')}"
    opened = open_backbone(name)
    assert opened.digest() == open_backbone(name).digest() != create_backbone(name).digest()
    before = opened.digest()
    with torch.no_grad():
        next(opened.parameters()).view(-1)[0] += 1
    assert opened.digest() != before


@pytest.mark.parametrize("family", BOTH)
def test_film_of_a_task_changes_what_the_network_sees_and_not_the_network(family, folder):
    model = model_of(folder(family))
    images, labels, targets = task(families.size_of(family))
    before = model.backbone.digest()
    with torch.no_grad():
        adapted = model.adapt(images, labels)
        plain = model.backbone(targets)
        seen = adapted.network(targets)
    assert len(adapted.film) == 2 * sum(map(sum, model.backbone.site_channels))
    assert (torch.nn.functional.normalize(plain, dim=1) - seen).abs().max() > 0.01
    assert model.backbone.digest() == before


@pytest.mark.parametrize("features", ["last", "all"])
@pytest.mark.parametrize("adaptation", ["none", "film+ar"])
@pytest.mark.parametrize("family", [*BOTH, "dinov3"])
def test_neither_order_nor_chunks_of_the_context_matter(family, adaptation, features, folder):
    model = model_of(folder(family), adaptation=adaptation, features=features)
    images, labels, targets = task(families.size_of(family))
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        once = model.adapt(images, labels).logits(targets)
        for other in (
            model.adapt(images, labels, chunk_size=2).logits(targets, chunk_size=3),
            model.adapt(images[order], labels[order], chunk_size=3).logits(targets),
        ):
            torch.testing.assert_close(other, once, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("family", BOTH)
def test_gradients_are_those_of_finite_differences_and_recomputing_does_not_change_them(family, folder):
    model = model_of(folder(family)).double()
    images, labels, targets = (x.double() if x.is_floating_point() else x for x in task(families.size_of(family)))

    def loss(**options: object) -> Tensor:
        logits = model.adapt(images, labels, learn=True, **options).logits(targets)  # type: ignore[arg-type]
        return nn.functional.cross_entropy(logits, torch.tensor([0, 1, 2, 0]))

    gradients = []
    for options in ({}, {"chunk_size": 3, "checkpoint": True}):
        model.zero_grad()
        loss(**options).backward()
        gradients.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    assert not any(name.startswith("backbone.") for name in gradients[0])
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-6, atol=1e-9)
    assert model.adaptation is not None
    for generator in model.adaptation.generators:
        bias = generator.get_parameter("last_bias")
        with torch.no_grad():
            step = torch.linspace(-1, 1, len(bias)).double()
            values = []
            for sign in (1, -1):
                bias.add_(sign * 1e-4 * step)
                with torch.enable_grad():
                    values.append(loss().item())
                bias.sub_(sign * 1e-4 * step)
        found = next(g for n, g in gradients[0].items() if model.get_parameter(n) is bias)
        assert (values[0] - values[1]) / 2e-4 == pytest.approx((found @ step).item(), rel=1e-3, abs=1e-7)


@pytest.mark.parametrize("family", BOTH)
def test_lite_has_the_exact_loss_and_the_right_gradient_on_average(family, folder):
    model = model_of(folder(family))
    images, labels, targets = task(families.size_of(family))
    assert model.adaptation is not None
    weight = model.adaptation.generators[-1].get_parameter("last_bias")

    def gradient(lite: int | None, seed: int = 0) -> tuple[float, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        logits = model.adapt(images, labels, learn=True, lite=lite, generator=generator).logits(targets)
        loss = nn.functional.cross_entropy(logits, torch.tensor([0, 1, 2, 0]))
        return loss.item(), torch.autograd.grad(loss, weight)[0]

    loss, exact = gradient(None)
    drawn = [gradient(5, seed) for seed in range(24)]
    assert all(value == pytest.approx(loss, rel=1e-4) for value, _ in drawn)
    mean = torch.stack([each for _, each in drawn]).mean(0)
    assert (mean - exact).norm() < 0.35 * exact.norm()


@pytest.mark.parametrize("family", [*BOTH, "dinov3", "resnet"])
def test_an_adapted_network_is_exported_exactly_for_any_batch(family, folder):
    onnxruntime = pytest.importorskip("onnxruntime")
    size = families.size_of(family)
    pixels = np.random.default_rng(0).integers(0, 256, (10, 3, size, size), dtype=np.uint8)
    fitted = FittedTask.learn(open_engine(model_of(folder(family))), Examples(pixels[:6], ["a", "b"] * 3))
    session = onnxruntime.InferenceSession(onnx_bytes(fitted))
    for count in (1, 4):
        some = pixels[6 : 6 + count]
        found = session.run(None, {"images": some})[0]
        np.testing.assert_allclose(found, fitted.probabilities(fitted.features(some)), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("family", BOTH)
def test_each_part_can_be_exported_with_a_free_batch_and_film_as_two_tensors_a_site(family, folder):
    """What a runtime without torch needs: single tensors between stages, and FiLM as weight and bias of a norm."""
    backbone = open_backbone(f"transformers:{folder(family)}")
    x = torch.randn(2, 3, backbone.image_size, backbone.image_size)
    batch = torch.export.Dim("batch", min=1)
    pools = list(backbone.pools)
    for part, pool in zip([backbone.stem, *backbone.stages], pools, strict=True):
        program = torch.onnx.export(
            nn.Sequential(part, pool).eval(), (x,), dynamo=True, dynamic_shapes=({0: batch},), verbose=False
        )
        assert program is not None
        with torch.no_grad():
            x = part(x)
            assert pool(x).ndim == 2
    for stage, names in zip(backbone.stages, backbone.sites, strict=True):
        for name in names:
            norm = stage.get_submodule(name)
            assert norm.weight.shape == norm.bias.shape == (norm_channels(norm),)


@pytest.mark.parametrize("family", BOTH)
def test_a_model_round_trips_and_can_leave_the_backbone_where_it_is(family, folder, tmp_path):
    from cnaps.nn.saving import save_model

    model = model_of(folder(family))
    images, labels, targets = task(families.size_of(family))
    with torch.no_grad():
        logits = model.adapt(images, labels).logits(targets)
        for package in (False, True):
            save_model(model, tmp_path / str(package), package_backbone=package)
            loaded = load_model(tmp_path / str(package))
            assert loaded.fingerprint() == model.fingerprint()
            assert torch.equal(loaded.adapt(images, labels).logits(targets), logits)
        again = pickle.loads(pickle.dumps(model))
        assert torch.equal(again.adapt(images, labels).logits(targets), logits)


@pytest.mark.parametrize("kernels", ["fused", "plain"])
def test_group_and_rms_norms_are_film_sites_like_any_other(kernels, monkeypatch):
    class Rms(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.norm = nn.RMSNorm(channels)
            nn.init.normal_(self.norm.weight)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    monkeypatch.setenv("CNAPS_KERNELS", kernels)
    torch.manual_seed(0)
    stages = [
        nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.GroupNorm(2, 8), nn.GELU()),
        nn.Sequential(nn.Conv2d(8, 12, 3, 2, 1), Rms(12), nn.GELU()),
        nn.Sequential(nn.Conv2d(12, 12, 3, 2, 1), nn.BatchNorm2d(12), nn.LayerNorm(4, bias=False), nn.ReLU()),
    ]
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        wanted = nn.Sequential(*stages).eval()(images).mean((2, 3))
        backbone = Backbone(nn.Identity(), stages, image_size=32, sites=[["1"], ["1.norm"], ["1"]])
        torch.testing.assert_close(backbone(images), wanted)
    assert backbone.site_channels == [[8], [12], [12]]
    model = CNAPs(ModelConfig(adaptation="film", head="cosine", embedding_size=4), backbone)
    gamma, beta = torch.rand(12), torch.randn(12)
    x = torch.randn(2, 8, 16, 16)
    bound = model._stage(1, ((gamma, beta),), learn=True)
    with torch.no_grad():
        expected = nn.functional.gelu(gamma[:, None, None] * stages[1][1](stages[1][0](x)) + beta[:, None, None])
        torch.testing.assert_close(bound(x), expected)
        torch.testing.assert_close(model._stage(1, ((gamma, beta),))(x), expected)


# What goes wrong, in one sentence each.


def broken(folder: Path, tmp_path: Path, **changes: object) -> Path:
    path = shutil.copytree(folder, tmp_path / "broken")
    for name, content in changes.items():
        file = path / name.replace("__", ".")
        file.unlink(missing_ok=True)
        if content is not None:
            file.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("transformers:", "names no network: write for example transformers:facebook/dinov2-small"),
        ("keras:vgg", "there are transformers:FOLDER, transformers:HUB/ID and timm:NAME"),
        ("nothing", "no backbone named 'nothing'"),
        ("transformers:./not/there", "holds no network of transformers: there is no config.json"),
        ("transformers:somebody/nothing", "get it once with `hf download somebody/nothing`"),
    ],
)
def test_bad_names_are_refused_with_what_to_write(name, message, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(CnapsError, match=message.replace(".", r"\.")) as caught:
        create_backbone(name)
    assert "\n" not in str(caught.value)


def test_missing_weights_and_ones_of_another_shape_are_named(folder, tmp_path):
    path = broken(folder("vit"), tmp_path)
    weights = load_file(path / "model.safetensors")
    name = "layernorm.weight"
    assert name in weights
    for changed, message in (
        ({k: v for k, v in weights.items() if k != name}, f"weights are missing: {name}; take config.json and"),
        (weights | {name: torch.ones(5)}, rf"weights are of another shape: {name} \(5,\) instead of \(32,\)"),
        ({}, "weights are missing: .* and [0-9]+ more"),
    ):
        (path / "model.safetensors").unlink()
        save_file(changed, path / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(CheckpointError, match=message):
            open_backbone(f"transformers:{path}")
    (path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"the weights in .* cannot be read: .*model\.safetensors"):
        open_backbone(f"transformers:{path}")
    torch.save(weights, path / "pytorch_model.bin")  # may hold code: never read
    with pytest.raises(CheckpointError, match="cannot be read"):
        open_backbone(f"transformers:{path}")


def test_code_that_comes_with_weights_is_never_run(folder, tmp_path):
    config = json.loads((folder("vit") / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Mine", "AutoModel": "mine.Mine"}}
    path = broken(folder("vit"), tmp_path, config__json=config)
    (path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(CheckpointError, match=r"configuration in .* cannot be read"):
        open_backbone(f"transformers:{path}")
    assert not (tmp_path / "ran").exists()


def test_an_unknown_preprocessor_or_a_network_of_text_is_refused(folder, tmp_path):
    path = broken(folder("vit"), tmp_path, preprocessor_config__json=None)
    with pytest.raises(CheckpointError, match=r"no preprocessor_config\.json with image_mean and image_std"):
        create_backbone(f"transformers:{path}")
    (path / "preprocessor_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"no preprocessor_config\.json with image_mean and image_std"):
        create_backbone(f"transformers:{path}")
    import transformers as hf

    hf.BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2).save_pretrained(path)
    with pytest.raises(InputError, match="is a bert, which does not read images"):
        create_backbone(f"transformers:{path}")


def test_the_size_of_images_and_their_scale_come_from_the_preprocessor(folder, tmp_path):
    settings = {
        "do_normalize": False,
        "do_center_crop": True,
        "crop_size": {"height": 24, "width": 24},
        "size": 40,
    }
    path = broken(folder("dinov2"), tmp_path, preprocessor_config__json=settings)
    backbone = create_backbone(f"transformers:{path}")
    assert backbone.image_size == 24
    assert backbone.normalisation.mean == (0.0,)
    assert backbone.normalisation.std == pytest.approx((255.0,))


def test_a_network_without_norms_is_refused_for_film_and_taken_as_it_is():
    stages = [nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU()), nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU())]
    backbone = Backbone(nn.Identity(), stages, image_size=32)
    with pytest.raises(InputError, match=r'has no norms.*adaptation = "none"'):
        CNAPs(ModelConfig(head="cosine"), backbone)
    model = CNAPs(ModelConfig(head="cosine", adaptation="none"), backbone)
    images, labels, targets = task(32)
    with torch.no_grad():
        assert model.adapt(images, labels).logits(targets).shape == (4, 3)


def test_a_network_that_cannot_be_cut_is_refused_with_the_way_out():
    from cnaps.nn.backbones.cutting import cut

    def last(network: nn.Module, images: Tensor) -> Tensor:
        return network(images)

    for network, message in (
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten()), "has no norms.*own-backbone"),
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten()), "no blocks were found.*own-backbone"),
    ):
        with pytest.raises(InputError, match=message):
            cut(network, 32, last, last)


def test_without_transformers_or_timm_the_packages_are_named(monkeypatch, folder):
    name = f"transformers:{folder('vit')}"
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(CnapsError, match=r"needs packages that are not installed.* transformers$"):
        create_backbone(name)
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(CnapsError, match="needs timm and a torchvision that fits your torch: pip install"):
        create_backbone("timm:resnet18")


# Networks built as timm builds them, which is not always installed.


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn1(self.conv1(x))
        y += self.bn2(self.conv2(x))
        return self.act(y)


class Convolutions(nn.Module):
    """Blocks beside the stem, not in a list of their own; activations in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.act1 = nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)
        self.layer1, self.layer2 = nn.Sequential(Residual(8, 8, 1)), nn.Sequential(Residual(8, 16, 2))

    def forward_features(self, x: Tensor) -> Tensor:
        return self.layer2(self.layer1(self.act1(self.bn1(self.conv1(x)))))

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_features(x).mean((2, 3))


class Tokens(nn.Module):
    """Positions are added between modules."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 8, 8)
        self.positions = nn.Parameter(torch.randn(1, 16, 16))
        layer = [nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU()) for _ in range(6)]
        self.blocks, self.norm, self.drop = nn.Sequential(*layer), nn.LayerNorm(16), nn.Identity()

    def forward_features(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        return self.norm(self.blocks(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.forward_features(x).mean(1))


@pytest.mark.parametrize(("kind", "sites"), [(Convolutions, [2, 2]), (Tokens, [2, 1, 1, 3])])
def test_networks_as_timm_builds_them_are_cut_too(kind, sites):
    from cnaps.nn.backbones.named import _backbone, _timm_features, _timm_state

    torch.manual_seed(0)
    network = kind()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    backbone = _backbone(network, 32, Normalisation(), _timm_state, _timm_features)
    images = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(backbone(images), network.eval()(images), rtol=1e-4, atol=1e-5)
    assert [len(names) for names in backbone.sites] == sites
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    assert all(module.inplace for module in network.modules() if isinstance(module, nn.ReLU))
    model = CNAPs(ModelConfig(head="cosine", embedding_size=4), backbone)
    context, labels, targets = task(32)
    with torch.no_grad():
        assert model.adapt(context, labels).logits(targets).shape == (4, 3)


def test_a_network_of_timm_itself_is_cut():
    timm = pytest.importorskip("timm", reason="needs timm and a torchvision that fits", exc_type=ImportError)
    backbone = create_backbone("timm:vit_tiny_patch16_224", image_size=64)
    images = torch.randn(2, 3, 64, 64)
    assert backbone(images).shape == (2, timm.create_model("vit_tiny_patch16_224").num_features)
