"""The ``samestep`` command: loads the one verb asked for; an error is one line and an exit code."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from errno import ENAMETOOLONG
from importlib import import_module
from typing import Any

import typer

from samestep import __version__
from samestep.base.errors import Error, WorkerFailed, one_line
from samestep.base.owned_folders import remove_dead

VERBS: Mapping[str, str] = {
    "run": "Run a program on N workers.",
    "verify": "Show whether a script's run on several workers is its run on one.",
    "scale": "Measure what more workers bring, and where the rest goes.",
    "report": "Make a page of a run, of several side by side, or of a scaling study.",
    "train": "Train a built-in recipe on N workers, or go on with one.",
    "bench": "Measure what collectives and training steps take, in turns.",
    "submit": "Write a job for Slurm or MPI, submit it, and follow it.",
    "data": "List, fetch and check data sets.",
    "doctor": "Say what was detected here, from which variables, and what follows.",
}
"""Each verb is a function of its name in ``samestep.cli.<verb>``; a ``SETTINGS`` there is its context's.

Where it is an application instead, its commands follow the verb.
"""

_SHORT = 100
"""Characters of an argument that is no part of a name which is too long."""

INTERRUPTED = 130
"""The exit code after Ctrl-C, as a shell counts it: 128 + SIGINT."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit; `arguments` are those after the program's name."""
    code = run_command(sys.argv[1:] if arguments is None else arguments)
    hosting = sys.modules.get("samestep.launch.hosting")
    if "torch" in sys.modules and hosting is not None and not hosting.is_hosting():
        # Taking torch apart takes 0.4 s, and aborts where a thread that watches the ranks is inside of it.
        hosting.leave(code)
    sys.exit(code)


def run_command(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code.

    0 is success, 2 wrong input (nothing was done), 1 or a worker's own code a failure on the way.
    """
    verb = next((argument for argument in arguments if not argument.startswith("-")), None)
    if verb != "doctor" or "--clean" not in arguments:  # which reports what it removes
        with suppress(OSError):  # the temporary directory may be gone
            remove_dead()
    try:
        # Called itself, the application would put a hook of its own in the way of a hosted program's errors.
        command = typer.main.get_command(application(verb))
        code = command(list(arguments), prog_name="samestep", standalone_mode=False)
    except typer.TyperException as error:
        return _complain(error.format_message(), hint=_help_of(verb), code=2)
    except WorkerFailed as error:  # its message holds the worker's own traceback
        print(f"samestep: error: {error}", file=sys.stderr)
        return error.exit_code
    except Error as error:
        return _complain(str(error), code=error.exit_code)
    except OSError as error:
        name = str(error.filename)
        if error.errno != ENAMETOOLONG or not any(_is_about(one, name) for one in arguments):
            raise
        return _complain(f"{name} is too long for the name of a file. Give a shorter one.", code=2)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    return code if isinstance(code, int) else 0


def application(verb: str | None) -> typer.Typer:
    """Return the application with `verb` loaded and the other verbs only named.

    Loading all of them would cost what the slowest needs; ``samestep --help`` needs their names.
    """
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.callback(invoke_without_command=True)(_samestep)
    for name, summary in VERBS.items():
        if name == verb:
            module = import_module(f"samestep.cli.{name}")
            settings: dict[str, Any] = getattr(module, "SETTINGS", {})
            function = getattr(module, name)
            if isinstance(function, typer.Typer):
                app.add_typer(function, name=name, short_help=summary)
            else:
                app.command(name, help=None, short_help=summary, context_settings=settings)(function)
        else:
            app.command(name, short_help=summary)(_named_only)
    return app


def _samestep(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version."),
    local_rank: int | None = typer.Option(None, "--local-rank", "--local_rank", hidden=True),  # noqa: ARG001
) -> None:
    """Run PyTorch training on N workers, with the steps and the result of one."""
    # torch.distributed.launch hands each program its local rank, which the environment tells as well.
    if version:
        print(f"samestep {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


def _named_only() -> None:
    """Stand for a verb that was not asked for."""


def _is_about(argument: str, name: str) -> bool:
    """Return whether the name of a file comes from an argument, alone or behind a flag."""
    value = argument.rpartition("=")[2]
    return value in name if len(value) > _SHORT else name in argument


def _help_of(verb: str | None) -> str:
    return f"samestep {verb} --help" if verb in VERBS else "samestep --help"


def _complain(message: str, *, code: int, hint: str = "") -> int:
    """Print one line on stderr and return the exit code."""
    line = one_line(message)
    if hint:
        line = f"{line}{'' if line.endswith(('.', '?', '!')) else '.'} See: {hint}"
    print(f"samestep: error: {line}", file=sys.stderr)
    return code
