"""Runs a program as ``__main__`` in this process, as a fresh interpreter would.

A worker forked from the launcher has torch imported already; everything else about its origin must be
hidden: ``sys.argv``, ``sys.path[0]`` and ``__main__`` are the program's own (multiprocessing
finds it by ``__spec__`` and ``__file__``), and a traceback begins at the user's first frame.
"""

import atexit
import errno
import gc
import importlib.util
import io
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass, replace
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, FrameType, ModuleType, TracebackType
from typing import Any, NoReturn

from samestep.base.console import log
from samestep.base.errors import INTERRUPTED, DeviceFailed, Error, UsageError, WorldError
from samestep.base.folders import PACKAGE, shown
from samestep.launch.job import Program
from samestep.launch.local.output import is_regular
from samestep.launch.source.modules import is_safe_path

_LINE_OF_TRACEBACK = re.compile(r'^  File "(.+)", line (\d+), in ', re.MULTILINE)
_STANDARD_LIBRARY = str(Path(os.__file__).parent)
_UNWRITTEN = 120
"""Exit code of an interpreter whose last output could not be written, as on a full disk."""
_hosted: list[str] = []
LIMIT_S = 10.0
"""Seconds for the script's `atexit` functions, which may wait for something that no longer comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """End of a hosted program."""

    exit_code: int = 0  # exit code of a fresh interpreter with the same end
    error: str = ""  # name of the exception's class that ended it; empty for a normal end or `sys.exit`
    message: str = ""  # the exception's text
    traceback: str = ""  # the traceback as Python prints it
    line: str = ""  # the program's line that led to the exception, as ``file:line``
    unwritten: str = ""  # the file that could not be written and the reason, if that ended the program
    headline: str = ""  # the failure in one line, where it is not that this program failed
    details: str = ""  # what the log file gets instead of the traceback; empty for the same


def host(program: Program, send_provisional: Callable[[Ending], None] | None = None) -> Ending:
    """Run a script or module to its end and return how it ended.

    Args:
        program: the program to run.
        send_provisional: called with the failure before the program's own ``sys.excepthook``, which may
            end the process or fail. The output of that hook becomes the ending's traceback; without
            `send_provisional` it is printed at once.
    """
    _hosted.append(program.target)
    try:
        module, code = _main_module(program)
        # multiprocessing's children use the second name in the objects that they send back.
        sys.modules["__main__"] = sys.modules["__mp_main__"] = module
        exec(code, module.__dict__)  # noqa: S102 - running the user's program is the point
    except SystemExit as stop:
        return exited(stop)
    except BaseException as error:  # noqa: BLE001 - reported to the launcher, whatever it is
        failed = error
    else:
        return Ending()
    # Called outside the handler, so that an error of the program's hook has no context.
    return _in_its_own_words(failed, ending_of(failed), send_provisional)


def is_hosting() -> bool:
    """Return whether this process runs a program by `host`, which returns its end."""
    return bool(_hosted)


def leave(exit_code: int) -> NoReturn:
    """End this process as the interpreter would, but without the teardown of its modules.

    Threads are waited for, atexit handlers run, the program's globals are released and files are flushed:
    TensorBoard and wandb lose nothing, nor does a file that the program has not closed. The teardown takes
    0.4 s with torch loaded and frees only what the system frees anyway.
    """
    try:
        # Ctrl-C ends the current one of these steps, not the others.
        with suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - as multiprocessing does
        with suppress(BaseException):
            _run_exit_functions()
        with suppress(BaseException):
            release_program()
        with suppress(BaseException):
            if not _is_written_out(sys.stdout):
                exit_code = _UNWRITTEN
        with suppress(BaseException):
            sys.stderr.flush()
    finally:
        os._exit(exit_code & 0xFF)


def _is_written_out(stream: Any) -> bool:
    """Flush stdout; return False, after a line about it, if it has output that cannot be written."""
    if stream is None or getattr(stream, "closed", False):
        return True
    try:
        stream.flush()
    except Exception as error:  # noqa: BLE001 - the stream may be the program's
        log(f"error: the last output could not be written: {error}.")
        return False
    return True


def _run_exit_functions() -> None:
    """Call the functions of `atexit`, as the interpreter does at its end; nothing is replaced."""
    atexit._run_exitfuncs()  # noqa: SLF001 - there is no public spelling


def release_program() -> None:
    """Release the program's globals, which closes its files and calls `__del__`, and flush all other files.

    The order is that of the interpreter: first the names that begin with one underscore. Globals that a
    thread uses stay, since the thread goes on. Nothing happens in a process without a hosted program.
    """
    if not is_hosting():
        return
    with suppress(Exception):  # the streams may be the program's own
        sys.stdout.flush()
    names = {} if _has_threads() else sys.modules["__main__"].__dict__
    for is_private in (True, False):
        for name in list(names):
            if (name[:1] == "_" and name[:2] != "__") == is_private and name != "__builtins__":
                names[name] = None
    _flush(_file_streams())


def _has_threads() -> bool:
    """Return whether another thread runs code of the user."""
    frames = sys._current_frames()  # noqa: SLF001 - the one way to see other threads
    frames.pop(threading.get_ident(), None)
    stacks = map(traceback.walk_stack, frames.values())
    return any(_is_users(frame.f_code.co_filename) for stack in stacks for frame, _ in stack)


def ending_of(error: BaseException) -> Ending:
    """Return the end of a program by an exception, with the report that Python prints.

    A `UsageError` and a `WorldError` are reported in one line: the input of samestep is wrong, or the ranks
    could not communicate; the program is not at fault.
    """
    visible, line, unwritten = _user_frames(error.__traceback__), _place_of(error), ""
    if isinstance(error, (UsageError, WorldError, DeviceFailed)):
        where = f" ({line})" if line else ""
        code, text = error.exit_code, f"samestep: error: {' '.join(str(error).split())}{where}\n"
    else:
        code = INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
        text = "".join(traceback.format_exception(type(error), error, visible))
        with suppress(Exception):  # the error and what it holds are the program's
            unwritten = write_failure(error)
    return Ending(
        exit_code=code,
        error=type(error).__name__,
        message=_message(error),
        traceback=text,
        line=line,
        unwritten=unwritten,
    )


def _in_its_own_words(
    error: BaseException, ending: Ending, send_provisional: Callable[[Ending], None] | None
) -> Ending:
    """Call the program's own ``sys.excepthook`` with the error, as the interpreter would."""
    if isinstance(error, (UsageError, WorldError, DeviceFailed)) or sys.excepthook is sys.__excepthook__:
        return ending
    visible = _user_frames(error.__traceback__)
    written = io.BytesIO()
    text = io.TextIOWrapper(written, errors="backslashreplace", write_through=True)
    if send_provisional is not None:
        send_provisional(ending)
    try:
        with redirect_stderr(sys.stderr if send_provisional is None else text):
            sys.excepthook(type(error), error.with_traceback(visible), visible)
    except SystemExit as stop:
        ending = replace(ending, exit_code=exited(stop).exit_code)
    except BaseException as another:  # noqa: BLE001 - reported besides the error itself
        broken = f"Error in sys.excepthook:\n{ending_of(another).traceback}\nOriginal exception was:\n"
        output = written.getvalue().decode(text.encoding)
        return replace(ending, traceback=output + broken + ending.traceback)
    return replace(ending, traceback=written.getvalue().decode(text.encoding))


def _message(error: BaseException) -> str:
    with suppress(Exception):  # its __str__ is the program's
        return str(error)
    return ""


def exited(stop: SystemExit) -> Ending:
    """Return the end by `sys.exit`: a number is the exit code, any other value is printed.

    The system keeps the last eight bits of a number: -1 is 255, and 256 is a success.
    """
    line = _place_of(stop)
    if stop.code is None or isinstance(stop.code, int):
        return Ending(exit_code=(stop.code or 0) & 0xFF, line=line)
    text = str(stop.code)
    return Ending(exit_code=1, error=SystemExit.__name__, message=text, traceback=f"{text}\n", line=line)


def _user_frames(trace: TracebackType | None) -> TracebackType | None:
    """Remove the frames of this folder, which called the user's code, from the top of a traceback."""
    folder = str(Path(__file__).parent)
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(folder):
        trace = trace.tb_next
    return trace


def _place_of(error: BaseException) -> str:
    """Return the innermost line of the user's code that led to an error, as ``file:line``; maybe empty.

    An error in a process of a DataLoader has the other process's traceback in its text.
    """
    place = ""
    for frame, line in traceback.walk_tb(_user_frames(error.__traceback__)):
        if frame.f_code.co_filename.startswith(PACKAGE) and place:
            break
        file = frame.f_code.co_filename
        if _is_users(file):
            place = f"{shown(file)}:{line}"
    return _place_in_text(_message(error)) or place


def _place_in_text(text: str) -> str:
    """Return the innermost line of the user's code in the traceback that a message contains."""
    _, _, trace = text.partition("Original Traceback (most recent call last):")
    lines = [f"{shown(file)}:{line}" for file, line in _LINE_OF_TRACEBACK.findall(trace) if _is_users(file)]
    return lines[-1] if lines else ""


def _is_users(file: str) -> bool:
    return "site-packages" not in file and not file.startswith((_STANDARD_LIBRARY, PACKAGE, "<"))


def _main_module(program: Program) -> tuple[ModuleType, CodeType]:
    """Return an empty ``__main__`` for the program, and its code; set argv and the path for it."""
    if program.kind == "module":
        return _from_module(program)
    path = Path(program.target)
    sys.argv = [program.target, *program.args]
    _search_first(str(path.resolve().parent))
    module = ModuleType("__main__")
    module.__file__ = str(path.absolute())
    module.__loader__ = SourceFileLoader("__main__", module.__file__)
    module.__dict__.update(__builtins__=__builtins__, __cached__=None, __annotations__={})
    return module, compile(path.read_bytes(), module.__file__, "exec", dont_inherit=True)


def _search_first(folder: str) -> None:
    """Let imports search the program's folder first, unless Python is to leave it out (PYTHONSAFEPATH)."""
    if not is_safe_path():
        sys.path[0] = folder
        unload_shadowed(folder)


def _from_module(program: Program) -> tuple[ModuleType, CodeType]:
    sys.argv = ["-m", *program.args]
    _search_first(str(Path.cwd()))
    spec = _module_spec(program.target)
    module = ModuleType("__main__")
    module.__dict__.update(
        __builtins__=__builtins__,
        __spec__=spec,
        __loader__=spec.loader,
        __file__=spec.origin,
        __package__=spec.parent,
        __cached__=spec.cached,
        __annotations__={},
    )
    sys.argv[0] = spec.origin or program.target
    code = spec.loader.get_code(spec.name) if isinstance(spec.loader, SourceFileLoader) else None
    if code is None:
        raise Error(f"module {program.target!r} has no code that could be run: {spec.origin}.")
    return module, code


def _module_spec(name: str) -> ModuleSpec:
    """Return the spec of the module run by ``-m name``; for a package, that of its ``__main__``.

    Imports the parent packages, as Python does before it runs a module.

    Raises:
        Error: there is no such module.
    """
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError:
        spec = None
    if spec is None:
        raise Error(f"there is no module {name!r} to run on the path {sys.path[0] or Path.cwd()}.")
    return spec


def exit_process(exit_code: int = 0, *, limit_s: float = LIMIT_S) -> NoReturn:
    """End this process, whatever exceptions the script catches.

    Open files are flushed and `atexit` functions are called; other threads are not waited for.
    """
    _flush(_file_streams())
    timer = threading.Timer(limit_s, _exit_late, [exit_code, limit_s])
    timer.daemon = True
    timer.start()
    with suppress(BaseException):  # loggers write their last records, temporary files are removed
        _run_exit_functions()
    _flush(_file_streams())
    _flush([sys.stdout, sys.stderr])
    _flush(_streams())  # last, because a pipe without a reader blocks
    os._exit(exit_code)


def _exit_late(exit_code: int, limit_s: float) -> NoReturn:
    with suppress(Exception):
        log(f"the script's atexit functions have not returned after {limit_s:.4g} s, and are abandoned.")
    os._exit(exit_code)


def _flush(streams: Any) -> None:
    for stream in streams:
        with suppress(Exception):  # a class of the script may fail here
            stream.flush()


def _file_streams() -> list[io.IOBase]:
    """Return the streams that write to a regular file."""
    return [stream for stream in _streams() if is_regular(stream)]


def _streams() -> list[io.IOBase]:
    """Return all buffered streams, except those that the launcher opened before it forked this process."""
    objects = gc.get_objects()
    kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, io.TextIOBase | io.BufferedIOBase)}
    return [stream for stream in objects if type(stream) in kinds]


_KEPT = {"__main__", "__mp_main__", "numpy", "samestep", "torch"}
"""Names that stay loaded: samestep and torch load more modules of these while the program runs."""
_LOADED_AT_START = {"_sitebuiltins", "encodings", "genericpath", "os", "posixpath", "site", "stat"}
"""Modules that every interpreter loads before the program, and that are not frozen in each version."""


def unload_shadowed(folder: str) -> list[str]:
    """Remove the loaded modules that the modules of a program's folder hide, and return their names.

    A fresh interpreter finds ``secrets.py`` beside the program before that of the library. In a worker the
    library's is loaded. Code that has imported it keeps it.
    """
    with suppress(OSError):  # Python ignores a folder that it cannot read
        beside = {entry.name.partition(".")[0] for entry in Path(folder).iterdir()}
        hidden = sorted(name for name in beside & set(sys.modules) if _is_hidden(name, folder))
        for loaded in [module for module in sys.modules if module.partition(".")[0] in hidden]:
            del sys.modules[loaded]
        return hidden
    return []


def _is_hidden(name: str, folder: str) -> bool:
    """Return whether a fresh interpreter would find another module of this name in `folder`."""
    if name in _KEPT or name in _LOADED_AT_START:
        return False
    if any(finder.find_spec(name) is not None for finder in (BuiltinImporter, FrozenImporter)):
        return False
    spec, loaded = PathFinder.find_spec(name, [folder]), getattr(sys.modules[name], "__file__", None)
    if spec is None or spec.origin is None:  # a folder without __init__.py comes after all others
        return False
    return loaded is None or Path(loaded).resolve() != Path(spec.origin).resolve()


_REASONS = frozenset({errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO, errno.EFBIG})
_OF_TORCH = ("inline_container", "PytorchStreamWriter", "PyTorchStreamWriter")
"""Parts of torch.save's error for a failed write, which has neither the file nor the reason."""


def write_failure(error: BaseException) -> str:
    """Return ``cannot write to PATH: REASON`` if a failed write caused the error; else an empty text."""
    chain = _chain(error)
    for link in chain:
        if isinstance(link, OSError) and link.errno in _REASONS:
            named = os.fsdecode(link.filename) if isinstance(link.filename, str | bytes) else ""
            return _text(named or _path(chain), os.strerror(link.errno))
        if isinstance(link, RuntimeError) and any(word in str(link) for word in _OF_TORCH):
            path = _path(chain)
            return _text(path, _reason(path)) if path and _reason(path) else ""
    return ""


def _chain(error: BaseException) -> list[BaseException]:
    """Return an error and its causes, the origin first."""
    chain = [error]
    while (before := chain[-1].__cause__ or chain[-1].__context__) is not None and before not in chain:
        chain.append(before)
    return chain[::-1]


def _text(path: str, reason: str) -> str:
    return f"cannot write to {path or 'a file'}: {reason}"


def _path(chain: list[BaseException]) -> str:
    """Return the file that was being written, from the frames of the errors, the innermost first."""
    for error in chain:
        for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
            if path := _in_frame(frame):
                return path
    return ""


def _in_frame(frame: FrameType) -> str:
    values = dict(frame.f_locals)
    if frame.f_globals.get("__name__") == "torch.serialization" and "f" in values:
        with suppress(TypeError):
            return os.fsdecode(values["f"])
    for value in values.values():
        # The file may be closed already.
        if isinstance(value, io.TextIOWrapper | io.BufferedWriter | io.BufferedRandom | io.FileIO):
            name, mode = getattr(value, "name", None), getattr(value, "mode", "r")
            if isinstance(name, str) and set(mode) & set("wax+") and not name.startswith("<"):
                return name
    return ""


def _reason(path: str) -> str:
    """Return why the file system of a path accepts no more data; empty if the reason is not visible now."""
    folder = os.path.dirname(os.path.abspath(path))  # noqa: PTH100, PTH120 - links stay as they are
    with suppress(OSError):
        status = os.statvfs(folder)
        if status.f_flag & os.ST_RDONLY:
            return os.strerror(errno.EROFS)
        if status.f_bavail * status.f_frsize < 1 << 20:
            return os.strerror(errno.ENOSPC)
        if not os.access(folder, os.W_OK):
            return os.strerror(errno.EACCES)
    return ""
