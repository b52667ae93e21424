"""Runs the ``samestep`` command: loads one verb, and turns an error into one line and an exit code."""

import io
import shlex
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from errno import ENAMETOOLONG
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from samestep import __version__
from samestep.base import env
from samestep.base.console import discard_output, open_standard_streams
from samestep.base.errors import Error, UsageError
from samestep.base.signals import end_by_interrupt_with, ended_by_interrupt, set_last_output
from samestep.cli.help_text import common_first, help_of, plain_if_narrow, without_needless_types
from samestep.cli.other_names import MISSING_COMMANDS, answer_to, own_name

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from samestep.cli.failures import Failure

VERBS: Mapping[str, str] = {
    "run": "Run a program on N workers.",
    "verify": "Check that a script takes the same steps on several workers as on one.",
    "scale": "Measure the speedup of more workers, and the causes of lost efficiency.",
    "stacks": "Show what each worker of a run on this host is doing.",
    "report": "Write a page about a run, a comparison of runs, or a scaling study.",
    "train": "Train a built-in recipe on N workers, or resume a run.",
    "bench": "Measure the time of collectives and of training steps.",
    "submit": "Write a job for Slurm or Kubernetes, submit it, and follow it.",
    "data": "List, fetch and check data sets.",
    "doctor": "Report what is detected here and from which variables, and find problems.",
}
"""The verbs of this package and their summaries; `added_verbs` has those of others.

Each verb is a function, or an application of several commands, with its name in ``samestep.cli.<verb>``. A
``SETTINGS`` there holds the settings of its context.
"""

GROUP = "samestep.commands"
"""The group of entry points by which other packages add verbs.

An entry point has the name of a verb and names its application, such as ``lab = "samestep_lab.command:lab"``.
The summary of the verb is that of its package, so that ``samestep --help`` lists it without importing it.
"""

PACKAGES: Mapping[str, str] = {"lab": "samestep-lab"}
"""Verbs with the packages that add them, which can be missing."""

_SETTINGS = {"help_option_names": ["-h", "--help"], "token_normalize_func": own_name}
_HELP = "help"
"""The first word of a command that prints the help of the command after it."""

_COMPLETE = "_SAMESTEP_COMPLETE"
"""Variable by which a shell asks for the words that complete a command."""

_COMPLETIONS = ("--install-completion", "--show-completion")
"""Options of typer that write or print what makes a shell complete words."""

_ON_ANY_SYSTEM = "report"
"""The verb that only reads and writes files; the others need Linux (fork, /proc, shared memory, affinity)."""
_SHORT = 100
"""Length from which an argument is compared as a whole with a file name that is too long."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit; `arguments` follow the name of the program."""
    open_standard_streams()
    code = run_command(sys.argv[1:] if arguments is None else arguments)
    with suppress(OSError):  # Python reports it at its end
        sys.stdout.flush()
    end_by_interrupt_with(code)
    hosting = sys.modules.get("samestep.launch.local.hosting")
    if "torch" in sys.modules and hosting is not None and not hosting.is_hosting():
        # Unloading torch takes 0.4 s, and aborts if the watchdog's thread is inside of it.
        hosting.leave(code)
    sys.exit(code)


def run_command(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code.

    The exit code is 0 for success, 2 for wrong input (nothing was started), and 1 or that of a worker for a
    later failure. With ``--json`` a failure is a document on stdout too.
    """
    words = arguments or completed_words(env.snapshot())
    asks_help = [*arguments[:1]] == [_HELP]
    words = words[1:] if asks_help else words
    verb = next((argument for argument in words if not argument.startswith("-")), None)
    try:
        if arguments:  # otherwise a shell asks for completions
            _set_last_output(verb, arguments)
            _prepare(verb, ["--help"] if asks_help else arguments)
        command = _command(verb)
        if asks_help:
            return _exit_code(_invoke(command, _words_for_help(command, words)))
        invoke = _write_completion if arguments and arguments[0] in _COMPLETIONS else _invoke
        return _exit_code(invoke(command, arguments))
    except BrokenPipeError:  # what reads the output has ended, such as `head`
        discard_output()
        return 1
    except KeyboardInterrupt as error:
        # Python ends by the signal, with another exit code, if Ctrl-C came while a library executed a text,
        # as dataclasses do, and it has executed none since.
        exec("")  # noqa: S102
        return _fail(error, verb, arguments)
    except Exception as error:  # noqa: BLE001 - an unexpected one is raised again
        return _fail(error, verb, arguments)


def _set_last_output(verb: str | None, arguments: Sequence[str]) -> None:
    """Let a Ctrl-C during imports, which ends this process at once, print the document of ``--json`` too."""
    text = ""
    if "--json" in arguments:
        from samestep.cli.failures import Failure, asks_json

        text = Failure.of(KeyboardInterrupt()).document() if asks_json(verb, arguments) else ""
    set_last_output(text)


def _command(verb: str | None) -> Any:
    # Calling the application itself would install typer's excepthook over that of a hosted program.
    command = typer.main.get_command(application(verb))
    common_first(getattr(command, "commands", {}))
    without_needless_types(command, _SETTINGS)
    refuse_empty_values(command)
    plain_if_narrow(command)
    return command


def _invoke(command: Any, arguments: Sequence[str]) -> Any:
    """Run a command; the application itself would end this process, and log no Ctrl-C."""
    words = list(arguments)
    if not words:  # a shell asks for completions
        return command(words, prog_name="samestep", standalone_mode=False)
    try:
        with command.make_context("samestep", words.copy(), obj=words) as context:
            return command.invoke(context)
    except typer.Exit as ended:
        return ended.exit_code


def _exit_code(result: Any) -> int:
    return result if isinstance(result, int) else 0


def _words_for_help(command: Any, words: Sequence[str]) -> list[str]:
    """Return the command that prints the help of the command that `words` name.

    Raises:
        UsageError: a word follows that is no command.
    """
    path: list[str] = []
    for word in words:
        commands = getattr(command, "commands", {})
        if path and not commands and not word.startswith("-"):
            names = " ".join(path)
            raise UsageError(f"samestep {names} has no command {word!r}; give: samestep help {names}")
        path += [word] * (not word.startswith("-"))
        command = commands.get(word)
    return [*path, "--help"]


def _fail(error: BaseException, verb: str | None, arguments: Sequence[str]) -> int:
    """Report the failure of a command, and return the exit code; one that is not expected is raised again."""
    from samestep.cli.failures import Failure, asks_json

    failure = _failure(error, arguments)
    code = None if failure is None else failure.log()
    if asks_json(verb, arguments):
        with suppress(OSError):  # it may be stdout that cannot be written
            print((failure or Failure.of(error)).document(), end="")
    if code is None:
        raise error
    return code


def _failure(error: BaseException, arguments: Sequence[str]) -> "Failure | None":
    """Return the failure that an exception of a command is; None if samestep does not expect it."""
    from samestep.cli.failures import USAGE_ERROR, Failure

    if isinstance(error, typer.TyperException):
        option = getattr(error, "option_name", None) or ""
        answer = answer_to(option, arguments) or _missing_command(error, arguments) or usage_text(error)
        end = "" if answer.endswith((".", "?", "!")) else "."
        return Failure(USAGE_ERROR, f"{answer}{end} See: {_help_of(error)}", 2)
    if isinstance(error, Error | KeyboardInterrupt):
        return Failure.of(error)
    if isinstance(error, (ImportError, OSError)) and _is_of_torch(error):
        text = f"torch cannot be imported ({error}). Install it, or load the libraries that it needs."
        return Failure(USAGE_ERROR, " ".join(text.split()), 2)
    if isinstance(error, OSError) and error.errno == ENAMETOOLONG:
        name = str(error.filename)
        if any(_is_about(argument, name) for argument in arguments):
            return Failure(USAGE_ERROR, f"{name} is too long for a file name; give a shorter one.", 2)
    if isinstance(error, OSError):  # of the result, as on a full disk, or of a file of the command
        from samestep.launch.local.hosting import write_failure

        if unwritten := write_failure(error):
            return replace(Failure.of(error), message=f"{unwritten}.")
    return None


def _is_of_torch(error: BaseException) -> bool:
    """Return whether torch has raised an error while it was imported, or is missing."""
    begun = [frame.f_globals.get("__name__") for frame, _ in traceback.walk_tb(error.__traceback__)]
    return getattr(error, "name", None) == "torch" or ("torch" in begun and "torch" not in sys.modules)


def _write_completion(command: Any, arguments: Sequence[str]) -> Any:
    """Run one of `_COMPLETIONS`, whose text is printed if it succeeds.

    Raises:
        UsageError: the shell is unknown, or its files cannot be written.
    """
    text = io.StringIO()
    try:
        with redirect_stdout(text), redirect_stderr(text):
            code = _invoke(command, arguments)
    except SystemExit:  # it has succeeded
        print(text.getvalue(), end="")
        raise
    except OSError as error:
        name = error.filename or "its file"
        raise UsageError(f"{arguments[0]}: {name} cannot be written: {error.strerror}.") from None
    if code:
        raise UsageError(
            f"{arguments[0]} does not recognize the shell that started it. Start it from bash, zsh, fish or "
            "PowerShell."
        )
    return code


def application(verb: str | None) -> typer.Typer:
    """Return the application with `verb` loaded, and the other verbs only listed.

    ``samestep --help`` needs their names, and importing all of them is slow.
    """
    app = typer.Typer(pretty_exceptions_enable=False, context_settings=_SETTINGS)
    app.callback(invoke_without_command=True, help=help_of(_samestep))(_samestep)
    for name, about in VERBS.items():
        if name == verb:
            with ended_by_interrupt():
                module = import_module(f"samestep.cli.{name}")
            settings: dict[str, Any] = {**_SETTINGS, **getattr(module, "SETTINGS", {})}
            function = getattr(module, name)
            if isinstance(function, typer.Typer):
                app.add_typer(function, name=name, short_help=about)
            else:
                text = help_of(function)
                app.command(name, help=text, short_help=about, context_settings=settings)(function)
        else:
            app.command(name, short_help=about)(_not_loaded)
    if verb not in VERBS:  # the search reads a file of each installed package
        _add_others(app, verb)
    return app


def _add_others(app: typer.Typer, verb: str | None) -> None:
    """Add the verbs of other packages to an application: `verb` loaded, the others only listed."""
    for name, entry in added_verbs().items():
        if name == verb:
            with ended_by_interrupt():
                added = entry.load()
            app.add_typer(added, name=name, short_help=_summary(entry))
        else:
            app.command(name, short_help=_summary(entry))(_not_loaded)


def added_verbs() -> Mapping[str, "EntryPoint"]:
    """Return the verbs that installed packages add, with their entry points."""
    from importlib.metadata import entry_points  # a sixth of what the command imports; most verbs are its own

    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _summary(verb: "EntryPoint") -> str:
    """Return the summary of the package that adds a verb."""
    return verb.dist.metadata["Summary"] or "" if verb.dist else ""


def _missing_package(verb: str | None) -> str | None:
    """Return how to install the package that adds `verb`, if it is known; None for any other word."""
    package = PACKAGES.get(verb or "")
    return package and f"samestep {verb} is in a package of its own; install it: pip install {package}"


def completed_words(environment: Mapping[str, str]) -> Sequence[str]:
    """Return the words after the program's name that a shell asks to complete, if it asks."""
    if _COMPLETE not in environment:
        return ()
    line = environment.get("COMP_WORDS") or environment.get("_TYPER_COMPLETE_ARGS", "")
    return line.split()[1:]


def _samestep(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", "-V", help="Print the version."),
    local_rank: int | None = typer.Option(None, "--local-rank", hidden=True),  # noqa: ARG001
) -> None:
    """Run PyTorch training on N workers, with the steps and the result of one."""
    # torch.distributed.launch passes --local-rank to each program; LOCAL_RANK has the same value.
    if version:
        print(f"samestep {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


def _prepare(verb: str | None, arguments: Sequence[str]) -> None:
    """Remove what dead processes left, or refuse a verb that does not work here.

    Raises:
        UsageError: the verb needs another system, or a package that is not installed.
    """
    if verb not in VERBS and verb not in added_verbs():
        if missing := _missing_package(verb):
            raise UsageError(missing)
        return
    try:
        Path.cwd()
    except FileNotFoundError:
        raise UsageError("the current folder does not exist any more. Change to another one.") from None
    if sys.platform == "linux":
        if not {"-h", "--help"}.intersection(arguments):
            _remove_dead_folders()
    elif verb != _ON_ANY_SYSTEM:
        raise UsageError(_needs_linux(verb))


def _needs_linux(verb: str) -> str:
    system = {"win32": "Windows", "darwin": "macOS"}.get(sys.platform, sys.platform)
    instead = "WSL 2 or a container" if system == "Windows" else "a container or a virtual machine"
    return (
        f"samestep {verb} needs Linux, and this is {system}. Start it in {instead}; "
        f"samestep {_ON_ANY_SYSTEM} works here."
    )


def _remove_dead_folders() -> None:
    from samestep.base.folders import remove_dead  # a tenth of what `samestep --help` imports

    with suppress(OSError):  # the temporary directory may be gone
        remove_dead()


def _not_loaded() -> None:
    """Stand in for a verb that is only listed."""


def _is_about(argument: str, name: str) -> bool:
    """Return whether a file name comes from an argument, alone or as the value of an option."""
    value = argument.rpartition("=")[2]
    return value in name if len(value) > _SHORT else name in argument


def _help_of(error: typer.TyperException) -> str:
    """Return the command that prints the help of the command, at any depth, that an error is about."""
    context: Any = getattr(error, "ctx", None)
    return f"{context.command_path if context else 'samestep'} --help"


def _missing_command(error: typer.TyperException, arguments: Sequence[str]) -> str | None:
    """Return which command to give, if words stand where one of several is expected; None elsewhere."""
    context: Any = getattr(error, "ctx", None)
    commands = getattr(getattr(context, "command", None), "commands", {})
    if not commands:
        return None
    message = error.format_message().rstrip(".")
    missing = (f"{context.command_path} {word}" for word in arguments)
    if command := next((name for name in missing if name in MISSING_COMMANDS), None):
        return f"there is no {command}: {MISSING_COMMANDS[command]}"
    if "Did you mean" in message and not _is_script(arguments[0]):
        return None
    if context.parent is None:
        message = message.partition(" Did you mean")[0]
        script = next(filter(_is_script, arguments), None)
        return script and f"{message}. To run {script}, give: samestep run {shlex.quote(script)}"
    return f"{message}. {context.command_path} needs one of its commands first: {', '.join(commands)}"


def _is_script(word: str) -> bool:
    """Return whether a word is a script, also one that does not exist, as in another folder."""
    return word.endswith(".py") or Path(word).is_file()


def usage_text(error: typer.TyperException) -> str:
    """Return the message of an error, which names the value; the one of a type that does not fit does not."""
    message = error.format_message()
    rejected = getattr(error.__cause__, "errors", None)  # pydantic's
    if rejected is None:
        return message
    first = rejected()[0]
    if first["type"] == "value_error":  # a message of samestep's own
        return str(first["ctx"]["error"])
    option = message.partition(": ")[0].removeprefix("Invalid value for ").strip("'")
    expected = first["msg"].partition(",")[0].removeprefix("Input should be ")
    number = "a number " if expected.startswith(("less", "greater")) else ""
    return f"{option} is {first['input']!r}; give {number}{expected}"


_NAMED = ("target", "recipe", "model", "data")
"""Parameters that are a script, a module or a name."""


def refuse_empty_values(command: Any) -> None:
    """Let a command, and those below it, refuse an empty text for a path, a script or another name."""
    for parameter in command.params:
        parameter.process_value = _refusing_empty(parameter, parameter.process_value)
    for below in getattr(command, "commands", {}).values():
        refuse_empty_values(below)


def _refusing_empty(parameter: Any, process: Any) -> Any:
    name = max(parameter.opts, key=len) if parameter.param_type_name == "option" else parameter.metavar

    def checked(context: Any, value: Any) -> Any:
        result = process(context, value)
        items = value if isinstance(value, (list, tuple)) else [value]
        results = result if isinstance(result, (list, tuple)) else [result]
        is_file = parameter.name in _NAMED or any(isinstance(item, Path) for item in results)
        if is_file and "" in items:
            raise UsageError(f"{name} is empty; give a name, or leave it out.")
        return result

    return checked
