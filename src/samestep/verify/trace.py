"""Reads and writes the records of one rank of a script, line by line, so that a crash loses nothing."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

Place: TypeAlias = tuple[str, int]
"""A file and a line of it."""


@dataclass(slots=True, kw_only=True)
class Step:
    """One optimizer step; in a script without optimizers, one backward."""

    index: int  # number of the step, from 0, over all optimizers
    optimizer: int = 0  # index of the optimizer, in the order of first steps
    # a key for each sample of training calls since the previous step
    samples: list[float] = field(default_factory=list)
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
    # 2-norm of the gradients before the step, over all parameters of the optimizer
    gradient_norm: float = 0.0
    gradient: list[float] = field(default_factory=list)  # sketch of these gradients
    unclipped: float = 0.0  # norm of the gradients that `clip_grad_norm_` received since the last step, or 0
    before: list[float] = field(default_factory=list)  # sketch of the parameters before the step
    after: list[float] = field(default_factory=list)  # sketch of the parameters after the step
    backwards: int = 0  # number of backwards since the previous step
    printed: int = 0  # number of characters printed so far
    # whether the rank had no batch left while others made this step (`Join`); then the rest is empty
    joined: bool = False


class Note(NamedTuple):
    """A note of an observer about the script of one rank."""

    code: str
    message: str  # what was found, and what to do
    place: Place | None = None  # the line of the script, if known


class OptimizerParameter(NamedTuple):
    """A parameter of an optimizer."""

    name: str  # index of the model and name in it; empty if no called model has the parameter
    shape: tuple[int, ...]
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
    # parameters of each optimizer, in the order of first steps
    parameters: list[list[OptimizerParameter]] = field(default_factory=list)
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
        found = [*(step.evaluated for step in self.steps), self.facts.evaluated]
        return [keys for keys in found if keys]


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
            facts.parameters = [
                [OptimizerParameter(name, tuple(shape), group) for name, shape, group in parameters]
                for parameters in facts.parameters
            ]
            facts.notes = [
                Note(code, message, place and (place[0], place[1])) for code, message, place in facts.notes
            ]
    return Trace(facts, steps, begun)


def read_records(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield kind and content of the records that a `Writer` has written completely; none without a file."""
    if path.exists():
        complete = path.read_text(encoding="utf-8").rpartition("\n")[0]
        yield from map(json.loads, complete.splitlines())
