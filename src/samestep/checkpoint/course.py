"""Which checkpoints a script leaves behind when it goes on from an earlier one than the last."""

from pathlib import Path

from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from samestep.checkpoint.choose import step_of

_begun: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""From which checkpoint the weights of a model are, until the next one of them; by its first parameter, which
stays the same when the model is wrapped or compiled."""


def begin(model: nn.Module, checkpoint: Path) -> None:
    """Keep in mind that `model` goes on from `checkpoint`."""
    for key in _keys(model):
        _begun[key] = checkpoint.resolve()


def end(model: nn.Module) -> None:
    """Forget it: the checkpoint just written is the last of the course."""
    for key in _keys(model):
        if key in _begun:
            del _begun[key]


def last_of_course(model: nn.Module, folder: Path, *, step: int) -> int:
    """Return the last step in `folder` of which a checkpoint belongs to what is about to be `step`.

    Those after it are of a course that was left, or damaged. It is the step that the model has gone on from,
    if that was here: it has written none in between. Where it was not, `step` itself.
    """
    for key in _keys(model):
        if key in _begun and _begun[key].parent == folder.resolve():
            begun = step_of(_begun[key].name)
            return step if begun is None else min(step, begun)
    return step


def _keys(model: nn.Module) -> list[nn.Parameter]:
    return list(model.parameters())[:1]
