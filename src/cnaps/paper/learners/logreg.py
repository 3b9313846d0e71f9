"""The linear probe: logistic regression on frozen features."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from cnaps.nn.frozen import FrozenFeatures
from cnaps.paper.learners.base import FeatureLearner, Predictor


class LogisticRegressionProbe(FeatureLearner):
    """Multinomial logistic regression; `strength` is scikit-learn's C, chosen on validation tasks."""

    name = "logreg"
    balanced = False

    def __init__(self, frozen: FrozenFeatures, strength: float = 1000.0) -> None:
        super().__init__(frozen)
        self.strength = strength

    def fit(self, features: Tensor, labels: Tensor) -> Predictor:
        """Solve the convex problem in the span of the context, which holds the solution."""
        weight, bias = solve(features, labels, self.strength, balanced=self.balanced)
        return Predictor(lambda x: x @ weight.T + bias, weight.numel() + bias.numel())


class BalancedProbe(LogisticRegressionProbe):
    """The same with every class counting alike, however many examples it has: scikit-learn's class_weight."""

    name = "logreg-balanced"
    balanced = True


@torch.enable_grad()
def solve(features: Tensor, labels: Tensor, strength: float, *, balanced: bool = False) -> tuple[Tensor, Tensor]:
    """Weight (C, d) and bias (C,) of the regression."""
    ways, count = int(labels.max()) + 1, len(labels)
    shares = count / (ways * labels.bincount(minlength=ways).double()) if balanced else None
    centre = features.double().mean(0)  # the bias takes it up; without it the problem is far better conditioned
    centred = features.double() - centre
    basis = torch.linalg.qr(centred.T).Q  # (d, r): weights outside of this span would only cost
    x = centred @ basis  # (N, r)
    w = x.new_zeros(ways, x.shape[1]).requires_grad_()
    b = x.new_zeros(ways).requires_grad_()
    optimiser = torch.optim.LBFGS([w, b], max_iter=100, tolerance_grad=1e-5, line_search_fn="strong_wolfe")

    def objective() -> Tensor:
        optimiser.zero_grad()
        loss = F.cross_entropy(x @ w.T + b, labels, shares) + w.square().sum() / (2 * strength * count)
        loss.backward()
        return loss

    optimiser.step(objective)
    weight = w.detach() @ basis.T  # (C, d)
    return weight.to(features.dtype), (b.detach() - weight @ centre).to(features.dtype)
