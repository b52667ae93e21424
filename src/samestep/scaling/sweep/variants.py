"""Parses ``--compare`` into the variants of a study."""

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from samestep.base.errors import UsageError
from samestep.scaling.sweep.trial import SAMESTEP

LAUNCHERS = (SAMESTEP, "torchrun", "srun")
"""The launchers that can start the workers of a run."""

# Flags that affect only the communication of gradients.
_COMMUNICATION = ("--sync=", "--compress=")
_THREADS, _THREADS_VARIABLE = "--threads=", "OMP_NUM_THREADS"
_VARIABLE = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One compared setting, or a combination of several, with the name that the user wrote."""

    name: str = ""
    launcher: str = ""
    flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def apart_from_threads(self) -> tuple[object, ...]:
        """The settings of one worker, which does not communicate, but for its number of threads."""
        flags = tuple(flag for flag in self.flags if not flag.startswith((*_COMMUNICATION, _THREADS)))
        variables = (item for item in self.environment.items() if item[0] != _THREADS_VARIABLE)
        return self.launcher, flags, tuple(variables)

    def __add__(self, other: "Variant") -> "Variant":
        """Return the combination of both."""
        return Variant(
            name=" ".join(filter(None, (self.name, other.name))),
            launcher=self.launcher or other.launcher,
            flags=(*self.flags, *other.flags),
            environment={**self.environment, **other.environment},
        )


def variants(texts: Sequence[str], *, verb: str, flags: Collection[str]) -> tuple[Variant, ...]:
    """Return all combinations of the settings in ``--compare`` that are flags of a verb, or known to all.

    >>> [one.name for one in variants(["sync=flat,ddp", "env:A=1,2"], verb="train", flags=["sync"])]
    ['sync=flat env:A=1', 'sync=flat env:A=2', 'sync=ddp env:A=1', 'sync=ddp env:A=2']

    Raises:
        UsageError: a setting cannot be compared.
    """
    axes = [_axis(text, verb, flags) for text in texts]
    names = [text.partition("=")[0] for text in texts]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--compare {name} is given twice; give all its values in one, with commas.")
    return tuple(sum(combination, start=Variant()) for combination in itertools.product(*axes))


def variants_equal_on_one_worker(found: Sequence[Variant]) -> list[list[Variant]]:
    """Return variants in groups that are the same run on one worker, which does not communicate.

    >>> found = variants(["sync=flat,ddp", "env:A=1,2"], verb="train", flags=["sync"])
    >>> groups = variants_equal_on_one_worker(found)
    >>> [[one.name for one in group] for group in groups]
    [['sync=flat env:A=1', 'sync=ddp env:A=1'], ['sync=flat env:A=2', 'sync=ddp env:A=2']]
    """
    groups: dict[tuple[object, ...], list[Variant]] = {}
    for one in found:
        flags = tuple(flag for flag in one.flags if not flag.startswith(_COMMUNICATION))
        groups.setdefault((one.launcher, flags, tuple(one.environment.items())), []).append(one)
    return list(groups.values())


def compared_threads(found: Sequence[Variant]) -> tuple[int, ...]:
    """Return the compute threads of a worker in each variant that names them.

    >>> compared_threads(variants(["threads=2,8"], verb="run", flags=["threads"]))
    (2, 8)
    """
    flags = (flag.removeprefix(_THREADS) for one in found for flag in one.flags if _THREADS in flag)
    variables = (one.environment[_THREADS_VARIABLE] for one in found if _THREADS_VARIABLE in one.environment)
    return tuple(int(text) for text in (*flags, *variables) if text.isdecimal() and int(text))


def _axis(text: str, verb: str, flags: Collection[str]) -> list[Variant]:
    name, _, listed = text.partition("=")
    values = listed.split(",")
    if len(values) < 2 or not all(values) or len(set(values)) < len(values):
        raise UsageError(f"--compare {text} lacks two different values; give them as in sync=ddp,flat.")
    return [_one(name, value, verb, flags) for value in values]


def _one(name: str, value: str, verb: str, flags: Collection[str]) -> Variant:
    setting = f"{name}={value}"
    if name == "launcher":
        if value not in LAUNCHERS:
            raise UsageError(f"--compare {setting}: give a launcher of {', '.join(LAUNCHERS)}.")
        return Variant(name=setting, launcher=value)
    if name.startswith("env:"):
        if not _VARIABLE.fullmatch(name[4:]):
            raise UsageError(f"--compare {setting}: {name[4:]!r} is not the name of a variable.")
        return Variant(name=setting, environment={name[4:]: value})
    if name in flags:
        return Variant(name=setting, flags=(f"--{name}={value}",))
    if name == "sync" and verb == "run":
        raise UsageError(
            f"--compare {setting}: --sync is a flag of recipes; scripts have their own gradient "
            "synchronization."
        )
    raise UsageError(
        f"--compare {setting}: {name!r} is neither launcher, nor env:NAME, nor a flag of samestep {verb} "
        f"that affects the time of a step. Those flags are {', '.join(sorted(flags))}."
    )
