"""A model part of the way from one to another that was trained from it, its LoRA terms scaled.

python tools/interpolate.py FROM TO SHARE OUT [--lora 1.0] [--large 0.5] [--last 1.6]
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch
from compare_heads import reweighted

from cnaps.nn.adaptation import FilmGenerator
from cnaps.nn.checkpoints import load_model
from cnaps.nn.heads import RidgeHead
from cnaps.nn.saving import save_model


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("start")
    parser.add_argument("end")
    parser.add_argument("share", type=float)
    parser.add_argument("out")
    parser.add_argument("--lora", type=float, default=1.0)
    parser.add_argument("--large", type=float, default=1.0, help="the share of LoRA terms at 224 pixels")
    parser.add_argument("--last", type=float, default=1.0, help="the last stage so much stronger in the head")
    parser.add_argument("--size", type=int, default=160, help="of images where nobody says another")
    parser.add_argument("--regulariser", type=float, default=0.05)
    o = parser.parse_args()
    first, last = load_model(o.start), load_model(o.end)
    for model in (first, last):  # R and the layer before it only mean something together
        assert model.adaptation is not None
        for generator in model.adaptation.generators:
            assert isinstance(generator, FilmGenerator)
            generator.set_regulariser(o.regulariser)
    with torch.no_grad():
        for mine, other in zip(first.phi_parameters(), last.phi_parameters(), strict=True):
            mine.lerp_(other, o.share)
        # of low-rank terms the products are wanted between the two, which the factors side by side have
    assert first.lora is not None
    assert isinstance(first.head, RidgeHead)
    first.lora.scale(o.lora)
    first.head.load_state_dict(reweighted(first.head, o.last).state_dict())
    first.config = replace(first.config, image_size=o.size, lora_large=o.large)
    save_model(first, o.out, notes={**first.notes, "trained_on": last.notes.get("trained_on", {})})


if __name__ == "__main__":
    main()
