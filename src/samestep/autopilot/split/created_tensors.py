"""Recognizes the tensors that a call creates, such as an initial state that requires a gradient.

A leaf of a call's graph that the script holds is either one of its weights, or a tensor that the call has
created from its slice. Comparing the values of leaves across ranks waits for the device; whether a call has
created a leaf is known on the host.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from samestep.hooks.tensor_tree import leaves


class CreatedTensors(TorchFunctionMode):
    """A context that records the tensors that functions of torch return and have not got as arguments.

    Parameters that a call creates are not among them: their constructor is no such function.
    """

    def __init__(self) -> None:
        super().__init__()
        self._found = WeakTensorKeyDictionary()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one function."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        given = {id(tensor) for _, tensor in leaves((args, dict(kwargs)))}
        for _, tensor in leaves(result):
            if id(tensor) not in given:
                self._found[tensor] = True
        return result

    def __contains__(self, tensor: object) -> bool:
        """Return whether the call has created a tensor."""
        return tensor in self._found
