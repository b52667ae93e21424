"""Tracks from which checkpoint the weights of a model were loaded, until their next checkpoint."""

from pathlib import Path

from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from samestep.training.checkpoint.newest import step_of

_begun: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""The checkpoint of a model, by the model's first parameter, which wrapping and compiling do not change."""


def begin(model: nn.Module, checkpoint: Path) -> None:
    """Record that the weights of `model` are those of `checkpoint`."""
    for key in _keys(model):
        _begun[key] = checkpoint.resolve()


def end(model: nn.Module) -> None:
    """Delete the record: the checkpoint just written is the last one of the lineage."""
    for key in _keys(model):
        if key in _begun:
            del _begun[key]


def last_step_of_lineage(model: nn.Module, folder: Path, *, step: int) -> int:
    """Return the last step in `folder` whose checkpoint belongs to the lineage of the coming `step`.

    This is the step that the model was loaded from, if it was loaded from `folder`, else `step` itself.
    Checkpoints after it belong to an abandoned lineage, or are damaged.
    """
    for key in _keys(model):
        if key in _begun and _begun[key].parent == folder.resolve():
            begun = step_of(_begun[key].name)
            return step if begun is None else min(step, begun)
    return step


def _keys(model: nn.Module) -> list[nn.Parameter]:
    return list(model.parameters())[:1]
