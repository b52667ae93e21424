"""Reads and writes the trace of one rank of a script, line by line, so that a crash loses nothing."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple


@dataclass(slots=True, kw_only=True)
class Step:
    """One optimizer step; in a script without optimizers, one backward.

    Args:
        index: number of the step, from 0, over all optimizers.
        optimizer: index of the optimizer, in the order of first steps.
        samples: a key for each sample of training calls since the previous step.
        evaluated: a key for each sample of other calls since then.
        losses: the losses of the backwards since then.
        learning_rates: of the parameter groups.
        gradient_norm: 2-norm of the gradients before the step, over all parameters of the optimizer.
        gradient: sketch of these gradients.
        unclipped: norm of the gradients that `clip_grad_norm_` received since the previous step, or 0.
        before: sketch of the parameters before the step.
        after: sketch of the parameters after the step.
        backwards: number of backwards since the previous step.
        printed: number of characters printed so far.
        joined: whether the rank had no batch left while others made this step (`Join`); then the rest is
            empty.
    """

    index: int
    optimizer: int = 0
    samples: list[float] = field(default_factory=list)
    evaluated: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    learning_rates: list[float] = field(default_factory=list)
    gradient_norm: float = 0.0
    gradient: list[float] = field(default_factory=list)
    unclipped: float = 0.0
    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    backwards: int = 0
    printed: int = 0
    joined: bool = False


class Note(NamedTuple):
    """A note of an observer about the script of one rank."""

    code: str
    message: str
    """What was found, and what to do."""
    step: int | None = None
    """Number of the first step that shows it, from 0."""
    file: str | None = None
    line: int | None = None


class OptimizerParameter(NamedTuple):
    """A parameter of an optimizer."""

    name: str
    """Index of the model and name in it; empty if no called model has the parameter."""
    shape: tuple[int, ...]
    group: int


@dataclass(slots=True, kw_only=True)
class Facts:
    """Properties of the whole run of one rank.

    Args:
        rank: the rank.
        group_size: ranks of the largest process group; 1 without a group.
        epsilon: machine epsilon of the coarsest dtype that anything was computed in.
        parameter_epsilon: machine epsilon of the coarsest dtype of a trained parameter.
        batch_norm: whether batch norms used batch statistics in training.
        drew: whether random numbers were drawn in calls of models, or between a batch and its backward.
        stream: a digest of the random state at the first of these draws.
        augmented: whether data sets drew random numbers in fetching a sample.
        repeated_epochs: number of training epochs that a `DistributedSampler` shuffled like an earlier one.
        buffers: sketch of the buffers of all trained models, at the first training call of each.
        wrapped: whether models were called through DistributedDataParallel.
        compressed: name of a communication hook that rounds or approximates gradients; empty without one.
        listed: folders that were listed in another order than on rank 0.
        same_batch: ranks that compute the same batches together, if there are others (tensor parallel).
        parameters: parameters of each optimizer, in the order of first steps.
        evaluated: a key for each sample of evaluations after the last step.
        printed: stdout.
        written: paths of the files that the rank has written and not removed.
        notes: the notes of all observers.
        ended: "steps" if the requested number of steps was made, "end" if the script ended before, otherwise
            the name of the error.
        message: text of the error.
    """

    rank: int
    group_size: int = 1
    epsilon: float = 0.0
    parameter_epsilon: float = 0.0
    batch_norm: bool = False
    drew: bool = False
    stream: int = 0
    augmented: bool = False
    repeated_epochs: int = 0
    buffers: list[float] = field(default_factory=list)
    wrapped: bool = False
    compressed: str = ""
    listed: list[str] = field(default_factory=list)
    same_batch: list[int] = field(default_factory=list)
    parameters: list[list[OptimizerParameter]] = field(default_factory=list)
    evaluated: list[float] = field(default_factory=list)
    printed: str = ""
    written: list[str] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    ended: str = "killed"
    message: str = ""


@dataclass(frozen=True, slots=True)
class Trace:
    """The trace of one rank."""

    facts: Facts
    steps: Sequence[Step]
    begun: int
    """Number of steps that the rank began."""

    def evaluations(self) -> list[Sequence[float]]:
        """Return the sample keys of each evaluation: of the calls between two steps, if any."""
        found = [*(step.evaluated for step in self.steps), self.facts.evaluated]
        return [keys for keys in found if keys]


class Writer:
    """Appends to the trace of one rank.

    Args:
        path: the trace file.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")

    def step(self, step: Step) -> None:
        """Write a step."""
        self._write({"step": asdict(step)})

    def begin(self, step: int) -> None:
        """Write that a step has begun."""
        self._write({"begun": step})

    def end(self, facts: Facts) -> None:
        """Write the facts at the end."""
        self._write({"facts": asdict(facts)})

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def read(path: Path, *, rank: int) -> Trace:
    """Return the trace of a rank; an empty trace if the file is missing."""
    facts, steps, begun = Facts(rank=rank), [], 0
    for line in _lines(path):
        if "step" in line:
            steps.append(Step(**line["step"]))
        elif "begun" in line:
            begun = line["begun"] + 1
        else:
            facts = Facts(**line["facts"])
            facts.parameters = [
                [OptimizerParameter(name, tuple(shape), group) for name, shape, group in parameters]
                for parameters in facts.parameters
            ]
            facts.notes = [Note(*note) for note in facts.notes]
    return Trace(facts, steps, begun)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines that were written completely."""
    if not path.exists():
        return
    complete = path.read_text(encoding="utf-8").rpartition("\n")[0]
    yield from map(json.loads, complete.splitlines())
