"""Plans the runs of a study and their order; nothing is started.

Every configuration runs once in each round, so that a drifting machine affects all of them equally. A round
is followed by its mirror image, so that a drift (heat, a job on the same node) averages out::

    round 0    2  8  1  4        shuffled
    round 1    4  1  8  2        mirrored
    round 2    1  4  8  2        shuffled anew

Without samestep, one process computes on all cores. So on CPUs each number of workers on one host has a
further configuration: one worker with the cores of all of them.

Arguments can have templates that depend on the number of workers.

=============  =====================================================
in an argument becomes
=============  =====================================================
``{n}``        the workers in total
``{local}``    the workers on each node
``{nodes}``    the nodes
``{256/n}``    256 divided by the workers; an error if that is not whole
``{32*n}``     32 times the workers
``{{``         a brace
=============  =====================================================

The arithmetic is for batch sizes. In the other scaling mode it is evaluated for the smallest number of
workers (*held*): ``{256/n}``, a batch of each worker that shrinks, is then constant.
"""

import itertools
import random
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, TypeVar

from samestep.base import env
from samestep.base.errors import UsageError
from samestep.base.machine.accelerators import only_first_gpus
from samestep.base.units import MOST_WORKERS
from samestep.scaling.sweep.trial import SAMESTEP, Mode, Trial

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

    def __add__(self, variant: "Variant") -> "Variant":
        """Return the combination of both."""
        return Variant(
            name=" ".join(filter(None, (self.name, variant.name))),
            launcher=self.launcher or variant.launcher,
            flags=(*self.flags, *variant.flags),
            environment={**self.environment, **variant.environment},
        )


def variants(texts: Sequence[str], *, verb: str, flags: Collection[str]) -> tuple[Variant, ...]:
    """Return all combinations of the settings in ``--compare`` that are flags of a verb, or known to all.

    >>> [variant.name for variant in variants(["sync=flat,ddp", "env:A=1,2"], verb="train", flags=["sync"])]
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


def variants_equal_on_one_worker(compared: Sequence[Variant]) -> list[list[Variant]]:
    """Return variants in groups that are the same run on one worker, which does not communicate.

    >>> compared = variants(["sync=flat,ddp", "env:A=1,2"], verb="train", flags=["sync"])
    >>> groups = variants_equal_on_one_worker(compared)
    >>> [[variant.name for variant in group] for group in groups]
    [['sync=flat env:A=1', 'sync=ddp env:A=1'], ['sync=flat env:A=2', 'sync=ddp env:A=2']]
    """
    groups: dict[tuple[object, ...], list[Variant]] = {}
    for variant in compared:
        flags = tuple(flag for flag in variant.flags if not flag.startswith(_COMMUNICATION))
        groups.setdefault((variant.launcher, flags, tuple(variant.environment.items())), []).append(variant)
    return list(groups.values())


def compared_threads(compared: Sequence[Variant]) -> tuple[int, ...]:
    """Return the compute threads of a worker in each variant that names them.

    >>> compared_threads(variants(["threads=2,8"], verb="run", flags=["threads"]))
    (2, 8)
    """
    flags = (
        flag.removeprefix(_THREADS) for variant in compared for flag in variant.flags if _THREADS in flag
    )
    variables = (
        variant.environment[_THREADS_VARIABLE]
        for variant in compared
        if _THREADS_VARIABLE in variant.environment
    )
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


T = TypeVar("T")

Kind: TypeAlias = Literal["script", "module", "recipe"]
Scaling: TypeAlias = Literal["auto", "strong", "weak", "both"]
SCALINGS: tuple[Scaling, ...] = ("auto", "strong", "weak", "both")

MOST_STEPS = 10**9
"""The limit of ``--steps`` and ``--warm-up``: years of training, so a larger number is a typing error."""
MOST_REPEATS = 1000
"""The limit of ``--repeats``, since all runs are planned before the first one starts."""

_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_NAME = "n|local|nodes"
_INNER = re.compile(rf"\s*(?:(?:(\d+)\s*([*/])\s*)?({_NAME})|({_NAME})\s*\*\s*(\d+))\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A requested study."""

    target: str  # a script, a module or a recipe, as `kind` states
    kind: Kind = "script"
    arguments: tuple[str, ...] = ()  # of the script, or flags of ``train``; they can contain templates
    workers: tuple[int, ...]  # numbers of workers, smallest first
    # the quantity that is constant: the global batch (strong), the batch of each worker (weak), one run of
    # each (both), or as the arguments imply (auto)
    scaling: Scaling = "auto"
    batch: int | None = None  # the recipe's global batch at the smallest number of workers, if it grows
    flags: tuple[str, ...] = ()  # of ``run`` or ``train``, for all runs
    variants: tuple[Variant, ...] = (Variant(),)
    steps: int  # measured steps of each run, after the steps of `warm_up`
    warm_up: int
    repeats: int  # runs of each configuration
    seed: int = 0  # of the order
    per_node: int | None = None  # largest number of workers on a node; None for one node
    limits_gpus: bool = False  # whether a run sees as many GPUs as it has workers on a node
    # compute threads of each worker; None if the launcher gives each its processors
    threads: int | None = None
    # the largest number of workers on a node that compute on separate cores, which one worker is measured
    # with as well; 1 for other devices
    on_cores: int = 1
    folder: Path

    def __post_init__(self) -> None:
        for flag, value, least, most in (
            ("--steps", self.steps, 1, MOST_STEPS),
            ("--warm-up", self.warm_up, 0, MOST_STEPS),
            ("--repeats", self.repeats, 1, MOST_REPEATS),
            *(("-n", workers, 1, MOST_WORKERS) for workers in self.workers),
        ):
            if value < least:
                raise UsageError(f"{flag} is {value}; give at least {least}.")
            if value > most:
                raise UsageError(f"{flag} {value} is too large; use {most:,} or less.")
        if self.per_node is not None and self.per_node < 1:
            raise UsageError(f"--nproc-per-node is {self.per_node}; give at least 1.")
        if self.scaling not in SCALINGS:
            raise UsageError(f"--scaling {self.scaling!r} is not one of {', '.join(SCALINGS)}.")


class _Configuration(NamedTuple):
    """The configuration of runs that are repeated; `also` has other variants that are the same run."""

    workers: int
    nodes: int
    modes: tuple[Mode, ...]
    arguments: tuple[str, ...]
    variant: Variant
    also: tuple[str, ...] = ()
    cores_of: int = 1


def plan(request: Request) -> list[Trial]:
    """Return the runs of a study, in the order in which they run.

    Raises:
        UsageError: a template does not fit a number of workers, or the batch cannot be constant.
    """
    alone = {
        group[0].name: tuple(variant.name for variant in group[1:])
        for group in variants_equal_on_one_worker(request.variants)
    }
    cases = [
        case._replace(also=alone[variant.name]) if case.workers == 1 else case
        for variant in request.variants
        for case in _cases(request, variant)
        if case.workers > 1 or variant.name in alone
    ]
    cases += _with_more_cores(request, [case for case in cases if case.workers == 1])
    order = interleaved(cases, rounds=request.repeats, seed=request.seed)
    return [_trial(request, number, case, repeat) for number, (repeat, case) in enumerate(order)]


def interleaved(cases: Sequence[T], *, rounds: int, seed: int) -> list[tuple[int, T]]:
    """Return pairs of round and configuration, in the order in which they run."""
    draw = random.Random(seed)
    order = list(cases)
    turns: list[tuple[int, T]] = []
    for number in range(rounds):
        if number % 2:
            order.reverse()
        else:
            draw.shuffle(order)
        turns += [(number, case) for case in order]
    return turns


def refuse_too_many(workers: Sequence[int], *, places: int, resources: str) -> None:
    """Refuse more workers than `places`, which can compute at the same time on the `resources`.

    Raises:
        UsageError: a number is too large; names both numbers.
    """
    too_many = [number for number in workers if number > places]
    if too_many:
        rest = ",".join(str(number) for number in workers if number <= places)
        fewer = f"-n {rest}" if rest else "fewer workers"
        raise UsageError(
            f"{too_many[0]} workers oversubscribe {resources}, so their times are not those of workers that "
            f"have their own. Give {fewer}, or --oversubscribe: the verdict leaves such points out."
        )


def in_lines(trials: Sequence[Trial], command: Callable[[Trial], Sequence[str]]) -> list[str]:
    """Return the runs with their commands, as lines."""
    lines = []
    for trial in trials:
        variables = [
            f"{name}={value}" for name, value in trial.environment.items() if name not in env.UNTRACKED
        ]
        lines.append(f"{trial.number + 1:3}  {trial.in_words()}: {shlex.join([*variables, *command(trial)])}")
    return lines


def nodes_for(workers: int, per_node: int | None) -> int:
    """Return the number of nodes for `workers`.

    Raises:
        UsageError: the workers cannot be divided evenly among nodes.
    """
    nodes = 1 if per_node is None else -(-workers // per_node)
    if workers % nodes:
        raise UsageError(
            f"{workers} workers cannot be divided evenly among {nodes} nodes of {per_node} workers; give a "
            f"multiple of {nodes}."
        )
    return nodes


def _cases(request: Request, variant: Variant) -> Iterator[_Configuration]:
    for workers in request.workers:
        nodes = nodes_for(workers, request.per_node)
        # Modes with the same arguments, as at the smallest number of workers, are one run.
        modes_of: dict[tuple[str, ...], tuple[Mode, ...]] = {}
        for mode in _modes(request):
            arguments = tuple(_arguments(request, mode, workers, nodes))
            modes_of[arguments] = (*modes_of.get(arguments, ()), mode)
        for arguments, modes in modes_of.items():
            yield _Configuration(workers, nodes, modes, arguments, variant)


def _with_more_cores(request: Request, alone: Sequence[_Configuration]) -> Iterator[_Configuration]:
    """Yield one worker with the cores of each larger number on a node; variants of threads can share it."""
    local = {workers // nodes_for(workers, request.per_node) for workers in request.workers}
    groups: dict[tuple[object, ...], list[_Configuration]] = {}
    for case in alone:
        for cores_of in sorted({min(number, request.on_cores) for number in local} - {1}):
            threads = (_threads(request, case.variant) or 1) * cores_of
            key = (threads, case.modes, case.arguments, *case.variant.apart_from_threads)
            groups.setdefault(key, []).append(case._replace(cores_of=cores_of))
    for first, *shared in groups.values():
        names = [name for case in shared for name in (case.variant.name, *case.also)]
        yield first._replace(also=(*first.also, *names))


def _threads(request: Request, variant: Variant) -> int | None:
    """Return the compute threads of a worker of `variant`; None if the launcher decides on them."""
    return next(iter(compared_threads([variant])), request.threads)


def _modes(request: Request) -> tuple[Mode, ...]:
    if request.scaling == "both":
        return ("strong", "weak")
    if request.scaling != "auto":
        return (request.scaling,)
    grows = request.kind != "recipe" and operators(request.arguments) == {"*"}
    return ("weak",) if grows else ("strong",)


def _arguments(request: Request, mode: Mode, workers: int, nodes: int) -> list[str]:
    """Return the arguments of one run."""
    smallest, held = request.workers[0], None
    if request.kind != "recipe":
        if request.scaling != "auto" and mode != _implied_mode(request):
            held = smallest, nodes_for(smallest, request.per_node)
        return filled(request.arguments, workers=workers, nodes=nodes, held=held)
    words = filled(request.arguments, workers=workers, nodes=nodes)
    if mode == "strong" or workers == smallest:
        return words
    batch = (request.batch or 0) * workers
    if batch % smallest:
        raise UsageError(
            f"a batch of {request.batch} cannot be divided evenly among {smallest} workers, so it cannot "
            f"grow to {workers} workers. Give --batch-size a multiple of {smallest}."
        )
    return [*_without(words, "--batch-size"), f"--batch-size={batch // smallest}"]


def _without(words: Sequence[str], flag: str) -> list[str]:
    kept, skip = [], False
    for word in words:
        if skip or word == flag or word.startswith(f"{flag}="):
            skip = word == flag and not skip
            continue
        kept.append(word)
    return kept


def _implied_mode(request: Request) -> Mode:
    """Return the mode in which the arithmetic of a script's arguments is evaluated for each run's workers.

    Raises:
        UsageError: the arguments do not show the batch size.
    """
    used = operators(request.arguments)
    if len(used) != 1:
        raise UsageError(
            f"--scaling {request.scaling} needs a template for the batch size: {{256/n}} for the batch of "
            "each worker, {256*n} for the global batch of a serial script. Without --scaling the arguments "
            "are used as they are."
        )
    return "strong" if used == {"/"} else "weak"


def _trial(request: Request, number: int, case: _Configuration, repeat: int) -> Trial:
    mode = "" if len(case.modes) == 2 else f"-{case.modes[0]}"
    cores = f"-cores{case.cores_of}" if case.cores_of > 1 else ""
    name = f"{number + 1:03}-n{case.workers}{cores}{mode}-r{repeat + 1}"
    folder = request.folder.absolute() / "trials" / name
    local = case.workers // case.nodes
    gpus = only_first_gpus(env.snapshot(), local) if request.limits_gpus else {}
    trial = Trial(
        number=number,
        workers=case.workers,
        nodes=case.nodes,
        cores_of=case.cores_of,
        modes=case.modes,
        variant=case.variant.name,
        also=case.also,
        launcher=case.variant.launcher,
        repeat=repeat,
        command=(),
        environment={**env.UNTRACKED, **gpus, **case.variant.environment},
        folder=folder,
    )
    return replace(trial, command=_command(request, case, trial))


def _command(request: Request, case: _Configuration, trial: Trial) -> tuple[str, ...]:
    clock = (f"--clock={trial.clock}", f"--clock-steps={request.steps}", f"--clock-warm-up={request.warm_up}")
    compared = case.variant.flags  # after the user's flags, so that they win
    threads = _threads(request, case.variant)
    if case.cores_of > 1 and threads is not None:
        compared = (*compared, f"--threads={threads * case.cores_of}")
    if request.kind == "recipe":
        out = f"--out={trial.scratch / 'run'}"
        return ("train", request.target, *clock, *request.flags, *case.arguments, *compared, out)
    scratch, module = f"--scratch={trial.scratch}", ["-m"] * (request.kind == "module")
    return ("run", *clock, *request.flags, *compared, scratch, *module, request.target, *case.arguments)


def filled(
    arguments: Iterable[str], *, workers: int, nodes: int = 1, held: tuple[int, int] | None = None
) -> list[str]:
    """Return `arguments` for a number of workers on nodes.

    >>> filled(["--devices", "{local}", "--batch-size={256/n}"], workers=4, nodes=2)
    ['--devices', '2', '--batch-size=64']

    The arithmetic is evaluated for other workers and nodes if these are `held`.

    Raises:
        UsageError: a template is invalid, or a division has a remainder.
    """
    values = _values(workers, nodes)
    base = _values(*held) if held else values
    return [_filled(argument, values, base) for argument in arguments]


def operators(arguments: Sequence[str]) -> set[str]:
    """Return the operators of the arithmetic in `arguments`.

    >>> operators(["--devices={n}", "--batch-size={256/n}"])
    {'/'}

    Raises:
        UsageError: a template is invalid.
    """
    used = set()
    for argument in arguments:
        for piece in _PIECE.finditer(argument):
            if piece[0] not in ("{{", "}}"):
                used.add(_parsed(piece, argument)[1])
    return used - {""}


def _values(workers: int, nodes: int) -> dict[str, int]:
    return {"n": workers, "local": workers // nodes, "nodes": nodes}


def _filled(argument: str, values: Mapping[str, int], base: Mapping[str, int]) -> str:
    def fill(piece: re.Match[str]) -> str:
        if piece[0] in ("{{", "}}"):
            return piece[0][0]
        number, operator, name = _parsed(piece, argument)
        if not operator:
            return str(values[name])
        if operator == "*":
            return str(number * base[name])
        if number % base[name]:
            raise UsageError(
                f"{argument}: {number} is not divisible by {name} = {base[name]}. Give a number that is, or "
                "other numbers of workers."
            )
        return str(number // base[name])

    return _PIECE.sub(fill, argument)


def _parsed(piece: re.Match[str], argument: str) -> tuple[int, str, str]:
    """Return number, operator and name of one template; the operator of a plain name is empty."""
    parts = _INNER.fullmatch(piece[1] or "")
    if parts is None:
        raise UsageError(
            f"{piece[0]} in {argument!r} is not a template; use {{n}}, {{local}}, {{nodes}}, {{256/n}} or "
            "{32*n}. Write a literal brace twice: {{ and }}."
        )
    number, operator, name, first, factor = parts.groups()
    return int(number or factor or 1), operator or ("*" if factor else ""), name or first
