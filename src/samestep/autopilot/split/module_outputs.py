"""Handles side outputs: tensors that a module assigns to its attributes in a call, such as a hidden state.

They are gathered after a call, like its outputs, and sliced before the next call, which may continue from
them.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from samestep.autopilot.split.call_plans import ConcatenatedOutput, Gathering
from samestep.autopilot.split.sharded_autograd import BatchSplit
from samestep.autopilot.state.saved_state import SideOutput
from samestep.base.errors import UsageError
from samestep.hooks import module_parts
from samestep.hooks.raw_containers import (
    base_of,
    fields_of,
    is_mapping,
    refill,
    restore_fields,
    stored_fields,
    with_items,
)
from samestep.hooks.tensor_tree import Path, leaves, mapped


def outcome(
    module: nn.Module, outputs: Any, sides: Iterable[SideOutput]
) -> tuple[Any, dict[SideOutput, Any]]:
    """Return the outputs and the side outputs of a call as one structure.

    A list, a dict or an object among the side outputs is copied: the next assignment refills the module's.
    """
    kept = {side: getattr(module_parts.submodule(module, side[0]), side[1], None) for side in sides}
    return outputs, {side: _copied(value) for side, value in kept.items()}


def _copied(value: Any) -> Any:
    copied = mapped(value, lambda _, tensor: tensor)
    is_refilled = copied is value and (is_mapping(value) or base_of(value) is list)
    return with_items(value, {}) if is_refilled else copied


def assign_side_outputs(module: nn.Module, left: Mapping[SideOutput, Any]) -> None:
    """Assign side outputs to their attributes; a list, a dict or an object keeps its identity."""
    for (name, key), value in left.items():
        owner = module_parts.submodule(module, name)
        before = getattr(owner, key, None)
        if type(before) is type(value) and (is_mapping(before) or base_of(before) is list):
            refill(before, value)
            if fields := fields_of(value):
                restore_fields(before, fields)
        elif (
            type(before) is type(value)
            and stored_fields(before) is not None
            and not isinstance(before, Tensor)
        ):
            restore_fields(before, fields_of(value))
        else:
            setattr(owner, key, value)


def slice_side_outputs(
    module: nn.Module, gatherings: Mapping[Path, Gathering], sides: Iterable[SideOutput], split: BatchSplit
) -> None:
    """Replace the side outputs of an earlier call by this rank's slices."""

    def own(path: Path, tensor: Tensor) -> Tensor:
        gathering = gatherings.get(path)
        if not isinstance(gathering, ConcatenatedOutput) or gathering.inner or tensor.dim() <= gathering.dim:
            return tensor
        every, rest = divmod(tensor.size(gathering.dim), split.total)
        return tensor if rest or not every else split.sliced(tensor, gathering.dim, every=every)

    _, left = outcome(module, None, sides)
    _, own_left = mapped((None, left), own)
    assign_side_outputs(module, own_left)


def can_continue(
    module: nn.Module, gatherings: Mapping[Path, Gathering], sides: Iterable[SideOutput], total: int
) -> bool:
    """Return whether a call of `total` samples can continue from slices of the side outputs."""
    _, left = outcome(module, None, sides)
    return not any(
        isinstance(found := gatherings.get(path), ConcatenatedOutput)
        and tensor.dim() > found.dim
        and tensor.size(found.dim) % total
        for path, tensor in leaves((None, left))
    )


def gather_outcome(value: Any, gatherings: Mapping[Path, Gathering], split: BatchSplit, *, what: str) -> Any:
    """Return the outcome of the whole batch; raise `UsageError` for an unknown tensor."""
    if any(path not in gatherings for path, _ in leaves(value)):
        raise UsageError(
            f"{what} returns or keeps other tensors than in its first call of this signature, which "
            "cannot be gathered."
        )
    return mapped(value, lambda path, part: gatherings[path].gather(part, split))
