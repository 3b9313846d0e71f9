from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cnaps.errors import CheckpointError, CnapsError
from cnaps.training.checkpoint import (
    load_checkpoint,
    optimiser_tensors,
    restore_optimiser,
    save_checkpoint,
)
from cnaps.training.run import RunFolder, checkpoints, latest_checkpoint

TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor([3], dtype=torch.int64)}


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, TENSORS, {"step": 3, "best": {"x": 0.1 + 0.2}})
    tensors, state = load_checkpoint(path)
    assert state == {"step": 3, "best": {"x": 0.1 + 0.2}}
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)


@pytest.mark.parametrize("damage", ["flipped bit", "cut short", "another file", "empty", "absent"])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, TENSORS, {"step": 3})
    content = bytearray(path.read_bytes())
    if damage == "flipped bit":
        content[-3] ^= 4
    elif damage == "cut short":
        del content[-5:]
    elif damage == "another file":
        content = bytearray(b"\x80\x04 not a checkpoint")
    elif damage == "empty":
        content.clear()
    path.write_bytes(content)
    if damage == "absent":
        path.unlink()
    with pytest.raises(CheckpointError, match=r"c\.safetensors is damaged"):
        load_checkpoint(path)


def test_a_damaged_checkpoint_is_told_and_the_one_before_it_is_taken(tmp_path: Path, capsys) -> None:
    rest = {"validated": 0, "best": {}, "best_step": 0, "metrics_bytes": 0}
    for step in (1, 2, 3):
        path = tmp_path / "checkpoints" / f"step-{step:08d}.safetensors"
        save_checkpoint(path, TENSORS, {"step": step, **rest})
    for left in (2, 1):
        newest = checkpoints(tmp_path)[left]
        newest.write_bytes(newest.read_bytes()[:-4])
        found = latest_checkpoint(tmp_path)
        assert found is not None
        assert found[1]["step"] == left
        assert f"{newest.name} is damaged" in capsys.readouterr().err
    newest = checkpoints(tmp_path)[0]
    newest.write_bytes(newest.read_bytes()[:-4])
    with pytest.raises(CheckpointError, match="Remove this file to continue from the beginning"):
        latest_checkpoint(tmp_path)


def test_an_optimiser_goes_on_as_if_nothing_had_happened() -> None:
    def make() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        network = torch.nn.Conv2d(3, 5, 3)
        network.weight.data = network.weight.data.contiguous(memory_format=torch.channels_last)
        return network, torch.optim.Adam(network.parameters(), lr=0.01)

    def step(network: torch.nn.Module, optimiser: torch.optim.Optimizer, seed: int) -> None:
        images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
        optimiser.zero_grad()
        network(images).square().mean().backward()
        optimiser.step()

    straight, straight_optimiser = make()
    for seed in range(6):
        step(straight, straight_optimiser, seed)
    first, first_optimiser = make()
    for seed in range(3):
        step(first, first_optimiser, seed)
    second, second_optimiser = make()
    second.load_state_dict(first.state_dict())
    plain = {name: t.clone().contiguous() for name, t in optimiser_tensors(first_optimiser).items()}
    restore_optimiser(second_optimiser, plain)
    for seed in range(3, 6):
        step(second, second_optimiser, seed)
    for a, b in zip(straight.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
        moment = second_optimiser.state[b]["exp_avg"]
        assert moment.stride() == b.stride()


def test_only_one_process_trains_in_a_folder(tmp_path: Path) -> None:
    run = RunFolder(tmp_path, tensorboard=False)
    with pytest.raises(CnapsError, match="another process is training"):
        RunFolder(tmp_path, tensorboard=False)
    run.close()
    RunFolder(tmp_path, tensorboard=False).close()
