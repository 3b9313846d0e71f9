"""CNAPs and its relatives: models that adapt in one forward pass, as `cnaps train` leaves them."""

from __future__ import annotations

import torch
from torch import Tensor

from cnaps.learners.base import Predictor
from cnaps.nn.model import CNAPs


class AmortisedLearner:
    """A trained model behind the common protocol."""

    def __init__(self, model: CNAPs, name: str = "cnaps") -> None:
        self.model, self.name = model, name

    @torch.no_grad()
    def adapt(self, images: Tensor, labels: Tensor) -> Predictor:
        """One forward pass over the context."""
        adapted = self.model.adapt(self.model.preprocess(images), labels)

        @torch.no_grad()
        def predict(pixels: Tensor) -> Tensor:
            return adapted.logits(self.model.preprocess(pixels))

        return predict
