"""What ``samestep scale`` is to run: a script, a module or a recipe, and what of it can be compared."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from samestep.autopilot.options import Options
from samestep.base.errors import UsageError
from samestep.cli import job_flags
from samestep.cli.running import look_at, text_of
from samestep.cli.serial_flags import checked
from samestep.source.flags import flags_of
from samestep.trials.plan import SCALINGS, Kind, Scaling
from samestep.trials.variants import Variant, variants
from samestep.world.binding import checked as checked_binding

_LAUNCHERS = ("torchrun", "srun", "mpirun", "mpiexec", "accelerate", "deepspeed", "python", "python3")
_NOT_COMPARED = ("explain", "all_output", "scratch", "seed")
_OF_JOB = ("bind", "threads")
_OF_SCRIPTS = ("mode", "split", "load", "random", "device")
_OF_SERIAL = ("batch_norm", "split", "load", "random", "device", "algorithm")
_OF_TRAIN = ("--seed",)
"""What train means by it is another thing; its other flags that scale has too say the same of each run."""

_A_NEW_ONE = "a training of its own in each run"
_OWN_RUNS = {
    "--resume": _A_NEW_ONE,
    "--eval-only": _A_NEW_ONE,
    "--from": _A_NEW_ONE,
    "--batch-per-worker": "--scaling weak",
    "--clock": "each run's clock in a folder of the study's: leave it out",
    "--clock-steps": "as many steps of each run: say --steps",
    "--clock-warm-up": "as many of each run: say --warm-up",
}
"""Flags of train that begin no new training, or say what scale is to say; what scale needs instead."""


def kind_of(target: str, arguments: Sequence[str], *, module: bool, mode: str | None) -> Kind:
    """Return what `target` is.

    Raises:
        UsageError: it is nothing that can be run on several numbers of workers.
    """
    if target.startswith("-"):
        raise UsageError(f"samestep scale has no option {target.partition('=')[0]}.")
    if target in _LAUNCHERS and not Path(target).exists():
        raise UsageError(
            f"{target} starts workers itself. Give the script: scale starts it on each number of workers; "
            "launchers are compared by --compare launcher=samestep,torchrun."
        )
    is_path = module or "/" in target or Path(target).suffix or Path(target).exists()
    if is_path:
        _check_program(target, list(arguments), module=module, mode=mode)
        return "module" if module else "script"
    _check_recipe(target, arguments)
    return "recipe"


def refuse_misplaced(target: str, flags: Mapping[str, object], said: Sequence[str], kind: Kind) -> None:
    """Refuse flags that mean nothing to what is measured, or whose value does.

    Args:
        target: what is measured.
        flags: of ``run``, by name; None for one that was not given.
        said: the values of ``--compare``.
        kind: what it is.

    Raises:
        UsageError: there is one; says which.
    """
    given = [name for name, value in flags.items() if value is not None]
    of_scripts = [name for name in given if name in _OF_SCRIPTS]
    if kind == "recipe" and of_scripts:
        raise UsageError(
            f"--{of_scripts[0]} says how a script is run, and recipes say that themselves: leave it out."
        )
    bind = flags["bind"]
    if bind is not None:
        checked_binding(str(bind))
    checked(**{name: flags[name] for name in given if name in _OF_SERIAL})
    compares = [text.partition("=")[0].replace("-", "_") for text in said]
    of_serial = [name for name in (*given, *compares) if name in _OF_SERIAL]
    if kind != "recipe" and of_serial and not _is_serial(target, kind, flags["mode"]):
        raise UsageError(
            f"--{of_serial[0].replace('_', '-')} says how a serial script is run on several workers, and "
            f"{target} is not taken for one. Leave it out, or say --mode autopilot."
        )


def scaling_of(text: str) -> Scaling:
    """Read ``--scaling``."""
    found = next((one for one in SCALINGS if one == text), None)
    if found is None:
        raise UsageError(f"--scaling {text!r} is none of {', '.join(SCALINGS)}.")
    return found


def refuse_ambiguous(target: str, kind: Kind, words: Sequence[str], flags: Collection[str]) -> None:
    """Refuse a flag behind the target that scale has and the target may have: one of them would not get it.

    Args:
        target: what is measured.
        kind: what it is.
        words: of the whole command.
        flags: of scale.

    Raises:
        UsageError: there is one; says how to say whose it is.
    """
    at = words.index(target) if target in words else len(words)
    if "--" in words[:at]:
        return
    behind = list(words[at + 1 :])
    behind = behind[: behind.index("--")] if "--" in behind else behind
    own = [name for name in (word.partition("=")[0] for word in behind) if name in flags]
    for name, why in _claimed(target, kind, own):
        of = "train" if kind == "recipe" else "the script"
        module = "-m " if kind == "module" else ""
        raise UsageError(
            f"{name} {why}: whose is it? Give scale's before {target}, and {of}'s behind --: "
            f"samestep scale -n 1,2 {module}-- {target} {name} ..."
        )


def _claimed(target: str, kind: Kind, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield those of some flags of scale that the target has or may have, and why."""
    if kind == "recipe":
        both = "is a flag of samestep train and of samestep scale"
        yield from ((name, both) for name in names if name in _OF_TRAIN)
        return
    file, roots = text_of(job_flags.program(target, [], module=kind == "module", no_python=False))
    if not names or file is None:
        return
    its = flags_of(file, roots=roots)
    for name in names:
        if name in its.literal:
            yield name, f"is a flag of {its.literal[name]} and of samestep scale"
        elif its.parser is not None:
            made = f"{its.parser.file}:{its.parser.line}, {its.parser.name}, makes flags that cannot be seen"
            yield name, f"is a flag of samestep scale, and may be one of {target} too ({made})"


def compared(said: Sequence[str], kind: Kind) -> tuple[Variant, ...]:
    """Return what is compared, by ``--compare``.

    Raises:
        UsageError: it cannot be.
    """
    if not said:
        return (Variant(),)
    if kind != "recipe":
        names = [one.name.replace("_", "-") for one in fields(Options) if one.name not in _NOT_COMPARED]
        return variants(said, verb="run", flags=[*names, *_OF_JOB])
    from samestep.training.conduct import RunOptions
    from samestep.training.settings import Settings

    names = [one.name.replace("_", "-") for kind in (Settings, RunOptions) for one in fields(kind)]
    return variants(said, verb="train", flags=[*names, *_OF_JOB])


def batch_of(recipe: str, arguments: Sequence[str], scaling: str) -> int | None:
    """Return the batch of a recipe that is to grow; None where none is.

    Raises:
        UsageError: it is said where only train reads it.
    """
    if scaling not in ("weak", "both"):
        return None
    given = _value("--batch-size", arguments)
    if given is not None:
        if not given.isdecimal() or not int(given):
            raise UsageError(f"--batch-size {given!r} is no number of samples that could grow.")
        return int(given)
    if _value("--config", arguments) is not None:
        raise UsageError(f"--scaling {scaling} needs to know the batch that grows: give --batch-size too.")
    from samestep.recipes.book import find

    return find(recipe, fast="--fast" in arguments).settings.batch_size


def _check_program(target: str, arguments: list[str], *, module: bool, mode: str | None) -> None:
    program = job_flags.program(target, arguments, module=module, no_python=False)
    if mode in (None, "auto") and look_at(program).kind == "spawns":
        raise UsageError(
            f"{target} starts its own workers, where scale cannot see them. Have it run as one of several "
            "workers under a launcher (torchrun, samestep run), or say --mode native if it can."
        )


def _is_serial(target: str, kind: Kind, mode: object) -> bool:
    if mode in ("native", "autopilot"):
        return mode == "autopilot"
    program = job_flags.program(target, [], module=kind == "module", no_python=False)
    return look_at(program).kind == "serial"


def _check_recipe(target: str, arguments: Sequence[str]) -> None:
    from samestep.recipes.book import RECIPES

    if target not in RECIPES:
        raise UsageError(
            f"{target} is neither a script that is there nor a recipe: those are {', '.join(RECIPES)}."
        )
    for flag, instead in _OWN_RUNS.items():
        if any(word == flag or word.startswith(f"{flag}=") for word in arguments):
            raise UsageError(f"{flag} does not go with samestep scale, which needs {instead}.")


def _value(flag: str, words: Sequence[str]) -> str | None:
    """Return the value of a flag among `words`, the last if it is there twice."""
    found = None
    for at, word in enumerate(words):
        if word == flag:
            found = "".join(words[at + 1 : at + 2])
        elif word.startswith(f"{flag}="):
            found = word.partition("=")[2]
    return found
