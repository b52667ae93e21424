"""Checks the target of ``samestep scale``, a script, module or recipe, and the options that go with it."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from samestep.autopilot.script.options import Options
from samestep.base.errors import UsageError
from samestep.cli import job_flags
from samestep.cli.serial_flags import checked, not_serial
from samestep.launch.source.flags import flags_of
from samestep.launchers.binding import checked as checked_binding
from samestep.run.decision import recognize_script, refuse_own_workers, source_file
from samestep.studies.scaling.sweep.plan import SCALINGS, Kind, Scaling
from samestep.studies.scaling.sweep.variants import Variant, variants

_LAUNCHERS = ("torchrun", "srun", "mpirun", "mpiexec", "accelerate", "deepspeed", "python", "python3")
_NOT_COMPARED = ("explain", "all_output", "scratch", "seed")
_OF_JOB = ("bind", "threads")
_OF_SCRIPTS = ("mode", "split", "load", "random", "device")
_OF_SERIAL = ("batch_norm", "split", "load", "random", "device", "algorithm")
_OF_TRAIN = ("--seed",)
"""Options with another meaning in train; the other ones that train and scale share mean the same."""

_NEW_TRAINING = "a new training in each run; leave it out"
_OWN_RUNS = {
    "--resume": _NEW_TRAINING,
    "--eval-only": _NEW_TRAINING,
    "--from": _NEW_TRAINING,
    "--batch-per-worker": "the global batch; give --scaling weak instead",
    "--clock": "each run's clock in the folder of the study; leave it out",
    "--clock-steps": "the same number of steps in each run; give --steps instead",
    "--clock-warm-up": "the same number in each run; give --warm-up instead",
}
"""Options of train that do not start a new training, or that scale sets itself, with what scale needs."""


def kind_of(target: str, arguments: Sequence[str], *, module: bool, mode: str | None) -> Kind:
    """Return the kind of `target`.

    Raises:
        UsageError: it cannot run on several numbers of workers.
    """
    if target.startswith("-"):
        raise UsageError(f"samestep scale has no option {target.partition('=')[0]}.")
    if target in _LAUNCHERS and not Path(target).exists():
        raise UsageError(
            f"{target} is a launcher, but scale starts the workers itself; give the script. To compare "
            "launchers, give --compare launcher=samestep,torchrun."
        )
    is_path = module or "/" in target or Path(target).suffix or Path(target).exists()
    if is_path:
        _check_program(target, list(arguments), module=module, mode=mode)
        return "module" if module else "script"
    _check_recipe(target, arguments)
    return "recipe"


def refuse_misplaced(target: str, flags: Mapping[str, object], variants: Sequence[str], kind: Kind) -> None:
    """Refuse options that have no effect on the target, and wrong values.

    Args:
        target: the script, module or recipe.
        flags: options of ``run``, by name; None for one that was not given.
        variants: the values of ``--compare``.
        kind: the kind of target.

    Raises:
        UsageError: there is such an option; the message names it.
    """
    given = [name for name, value in flags.items() if value is not None]
    of_scripts = [name for name in given if name in _OF_SCRIPTS]
    if kind == "recipe" and of_scripts:
        raise UsageError(f"--{of_scripts[0]} is for scripts, and {target} is a recipe; leave it out.")
    bind = flags["bind"]
    if bind is not None:
        checked_binding(str(bind))
    checked(**{name: flags[name] for name in given if name in _OF_SERIAL})
    compares = [text.partition("=")[0].replace("-", "_") for text in variants]
    of_serial = [name for name in (*given, *compares) if name in _OF_SERIAL]
    if kind != "recipe" and of_serial and not _is_serial(target, kind, flags["mode"]):
        raise UsageError(not_serial(of_serial[0], target))


def scaling_of(text: str) -> Scaling:
    """Return the value of ``--scaling``.

    Raises:
        UsageError: there is no such scaling.
    """
    found = next((one for one in SCALINGS if one == text), None)
    if found is None:
        raise UsageError(f"--scaling {text!r} is not one of {', '.join(SCALINGS)}.")
    return found


def refuse_ambiguous(target: str, kind: Kind, words: Sequence[str], flags: Collection[str]) -> None:
    """Refuse an option after the target that belongs to scale, and to the target too or possibly.

    Args:
        target: the script, module or recipe.
        kind: the kind of target.
        words: the whole command.
        flags: the options of scale.

    Raises:
        UsageError: there is such an option; the message shows how to make the command unambiguous.
    """
    at = words.index(target) if target in words else len(words)
    if "--" in words[:at]:
        return
    after = list(words[at + 1 :])
    after = after[: after.index("--")] if "--" in after else after
    own = [name for name in (word.partition("=")[0] for word in after) if name in flags]
    for name, why in _claimed(target, kind, own):
        of = "train" if kind == "recipe" else "the script"
        module = "-m " if kind == "module" else ""
        raise UsageError(
            f"{name} is ambiguous: {why}. Put it before {target} for scale, or after -- for {of}: "
            f"samestep scale -n 1,2 {module}-- {target} {name} ..."
        )


def _claimed(target: str, kind: Kind, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the options among `names` that the target has or may have, each with the reason."""
    if kind == "recipe":
        both = "samestep train and samestep scale have it"
        yield from ((name, both) for name in names if name in _OF_TRAIN)
        return
    file, roots = source_file(job_flags.program(target, [], module=kind == "module", no_python=False))
    if not names or file is None:
        return
    its = flags_of(file, roots=roots)
    for name in names:
        if name in its.literal:
            yield name, f"{its.literal[name]} and samestep scale have it"
        elif its.parser is not None:
            made = f"{its.parser.name} in {its.parser.file}:{its.parser.line} creates options at run time"
            yield name, f"samestep scale has it, and {target} possibly too ({made})"


def compared(texts: Sequence[str], kind: Kind) -> tuple[Variant, ...]:
    """Return the variants of ``--compare``.

    Raises:
        UsageError: a variant is wrong.
    """
    if not texts:
        return (Variant(),)
    if kind != "recipe":
        names = [one.name.replace("_", "-") for one in fields(Options) if one.name not in _NOT_COMPARED]
        return variants(texts, verb="run", flags=[*names, *_OF_JOB])
    from samestep.training.settings.run_options import RunOptions
    from samestep.training.settings.training_settings import Settings

    names = [one.name.replace("_", "-") for kind in (Settings, RunOptions) for one in fields(kind)]
    return variants(texts, verb="train", flags=[*names, *_OF_JOB])


def batch_of(recipe: str, arguments: Sequence[str], scaling: str) -> int | None:
    """Return the batch size of a recipe that grows with the workers; None for strong scaling.

    Raises:
        UsageError: the batch size is set in a file that only train reads.
    """
    if scaling not in ("weak", "both"):
        return None
    given = _value("--batch-size", arguments)
    if given is not None:
        if not given.isdecimal() or not int(given):
            raise UsageError(f"--batch-size {given!r} is not a number of samples, at least 1.")
        return int(given)
    if _value("--config", arguments) is not None:
        raise UsageError(f"--scaling {scaling} does not read --config; give --batch-size too.")
    from samestep.training.recipes.registry import find

    return find(recipe, fast="--fast" in arguments).settings.batch_size


def _check_program(target: str, arguments: list[str], *, module: bool, mode: str | None) -> None:
    program = job_flags.program(target, arguments, module=module, no_python=False)
    if mode in (None, "auto"):
        refuse_own_workers(program, recognize_script(program), verb="scale")


def _is_serial(target: str, kind: Kind, mode: object) -> bool:
    if mode in ("native", "autopilot"):
        return mode == "autopilot"
    program = job_flags.program(target, [], module=kind == "module", no_python=False)
    return recognize_script(program).kind == "serial"


def _check_recipe(target: str, arguments: Sequence[str]) -> None:
    from samestep.training.recipes.registry import RECIPES

    if target not in RECIPES:
        raise UsageError(
            f"{target} is neither an existing script nor a recipe; the recipes are {', '.join(RECIPES)}."
        )
    for flag, instead in _OWN_RUNS.items():
        if any(word == flag or word.startswith(f"{flag}=") for word in arguments):
            raise UsageError(f"{flag} does not go with samestep scale, which needs {instead}.")


def _value(flag: str, words: Sequence[str]) -> str | None:
    """Return the value of an option among `words`, the last one if it occurs twice."""
    found = None
    for at, word in enumerate(words):
        if word == flag:
            found = "".join(words[at + 1 : at + 2])
        elif word.startswith(f"{flag}="):
            found = word.partition("=")[2]
    return found
