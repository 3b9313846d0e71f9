"""Networks of other libraries cut into a stem, stages and pooling: by watching one pass and comparing outputs.

Nothing is known of a network but that most of its norms are in blocks that read one another's results. What comes
before the first block is the stem; what comes behind the last one belongs to the last stage as long as there are
maps or tokens, and to the pooling from there on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, groupby, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map_only

from cnaps.errors import InputError
from cnaps.nn.film import norm_channels, skeleton

Run = Callable[[nn.Module, Tensor], Tensor]  # a network and images (N, 3, S, S) to what is wanted of them
TOKEN_STAGES = 4  # of a network whose blocks all have results of one shape
_NEAR = 0.8  # chains of blocks with this share of the most norms are as good as each other


@dataclass(frozen=True)
class Parts:
    """What a `Backbone` is made of."""

    stem: nn.Module
    stages: Sequence[nn.Module]
    pools: Sequence[nn.Module]


@dataclass(frozen=True)
class _Call:
    """One call of a module while the network ran."""

    name: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    input: Tensor
    output: Tensor
    start: int
    end: int


@torch.no_grad()
def cut(network: nn.Module, image_size: int, states: Run, features: Run) -> Parts:
    """Stem, stages and pools of a network, given how to get its last hidden state and its features (N, d)."""
    network.eval()
    with _lively(network):
        parts = _cut(network, image_size, states, features)
        _check(parts, network, features, image_size)
    _check(parts, network, features, image_size)  # nothing that depends on weights was taken for a constant
    return parts


@contextmanager
def _lively(network: nn.Module) -> Iterator[None]:
    """Weights that tell every result from every other, so that a cut depends on the network's form alone.

    In a new network layers may do nothing yet, and what they read may be too small for a float.
    """
    kept = {name: value.clone() for name, value in network.state_dict().items()}
    generator = torch.Generator().manual_seed(0)
    for name, value in network.named_parameters():
        noise = torch.randn(value.shape, generator=generator)
        if value.ndim > 1:
            noise /= math.sqrt(value[0].numel())
        else:
            noise = 0.2 * noise + (0.0 if name.endswith("bias") else 1.0)
        value.copy_(noise)
    for norm in (module for module in network.modules() if isinstance(module, nn.BatchNorm2d)):
        norm.reset_running_stats()
    in_place = [module for module in network.modules() if getattr(module, "inplace", False) is True]
    for module in in_place:  # what they read would be gone, and they would seem to do nothing
        module.inplace = False  # type: ignore[assignment]
    try:
        yield
    finally:
        network.load_state_dict(kept)
        for module in in_place:
            module.inplace = True  # type: ignore[assignment]


def _cut(network: nn.Module, image_size: int, states: Run, features: Run) -> Parts:
    images = _noise(2, image_size)
    calls, wanted = _watch(network, images, features)
    chain = _blocks(network, calls)
    later = [call for call in calls if call.start > chain[-1].end]
    tail = next(_ways(chain[-1].output, later, wanted), None)
    if tail is None:
        raise InputError(
            f"a {type(network).__name__} cannot be cut into stages: how it pools is not known; give its stem and "
            "stages to a Backbone of your own (docs/own-backbone.md)"
        )
    before = _back(chain[0].input, calls, images)
    stem = _Stem(image_size, *([_Head(network, [*chain, *later], states)] if before is None else before))
    groups = _groups(chain)
    stages = [nn.Sequential(*map(_Step, group)) for group in groups]
    x = chain[-1].output
    while tail and isinstance(tail[0], _Step) and tail[0](x).ndim > 2:  # still maps or tokens
        x = tail[0](x)
        stages[-1].append(tail.pop(0))
    readouts = [_Pool(_READOUTS[t.ndim]) for t in (chain[0].input, *(group[-1].output for group in groups[:-1]))]
    return Parts(stem, stages, [*readouts, nn.Sequential(*tail)])


def _noise(count: int, size: int) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(count))


def _watch(network: nn.Module, images: Tensor, features: Run) -> tuple[list[_Call], Tensor]:
    """Every call of a module that reads a tensor and gives one, in the order in which they began."""
    calls, started, clock, hooks = [], [], iter(range(10**9)), []

    def begin(module: nn.Module, args: Any, kwargs: Any) -> None:
        started.append(next(clock))

    def end(name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        start, first = started.pop(), _first(output)
        read = next((v for v in (*args, *kwargs.values()) if isinstance(v, Tensor)), None)
        if read is not None and first is not None and first is not read:
            calls.append(_Call(name, module, args, kwargs, read, first, start, next(clock)))

    for name, module in network.named_modules():
        hooks.append(module.register_forward_pre_hook(begin, with_kwargs=True))
        hooks.append(
            module.register_forward_hook(
                lambda module, args, kwargs, output, name=name: end(name, module, args, kwargs, output),
                with_kwargs=True,
            )
        )
    try:
        wanted = features(network, images)
    finally:
        for hook in hooks:
            hook.remove()
    return sorted(calls, key=lambda call: call.start), wanted


def _first(output: Any) -> Tensor | None:
    """The tensor that a module gives, alone or before others; transformers' own outputs are dictionaries."""
    if isinstance(output, tuple | list) and output:
        output = output[0]
    return output if isinstance(output, Tensor) else None


def _blocks(network: nn.Module, calls: Sequence[_Call]) -> list[_Call]:
    """The longest chain of modules with norms inside, children of one parent, among those that hold most norms."""
    chains: list[tuple[int, list[_Call]]] = []
    norms = {name for name, module in network.named_modules() if norm_channels(module)}
    norms |= {name for name, module in network.named_modules() if type(module).__name__.endswith("RMSNorm")}
    if not norms:
        raise InputError(
            f"a {type(network).__name__} has no norms: without scales and shifts there is nothing that FiLM could "
            "change, and no blocks to cut it by; wrap it in a Backbone of your own (docs/own-backbone.md)"
        )
    for parent, _ in network.named_modules():
        prefix = f"{parent}." if parent else ""
        children = [
            call
            for call in calls
            if call.name.startswith(prefix)
            and call.name.rpartition(".")[0] == parent
            and any(norm.startswith(f"{call.name}.") for norm in norms)
        ]
        chain: list[_Call] = []
        for call in children:
            chain = [*chain, call] if chain and call.input is chain[-1].output else [call]
            if len(chain) > 1:
                held = sum(any(norm.startswith(f"{c.name}.") for c in chain) for norm in norms)
                chains.append((held, chain))
    most = max((held for held, _ in chains), default=0)
    near = [(len(chain), held, chain) for held, chain in chains if held >= _NEAR * most]
    if not near:
        raise InputError(
            f"a {type(network).__name__} cannot be cut into stages: no blocks were found that read one another's "
            "results; give its stem and stages to a Backbone of your own (docs/own-backbone.md)"
        )
    return max(near, key=lambda found: found[:2])[2]


def _groups(chain: Sequence[_Call]) -> list[list[_Call]]:
    """Blocks with results of one shape are a stage; if all are of one shape, there are a few equal stages."""
    runs = [list(run) for _, run in groupby(chain, key=lambda call: call.output.shape[1:])]
    if len(runs) > 1:
        return runs
    stages = min(TOKEN_STAGES, len(chain))
    ends = [round(len(chain) * i / stages) for i in range(stages + 1)]
    return [list(chain[a:b]) for a, b in pairwise(ends)]


class _Step(nn.Module):
    """A module of a network, called as the network called it: what it read beside its input stays the same."""

    def __init__(self, call: _Call) -> None:
        super().__init__()
        self.module = call.module
        names = map("constant{}".format, count(1))

        def keep(value: Tensor) -> _Name:
            """Its name; a tensor that is not the input becomes a buffer."""
            if value is call.input:
                return _Name("")
            self.register_buffer(name := next(names), value, persistent=False)
            return _Name(name)

        self.others = tree_map_only(Tensor, keep, (call.args, call.kwargs))

    def forward(self, x: Tensor) -> Tensor:
        """Whatever the module reads -> what it gives."""
        args, kwargs = tree_map_only(_Name, lambda name: getattr(self, name.of) if name.of else x, self.others)
        output = self.module(*args, **kwargs)
        return output if isinstance(output, Tensor) else output[0]


@dataclass(frozen=True)
class _Name:
    """The place of a tensor: a buffer's name, or nothing for the input."""

    of: str


# What networks do between their modules, as far as it is known; from the most to the least common.
_BETWEEN: dict[str, Callable[[Tensor], Tensor]] = {
    "first token": lambda x: x[:, 0],
    "mean of map": lambda x: x.mean((2, 3)),
    "mean of tokens": lambda x: x.mean(1),
    "mean of patches": lambda x: x[:, 1:].mean(1),
    "mean of patches behind registers": lambda x: x[:, 5:].mean(1),  # the class token and four of them
    "mean of map, channels last": lambda x: x.mean((1, 2)),
    "flat": lambda x: x.flatten(1),
    "mean before patches": lambda x: torch.cat([x.mean((2, 3))[:, :, None], x.flatten(2)], 2).transpose(1, 2),
    # The sum of many blocks has channels of very different sizes, which only the last norm evens out.
    "even mean of tokens": lambda x: F.layer_norm(x.mean(1), x.shape[2:]),
}
_READOUTS = {3: "even mean of tokens", 4: "mean of map"}  # by the dimensions of what is read


class _Pool(nn.Module):
    """One of the above."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        """(N, ...) -> (N, C) mostly."""
        return _BETWEEN[self.kind](x)


def _ways(x: Tensor, later: Sequence[_Call], wanted: Tensor) -> Iterator[list[nn.Module]]:
    """Ways from the last block's result to the features, over modules that were called behind it."""
    kinds: list[_Pool | None] = [None, *(_Pool(kind) for kind in _BETWEEN)]
    found: list[tuple[list[nn.Module], Tensor]] = []
    for kind in kinds:
        try:
            found.append(([kind] if kind else [], kind(x) if kind else x))
        except (IndexError, RuntimeError):  # such a thing cannot be done with a tensor of this shape
            continue
    for before, y in found:
        if _same(y, wanted):
            yield before
    for i, call in enumerate(later):
        for before, y in found:
            if _same(y, call.input):
                rest = [other for other in later[i + 1 :] if other.start > call.end]
                yield from ([*before, _Step(call), *way] for way in _ways(call.output, rest, wanted))


def _same(one: Tensor, other: Tensor) -> bool:
    """To rounding, however small the numbers may be."""
    return one.shape == other.shape and bool((one - other).abs().max() <= 1e-4 * other.abs().max())


def _back(x: Tensor, calls: Sequence[_Call], images: Tensor) -> list[nn.Module] | None:
    """The modules between the images and `x`, if nothing else is done on the way."""
    steps: list[nn.Module] = []
    while x is not images:
        call = next((call for call in calls if call.output is x), None)  # the outermost began first
        if call is None:
            return None
        steps.insert(0, _Step(call))
        x = call.input
    return steps


class _Stem(nn.Sequential):
    """What comes before the blocks, for images of one size."""

    def __init__(self, image_size: int, *parts: nn.Module) -> None:
        super().__init__(*parts)
        self.image_size = image_size

    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, S, S) -> maps (N, C, H, W) or tokens (N, T, C)."""
        height, width = images.shape[2:]
        if (height, width) != (self.image_size, self.image_size):
            raise InputError(
                f"this backbone was opened for images of {self.image_size}x{self.image_size} pixels, not "
                f"{width}x{height}: give the model another image_size"
            )
        return super().forward(images)


class _Head(nn.Module):
    """A network without its blocks and what comes behind them: its last hidden state is what the blocks read."""

    def __init__(self, network: nn.Module, without: Sequence[_Call], states: Run) -> None:
        super().__init__()
        self.network, self.states = skeleton(network), states
        for call in without:
            parent, _, child = call.name.rpartition(".")
            if not any(call.name.startswith(f"{other.name}.") for other in without):
                self.network.get_submodule(parent)._modules[child] = _Pass()

    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, S, S) -> maps (N, C, H, W) or tokens (N, T, C)."""
        return self.states(self.network, images)


class _Pass(nn.Module):
    """In the place of a module that is not wanted: gives what it reads."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """The first tensor of the arguments."""
        return next(value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))


def _check(parts: Parts, network: nn.Module, features: Run, image_size: int) -> None:
    """Refuse parts that do not compute, for other images and another number of them, what the network computes."""
    images = _noise(3, image_size)
    wanted = features(network, images)
    try:
        x = parts.stem(images)
        for stage in parts.stages:
            x = stage(x)
        same = _same(parts.pools[-1](x), wanted)
    except RuntimeError:
        same = False
    if not same:
        raise InputError(
            f"a {type(network).__name__} cannot be cut into stages: the parts that were found do not compute what "
            "it computes; give its stem and stages to a Backbone of your own (docs/own-backbone.md)"
        )
