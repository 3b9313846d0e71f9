"""Adapted networks as ONNX files."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping

import torch
from torch import nn

from cnaps.errors import MissingPackageError
from cnaps.files import atomic_path


def export_onnx(
    network: nn.Module,
    path: str | os.PathLike[str],
    image_size: int,
    *,
    metadata: Mapping[str, str] | None = None,
    dtype: torch.dtype = torch.float32,
    output: str = "logits",
) -> None:
    """Write a network (batch, 3, S, S) -> (batch, C) with a free batch dimension."""
    try:
        import onnx
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingPackageError("exporting", "onnx", "onnxscript", "onnxruntime") from error
    example = torch.zeros(2, 3, image_size, image_size, dtype=dtype)
    batch = torch.export.Dim("batch", min=1)
    # the exporter tells its developers of packages that are not installed and of what it will deprecate
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with atomic_path(path) as temporary, torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            network.eval(),
            (example,),
            dynamo=True,
            input_names=["images"],
            output_names=[output],
            dynamic_shapes=({0: batch},),
            verbose=False,
        )
        model = program.model_proto  # type: ignore[union-attr]
        for key, value in (metadata or {}).items():
            model.metadata_props.add(key=key, value=value)
        onnx.save(model, temporary)
