"""psi_f: from the context set to FiLM parameters, stage by stage.

Three forms: none (the backbone as it is), film (from z_G alone), film+ar (from z_G and, for each stage, the
adapted activations before it). The auto-regressive pass ends with the adapted context features: the context is
never run twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cnaps.errors import InputError
from cnaps.nn.encoders import StageEncoder
from cnaps.nn.film import SiteFilm


class FilmGenerator(nn.Module):
    """One small network for each FiLM vector of a stage (gamma and beta of each site), all run as one.

    Each is Linear, ReLU, twice [residual Linear, ReLU] and a last Linear, residual where its input is as wide
    as its output. The weights of the V networks are stacked, so a stage costs few products however many vectors
    it has. What comes out is multiplied by R, which starts near zero: a new model does not change its backbone.
    """

    identity: Tensor

    def __init__(self, inputs: int, width: int, channels: Sequence[int], *, own_first: bool = True) -> None:
        super().__init__()
        vectors = [c for c in channels for _ in ("gamma", "beta")]
        self.sizes = vectors
        self.residual = all(c == width for c in vectors)
        self.first = StackedLinear(len(vectors) if own_first else 1, inputs, width)
        self.hidden = nn.ModuleList(StackedLinear(len(vectors), width, width) for _ in range(2))
        self.last_weight = nn.Parameter(torch.empty(sum(vectors), width))
        self.last_bias = nn.Parameter(torch.empty(sum(vectors)))
        self.regulariser = nn.Parameter(torch.empty(sum(vectors)).normal_(0, 0.001))  # R
        bound = 1 / math.sqrt(width)
        nn.init.uniform_(self.last_weight, -bound, bound)
        nn.init.uniform_(self.last_bias, -bound, bound)
        gamma_then_beta = torch.tensor([1.0, 0.0] * len(channels)).repeat_interleave(torch.tensor(vectors))
        self.register_buffer("identity", gamma_then_beta, persistent=False)

    def forward(self, z: Tensor) -> tuple[SiteFilm, ...]:
        """(inputs,) -> for each site (gamma (C,), beta (C,))."""
        parts = self.vector(z).split(self.sizes)
        return tuple(zip(parts[::2], parts[1::2], strict=True))

    def vector(self, z: Tensor) -> Tensor:
        """(inputs,) -> gamma and beta of one site behind those of the other, in one row."""
        h = F.relu(self.first(z.expand(self.first.count, -1)))  # (V or 1, width)
        h = h.expand(len(self.sizes), -1)
        for layer in self.hidden:
            h = F.relu(layer(h) + h)
        networks = zip(self.last_weight.split(self.sizes), h, strict=True)
        # as rows: onnxruntime takes eight times as long for a matrix times a vector
        rows = torch.cat([F.linear(x[None], weight)[0] for weight, x in networks]) + self.last_bias  # (sum of C,)
        if self.residual:
            rows = rows + h.flatten()
        return rows * self.regulariser + self.identity

    @torch.no_grad()
    def set_regulariser(self, value: float) -> None:
        """Let every R be `value`, and the layer before it such that the same FiLM comes out.

        Steps of an optimiser move FiLM by so much more as R is larger.
        """
        if self.residual:
            raise InputError("R cannot be chosen for generators as wide as their stage: give a generator_width")
        ratio = self.regulariser / value
        self.last_weight.mul_(ratio[:, None])
        self.last_bias.mul_(ratio)
        self.regulariser.fill_(value)


class StackedLinear(nn.Module):
    """`count` linear layers of one shape, each applied to its own input."""

    def __init__(self, count: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.count = count
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(count, outputs, inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(count, outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """(count, inputs) -> (count, outputs)."""
        return torch.baddbmm(self.bias[:, :, None], self.weight, x[:, :, None]).squeeze(2)


class FilmAdaptation(nn.Module):
    """The stage encoders (with `autoregressive`) and the generators of every stage."""

    def __init__(
        self,
        channels: Sequence[int],
        site_channels: Sequence[Sequence[int]],
        *,
        autoregressive: bool,
        embedding_size: int,
        width: int | None = None,
        spread: bool = False,
    ) -> None:
        super().__init__()
        self.stage_encoders = nn.ModuleList()
        self.generators = nn.ModuleList()
        for before, after, sites in zip(channels, channels[1:], site_channels, strict=False):
            size = width or after  # as wide as the stage, unless a width is given
            if autoregressive:
                self.stage_encoders.append(StageEncoder(before, size, spread=spread))
            self.generators.append(
                FilmGenerator(
                    embedding_size + (size if autoregressive else 0), size, sites, own_first=autoregressive
                )
            )

    @property
    def autoregressive(self) -> bool:
        """Whether a stage's FiLM depends on the activations before it."""
        return len(self.stage_encoders) > 0

    def stage_film(
        self, stage: int, task_embedding: Tensor, pooled: Tensor | None, members: Tensor
    ) -> tuple[SiteFilm, ...]:
        """FiLM of one stage from z_G (E,), the pooled activations before it (N, C) and their classes (ways, N)."""
        z = task_embedding
        if pooled is not None:
            z = torch.cat([self.stage_encoders[stage](pooled, members), z])
        return self.generators[stage](z)

    def regularization(self) -> Tensor:
        """The sum of R^2."""
        return torch.cat([p for name, p in self.named_parameters() if name.endswith("regulariser")]).square().sum()
