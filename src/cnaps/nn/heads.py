"""Heads with learned numbers as torch modules; what they compute stands in `cnaps.maths.heads`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cnaps.maths import heads as closed_form
from cnaps.maths.heads import Classifier
from cnaps.maths.statistics import ClassStatistics


class Head(nn.Module):
    """The numbers that a head has learned, under the names by which the maths knows them."""

    name: str

    def __init__(self, groups: Sequence[int]) -> None:
        super().__init__()
        self.groups = list(groups)

    @property
    def maths(self) -> closed_form.Head:
        """The head as functions of tensors; gradients flow into its numbers."""
        return closed_form.create_head(self.name, self.groups, dict(self.named_parameters()))

    @property
    def numpy(self) -> closed_form.Head:
        """The head as functions of numpy arrays."""
        numbers = {name: value.detach().cpu().numpy() for name, value in self.named_parameters()}
        return closed_form.create_head(self.name, self.groups, numbers)

    @property
    def needs_scatter(self) -> bool:
        """Whether class statistics must hold more than means."""
        return closed_form.HEADS[self.name].needs_scatter

    def embed(self, features: Tensor) -> Tensor:
        """(N, d) -> (N, d), as statistics and classifier read them."""
        return self.maths.embed(features)

    def classifier(self, statistics: ClassStatistics) -> Classifier:
        """From embedded features (M, d) to logits (M, C)."""
        return self.maths.classifier(statistics)


class LinearHead(Head):
    """The paper's: weights and bias of each class from its mean feature, by two small networks."""

    name = "linear"

    def __init__(self, groups: Sequence[int], bias_width: int | None = None) -> None:
        super().__init__(groups)
        features = sum(groups)
        bias_width = bias_width or features
        self.weight_net = _elu_net(features, features, features)
        self.bias_net = _elu_net(features, bias_width, 1)


def _elu_net(inputs: int, width: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, width), nn.ELU(), nn.Linear(width, width), nn.ELU(), nn.Linear(width, outputs)
    )


class CosineHead(Head):
    """Cosine similarity to class means; a temperature and a share of centring for each group of features."""

    name = "cosine"

    def __init__(self, groups: Sequence[int], temperature: float = 10.0) -> None:
        super().__init__(groups)
        start = torch.full((len(self.groups),), temperature / len(self.groups))
        self.log_temperature = nn.Parameter(start.log())
        self.centring = nn.Parameter(torch.zeros(len(self.groups)))  # through a sigmoid: starts at one half


class RidgeHead(Head):
    """Ridge regression beside cosine similarity; a weight and a share of centring for each group of features."""

    name = "ridge"

    def __init__(self, groups: Sequence[int]) -> None:
        super().__init__(groups)
        # the last stage counts most at first, since it is what the backbone was trained for
        start = torch.tensor([0.7**i for i in reversed(range(len(self.groups)))])
        self.log_weight = nn.Parameter(start.log())
        self.centring = nn.Parameter(torch.zeros(len(self.groups)))  # through a sigmoid: starts at one half
        self.log_ridge = nn.Parameter(torch.tensor(0.4).log())
        self.log_temperature = nn.Parameter(torch.tensor([8.0, 5.0]).log())  # of the regression, of the cosine


class MahalanobisHead(Head):
    """Simple CNAPs': Mahalanobis distances to class means; nothing is learned."""

    name = "mahalanobis"


_HEADS: dict[str, type[Head]] = {head.name: head for head in (CosineHead, RidgeHead, MahalanobisHead)}


def create_head(name: str, groups: Sequence[int], bias_width: int | None = None) -> Head:
    """A head by its name: linear, cosine, ridge or mahalanobis, for features made of `groups`."""
    if name == LinearHead.name:
        return LinearHead(groups, bias_width)
    if name not in _HEADS:
        closed_form.create_head(name, groups, {})  # says which there are
    return _HEADS[name](groups)
