"""Reads and writes the records of one rank of a script, line by line, so that a crash loses nothing.

They are the steps and facts of the run, and the module calls that lead to one step, with their values and
gradients.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from samestep.verify.tensor_summary import RowSummary

Place: TypeAlias = tuple[str, int]
"""A file and a line of it."""


@dataclass(slots=True, kw_only=True)
class Step:
    """One optimizer step; in a script without optimizers, one backward."""

    index: int  # number of the step, from 0, over all optimizers
    optimizer: int = 0  # index of the optimizer, in the order of first steps
    # a key for each sample of training calls since the previous step
    samples: list[float] = field(default_factory=list)
    sums: list[float] = field(default_factory=list)  # the sum of the elements of each of these samples
    # whole passes over the loader of the last batch before that one; 0 without a loader
    passes: int = 0
    # a key for each sample of other calls since then that are evaluations
    evaluated: list[float] = field(default_factory=list)
    combined: list[float] = field(default_factory=list)  # numbers that the ranks reduced in evaluations
    gathered: bool = False  # whether the rank gathered something from others in evaluations
    has_rollout: bool = False  # whether calls without gradients since then have produced these samples
    losses: list[float] = field(default_factory=list)  # the losses of the backwards since then
    divisors: list[float] = field(default_factory=list)  # by what these divide the sums of their parts
    learning_rates: list[float] = field(default_factory=list)  # of the parameter groups
    weight_decays: list[float] = field(default_factory=list)  # of the same groups; 0 where there is none
    # 2-norm of the gradients before the step, over all parameters of the optimizer
    gradient_norm: float = 0.0
    gradient: list[float] = field(default_factory=list)  # sketch of these gradients
    unclipped: float = 0.0  # norm of the gradients that `clip_grad_norm_` received since the last step, or 0
    before: list[float] = field(default_factory=list)  # sketch of the parameters before the step
    after: list[float] = field(default_factory=list)  # sketch of the parameters after the step
    backwards: int = 0  # number of backwards since the previous step
    # a digest of the random state at the first draw since the previous step; 0 if there was none
    stream: int = 0
    printed: int = 0  # number of characters printed so far
    # whether the rank had no batch left while others made this step (`Join`); then the rest is empty
    joined: bool = False


VECTORS = ("gradient", "before", "after")
"""Fields of a step with some numbers of a sketch for each parameter."""


class Note(NamedTuple):
    """A note of an observer about the script of one rank."""

    code: str
    message: str  # what was found, and what to do
    place: Place | None = None  # the line of the script, if known


class OptimizerParameter(NamedTuple):
    """A parameter of an optimizer."""

    name: str  # index of the model and name in it; empty if no called model has the parameter
    shape: tuple[int, ...]  # that of the whole, if the rank holds a part of it
    group: int


@dataclass(slots=True, kw_only=True)
class Facts:
    """Properties of the whole run of one rank."""

    rank: int  # the rank
    group_size: int = 1  # ranks of the largest process group; 1 without a group
    epsilon: float = 0.0  # machine epsilon of the coarsest dtype that anything was computed in
    parameter_epsilon: float = 0.0  # machine epsilon of the coarsest dtype of a trained parameter
    batch_norm: bool = False  # whether batch norms used batch statistics in training
    # whether random numbers were drawn in calls of models, or between a batch and its backward
    drew: bool = False
    stream: int = 0  # a digest of the random state at the first of these draws
    # a digest of the state of a generator of the script at its first draw of noise for samples; 0 without
    # one, and in runs whose rank-dependent features are not disabled
    own_stream: int = 0
    augmented: bool = False  # whether data sets drew random numbers in fetching a sample
    fetch_stream: int = 0  # a digest of the random state at the first of these draws
    # number of training epochs that a `DistributedSampler` shuffled like an earlier one
    repeated_epochs: int = 0
    # sketch of the buffers and frozen parameters of all trained models, at the first training call of each
    buffers: list[float] = field(default_factory=list)
    # sketch of the parameters of all models that are only called without gradients, at the first call of each
    frozen: list[float] = field(default_factory=list)
    wrapped: bool = False  # whether models were called through DistributedDataParallel
    # name of a communication hook that rounds or approximates gradients; empty without one
    compressed: str = ""
    # folders that were listed in another order than on rank 0
    listed: list[str] = field(default_factory=list)
    # ranks that compute the same batches together, if there are others (tensor parallel)
    same_batch: list[int] = field(default_factory=list)
    # sketches of what the rank gave to the first collectives between a call of a model and its backward
    exchanged: list[float] = field(default_factory=list)
    # number of parts that make the whole of a parameter, by its name, if the rank holds a part: that of its
    # rank modulo this number
    parts: dict[str, int] = field(default_factory=dict)
    # trainable parameters of called models that are in no optimizer
    without_optimizer: list[OptimizerParameter] = field(default_factory=list)
    # parameters of each optimizer, in the order of first steps
    parameters: list[list[OptimizerParameter]] = field(default_factory=list)
    # class and arguments of each module of the trained models, by number of the model and name in it
    modules: dict[str, str] = field(default_factory=dict)
    # class and settings of each parameter group of each optimizer, in the order of first steps
    optimizers: list[list[dict[str, str]]] = field(default_factory=list)
    # rates at which values were dropped in training, by the function that drops them
    dropouts: dict[str, list[float]] = field(default_factory=dict)
    # a key for each sample of evaluations after the last step
    evaluated: list[float] = field(default_factory=list)
    combined: list[float] = field(default_factory=list)  # numbers that the ranks reduced in these evaluations
    gathered: bool = False  # whether the rank gathered something in them
    printed: str = ""  # stdout
    # paths of the files that the rank has written and not removed
    written: list[str] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)  # the notes of all observers
    # "steps" if the requested number of steps was made, "end" if the script ended before, otherwise the name
    # of the error
    ended: str = "killed"
    message: str = ""  # text of the error


@dataclass(frozen=True, slots=True)
class Trace:
    """The trace of one rank."""

    facts: Facts
    steps: Sequence[Step]
    begun: int  # number of steps that the rank began

    def evaluations(self) -> list[Sequence[float]]:
        """Return the sample keys of each evaluation: of the calls between two steps, if any."""
        evaluations = [*(step.evaluated for step in self.steps), self.facts.evaluated]
        return [keys for keys in evaluations if keys]


class Writer:
    """Appends records to a file; each has a kind, and a value or a dataclass as its content."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")

    def write(self, kind: str, content: Any) -> None:
        """Write one record."""
        self._file.write(json.dumps([kind, content], default=asdict) + "\n")
        self._file.flush()


def read(path: Path, *, rank: int) -> Trace:
    """Return the trace of a rank; an empty trace if the file is missing."""
    facts, steps, begun = Facts(rank=rank), [], 0
    for kind, content in read_records(path):
        if kind == "step":
            steps.append(Step(**content))
        elif kind == "begun":
            begun = content + 1
        else:
            facts = Facts(**content)
            facts.parameters = [read_parameters(parameters) for parameters in facts.parameters]
            facts.without_optimizer = read_parameters(facts.without_optimizer)
            facts.notes = [
                Note(code, message, place and (place[0], place[1])) for code, message, place in facts.notes
            ]
    return Trace(facts, steps, begun)


def read_parameters(records: Sequence[Sequence[Any]]) -> list[OptimizerParameter]:
    """Return parameters that were written as lists."""
    return [OptimizerParameter(name, tuple(shape), group) for name, shape, group in records]


def read_records(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield kind and content of the records that a `Writer` has written completely; none without a file."""
    if path.exists():
        complete = path.read_text(encoding="utf-8").rpartition("\n")[0]
        yield from map(json.loads, complete.splitlines())


Role: TypeAlias = Literal["input", "output"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a module."""

    index: int  # number of the call, in the order of beginnings
    parent: int | None  # index of the call that it is part of; None for a top-level call
    root: int  # number of the top-level module, in the order of first calls
    # number of the trained model that the top-level module belongs to; None if it is not trained
    model: int | None
    name: str  # qualified name in the top-level module; empty for that itself
    kind: str  # its class
    number: int  # number of the call among those of this module
    # file and line of the class's forward; those of the call, if the class is of a library
    place: tuple[str, int]
    called: tuple[str, int]  # file and line of the script that called it
    # sketch of the parameters of a top-level module at the call; empty for other modules
    parameters: list[float] = field(default_factory=list)


class Key(NamedTuple):
    """Identifies a value in the records of all runs."""

    root: int
    name: str
    number: int
    role: Role
    leaf: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A tensor that a call received or returned."""

    call: int  # index of the call
    role: Role  # whether it is an input or an output
    leaf: int  # its position among these
    tensor: int | None  # number of the tensor in autograd's graph; None if it has no gradient
    batch: int  # number of the batch that it was computed from, from 0; -1 if no batch is known
    summary: RowSummary  # its values


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """The gradient of a tensor."""

    tensor: int  # number of the tensor
    backward: int  # number of the backward in the step
    summary: RowSummary  # its values


@dataclass(kw_only=True)
class ModuleRecord:
    """The module calls that lead to one step on one rank; everything is in the order of execution."""

    calls: list[Call] = field(default_factory=list)  # the calls
    values: list[Value] = field(default_factory=list)  # their inputs and outputs
    gradients: list[Gradient] = field(default_factory=list)  # the gradients of these
    batches: list[list[float]] = field(default_factory=list)  # the sample keys of each batch

    def key(self, value: Value) -> Key:
        """Return the key of a value."""
        call = self.calls[value.call]
        return Key(call.root, call.name, call.number, value.role, value.leaf)

    def samples(self, value: Value) -> list[float]:
        """Return the sample keys of the batch that a value was computed from."""
        return self.batches[value.batch] if 0 <= value.batch < len(self.batches) else []

    @cached_property
    def by_key(self) -> dict[Key, Value]:
        """The values by their keys."""
        return {self.key(value): value for value in self.values}

    @cached_property
    def leaves(self) -> Counter[Key]:
        """The number of inputs and of outputs of each call, by the key of the first one."""
        return Counter(self.key(value)._replace(leaf=0) for value in self.values)

    @cached_property
    def gradients_by_key(self) -> dict[tuple[Key, int], Gradient]:
        """The gradients by the key of the tensor's first value, and the backward."""
        first = {value.tensor: value for value in reversed(self.values)}
        return {
            (self.key(first[gradient.tensor]), gradient.backward): gradient for gradient in self.gradients
        }


def read_modules(path: Path) -> ModuleRecord:
    """Return the record of a rank; an empty one if the file is missing."""
    record = ModuleRecord()
    for kind, content in read_records(path):
        if kind == "call":
            places = {name: tuple(content[name]) for name in ("place", "called")}
            record.calls.append(Call(**{**content, **places}))
        elif kind == "batch":
            record.batches.append(content)
        else:
            content["summary"] = _summary(content["summary"])
            if kind == "value":
                record.values.append(Value(**content))
            else:
                record.gradients.append(Gradient(**content))
    return record


def _summary(content: dict[str, Any]) -> RowSummary:
    rows = {int(dim): rows for dim, rows in content["rows"].items()}
    return RowSummary(content["shape"], rows)
