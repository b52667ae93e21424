"""Finds the line of the script, and the blocking call, that a thread executes."""

import linecache
import sys
import sysconfig
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

from samestep.base.folders import PACKAGE
from samestep.base.stack_dumps import Frame, callers, frames_of

_TORCH = str(Path(getattr(find_spec("torch"), "origin", None) or "torch").parent)
_LIBRARIES = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")} | {PACKAGE, _TORCH}
)
_DDP = str(Path(_TORCH) / "nn" / "parallel" / "distributed.py")
_DDP_PARTS = {
    "_sync_buffers": "the buffers",
    "_pre_forward": "the rebuilt buckets",
    "__init__": "the construction",
}
"""Words for the collectives of `DistributedDataParallel`, by the methods that call them."""
_TEXT = 80  # maximum characters of a source line in messages
_BLOCKING = {
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
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
    "send",
}


def is_script(file: str) -> bool:
    """Return whether a file is user code: no library, and no file of the interpreter."""
    return not file.startswith((*_LIBRARIES, "<"))


def main_frames() -> list[FrameType]:
    """Return the frames of the main thread, innermost first; empty if the thread has ended."""
    return frames_of(threading.main_thread().ident)


def line_of(frames: Iterable[FrameType]) -> str:
    """Return the innermost line of the script in `frames`, as ``file:line``; empty without one."""
    for frame in frames:
        if is_script(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
    return ""


def current_line() -> str:
    """Return the line of the script that the calling thread executes, as ``file:line``."""
    frames = callers(sys._getframe(1))  # noqa: SLF001 - the public way copies the whole stack
    return line_of(frames) or "outside of the script"


def current_place() -> tuple[str, int] | None:
    """Return the file and line of the script that the calling thread executes; None outside of the script."""
    file, _, number = line_of(callers(sys._getframe(1))).rpartition(":")  # noqa: SLF001 - as above
    return (file, int(number)) if file else None


def with_text(line: str) -> str:
    """Return a ``file:line`` with the source of the line."""
    file, _, number = line.rpartition(":")
    return _with_source(file, int(number)) if number.isdigit() else line


@dataclass(frozen=True, slots=True)
class BlockedCall:
    """A call in which a thread waits for other ranks.

    It has no reference to the call's frame, which would keep the local variables of all callers alive after
    they return: batches, loaders and their worker processes.
    """

    op: str
    call: int  # id of the frame: equal for all samples of one call, and possibly for a later call
    is_new: bool = field(default=True, compare=False)  # whether the call is sampled for the first time


def name_of_blocking(frames: Iterable[Frame]) -> str:
    """Return the collective in which the thread of a stored stack is; empty for none."""
    for frame in frames:
        if frame.file.startswith(_TORCH) and frame.function in _BLOCKING:
            return frame.function
        if frame.file == _DDP and frame.function in _DDP_PARTS:
            return "broadcast"
        if frame.file.startswith(_TORCH) and frame.function == "_engine_run_backward":
            return "all_reduce"  # of gradients
    return ""


def blocked_in(frames: list[FrameType]) -> BlockedCall | None:
    """Return the call of a thread that waits for all ranks, from the names of the functions in its stack."""
    for frame in frames:
        name, file = frame.f_code.co_name, frame.f_code.co_filename
        if name == "_joined" and file.startswith(PACKAGE):
            return _blocked("samestep.join", frame)
        if not file.startswith(_TORCH):
            continue
        if name == "init_process_group" or (file.endswith("distributed_c10d.py") and name in _BLOCKING):
            return _blocked(name, frame)
    return None


def ddp_part(frames: Iterable[FrameType]) -> str:
    """Return the part of `DistributedDataParallel` that a thread executes: `_DDP_PARTS`, or empty."""
    for frame in frames:
        if frame.f_code.co_name in _DDP_PARTS and frame.f_code.co_filename == _DDP:
            return _DDP_PARTS[frame.f_code.co_name]
    return ""


def ddp_part_of_traceback(text: str) -> str:
    """Return the part of `DistributedDataParallel` that raised, from a traceback as text; see `ddp_part`."""
    parts = (
        part
        for function, part in _DDP_PARTS.items()
        if f'{_DDP}", line ' in text and f"in {function}\n" in text
    )
    return next(parts, "")


def _blocked(op: str, frame: FrameType) -> BlockedCall:
    """Return the blocked call, and mark its frame as sampled.

    Frames have no weak references, and their addresses are reused. The mark, `f_trace_lines`, makes a
    debugger skip the rest of the call, which is not in the script.
    """
    is_new, frame.f_trace_lines = frame.f_trace_lines, False
    return BlockedCall(op, id(frame), is_new)


def _with_source(file: str, line: int) -> str:
    text = linecache.getline(file, line).strip()
    text = text if len(text) <= _TEXT else f"{text[: _TEXT - 3]}..."
    return f"{file}:{line}" + (f": {text}" if text else "")
