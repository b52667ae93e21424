"""Writes and reads golden runs: what a run is compared with on another day, machine, or version of torch.

A golden run has what the probes record of one worker, or of all workers together: samples, losses, learning
rates, weight decays, sketches of gradients and parameters, prints, and the settings of models and optimizers;
and the same of a run whose gradients were disturbed by rounding, from which the tolerances follow. The
sketches of all tensors of a step are folded to `FOLDED` numbers, so that the size of a file does not depend
on that of the model. The file is JSON of texts and numbers: reading it runs no code.
"""

import base64
import binascii
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from samestep.base.documents import FormatError, PositiveInt, WholeNumber, read_as, read_json
from samestep.base.errors import UsageError
from samestep.base.machine.description import machine
from samestep.base.record import json_line, write_whole
from samestep.verify.parameter_alignment import OF_GROUPS, UnmatchedParametersError, align_parameters
from samestep.verify.run_record import RunRecord, Vector
from samestep.verify.tensor_summary import BUCKETS, bucket_sums
from samestep.verify.trace import VECTORS, Facts, OptimizerParameter, Step, Trace

FORMAT: Literal["samestep golden run"] = "samestep golden run"
"""The first field of a golden file, which no other file has."""
VERSION = 1
"""Version of the format; a reader refuses files of later ones."""
FOLDED = 64
"""Numbers that a vector of sketches is folded to; they give the norm of a difference to about a fifth."""
_MOST_BYTES = 256 << 20
"""The largest file that is read."""
_HINT = "Make one with samestep verify SCRIPT --save FILE."
Numbers = str
"""Numbers in double precision, little-endian, in base 64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredStep:
    """A step in a golden file; see `trace.Step`."""

    samples: Numbers
    evaluated: Numbers
    combined: Numbers
    losses: Numbers
    divisors: Numbers
    learning_rates: Numbers
    weight_decays: Numbers
    gradient: Numbers
    before: Numbers | None = None  # None if it is the `after` of the optimizer's last step
    after: Numbers
    norms: Numbers  # those of the gradients, and before these were clipped
    optimizer: WholeNumber
    passes: WholeNumber
    backwards: WholeNumber
    printed: WholeNumber
    has_rollout: bool
    gathered: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A run in a golden file, and its facts; see `trace.Facts`."""

    steps: tuple[StoredStep, ...]
    epsilon: float
    parameter_epsilon: float
    batch_norm: bool
    drew: bool
    augmented: bool
    repeated_epochs: WholeNumber
    modules: dict[str, str]
    optimizers: tuple[tuple[dict[str, str], ...], ...]
    dropouts: dict[str, tuple[float, ...]]
    gathered: bool
    printed: str
    ended: str
    parameters: tuple[tuple[OptimizerParameter, ...], ...]
    evaluated: Numbers
    combined: Numbers


_PLAIN = ("optimizer", "passes", "backwards", "printed", "has_rollout", "gathered")
"""Fields of a step that are kept as they are."""
_LISTS = [field.name for field in fields(StoredStep) if field.name not in (*_PLAIN, "norms")]
"""Fields of a step that are lists of numbers, each kept as one text."""
_CONVERTED = ("steps", "parameters", "evaluated", "combined")
_KEPT_FACTS = [field.name for field in fields(StoredRun) if field.name not in _CONVERTED]
"""Facts that are kept as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The place and time at which a golden run was made, and its script."""

    script: str  # the script, as it was given
    arguments: tuple[str, ...]  # its arguments
    commit: str  # of the repository of the script, with a + if files differ from it; empty without one
    workers: PositiveInt  # number of workers
    date: str  # in ISO 8601
    machine: dict[str, str]  # processor, system and versions, see `described_machine`


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenFile:
    """The content of a golden file."""

    format: Literal["samestep golden run"] = FORMAT
    version: PositiveInt = VERSION
    origin: Origin
    initial: tuple[Numbers, ...]  # for each optimizer, `BUCKETS` numbers of each parameter at the beginning
    run: StoredRun
    control: StoredRun  # the run again, its gradients disturbed by rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenRun:
    """A golden run that was read."""

    origin: Origin
    run: RunRecord  # all workers as one, with folded vectors
    control: RunRecord  # the same, its gradients disturbed by rounding
    initial: Sequence[Vector] = field(default_factory=list)

    def aligned(self, run: RunRecord) -> tuple["GoldenRun", RunRecord]:
        """Return both with the same parameters in the same order; the vectors of the run are not folded.

        Raises:
            UnmatchedParametersError: a parameter has no unambiguous match.
        """
        (trace,) = self.run.traces
        if not (trace.facts.parameters or run.facts.parameters):  # scripts without an optimizer
            return self, run
        if any(step.optimizer >= len(self.initial) for step in trace.steps):
            raise UnmatchedParametersError
        # With a gradient everywhere, a parameter that the other run lacks has no match.
        steps = [
            replace(step, gradient=[1.0] * len(begin), before=begin.tolist(), after=begin.tolist())
            for step in trace.steps
            for begin in [self.initial[step.optimizer]]
        ]
        unfolded = replace(self.run, traces=[replace(trace, steps=steps)])
        usual, here = align_parameters(unfolded, run)
        aligned_run, control = (
            _with_groups_of(record, usual.traces[0].steps) for record in (self.run, self.control)
        )
        return replace(self, run=aligned_run, control=control), here


def described_machine() -> dict[str, str]:
    """Return what can change the rounding of a computation: processor, system, and versions."""
    here = machine()
    return {
        "processor": here.processor,
        "system": here.system,
        "python": here.python,
        "torch": here.torch,
        "samestep": here.samestep,
    }


def _with_groups_of(run: RunRecord, aligned: Sequence[Step]) -> RunRecord:
    """Return a run whose steps have the learning rates and weight decays of steps that were aligned."""
    (trace,) = run.traces
    steps = [
        replace(step, **{name: getattr(usual, name) for name in OF_GROUPS})
        for step, usual in zip(trace.steps, aligned, strict=False)
    ]
    return replace(run, traces=[replace(trace, steps=[*steps, *trace.steps[len(steps) :]])])


def initial_sketches(run: RunRecord) -> list[Vector]:
    """Return the sketches of each optimizer's parameters before its first step, in the order of numbers."""
    first = {step.optimizer: step.before for step in reversed(run.traces[0].steps)}
    return [np.array(first.get(number, []), np.float64) for number in range(len(run.facts.parameters))]


def golden_file(origin: Origin, reference: RunRecord, control: RunRecord) -> GoldenFile:
    """Return the golden file of a run and of its repetition with disturbed gradients."""
    return GoldenFile(
        origin=origin,
        initial=tuple(_text(vector) for vector in initial_sketches(reference)),
        run=_stored(folded(as_one(reference))),
        control=_stored(folded(as_one(control))),
    )


def refuse_other_file(path: Path) -> None:
    """Refuse to replace a file that is no golden run, such as the script.

    Raises:
        UsageError: it exists, and is neither a golden run nor empty.
    """
    if not path.exists():
        return
    begin, head = json_line({"format": FORMAT}).removesuffix("}").encode(), None
    if path.is_file():  # a pipe would be waited for
        with suppress(OSError), path.open("rb") as file:
            head = file.read(len(begin))
    if head not in (b"", begin):
        raise UsageError(f"--save {path} would replace a file that is no golden run; give another name.")


def write_golden(path: Path, golden: GoldenFile) -> None:
    """Write a golden file.

    Raises:
        OSError: it cannot be written.
    """
    write_whole(path, [json_line(asdict(golden)), "\n"])


def read_golden(path: Path) -> GoldenRun:
    """Return the golden run in a file.

    Raises:
        UsageError: it cannot be read, or is no golden run.
    """
    content = read_json(path, most=_MOST_BYTES, hint=_HINT)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UsageError(f"{path} is no golden run. {_HINT}")
    version = content.get("version")
    if isinstance(version, int) and version > VERSION:
        raise UsageError(f"{path} has version {version} of its format, and this samestep reads {VERSION}.")
    try:
        stored = read_as(GoldenFile, content, "golden")
        run, control = (
            replace(_record(getattr(stored, name), f"golden.{name}"), workers=stored.origin.workers)
            for name in ("run", "control")
        )
        initial = [_vector(text, "golden.initial") for text in stored.initial]
        if [len(vector) for vector in initial] != [BUCKETS * len(held) for held in run.facts.parameters]:
            raise FormatError("golden.initial is not that of these parameters")
    except FormatError as error:
        raise UsageError(f"{path} is damaged: {error}. {_HINT}") from None
    return GoldenRun(origin=stored.origin, run=run, control=control, initial=initial)


def as_one(run: RunRecord) -> RunRecord:
    """Return a run as one worker would have recorded it: samples, losses and evaluations of all ranks."""
    first = run.traces[0]
    if len(run.traces) == 1:
        return replace(run, workers=None, modules=())
    steps = [
        replace(
            run.at(index),
            samples=run.samples(index).tolist(),
            losses=[run.losses(index)[0]] if run.has_loss(index) else [],
            evaluated=[key for rank_step in run.of_ranks(index) for key in rank_step.evaluated],
        )
        for index in range(run.steps)
    ]
    evaluated = [key for trace in run.traces for key in trace.facts.evaluated]
    facts = replace(first.facts, evaluated=evaluated)
    return replace(run, traces=[Trace(facts, steps, len(steps))], workers=None, modules=())


def folded(run: RunRecord) -> RunRecord:
    """Return a run whose vectors of sketches have at most `FOLDED` numbers each.

    A number is added, with a random sign, to another one: so the fold of a difference is the difference of
    folds, and the expected square of its norm is that of the difference.
    """

    def changed(step: Step) -> Step:
        vectors: dict[str, Any] = {name: _fold(getattr(step, name)) for name in VECTORS}
        return replace(step, **vectors)

    return replace(
        run, traces=[replace(trace, steps=[changed(step) for step in trace.steps]) for trace in run.traces]
    )


def _fold(numbers: Sequence[float]) -> list[float]:
    if len(numbers) <= FOLDED:
        return list(numbers)
    values = torch.tensor(numbers, dtype=torch.float64, device="cpu")
    sums: list[float] = bucket_sums(values, FOLDED, generator=3).tolist()
    return sums


def _stored(run: RunRecord) -> StoredRun:
    facts = run.facts
    last: dict[int, Sequence[float]] = {}
    steps = []
    for step in run.traces[0].steps:
        lists = {name: _text(getattr(step, name)) for name in _LISTS}
        if last.get(step.optimizer) == step.before:
            lists["before"] = None  # type: ignore[assignment]
        last[step.optimizer] = step.after
        plain = {name: getattr(step, name) for name in _PLAIN}
        steps.append(StoredStep(**lists, **plain, norms=_text([step.gradient_norm, step.unclipped])))  # type: ignore[arg-type]
    kept: dict[str, Any] = {name: getattr(facts, name) for name in _KEPT_FACTS}
    return StoredRun(
        **kept,
        steps=tuple(steps),
        parameters=tuple(tuple(parameters) for parameters in facts.parameters),
        evaluated=_text(facts.evaluated),
        combined=_text(facts.combined),
    )


def _record(stored: StoredRun, where: str) -> RunRecord:
    steps = list(_steps(stored.steps, f"{where}.steps"))
    if not steps:
        raise FormatError(f"{where} has no steps")
    kept = {name: getattr(stored, name) for name in _KEPT_FACTS}
    facts = Facts(
        rank=0,
        **kept,
        parameters=[list(held) for held in stored.parameters],
        evaluated=_vector(stored.evaluated, where).tolist(),
        combined=_vector(stored.combined, where).tolist(),
    )
    facts.optimizers = [list(groups) for groups in facts.optimizers]
    facts.dropouts = {name: list(rates) for name, rates in facts.dropouts.items()}
    return RunRecord([Trace(facts, steps, len(steps))], origin="golden")


def _steps(stored: Sequence[StoredStep], where: str) -> Iterator[Step]:
    last: dict[int, list[float]] = {}
    for index, step in enumerate(stored):
        texts = {name: text for name in _LISTS if (text := getattr(step, name)) is not None}
        lists = {name: _vector(text, f"{where}[{index}].{name}").tolist() for name, text in texts.items()}
        lists.setdefault("before", last.get(step.optimizer, []))
        last[step.optimizer] = lists["after"]
        norms = _vector(step.norms, f"{where}[{index}]").tolist()
        if len(norms) != 2:
            raise FormatError(f"{where}[{index}].norms has not two numbers")
        yield Step(
            index=index,
            **lists,
            **{name: getattr(step, name) for name in _PLAIN},
            gradient_norm=norms[0],
            unclipped=norms[1],
        )


def _text(numbers: Sequence[float] | Vector) -> Numbers:
    return base64.b64encode(np.asarray(numbers, "<f8").tobytes()).decode("ascii")


def _vector(text: Numbers, where: str) -> Vector:
    try:
        return np.frombuffer(base64.b64decode(text, validate=True), "<f8").astype(np.float64)
    except (binascii.Error, ValueError):
        raise FormatError(f"{where} has numbers that are not in base 64") from None
