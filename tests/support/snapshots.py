"""Small snapshots to write, read and damage."""

from pathlib import Path

import torch
from torch import nn

from samestep.base.record import IDENTITY_FILE, hidden_name, identity_of
from samestep.training.checkpoint.save import Stage, write_staged
from samestep.training.checkpoint.snapshot import Snapshot


def network(seed=0, dtype=torch.float64) -> nn.Module:
    """A network with parameters, buffers and a counter; ranks that are threads may make it at once."""
    model = nn.Sequential(nn.utils.skip_init(nn.Linear, 3, 2, dtype=dtype), nn.BatchNorm1d(2, dtype=dtype))
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model[0].parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw, dtype=dtype))
    return model


def stepped(model: nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer of `model` that has made a step, so that it has a state."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(4, 3, dtype=next(model.parameters()).dtype)).sum().backward()
    optimizer.step()
    return optimizer


def snapshot(step=3, seed=0, **changes) -> Snapshot:
    """A snapshot with something in every part but the average."""
    model = network(seed)
    optimizer = stepped(model)
    parts = {
        "model": model.state_dict(),
        "optimizer": {"optimizer": optimizer.state_dict(), "schedule": {}, "random": []},
        "state": {"step": step, "seed": seed, "epoch": 1, "samples": 12},
    }
    return Snapshot(**{**parts, **changes})


def write(given: Snapshot, folder: Path) -> Path:
    """Copy and write a snapshot, one after the other."""
    stage = Stage()
    staged = stage.take(given)
    stage.settle()
    return write_staged(staged, folder)


def names(folder: Path) -> list[str]:
    """Return the names in a folder of checkpoints, without the identity of the run that writes to it."""
    return sorted(path.name for path in folder.iterdir() if path.name != IDENTITY_FILE)


def in_hand(checkpoint: Path, kind: str) -> Path:
    """Rename a checkpoint to a name that a killed writer leaves (``draft``, ``old`` or ``gone``)."""
    identity = identity_of(checkpoint.parent)
    assert identity is not None
    return checkpoint.rename(checkpoint.with_name(hidden_name(kind, checkpoint.name, identity)))


def same(one, other) -> bool:
    """Whether two trees of tensors and plain values are equal, bit for bit, dtypes included."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other
