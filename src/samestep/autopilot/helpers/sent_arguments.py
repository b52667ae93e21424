"""Pickles the arguments of a call apart from its message, so that helpers can read the message in any case.

Some objects can be pickled, but not made again: an exception or a tuple whose class requires other arguments
than it stores. A helper then reports this error, and the main rank computes the call.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from samestep.autopilot.helpers.messages import form_of
from samestep.autopilot.helpers.mirrors import MirrorError
from samestep.autopilot.helpers.pickling import pickled, scripts_modules_by_value, unpickled


@dataclass(frozen=True, slots=True)
class SentArguments:
    """Arguments with objects of unknown contents."""

    content: bytes
    tensors: list[Tensor]
    """Their tensors, which are sent like those of other messages."""


def sent(arguments: Any) -> Any:
    """Return the arguments of a call as a message holds them: as they are if all their parts are known.

    Raises:
        MirrorError: an object cannot be pickled.
    """
    if form_of(arguments, []) is not None:
        return arguments
    places: dict[int, int] = {}
    tensors: list[Tensor] = []

    def refer(tensor: Tensor) -> int:
        if id(tensor) not in places:
            places[id(tensor)] = len(tensors)
            tensors.append(tensor)
        return places[id(tensor)]

    try:
        with scripts_modules_by_value():
            return SentArguments(pickled(arguments, refer), tensors)
    except Exception as error:  # noqa: BLE001 - of any object of the script
        raise MirrorError(f"its arguments cannot be sent to helpers ({type(error).__name__})") from None


def received(arguments: Any) -> Any:
    """Return the arguments of a call from those of its message.

    Raises:
        Exception: an object cannot be made again.
    """
    if isinstance(arguments, SentArguments):
        return unpickled(arguments.content, arguments.tensors.__getitem__)
    return arguments
