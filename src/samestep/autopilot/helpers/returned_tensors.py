"""Lets the script get the tensors from a split call that it would get from an unsplit one.

A module may return an argument as it is, or a tensor twice, or keep it in an attribute, too. A script may
then change it in place, and see the change under its other name::

    hidden, mask = model(x, mask)
    mask.zero_()
"""

from typing import Any

from torch import Tensor

from samestep.autopilot.split.call_arguments import CallArguments, Dims, depth_of_list
from samestep.hooks.tensor_tree import Path, leaves, mapped


class ReturnedTensors:
    """The whole tensors of a call's results, by the tensors that this rank's slice has given."""

    def __init__(self, own: CallArguments, given: CallArguments, dims: Dims) -> None:
        arguments, parts = dict(leaves(given.both)), leaves(own.both)
        self._arguments = {  # a sample in a list is no result
            id(part): arguments[path] for path, part in parts if depth_of_list(path, dims) is None
        }
        self._own = own  # an identity is that of a tensor while this exists
        self._returned: dict[int, Tensor] = {}

    def united(self, parts: Any, whole: Any) -> Any:
        """Return whole results in which a tensor that the slice has given several times is one tensor."""
        by_path, first = dict(leaves(parts)), dict[tuple[int, Any], Tensor]()

        def united(path: Path, tensor: Tensor) -> Tensor:
            part = by_path[path]
            tensor = first.setdefault((id(part), tensor.shape), tensor)
            argument = self._arguments.get(id(part))
            if argument is not None and argument.shape == tensor.shape:
                self._returned[id(tensor)] = argument
            return tensor

        return mapped(whole, united)

    def is_argument(self, tensor: Tensor) -> bool:
        """Return whether a tensor of the results is an argument."""
        return id(tensor) in self._returned

    def for_script(self, whole: Any) -> Any:
        """Return the results with the arguments themselves; views become plain, to be detached in place."""
        found = dict[int, Tensor]()

        def own(_: Path, tensor: Tensor) -> Tensor:
            if (argument := self._returned.get(id(tensor))) is not None:
                return argument
            is_view = not tensor.requires_grad and tensor._is_view()  # noqa: SLF001 - no public spelling
            return found.setdefault(id(tensor), tensor.data if is_view else tensor)

        return mapped(whole, own)
