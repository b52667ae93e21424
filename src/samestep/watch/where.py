"""Which line of the script a thread is in."""

import linecache
import sys
import sysconfig
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch

_OURS = str(Path(__file__).parents[1])
_TORCH = str(Path(torch.__file__).parent)
_LIBRARIES = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")} | {_OURS, _TORCH}
)
_TEXT = 80
"""Characters of a line that are told."""
_PEER = {"recv": ("src", "group_src"), "send": ("dst", "group_dst")}
_COLLECTIVES = {
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "monitored_barrier",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
}


def is_script(file: str) -> bool:
    """Return whether a file is the user's own: no library, nor the interpreter's."""
    return not file.startswith((*_LIBRARIES, "<"))


def main_frames() -> list[FrameType]:
    """Return what the main thread is in, innermost first; nothing where there is no such thread any more."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001 - documented so
    return list(_outwards(frame))


def line_of(frames: Iterable[FrameType]) -> str:
    """Return the script's line in `frames`, as ``file:line``; empty where the script is not in them."""
    for frame in frames:
        if is_script(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
    return ""


def line_here() -> str:
    """Return the script's line that the calling thread is in, as ``file:line``."""
    frames = _outwards(sys._getframe(1))  # noqa: SLF001 - the public way copies the whole stack
    return line_of(frames) or "outside of the script"


def with_text(line: str) -> str:
    """Return a ``file:line`` with the text of the line."""
    file, _, number = line.rpartition(":")
    return _told(file, int(number)) if number.isdigit() else line


@dataclass(frozen=True, slots=True)
class Blocked:
    """A call in which a thread waits for other ranks.

    It does not keep the call's frame, which would keep what all the callers have in hand once they return:
    batches, loaders and their worker processes.
    """

    op: str
    call: int
    """Equal for all looks at one call, and maybe for a later call."""
    ranks: tuple[int, ...] = ()
    """Those waited for; none where it is all of them."""
    is_new: bool = field(default=True, compare=False)
    """Whether the call had not been looked at before."""


def blocked_in(frames: list[FrameType]) -> Blocked | None:
    """Return what a thread waits in for others, by its frames: for what the flight recorder does not have."""
    for frame in frames:
        name, file = frame.f_code.co_name, frame.f_code.co_filename
        if name == "_joined" and file.startswith(_OURS):
            return _blocked("samestep.join", frame)
        if name == "await_message" and file.startswith(_OURS):
            peer = frame.f_locals.get("peer")
            return _blocked(str(frame.f_locals.get("op")), frame, peer)
        if not file.startswith(_TORCH):
            continue
        if name == "init_process_group":
            return _blocked(name, frame)
        if file.endswith("distributed_c10d.py") and (name in _COLLECTIVES or name in _PEER):
            peers = [frame.f_locals.get(key) for key in _PEER.get(name, ())]
            return _blocked(name, frame, *peers)
    return None


def _blocked(op: str, frame: FrameType, *peers: Any) -> Blocked:
    """Return what is waited in, and mark its frame as looked at.

    Nothing can refer to a frame weakly, and its address is soon another's. The mark makes a debugger pass
    over the rest of the call, which is not the script's.
    """
    is_new, frame.f_trace_lines = frame.f_trace_lines, False
    ranks = tuple(peer for peer in peers if isinstance(peer, int))[:1]
    return Blocked(op, id(frame), ranks, is_new)


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _told(file: str, line: int) -> str:
    text = linecache.getline(file, line).strip()
    text = text if len(text) <= _TEXT else f"{text[: _TEXT - 3]}..."
    return f"{file}:{line}" + (f": {text}" if text else "")
