"""Outputs that a module leaves in its attributes: a penalty, attention weights, a hidden state it keeps.

They are put together like the others after a call, and cut again before the next, which may go on from them.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from samestep.autopilot.cut import Cut
from samestep.autopilot.plans import Concatenated, Joint
from samestep.autopilot.state import Side, refill
from samestep.base.errors import UsageError
from samestep.watch.tree import Path, leaves, mapped


def outcome(module: nn.Module, outputs: Any, sides: Iterable[Side]) -> tuple[Any, dict[Side, Any]]:
    """Return what a call returned and what it left, as one structure."""
    return outputs, {side: getattr(module.get_submodule(side[0]), side[1], None) for side in sides}


def leave(module: nn.Module, left: Mapping[Side, Any]) -> None:
    """Give the attributes other tensors; a list stays the same list."""
    for (name, key), value in left.items():
        owner = module.get_submodule(name)
        before = getattr(owner, key, None)
        if isinstance(before, list | dict) and type(before) is type(value):
            refill(before, value)
        else:
            setattr(owner, key, value)


def cut_again(module: nn.Module, joints: Mapping[Path, Joint], sides: Iterable[Side], cut: Cut) -> None:
    """Give a module this rank's slices of what an earlier call has left, for it to go on from."""

    def own(path: Path, tensor: Tensor) -> Tensor:
        joint = joints.get(path)
        if not isinstance(joint, Concatenated) or joint.inner or tensor.dim() <= joint.dim:
            return tensor
        every, rest = divmod(tensor.size(joint.dim), cut.total)
        return tensor if rest or not every else cut.sliced(tensor, joint.dim, every=every)

    _, left = outcome(module, None, sides)
    _, own_left = mapped((None, left), own)
    leave(module, own_left)


def continues(module: nn.Module, joints: Mapping[Path, Joint], sides: Iterable[Side], total: int) -> bool:
    """Return whether a call of `total` samples can go on from slices of what an earlier call has left."""
    _, left = outcome(module, None, sides)
    for path, tensor in leaves((None, left)):
        joint = joints.get(path)
        if isinstance(joint, Concatenated) and tensor.dim() > joint.dim and tensor.size(joint.dim) % total:
            return False
    return True


def put_together(value: Any, joints: Mapping[Path, Joint], cut: Cut, *, what: str) -> Any:
    """Return an outcome of slices as that of the whole batch.

    Raises:
        UsageError: there is more in it than in the first call of this kind.
    """

    def together(path: Path, part: Tensor) -> Tensor:
        if path not in joints:
            raise UsageError(
                f"{what} gives or keeps other tensors than when it was first called so, which cannot be put "
                "together. Run this script with -n 1."
            )
        return joints[path].put_together(part, cut)

    return mapped(value, together)
