"""Checks the target of ``samestep scale``, a script, module or recipe, and the options that go with it."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import typer

from samestep.autopilot.script.options import Options
from samestep.base.errors import UsageError
from samestep.cli.main import application
from samestep.cli.options import launch
from samestep.cli.options.declare import given
from samestep.cli.options.serial import OF_ALL, SPLIT, not_serial
from samestep.cli.other_names import dashed
from samestep.launch.job import Program
from samestep.launch.source.flags import flags_of
from samestep.launchers.binding import checked as checked_binding
from samestep.run.decision import recognize_script, source_file
from samestep.run.own_workers import refuse_own_workers
from samestep.scaling.sweep.plan import Kind, Variant, variants
from samestep.scaling.sweep.trial import SAMESTEP, Trial

_NOT_COMPARED = ("explain", "scratch", "seed")
_OF_JOB = ("bind", "threads")
_OF_SCRIPTS = ("mode", "short_calls", "device")
OF_SERIAL = SPLIT
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The program that a study runs."""

    name: str  # the path of a script, or the name of a module or of a recipe
    kind: Kind  # the kind of target
    arguments: tuple[str, ...]  # its arguments
    mode: str | None  # the value of ``--mode``; None if it was not given

    @classmethod
    def of(cls, name: str, arguments: Sequence[str], *, module: bool, mode: str | None) -> "Target":
        """Return the target with this name.

        Raises:
            UsageError: it cannot run on several numbers of workers.
        """
        if name.startswith("-"):
            raise UsageError(f"samestep scale has no option {name.partition('=')[0]}.")
        if name in launch.LAUNCHERS and not Path(name).exists():
            raise UsageError(
                f"{name} is a launcher, but scale starts the workers itself; give the script. To compare "
                "launchers, give --compare launcher=samestep,torchrun."
            )
        is_path = "/" in name or Path(name).suffix or Path(name).exists()
        kind: Kind = "module" if module else "script" if is_path else "recipe"
        target = cls(name=name, kind=kind, arguments=tuple(arguments), mode=mode)
        if kind == "recipe":
            target._check_recipe()
        elif (program := target.program()) and mode in (None, "auto"):
            refuse_own_workers(program, recognize_script(program), verb="scale")
        return target

    def program(self) -> Program:
        """Return the script or module as a program."""
        return launch.program(self.name, self.arguments, module=self.kind == "module")

    def refuse_ambiguous(self, words: Sequence[str], flags: Collection[str]) -> None:
        """Refuse one of scale's `flags` after the target, in the words of a command, that is possibly both's.

        Raises:
            UsageError: there is such an option; the message shows how to make the command unambiguous.
        """
        at = words.index(self.name) if self.name in words else len(words)
        if "--" in words[:at]:
            return
        after = list(words[at + 1 :])
        after = after[: after.index("--")] if "--" in after else after
        own = [name for name in (word.partition("=")[0] for word in after) if dashed(name) in flags]
        for name, why in self._claimed(own):
            of = "train" if self.kind == "recipe" else "the script"
            module = "-m " if self.kind == "module" else ""
            raise UsageError(
                f"{name} is ambiguous: {why}. Put it before {self.name} for scale, or after -- for {of}: "
                f"samestep scale -n 1,2 {module}-- {self.name} {name} ..."
            )

    def refuse_misplaced(self, flags: Mapping[str, Any], compares: Sequence[str]) -> None:
        """Refuse options of ``run`` or in ``--compare`` that have no effect on the target, and wrong values.

        Raises:
            UsageError: there is such an option; the message names it.
        """
        found = [name for name, value in flags.items() if value is not None]
        of_scripts = [name for name in found if name in _OF_SCRIPTS]
        if self.kind == "recipe" and of_scripts:
            raise UsageError(
                f"--{dashed(of_scripts[0])} is for scripts, and {self.name} is a recipe; leave it out."
            )
        if flags["bind"] is not None:
            checked_binding(str(flags["bind"]))
        Options(**{name: flags[name] for name in found if name in OF_SERIAL})
        names = [*found, *(text.partition("=")[0].replace("-", "_") for text in compares)]
        of_serial = [name for name in names if name in OF_SERIAL and name not in OF_ALL]
        if self.kind != "recipe" and of_serial and not self._is_serial():
            raise UsageError(not_serial(of_serial[0], self.name))

    def compared(self, texts: Sequence[str]) -> tuple[Variant, ...]:
        """Return the variants of ``--compare``.

        Raises:
            UsageError: a variant is wrong.
        """
        found = self._variants(texts)
        if not self._spawns():
            return found
        others = [one.launcher for one in found if one.launcher not in ("", SAMESTEP)]
        if others:
            raise UsageError(
                f"--compare launcher={others[0]}: {self.name} starts its own workers, and several tasks of "
                "another launcher would each start them. Leave it out."
            )
        return tuple(replace(one, launcher=SAMESTEP) for one in found)

    def limits_gpus(self) -> bool:
        """Return whether a run should see one GPU for each worker, since their number decides on workers."""
        return self._spawns() and not any("n}" in argument for argument in self.arguments)

    def refuse_jobs(self) -> None:
        """Refuse to submit jobs, whose tasks are the workers, for a script that starts its own workers.

        Raises:
            UsageError: it is such a script.
        """
        if self._spawns():
            raise UsageError(
                f"{self.name} starts its own workers, and the workers of --submit are tasks of Slurm. Call "
                "samestep scale in an allocation (salloc, or a job script)."
            )

    def _variants(self, texts: Sequence[str]) -> tuple[Variant, ...]:
        if not texts:
            return (Variant(),)
        verb, kinds = ("train", _settings()) if self.kind == "recipe" else ("run", (Options,))
        names = [one.name for kind in kinds for one in fields(kind)]
        flags = [name.replace("_", "-") for name in names if verb == "train" or name not in _NOT_COMPARED]
        return variants(texts, verb=verb, flags=[*flags, *_OF_JOB])

    def batch(self, scaling: str) -> int | None:
        """Return the batch size of a recipe that grows with the workers; None for strong scaling.

        Raises:
            UsageError: the batch size is set in a file that only train reads.
        """
        if self.kind != "recipe" or scaling not in ("weak", "both"):
            return None
        size = _value("--batch-size", self.arguments)
        if size is not None:
            if not size.isdecimal() or not int(size):
                raise UsageError(f"--batch-size {size!r} is not a number of samples, at least 1.")
            return int(size)
        if _value("--config", self.arguments) is not None:
            raise UsageError(f"--scaling {scaling} does not read --config; give --batch-size too.")
        from samestep.training.recipes.registry import find

        return find(self.name, fast="--fast" in self.arguments).settings.batch_size

    def _claimed(self, names: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yield the options among `names` that the target has or may have, each with the reason."""
        if self.kind == "recipe":
            both = "samestep train and samestep scale have it"
            yield from ((name, both) for name in names if name in _OF_TRAIN)
            return
        file, roots = source_file(self.program())
        if not names or file is None:
            return
        its = flags_of(file, roots=roots)
        for name in names:
            if name in its.literal:
                yield name, f"{its.literal[name]} and samestep scale have it"
            elif its.parser is not None:
                made = f"{its.parser.name} in {its.parser.file}:{its.parser.line} creates options at run time"
                yield name, f"samestep scale has it, and {self.name} possibly too ({made})"

    def _spawns(self) -> bool:
        is_detected = self.kind != "recipe" and self.mode in (None, "auto")
        return is_detected and recognize_script(self.program()).has_forkable_workers

    def _is_serial(self) -> bool:
        if self.mode in ("native", "autopilot"):
            return self.mode == "autopilot"
        return recognize_script(self.program()).kind == "serial"

    def _check_recipe(self) -> None:
        from samestep.training.recipes.registry import RECIPES

        if self.name not in RECIPES:
            known = ", ".join(RECIPES)
            raise UsageError(
                f"{self.name} is neither an existing script nor a recipe; the recipes are {known}."
            )
        for option, instead in _OWN_RUNS.items():
            if any(word == option or word.startswith(f"{option}=") for word in self.arguments):
                raise UsageError(f"{option} does not go with samestep scale, which needs {instead}.")


def refuse_wrong_flags(trials: Sequence[Trial]) -> None:
    """Refuse flags that ``train`` does not have, and values that it refuses: each run would fail on them.

    Checks that need the data set or the model are left to the runs, because they take long.

    Raises:
        UsageError: a flag or a value is wrong; the message names it.
    """
    group: Any = typer.main.get_command(application("train"))
    for trial in trials:
        if trial.repeat:  # it has the command of the first run
            continue
        try:
            context = group.get_command(None, "train").make_context("train", list(trial.command[1:]))
        except typer.TyperException as error:
            raise UsageError(f"samestep train: {error.format_message()}") from None
        _check_settings(context.params, trial.workers)


def _check_settings(flags: Mapping[str, Any], workers: int) -> None:
    from samestep.training.recipes.registry import find
    from samestep.training.recipes.request import Request, configuration, part_of

    settings, options = _settings()
    own = {one.name: flags[one.name] for kind in (settings, options) for one in fields(kind)}
    changes = given(own, settings, options)
    config, _ = configuration(Request(recipe=flags["recipe"], config=flags["config"], changes=changes))
    recipe = find(flags["recipe"], fast=bool(flags["fast"] or config.get("fast")))
    replace(recipe.settings, **part_of(config, settings)).check_workers(workers)
    replace(recipe.options, **part_of(config, options))


def _settings() -> tuple[type[Any], type[Any]]:
    """Return the dataclasses of the settings of a training, whose import takes long."""
    from samestep.training.settings import RunOptions, Settings

    return Settings, RunOptions


def _value(flag: str, words: Sequence[str]) -> str | None:
    """Return the value of an option among `words`, the last one if it occurs twice."""
    found = None
    for at, word in enumerate(words):
        if word == flag:
            found = "".join(words[at + 1 : at + 2])
        elif word.startswith(f"{flag}="):
            found = word.partition("=")[2]
    return found
