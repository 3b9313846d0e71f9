"""Few-shot image classification that adapts in one forward pass.

Names are imported when they are first used, so that `import cnaps` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from cnaps.nn.checkpoints import load_model as load_model
    from cnaps.nn.model import Adapted as Adapted
    from cnaps.nn.model import CNAPs as CNAPs
    from cnaps.nn.model import ModelConfig as ModelConfig
    from cnaps.nn.reference import from_reference as from_reference
    from cnaps.runtime.classifier import FewShotClassifier as FewShotClassifier
    from cnaps.weights import list_models as list_models

_WHERE = {
    "Adapted": "cnaps.nn.model",
    "CNAPs": "cnaps.nn.model",
    "FewShotClassifier": "cnaps.runtime.classifier",
    "ModelConfig": "cnaps.nn.model",
    "from_reference": "cnaps.nn.reference",
    "list_models": "cnaps.weights",
    "load_model": "cnaps.nn.checkpoints",
}

__all__ = ["__version__", *_WHERE]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'cnaps' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)
