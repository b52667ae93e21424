"""Handles side outputs: tensors that a module assigns to its attributes in a call, such as a hidden state.

They are gathered after a call, like its outputs, and sliced before the next call, which may continue from
them.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from samestep.autopilot.split.call_plans import ConcatenatedOutput, Joint
from samestep.autopilot.split.sharded_autograd import BatchSplit
from samestep.autopilot.state.saved_state import SideOutput, refill
from samestep.base.errors import UsageError
from samestep.hooks.tensor_tree import Path, leaves, mapped


def outcome(
    module: nn.Module, outputs: Any, sides: Iterable[SideOutput]
) -> tuple[Any, dict[SideOutput, Any]]:
    """Return the outputs and the side outputs of a call as one structure."""
    return outputs, {side: getattr(module.get_submodule(side[0]), side[1], None) for side in sides}


def assign_side_outputs(module: nn.Module, left: Mapping[SideOutput, Any]) -> None:
    """Assign side outputs to their attributes; a list or dict keeps its identity."""
    for (name, key), value in left.items():
        owner = module.get_submodule(name)
        before = getattr(owner, key, None)
        if isinstance(before, list | dict) and type(before) is type(value):
            refill(before, value)
        else:
            setattr(owner, key, value)


def slice_side_outputs(
    module: nn.Module, joints: Mapping[Path, Joint], sides: Iterable[SideOutput], split: BatchSplit
) -> None:
    """Replace the side outputs of an earlier call by this rank's slices."""

    def own(path: Path, tensor: Tensor) -> Tensor:
        joint = joints.get(path)
        if not isinstance(joint, ConcatenatedOutput) or joint.inner or tensor.dim() <= joint.dim:
            return tensor
        every, rest = divmod(tensor.size(joint.dim), split.total)
        return tensor if rest or not every else split.sliced(tensor, joint.dim, every=every)

    _, left = outcome(module, None, sides)
    _, own_left = mapped((None, left), own)
    assign_side_outputs(module, own_left)


def can_continue(
    module: nn.Module, joints: Mapping[Path, Joint], sides: Iterable[SideOutput], total: int
) -> bool:
    """Return whether a call of `total` samples can continue from slices of the side outputs."""
    _, left = outcome(module, None, sides)
    for path, tensor in leaves((None, left)):
        joint = joints.get(path)
        if (
            isinstance(joint, ConcatenatedOutput)
            and tensor.dim() > joint.dim
            and tensor.size(joint.dim) % total
        ):
            return False
    return True


def gather_outcome(value: Any, joints: Mapping[Path, Joint], split: BatchSplit, *, what: str) -> Any:
    """Return the outcome of the whole batch from the outcomes of slices.

    Raises:
        UsageError: it has another tensor than the first call of this signature.
    """

    def gathered(path: Path, part: Tensor) -> Tensor:
        if path not in joints:
            raise UsageError(
                f"{what} returns or keeps other tensors than in its first call of this signature, which "
                "cannot be gathered. Run this script with -n 1."
            )
        return joints[path].gather(part, split)

    return mapped(value, gathered)
