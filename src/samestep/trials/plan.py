"""From what a user asks for to the runs of a study, in their order; nothing is started."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from samestep.base.errors import UsageError
from samestep.base.trackers import OFF
from samestep.base.units import MOST_WORKERS
from samestep.trials.template import filled, operators
from samestep.trials.trial import Mode, Trial
from samestep.trials.turns import in_turns
from samestep.trials.variants import Variant, alike_alone

Kind: TypeAlias = Literal["script", "module", "recipe"]
Scaling: TypeAlias = Literal["auto", "strong", "weak", "both"]
SCALINGS: tuple[Scaling, ...] = ("auto", "strong", "weak", "both")


MOST_STEPS = 10**9
MOST_REPEATS = 1000
"""Of each run; a study of so many takes days, and all of its runs are planned before the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A study that somebody asks for.

    Args:
        target: a script, a module or a recipe.
        kind: which of these.
        arguments: of the script, or train's flags; they may hold templates.
        workers: numbers of workers, smallest first.
        scaling: what stays the same while they grow: the global batch (strong), a worker's (weak), first one
            and then the other (both), or whatever the arguments say (auto).
        batch: the recipe's global batch at the smallest number of workers, where that is to grow.
        flags: of ``run`` or ``train``, for all runs.
        variants: what is compared.
        steps: that are measured in each run.
        warm_up: steps before, that are not.
        repeats: runs of each.
        seed: of the order.
        per_node: workers on a node at most; None for one node.
        folder: of the study.
    """

    target: str
    kind: Kind = "script"
    arguments: tuple[str, ...] = ()
    workers: tuple[int, ...]
    scaling: Scaling = "auto"
    batch: int | None = None
    flags: tuple[str, ...] = ()
    variants: tuple[Variant, ...] = (Variant(),)
    steps: int
    warm_up: int
    repeats: int
    seed: int = 0
    per_node: int | None = None
    folder: Path

    def __post_init__(self) -> None:
        for flag, value, least, most in (
            ("--steps", self.steps, 1, MOST_STEPS),
            ("--warm-up", self.warm_up, 0, MOST_STEPS),
            ("--repeats", self.repeats, 1, MOST_REPEATS),
            *(("-n", workers, 1, MOST_WORKERS) for workers in self.workers),
        ):
            if value < least:
                raise UsageError(f"{flag} {value}: there must be at least {least}.")
            if value > most:
                raise UsageError(f"{flag} {value} is too large; use {most:,} or less.")
        if self.per_node is not None and self.per_node < 1:
            raise UsageError(f"--nproc-per-node {self.per_node}: there must be at least 1.")
        if self.scaling not in SCALINGS:
            raise UsageError(f"--scaling {self.scaling!r} is none of {', '.join(SCALINGS)}.")


@dataclass(frozen=True, slots=True)
class _Case:
    """What is repeated: a number of workers, what it is to be, the arguments there, and a variant."""

    workers: int
    nodes: int
    modes: tuple[Mode, ...]
    arguments: tuple[str, ...]
    variant: Variant
    also: tuple[str, ...] = ()
    """Variants that are the same there."""


def plan(request: Request) -> list[Trial]:
    """Return the runs of a study, in the order in which they run.

    Raises:
        UsageError: a template does not fit a number of workers, or what is to stay the same cannot.
    """
    alone = {group[0].name: tuple(one.name for one in group[1:]) for group in alike_alone(request.variants)}
    cases = [
        replace(case, also=alone[variant.name]) if case.workers == 1 else case
        for variant in request.variants
        for case in _cases(request, variant)
        if case.workers > 1 or variant.name in alone
    ]
    turns = in_turns(cases, rounds=request.repeats, seed=request.seed)
    return [_trial(request, number, case, repeat) for number, (repeat, case) in enumerate(turns)]


def in_lines(trials: Sequence[Trial], command: Callable[[Trial], Sequence[str]]) -> list[str]:
    """Return what would be run, as lines.

    Args:
        trials: in their order.
        command: returns what starts a trial.
    """
    return [f"{one.number + 1:3}  {one.in_words()}: {_line(one, command(one))}" for one in trials]


def nodes_for(workers: int, per_node: int | None) -> int:
    """Return on how many nodes so many workers run.

    Raises:
        UsageError: they cannot be shared evenly.
    """
    nodes = 1 if per_node is None else -(-workers // per_node)
    if workers % nodes:
        raise UsageError(
            f"{workers} workers, {per_node} of them on a node, cannot be shared by {nodes} nodes evenly: "
            f"ask for a multiple of {nodes}."
        )
    return nodes


def _cases(request: Request, variant: Variant) -> Iterator[_Case]:
    for workers in request.workers:
        nodes = nodes_for(workers, request.per_node)
        # At the smallest number of workers both modes are one run, and wherever their arguments are the same.
        modes_of: dict[tuple[str, ...], tuple[Mode, ...]] = {}
        for mode in _modes(request):
            arguments = tuple(_arguments(request, mode, workers, nodes))
            modes_of[arguments] = (*modes_of.get(arguments, ()), mode)
        for arguments, modes in modes_of.items():
            yield _Case(workers, nodes, modes, arguments, variant)


def _modes(request: Request) -> tuple[Mode, ...]:
    if request.scaling == "both":
        return ("strong", "weak")
    if request.scaling != "auto":
        return (request.scaling,)
    grows = request.kind != "recipe" and operators(request.arguments) == {"*"}
    return ("weak",) if grows else ("strong",)


def _arguments(request: Request, mode: Mode, workers: int, nodes: int) -> list[str]:
    """Return the arguments of one run."""
    smallest = request.workers[0]
    if request.kind == "recipe":
        words = filled(request.arguments, workers=workers, nodes=nodes)
        return (
            words
            if mode == "strong" or workers == smallest
            else _grown(words, request.batch or 0, workers, smallest)
        )
    held = None if request.scaling == "auto" else _held(request, mode)
    return filled(request.arguments, workers=workers, nodes=nodes, held=held)


def _grown(words: list[str], batch: int, workers: int, smallest: int) -> list[str]:
    """Return a recipe's flags with a global batch that grows as the workers do."""
    if batch * workers % smallest:
        raise UsageError(
            f"a batch of {batch} on {smallest} workers has no whole share, so that {workers} workers cannot "
            f"have as much each. Give --batch-size a multiple of {smallest}."
        )
    return [*_without(words, "--batch-size"), f"--batch-size={batch * workers // smallest}"]


def _without(words: Sequence[str], flag: str) -> list[str]:
    kept, skip = [], False
    for word in words:
        if skip or word == flag or word.startswith(f"{flag}="):
            skip = word == flag and not skip
            continue
        kept.append(word)
    return kept


def _held(request: Request, mode: Mode) -> tuple[int, int] | None:
    """Return at how many workers and nodes a script's arithmetic stays; None where it follows them.

    Raises:
        UsageError: nothing in the arguments says which batch it is that grows or shrinks.
    """
    found = operators(request.arguments)
    if len(found) != 1:
        raise UsageError(
            f"--scaling {request.scaling} needs to know which argument is the batch size. Write "
            "--batch-size {256/n} for the batch of each worker, or {256*n} for the global batch of a serial "
            "script; leave --scaling out to take the script as it is."
        )
    follows: Mode = "strong" if found == {"/"} else "weak"
    if mode == follows:
        return None
    return request.workers[0], nodes_for(request.workers[0], request.per_node)


def _trial(request: Request, number: int, case: _Case, repeat: int) -> Trial:
    mode = "" if len(case.modes) == 2 else f"-{case.modes[0]}"
    folder = request.folder.absolute() / "trials" / f"{number + 1:03}-n{case.workers}{mode}-r{repeat + 1}"
    trial = Trial(
        number=number,
        workers=case.workers,
        nodes=case.nodes,
        modes=case.modes,
        variant=case.variant.name,
        also=case.also,
        launcher=case.variant.launcher,
        repeat=repeat,
        command=(),
        environment={**OFF, **case.variant.environment},
        folder=folder,
    )
    return replace(trial, command=_command(request, case, trial))


def _command(request: Request, case: _Case, trial: Trial) -> tuple[str, ...]:
    clock = (f"--clock={trial.clock}", f"--clock-steps={request.steps}", f"--clock-warm-up={request.warm_up}")
    compared = case.variant.flags  # behind the user's own, so that they hold
    if request.kind == "recipe":
        out = f"--out={trial.scratch / 'run'}"
        return ("train", request.target, *clock, *request.flags, *case.arguments, *compared, out)
    scratch, module = f"--scratch={trial.scratch}", ["-m"] * (request.kind == "module")
    return ("run", *clock, *request.flags, *compared, scratch, *module, request.target, *case.arguments)


def _line(trial: Trial, words: Sequence[str]) -> str:
    own = [f"{name}={value}" for name, value in trial.environment.items() if name not in OFF]
    return shlex.join([*own, *words])
