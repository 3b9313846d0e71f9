"""Few-shot image classification that adapts in one forward pass.

Names are imported when they are first used, so that `import cnaps` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from cnaps.checkpoints import list_models as list_models
    from cnaps.checkpoints import load_model as load_model
    from cnaps.classifier import FewShotClassifier as FewShotClassifier
    from cnaps.nn.model import Adapted as Adapted
    from cnaps.nn.model import CNAPs as CNAPs
    from cnaps.nn.model import ModelConfig as ModelConfig
    from cnaps.reference import from_reference as from_reference

_WHERE = {
    "Adapted": "cnaps.nn.model",
    "CNAPs": "cnaps.nn.model",
    "FewShotClassifier": "cnaps.classifier",
    "ModelConfig": "cnaps.nn.model",
    "from_reference": "cnaps.reference",
    "list_models": "cnaps.checkpoints",
    "load_model": "cnaps.checkpoints",
}

__all__ = ["__version__", *_WHERE]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'cnaps' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)
