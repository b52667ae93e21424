"""Records the calls in which this process waits for other ranks, for calls that torch's recorder lacks."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
import torch.distributed as dist

from samestep.hooks import declarations
from samestep.hooks.registry import attached_all, wrapping

_MAIN = threading.main_thread().ident
_numbers = count(1)


class Call(NamedTuple):
    """A call in which this process waits; one is created for every message, so it is cheap."""

    op: str  # ``send``, ``recv``, ``exchange`` or the name of a collective
    peer: int | None  # the rank it waits for; None for all ranks
    number: int  # its number among the calls of this process
    alone: bool  # whether the rank can do nothing else until the peer answers: no other message is under way
    in_main: bool  # whether it is a call of the main thread


class CallRecord:
    """The call in which a world, or the script, waits; read from other threads."""

    def __init__(self) -> None:
        self.call: Call | None = None
        self.has_failed = False  # whether the call has failed, and the rank searches for the reason
        _records.add(self)

    def begin(self, op: str, peer: int | None, alone: bool) -> Call:  # noqa: FBT001 - called for every message
        """Record that a wait begins; see `Call`."""
        self.call = call = Call(op, peer, next(_numbers), alone, threading.get_ident() == _MAIN)
        return call

    def end(self) -> None:
        """Record that the wait is over."""
        self.call = None


_records: "WeakSet[CallRecord]" = WeakSet()
_script = CallRecord()
_root: list[tuple[str, int]] = []  # name and root of the collective that the script's main thread calls
_ROOTS = {"broadcast": (1, "src"), "reduce": (1, "dst"), "gather": (2, "dst"), "scatter": (2, "src")}
"""Position and name of the root among the arguments of each collective that has one."""
_failed: list[Call] = []  # the last message of the script whose call has raised


def call_of_main_thread() -> Call | None:
    """Return the recorded call in which the main thread waits; one that has failed does not count."""
    calls = [record.call for record in tuple(_records) if not record.has_failed]
    return next((call for call in calls if call is not None and call.in_main), None)


def root_of_main_thread(op: str) -> int | None:
    """Return the root of the collective `op` that the script's main thread calls; None if it is unknown."""
    return next((root for name, root in tuple(_root) if name == op), None)


def failed_message() -> Call | None:
    """Return the last call of `send` or `recv` of the script that has raised."""
    return _failed[-1] if _failed else None


@contextmanager
def recorded_messages() -> Iterator[None]:
    """Record messages, and roots of collectives, of the script's main thread, for the duration of a block.

    Other threads can wait for ever for messages that need not come.
    """
    hooks = {
        declarations.AWAITED_SEND: wrapping(partial(_recorded, "send", "dst")),
        declarations.AWAITED_RECV: wrapping(partial(_recorded, "recv", "src")),
    }
    hooks |= {hook: wrapping(partial(_with_root, hook.attribute)) for hook in declarations.ROOTED_COLLECTIVES}
    with attached_all(hooks):
        yield


def _recorded(op: str, name: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if torch.compiler.is_compiling() or threading.get_ident() != _MAIN:
        return original(*args, **kwargs)
    call = _script.begin(op, _peer(name, args, kwargs), False)  # noqa: FBT003
    try:
        return original(*args, **kwargs)
    except RuntimeError:
        _failed[:] = [call]
        raise
    finally:
        _script.end()


def _with_root(op: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    position, name = _ROOTS[op]
    root = args[position] if len(args) > position else kwargs.get(name)
    if torch.compiler.is_compiling() or threading.get_ident() != _MAIN or not isinstance(root, int):
        return original(*args, **kwargs)
    _root[:] = [(op, root)]
    try:
        return original(*args, **kwargs)
    finally:
        _root.clear()


def _peer(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """Return the other rank of a message, in the job; None for any rank, or for wrong arguments."""
    peer = args[1] if len(args) > 1 else kwargs.get(name)
    if peer is None and isinstance(in_group := kwargs.get(f"group_{name}"), int):
        group = args[2] if len(args) > 2 else kwargs.get("group")
        peer = in_group if group is None else dist.get_global_rank(group, in_group)
    return peer if isinstance(peer, int) else None
