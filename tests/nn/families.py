"""Small networks of transformers with random weights, written to folders as published ones are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from torch import nn

TOKENS: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}
STAGES: dict[str, Any] = {"depths": [1, 1, 2], "hidden_sizes": [8, 16, 32], "num_stages": 3}
FAMILIES: dict[str, Any] = {
    "vit": lambda: hf.ViTConfig(**TOKENS),
    "dinov2": lambda: hf.Dinov2Config(**TOKENS, mlp_ratio=2, layerscale_value=0.5),
    "dinov2-registers": lambda: hf.Dinov2WithRegistersConfig(**TOKENS, mlp_ratio=2, layerscale_value=0.5),
    "dinov3": lambda: hf.DINOv3ViTConfig(**TOKENS, num_register_tokens=2),
    "dinov3-convnext": lambda: hf.DINOv3ConvNextConfig(depths=[1, 1, 2, 1], hidden_sizes=[8, 16, 24, 32]),
    "convnext": lambda: hf.ConvNextConfig(**STAGES, layer_scale_init_value=0.5),
    "convnextv2": lambda: hf.ConvNextV2Config(**STAGES),
    "siglip": lambda: hf.SiglipVisionConfig(**TOKENS),
    "aimv2": lambda: hf.Aimv2VisionConfig(**TOKENS),  # RMS norms
    "bit": lambda: hf.BitConfig(  # group norms
        embedding_size=32, hidden_sizes=[32, 32, 64, 64], depths=[1, 1, 1, 1], num_groups=8
    ),
    "clip": lambda: hf.CLIPVisionConfig(**TOKENS),
    "resnet": lambda: hf.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 32], depths=[1, 1, 2], layer_type="basic"
    ),
    "efficientnet": lambda: hf.EfficientNetConfig(
        width_coefficient=0.25, depth_coefficient=0.25, image_size=64, hidden_dim=320
    ),
}


def size_of(family: str) -> int:
    return 32 if FAMILIES[family]().to_dict().get("image_size") == 32 else 64


def network_of(family: str) -> hf.PreTrainedModel:
    """With norms that do something: those of a new network are all ones and zeros."""
    torch.manual_seed(0)
    network: hf.PreTrainedModel = hf.AutoModel.from_config(FAMILIES[family]()).eval()
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.LayerNorm | nn.BatchNorm2d):
                module.weight.normal_(1, 0.2)
                module.bias.normal_(0, 0.2)
            if isinstance(module, nn.BatchNorm2d):
                module.get_buffer("running_mean").normal_(0, 0.2)
                module.get_buffer("running_var").uniform_(0.5, 1.5)
    return network


def write(network: hf.PreTrainedModel, folder: Path, size: int, **changes: Any) -> Path:
    network.save_pretrained(folder)
    settings = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.25, 0.3], "size": size, **changes}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder
