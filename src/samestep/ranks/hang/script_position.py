"""Finds the line of the script, and the blocking call, that a thread executes.

From such lines of two ranks it decides whether one has left the training loop in which the other one is.
"""

import ast
import linecache
import sys
import sysconfig
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FrameType
from typing import TypeAlias

from samestep.base.folders import PACKAGE, shown
from samestep.base.worker_records import Frame, callers, frames_of

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


def position_of(frames: Iterable[FrameType]) -> int:
    """Return a number that changes when a thread moves, except within samestep, which polls as it waits."""
    return hash(
        tuple(
            (id(frame.f_code), frame.f_lasti)
            for frame in frames
            if not frame.f_code.co_filename.startswith(PACKAGE)
        )
    )


def line_of(frames: Iterable[FrameType]) -> str:
    """Return the innermost line of the script in `frames`, as ``file:line``; empty without one."""
    for frame in frames:
        if is_script(frame.f_code.co_filename):
            return f"{shown(frame.f_code.co_filename)}:{frame.f_lineno}"
    return ""


def current_line() -> str:
    """Return the line of the script that the calling thread executes, as ``file:line``."""
    frames = callers(sys._getframe(1))  # noqa: SLF001 - the public way copies the whole stack
    return line_of(frames) or "outside of the script"


def current_place() -> tuple[str, int] | None:
    """Return the file and line of the script that the calling thread executes; None outside of the script."""
    file, _, number = line_of(callers(sys._getframe(1))).rpartition(":")  # noqa: SLF001 - as above
    return (file, int(number)) if file else None


def place_of_code(code: CodeType) -> tuple[str, int]:
    """Return the file and the first line of a function's code."""
    return shown(code.co_filename), code.co_firstlineno


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
    is_new, frame.f_trace_lines = frame.f_trace_lines, False  # an attribute that Python lets tools set
    return BlockedCall(op, id(frame), is_new)


def _with_source(file: str, line: int) -> str:
    text = linecache.getline(file, line).strip()
    text = text if len(text) <= _TEXT else f"{text[: _TEXT - 3]}..."
    return f"{file}:{line}" + (f": {text}" if text else "")


_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_Loop: TypeAlias = ast.For | ast.AsyncFor | ast.While
_OF_STEPS = ("backward", "step")  # methods whose call makes a loop a training loop


def is_in_training_loop(line: str) -> bool:
    """Return whether a position, as ``file:line: text``, is in a loop that takes optimizer steps."""
    file, number = _place(line)
    with suppress(RecursionError):  # of a very deep script
        tree = _parsed(file)
        return tree is not None and bool(_training_loops(tree, number))
    return False


def is_in_step(line: str) -> bool:
    """Return whether a position is in a loop that takes optimizer steps without a loop inside of it."""
    file, number = _place(line)
    with suppress(RecursionError):
        tree = _parsed(file)
        loops = [] if tree is None else [node for node in _around(tree, number) if isinstance(node, _Loop)]
        return bool(loops) and _takes_steps(loops[-1]) and not any(map(_takes_steps, _loops_in(loops[-1])))
    return False


def has_left_loop(line: str, inside: str) -> bool:
    """Return whether a rank at one line has left the training loop in which a rank at another line is.

    A line that a rank reaches by a condition proves nothing about the loop: the condition may be its rank.
    Both positions are as ``file:line: text``.
    """
    (file, here), (inside_file, there) = _place(line), _place(inside)
    with suppress(RecursionError):
        tree = _parsed(file) if file == inside_file else None
        loops = [] if tree is None else _training_loops(tree, there)
        return tree is not None and bool(loops) and _is_behind(tree, here, loops[-1])
    return False


def _place(line: str) -> tuple[str, int]:
    file, _, rest = line.partition(".py:")
    number = rest.partition(":")[0]
    return (f"{file}.py", int(number)) if number.isdigit() else ("", 0)


@cache
def _parsed(file: str) -> ast.Module | None:
    try:
        return ast.parse(Path(file).read_text(encoding="utf-8")) if file else None
    except (OSError, ValueError, SyntaxError):
        return None


def _training_loops(tree: ast.AST, line: int) -> list[_Loop]:
    """Return the loops around a line that take steps, outermost first."""
    return [node for node in _around(tree, line) if isinstance(node, _Loop) and _takes_steps(node)]


def _around(tree: ast.AST, line: int) -> Iterator[ast.AST]:
    """Yield the nodes with statements that contain a line, outermost first."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno):
            yield node
            yield from _around(node, line)
        elif isinstance(node, ast.ExceptHandler | ast.match_case):
            yield from _around(node, line)


def _loops_in(loop: _Loop) -> list[ast.AST]:
    return [node for node in ast.walk(loop) if isinstance(node, _Loop) and node is not loop]


def _calls(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the name of each called function or method, and the line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            yield name, node.lineno


def _takes_steps(loop: ast.AST) -> bool:
    return any(name in _OF_STEPS for name, _ in _calls(loop))


def _function(tree: ast.AST, line: int) -> _Function | None:
    """Return the innermost function that contains a line."""
    functions = [node for node in _around(tree, line) if isinstance(node, _Function)]
    return functions[-1] if functions else None


def _is_behind(tree: ast.AST, line: int, loop: _Loop) -> bool:
    """Return whether every rank executes a line after a loop: below it, or in a function called later."""
    of_loop, of_line = _function(tree, loop.lineno), _function(tree, line)
    if of_line is of_loop:
        end = loop.end_lineno or loop.lineno
        return line > end and not _is_conditional(tree, line, end)
    if of_loop is None or (of_line is not None and _takes_steps(of_line)):
        return False
    # A caller of both functions, or the function of the line itself, calls the loop's function before.
    return any(
        first < later and not _is_conditional(tree, later, first)
        for first in _calls_of(tree, of_loop.name)
        for later in ([line] if of_line is None else [line, *_calls_of(tree, of_line.name)])
        if _function(tree, first) is _function(tree, later)
    ) and not (of_line is not None and _is_conditional(of_line, line, of_line.lineno))


def _calls_of(tree: ast.AST, name: str) -> list[int]:
    return [line for called, line in _calls(tree) if called == name]


def _is_conditional(tree: ast.AST, line: int, before: int) -> bool:
    """Return whether a line is under a condition that an earlier line is not under, or may be skipped."""
    around = [node for node in _around(tree, line) if isinstance(node, ast.If)]
    if any(not node.lineno <= before <= (node.end_lineno or 0) for node in around):
        return True
    return any(
        isinstance(node, ast.If) and before < node.lineno < line and _skips(node) for node in ast.walk(tree)
    )


def _skips(node: ast.If) -> bool:
    return any(isinstance(statement, ast.Continue | ast.Return | ast.Break) for statement in ast.walk(node))
